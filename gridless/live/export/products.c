/*
 * Products of rows and weights. Weights lie in panels of COLUMNS, the last one of half as many where that is enough; sums of
 * TOGETHER rows and as many columns as there are registers for are made together, over STEPS steps, so that these weights
 * stay in the fastest cache. Every sum goes from the first step on, in order.
 */
#define COLUMNS 16
#define TOGETHER 4

/*
 * Vectors of sums; ACROSS of them for each row, and MANY rows where there are registers for more. Where a vector is a whole
 * panel, they are of two PANELS.
 */
#define ACROSS (WIDTH == COLUMNS ? 1 : 2)
#define MANY (WIDTH == COLUMNS ? 8 : TOGETHER)
#define PANELS (WIDTH == COLUMNS && !SMALL ? 2 : 1)
#if WIDTH > LANES
typedef float sums __attribute__((vector_size(4 * WIDTH)));
typedef float sums_at __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#else
typedef vector sums;
typedef vector_at sums_at;
#endif

/* sum + x w, for a number x. */
#if FUSED && LANES == 4 && defined(__aarch64__)
#define ADD(sum, x, w) vfmaq_n_f32(sum, w, x)
#elif FUSED && WIDTH >= 8 && defined(__FMA__)
#if WIDTH == 16
#define ADD(sum, x, w) _mm512_fmadd_ps(_mm512_set1_ps(x), w, sum)
#else
#define ADD(sum, x, w) _mm256_fmadd_ps(_mm256_set1_ps(x), w, sum)
#endif
#if LANES == 8
#define ADD_ONE(sum, x, w) _mm256_fmadd_ps(_mm256_set1_ps(x), w, sum)
#else
#define ADD_ONE(sum, x, w) _mm_fmadd_ps(_mm_set1_ps(x), w, sum)
#endif
#elif FUSED && LANES == 1 && (defined(__FP_FAST_FMAF) || defined(__riscv_flen))
#define ADD(sum, x, w) __builtin_fmaf(x, w, sum)
#elif defined(NET_FUSED) && !SMALL
#error "NET_FUSED needs a processor that fuses products with sums (on x86: -mavx -mfma)"
#else
#define ADD(sum, x, w) ((sum) + (x) * (w))
#endif
#if !defined(ADD_ONE)
#define ADD_ONE ADD
#endif

/* What stays rolled up keeps its sums in memory, and takes up to 3.5 times as long (clang 14, clang for WebAssembly). */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif
#define EACH(k, n) UNROLL for (k = 0; k < (n); k++)

/*
 * The sums of some columns go on: total (row; COLUMNS) += x (many, n; `pitch` apart) w (n, wide), for the rows named. From one
 * vector of sums to the next, and of weights, it is so far.
 */
INLINE void add(const int many, const int across, float *restrict total, const int *restrict row, const float *restrict x,
                int pitch, int n, const float *restrict w, int wide, ptrdiff_t next_sum, ptrdiff_t next) {
    sums sum[MANY][2];
    int r, c, k = 0;
    EACH(r, many)
        EACH(c, across) sum[r][c] = *(const sums_at *)(total + row[r] * COLUMNS + c * next_sum);
#if WIDTH == 4 && !defined(__SSE2__)
    /* Four steps by element of a vector, one instruction on ARM; the 16 registers of x86 hold no more than the sums. */
    for (; k + 4 <= n; k += 4) {
        vector some[MANY];
        int j;
        EACH(r, many) some[r] = LOAD(x + (ptrdiff_t)r * pitch + k);
        UNROLL for (j = 0; j < 4; j++, w += wide)
            EACH(c, across) {
                sums weights = *(const sums_at *)(w + c * next);
                EACH(r, many) sum[r][c] = ADD(sum[r][c], some[r][j], weights);
            }
    }
#endif
    for (; k < n; k++, w += wide)
        EACH(c, across) {
            sums weights = *(const sums_at *)(w + c * next);
            EACH(r, many) sum[r][c] = ADD(sum[r][c], x[(ptrdiff_t)r * pitch + k], weights);
        }
    EACH(r, many)
        EACH(c, across) *(sums_at *)(total + row[r] * COLUMNS + c * next_sum) = sum[r][c];
}

/* The same for one row, all columns of a panel, and numbers as they are stored. */
INLINE void add_one(const int across, float *restrict total, const float *restrict x, int n, const number *restrict w) {
    vector sum[COLUMNS / LANES];
    int c, k;
    EACH(c, across) sum[c] = LOAD(total + c * LANES);
    for (k = 0; k < n; k++, w += across * LANES)
        EACH(c, across) sum[c] = ADD_ONE(sum[c], x[k], numbers(w + c * LANES));
    EACH(c, across) KEEP(total + c * LANES, sum[c]);
}

