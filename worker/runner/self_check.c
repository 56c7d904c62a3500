#include "worker/runner/self_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "worker/runner/device_info.h"
#include "worker/runner/list_devices.h"
#include "worker/runner/runner_wire.h"

#define IDLE_MS      120000 /* maximum silence of a runner outside of a step */
#define STEPS_MAX    256    /* maximum number of candidates that run for one format */
#define FAMILIES_MAX 64
#define FP8          "torch.float8_e4m3fn"
#define FP8_FNUZ     "torch.float8_e4m3fnuz" /* of gfx942 */
#define FP4          "torch.float4_e2m1fn_x2"

/* clang-format off */
static const struct format {
    const char *name, *a, *w, *q_type;
} formats[] = {
    {"bf16",            "torch.bfloat16", "torch.bfloat16", "QuantType.No"},
    {"fp8 per token",   FP8,              FP8,              "QuantType.per_Token"},
    {"fp8 1x128",       FP8,              FP8,              "QuantType.per_1x128"},
    {"int8 per token",  "torch.int8",     "torch.int8",     "QuantType.per_Token"},
    {"MXFP4",           FP4,              FP4,              "QuantType.per_1x32"},
    {"MXFP4 weights",   "torch.bfloat16", FP4,              "QuantType.per_1x32"},
    {"NVFP4",           FP4,              FP4,              "QuantType.per_1x16"},
    {"int4 weights",    "torch.bfloat16", "torch.int4",     "QuantType.per_1x32"},
};
/* clang-format on */

struct family_count {
    char name[MF_FAMILY_NAME_MAX];
    int n, n_ok;
    char step[MF_STEP_NAME_MAX], why[MF_REASON_MAX]; /* first candidate that does not work */
};

struct check {
    struct mf_runner_pool *pool;
    cJSON *steps; /* array: candidates to run, with ids from 1 */
    struct family_count families[FAMILIES_MAX];
    size_t n_families;
    int64_t running, done; /* ids of the candidates that began last and that ended last; 0: none */
    int n_run, n_failed;
};

/* Waits for the next message of the runner, which the caller owns. Returns the event. */
static enum mf_runner_pool_event next(struct check *c, cJSON **ret)
{
    enum mf_runner_pool_event event;
    do
        event = mf_runner_pool_iterate(c->pool, ret, mf_now_ms() + IDLE_MS);
    while (event == MF_RUNNER_POOL_NOTHING || event == MF_RUNNER_POOL_DESCRIBED);
    return event;
}

static enum mf_runner_pool_event wait_ready(struct check *c)
{
    cJSON *none = NULL;
    enum mf_runner_pool_event event;
    do
        event = next(c, &none);
    while (event != MF_RUNNER_POOL_READY && event != MF_RUNNER_POOL_FAILED);
    return event;
}

/* ---- the report ---- */

static void print_host(const char *device)
{
    struct utsname host;
    (void)uname(&host);
    printf("moefarm-worker %s, self-check of %s\n", MF_VERSION, device);
    printf("host          %s %s, %s\n", host.sysname, host.release, host.machine);
}

/* Prints the families of `hello`. Returns the number of families that could not be loaded. */
static int print_families(const cJSON *hello)
{
    const cJSON *item;
    const char *sandbox = "", *name = "", *why = "";
    int n = 0;
    (void)mf_json_text(hello, "sandbox", &sandbox);
    printf("sandbox       %s\n", sandbox);
    cJSON_ArrayForEach (item, mf_json_object(hello, "families"))
        printf("family        %s, revision %s\n", item->string, item->valuestring);
    cJSON_ArrayForEach (item, mf_json_array(hello, "refused_families")) {
        (void)mf_json_text(item, "name", &name);
        (void)mf_json_text(item, "why", &why);
        printf("FAILED        family %s cannot be loaded: %s\n", name, why);
        n++;
    }
    return n;
}

static void print_format(const struct check *c, const char *name)
{
    if (c->n_families == 0)
        printf("%-15s no candidates\n", name);
    for (size_t i = 0; i < c->n_families; i++) {
        const struct family_count *f = &c->families[i];
        printf("%-15s %s: %d of %d candidates work\n", name, f->name, f->n_ok, f->n);
        if (f->n_ok < f->n)
            printf("FAILED          %s: %s\n", f->step, f->why);
    }
}

/* ---- candidates ---- */

