#include "measure/session/session.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "common/base/text.h"
#include "measure/race/measure.h"
#include "measure/session/session_data.h"
#include "measure/verify/verify.h"

#define SLOW_LIMIT 2.0 /* times the best: dropped by its first run */
#define STEADY_US  1000.0
#define STEADY_LIMIT \
    1.5 /* the same, where the best takes STEADY_US or more: long calls repeat more closely */
#define SLOW_DOUBT    3.0  /* below, a second run has to agree */
#define BEHIND        1.25 /* times the best that could stand in its place: two runs of it drop it */
#define NEAR          1.05 /* times the best of its layout: what is behind that needs no more samples than say so */
#define SPILL_MAX     1024 /* bytes a thread: those of 256 threads fill a compute unit's first cache */
#define HANG_FACTOR   20.0
#define HANG_LEAST_MS 2000

/* One step on its way through the gates. */
struct probe {
    struct mf_session *s;
    const struct mf_step *step;
    const struct mf_family *family;
    struct mf_kernel *kernel;
    struct mf_measured measured;
    struct mf_samples samples;
    uint64_t kind, place, layout;
    double best_us;   /* of its kind; of each of the three 0: none is known */
    double place_us;  /* of those that could stand in its place: what covers, needs and gives the same */
    double layout_us; /* of its kind with weights in its layout */
    double first_us;

    struct mf_tensor_ref needs[MF_ROTATIONS_MAX][MF_STEP_TENSOR_SPECS_MAX];
    struct mf_guarded *gives[MF_STEP_TENSOR_SPECS_MAX][2];
    struct mf_tensor_ref give_refs[2][MF_STEP_TENSOR_SPECS_MAX];
    const int64_t *source[MF_STEP_TENSOR_SPECS_MAX];
    bool accumulates[MF_STEP_TENSOR_SPECS_MAX];
    int accumulated_from[MF_STEP_TENSOR_SPECS_MAX]; /* the need that shares the give's memory, -1: none */
    int run;                                        /* which outputs the next launch writes to */
    struct mf_unit_result result;
};

/* ---- kinds ---- */

static uint64_t kind_of(const struct mf_step *step)
{
    uint64_t h = mf_hash64(&step->covers, sizeof(step->covers), MF_HASH_SEED);
    for (int i = 0; i < step->n_needs + step->n_gives; i++) {
        const struct mf_tensor_spec *a =
            i < step->n_needs ? &step->needs[i] : &step->gives[i - step->n_needs];
        int what[5] = {i < step->n_needs, (int)a->tensor, (int)a->format, (int)a->scale, a->zeroed};
        h = mf_hash64(what, sizeof(what), h);
    }
    return h;
}

static uint64_t hash_tensor_spec(const struct mf_tensor_spec *a, uint64_t h)
{
    int what[5] = {(int)a->tensor, (int)a->format, (int)a->scale, a->zeroed, a->block};
    return mf_hash64(a->order, strlen(a->order), mf_hash64(what, sizeof(what), h));
}

/* Wherever a pipeline has one of a place, any other of that place would do. */
static uint64_t place_of(const struct mf_step *step)
{
    uint64_t h = mf_hash64(&step->covers, sizeof(step->covers), MF_HASH_SEED + 1);
    for (int i = 0; i < step->n_needs; i++)
        h = hash_tensor_spec(&step->needs[i], h);
    for (int i = 0; i < step->n_gives; i++)
        h = hash_tensor_spec(&step->gives[i], h);
    return h;
}

static uint64_t layout_of(const struct mf_step *step, uint64_t kind)
{
    uint64_t h = mf_hash64(&kind, sizeof(kind), MF_HASH_SEED + 2);
    for (int i = 0; i < step->n_needs; i++) {
        if (mf_tensor_spec_is_weight(&step->needs[i]))
            h = hash_tensor_spec(&step->needs[i], h);
    }
    return h;
}

