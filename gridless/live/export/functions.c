
/* Functions of one number, in double precision throughout: exact to the rounding of a float. */

INLINE double exp_of(double x) {
    union {
        uint64_t bits;
        double value;
    } power;
    double y = x > 700.0 ? 700.0 : x < -700.0 ? -700.0 : x;
    double n = (y * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;
    double r = (y - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10, s = 1.0;
    int k;
    for (k = 13; k > 0; k--) s = 1.0 + s * r / k;
    power.bits = (uint64_t)(1023 + (int32_t)n) << 52;
    return s * power.value;
}

/* The natural logarithm of x > 0: x = 2^n m with m in [sqrt(1/2), sqrt(2)). */
INLINE double log_of(double x) {
    union {
        uint64_t bits;
        double value;
    } part;
    int32_t n;
    double q, square, s = 0.0;
    int k;
    part.value = x;
    n = (int32_t)(part.bits >> 52) - 1023;
    part.bits = (part.bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    if (part.value > 1.4142135623730951) part.value *= 0.5, n++;
    q = (part.value - 1.0) / (part.value + 1.0), square = q * q;
    for (k = 23; k > 0; k -= 2) s = s * square + 1.0 / k;
    return n * 0.6931471805599453 + 2.0 * q * s;
}

/* The square root of x >= 0, by Newton's steps. */
INLINE double root_of(double x) {
    union {
        uint64_t bits;
        double value;
    } guess;
    int k;
    if (x <= 0.0) return 0.0;
    guess.value = x;
    guess.bits = (guess.bits >> 1) + 0x1FF8000000000000ull;
    for (k = 0; k < 5; k++) guess.value = 0.5 * (guess.value + x / guess.value);
    return guess.value;
}

/* log(1 + x) for x > -1. The rounding of 1 + x is made good. */
INLINE double log1p_of(double x) {
    double y = 1.0 + x;
    return log_of(y) - ((y - 1.0) - x) / y;
}

/* The error function, from the series whose terms are all of one sign. */
INLINE double erf_of(double x) {
    double term = x, sum = x;
    int k;
    if (x > 6.0 || x < -6.0) return x > 0.0 ? 1.0 : -1.0;
    for (k = 1; k < 140; k++) term = term * (2.0 * x * x) / (2 * k + 1), sum = sum + term;
    return 1.1283791670955126 * exp_of(-x * x) * sum;
}

INLINE double sigmoid_of(double x) { return 1.0 / (1.0 + exp_of(-x)); }
