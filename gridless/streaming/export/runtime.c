/* The same bits everywhere: no product is fused with a sum, and every sum has one order. */
#if defined(__FAST_MATH__)
#error "network.c gives the same bits everywhere only without -ffast-math"
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "network.c needs float arithmetic in float: on x86, compile with -msse2 -mfpmath=sse"
#endif
/* FREE: no call of a library may be put in the place of a loop. APART: a function is not copied into its callers. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define FREE __attribute__((no_builtin))
#define APART static FREE __attribute__((noinline))
#define INLINE static inline FREE __attribute__((always_inline, unused))
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off", "no-tree-loop-distribute-patterns")
#define FREE
#define APART static __attribute__((noinline, noclone))
#define INLINE static inline __attribute__((always_inline))
#else
#pragma STDC FP_CONTRACT OFF
#define FREE
#define APART static
#define INLINE static inline
#endif

/* Sums that are made together: of so many columns, for so many events. Weights lie in panels of COLUMNS. */
#define COLUMNS 8
#define TOGETHER 4

/* An event of a stream, and the place of the one that fired it among those that its stream holds. */
typedef struct {
    int64_t time;
    int32_t x, y, cause, on;
} event;

/* A window of pixels: reach to each side, or only along the row and the column of its middle (cross). */
typedef struct {
    int reach, cross, stride, columns, rows;
} window;

/*
 * Leaky integrate-and-fire: the window that an event reaches, the limits of a potential, and how it decays. Tables are told
 * by their places among the constants.
 */
typedef struct {
    window window;
    float threshold, reset;
    int share, coarse, fine, oldest, bits;
} lif;

/*
 * A convolution of events: its source's pixels, and the window of a target. A trace is `factors` runs of `each` channels;
 * a run has one rate. The trace of tap u of target pixel o is trace[o][u].
 */
typedef struct {
    int width, height;
    window window;
    int channels, taps, factors, each, rate;
} convolution;

INLINE int least(int a, int b) { return a < b ? a : b; }

INLINE int most(int a, int b) { return a > b ? a : b; }

/* Elapsed time as a float. Where no decay is slow, what is beyond 2^30 microseconds has faded away. */
INLINE float elapsed(int64_t now, int64_t before) {
    int64_t age = now - before;
#if SLOW_DECAYS
    return (float)(age < 0 ? 0 : age);
#else
    return (float)(int32_t)(age < 0 ? 0 : age > 1 << 30 ? 1 << 30 : age);
#endif
}

/* exp(-x) for x >= 0: 2^n e^r with r in +-ln 2 / 2, and 0 from x > 80 on. */
INLINE float decay(float x) {
    union {
        uint32_t bits;
        float value;
    } power;
    float y = x > 80.0f ? 80.0f : x;
    /* Adding and taking away 1.5 * 2^23 rounds to a whole number. */
    float n = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
    /* ln 2 in two parts, the first so short that n times it is exact. */
    float r = (n * 0.693359375f - y) + n * -2.12194440e-4f;
    float s = 1.38888889e-3f;
    s = s * r + 8.33333377e-3f;
    s = s * r + 4.16666679e-2f;
    s = s * r + 1.66666672e-1f;
    s = s * r + 0.5f;
    s = s * r + 1.0f;
    s = s * r + 1.0f;
    power.bits = (uint32_t)(127 - (int32_t)n) << 23;
    return x > 80.0f ? 0.0f : s * power.value;
}

/* What is left of a trace. Zero is cheaper than numbers that any sum would round away. */
INLINE float faded(float trace, float factor) {
    float z = trace * factor, size = z < 0.0f ? -z : z;
    return size > 1e-30f ? z : 0.0f;
}

/* The first and the last target pixel, along an axis, whose window holds pixel x. */
INLINE int first_of(int x, int reach, int stride) { return x <= reach ? 0 : (x - reach + stride - 1) / stride; }

INLINE int last_of(int x, int reach, int stride, int size) { return least((x + reach) / stride, size - 1); }

