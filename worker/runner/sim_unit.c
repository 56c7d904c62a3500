#include "worker/runner/sim_unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/stats.h"
#include "common/base/text.h"
#include "kernels/aiter/aiter.h"
#include "kernels/sim/sim.h"

#define N_SAMPLES 20

/* Executes a planted fault. Does not return if the fault ends the runner. */
static void execute_fault(enum mf_sim_fault fault, const char *name)
{
    if (fault == MF_SIM_FAULT_CRASH || fault == MF_SIM_FAULT_ABORT || fault == MF_SIM_FAULT_EXIT)
        (void)fprintf(stderr, "planted %s in %s\n", mf_sim_fault_name(fault), name);
    switch (fault) {
    case MF_SIM_FAULT_CRASH:
#ifdef __SANITIZE_ADDRESS__
        (void)signal(SIGSEGV, SIG_DFL); /* AddressSanitizer's handler would turn the signal into an exit */
#endif
        (void)raise(SIGSEGV);
        break;
    case MF_SIM_FAULT_ABORT:
        abort();
    case MF_SIM_FAULT_EXIT:
        _exit(3);
    case MF_SIM_FAULT_HANG:
        for (;;)
            (void)pause();
    case MF_SIM_FAULT_NONE:
    case MF_SIM_FAULT_WRONG:
    case MF_SIM_FAULT_NAN:
    case MF_SIM_FAULT_NO_MEMORY:
    case MF_SIM_FAULT_ZERO_TIME:
    case MF_SIM_FAULT_BEYOND_PEAK:
    case MF_SIM_FAULT_SLOW:
    case MF_SIM_FAULT_N_:
        break;
    }
}

/* Returns the status that the gates give to the planted fault, or MF_STATUS_OK. */
static enum mf_status fault_status(enum mf_sim_fault fault, char reason[MF_REASON_MAX])
{
    switch (fault) {
    case MF_SIM_FAULT_WRONG:
        mf_format(reason, MF_REASON_MAX, "worst row: relative error 1.0 exceeds the limit 0.01 (planted)");
        return MF_STATUS_WRONG;
    case MF_SIM_FAULT_NAN:
        mf_format(reason, MF_REASON_MAX, "the output contains NaN (planted)");
        return MF_STATUS_WRONG;
    case MF_SIM_FAULT_NO_MEMORY:
        mf_format(reason, MF_REASON_MAX, "cannot allocate the workspace (planted)");
        return MF_STATUS_NO_MEMORY;
    case MF_SIM_FAULT_ZERO_TIME:
        mf_format(reason, MF_REASON_MAX, "measured time is 0 us (planted)");
        return MF_STATUS_IMPLAUSIBLE;
    case MF_SIM_FAULT_BEYOND_PEAK:
        mf_format(reason, MF_REASON_MAX,
                  "measured time is a tenth of the minimum at peak throughput (planted)");
        return MF_STATUS_IMPLAUSIBLE;
    case MF_SIM_FAULT_NONE:
    case MF_SIM_FAULT_CRASH:
    case MF_SIM_FAULT_ABORT:
    case MF_SIM_FAULT_EXIT:
    case MF_SIM_FAULT_HANG:
    case MF_SIM_FAULT_SLOW:
    case MF_SIM_FAULT_N_:
        break;
    }
    return MF_STATUS_OK;
}

/* Returns the time of a step. With a non-uniform routing, the time varies by up to 10 %, depending on the
 * step. */
static double step_us(const struct mf_device *device, const struct mf_shape *shape,
                      const struct mf_unit_options *options, const struct mf_step *step)
{
    char routing[MF_ROUTING_TEXT_MAX];
    double us = mf_sim_step_us(&device->info, shape, step) * mf_sim_factor_of(device, step->name);
    if (options->routing.kind == MF_ROUTING_UNIFORM)
        return us;
    mf_routing_print(&options->routing, routing);
    uint64_t h = mf_hash64(routing, strlen(routing) + 1, MF_HASH_SEED);
    h = mf_hash64(step->name, strlen(step->name), h);
    return us * (0.9 + 0.2 * (double)(h % 1000) / 1000);
}