static struct mf_session_kind *find_kind(struct mf_session *s, uint64_t key)
{
    for (size_t i = 0; i < s->n_kinds; i++) {
        if (s->kinds[i].key == key)
            return &s->kinds[i];
    }
    return NULL;
}

static void note_best(struct mf_session *s, uint64_t key, double us)
{
    struct mf_session_kind *k = find_kind(s, key);
    if (!k && s->n_kinds == MF_SESSION_KINDS_MAX)
        return;
    if (!k) {
        k = &s->kinds[s->n_kinds++];
        *k = (struct mf_session_kind){.key = key, .best_us = us};
    }
    k->best_us = fmin(k->best_us, us);
}

static double known_best(struct mf_session *s, uint64_t key)
{
    const struct mf_session_kind *k = find_kind(s, key);
    return k ? k->best_us : 0;
}

/* Steps that cover no op are of one kind only when they turn the same into the same: what is known from elsewhere says
 * covers alone, so it is not asked for those. */
static double best_of(struct mf_session *s, const struct mf_step *step, uint64_t key, mf_best_fn best,
                      void *context)
{
    double own = known_best(s, key), known = best && step->covers ? best(context, step->covers) : 0;
    if (own <= 0)
        return known;
    return known > 0 ? fmin(own, known) : own;
}

/* Silence after which a step counts as hung: from the best so far, not a constant. */
static int64_t hang_limit_ms(const struct mf_session *s, double best_us)
{
    if (best_us <= 0 || s->options.exhaustive)
        return s->options.time_cap_ms;
    double ms = fmax(HANG_LEAST_MS, HANG_FACTOR * best_us / 1000);
    return (int64_t)fmin(ms, (double)s->options.time_cap_ms);
}

/* Exhaustive search gives every step every sample, as far as half of its time limit goes. */
static double room_us(const struct mf_session *s)
{
    return s->options.exhaustive ? (double)s->options.time_cap_ms * 1000 / 2 : 0;
}

/* ---- buffers ---- */

static bool is_accumulation(const struct mf_tensor_spec *need, const struct mf_tensor_spec *give)
{
    struct mf_tensor_spec plain = *need;
    plain.zeroed = false;
    return need->zeroed && mf_tensor_spec_equal(&plain, give);
}

static int bind_gives(struct probe *p)
{
    for (int i = 0; i < p->step->n_gives; i++) {
        const struct mf_tensor_spec *a = &p->step->gives[i];
        int r = mf_session_output(p->s, a, p->gives[i]);
        if (r == 0)
            r = mf_session_source(p->s, a, &p->source[i]);
        if (r < 0)
            return r;
        p->accumulated_from[i] = -1;
        for (int n = 0; n < p->step->n_needs; n++) {
            if (is_accumulation(&p->step->needs[n], a))
                p->accumulated_from[i] = n;
        }
        p->accumulates[i] = p->accumulated_from[i] >= 0;
    }
    return 0;
}

static int bind_weights(struct probe *p)
{
    for (int i = 0; i < p->step->n_needs; i++) {
        const struct mf_tensor_spec *a = &p->step->needs[i];
        if (!mf_tensor_spec_is_weight(a))
            continue;
        int r = mf_session_weight(p->s, a, &p->measured.weights[a->tensor == MF_TENSOR_W2]);
        if (r < 0)
            return r;
        for (int rotation = 0; rotation < MF_ROTATIONS_MAX; rotation++)
            p->needs[rotation][i] = p->measured.weights[a->tensor == MF_TENSOR_W2]->seen;
    }
    return 0;
}

static int bind_needs(struct probe *p, int rotation)
{
    for (int i = 0; i < p->step->n_needs; i++) {
        const struct mf_tensor_spec *a = &p->step->needs[i];
        bool in_place = false;
        for (int g = 0; g < p->step->n_gives; g++)
            in_place |= p->accumulated_from[g] == i;
        if (mf_tensor_spec_is_weight(a) || in_place)
            continue;
        int r = mf_session_input(p->s, a, rotation, &p->needs[rotation][i], NULL);
        if (r < 0)
            return r;
    }
    return 0;
}

