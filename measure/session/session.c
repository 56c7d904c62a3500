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
#include "measure/session/fixed_inputs.h"
#include "measure/session/prune.h"
#include "measure/session/session_data.h"
#include "measure/verify/verify.h"

/* State of one step during its probe. */
struct probe {
    struct mf_session *s;
    const struct mf_step *step;
    const struct mf_family *family;
    struct mf_kernel *kernel;
    struct mf_measured measured;
    struct mf_samples samples;
    struct mf_prune_keys keys;
    struct mf_prune prune;
    double first_us;

    struct mf_tensor_ref needs[MF_ROTATIONS_MAX][MF_STEP_TENSOR_SPECS_MAX];
    struct mf_guarded *gives[MF_STEP_TENSOR_SPECS_MAX][2];
    struct mf_tensor_ref give_refs[2][MF_STEP_TENSOR_SPECS_MAX];
    const int64_t *source[MF_STEP_TENSOR_SPECS_MAX];
    bool accumulates[MF_STEP_TENSOR_SPECS_MAX];
    /* per output: index of the input that shares the output's memory; -1: no such input */
    int accumulated_from[MF_STEP_TENSOR_SPECS_MAX];
    /* inputs of all rotations if the family captures its launches; part[0] is NULL for other inputs */
    struct mf_tensor_ref fixed[MF_STEP_TENSOR_SPECS_MAX];
    int witness; /* index of the fixed input that is hidden during captures; -1: none */
    bool hides_witness;
    int run; /* index of the outputs that the next launch writes */
    struct mf_unit_result result;
};

static int64_t hang_limit_ms(const struct probe *p)
{
    return mf_prune_hang_ms(p->prune.kind_us, p->s->options.exhaustive, p->s->options.time_cap_ms);
}

/* Returns the time for samples: half of a step's time limit in an exhaustive search, otherwise 0. */
static double budget_us(const struct mf_session *s)
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
            p->needs[rotation][i] = p->measured.weights[a->tensor == MF_TENSOR_W2]->launch_ref;
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

/* Gives inputs addresses of their own that stay the same for all rotations and when the inputs are restored,
 * so that a kernel captures its launches once per output buffer. */
static int fix_needs(struct probe *p)
{
    struct mf_tensor_spec specs[MF_STEP_TENSOR_SPECS_MAX];
    struct mf_tensor_ref refs[MF_STEP_TENSOR_SPECS_MAX];
    int which[MF_STEP_TENSOR_SPECS_MAX], n = 0;
    memset(p->fixed, 0, sizeof(p->fixed));
    p->witness = -1;
    if (!p->family || !p->family->captures)
        return 0;
    p->witness = mf_fixed_input_witness(p->step->needs, p->step->n_needs);
    for (int i = 0; i < p->step->n_needs; i++) {
        if (!mf_tensor_spec_is_weight(&p->step->needs[i]) && p->needs[0][i].part[0]) {
            specs[n] = p->step->needs[i];
            which[n++] = i;
        }
    }
    int r = n > 0 ? mf_fixed_inputs_reserve(p->s, specs, (size_t)n, refs) : 0;
    for (int i = 0; i < n && r == 0; i++)
        p->fixed[which[i]] = refs[i];
    return r;
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
        r = mf_session_reserve(p->s, &p->s->workspace, p->step->workspace_bytes + 64);
    if (r == 0)
        r = fix_needs(p);
    for (int i = 0; r == 0 && i < p->step->n_gives; i++) {
        for (int run = 0; run < 2; run++)
            p->give_refs[run][i] = p->gives[i][run]->launch_ref;
    }
    return r;
}

/* Binds the buffers of the step. If memory is exhausted, frees the device cache and binds again. If an output
 * is verified against z, the host creates z before the second try, because the step's buffers may leave no
 * memory for z. */
static int bind_with_retry(struct probe *p)
{
    int r = bind(p);
    if (r != -ENOMEM)
        return r;
    r = mf_session_free_device_cache(p->s) ? 0 : -ENOMEM;
    for (int i = 0; i < p->step->n_gives && r == 0; i++)
        r = mf_reference_lacks_z(&p->s->ref, &p->step->gives[i]) ? mf_session_z(p->s) : 0;
    return r < 0 ? r : bind(p);
}