static int probe_step(struct mf_device *device, const struct mf_shape *shape,
                      const struct mf_unit_options *options, const struct mf_probe_step *p,
                      struct mf_sink *sink)
{
    int r = sink->begin(sink, p->id, false, options->time_cap_ms);
    if (r < 0)
        return r;
    sink->phase(sink, MF_PHASE_TIMING);
    enum mf_sim_fault fault = mf_sim_fault_of(device, p->step.name);
    execute_fault(fault, p->step.name);
    /* A step that gets no memory does not run. */
    mf_sleep_ms(fault == MF_SIM_FAULT_NO_MEMORY ? 0 : mf_sim_step_ms(device));
    struct mf_unit_result result = mf_unit_result_unmeasured(p->id, false);
    result.canary = 1.0;
    double samples[N_SAMPLES], sorted[N_SAMPLES];
    result.status = mf_aiter_launch_refuses(shape, p->step.name, result.reason, sizeof(result.reason))
                        ? MF_STATUS_UNSUPPORTED
                        : fault_status(fault, result.reason);
    if (result.status == MF_STATUS_OK) {
        double us = step_us(device, shape, options, &p->step) * (fault == MF_SIM_FAULT_SLOW ? 20 : 1);
        uint64_t noise = mf_sim_noise(options->seed, shape, p->step.name);
        for (int i = 0; i < N_SAMPLES; i++)
            sorted[i] = samples[i] = mf_sim_sample_us(us, noise, i);
        result.us = mf_median(sorted, N_SAMPLES);
        result.mad = mf_mad(sorted, N_SAMPLES);
        result.samples = samples;
        result.n_samples = N_SAMPLES;
        result.err = 0;
        result.row_err = 0.001;
        result.row_limit = 0.01;
        result.verified = 2;
        result.mode = "cold";
    }
    return sink->result(sink, &result);
}

/* A simulated probe is never stopped early because of other results, so that a rerun gives the same results
 * in any order. */
int mf_sim_probe(struct mf_device *device, const struct mf_shape *shape,
                 const struct mf_unit_options *options, const struct mf_probe_step *steps, size_t n,
                 struct mf_sink *sink)
{
    for (size_t i = 0; i < n; i++) {
        int r = probe_step(device, shape, options, &steps[i], sink);
        if (r < 0)
            return r;
    }
    return 0;
}

struct sim_race {
    struct mf_device *device;
    const struct mf_shape *shape;
    const struct mf_unit_options *options;
    const struct mf_race_entry *entries;
    double *true_us;
    int64_t *n_calls;
    uint64_t *noise; /* by pipeline; pipelines with equal steps have equal noise */
    /* factors of the present disturbances, by part; 0: not drawn yet */
    double disturbed[MF_SIM_PART_N_];
};

/* Returns the factor of the part's disturbance. Draws it at the first sample of the part. */
static double disturbance(struct sim_race *s, enum mf_sim_part part)
{
    if (s->disturbed[part] == 0)
        s->disturbed[part] = mf_sim_disturbance_of(s->device, part, s->shape->token);
    return s->disturbed[part];
}

static int sample(void *context, size_t racer, int round, double *ret_us, char reason[MF_REASON_MAX])
{
    struct sim_race *s = context;
    (void)reason;
    *ret_us = mf_sim_sample_us(s->true_us[racer], s->noise[racer], s->n_calls[racer]++) *
              disturbance(s, MF_SIM_PART_UNIT) * disturbance(s, MF_SIM_PART_ROUND);
    if (round == MF_RACE_FRESH)
        *ret_us *= disturbance(s, MF_SIM_PART_RERUN);
    return 0;
}

/* A round ends when the canary runs. */
static bool is_calm(void *context)
{
    struct sim_race *s = context;
    bool calm = s->disturbed[MF_SIM_PART_ROUND] == 0 || s->disturbed[MF_SIM_PART_ROUND] == 1;
    s->disturbed[MF_SIM_PART_ROUND] = 0;
    return calm;
}

/* The race settles between two reruns. */
static void settle(void *context)
{
    ((struct sim_race *)context)->disturbed[MF_SIM_PART_RERUN] = 0;
}

/* Models the time of a pipeline: the sum of its steps and launch gaps, times a factor that differs from 1 by
 * up to 3 % and depends on the pipeline. */
static void model_pipeline(struct sim_race *s, size_t i)
{
    const struct mf_race_entry *e = &s->entries[i];
    char name[24];
    double us = 0;
    uint64_t h = MF_HASH_SEED;
    for (size_t k = 0; k < e->n_steps; k++) {
        us += step_us(s->device, s->shape, s->options, &e->steps[k]);
        h = mf_hash64(e->steps[k].name, strlen(e->steps[k].name) + 1, h);
    }
    us += (double)(e->n_steps - 1) * s->device->info.gap_us;
    s->true_us[i] = us * (0.97 + 0.06 * (double)(h % 1000) / 1000);
    mf_format(name, sizeof(name), "p%016llx", (unsigned long long)h);
    s->noise[i] = mf_sim_noise(s->options->seed, s->shape, name);
}

