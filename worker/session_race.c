/* Races of whole pipelines, run as production runs them (kernels/fmoe.h). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/stats.h"
#include "common/text.h"
#include "kernels/fmoe.h"
#include "kernels/quant.h"
#include "worker/measure.h"
#include "worker/race.h"
#include "worker/session.h"
#include "worker/session_data.h"
#include "worker/verify.h"

#define STEPS_MAX     16
#define HANG_FACTOR   20.0
#define HANG_LEAST_MS 2000
#define ARENA_POISON \
    0xff /* NaN as f32, bf16 and fp8 fn: what a pipeline leaves unwritten must not look right */

/* A finalist. */
struct entrant {
    const struct mf_race_entry *entry;
    struct mf_pipeline *pipeline;
    struct mf_measured measured;
    double flops;
    double tolerance; /* the largest of its steps' */
    int64_t limit_ms;
    struct mf_verdict verdict;
    int verified;
};

struct race {
    struct mf_session *s;
    struct mf_sink *sink;
    struct entrant *entrants;
    struct mf_racer *racers;
    struct mf_guarded *y[2];
    int run;    /* which y the next run writes to */
    int cursor; /* rotation of the last run, of any entrant */
    int sink_error;
};

static int launch(void *context, int index)
{
    struct entrant *e = context;
    (void)index;
    return mf_pipeline_run(e->pipeline);
}

/* The same buffers for every entrant: x, routing of the rotation, its weights' layouts, one arena, one output. */
static int bind(struct race *r, struct entrant *e, int rotation)
{
    const struct mf_artifact x = {.tensor = MF_TENSOR_X, .format = MF_FORMAT_BF16, .order = "token"};
    const struct mf_artifact topk = {.tensor = MF_TENSOR_TOPK, .format = MF_FORMAT_INDEX, .order = "token"};
    struct mf_fmoe_args args = {
        .w1 = e->measured.weights[0]->seen,
        .w2 = e->measured.weights[1]->seen,
        .y = r->y[r->run]->seen,
        .arena = mf_region_start(&r->s->arena),
    };
    const struct mf_artifact calib = {.tensor = MF_TENSOR_CALIB, .format = MF_FORMAT_F32, .order = "token"};
    const struct mf_artifact b1 = mf_plain_bias(MF_TENSOR_B1), b2 = mf_plain_bias(MF_TENSOR_B2);
    int result = mf_session_input(r->s, &x, rotation, &args.x, NULL);
    if (result == 0)
        result = mf_session_input(r->s, &calib, 0, &args.calib, NULL);
    if (result == 0)
        result = mf_session_input(r->s, &topk, rotation, &args.topk, NULL);
    if (result == 0 && r->s->shape.has_b1)
        result = mf_session_input(r->s, &b1, 0, &args.b1, NULL);
    if (result == 0 && r->s->shape.has_b2)
        result = mf_session_input(r->s, &b2, 0, &args.b2, NULL);
    if (result == 0)
        mf_pipeline_bind(e->pipeline, &args);
    return result;
}

static void fail(struct mf_racer *racer, enum mf_status status, const char *reason)
{
    racer->status = status;
    (void)mf_copy(racer->reason, sizeof(racer->reason), reason);
}

static void fail_errno(struct mf_racer *racer, int r, const char *what)
{
    racer->status = r == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED;
    mf_say(racer->reason, sizeof(racer->reason), "%s: %s", what, strerror(-r));
}

static int open_pipeline(struct race *r, struct entrant *e, struct mf_racer *racer)
{
    char names[STEPS_MAX][MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX], why[MF_REASON_MAX];
    const char *pointers[STEPS_MAX];
    if (e->entry->n_steps > STEPS_MAX) {
        fail(racer, MF_STATUS_UNSUPPORTED, "a pipeline of more than 16 steps");
        return 1;
    }
    for (size_t i = 0; i < e->entry->n_steps; i++) {
        const struct mf_step *step = &e->entry->steps[i];
        mf_say(names[i], sizeof(names[i]), "%s:%s", step->family, step->name);
        pointers[i] = names[i];
        e->flops += step->flops;
        e->tolerance = fmax(e->tolerance, step->reorder_tolerance);
    }
    int result = mf_pipeline_open_with(r->s->device, &r->s->shape, r->s->extra, pointers, e->entry->n_steps,
                                       why, sizeof(why), &e->pipeline);
    if (result < 0) {
        fail(racer, result == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED, why);
        return 1;
    }
    for (int w = 0; w < 2 && result == 0; w++) {
        struct mf_artifact a = mf_pipeline_weight(e->pipeline, w == 0 ? MF_TENSOR_W1 : MF_TENSOR_W2);
        result = mf_session_weight(r->s, &a, &e->measured.weights[w]);
    }
    if (result == 0)
        result = mf_session_room(r->s, &r->s->arena, mf_pipeline_arena_bytes(e->pipeline) + 64);
    if (result < 0) {
        fail_errno(racer, result, "making the pipeline's memory");
        return 1;
    }
    mf_measured_init(&e->measured);
    return 0;
}

static int poison_arena(struct mf_session *s, size_t bytes)
{
    const struct mf_maker_fill all = {mf_region_start(&s->arena), bytes, ARENA_POISON * 0x01010101u};
    if (s->maker)
        return mf_maker_fill(s->maker, &all, 1);
    memset(s->arena.at, ARENA_POISON, bytes);
    return mf_region_push(&s->arena);
}

