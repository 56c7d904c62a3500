/* Races whole pipelines. The pipelines run as in production (kernels/pipeline/fmoe.h). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "common/base/text.h"
#include "measure/race/entrant.h"
#include "measure/race/production.h"
#include "measure/race/race.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"

#define HANG_FACTOR 20.0
#define HANG_MIN_MS 2000

/* Finalist of a race. */
struct finalist {
    const struct mf_race_entry *entry;
    struct mf_pipeline *pipeline;
    struct mf_entrant entrant;
    int64_t limit_ms;
};

struct race {
    struct mf_session *s;
    struct mf_sink *sink;
    struct finalist *finalists;
    struct mf_racer *racers;
    struct mf_race_buffers buffers;
    /* If true, a pipeline is verified once in the first round and twice before its rerun. If false, it is
     * verified twice before the first round. */
    bool checks_late;
    int sink_error;
};

static enum mf_status open_pipeline(struct race *r, struct finalist *f, char reason[MF_REASON_MAX])
{
    int result = mf_pipeline_open_steps(r->s->device, &r->s->shape, r->s->extra, f->entry->steps,
                                        f->entry->n_steps, reason, MF_REASON_MAX, &f->pipeline);
    if (result < 0)
        return result == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED;
    return mf_entrant_init(&f->entrant, &r->buffers, f->pipeline, reason);
}

static int begin_within(struct race *r, const struct finalist *f, int64_t limit_ms)
{
    int result = r->sink->begin(r->sink, f->entry->id, true, limit_ms);
    if (result < 0)
        r->sink_error = result;
    return result;
}

static int begin(struct race *r, const struct finalist *f)
{
    return begin_within(r, f, f->limit_ms);
}

/* Checks the pipeline's row of a tuned table through the framework's own operator. The operator gets the
 * whole time limit, because the pipeline's time says nothing about the operator's start. */
static int check_row(struct race *r, const struct finalist *f, char reason[MF_REASON_MAX])
{
    const struct mf_race_entry *e = f->entry;
    if (!mf_production_has(r->s, e->steps, e->n_steps))
        return 0;
    int result = begin_within(r, f, r->s->options.time_cap_ms);
    return result < 0 ? result : (int)mf_production_check(&r->buffers, e->steps, e->n_steps, reason);
}

static int enter(struct race *r, size_t i)
{
    struct finalist *f = &r->finalists[i];
    struct mf_racer *racer = &r->racers[i];
    double ms = fmax(HANG_MIN_MS, HANG_FACTOR * f->entry->forecast_us / 1000);
    f->limit_ms = r->s->options.time_cap_ms;
    if (f->entry->forecast_us > 0)
        f->limit_ms = (int64_t)fmin(ms, (double)f->limit_ms);
    mf_session_phase(r->sink, MF_PHASE_LOAD);
    int result = begin(r, f);
    if (result < 0)
        return result;
    racer->status = open_pipeline(r, f, racer->reason);
    mf_session_phase(r->sink, MF_PHASE_VERIFY);
    if (racer->status == MF_STATUS_OK && !r->checks_late)
        racer->status = mf_entrant_verify(&f->entrant, racer->reason);
    if (racer->status != MF_STATUS_OK || r->checks_late)
        return 0;
    result = check_row(r, f, racer->reason);
    if (result > 0)
        racer->status = (enum mf_status)result;
    return MF_MIN(result, 0);
}

/* Makes the warm-up runs. They rotate over the weights like timed runs. */
static int warm_up(struct race *r, size_t i, char reason[MF_REASON_MAX])
{
    double us;
    int result = 0;
    for (int64_t n = 0; n < r->s->options.warmup && result == 0; n++) {
        result = (int)mf_entrant_sample(&r->finalists[i].entrant, &us, reason);
        if (result == 0) /* every run gets the full time limit */
            result = begin(r, &r->finalists[i]);
    }
    return result;
}

/* Verifies a racer: with one run before its first sample, or with two runs (`twice`) and its row of a tuned
 * table before its rerun. */
static int check(struct race *r, struct finalist *f, bool twice, double *ret_us, char reason[MF_REASON_MAX])
{
    mf_session_phase(r->sink, MF_PHASE_VERIFY);
    int result = twice ? (int)mf_entrant_verify(&f->entrant, reason)
                       : (int)mf_entrant_check(&f->entrant, ret_us, reason);
    if (result == 0 && twice)
        result = check_row(r, f, reason);
    mf_session_phase(r->sink, MF_PHASE_TIMING);
    return result;
}

static int sample(void *context, size_t i, int round, double *ret_us, char reason[MF_REASON_MAX])
{
    struct race *r = context;
    struct finalist *f = &r->finalists[i];
    if (r->sink_error < 0)
        return r->sink_error;
    bool first = round == 0 && f->entrant.verified == 0;
    bool again = round == MF_RACE_FRESH && f->entrant.verified < 2;
    int result = begin(r, f);
    if (result == 0 && (first || again)) {
        result = check(r, f, again, ret_us, reason);
        if (result == 0 && first && mf_entrant_check_is_sample(&f->entrant) && r->s->options.warmup == 0)
            return 0;
        if (result == 0) /* the sample gets the full time limit */
            result = begin(r, f);
    }
    if (result == 0 && round == 0)
        result = warm_up(r, i, reason);
    return result != 0 ? result : (int)mf_entrant_sample(&f->entrant, ret_us, reason);
}