/* Executes the planted faults of the pipeline's steps, as if the pipeline were verified. */
static int verify_pipeline(struct sim_race *s, size_t i, struct mf_racer *racer,
                           const struct mf_unit_options *options, struct mf_sink *sink)
{
    const struct mf_race_entry *e = &s->entries[i];
    int r = sink->begin(sink, e->id, true, options->time_cap_ms);
    for (size_t k = 0; r >= 0 && k < e->n_steps && racer->status == MF_STATUS_OK; k++) {
        enum mf_sim_fault fault = mf_sim_fault_of(s->device, e->steps[k].name);
        execute_fault(fault, e->steps[k].name);
        racer->status = fault_status(fault, racer->reason);
    }
    mf_sleep_ms(mf_sim_pipeline_ms(s->device));
    return r;
}

static int report(const struct mf_racer *racer, struct mf_sink *sink)
{
    struct mf_unit_result result = mf_unit_result_unmeasured(racer->id, true);
    result.status = racer->status;
    result.canary = 1.0;
    result.dropped_at = racer->dropped_at;
    (void)mf_copy(result.reason, sizeof(result.reason), racer->reason);
    _cleanup_(mf_freep) double *copy = NULL;
    if (racer->status == MF_STATUS_OK && racer->n_rounds > 0) {
        copy = malloc(racer->n_rounds * sizeof(*copy));
        if (!copy)
            return -ENOMEM;
        memcpy(copy, racer->samples, racer->n_rounds * sizeof(*copy));
        result.us = mf_median(copy, racer->n_rounds);
        result.mad = mf_mad(copy, racer->n_rounds);
        result.samples = racer->samples;
        result.n_samples = racer->n_rounds;
        result.fresh = racer->samples + racer->n_rounds;
        result.n_fresh = racer->n_samples - racer->n_rounds;
        result.err = 0;
        result.row_err = 0.001;
        result.row_limit = 0.01;
        result.verified = 2;
        result.mode = "cold";
    }
    return sink->result(sink, &result);
}

static int plan_room(const struct mf_race_plan *plan)
{
    int room = plan->fresh;
    for (int i = 0; i < plan->n_stages; i++)
        room += plan->stages[i].rounds;
    return room;
}

struct race_memory {
    struct mf_racer *racers;
    double *samples, *true_us;
    int64_t *n_calls;
    int *weight;
    uint64_t *noise;
};

static void release_memory(struct race_memory *m)
{
    free(m->racers);
    free(m->samples);
    free(m->true_us);
    free(m->n_calls);
    free(m->weight);
    free(m->noise);
}

static int allocate_memory(struct race_memory *m, size_t n, size_t room)
{
    m->racers = calloc(n, sizeof(*m->racers));
    m->samples = calloc(n * room, sizeof(*m->samples));
    m->true_us = calloc(n, sizeof(*m->true_us));
    m->n_calls = calloc(n, sizeof(*m->n_calls));
    m->weight = calloc(n, sizeof(*m->weight));
    m->noise = calloc(n, sizeof(*m->noise));
    return m->racers && m->samples && m->true_us && m->n_calls && m->weight && m->noise ? 0 : -ENOMEM;
}

static int report_race(const struct race_memory *m, size_t n, struct mf_sink *sink)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = report(&m->racers[i], sink);
    return r < 0 ? r : 0;
}

int mf_sim_race(struct mf_device *device, const struct mf_shape *shape, const struct mf_unit_options *options,
                const struct mf_race_entry *entries, size_t n, const struct mf_race_plan *plan,
                struct mf_sink *sink)
{
    _cleanup_(release_memory) struct race_memory m = {0};
    size_t room = (size_t)plan_room(plan);
    int r = allocate_memory(&m, n, room);
    if (r < 0)
        return r;
    struct sim_race race = {.device = device,
                            .shape = shape,
                            .options = options,
                            .entries = entries,
                            .true_us = m.true_us,
                            .n_calls = m.n_calls,
                            .noise = m.noise};
    bool any = false;
    sink->phase(sink, MF_PHASE_VERIFY);
    for (size_t i = 0; i < n; i++) {
        m.racers[i] = (struct mf_racer){.id = entries[i].id,
                                        .group = entries[i].group,
                                        .samples = m.samples + i * room,
                                        .status = MF_STATUS_OK};
        m.weight[i] = (int)entries[i].n_steps;
        model_pipeline(&race, i);
        r = verify_pipeline(&race, i, &m.racers[i], options, sink);
        if (r < 0)
            return r;
        any |= m.racers[i].status == MF_STATUS_OK;
    }
    sink->phase(sink, MF_PHASE_TIMING);
    struct mf_race_outcome outcome = {0};
    if (any) {
        r = mf_race_run(plan, options->seed, m.racers, m.weight, n,
                        &(struct mf_race_device){sample, is_calm, settle, &race}, &outcome);
        if (r < 0)
            return r;
    }
    r = report_race(&m, n, sink);
    return r < 0 || !any ? r : sink->race(sink, &outcome);
}
