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

/* Of the events of a block, the rows that see something at each tap, and how many they are. */
typedef struct {
    int many[TAPS];
    unsigned char row[TAPS][BLOCK];
} sight;

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

#if NET_DURATION
/* Whole division without the compiler's library, for a >= 0 and b > 0. */
INLINE int64_t divide(int64_t a, int64_t b) {
    uint64_t rest = 0, result = 0;
    int bit;
    for (bit = 62; bit >= 0; bit--) {
        rest = rest << 1 | ((uint64_t)a >> bit & 1);
        result <<= 1;
        if (rest >= (uint64_t)b) rest -= (uint64_t)b, result |= 1;
    }
    return (int64_t)result;
}
#endif
