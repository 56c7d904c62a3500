/* The simulated device and its kernel families: a deterministic model for load tests and fault injection.
 *
 * Steps are not computed. The true time of a step depends only on device class, shape, step and routing. It
 * comes from a roofline model with an efficiency derived from the step's name, and with padding to the step's
 * block. A sample depends only on seed, shape, step name and index. It is the true time with 2% log-normal
 * noise; 1% of the samples are outliers that take 1.2 times as long. Any worker therefore produces the same
 * samples, even after a runner crash, and a rerun produces the same table.
 *
 * The search space of family sim is similar in size and structure to that of AITER. Family aiter, selected by
 * --families aiter, has the names of AITER's kernels (kernels/aiter/aiter.h).
 *
 * A spec file injects faults:
 *    {"step_ms": 50, "pipeline_ms": 0, "faults": [{"match": "sim_s1_m64_*", "fault": "crash", "first": 1}],
 *     "times": [{"match": "sim_s2_*", "factor": 0.9}],
 *     "disturbances": [{"part": "rerun", "token": 16, "factor": 2.4, "first": 1}]}
 *
 *   step_ms      wall time that a step takes, in ms (0: returns at once)
 *   pipeline_ms  wall time that a raced pipeline takes, in ms (default: step_ms)
 *   faults       a fault hits the steps with matching names; `first` is the maximum number of hits of all
 *                runners and workers that use the spec file (counted in files next to the spec file)
 *   times        the true time of matching steps is multiplied by `factor`, so that devices can differ
 *   disturbances the samples of a part of a race (MF_SIM_PART_MAP) of the shape with `token` tokens (default:
 *                any) are multiplied by `factor`; `first` as for faults */
#pragma once

#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "kernels/sim/sim_fault.h"

/* Opens "sim:<class>:<ordinal>[:<spec file>]". If that fails, returns -errno with the reason in why. */
int mf_sim_open(const char *name, char *why, size_t why_cap, struct mf_device **ret);

/* Returns the true time in microseconds, without noise. */
double mf_sim_step_us(const struct mf_device_info *device, const struct mf_shape *shape,
                      const struct mf_step *step);
/* Returns the noise seed of a named step or pipeline. Compute the seed once for all samples, because this
 * function is slow: it hashes the shape's text. */
uint64_t mf_sim_noise(uint64_t seed, const struct mf_shape *shape, const char *name);
/* Returns sample `index` in microseconds, from a noise seed and a true time of `us` microseconds. */
double mf_sim_sample_us(double us, uint64_t noise, int64_t index);

/* The following functions accept only devices from mf_sim_open. */
/* Returns the fault that this run of the step must have. If the spec limits the number of hits, counts the
 * hit. */
enum mf_sim_fault mf_sim_fault_of(struct mf_device *device, const char *step_name);
/* Returns the factor by which the true time of this step is multiplied on the device. */
double mf_sim_factor_of(const struct mf_device *device, const char *step_name);
/* Returns the factor by which samples of this part of a race are multiplied, 1 if it is not disturbed. Counts
 * the hit as mf_sim_fault_of does. */
double mf_sim_disturbance_of(const struct mf_device *device, enum mf_sim_part part, int64_t token);
int64_t mf_sim_step_ms(const struct mf_device *device);
int64_t mf_sim_pipeline_ms(const struct mf_device *device);

extern const struct mf_family mf_family_sim, mf_family_aiter;