static int bind(struct probe *p)
{
    int r = bind_gives(p);
    if (r == 0)
        r = bind_weights(p);
    if (r < 0)
        return r;
    mf_measured_init(&p->measured);
    for (int i = 0; i < p->measured.n_rotations && r == 0; i++)
        r = bind_needs(p, i);
    if (r == 0)
        r = mf_session_room(p->s, &p->s->workspace, p->step->workspace_bytes + 64);
    for (int i = 0; r == 0 && i < p->step->n_gives; i++) {
        for (int run = 0; run < 2; run++)
            p->give_refs[run][i] = p->gives[i][run]->seen;
    }
    return r;
}

/* Once more where there is no room, when the device has given up what it only kept. Of a z that the step is held against the host takes
 * one first: beside the step there may be no room to make it. */
static int bind_in_any_case(struct probe *p)
{
    int r = bind(p);
    if (r != -ENOMEM)
        return r;
    r = mf_session_give_way(p->s) ? 0 : -ENOMEM;
    for (int i = 0; i < p->step->n_gives && r == 0; i++)
        r = mf_reference_lacks(&p->s->ref, &p->step->gives[i]) ? mf_session_z(p->s) : 0;
    return r < 0 ? r : bind(p);
}

/* Of the run and the rotation in progress; needs is what it points to. */
static struct mf_launch launch_of(const struct probe *p, struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX])
{
    memcpy(needs, p->needs[p->measured.rotation], MF_STEP_TENSOR_SPECS_MAX * sizeof(*needs));
    for (int g = 0; g < p->step->n_gives; g++) {
        if (p->accumulated_from[g] >= 0)
            needs[p->accumulated_from[g]] = p->give_refs[p->run][g];
    }
    return (struct mf_launch){
        .needs = needs, .gives = p->give_refs[p->run], .workspace = mf_region_start(&p->s->workspace)};
}

static int launch(void *context, int index)
{
    struct probe *p = context;
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX];
    const struct mf_launch l = launch_of(p, needs);
    (void)index;
    return p->family->launch(p->kernel, &l);
}

static int prepare(void *context, int index)
{
    struct probe *p = context;
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX];
    const struct mf_launch l = launch_of(p, needs);
    (void)index;
    return p->family->prepare ? p->family->prepare(p->kernel, &l) : 0;
}

/* ---- gates ---- */

static void refuse(struct probe *p, enum mf_status status, const char *reason)
{
    p->result.status = status;
    (void)mf_copy(p->result.reason, sizeof(p->result.reason), reason);
}

static void refuse_errno(struct probe *p, int r, const char *what)
{
    p->result.status = r == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED;
    mf_format(p->result.reason, sizeof(p->result.reason), "%s: %s", what, strerror(-r));
}

static struct mf_verify_input verify_input(struct probe *p, int give, int run)
{
    return (struct mf_verify_input){
        .data = &p->s->data,
        .ref = &p->s->ref,
        .out = p->gives[give][run],
        .source = p->source[give],
        .covers = p->step->covers,
        .err_ratio = p->s->options.err_ratio,
        .accumulates = p->accumulates[give],
    };
}

static int poison(struct probe *p, int run)
{
    int r = 0;
    for (int i = 0; i < p->step->n_gives && r == 0; i++)
        r = mf_guarded_poison(p->gives[i][run], p->source[i], p->accumulates[i]);
    return r;
}

/* Code that spills so much is not run: it cannot win, and one launch of it may take seconds. */
static int refuse_spills(struct probe *p)
{
    if (p->result.use.spills <= SPILL_MAX || p->s->options.exhaustive)
        return 0;
    p->result.status = MF_STATUS_UNSUPPORTED;
    mf_format(p->result.reason, sizeof(p->result.reason),
              "not run: its code spills %d bytes a thread, limit %d, with %d registers in use",
              p->result.use.spills, SPILL_MAX, p->result.use.registers);
    return 1;
}