/* The events that those from `*at` on fire, until all are done or there is no room. */
APART int fire(const lif *rule, const event *from, int *at, int count, event *to, int room, float *restrict potential,
                     int64_t *restrict charged) {
    const window w = rule->window;
    const float *share = constants.value + rule->share;
    const float *coarse = constants.value + rule->coarse, *fine = constants.value + rule->fine;
    int fired = 0, i;
    for (i = *at; i < count; i++) {
        const event e = from[i];
        int x0 = first_of(e.x, w.reach, w.stride), x1 = last_of(e.x, w.reach, w.stride, w.columns);
        int y0 = first_of(e.y, w.reach, w.stride), y1 = last_of(e.y, w.reach, w.stride, w.rows), x, y;
        int reached = most(x1 - x0 + 1, 0) * most(y1 - y0 + 1, 0);
        if (fired + reached > room) break;
        for (y = y0; y <= y1; y++) {
            for (x = x0; x <= x1; x++) {
                int pixel = y * w.columns + x;
                int64_t age = e.time - charged[pixel];
                int64_t step = age < 0 ? 0 : age >> rule->bits;
                int32_t rest = age < 0 ? 0 : (int32_t)(age & ((1 << rule->bits) - 1));
                float left = coarse[step < rule->oldest ? step : rule->oldest] * fine[rest];
                float value = potential[pixel] * left + share[reached];
                charged[pixel] = e.time;
                if (value > rule->threshold) {
                    value = rule->reset;
                    to[fired].time = e.time, to[fired].x = x, to[fired].y = y, to[fired].cause = i;
                    fired++;
                }
                potential[pixel] = value;
            }
        }
    }
    *at = i;
    return fired;
}

/* The number of the first tap in row dy of a window. Taps are counted row by row. */
INLINE int first_tap(window w, int dy) {
    int side = 2 * w.reach + 1;
    if (!w.cross) return (dy + w.reach) * side;
    return dy <= 0 ? dy + w.reach : w.reach + side + dy - 1;
}

/* Runs fade by their factors, and take in the same features; in eights, for vectors. */
INLINE void fade(float *restrict trace, const float *restrict factor, const float *restrict features, int factors,
                 int each) {
    int k, c, d;
    for (k = 0; k < factors; k++, trace += each) {
        float f = factor[k];
        for (c = 0; c + 8 <= each; c += 8)
            for (d = c; d < c + 8; d++) trace[d] = faded(trace[d], f) + features[d];
        for (; c < each; c++) trace[c] = faded(trace[c], f) + features[c];
    }
}

/* An event enters the traces of its pixel: one for each target pixel that sees it, at the tap at which it does. */
APART void enter(const convolution *conv, event e, const float *restrict features, float *restrict trace,
                       int64_t *restrict time) {
    const window w = conv->window;
    const int factors = conv->factors, each = conv->each, size = factors * each;
    float age = elapsed(e.time, time[e.y * conv->width + e.x]), factor[FACTORS], tiled[FACTORS];
    int y0 = first_of(e.y, w.reach, w.stride), y1 = last_of(e.y, w.reach, w.stride, w.rows), x, y, k, c;
    time[e.y * conv->width + e.x] = e.time;
    if (each == 1)
        for (k = 0; k < factors; k += conv->channels)
            for (c = 0; c < conv->channels; c++) tiled[k + c] = features[c];
    for (y = y0; y <= y1; y++) {
        int dy = e.y - w.stride * y, reach = w.cross && dy ? 0 : w.reach;
        int x0 = first_of(e.x, reach, w.stride), x1 = last_of(e.x, reach, w.stride, w.columns);
        for (x = x0; x <= x1; x++) {
            int tap = first_tap(w, dy) + e.x - w.stride * x + reach;
            const float *rate = constants.value + conv->rate + tap * factors;
            float *restrict mine = trace + ((ptrdiff_t)(y * w.columns + x) * conv->taps + tap) * size;
            for (k = 0; k < factors; k++) factor[k] = decay(rate[k] * age);
            if (each == 1) {
                for (k = 0; k < factors; k++) mine[k] = faded(mine[k], factor[k]) + tiled[k];
            } else {
                fade(mine, factor, features, factors, each);
            }
        }
    }
}

