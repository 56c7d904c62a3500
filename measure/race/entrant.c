#include "measure/race/entrant.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/quant.h"
#include "measure/session/fixed_inputs.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"

/* NaN in f32, bf16 and fp8 E4M3FN, so that unwritten arena memory never looks correct */
#define ARENA_POISON 0xff

/* Inputs of a rotation. Pipelines that replay captured launches read them at fixed addresses. */
enum { TOPK, X };
static const struct mf_tensor_spec rotated[] = {
    [TOPK] = {.tensor = MF_TENSOR_TOPK, .format = MF_FORMAT_INDEX, .order = "token"},
    [X] = {.tensor = MF_TENSOR_X, .format = MF_FORMAT_BF16, .order = "token"},
};

/* Finds the inputs shared by all entrants: x, the rotation's routing, calibration and biases. */
static int find_inputs(struct mf_session *s, int rotation, struct mf_fmoe_args *args)
{
    const struct mf_tensor_spec calib = {
        .tensor = MF_TENSOR_CALIB, .format = MF_FORMAT_F32, .order = "token"};
    const struct mf_tensor_spec b1 = mf_plain_bias(MF_TENSOR_B1), b2 = mf_plain_bias(MF_TENSOR_B2);
    int r = mf_session_input(s, &rotated[X], rotation, &args->x, NULL);
    if (r == 0)
        r = mf_session_input(s, &calib, 0, &args->calib, NULL);
    if (r == 0)
        r = mf_session_input(s, &rotated[TOPK], rotation, &args->topk, NULL);
    if (r == 0 && s->shape.has_b1)
        r = mf_session_input(s, &b1, 0, &args->b1, NULL);
    if (r == 0 && s->shape.has_b2)
        r = mf_session_input(s, &b2, 0, &args->b2, NULL);
    return r;
}

/* Creates the inputs before any weights, because the weights may leave no memory for the inputs. */
int mf_race_buffers_init(struct mf_race_buffers *c, struct mf_session *s)
{
    const struct mf_tensor_spec y = {.tensor = MF_TENSOR_Y, .format = MF_FORMAT_BF16, .order = "token"};
    struct mf_fmoe_args inputs = {0};
    *c = (struct mf_race_buffers){.session = s};
    int r = find_inputs(s, 0, &inputs);
    return r < 0 ? r : mf_session_output(s, &y, c->y);
}

static int launch(void *context, int index)
{
    struct mf_entrant *e = context;
    (void)index;
    return mf_pipeline_run(e->pipeline);
}

static int prepare(void *context, int index)
{
    struct mf_entrant *e = context;
    (void)index;
    return mf_pipeline_prepare(e->pipeline);
}

static int finish(void *context, int index)
{
    struct mf_entrant *e = context;
    (void)index;
    return mf_pipeline_finish(e->pipeline);
}

/* Copies x and the rotation's routing to fixed addresses, for pipelines that replay captured launches. */
static int fix_inputs(struct mf_session *s, bool hides_x, struct mf_fmoe_args *args)
{
    struct mf_tensor_ref fixed[MF_ARRAY_LEN(rotated)];
    int r = mf_fixed_inputs_reserve(s, rotated, MF_ARRAY_LEN(rotated), fixed);
    if (r == 0)
        r = mf_fixed_input_copy(s, &rotated[TOPK], &fixed[TOPK], &args->topk);
    if (r == 0)
        r = hides_x ? mf_fixed_input_hide(s, &rotated[X], &fixed[X])
                    : mf_fixed_input_copy(s, &rotated[X], &fixed[X], &args->x);
    args->topk = fixed[TOPK];
    args->x = fixed[X];
    return r;
}

/* Binds the buffers shared by all entrants: inputs, weights, arena, output. hides_x: x is poison while the
 * steps capture their launches (measure/session/fixed_inputs.h). */
static int bind(struct mf_entrant *e, int rotation, bool hides_x)
{
    const struct mf_race_buffers *c = e->buffers;
    struct mf_session *s = c->session;
    struct mf_fmoe_args args = {
        .w1 = e->measured.weights[0]->launch_ref,
        .w2 = e->measured.weights[1]->launch_ref,
        .y = c->y[c->run]->launch_ref,
        .arena = mf_region_launch_start(&s->arena),
    };
    int r = find_inputs(s, rotation, &args);
    if (r == 0 && mf_pipeline_captures(e->pipeline))
        r = fix_inputs(s, hides_x, &args);
    if (r == 0)
        mf_pipeline_bind(e->pipeline, &args);
    s->step_has_run = true;
    return r;
}