static void refuse_launch(struct probe *p, int r)
{
    if (r != -E2BIG || p->result.use.occupancy >= 0) {
        refuse_errno(p, r, "the family refused at launch what it had offered");
        return;
    }
    p->result.status = MF_STATUS_UNSUPPORTED;
    mf_format(p->result.reason, sizeof(p->result.reason),
              "not run: no compute unit holds a block of it, with %d registers a thread and %d bytes of LDS",
              p->result.use.registers, p->result.use.lds);
}

static void take_verdict(struct probe *p, const struct mf_verdict *v)
{
    if (!(v->err <= p->result.err))
        p->result.err = v->err;
    if (v->row_limit > 0 && !(v->row_err * p->result.row_limit <= p->result.row_err * v->row_limit)) {
        p->result.row_err = v->row_err;
        p->result.row_limit = v->row_limit;
    }
}

/* r: what a gate said. True: the step is out, and the result says so. */
static bool is_refused(struct probe *p, int r, const struct mf_verdict *verdict)
{
    if (r > 0)
        refuse(p, MF_STATUS_WRONG, verdict->reason);
    else if (r < 0)
        refuse_errno(p, r, "verifying");
    return r != 0;
}

/* A call of measure/verify/verify.h, once more with z where the host needs it: the step's time does not run while it is made. */
static int verify_with(int (*verify)(const struct mf_verify_input *, struct mf_verdict *), struct probe *p,
                       const struct mf_verify_input *v, struct mf_verdict *ret)
{
    int r = verify(v, ret);
    if (r != -ENODATA)
        return r;
    mf_session_phase(p->s->sink, MF_PHASE_DATA);
    r = mf_session_z(p->s);
    mf_session_phase(p->s->sink, MF_PHASE_VERIFY);
    return r < 0 ? r : verify(v, ret);
}

/* All gates on a run's outputs. 1: refused, and the result says so. */
static int verify_run(struct probe *p, int run)
{
    for (int i = 0; i < p->step->n_gives; i++) {
        struct mf_verify_input v = verify_input(p, i, run);
        struct mf_verdict verdict;
        int r = verify_with(mf_verify, p, &v, &verdict);
        if (r >= 0)
            take_verdict(p, &verdict);
        if (is_refused(p, r, &verdict))
            return 1;
    }
    return 0;
}

/* The second run against the first. What may differ is held against the reference once more. */
static int verify_second(struct probe *p)
{
    for (int i = 0; i < p->step->n_gives; i++) {
        struct mf_verify_input first = verify_input(p, i, 0), second = verify_input(p, i, 1);
        struct mf_verdict verdict;
        bool may_differ = p->step->reorder_tolerance > 0 || second.out->tensor_spec.format == MF_FORMAT_INDEX;
        int r = verify_with(may_differ ? mf_verify : mf_verify_written, p, &second, &verdict);
        if (r == 0)
            r = mf_verify_stable(&first, p->gives[i][1], p->step->reorder_tolerance, &verdict);
        if (is_refused(p, r, &verdict))
            return 1;
    }
    return 0;
}

/* Run 0 or 1 of those that are verified: it counts as a sample. */
static int run_over_poison(struct probe *p, int run)
{
    int r = poison(p, run);
    p->run = run;
    if (r == 0)
        r = mf_measure_sample(&p->measured, 0, &p->samples);
    return r;
}

/* ---- the course of a probe; each returns 1 when the step is out, with its result ---- */

static int first_run(struct probe *p)
{
    int r = run_over_poison(p, 0);
    if (r < 0) {
        refuse_launch(p, r);
        return 1;
    }
    p->first_us = p->samples.all[0];
    if (verify_run(p, 0))
        return 1;
    p->result.verified = 1;
    if (!(p->first_us > 0)) {
        (void)mf_measure_implausible(&p->measured, p->first_us, p->step->flops, p->result.reason,
                                     sizeof(p->result.reason));
        p->result.status = MF_STATUS_IMPLAUSIBLE;
        return 1;
    }
    return 0;
}