static struct family_count *count_of(struct check *c, const char *family)
{
    for (size_t i = 0; i < c->n_families; i++) {
        if (strcmp(c->families[i].name, family) == 0)
            return &c->families[i];
    }
    if (c->n_families == FAMILIES_MAX)
        return NULL;
    struct family_count *f = &c->families[c->n_families++];
    *f = (struct family_count){.n = 0};
    mf_format(f->name, sizeof(f->name), "%s", family);
    return f;
}

static bool is_covered(const cJSON *steps, const char *family, const char *covers)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, steps) {
        const char *f = "", *ops = "";
        (void)mf_json_text(item, "family", &f);
        (void)mf_json_text(item, "covers", &ops);
        if (strcmp(f, family) == 0 && strcmp(ops, covers) == 0)
            return true;
    }
    return false;
}

/* Keeps the first candidate of each family and set of ops. */
static void take_step(struct check *c, cJSON *message)
{
    const char *family = "", *covers = "";
    cJSON *step = cJSON_DetachItemFromObjectCaseSensitive(message, "step");
    (void)mf_json_text(step, "family", &family);
    (void)mf_json_text(step, "covers", &covers);
    int n = cJSON_GetArraySize(c->steps);
    struct family_count *f = count_of(c, family);
    if (!f || n == STEPS_MAX || is_covered(c->steps, family, covers) || !mf_json_add_i64(step, "id", n + 1) ||
        !cJSON_AddItemToArray(c->steps, step)) {
        cJSON_Delete(step);
        return;
    }
    f->n++;
}

static void take_result(struct check *c, int64_t id, const char *status, const char *reason)
{
    const cJSON *step = cJSON_GetArrayItem(c->steps, (int)id - 1);
    const char *family = "", *name = "";
    (void)mf_json_text(step, "family", &family);
    (void)mf_json_text(step, "name", &name);
    struct family_count *f = step ? count_of(c, family) : NULL;
    c->n_run++;
    c->done = MF_MAX(c->done, id);
    if (strcmp(status, mf_status_name(MF_STATUS_OK)) == 0 ||
        strcmp(status, mf_status_name(MF_STATUS_SLOW)) == 0) {
        if (f)
            f->n_ok++;
        return;
    }
    c->n_failed++;
    if (f && !f->why[0]) {
        mf_format(f->step, sizeof(f->step), "%s", name);
        mf_format(f->why, sizeof(f->why), "%s: %s", status, reason);
    }
}

/* ---- requests to the runner ---- */

static int send(struct check *c, cJSON *message)
{
    int r = message ? mf_runner_pool_send(c->pool, message) : -ENOMEM;
    mf_runner_pool_limit(c->pool, IDLE_MS);
    return r;
}

static cJSON *make_message(const char *op, const char *shape)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message(op);
    return m && cJSON_AddStringToObject(m, "shape", shape) ? MF_TAKE(m) : NULL;
}

/* Returns a probe of the candidates that have not run. */
static cJSON *make_probe(const struct check *c, const char *shape)
{
    _cleanup_(cJSON_Deletep) cJSON *m = make_message("unit", shape);
    cJSON *steps = m ? cJSON_AddArrayToObject(m, "steps") : NULL;
    cJSON *item;
    if (!steps || !cJSON_AddStringToObject(m, "kind", "probe") || !cJSON_AddObjectToObject(m, "options"))
        return NULL;
    cJSON_ArrayForEach (item, c->steps) {
        int64_t id = 0;
        (void)mf_json_i64(item, "id", 1, STEPS_MAX, &id);
        if (id > c->done && !cJSON_AddItemReferenceToArray(steps, item))
            return NULL;
    }
    return MF_TAKE(m);
}

/* Handles a message of the runner. Returns true at the end of the request. */
static bool take_message(struct check *c, cJSON *message)
{
    const char *op = mf_channel_op(message), *status = "", *reason = "";
    int64_t id = 0, limit_ms = IDLE_MS;
    (void)mf_json_text(message, "status", &status);
    (void)mf_json_text(message, "reason", &reason);
    if (strcmp(op, "step") == 0) {
        take_step(c, message);
    } else if (strcmp(op, "begin") == 0) {
        (void)mf_json_i64(message, "step", 1, STEPS_MAX, &c->running);
        (void)mf_json_i64(message, "limit_ms", 1, 86400000, &limit_ms);
    } else if (strcmp(op, "result") == 0) {
        (void)mf_json_i64(message, "step", 1, STEPS_MAX, &id);
        take_result(c, id, status, reason);
    } else if (strcmp(op, "error") == 0) {
        printf("FAILED          %s\n", reason);
        c->n_failed++;
    }
    if (strcmp(op, "phase") != 0)
        mf_runner_pool_limit(c->pool, limit_ms);
    return strcmp(op, "enumerated") == 0 || strcmp(op, "end") == 0 || strcmp(op, "error") == 0;
}

