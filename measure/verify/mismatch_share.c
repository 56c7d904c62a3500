#include "measure/verify/mismatch_share.h"

#include <math.h>

#include "kernels/core/limits.h"

#define RANGE 6.0 /* standard deviations of r that the integral covers */
#define STEPS 48  /* midpoints; the result is exact to about 0.001 */

double mf_mismatch_share(double error, double rms)
{
    if (!(error > 0) || !(rms > 0))
        return 0;
    const double width = RANGE / STEPS, scale = 1 / (error * sqrt(2.0));
    double share = 0;
    for (int i = 0; i < STEPS; i++) {
        double r = (i + 0.5) * width; /* |r| in standard deviations */
        double density = sqrt(2 / M_PI) * exp(-r * r / 2);
        share += width * density * erfc((MF_TOLERANCE / rms + MF_TOLERANCE * r) * scale);
    }
    return fmin(share, 1);
}