/* Only what computes: a sort for larger blocks is no rival of one for smaller blocks but what a faster GEMM needs, and
 * together they take less than the doubt is worth. */
static bool may_be_slow(const struct probe *p)
{
    return (p->step->covers & (MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2))) &&
           !p->s->options.exhaustive && p->best_us > 0;
}

/* Out by the best of its kind, or out by the best that could stand in its place: a pipeline with that one is the better by
 * as much, whatever else is in it. */
static int drop_slow(struct probe *p)
{
    double limit = p->best_us < STEADY_US ? SLOW_LIMIT : STEADY_LIMIT, best_us = p->best_us;
    const char *whose = "of its kind";
    if (p->place_us > 0 && BEHIND * p->place_us < limit * best_us) {
        limit = BEHIND;
        best_us = p->place_us;
        whose = "that could stand in its place";
    }
    if (!may_be_slow(p) || p->first_us <= limit * best_us)
        return 0;
    double us = p->first_us;
    if (us <= SLOW_DOUBT * best_us) {
        p->run = 1;
        if (mf_measure_sample(&p->measured, mf_measure_next(&p->measured), &p->samples) == 0)
            us = fmin(us, p->samples.all[p->samples.n_all - 1]);
    }
    if (us <= limit * best_us)
        return 0;
    p->result.status = MF_STATUS_SLOW;
    mf_format(p->result.reason, sizeof(p->result.reason),
              "its %s took %.4g µs, %.2f times the best %s (%.4g µs), limit %.3g",
              p->samples.n_all > 1 ? "better run of two" : "first run", us, us / best_us, whose, best_us,
              limit);
    return 1;
}

/* More than half of the samples that it was to have are behind the best of its layout: so is their median, whatever the
 * rest would be. */
static bool is_decided(const struct probe *p, int count)
{
    int n = 0;
    for (size_t i = 0; may_be_slow(p) && p->layout_us > 0 && i < p->samples.n_all; i++)
        n += p->samples.all[i] > NEAR * p->layout_us;
    return 2 * n > count;
}

static int second_run(struct probe *p)
{
    int r = run_over_poison(p, 1);
    if (r < 0) {
        refuse_errno(p, r, "the second run");
        return 1;
    }
    if (verify_second(p))
        return 1;
    p->result.verified = 2;
    return 0;
}

/* n samples, or fewer when those of all `count` are decided. */
static int take_samples(struct probe *p, int n, int count)
{
    p->run = 1;
    for (int i = 0; i < n && !is_decided(p, count); i++) {
        int r = mf_measure_sample(&p->measured, mf_measure_next(&p->measured), &p->samples);
        if (r < 0) {
            refuse_errno(p, r, "a timed run");
            return 1;
        }
    }
    return 0;
}

/* What the runs before took says nothing; not even the first, which was verified. */
static int warm_up(struct probe *p)
{
    struct mf_sink *sink = p->s->sink;
    double us;
    p->run = 1;
    for (int64_t i = 0; i < p->s->options.warmup; i++) {
        /* Each has the time limit to itself */
        int r = sink->begin(sink, p->result.id, false, hang_limit_ms(p->s, p->best_us));
        if (r == 0)
            r = mf_measure_run(&p->measured, mf_measure_next(&p->measured), &us, NULL);
        if (r < 0) {
            refuse_errno(p, r, "a run before the timed ones");
            return 1;
        }
    }
    if (p->s->options.warmup > 0)
        p->samples = (struct mf_samples){.n_all = 0};
    return 0;
}