static enum mf_status refuse_errno(const struct mf_entrant *e, int r, const char *what,
                                   char reason[MF_REASON_MAX])
{
    const char *text = e->buffers->session->device->open_error;
    mf_format(reason, MF_REASON_MAX, "%s: %s", what, text[0] ? text : strerrordesc_np(-r));
    return r == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED;
}

static int bind_memory(struct mf_entrant *e)
{
    struct mf_session *s = e->buffers->session;
    int r = 0;
    for (int w = 0; w < 2 && r == 0; w++) {
        struct mf_tensor_spec a = mf_pipeline_weight(e->pipeline, w == 0 ? MF_TENSOR_W1 : MF_TENSOR_W2);
        r = mf_session_weight(s, &a, &e->measured.weights[w]);
    }
    return r < 0 ? r : mf_session_reserve(s, &s->arena, mf_pipeline_arena_bytes(e->pipeline) + 64);
}

enum mf_status mf_entrant_init(struct mf_entrant *e, struct mf_race_buffers *c, struct mf_pipeline *pipeline,
                               char reason[MF_REASON_MAX])
{
    struct mf_session *s = c->session;
    *e = (struct mf_entrant){.buffers = c,
                             .pipeline = pipeline,
                             .measured = {.session = s,
                                          .evicts_caches = true,
                                          .launch = launch,
                                          .prepare = prepare,
                                          .finish = finish,
                                          .context = e},
                             .verdict = {.err = NAN, .row_err = NAN, .row_limit = NAN}};
    for (size_t i = 0; i < mf_pipeline_n_steps(pipeline); i++) {
        e->flops += mf_pipeline_step(pipeline, i)->flops;
        e->tolerance = fmax(e->tolerance, mf_pipeline_step(pipeline, i)->reorder_tolerance);
    }
    int r = bind_memory(e);
    if (r == -ENOMEM && mf_session_free_device_cache(s))
        r = bind_memory(e);
    if (r < 0)
        return refuse_errno(e, r, "cannot allocate the pipeline's memory", reason);
    mf_measured_init(&e->measured);
    return MF_STATUS_OK;
}

static int poison_arena(struct mf_session *s, size_t bytes)
{
    const struct mf_device_data_fill all = {mf_region_launch_start(&s->arena), bytes,
                                            ARENA_POISON * 0x01010101u};
    if (s->device_data)
        return mf_device_data_fill(s->device_data, &all, 1);
    memset(s->arena.at, ARENA_POISON, bytes);
    return mf_region_push(&s->arena);
}

/* Lets the steps capture their launches. This is done before the outputs are poisoned and with a hidden x.
 * Otherwise, work that a step runs on another stream meanwhile would count as its result without being timed.
 */
static int warm_up(struct mf_entrant *e)
{
    const struct mf_step *step;
    if (!mf_pipeline_captures(e->pipeline))
        return 0;
    int r = bind(e, 0, true);
    if (r == 0)
        r = mf_pipeline_warm_up(e->pipeline);
    if (r == 0 && mf_pipeline_eager(e->pipeline, &step))
        return -ENOTSUP;
    return r < 0 ? r : mf_measure_prepare(&e->measured, 0);
}

static int run_poisoned(struct mf_entrant *e, double *ret_us)
{
    struct mf_race_buffers *c = e->buffers;
    int r = warm_up(e);
    if (r == 0)
        r = bind(e, 0, false);
    if (r == 0)
        r = mf_guarded_poison(c->y[c->run], NULL, false);
    if (r == 0)
        r = poison_arena(c->session, mf_pipeline_arena_bytes(e->pipeline));
    if (r == 0)
        r = mf_measure_run(&e->measured, 0, ret_us, NULL);
    return r;
}

/* Runs the entrant once, with output y[run], and verifies the output against the layer's reference. The
 * output of run 1 must also agree with the output of run 0. */
