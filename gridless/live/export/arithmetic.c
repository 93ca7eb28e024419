/*
 * The same bits everywhere: every sum has one order, and no product is fused with a sum; or, with -DNET_FUSED, every one of
 * the long sums is, on processors that can. The two differ in the last bits.
 */
#if defined(__FAST_MATH__)
#error "network.c gives the same bits everywhere only without -ffast-math"
#endif
#include <float.h>
/* 16: numbers of 16 bits are computed with in 16 bits, and float in float. */
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "network.c needs float arithmetic in float: on x86, compile with -msse2 -mfpmath=sse"
#endif
/*
 * FREE: no call of a library may be put in the place of a loop. APART: a function is not copied into its callers. TARGET: the
 * processors that a function is for.
 */
#define TARGET
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define FREE __attribute__((no_builtin)) TARGET
#define APART static FREE __attribute__((noinline, unused))
#define INLINE static inline FREE __attribute__((always_inline, unused))
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off", "no-tree-loop-distribute-patterns")
#if defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__) && !defined(__SANITIZE_ADDRESS__)
#pragma GCC optimize("O3")
#endif
#define FREE TARGET
#define APART static FREE __attribute__((noinline, noclone, unused))
#define INLINE static inline FREE __attribute__((always_inline))
#else
#pragma STDC FP_CONTRACT OFF
#define FREE
#define APART static
#define INLINE static inline
#endif

/*
 * Whether there are vectors: not where the compiler or the processor has no good ones (those of 32-bit ARM take the smallest
 * numbers for zero).
 */
#if defined(__GNUC__) && (defined(__aarch64__) || defined(__SSE2__) || defined(__wasm_simd128__))
#define VECTORS 1
#else
#define VECTORS 0
#endif

/* Products of SMALL networks are exact, so that it changes no bit whether they are fused with sums. */
#if defined(NET_FUSED) || SMALL
#define FUSED 1
#else
#define FUSED 0
#endif
#if FUSED && VECTORS && defined(__aarch64__)
#include <arm_neon.h>
#elif FUSED && VECTORS && defined(__FMA__)
#include <immintrin.h>
#endif

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