/* All taps of a target event, as they are at its time. */
APART void gather(const convolution *conv, event e, float *restrict row, const float *restrict trace,
                        const int64_t *restrict time) {
    const window w = conv->window;
    const int factors = conv->factors, each = conv->each, runs = conv->taps * factors;
    const float *rate = constants.value + conv->rate;
    float factor[FACTORS];
    int at = 0, dx, dy, k, c, d;
    trace += (ptrdiff_t)(e.y * w.columns + e.x) * runs * each;
    for (dy = -w.reach; dy <= w.reach; dy++) {
        int reach = w.cross && dy ? 0 : w.reach, y = w.stride * e.y + dy;
        for (dx = -reach; dx <= reach; dx++) {
            int x = w.stride * e.x + dx, inside = x >= 0 && x < conv->width && y >= 0 && y < conv->height;
            float age = inside ? elapsed(e.time, time[y * conv->width + x]) : 0.0f;
            for (k = 0; k < factors; k++) factor[at + k] = age;
            at += factors;
        }
    }
    for (k = 0; k < runs; k++) factor[k] = decay(rate[k] * factor[k]);
    if (each == 1) {
        for (k = 0; k < runs; k++) row[k] = trace[k] * factor[k];
        return;
    }
    for (k = 0; k < runs; k++, trace += each, row += each) {
        float f = factor[k];
        for (c = 0; c + 8 <= each; c += 8)
            for (d = c; d < c + 8; d++) row[d] = trace[d] * f;
        for (; c < each; c++) row[c] = trace[c] * f;
    }
}

/*
 * Four sums at a time. The vectors of 32-bit ARM are left alone: they take the smallest numbers for zero. Compiled with
 * -DNET_FUSED, sums of products are fused where the processor can: faster, but the last bits then depend on it.
 */
#if defined(NET_FUSED) && defined(__aarch64__)
#include <arm_neon.h>
#define ADD(sum, x, w) vfmaq_n_f32(sum, w, x)
#elif defined(NET_FUSED) && defined(__FMA__)
#include <immintrin.h>
#define ADD(sum, x, w) _mm_fmadd_ps(_mm_set1_ps(x), w, sum)
#else
#define ADD(sum, x, w) ((sum) + (x) * (w))
#endif
#if defined(__GNUC__) && !defined(__arm__)
typedef float four __attribute__((vector_size(16)));
#if SHORT_WEIGHTS
typedef weight four_weights __attribute__((vector_size(8), aligned(2), may_alias));
#define WEIGHTS(w) __builtin_convertvector(*(const four_weights *)(w), four)
#else
typedef weight four_weights __attribute__((vector_size(16), aligned(4), may_alias));
#define WEIGHTS(w) (*(const four_weights *)(w))
#endif
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));
INLINE void keep(float *to, four sum) { *(four_floats *)to = sum; }
INLINE four none(void) { return (four){0.0f, 0.0f, 0.0f, 0.0f}; }
INLINE four add(four sum, float x, const weight *w) { return ADD(sum, x, WEIGHTS(w)); }
#else
typedef struct {
    float sum[4];
} four;
INLINE void keep(float *to, four sum) {
    int c;
    for (c = 0; c < 4; c++) to[c] = sum.sum[c];
}
INLINE four none(void) {
    four zero = {{0.0f, 0.0f, 0.0f, 0.0f}};
    return zero;
}
INLINE four add(four old, float x, const weight *w) {
    int c;
    for (c = 0; c < 4; c++) {
        float product = x * (float)w[c];
        old.sum[c] = old.sum[c] + product;
    }
    return old;
}
#endif

/* The sums of a panel, with the bias. */
INLINE void store(float *restrict out, const float *restrict sums, int at, int columns, const float *restrict bias,
                  const float *restrict scale) {
    int c, kept = least(COLUMNS, columns - at);
    for (c = 0; c < kept; c++) {
        float sum = sums[c];
#if SHORT_WEIGHTS
        sum = sum * scale[at + c];
#endif
        out[at + c] = sum + bias[at + c];
    }
    (void)scale;
}