static enum mf_status verify_once(struct mf_entrant *e, int run, double *ret_us, char reason[MF_REASON_MAX])
{
    struct mf_race_buffers *c = e->buffers;
    struct mf_session *s = c->session;
    struct mf_verify_input v = {
        .data = &s->data,
        .ref = &s->ref,
        .out = c->y[run],
        .covers = mf_layer_ops(&s->shape),
        .err_ratio = s->options.err_ratio,
    };
    const struct mf_step *step;
    c->run = run;
    int r = run_poisoned(e, ret_us);
    const char *why = mf_pipeline_eager(e->pipeline, &step);
    if (why) {
        mf_format(reason, MF_REASON_MAX, "%s:%s cannot be captured, and eager times are not compared: %s",
                  step->family, step->name, why);
        return MF_STATUS_UNSUPPORTED;
    }
    if (r < 0)
        return refuse_errno(e, r, "a step failed to launch", reason);
    r = mf_verify(&v, &e->verdict);
    if (r == 0 && run == 1) {
        v.out = c->y[0];
        r = mf_verify_stable(&v, c->y[1], e->tolerance, &e->verdict);
    }
    if (r < 0)
        return refuse_errno(e, r, "cannot verify the outputs", reason);
    if (r > 0) {
        (void)mf_copy(reason, MF_REASON_MAX, e->verdict.reason);
        return MF_STATUS_WRONG;
    }
    e->verified = run + 1;
    return MF_STATUS_OK;
}

/* Verifies a run. If the entrant fails and its data may have been overwritten, restores the data and verifies
 * once more. */
static enum mf_status verify_run(struct mf_entrant *e, int run, double *ret_us, char reason[MF_REASON_MAX])
{
    struct mf_session *s = e->buffers->session;
    bool suspect = mf_session_data_suspect(s);
    enum mf_status status = verify_once(e, run, ret_us, reason);
    if (status != MF_STATUS_WRONG || !suspect)
        return status;
    mf_session_phase(s->sink, MF_PHASE_DATA);
    int r = mf_session_renew(s);
    mf_session_phase(s->sink, MF_PHASE_VERIFY);
    if (r < 0)
        return refuse_errno(e, r, "cannot restore the inputs", reason);
    /* run 1 is compared with the output of run 0, which may be gone */
    status = run == 0 ? MF_STATUS_OK : verify_once(e, 0, ret_us, reason);
    if (status == MF_STATUS_OK)
        status = verify_once(e, run, ret_us, reason);
    if (status == MF_STATUS_OK)
        mf_session_retry_reason(reason);
    return status;
}

/* Applies the last gate: the time must be plausible. */
static enum mf_status check_time(struct mf_entrant *e, double us, char reason[MF_REASON_MAX])
{
    return mf_measure_implausible(&e->measured, us, e->flops, reason, MF_REASON_MAX) ? MF_STATUS_IMPLAUSIBLE
                                                                                     : MF_STATUS_OK;
}

enum mf_status mf_entrant_check(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX])
{
    double us;
    enum mf_status status = verify_run(e, 0, &us, reason);
    if (status == MF_STATUS_OK && mf_entrant_check_is_sample(e))
        status = check_time(e, us, reason);
    if (status == MF_STATUS_OK)
        *ret_us = us;
    return status;
}

bool mf_entrant_check_is_sample(const struct mf_entrant *e)
{
    const char *kind = e->buffers->session->device->ops->kind;
    for (size_t i = 0; i < mf_pipeline_n_steps(e->pipeline); i++) {
        if (!mf_family_set_find(NULL, kind, mf_pipeline_step(e->pipeline, i)->family))
            return false;
    }
    return e->measured.n_rotations == 1;
}

enum mf_status mf_entrant_verify(struct mf_entrant *e, char reason[MF_REASON_MAX])
{
    double us;
    enum mf_status status = verify_run(e, 0, &us, reason);
    return status == MF_STATUS_OK ? verify_run(e, 1, &us, reason) : status;
}

enum mf_status mf_entrant_sample(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX])
{
    struct mf_race_buffers *c = e->buffers;
    c->cursor = (c->cursor + 1) % e->measured.n_rotations;
    /* Skip rotation 0, because checked runs use rotation 0 and its weights may therefore be in the cache. */
    if (c->cursor == 0 && e->measured.n_rotations > 2)
        c->cursor = 1;
    c->run = 0;
    int r = bind(e, c->cursor, false);
    if (r == 0)
        r = mf_measure_run(&e->measured, c->cursor, ret_us, NULL);
    if (r < 0)
        return refuse_errno(e, r, "timed run failed", reason);
    return check_time(e, *ret_us, reason);
}
