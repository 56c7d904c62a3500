/* The sim device and its families: a deterministic model of a device, for scale tests and for faults on demand.
 *
 * Nothing is computed. A step's true time is a function of (class, shape, step, routing): a roofline with an efficiency
 * drawn from the step's name, and padding to its block. A sample is a pure function of (seed, shape, name, index):
 * true time, log-normal noise of 2%, one in a hundred an outlier of 1.2. So any worker gives the same samples,
 * whichever runner died in between, and a rerun gives the same table.
 *
 * Family sim is a space of the size and shape of AITER's; family aiter, in its place where a worker is told --families
 * aiter, is AITER's own by name (kernels/aiter/aiter.h).
 *
 * A spec file plants faults:
 *     {"step_ms": 50, "pipeline_ms": 0, "faults": [{"match": "sim_s1_m64_*", "fault": "crash", "first": 1}],
 *      "times": [{"match": "sim_s2_*", "factor": 0.9}]}
 * step_ms: wall time that a step really takes (0: none); pipeline_ms: one that is raced (as step_ms). A fault hits the steps whose name matches; `first`: only
 * so many times over all runners and workers with this spec (counted in files beside it); without it, always. times: what this
 * device takes of a step's true time, so that devices of a class can differ. */
#pragma once

#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"

/* clang-format off */
#define MF_SIM_FAULT_MAP(X, P)                                                 \
    X(P, NONE, "none")                                                         \
    X(P, CRASH, "crash")             /* SIGSEGV */                             \
    X(P, ABORT, "abort")                                                       \
    X(P, EXIT, "exit")               /* exit code 3 in the middle of a step */ \
    X(P, HANG, "hang")                                                         \
    X(P, WRONG, "wrong")             /* a destroyed row */                     \
    X(P, NAN, "nan")                                                           \
    X(P, NO_MEMORY, "no_memory")                                               \
    X(P, ZERO_TIME, "zero_time")                                               \
    X(P, BEYOND_PEAK, "beyond_peak")                                           \
    X(P, SLOW, "slow")               /* takes twenty times as long */
/* clang-format on */
MF_NAMES_DECLARE(mf_sim_fault, MF_SIM_FAULT_, MF_SIM_FAULT_MAP);

#define MF_SIM_FAULTS_MAX 256

/* "sim:<class>:<ordinal>[:<spec file>]". -EINVAL with the sentence in why. */
int mf_sim_open(const char *name, char *why, size_t why_cap, struct mf_device **ret);

/* True time in microseconds, without noise. */
double mf_sim_step_us(const struct mf_device_info *device, const struct mf_shape *shape,
                      const struct mf_step *step);
/* What the noise of something named (a step, a pipeline) is drawn by: made once for all its samples, since it goes over the
 * shape's text. */
uint64_t mf_sim_noise(uint64_t seed, const struct mf_shape *shape, const char *name);
/* Sample `index` of what has that noise and the true time us. */
double mf_sim_sample_us(double us, uint64_t noise, int64_t index);

/* Of a device that mf_sim_open made. The fault that hits this run of the step; counts it when it is limited. */
enum mf_sim_fault mf_sim_fault_of(struct mf_device *device, const char *step_name);
/* What the device takes of the step's true time. */
double mf_sim_factor_of(const struct mf_device *device, const char *step_name);
int64_t mf_sim_step_ms(const struct mf_device *device);
int64_t mf_sim_pipeline_ms(const struct mf_device *device);

extern const struct mf_family mf_family_sim, mf_family_aiter;