/* Returns the launch arguments of the current run and rotation. The result's `needs` points to the array
 * `needs`. */
static struct mf_launch launch_of(const struct probe *p, struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX])
{
    memcpy(needs, p->needs[p->measured.rotation], MF_STEP_TENSOR_SPECS_MAX * sizeof(*needs));
    for (int i = 0; i < p->step->n_needs; i++)
        needs[i] = p->fixed[i].part[0] ? p->fixed[i] : needs[i];
    for (int g = 0; g < p->step->n_gives; g++) {
        if (p->accumulated_from[g] >= 0)
            needs[p->accumulated_from[g]] = p->give_refs[p->run][g];
    }
    return (struct mf_launch){
        .needs = needs, .gives = p->give_refs[p->run], .workspace = mf_region_launch_start(&p->s->workspace)};
}

static int launch(void *context, int index)
{
    struct probe *p = context;
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX];
    const struct mf_launch l = launch_of(p, needs);
    (void)index;
    return p->family->launch(p->kernel, &l);
}

/* A step without a kernel was not timed. */
static const char *why_eager(void *context)
{
    const struct probe *p = context;
    return p->kernel && p->family->eager ? p->family->eager(p->kernel) : NULL;
}

static int prepare(void *context, int index)
{
    struct probe *p = context;
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX];
    const struct mf_launch l = launch_of(p, needs);
    (void)index;
    int r = 0;
    for (int i = 0; i < p->step->n_needs && r == 0; i++) {
        const struct mf_tensor_spec *a = &p->step->needs[i];
        if (p->fixed[i].part[0])
            r = p->hides_witness && i == p->witness
                    ? mf_fixed_input_hide(p->s, a, &p->fixed[i])
                    : mf_fixed_input_copy(p->s, a, &p->fixed[i], &p->needs[p->measured.rotation][i]);
    }
    return r < 0 || !p->family->prepare ? r : p->family->prepare(p->kernel, &l);
}

static int finish_run(void *context, int index)
{
    struct probe *p = context;
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX];
    const struct mf_launch l = launch_of(p, needs);
    (void)index;
    return p->family->finish ? p->family->finish(p->kernel, &l) : 0;
}

static int hide_witness(const struct probe *p)
{
    int i = p->witness;
    return i < 0 ? 0 : mf_fixed_input_hide(p->s, &p->step->needs[i], &p->fixed[i]);
}

static int queue_witness(const struct probe *p)
{
    int i = p->witness;
    return i < 0 ? 0
                 : mf_fixed_input_queue_copy(p->s, &p->step->needs[i], &p->fixed[i],
                                             &p->needs[p->measured.rotation][i]);
}