/* One run into y[run], verified against the layer's reference. 1: refused. */
static int verified_run(struct race *r, struct entrant *e, struct mf_racer *racer, int run)
{
    double us;
    struct mf_verify_input v = {
        .data = &r->s->data,
        .ref = &r->s->ref,
        .out = r->y[run],
        .covers = mf_layer_ops(&r->s->shape),
        .err_ratio = r->s->options.err_ratio,
    };
    r->run = run;
    int result = mf_guarded_poison(r->y[run], NULL, false);
    if (result == 0)
        result = poison_arena(r->s, mf_pipeline_arena_bytes(e->pipeline));
    if (result == 0)
        result = bind(r, e, 0);
    if (result == 0)
        result = mf_measure_run(&e->measured, 0, &us, NULL);
    if (result == 0)
        result = mf_region_pull(&r->y[run]->region);
    if (result < 0) {
        fail_errno(racer, result, "a step refused at launch");
        return 1;
    }
    result = mf_verify(&v, &e->verdict);
    if (result == 0 && run == 1) {
        v.out = r->y[0];
        result = mf_verify_stable(&v, r->y[1], e->tolerance, &e->verdict);
    }
    if (result < 0)
        fail_errno(racer, result, "verifying");
    else if (result > 0)
        fail(racer, MF_STATUS_WRONG, e->verdict.reason);
    e->verified += result == 0;
    return result != 0;
}

static int begin(struct race *r, struct entrant *e)
{
    int result = r->sink->begin(r->sink, e->entry->id, true, e->limit_ms);
    if (result < 0)
        r->sink_error = result;
    return result;
}

static int enter(struct race *r, size_t i)
{
    struct entrant *e = &r->entrants[i];
    struct mf_racer *racer = &r->racers[i];
    double ms = fmax(HANG_LEAST_MS, HANG_FACTOR * e->entry->forecast_us / 1000);
    e->limit_ms = r->s->options.time_cap_ms;
    if (e->entry->forecast_us > 0)
        e->limit_ms = (int64_t)fmin(ms, (double)e->limit_ms);
    mf_session_phase(r->sink, MF_PHASE_LOAD);
    int result = begin(r, e);
    if (result < 0)
        return result;
    if (open_pipeline(r, e, racer))
        return 0;
    mf_session_phase(r->sink, MF_PHASE_VERIFY);
    if (verified_run(r, e, racer, 0) == 0)
        (void)verified_run(r, e, racer, 1);
    return 0;
}

/* Every call takes the next rotation, whoever's it is: within a round all do equal work, and none finds its weights
 * in the cache because the one before it has just read them. */
static int sample(void *context, size_t i, int round, double *ret_us, char reason[MF_REASON_MAX])
{
    struct race *r = context;
    struct entrant *e = &r->entrants[i];
    (void)round;
    if (r->sink_error < 0)
        return r->sink_error;
    int result = begin(r, e);
    r->cursor = (r->cursor + 1) % e->measured.n_rotations;
    r->run = 0;
    if (result == 0)
        result = bind(r, e, r->cursor);
    if (result == 0)
        result = mf_measure_run(&e->measured, r->cursor, ret_us, NULL);
    if (result < 0)
        return result;
    if (mf_measure_implausible(&e->measured, *ret_us, e->flops, reason, MF_REASON_MAX))
        return MF_STATUS_IMPLAUSIBLE;
    return 0;
}

static int report_entrant(struct race *r, size_t i, int rounds)
{
    const struct entrant *e = &r->entrants[i];
    const struct mf_racer *racer = &r->racers[i];
    size_t n = MF_MIN(racer->n_samples, (size_t)rounds);
    struct mf_result result = {
        .id = e->entry->id,
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
    const struct mf_artifact y = {.tensor = MF_TENSOR_Y, .format = MF_FORMAT_BF16, .order = "token"};
    int result = mf_session_output(r->s, &y, r->y);
    for (size_t i = 0; i < n && result == 0; i++)
        result = enter(r, i);
    if (result < 0)
        return result;
    mf_session_phase(r->sink, MF_PHASE_TIMING);
    int raced = mf_race_run(plan, r->s->options.seed, r->racers, weight, n, sample, r, &outcome);
    if (r->sink_error < 0)
        return r->sink_error;
    if (raced < 0 && raced != -ENOENT)
        return raced;
    for (size_t i = 0; i < n && result == 0; i++)
        result = report_entrant(r, i, raced == 0 ? outcome.rounds : MF_SAMPLES_MAX);
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

int mf_session_race(struct mf_session *s, const struct mf_race_entry *entries, size_t n,
                    const struct mf_race_plan *plan, struct mf_sink *sink)
{
    size_t room = samples_of(plan);
    _cleanup_(mf_freep) struct entrant *entrants = calloc(n + 1, sizeof(*entrants));
    _cleanup_(mf_freep) struct mf_racer *racers = calloc(n + 1, sizeof(*racers));
    _cleanup_(mf_freep) double *samples = reallocarray(NULL, n + 1, (room + 1) * sizeof(*samples));
    _cleanup_(mf_freep) int *weight = calloc(n + 1, sizeof(*weight));
    if (!entrants || !racers || !samples || !weight)
        return -ENOMEM;
    mf_session_trim(s);
    s->sink = sink;
    for (size_t i = 0; i < n; i++) {
        entrants[i] = (struct entrant){.entry = &entries[i],
                                       .verdict = {.err = NAN, .row_err = NAN, .row_limit = NAN},
                                       .measured = {.session = s, .launch = launch, .context = &entrants[i]}};
        racers[i] = (struct mf_racer){
            .id = entries[i].id, .samples = samples + i * (room + 1), .status = MF_STATUS_OK};
        weight[i] = (int)entries[i].n_steps;
    }
    struct race r = {.s = s, .sink = sink, .entrants = entrants, .racers = racers};
    int result = run_race(&r, plan, weight, n);
    for (size_t i = 0; i < n; i++)
        mf_pipeline_close(entrants[i].pipeline);
    return result;
}