/* A panel of columns, for four rows. */
INLINE void product_of_some(float *restrict out, int count, int columns, const float *restrict rows, int steps,
                            const weight *restrict panel, int at, const float *bias, const float *scale) {
    four low[TOGETHER], high[TOGETHER];
    float sums[TOGETHER][COLUMNS];
    int r, k;
    for (r = 0; r < TOGETHER; r++) low[r] = high[r] = none();
    for (k = 0; k < steps; k++, panel += COLUMNS) {
        for (r = 0; r < TOGETHER; r++) {
            float x = rows[(ptrdiff_t)r * steps + k];
            low[r] = add(low[r], x, panel), high[r] = add(high[r], x, panel + 4);
        }
    }
    for (r = 0; r < TOGETHER; r++) keep(sums[r], low[r]), keep(sums[r] + 4, high[r]);
    for (r = 0; r < least(count, TOGETHER); r++) store(out + r * columns, sums[r], at, columns, bias, scale);
}

/* Four panels, for one row. */
INLINE void product_of_one(float *restrict out, int columns, const float *restrict row, int steps,
                           const weight *restrict panel, int at, const float *bias, const float *scale) {
    four low[TOGETHER], high[TOGETHER];
    float sums[TOGETHER][COLUMNS];
    ptrdiff_t next = (ptrdiff_t)steps * COLUMNS;
    int r, k;
    for (r = 0; r < TOGETHER; r++) low[r] = high[r] = none();
    for (k = 0; k < steps; k++, panel += COLUMNS) {
        for (r = 0; r < TOGETHER; r++)
            low[r] = add(low[r], row[k], panel + r * next), high[r] = add(high[r], row[k], panel + r * next + 4);
    }
    for (r = 0; r < TOGETHER; r++) keep(sums[r], low[r]), keep(sums[r] + 4, high[r]);
    for (r = 0; r < TOGETHER; r++) store(out, sums[r], at + r * COLUMNS, columns, bias, scale);
}

/* out (count, columns) = bias + rows (count, steps) weights (steps, columns). Every sum goes from the first step on. */
APART void product(float *restrict out, int count, int columns, const float *restrict rows, int steps,
                         const weight *restrict weights, const float *bias, const float *scale) {
    int at = 0, i, single = count % TOGETHER == 1;
    /* A last row by itself: several panels at a time. */
    if (single) {
        float *to = out + (ptrdiff_t)(count - 1) * columns;
        const float *from = rows + (ptrdiff_t)(count - 1) * steps;
        for (; at + TOGETHER * COLUMNS <= columns; at += TOGETHER * COLUMNS)
            product_of_one(to, columns, from, steps, weights + (ptrdiff_t)at * steps, at, bias, scale);
        for (; at < columns; at += COLUMNS)
            product_of_some(to, 1, columns, from, steps, weights + (ptrdiff_t)at * steps, at, bias, scale);
    }
    /* Every panel is read once, for all rows. */
    for (at = 0; at < columns; at += COLUMNS) {
        const weight *panel = weights + (ptrdiff_t)at * steps;
        for (i = 0; i < count - single; i += TOGETHER)
            product_of_some(out + (ptrdiff_t)i * columns, count - i, columns, rows + (ptrdiff_t)i * steps, steps, panel, at,
                            bias, scale);
    }
}

/* The cells of a grid (frames, height, width, channels) that one cell of its convolution sees, zeros outside. */
INLINE void cells(float *restrict row, const float *restrict grid, int cell, int frames, int height, int width,
                  int channels, int rows, int columns, int kt, int kh, int kw, int st, int sh, int sw, int pt, int ph,
                  int pw) {
    int t = cell / (rows * columns) * st - pt, y = cell / columns % rows * sh - ph, x = cell % columns * sw - pw;
    int dt, dy, dx, c;
    for (dt = t; dt < t + kt; dt++) {
        for (dy = y; dy < y + kh; dy++) {
            for (dx = x; dx < x + kw; dx++) {
                int inside = dt >= 0 && dt < frames && dy >= 0 && dy < height && dx >= 0 && dx < width;
                const float *from = grid + (inside ? ((dt * height + dy) * width + dx) * channels : 0);
                for (c = 0; c < channels; c++) row[c] = inside ? from[c] : 0.0f;
                row += channels;
            }
        }
    }
}

INLINE float f_relu(float x) { return x > 0.0f ? x : 0.0f; }

INLINE float f_leaky_relu(float x, float slope) { return x > 0.0f ? x : x * slope; }

INLINE float f_abs(float x) { return x < 0.0f ? -x : x; }