/* Before an eager run: index 0 hides an input, index 1 queues its values and the poison of the outputs. */
static int poison_eager(void *context, int index)
{
    const struct probe *p = context;
    if (index == 0)
        return hide_witness(p);
    int r = queue_witness(p);
    for (int i = 0; i < p->step->n_gives && r == 0; i++)
        r = mf_guarded_queue_poison(p->gives[i][p->run], p->s->device, p->accumulates[i]);
    return r;
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
    const char *text = p->s->device->open_error;
    mf_format(p->result.reason, sizeof(p->result.reason), "%s: %s", what, text[0] ? text : strerror(-r));
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

/* Rejects a kernel with heavy register spilling without running it, because it cannot be the fastest and one
 * launch may take seconds. */
static int refuse_spills(struct probe *p)
{
    if (p->result.use.spills <= MF_PRUNE_SPILL_MAX || p->s->options.exhaustive)
        return 0;
    p->result.status = MF_STATUS_UNSUPPORTED;
    mf_format(p->result.reason, sizeof(p->result.reason),
              "not run: the kernel spills %d bytes per thread (limit %d) and uses %d registers",
              p->result.use.spills, MF_PRUNE_SPILL_MAX, p->result.use.registers);
    return 1;
}

static void refuse_launch(struct probe *p, int r)
{
    if (r != -E2BIG || p->result.use.occupancy >= 0) {
        refuse_errno(p, r, "the family failed to launch a step that it offered");
        return;
    }
    p->result.status = MF_STATUS_UNSUPPORTED;
    mf_format(p->result.reason, sizeof(p->result.reason),
              "not run: one block exceeds an SM or CU: %d registers per thread, %d bytes of shared memory",
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

/* True if the step is rejected; the result then has the reason. r is the return value of a gate. */
static bool is_refused(struct probe *p, int r, const struct mf_verdict *verdict)
{
    if (r > 0)
        refuse(p, MF_STATUS_WRONG, verdict->reason);
    else if (r < 0)
        refuse_errno(p, r, "cannot verify the outputs");
    return r != 0;
}

/* Calls a function of measure/verify/verify.h. If the function needs z and the host lacks z, creates z and
 * calls the function again. Creating z does not count against the step's time limit. */
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

/* Applies all gates to a run's outputs. Returns 1 if the step is rejected; the result then has the reason. */
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

/* Compares the second run with the first. Outputs that may differ between runs are also verified against the
 * reference. */
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

/* Runs the step as run 0 or 1, on poisoned outputs. The run is verified later, and also gives a sample. */
static int run_poisoned(struct probe *p, int run)
{
    p->run = run;
    p->hides_witness = true;
    int r = p->family->captures ? mf_measure_prepare(&p->measured, 0) : 0;
    p->hides_witness = false;
    if (r >= 0)
        r = poison(p, run);
    if (r == 0)
        r = mf_measure_sample(&p->measured, 0, &p->samples);
    return r;
}

/* ---- stages of a probe; each returns 1 if it rejects the step, with the reason in the result ---- */

static int first_run(struct probe *p)
{
    int r = run_poisoned(p, 0);
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

/* Drops a step that is too slow for any pipeline (measure/session/prune.h). */
static int drop_slow(struct probe *p)
{
    /* the times of other steps are those of graphs */
    p->prune.applies &= !why_eager(p);
    const struct mf_prune_limit limit = mf_prune_limit(&p->prune);
    double us = p->first_us;
    if (us > limit.us && us <= limit.rerun_us) {
        p->run = 1;
        if (mf_measure_sample(&p->measured, mf_measure_next(&p->measured), &p->samples) == 0)
            us = fmin(us, p->samples.all[p->samples.n_all - 1]);
    }
    if (us <= limit.us)
        return 0;
    p->result.status = MF_STATUS_SLOW;
    mf_format(p->result.reason, sizeof(p->result.reason),
              "%s took %.4g µs, %.2f times the best %s (%.4g µs), limit %.3g",
              p->samples.n_all > 1 ? "faster of two runs" : "first run", us, us / limit.best_us, limit.rivals,
              limit.best_us, limit.factor);
    return 1;
}

static int second_run(struct probe *p)
{
    int r = run_poisoned(p, 1);
    if (r < 0) {
        refuse_errno(p, r, "second run failed");
        return 1;
    }
    if (verify_second(p))
        return 1;
    p->result.verified = 2;
    return 0;
}

/* Takes n samples. Stops earlier once the samples so far show that the median of all `count` samples exceeds
 * the limit. */
static int take_samples(struct probe *p, int n, int count)
{
    p->run = 1;
    for (int i = 0; i < n && !mf_prune_is_decided(&p->prune, p->samples.all, p->samples.n_all, count); i++) {
        int r = mf_measure_sample(&p->measured, mf_measure_next(&p->measured), &p->samples);
        if (r < 0) {
            refuse_errno(p, r, "timed run failed");
            return 1;
        }
    }
    return 0;
}

/* Makes the warm-up runs. If the options request warm-up runs, then discards all samples so far, even the
 * sample of the verified run. */
static int warm_up(struct probe *p)
{
    struct mf_sink *sink = p->s->sink;
    double us;
    p->run = 1;
    for (int64_t i = 0; i < p->s->options.warmup; i++) {
        /* Restart the time limit, so that every run gets the full limit. */
        int r = sink->begin(sink, p->result.id, false, hang_limit_ms(p));
        if (r == 0)
            r = mf_measure_run(&p->measured, mf_measure_next(&p->measured), &us, NULL);
        if (r < 0) {
            refuse_errno(p, r, "warm-up run failed");
            return 1;
        }
    }
    if (p->s->options.warmup > 0)
        p->samples = (struct mf_samples){.n_all = 0};
    return 0;
}

/* Checks the bands after the last run, to detect late writes. */
static int check_bands(struct probe *p)
{
    for (int i = 0; i < p->step->n_gives * 2; i++) {
        int r = mf_guarded_pull_bands(p->gives[i / 2][i % 2]);
        if (r < 0) {
            refuse_errno(p, r, "cannot read the outputs");
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
    /* The second verified run takes place in the middle of the samples, so that rotation 0 is cold in this
     * run and in the first run of the next step. */
    int count = mf_measure_count(p->first_us, budget_us(p->s)), left = count - (int)p->samples.n_all - 1;
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

/* Probes the step. If the canary shows a slow device, discards the samples and a `slow` verdict, waits until
 * the device has cooled down, and probes the step again. */
static void run_probe(struct probe *p)
{
    struct mf_unit_result blank = p->result;
    attempt(p);
    p->result.canary = mf_session_canary(p->s);
    if ((p->result.status != MF_STATUS_OK && p->result.status != MF_STATUS_SLOW) ||
        !(p->result.canary > MF_CANARY_LIMIT))
        return;
    mf_session_phase(p->s->sink, MF_PHASE_WAIT);
    mf_session_cool_down(p->s);
    p->samples = (struct mf_samples){0};
    p->result = blank;
    attempt(p);
    p->result.canary = mf_session_canary(p->s);
}

/* Computes median and deviation of the samples, and applies the last gate: the time must be plausible. */
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
    else if (why_eager(p))
        mf_format(p->result.reason, sizeof(p->result.reason), "timed eagerly, so not ranked: %s",
                  why_eager(p));
    else
        mf_prune_note(&p->s->bests, &p->keys, p->result.us);
}

static int open_kernel(struct probe *p)
{
    if (!p->family) {
        p->result.status = MF_STATUS_UNSUPPORTED;
        mf_format(p->result.reason, sizeof(p->result.reason), "this runner has no family %s",
                  p->step->family);
        return 1;
    }
    int r = p->family->open(p->family, p->s->device, &p->s->shape, p->step->name, &p->kernel);
    if (r >= 0)
        return 0;
    refuse_errno(p, r, "the family failed to open a step that it offered");
    return 1;
}

/* Runs a failed step again on restored inputs, because an earlier step may have overwritten the inputs. */
static void run_on_fresh_data(struct probe *p, const struct mf_unit_result *blank)
{
    char reason[MF_REASON_MAX];
    memcpy(reason, p->result.reason, sizeof(reason));
    p->result = *blank;
    p->samples = (struct mf_samples){0};
    mf_session_phase(p->s->sink, MF_PHASE_DATA);
    int r = mf_session_renew(p->s);
    if (r == 0)
        r = bind_with_retry(p);
    if (r == 0) /* the step gets the full time limit */
        r = p->s->sink->begin(p->s->sink, p->result.id, false, hang_limit_ms(p));
    if (r < 0) {
        refuse_errno(p, r, "cannot restore the inputs");
        return;
    }
    run_probe(p);
    if (p->result.status != MF_STATUS_OK)
        return;
    mf_session_retry_reason(reason);
    memcpy(p->result.reason, reason, sizeof(reason));
}

static void run(struct probe *p)
{
    const struct mf_unit_result blank = p->result;
    run_probe(p);
    if (p->result.status == MF_STATUS_WRONG && mf_session_data_suspect(p->s))
        run_on_fresh_data(p, &blank);
    p->s->step_has_run = true;
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
    p->family = mf_family_set_find(s->extra, s->device->ops->kind, p->step->family);
    p->keys = mf_prune_keys(p->step);
    p->prune =
        mf_prune_start(&s->bests, &p->keys, p->step,
                       best && p->step->covers ? best(context, p->step->covers) : 0, s->options.exhaustive);
    p->measured = (struct mf_measured){.session = s,
                                       .launch = launch,
                                       .prepare = prepare,
                                       .finish = finish_run,
                                       .eager = why_eager,
                                       .poison = poison_eager,
                                       .context = p};
    p->result = mf_unit_result_unmeasured(step->id, false);
    s->device->open_error[0] = '\0';
    mf_session_trim(s);
    mf_session_phase(sink, MF_PHASE_DATA);
    int bound = bind_with_retry(p);
    mf_session_phase(sink, MF_PHASE_LOAD);
    int r = sink->begin(sink, step->id, false, hang_limit_ms(p));
    if (r < 0)
        return r;
    if (bound < 0)
        refuse_errno(p, bound, "cannot create the step's inputs and outputs");
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