/* Handles messages until the end of the request. Returns MF_RUNNER_POOL_MESSAGE then, MF_RUNNER_POOL_READY if
 * the runner has died and another one is ready, or MF_RUNNER_POOL_FAILED. */
static enum mf_runner_pool_event serve(struct check *c)
{
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        enum mf_runner_pool_event event = next(c, &message);
        if (event == MF_RUNNER_POOL_FAILED)
            return event;
        if (event == MF_RUNNER_POOL_MESSAGE && take_message(c, message)) {
            mf_runner_pool_limit(c->pool, 0);
            return event;
        }
        if (event == MF_RUNNER_POOL_DIED) {
            const char *status = mf_runner_pool_hung(c->pool) ? "hang" : "crash";
            take_result(c, MF_MAX(c->running, c->done + 1), status, mf_runner_pool_why(c->pool));
            return wait_ready(c);
        }
    }
}

/* ---- one format ---- */

static void print_shape(const struct format *f, bool fnuz, char shape[MF_SHAPE_TEXT_MAX])
{
    const char *a = fnuz && strcmp(f->a, FP8) == 0 ? FP8_FNUZ : f->a,
               *w = fnuz && strcmp(f->w, FP8) == 0 ? FP8_FNUZ : f->w;
    mf_format(shape, MF_SHAPE_TEXT_MAX, "4,256,128,8,2,ActivationType.Silu,torch.bfloat16,%s,%s,%s,1,0", a, w,
              f->q_type);
}

/* Lists the candidates of the format and runs them. Returns a negative errno if no runner can be started. */
static int check_format(struct check *c, const struct format *f, bool fnuz)
{
    char shape[MF_SHAPE_TEXT_MAX];
    print_shape(f, fnuz, shape);
    _cleanup_(cJSON_Deletep) cJSON *steps = cJSON_CreateArray();
    c->steps = steps;
    c->n_families = 0;
    c->running = c->done = 0;
    _cleanup_(cJSON_Deletep) cJSON *list = make_message("enumerate", shape);
    int r = send(c, list);
    if (r < 0)
        return r;
    enum mf_runner_pool_event event = serve(c);
    /* a request for each death of the runner, and a last one */
    while (event != MF_RUNNER_POOL_FAILED && c->done < cJSON_GetArraySize(steps)) {
        _cleanup_(cJSON_Deletep) cJSON *probe = make_probe(c, shape);
        r = send(c, probe);
        if (r < 0)
            return r;
        event = serve(c);
        if (event == MF_RUNNER_POOL_MESSAGE)
            break;
    }
    print_format(c, f->name);
    return event == MF_RUNNER_POOL_FAILED ? -ENODEV : 0;
}

static int check_device(struct check *c, const char *device)
{
    struct mf_device_info info;
    const char *field;
    if (wait_ready(c) == MF_RUNNER_POOL_FAILED)
        return -ENODEV;
    mf_print_described(device, mf_runner_pool_described(c->pool));
    c->n_failed += print_families(mf_runner_pool_hello(c->pool));
    if (mf_device_info_parse(mf_runner_pool_described(c->pool), &info, &field) < 0)
        return -EPROTO;
    int r = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(formats) && r == 0; i++)
        r = check_format(c, &formats[i], strcmp(info.class.gfx, "gfx942") == 0);
    return r;
}

int mf_self_check(const struct mf_runner_pool_options *o, const char *device)
{
    struct check c = {.n_run = 0};
    print_host(device);
    int r = mf_runner_pool_new(o, &c.pool);
    if (r == 0)
        r = check_device(&c, device);
    if (r < 0)
        printf("FAILED        %s: %s\n", device, r == -ENODEV ? mf_runner_pool_why(c.pool) : strerror(-r));
    mf_runner_pool_free(c.pool);
    bool ok = r == 0 && c.n_failed == 0 && c.n_run > 0;
    printf("result        %s: %d candidates ran, %d failed\n", ok ? "ok" : "FAILED", c.n_run, c.n_failed);
    return ok ? 0 : 1;
}
