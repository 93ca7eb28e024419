/* Channels of one rate, in spans where vectors may be wider. */
#define SPANS (!SMALL && WIDTH > LANES)
#if SPANS
typedef float span __attribute__((vector_size(4 * WIDTH)));
typedef int32_t span_bits __attribute__((vector_size(4 * WIDTH)));
typedef float span_at __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#endif

INLINE void fade_run(number *restrict trace, float factor, const float *restrict features, int n) {
    int c = 0;
#if SPANS
    for (; c + WIDTH <= n; c += WIDTH) {
        span z = *(const span_at *)(trace + c) * factor, size = (span)((span_bits)z & 0x7FFFFFFF);
        *(span_at *)(trace + c) = (span)((span_bits)z & (size > TINY)) + *(const span_at *)(features + c);
    }
#endif
    for (; c < n; c += LANES) keep(trace + c, faded(numbers(trace + c), ALL(factor)) + LOAD(features + c));
}

INLINE void read_run(float *restrict to, const number *restrict trace, float factor, int n) {
    int c = 0;
#if SPANS
    for (; c + WIDTH <= n; c += WIDTH) *(span_at *)(to + c) = *(const span_at *)(trace + c) * factor;
#endif
    for (; c < n; c += LANES) KEEP(to + c, factor_of(numbers(trace + c) * ALL(factor)));
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
