/* Reads the spec file of a sim device, which lists faults and time factors. kernels/sim/sim.h documents the
 * format. */
#pragma once

#include "common/moe/step.h"
#include "kernels/sim/sim_fault.h"

#define MF_SIM_SPEC_BYTES_MAX (1u << 20)
#define MF_SIM_FAULTS_MAX     256

struct mf_sim_rule {
    char match[MF_STEP_NAME_MAX];
    enum mf_sim_fault fault;
    int64_t first; /* maximum number of hits; 0: unlimited */
};

struct mf_sim_time {
    char match[MF_STEP_NAME_MAX];
    double factor;
};

struct mf_sim_disturbance {
    enum mf_sim_part part;
    int64_t token; /* token count of the shape; 0: any */
    double factor; /* of all samples of the part */
    int64_t first; /* maximum number of hits; 0: unlimited */
};

struct mf_sim_spec {
    char *path; /* path of the spec file; NULL: no spec file */
    int64_t step_ms, pipeline_ms;
    struct mf_sim_rule *rules;
    size_t n_rules;
    struct mf_sim_time *times;
    size_t n_times;
    struct mf_sim_disturbance *disturbances;
    size_t n_disturbances;
};

/* Returns 0, or -errno with a reason in why that names the wrong JSON member. */
int mf_sim_spec_load(const char *path, struct mf_sim_spec *ret, char *why, size_t why_cap);
void mf_sim_spec_release(struct mf_sim_spec *s);
/* Returns the product of the factors of all entries that match the step. */
double mf_sim_spec_factor(const struct mf_sim_spec *s, const char *step_name);
/* Returns the fault of the first rule that matches the step and has not reached its maximum number of hits.
 */
enum mf_sim_fault mf_sim_spec_hit(const struct mf_sim_spec *s, const char *step_name);
/* Returns the factor of the first disturbance of the part that matches the token count and has not reached
 * its maximum number of hits; 1: none. */
double mf_sim_spec_disturb(const struct mf_sim_spec *s, enum mf_sim_part part, int64_t token);