/*
 * out (count, columns) = bias + rows (count, steps) weights (steps, columns); or the sum of that over taps, each with the rows
 * that were seen there, BLOCK rows apart (count is at most BLOCK). A row that is left out would have added zeros.
 */
APART void product(float *restrict out, int count, int columns, const float *restrict rows, int taps, int steps,
                   const sight *restrict seen, const number *restrict weights, const float *restrict bias,
                   const float *restrict scale, float *restrict decoded) {
    /* The last row is for those that fill a group up: as many rows take as long, where sums wait for each other. */
    float totals[PANELS][(BLOCK + 1) * COLUMNS] NET_LINE, *total = totals[0];
    const ptrdiff_t next = (ptrdiff_t)taps * steps * COLUMNS, next_sum = (BLOCK + 1) * COLUMNS;
    int first, at, panels, u, i, k, c, r;
    for (first = 0; first < count; first += BLOCK, rows += (ptrdiff_t)BLOCK * steps, out += (ptrdiff_t)BLOCK * columns) {
        int some = least(BLOCK, count - first);
        const number *panel = weights;
        for (at = 0; at < columns; at += panels * COLUMNS, panel += (panels - 1) * next) {
            int wide = columns - at > COLUMNS / 2 ? COLUMNS : COLUMNS / 2;
            panels = columns - at > COLUMNS + COLUMNS / 2 ? PANELS : 1;
            for (i = 0; i < panels * next_sum; i++) total[i] = 0.0f;
            for (u = 0; u < taps; u++) {
                int those = seen ? seen->many[u] : some;
                for (k = 0; k < steps; k += STEPS) {
                    int n = least(STEPS, steps - k);
                    const float *x = rows + (ptrdiff_t)u * BLOCK * steps + k;
                    int many = TOGETHER;
                    for (i = 0; i < those - (panels == 1); i += many, x += (ptrdiff_t)many * steps) {
                        int row[MANY];
#if SMALL
                        const float *part = decoded;
                        if (i == 0)
                            for (c = 0; c < n * wide; c += LANES) KEEP(decoded + c, numbers(panel + c));
#else
                        const float *part = panel;
#endif
                        EACH(r, MANY) row[r] = i + r >= those ? BLOCK : seen ? seen->row[u][i + r] : i + r;
                        many = those - i > TOGETHER ? MANY : TOGETHER;
                        if (PANELS > 1 && panels > 1) {
                            if (many == MANY)
                                add(MANY, PANELS, total, row, x, steps, n, part, wide, next_sum, next);
                            else
                                add(TOGETHER, PANELS, total, row, x, steps, n, part, wide, next_sum, next);
                            continue;
                        }
                        for (c = 0; c < wide; c += ACROSS * WIDTH)
                            if (MANY > TOGETHER && many == MANY)
                                add(MANY, ACROSS, total + c, row, x, steps, n, part + c, wide, WIDTH, WIDTH);
                            else if (c + ACROSS * WIDTH > wide)
                                add(TOGETHER, 1, total + c, row, x, steps, n, part + c, wide, WIDTH, WIDTH);
                            else if (MANY == TOGETHER && those - i == 2)
                                add(2, ACROSS, total + c, row, x, steps, n, part + c, wide, WIDTH, WIDTH);
                            else if (MANY == TOGETHER && those - i == 3)
                                add(3, ACROSS, total + c, row, x, steps, n, part + c, wide, WIDTH, WIDTH);
                            else
                                add(TOGETHER, ACROSS, total + c, row, x, steps, n, part + c, wide, WIDTH, WIDTH);
                    }
                    if (i == those - 1) {
                        float *one = total + (seen ? seen->row[u][i] : i) * COLUMNS;
                        if (wide == COLUMNS)
                            add_one(COLUMNS / LANES, one, x, n, panel);
                        else
                            add_one(COLUMNS / LANES / 2, one, x, n, panel);
                    }
                    panel += n * wide;
                }
            }
            for (u = 0; u < panels; u++)
                for (i = 0; i < some; i++)
                    for (c = 0; c < least(wide, columns - at - u * COLUMNS); c++) {
                        int to = at + u * COLUMNS + c;
                        float sum = total[u * next_sum + i * COLUMNS + c];
#if SMALL
                        sum = sum * scale[to];
#endif
                        out[i * columns + to] = sum + bias[to];
                    }
        }
    }
    (void)scale, (void)decoded;
}
