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
 * a run has one rate, and the slowest of each tap stands apart. The trace of tap u of target pixel o is trace[o][u]; where
 * all taps have the same rates (shared), that of source pixel i is trace[i].
 */
typedef struct {
    int width, height;
    window window;
    int channels, taps, factors, each, shared, rate, slowest;
} convolution;

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

/* A trace fades and takes in features. */
INLINE void fade(const convolution *conv, number *restrict trace, const float *rate, float age,
                 const float *restrict features) {
    float factor[FACTORS];
    int k;
    for (k = 0; k < conv->factors; k += LANES) {
        vector left = decays(LOAD(rate + k) * age);
        if (conv->each == 1)
            keep(trace + k, faded(numbers(trace + k), left) + LOAD(features + k));
        else
            KEEP(factor + k, left);
    }
    if (conv->each == 1) return;
    for (k = 0; k < conv->factors; k++) fade_run(trace + k * conv->each, factor[k], features, conv->each);
}

/* An event enters the traces of its pixel: one for each target pixel that sees it, at the tap at which it does. */
INLINE void enter(const convolution *conv, event e, const float *restrict features, number *restrict trace,
                  int64_t *restrict time) {
    const window w = conv->window;
    const int factors = conv->factors, size = factors * conv->each, tiles = conv->each == 1 ? factors : conv->each;
    const float *rate = constants.value + conv->rate;
    float age = elapsed(e.time, time[e.y * conv->width + e.x]), tiled[FACTORS];
    int y0 = first_of(e.y, w.reach, w.stride), y1 = last_of(e.y, w.reach, w.stride, w.rows), x, y, k, c;
    time[e.y * conv->width + e.x] = e.time;
    if (tiles != conv->channels) {
        /* Once for every decay, or with zeros up to a whole vector. */
        for (k = 0; k < tiles; k++) tiled[k] = 0.0f;
        for (k = 0; k + conv->channels <= tiles; k += conv->channels)
            for (c = 0; c < conv->channels; c++) tiled[k + c] = features[c];
        features = tiled;
    }
    if (conv->shared) {
        fade(conv, trace + (ptrdiff_t)(e.y * conv->width + e.x) * size, rate, age, features);
        return;
    }
    for (y = y0; y <= y1; y++) {
        int dy = e.y - w.stride * y, reach = w.cross && dy ? 0 : w.reach;
        int x0 = first_of(e.x, reach, w.stride), x1 = last_of(e.x, reach, w.stride, w.columns);
        for (x = x0; x <= x1; x++) {
            int tap = first_tap(w, dy) + e.x - w.stride * x + reach;
            number *mine = trace + ((ptrdiff_t)(y * w.columns + x) * conv->taps + tap) * size;
            fade(conv, mine, rate + tap * factors, age, features);
        }
    }
}

/* Of the events of a block, the rows that see something at each tap, and how many they are. */
typedef struct {
    int many[TAPS];
    unsigned char row[TAPS][BLOCK];
} sight;

/*
 * The taps of a target event, as they are at its time. Where nothing has been at a pixel, or all of it has faded, there is
 * nothing to read: zeros stand for it in the row; or, where every tap has rows of its own (seen), the event has none there.
 */
INLINE void gather(const convolution *conv, event e, int row, float *restrict rows, sight *restrict seen,
                   const number *restrict trace, const int64_t *restrict time) {
    const window w = conv->window;
    const int factors = conv->factors, each = conv->each, size = factors * each, taps = conv->taps;
    const float *rate = constants.value + conv->rate, *slowest = constants.value + conv->slowest;
    float factor[FACTORS];
    int u = 0, dx, dy, k;
    for (dy = -w.reach; dy <= w.reach; dy++) {
        int reach = w.cross && dy ? 0 : w.reach, y = w.stride * e.y + dy;
        for (dx = -reach; dx <= reach; dx++, u++, rate += factors) {
            int x = w.stride * e.x + dx, inside = x >= 0 && x < conv->width && y >= 0 && y < conv->height;
            float age = inside ? elapsed(e.time, time[y * conv->width + x]) : 0.0f, *to = rows + u * size;
            int empty = !inside || age * slowest[u] > FADED;
            const number *mine = trace + ((ptrdiff_t)(e.y * w.columns + e.x) * taps + u) * size;
            if (conv->shared) mine = trace + (ptrdiff_t)(y * conv->width + x) * size;
            if (empty) {
                if (!seen)
                    for (k = 0; k < size; k += LANES) KEEP(to + k, ALL(0.0f));
                continue;
            }
            if (seen) {
                to = rows + ((ptrdiff_t)u * BLOCK + seen->many[u]) * size;
                seen->row[u][seen->many[u]++] = (unsigned char)row;
            }
            for (k = 0; k < factors; k += LANES) {
                vector left = decays(LOAD(rate + k) * age);
                if (each == 1)
                    KEEP(to + k, factor_of(numbers(mine + k) * left));
                else
                    KEEP(factor + k, left);
            }
            if (each > 1)
                for (k = 0; k < factors; k++) read_run(to + k * each, mine + k * each, factor[k], each);
        }
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
