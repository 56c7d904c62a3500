/* Modelled times of pipelines at shapes at which they were not measured.
 *
 * The estimate of a step is a roofline: FLOPs divided by the peak rate, and bytes divided by the bandwidth.
 * The longer time counts in full and the shorter one by a quarter, because they overlap. The last block of
 * each expert is half empty on average, and each further block of an expert reads the expert's weights again
 * from a cache. Rates are measured or, in a serving process, nominal.
 *
 * A measured row replaces most of the estimate. A pipeline that took `us` at the row's shape takes, at
 * another shape,
 *
 *     us / estimate(row's shape) * estimate(other shape) * (1 + distance)
 *
 * The first factor is the row's slowness. A farther row counts with the slowness of the nearest row if that
 * is larger: memory may be the limit at the farther row's shape, while arithmetic or the launches are the
 * limit at the other shape. The distance adds a share of the time for each doubling between the shapes, so
 * that near measurements count more than far ones. A pipeline that is not in the table is assumed to have the
 * slowness and the distance of the nearest row, times MF_FALLBACK_UNTUNED, because it won no race.
 *
 * Sources. Rate of the cache: with twice the bandwidth of memory, the ratios of time to estimate of 69
 * pipelines on an H100, of blocks of 32 to 128 rows and for 16 to 16,384 tokens, differ by 16 % (standard
 * deviation); with four times, as on a CPU, by 25 %. MF_FALLBACK_UNTUNED: on an H200, pipelines with the
 * least estimate took at most 1.11 times the time of tuned rows (docs/performance.md, libfmoe).
 * MF_COST_MORE_TOKENS: on an H200, the slowness of tuned rows grows by up to 12 % from each token count above
 * 256 to the next power of two, because the estimate has no term for shared memory and synchronisation. The
 * other shares are assumptions: a row for more tokens is nearer than a row for fewer tokens, because the
 * estimate includes the padding of large blocks. With these numbers, the choices for 13 shapes without a row
 * took at most 1.02 times the best of 3 to 6 measured pipelines on an H100. */
#pragma once

#include "common/moe/shape.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"

/* Each doubling of the token count or, for rows of other layer models, of the rows per expert: the row has
 * more than the call, or fewer. */
#define MF_COST_FEWER_TOKENS 0.05
#define MF_COST_MORE_TOKENS  0.1
#define MF_COST_OTHER_LAYER  0.05 /* the row is of another layer model */
#define MF_COST_OTHER_SIZE   0.02 /* each doubling of model_dim and inter_dim */
#define MF_FALLBACK_UNTUNED  1.15
#define MF_FALLBACK_ROWS     16 /* maximum number of rows that are compared, the nearest ones */

/* Returns the estimate of a step, in microseconds. */
double mf_cost_of_step(const struct mf_device *device, const struct mf_shape *shape,
                       const struct mf_step *step);
/* Returns the time that each launch adds, in microseconds. */
double mf_cost_of_gap(const struct mf_device *device);
/* Sums the estimates of a pipeline's steps and gaps. INFINITY: a step is not offered for the shape. Returns
 * the errors of mf_family.enumerate. */
int mf_cost_of_pipeline(const struct mf_device *device, const struct mf_shape *shape,
                        const struct mf_family_set *extra, const char *names, double *ret_us);
/* Returns the share of a row's scaled time that its distance from the asked shape adds. INFINITY: the row has
 * other formats, another activation or another form. */
double mf_cost_of_distance(const struct mf_shape *asked, const struct mf_shape *row);
