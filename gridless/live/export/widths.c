/*
 * What follows is for vectors of WIDTH numbers: as many as the compiler may use. For x86-64 as it is, that is 4; this file
 * then reads itself twice before, for processors with AVX-512 and AVX2 (TARGET), its functions under other names. All give
 * the same bits. Not with -DNET_NARROW.
 */
#if VECTORS && defined(__x86_64__) && !defined(_WIN32) && !defined(__AVX__) && !defined(NET_NARROW)
#define CHOICE
#undef TARGET
#define NAMED(name) name##_16
#define TARGET __attribute__((target("avx512f")))
#define WIDTH 16
#include "network.c"
#undef NAMED
#undef TARGET
#undef WIDTH
#define NAMED(name) name##_8
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#include "network.c"
#undef NAMED
#undef TARGET
#undef WIDTH
#define TARGET
#endif
#define NAMED(name) name
#define LAST
#if VECTORS && defined(__AVX512F__)
#define WIDTH 16
#elif VECTORS && defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH (VECTORS ? 4 : 1)
#endif