/* Bands once more after the last run: what damages late is found too. */
static int check_bands(struct probe *p)
{
    for (int i = 0; i < p->step->n_gives * 2; i++) {
        int r = mf_guarded_pull_bands(p->gives[i / 2][i % 2]);
        if (r < 0) {
            refuse_errno(p, r, "reading its outputs");
            return 1;
        }
        if (mf_guarded_check(p->gives[i / 2][i % 2], p->result.reason, sizeof(p->result.reason))) {
            p->result.status = MF_STATUS_WRONG;
            return 1;
        }
    }
    return 0;
}

static void attempt(struct probe *p)
{
    mf_session_phase(p->s->sink, MF_PHASE_VERIFY);
    if (first_run(p))
        return;
    mf_session_phase(p->s->sink, MF_PHASE_TIMING);
    if (drop_slow(p) || warm_up(p))
        return;
    /* The second verified run stands amid the samples, so that rotation 0 is cold for it and for the next step. */
    int count = mf_measure_count(p->first_us, room_us(p->s)), left = count - (int)p->samples.n_all - 1;
    int before = p->measured.n_rotations > 1 ? (left + 1) / 2 : 0;
    if (take_samples(p, before, count))
        return;
    mf_session_phase(p->s->sink, MF_PHASE_VERIFY);
    if (second_run(p))
        return;
    mf_session_phase(p->s->sink, MF_PHASE_TIMING);
    if (take_samples(p, left - before, count) ||
        take_samples(p, mf_measure_missing(&p->measured, &p->samples), INT_MAX))
        return;
    (void)check_bands(p);
}

/* What was timed while the device was slow says nothing of the step, neither its samples nor that it is slow: they are
 * thrown away, and it is run once more when the device has rested. */
static void run_probe(struct probe *p)
{
    struct mf_unit_result blank = p->result;
    attempt(p);
    p->result.canary = mf_session_canary(p->s);
    if ((p->result.status != MF_STATUS_OK && p->result.status != MF_STATUS_SLOW) ||
        !(p->result.canary > MF_CANARY_LIMIT))
        return;
    mf_session_phase(p->s->sink, MF_PHASE_WAIT);
    mf_session_rest(p->s);
    p->samples = (struct mf_samples){0};
    p->result = blank;
    attempt(p);
    p->result.canary = mf_session_canary(p->s);
}

static void note_bests(const struct probe *p)
{
    note_best(p->s, p->kind, p->result.us);
    note_best(p->s, p->place, p->result.us);
    note_best(p->s, p->layout, p->result.us);
}

/* Median and spread of what counts, and the last gate: a time that can be. */
static void finish(struct probe *p, double *samples)
{
    size_t n;
    const char *mode;
    const double *counted = mf_measure_samples(&p->measured, &p->samples, &n, &mode);
    if (n == 0 || (p->result.status != MF_STATUS_OK && p->result.status != MF_STATUS_SLOW))
        return;
    memcpy(samples, counted, n * sizeof(*samples));
    p->result.us = mf_median(samples, n);
    p->result.mad = mf_mad(samples, n);
    memcpy(samples, counted, n * sizeof(*samples));
    p->result.samples = samples;
    p->result.n_samples = n;
    p->result.mode = mode;
    if (p->result.status != MF_STATUS_OK)
        return;
    if (mf_measure_implausible(&p->measured, p->result.us, p->step->flops, p->result.reason,
                               sizeof(p->result.reason)))
        p->result.status = MF_STATUS_IMPLAUSIBLE;
    else
        note_bests(p);
}

static int open_kernel(struct probe *p)
{
    p->family = mf_family_set_find(p->s->extra, p->s->device->ops->kind, p->step->family);
    if (!p->family) {
        p->result.status = MF_STATUS_UNSUPPORTED;
        mf_format(p->result.reason, sizeof(p->result.reason), "this runner has no family %s",
                  p->step->family);
        return 1;
    }
    struct mf_device *device = p->s->device;
    device->words[0] = '\0';
    int r = p->family->open(p->family, device, &p->s->shape, p->step->name, &p->kernel);
    if (r >= 0)
        return 0;
    refuse_errno(p, r, "the family did not open what it had offered");
    if (device->words[0])
        mf_format(p->result.reason, sizeof(p->result.reason),
                  "the family did not open what it had offered: %s", device->words);
    return 1;
}

