/*
 * Vectors of LANES numbers. What happens to each number is the same whatever they are, and so are its bits. Masks are all
 * ones where true.
 */
#define LANES (WIDTH > MOST_LANES ? MOST_LANES : WIDTH)
#if LANES > 1
typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int32_t whole __attribute__((vector_size(4 * LANES)));
typedef float vector_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int16_t short_vector __attribute__((vector_size(2 * LANES)));
typedef int16_t short_at __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
#define LOAD(p) (*(const vector_at *)(p))
#define KEEP(p, v) (*(vector_at *)(p) = (v))
#define LOAD_SHORT(p) __builtin_convertvector(*(const short_at *)(p), whole)
#define KEEP_SHORT(p, v) (*(short_at *)(p) = __builtin_convertvector(v, short_vector))
#define WHOLE(v) __builtin_convertvector(v, whole)
#define MASK(test) (test)
#define ALL(x) ((x) - (vector){0.0f})
#define BITS(v) ((whole)(v))
#define VALUE(v) ((vector)(v))
#else
typedef float vector;
typedef float vector_at;
typedef int32_t whole;
INLINE int32_t bits_of(float value) {
    union {
        float value;
        int32_t bits;
    } both;
    both.value = value;
    return both.bits;
}
INLINE float value_of(int32_t bits) {
    union {
        float value;
        int32_t bits;
    } both;
    both.bits = bits;
    return both.value;
}
#define LOAD(p) (*(p))
#define KEEP(p, v) (*(p) = (v))
#define LOAD_SHORT(p) ((int32_t)*(p))
#define KEEP_SHORT(p, v) (*(p) = (int16_t)(v))
#define WHOLE(v) ((int32_t)(v))
#define MASK(test) (-(int32_t)(test))
#define ALL(x) (x)
#define BITS(v) bits_of(v)
#define VALUE(v) value_of(v)
#endif

/* exp(-x) for x >= 0: 2^n e^r with r in +-ln 2 / 2, and 0 from x > FADED on. */
#define FADED (SMALL ? 30.0f : 80.0f)
INLINE vector decays(vector x) {
    whole inside = MASK(x <= FADED);
    vector y = VALUE(BITS(x) & inside);
    /* Adding and taking away 1.5 * 2^23 rounds to a whole number. */
    vector n = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
    /* ln 2 in two parts, the first so short that n times it is exact. */
    vector r = (n * 0.693359375f - y) + n * -2.12194440e-4f;
    vector s = 1.38888889e-3f * r + 8.33333377e-3f;
    s = s * r + 4.16666679e-2f;
    s = s * r + 1.66666672e-1f;
    s = s * r + 0.5f;
    s = s * r + 1.0f;
    s = s * r + 1.0f;
    s = s * VALUE((127 - WHOLE(n)) << 23);
    return VALUE(BITS(s) & inside);
}

INLINE float decay(float x) {
#if LANES == 1
    return decays(x);
#else
    return decays(ALL(x))[0];
#endif
}

/*
 * A number of the traces. SMALL networks have 16 bits for it, as IEEE's: 11 that matter, from 2^-14 to 65504; what is less is
 * 0. What is multiplied by weights of 16 bits is rounded to 13 that matter: such products are exact.
 */
#if SMALL
typedef int16_t number;

#if defined(__aarch64__) && LANES == 4
INLINE vector numbers(const number *from) { return vcvt_f32_f16(vreinterpret_f16_s16(vld1_s16(from))); }

INLINE void keep(number *to, vector v) {
    vector some = VALUE(BITS(v) & BITS(vcgeq_f32(vabsq_f32(v), vdupq_n_f32(0x1p-14f))));
    some = vmaxq_f32(vminq_f32(some, vdupq_n_f32(65504.0f)), vdupq_n_f32(-65504.0f));
    vst1_s16(to, vreinterpret_s16_f16(vcvt_f16_f32(some)));
}
#else
INLINE vector numbers(const number *from) { return VALUE(LOAD_SHORT(from) << 13 & -0x70002000) * 0x1p+112f; }

INLINE void keep(number *to, vector v) {
    whole bits = BITS(v), size = bits & 0x7FFFFFFF, large = MASK(size > 0x477FE000), some;
    size = (size & ~large) | (large & 0x477FE000), some = MASK(size >= 0x38800000);
    size = ((size + 0xFFF + (size >> 13 & 1)) >> 13) - 0x1C000;
    KEEP_SHORT(to, (size | (bits >> 16 & -0x8000)) & some);
}
#endif

INLINE vector faded(vector trace, vector factor) { return trace * factor; }

INLINE vector factor_of(vector x) {
    whole bits = BITS(x);
    return VALUE((bits + 0x400) & -0x800 & MASK((bits & 0x7FFFFFFF) > 0x21800000));
}

INLINE void round_all(float *to, const float *from, int count) {
    int k;
    for (k = 0; k < count; k += LANES) KEEP(to + k, factor_of(LOAD(from + k)));
}
#else
typedef float number;

INLINE vector numbers(const number *from) { return LOAD(from); }

INLINE void keep(number *to, vector v) { KEEP(to, v); }

/* What is left of a trace. Zero is cheaper than numbers that any sum would round away. */
#define TINY 1e-30f
INLINE vector faded(vector trace, vector factor) {
    vector z = trace * factor, size = VALUE(BITS(z) & 0x7FFFFFFF);
    return VALUE(BITS(z) & MASK(size > TINY));
}

INLINE vector factor_of(vector x) { return x; }
#endif