/* Runs the canary, as after each step of a probe. */
static bool is_calm(void *context)
{
    struct race *r = context;
    return r->sink_error < 0 || !(mf_session_canary(r->s) > MF_CANARY_LIMIT);
}

static void settle(void *context)
{
    struct race *r = context;
    if (r->sink_error == 0)
        mf_session_cool_down(r->s);
}

static int report_finalist(struct race *r, size_t i)
{
    const struct finalist *f = &r->finalists[i];
    const struct mf_entrant *e = &f->entrant;
    const struct mf_racer *racer = &r->racers[i];
    size_t n = racer->n_rounds;
    struct mf_unit_result result = {
        .id = f->entry->id,
        .is_pipeline = true,
        .status = racer->status,
        .us = NAN,
        .mad = NAN,
        .err = e->verdict.err,
        .row_err = e->verdict.row_err,
        .row_limit = e->verdict.row_limit,
        .verified = e->verified,
        .canary = mf_session_canary(r->s),
        .mode = n == 0             ? ""
                : e->measured.cold ? "cold"
                                   : "warm",
        .samples = racer->samples,
        .n_samples = n,
        .fresh = racer->samples + n,
        .n_fresh = racer->n_samples - n,
        .dropped_at = racer->dropped_at,
    };
    (void)mf_copy(result.reason, sizeof(result.reason), racer->reason);
    _cleanup_(mf_freep) double *copy = calloc(n + 1, sizeof(*copy));
    if (!copy)
        return -ENOMEM;
    if (n > 0) {
        memcpy(copy, racer->samples, n * sizeof(*copy));
        result.us = mf_median(copy, n);
        result.mad = mf_mad(copy, n);
    }
    return r->sink->result(r->sink, &result);
}

static int run_race(struct race *r, const struct mf_race_plan *plan, const int *weight, size_t n)
{
    struct mf_race_outcome outcome = {0};
    int result = mf_race_buffers_init(&r->buffers, r->s);
    for (size_t i = 0; i < n && result == 0; i++)
        result = enter(r, i);
    if (result < 0)
        return result;
    mf_session_phase(r->sink, MF_PHASE_TIMING);
    int raced = mf_race_run(plan, r->s->options.seed, r->racers, weight, n,
                            &(struct mf_race_device){sample, is_calm, settle, r}, &outcome);
    if (r->sink_error < 0)
        return r->sink_error;
    if (raced < 0 && raced != -ENOENT)
        return raced;
    for (size_t i = 0; i < n && result == 0; i++)
        result = report_finalist(r, i);
    outcome.active = r->s->rotation.active;
    if (result == 0 && raced == 0)
        result = r->sink->race(r->sink, &outcome);
    mf_session_phase(r->sink, MF_PHASE_WAIT);
    return result;
}

static size_t samples_of(const struct mf_race_plan *plan)
{
    size_t n = (size_t)plan->fresh;
    for (int i = 0; i < plan->n_stages; i++)
        n += (size_t)plan->stages[i].rounds;
    return n;
}

/* Compiles before the pipelines are opened, because opening counts against a pipeline's time limit. */
static int compile_ahead(struct mf_session *s, const struct mf_race_entry *entries, size_t n)
{
    _cleanup_(mf_ahead_release) struct mf_ahead ahead = mf_session_ahead(s);
    mf_session_phase(s->sink, MF_PHASE_LOAD);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < entries[i].n_steps; j++) {
            int r = mf_ahead_add(&ahead, &entries[i].steps[j]);
            if (r < 0)
                return r;
        }
    }
    mf_ahead_compile(&ahead, s->device);
    return 0;
}

int mf_session_race(struct mf_session *s, const struct mf_race_entry *entries, size_t n,
                    const struct mf_race_plan *plan, struct mf_sink *sink)
{
    size_t room = samples_of(plan);
    _cleanup_(mf_freep) struct finalist *finalists = calloc(n + 1, sizeof(*finalists));
    _cleanup_(mf_freep) struct mf_racer *racers = calloc(n + 1, sizeof(*racers));
    _cleanup_(mf_freep) double *samples = reallocarray(NULL, n + 1, (room + 1) * sizeof(*samples));
    _cleanup_(mf_freep) int *weight = calloc(n + 1, sizeof(*weight));
    if (!finalists || !racers || !samples || !weight)
        return -ENOMEM;
    mf_session_trim(s);
    s->sink = sink;
    int result = compile_ahead(s, entries, n);
    mf_session_phase(sink, MF_PHASE_DATA);
    if (result == 0 && mf_session_inputs_unprotected(s))
        result = mf_session_renew(s);
    if (result < 0)
        return result;
    for (size_t i = 0; i < n; i++) {
        finalists[i] = (struct finalist){.entry = &entries[i],
                                         .entrant.verdict = {.err = NAN, .row_err = NAN, .row_limit = NAN}};
        racers[i] = (struct mf_racer){.id = entries[i].id,
                                      .group = entries[i].group,
                                      .samples = samples + i * (room + 1),
                                      .status = MF_STATUS_OK};
        weight[i] = (int)entries[i].n_steps;
    }
    struct race r = {
        .s = s, .sink = sink, .finalists = finalists, .racers = racers, .checks_late = plan->fresh > 0};
    result = run_race(&r, plan, weight, n);
    for (size_t i = 0; i < n; i++)
        mf_pipeline_close(finalists[i].pipeline);
    return result;
}
