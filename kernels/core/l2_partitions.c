#include "kernels/core/l2_partitions.h"

#include <math.h>

/* Minimum absolute correlation between the latencies of two SMs. The correlation is positive for SMs on the
 * same partition and negative for SMs on different partitions. On an H200 its absolute value is 0.94 or more.
 */
#define AGREEMENT 0.7

static double mean_of(const uint32_t *cycles, int lines)
{
    double sum = 0;
    for (int i = 0; i < lines; i++)
        sum += cycles[i];
    return sum / lines;
}

/* Returns the Pearson correlation of a and b, or 0 if a or b is constant. */
static double agreement(const uint32_t *a, const uint32_t *b, int lines)
{
    double mean_a = mean_of(a, lines), mean_b = mean_of(b, lines), ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < lines; i++) {
        ab += (a[i] - mean_a) * (b[i] - mean_b);
        aa += (a[i] - mean_a) * (a[i] - mean_a);
        bb += (b[i] - mean_b) * (b[i] - mean_b);
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

struct mf_l2_halves mf_l2_halves_of(const uint32_t *cycles, int sms, int lines)
{
    const struct mf_l2_halves none = {.near = 0};
    struct mf_l2_halves h = none;
    if (sms > MF_SMS_MAX)
        return none;
    for (int u = 0; u < sms; u++) {
        double r = agreement(cycles, cycles + (int64_t)u * lines, lines);
        if (fabs(r) < AGREEMENT)
            return none;
        if (r < 0)
            h.far[u / 32] |= 1u << u % 32;
        else
            h.near++;
    }
    return h.near < sms ? h : none;
}
