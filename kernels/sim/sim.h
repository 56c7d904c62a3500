/* The simulated device and its families: a deterministic model for scale tests and fault injection.
 *
 * Nothing is computed. The true time of a step is a function of (class, shape, step, routing): a roofline
 * with an efficiency derived from the step's name, and with padding to the step's block. A sample is a pure
 * function of (seed, shape, name, index): the true time with 2% log-normal noise; 1% of the samples are
 * outliers that take 1.2 times as long. Any worker therefore produces the same samples, even after a runner
 * crash, and a rerun produces the same table.
 *
 * Family sim has a search space similar in size and structure to AITER's. Family aiter, selected by
 * --families aiter, has AITER's own kernel names (kernels/aiter/aiter.h).
 *
 * A spec file injects faults:
 *    {"step_ms": 50, "pipeline_ms": 0, "faults": [{"match": "sim_s1_m64_*", "fault": "crash", "first": 1}],
 *     "times": [{"match": "sim_s2_*", "factor": 0.9}]}
 *
 *   step_ms      wall time of a step in ms (0: none)
 *   pipeline_ms  wall time of a raced pipeline in ms (default: step_ms)
 *   faults       each fault hits the steps whose names match; `first` limits the number of hits over all
 *                runners and workers that use the spec file (counted in files next to it)
 *   times        factor on the true time of matching steps, so that devices of a class can differ */
#pragma once

#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "kernels/sim/sim_fault.h"

/* Opens "sim:<class>:<ordinal>[:<spec file>]". On failure: -errno and the reason in why. */
int mf_sim_open(const char *name, char *why, size_t why_cap, struct mf_device **ret);

/* True time in microseconds, without noise. */
double mf_sim_step_us(const struct mf_device_info *device, const struct mf_shape *shape,
                      const struct mf_step *step);
/* Returns the noise seed of a named step or pipeline. Compute it once for all samples, because this function
 * hashes the shape's text. */
uint64_t mf_sim_noise(uint64_t seed, const struct mf_shape *shape, const char *name);
/* Sample `index` for a noise seed and a true time of `us` microseconds. */
double mf_sim_sample_us(double us, uint64_t noise, int64_t index);

/* The following calls require a device from mf_sim_open. */
/* Returns the fault for this run of the step. Counts the hit if the fault is limited. */
enum mf_sim_fault mf_sim_fault_of(struct mf_device *device, const char *step_name);
/* Returns the device's factor on the step's true time. */
double mf_sim_factor_of(const struct mf_device *device, const char *step_name);
int64_t mf_sim_step_ms(const struct mf_device *device);
int64_t mf_sim_pipeline_ms(const struct mf_device *device);

extern const struct mf_family mf_family_sim, mf_family_aiter;