/* One bad step hurts nobody: before the next one is wrong, it is run on data that no other has seen. */
static void run_on_fresh_data(struct probe *p, const struct mf_unit_result *blank)
{
    char reason[MF_REASON_MAX];
    memcpy(reason, p->result.reason, sizeof(reason));
    p->result = *blank;
    p->samples = (struct mf_samples){0};
    mf_session_phase(p->s->sink, MF_PHASE_DATA);
    int r = mf_session_renew(p->s);
    if (r == 0)
        r = bind_in_any_case(p);
    if (r == 0) /* the step has its time limit to itself */
        r = p->s->sink->begin(p->s->sink, p->result.id, false, hang_limit_ms(p->s, p->best_us));
    if (r < 0) {
        refuse_errno(p, r, "making its inputs anew");
        return;
    }
    run_probe(p);
    if (p->result.status != MF_STATUS_OK)
        return;
    mf_session_say_renewed(reason);
    memcpy(p->result.reason, reason, sizeof(reason));
}

static void run(struct probe *p)
{
    const struct mf_unit_result blank = p->result;
    run_probe(p);
    if (p->result.status == MF_STATUS_WRONG && mf_session_may_be_spoiled(p->s))
        run_on_fresh_data(p, &blank);
    p->s->worn = true;
}

static int probe_step(struct mf_session *s, const struct mf_probe_step *step, mf_best_fn best, void *context,
                      struct mf_sink *sink)
{
    double samples[MF_MEASURE_SAMPLES + 2];
    _cleanup_(mf_freep) struct probe *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->s = s;
    p->step = &step->step;
    p->kind = kind_of(p->step);
    p->place = place_of(p->step);
    p->layout = layout_of(p->step, p->kind);
    p->best_us = best_of(s, p->step, p->kind, best, context);
    p->place_us = known_best(s, p->place);
    p->layout_us = known_best(s, p->layout);
    p->measured = (struct mf_measured){.session = s, .launch = launch, .prepare = prepare, .context = p};
    p->result = (struct mf_unit_result){.id = step->id,
                                        .status = MF_STATUS_OK,
                                        .us = NAN,
                                        .mad = NAN,
                                        .err = NAN,
                                        .row_err = NAN,
                                        .row_limit = NAN,
                                        .canary = NAN,
                                        .mode = ""};
    mf_session_trim(s);
    mf_session_phase(sink, MF_PHASE_DATA);
    int bound = bind_in_any_case(p);
    mf_session_phase(sink, MF_PHASE_LOAD);
    int r = sink->begin(sink, step->id, false, hang_limit_ms(s, p->best_us));
    if (r < 0)
        return r;
    if (bound < 0)
        refuse_errno(p, bound, "making the step's inputs and outputs");
    s->device->use = &p->result.use;
    if (bound >= 0 && !open_kernel(p) && !refuse_spills(p))
        run(p);
    s->device->use = NULL;
    finish(p, samples);
    if (p->kernel)
        p->family->close(p->kernel);
    return sink->result(sink, &p->result);
}

int mf_session_probe(struct mf_session *s, const struct mf_probe_step *steps, size_t n, mf_best_fn best,
                     void *context, struct mf_sink *sink)
{
    s->sink = sink;
    mf_session_phase(sink, MF_PHASE_LOAD);
    _cleanup_(mf_ahead_release) struct mf_ahead ahead = mf_session_ahead(s);
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = mf_ahead_add(&ahead, &steps[i].step);
    if (r == 0)
        mf_ahead_compile(&ahead, s->device);
    for (size_t i = 0; i < n && r >= 0; i++)
        r = probe_step(s, &steps[i], best, context, sink);
    if (r < 0)
        return r;
    mf_session_phase(sink, MF_PHASE_WAIT);
    return 0;
}
