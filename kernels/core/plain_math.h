/* Logarithm and exponential function, computed with +, -, * and / only, so that generated data do not depend
 * on the machine's libm. Their relative error is below 1e-12 for |x| <= 1000. Files that include this header
 * must be compiled without floating-point contraction. */
#pragma once

/* Returns the natural logarithm of x; x must be at least 1. */
static inline double mf_plain_log(double x)
{
    int halvings = 0;
    for (; x > 1.5; x /= 2)
        halvings++;
    double z = (x - 1) / (x + 1), z2 = z * z, term = z, sum = 0;
    for (int i = 1; i < 60; i += 2, term *= z2)
        sum += term / i;
    return 2 * sum + halvings * 0.693147180559945309417232;
}

static inline double mf_plain_exp(double x)
{
    int doublings = 0;
    for (; x < -0.5 || x > 0.5; x /= 2)
        doublings++;
    double term = 1, sum = 1;
    for (int i = 1; i < 20; i++) {
        term = term * x / i;
        sum += term;
    }
    for (; doublings > 0; doublings--)
        sum *= sum;
    return sum;
}
