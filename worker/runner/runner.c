#include "worker/runner/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/family_name.h"
#include "kernels/aiter/aiter_lists.h"
#include "kernels/core/family.h"
#include "kernels/families/family_asm.h"
#include "kernels/gpu/host/hip_open.h"
#include "measure/session/precompile.h"
#include "measure/session/session.h"
#include "worker/agent/memfd_store.h"
#include "worker/runner/device_info.h"
#include "worker/runner/offer_message.h"
#include "worker/runner/own_steps.h"
#include "worker/runner/python_family.h"
#include "worker/runner/runner_plugin.h"
#include "worker/runner/runner_sink.h"
#include "worker/runner/unit_request.h"
#include "worker/sandbox/sandbox.h"
#if MF_SIM
#    include "worker/runner/sim_unit.h"
#endif

/* gives about a tenth of the CPU share of nice 0; the priority is not lower, because a runner may need the
 * code soon */
#define AHEAD_NICE 10
/* maximum number of concurrent compilers per runner; each needs 100 MB or more */
#define COMPILERS_MAX 16
/* after this time, try a shape that was too large again, because memory may have been freed */
#define TOO_LARGE_RETRY_MS 60000

#define READABLE_MAX (MF_RUNNER_FAMILY_SO_MAX + MF_RUNNER_PYTHON_MAX + 4)
#define EXTRA_MAX    (MF_RUNNER_PYTHON_MAX + MF_PLUGINS_MAX)

/* Python families that this runner offers, and those that could not be loaded. */
struct python_families {
    struct mf_python_family *families[MF_RUNNER_PYTHON_MAX];
    size_t n;
    struct mf_refused_family refused[MF_RUNNER_PYTHON_MAX];
    size_t n_refused;
};

struct mf_runner {
    const struct mf_runner_options *options;
    struct mf_channel channel;
    struct mf_runner_memfd_store memfd_store;
    struct mf_runner_sink sink;
    struct mf_device *device; /* NULL before `describe` */
    struct mf_sandbox limits;
    const char *readable[READABLE_MAX]; /* files of `limits` */
    char sandbox[MF_SANDBOX_TEXT_MAX];
    struct mf_session *session; /* session of the last unit, reused by units with the same data */
    struct mf_runner_plugins plugins;
    struct python_families python;
    const struct mf_family *extra_families[EXTRA_MAX];
    struct mf_family_set extra;
    cJSON *families; /* {name: revision} of the families that it offers */
    struct mf_own_steps own_steps;
    struct {
        int64_t retry_at_ms; /* 0: no shape was too large */
        struct mf_shape shape;
        char why[MF_REASON_MAX];
    } too_large; /* the last shape that did not fit into memory; units of this shape fail until retry_at_ms */
};

static int send_error(struct mf_runner *r, enum mf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int send_error(struct mf_runner *r, enum mf_status status, const char *format, ...)
{
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("error");
    if (!m || !cJSON_AddStringToObject(m, "status", mf_status_name(status)) ||
        !cJSON_AddStringToObject(m, "reason", reason))
        return -ENOMEM;
    return mf_channel_send_wait(&r->channel, m, -1);
}

static bool add_text_item(cJSON *array, const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    if (cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

static bool is_listed(const char *list, const char *name)
{
    return mf_family_is_listed(list && *list ? list : NULL, name);
}

/* Returns the Python family behind a family, or NULL. */
static const struct mf_python_family *find_python(const struct mf_runner *r, const struct mf_family *f)
{
    for (size_t i = 0; i < r->python.n; i++) {
        if (mf_python_family(r->python.families[i]) == f)
            return r->python.families[i];
    }
    return NULL;
}

/* Returns the hash of the family's files outside the build; 0 if all its kernels are part of the build. */
static uint64_t external_hash(const struct mf_runner *r, const struct mf_family *f)
{
    const struct mf_python_family *python = find_python(r, f);
    for (size_t i = 0; i < r->plugins.loaded.n; i++) {
        if (r->plugins.loaded.families[i] == f)
            return r->plugins.loaded.hashes[i];
    }
    if (python)
        return mf_python_family_hash(python);
    if (strcmp(f->name, "asm") == 0)
        return mf_asm_hash(getenv(MF_ASM_FOLDER_ENV));
    return strcmp(f->name, "aiter") == 0 ? mf_aiter_tree_hash(getenv(MF_AITER_FOLDER_ENV)) : 0;
}

/* Adds the family and its revision to an object. The revision contains Triton's version, because files of
 * vLLM and SGLang state it. Returns false if out of memory. */
static bool add_family(const struct mf_runner *r, const struct mf_family *f, cJSON *families)
{
    char revision[MF_REVISION_MAX];
    const struct mf_python_family *python = find_python(r, f);
    mf_kernel_revision_with(external_hash(r, f), revision);
    size_t n = strlen(revision);
    if (python && *mf_python_family_triton(python))
        mf_format(revision + n, sizeof(revision) - n, "-triton%s", mf_python_family_triton(python));
    return cJSON_AddStringToObject(families, f->name, revision) != NULL;
}

/* Adds the families for the device's kind that the list selects, with their revisions. "" selects all
 * families except those available only on request. The kind is taken from the device's name, so the device
 * need not be open. Returns false if out of memory. */
static bool add_families(const struct mf_runner *r, const char *list, cJSON *families)
{
    size_t n, kind = strcspn(r->options->device, ":");
    const struct mf_family *const *known = mf_families(&n);
    bool ok = families != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        const char *of = known[i]->device_kind;
        if (strlen(of) == kind && strncmp(of, r->options->device, kind) == 0 &&
            is_listed(list, known[i]->name) && !(mf_family_on_request(known[i]) && (!list || !*list)))
            ok = add_family(r, known[i], families);
    }
    for (size_t i = 0; ok && i < r->extra.n; i++) {
        if (is_listed(list, r->extra.families[i]->name))
            ok = add_family(r, r->extra.families[i], families);
    }
    return ok;
}

/* Returns the first name in --families that no family has, for any kind of device, or NULL. Also returns NULL
 * with shared objects, or if a Python family failed to load: the object or module may contain that family.
 * `hello` then reports the failure. */
static const char *find_unknown_family(const struct mf_runner *r, char word[MF_FAMILY_NAME_MAX])
{
    if (r->options->n_family_so > 0 || r->python.n_refused > 0)
        return NULL;
    for (const char *at = r->options->families; at && *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        mf_format(word, MF_FAMILY_NAME_MAX, "%.*s", (int)len, at);
        bool known = len == 0 || (len < MF_FAMILY_NAME_MAX && mf_family_find(NULL, word));
        for (size_t i = 0; !known && i < r->extra.n; i++)
            known = strcmp(r->extra.families[i]->name, word) == 0;
        if (!known)
            return word;
        at += len;
    }
    return NULL;
}

/* True if this runner can compile kernels ahead. */
static bool compiles(const struct mf_runner *r)
{
    const struct mf_device_info unknown = {0};
    struct mf_compiler compiler;
    return mf_device_hip_compiler(r->options->device, &unknown, &compiler) == 0;
}

static bool add_refusal(cJSON *list, const struct mf_refused_family *family)
{
    cJSON *item = cJSON_CreateObject();
    if (cJSON_AddStringToObject(item, "name", family->name) &&
        cJSON_AddStringToObject(item, "why", family->why) && cJSON_AddItemToArray(list, item))
        return true;
    cJSON_Delete(item);
    return false;
}

/* Adds the families that could not be loaded, with the reasons. Returns false if out of memory. */
static bool add_refused(const struct mf_runner *r, cJSON *hello)
{
    cJSON *list = cJSON_AddArrayToObject(hello, "refused_families");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < r->plugins.n_refused; i++)
        ok = add_refusal(list, &r->plugins.refused[i]);
    for (size_t i = 0; ok && i < r->python.n_refused; i++)
        ok = add_refusal(list, &r->python.refused[i]);
    return ok;
}

static int send_hello(struct mf_runner *r)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("hello");
    r->families = cJSON_CreateObject();
    if (!m || !add_families(r, r->options->families, r->families))
        return -ENOMEM;
    bool ok = mf_json_add_i64(m, "protocol", 1) && cJSON_AddStringToObject(m, "name", "moefarm-worker") &&
              cJSON_AddStringToObject(m, "revision", mf_kernel_revision()) &&
              cJSON_AddItemReferenceToObject(m, "families", r->families) &&
              cJSON_AddStringToObject(m, "sandbox", r->sandbox) && add_refused(r, m);
    cJSON *can = ok ? cJSON_AddArrayToObject(m, "can") : NULL;
    if (!can || !add_text_item(can, "unit") || (compiles(r) && !add_text_item(can, "ahead")))
        return -ENOMEM;
    return mf_channel_send_wait(&r->channel, m, -1);
}

static int take_have(struct mf_runner *r, const cJSON *message)
{
    int fd = mf_channel_take_fd(&r->channel);
    const char *key;
    int64_t bytes;
    if (fd < 0)
        return -EPROTO;
    if (mf_json_text(message, "key", &key) < 0 || mf_json_i64(message, "bytes", 1, INT64_MAX, &bytes) < 0) {
        (void)close(fd);
        return -EPROTO;
    }
    (void)mf_kept_store_add(&r->memfd_store.local.store, key, fd, (uint64_t)bytes);
    return 0;
}

static int send_unknown_family(struct mf_runner *r, const char *word)
{
    _cleanup_(cJSON_Deletep) cJSON *all = cJSON_CreateObject();
    char names[MF_REASON_MAX] = "";
    const cJSON *family;
    (void)add_families(r, "", all);
    cJSON_ArrayForEach (family, all) {
        size_t len = strlen(names);
        mf_format(names + len, sizeof(names) - len, "%s%s", len ? ", " : "", family->string);
    }
    return send_error(r, MF_STATUS_UNSUPPORTED, "--families: unknown family %s; this device has %s", word,
                      names);
}

/* Starts the enumerating processes of the Python families that this runner offers. */
static void warm_up(const struct mf_runner *r)
{
    for (size_t i = 0; i < r->python.n; i++) {
        if (cJSON_GetObjectItemCaseSensitive(r->families, mf_python_family(r->python.families[i])->name))
            mf_python_family_warm_up(r->python.families[i]);
    }
}

static int describe(struct mf_runner *r, const cJSON *message)
{
    struct mf_device_info known;
    const cJSON *json = mf_json_object(message, "known");
    const char *field;
    if (json && mf_device_info_parse(json, &known, &field) < 0)
        return send_error(r, MF_STATUS_UNSUPPORTED, "describe: known.%s missing or invalid", field);
    char word[MF_FAMILY_NAME_MAX];
    if (find_unknown_family(r, word))
        return send_unknown_family(r, word);
    if (!r->device) {
        const struct mf_device_open_options how = {.known = json ? &known : NULL};
        char why[MF_REASON_MAX] = "";
        if (mf_device_open_with(r->options->device, &how, why, sizeof(why), &r->device) < 0)
            return send_error(r, MF_STATUS_UNSUPPORTED, "%s", why);
        warm_up(r);
    }
    return mf_runner_sink_describe(&r->sink, &r->device->info);
}

struct offer {
    struct mf_offer offer;
    struct mf_channel *channel;
};

static int offer_step(struct mf_offer *o, const struct mf_step *step)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_step_message(step);
    int r = m ? mf_channel_send_many(((struct offer *)o)->channel, m) : -ENOMEM;
    mf_fault_at(MF_FAULT_STEP_OFFERED);
    return r;
}

static int offer_reject(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_reject_message(family, kernel, rule, format, args);
    va_end(args);
    return m ? mf_channel_send_many(((struct offer *)o)->channel, m) : -ENOMEM;
}

/* Enumerates a family of this runner. A family of a shared object enumerates in a child process. */
static int enumerate_family(void *context, const struct mf_family *f, const struct mf_shape *shape,
                            struct mf_offer *offer)
{
    const struct mf_runner *r = context;
    for (size_t i = 0; i < r->plugins.loaded.n; i++) {
        if (r->plugins.loaded.families[i] == f)
            return mf_runner_plugin_enumerate(f, &r->device->info, shape, offer);
    }
    return mf_family_enumerate(f, &r->device->info, shape, offer);
}

/* Finds a family of this runner by an item of {name: revision}. Returns NULL if the runner does not offer the
 * family or offers another revision. */
static const struct mf_family *find_offered(const struct mf_runner *r, const cJSON *item)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(r->families, item->string);
    return cJSON_Compare(own, item, true) ? mf_family_set_find(&r->extra, r->device->ops->kind, item->string)
                                          : NULL;
}

static int enumerate(struct mf_runner *r, const cJSON *message)
{
    struct mf_shape shape;
    if (!r->device || mf_unit_shape_parse(message, &shape) < 0)
        return send_error(r, MF_STATUS_UNSUPPORTED, "enumerate: %s",
                          r->device ? "shape: expected the twelve values of a row"
                                    : "expected describe first");
    struct offer o = {.offer = {.step = offer_step, .reject = offer_reject}, .channel = &r->channel};
    const cJSON *families = mf_json_object(message, "families"), *item;
    if (!families)
        families = r->families;
    cJSON_ArrayForEach (item, families) {
        const struct mf_family *f = find_offered(r, item);
        if (!f)
            return send_error(r, MF_STATUS_UNSUPPORTED,
                              "enumerate: this worker does not offer family %s at revision %s", item->string,
                              cJSON_IsString(item) ? item->valuestring : "?");
        int x = enumerate_family(r, f, &shape, &o.offer);
        if (x < 0)
            return x;
    }
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("enumerated");
    return m ? mf_channel_send_wait(&r->channel, m, -1) : -ENOMEM;
}

static double best_us_of(void *context, mf_ops covers)
{
    const cJSON *best = context, *item;
    cJSON_ArrayForEach (item, best) {
        mf_ops ops;
        if (cJSON_IsNumber(item) && mf_ops_parse(item->string, &ops) == 0 && ops == covers)
            return item->valuedouble;
    }
    return 0;
}

static int make_session(struct mf_runner *r, const struct mf_unit_request *q, char *why, size_t why_cap)
{
    if (r->session && mf_session_serves(r->session, &q->shape, &q->options))
        return 0;
    if (mf_now_ms() < r->too_large.retry_at_ms && mf_shape_equal(&r->too_large.shape, &q->shape)) {
        (void)mf_copy(why, why_cap, r->too_large.why);
        return -ENOMEM;
    }
    /* Free the old session first, because both sessions may not fit into memory. */
    r->session = mf_session_free(r->session);
    struct mf_session_args args = {.device = r->device,
                                   .shape = q->shape,
                                   .options = &q->options,
                                   .memfd_store = &r->memfd_store.local.memfd_store,
                                   .extra = &r->extra,
                                   .sink = &r->sink.sink};
    int x = mf_session_new(&args, why, why_cap, &r->session);
    if (x == -ENOMEM) {
        r->too_large.retry_at_ms = mf_now_ms() + TOO_LARGE_RETRY_MS;
        r->too_large.shape = q->shape;
        (void)mf_copy(r->too_large.why, sizeof(r->too_large.why), why);
    }
    return x;
}

static int run_request(struct mf_runner *r, const struct mf_unit_request *q, char *why, size_t why_cap)
{
    struct mf_sink *sink = &r->sink.sink;
#if MF_SIM
    if (r->device->info.simulated)
        return q->entries ? mf_sim_race(r->device, &q->shape, &q->options, q->entries, q->n, &q->plan, sink)
                          : mf_sim_probe(r->device, &q->shape, &q->options, q->steps, q->n, sink);
#endif
    int x = make_session(r, q, why, why_cap);
    if (x < 0)
        return x;
    return q->entries ? mf_session_race(r->session, q->entries, q->n, &q->plan, sink)
                      : mf_session_probe(r->session, q->steps, q->n, q->best ? best_us_of : NULL,
                                         (void *)q->best, sink);
}

/* ---- descriptions of steps ---- */

/* Replaces a step's description by this runner's own. Returns 1 with the reason if it has no such step. */
static int replace_step(struct mf_runner *r, const struct mf_shape *shape, struct mf_step *step,
                        char why[MF_REASON_MAX])
{
    const struct mf_family *f = mf_family_set_find(&r->extra, r->device->ops->kind, step->family);
    if (!f && r->device->info.simulated) /* its steps have AITER's generators as families */
        f = mf_family_find("sim", "aiter");
    if (f)
        return mf_own_steps_replace(&r->own_steps, shape, f, step, why);
    mf_format(why, MF_REASON_MAX, "this runner has no family %s", step->family);
    return 1;
}

static int refuse(struct mf_runner *r, const struct mf_unit_request *q, int64_t id, const char *why)
{
    struct mf_sink *sink = &r->sink.sink;
    struct mf_unit_result result = mf_unit_result_unmeasured(id, q->entries != NULL);
    result.status = MF_STATUS_UNSUPPORTED;
    result.differs = true;
    (void)mf_copy(result.reason, sizeof(result.reason), why);
    int x = sink->begin(sink, id, result.is_pipeline, q->options.time_cap_ms);
    return x < 0 ? x : sink->result(sink, &result);
}

static int replace_entry(struct mf_runner *r, const struct mf_shape *shape, const struct mf_race_entry *entry,
                         char why[MF_REASON_MAX])
{
    struct mf_step *steps = (struct mf_step *)entry->steps;
    char reason[MF_REASON_MAX];
    int x = 0;
    for (size_t i = 0; i < entry->n_steps && x == 0; i++) {
        x = replace_step(r, shape, &steps[i], reason);
        if (x > 0)
            mf_format(why, MF_REASON_MAX, "%s: %s", steps[i].name, reason);
    }
    return x;
}

/* Moves item `from` to `to`. The item at `to` is kept at `from`, to be freed with the request. */
static void keep(struct mf_unit_request *q, size_t to, size_t from)
{
    if (q->entries) {
        const struct mf_race_entry entry = q->entries[to];
        q->entries[to] = q->entries[from];
        q->entries[from] = entry;
    } else {
        q->steps[to] = q->steps[from];
    }
}

/* Replaces the descriptions of all steps by this runner's own. Reports the steps and pipelines for which this
 * is not possible and removes them from the request. */
static int replace_steps(struct mf_runner *r, struct mf_unit_request *q)
{
    size_t n = 0;
    int x = 0;
    for (size_t i = 0; i < q->n && x >= 0; i++) {
        char why[MF_REASON_MAX] = "";
        x = q->entries ? replace_entry(r, &q->shape, &q->entries[i], why)
                       : replace_step(r, &q->shape, &q->steps[i].step, why);
        if (x > 0)
            x = refuse(r, q, q->entries ? q->entries[i].id : q->steps[i].id, why);
        else if (x == 0)
            keep(q, n++, i);
    }
    q->n_dropped = q->n - n;
    q->n = n;
    return x;
}

static int run_unit(struct mf_runner *r, const cJSON *unit)
{
    const char *kind = "", *field = "kind";
    (void)mf_json_text(unit, "kind", &kind);
    if (!r->device)
        return send_error(r, MF_STATUS_UNSUPPORTED, "unit: expected describe first");
    _cleanup_(mf_unit_request_release) struct mf_unit_request q = {0};
    if ((strcmp(kind, "probe") != 0 && strcmp(kind, "race") != 0) ||
        mf_unit_request_parse(unit, kind, &q, &field) < 0)
        return send_error(r, MF_STATUS_UNSUPPORTED, "unit: %s missing or invalid", field);
    char why[MF_REASON_MAX] = "";
    int x = replace_steps(r, &q);
    if (x >= 0 && (q.n > 0 || q.n_dropped == 0))
        x = run_request(r, &q, why, sizeof(why));
    if (x == -EPIPE || r->channel.eof)
        return x;
    if (x < 0)
        return send_error(r, x == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED, "%s",
                          why[0] ? why : strerror(-x));
    return mf_runner_sink_end(&r->sink);
}

/* Compiles the code of a shape. Runs at low priority, so that it does not disturb measurements. Opens no
 * device. */
static int compile_ahead(struct mf_runner *r, const cJSON *message)
{
    const char *field, *only = r->options->families && r->options->families[0] ? r->options->families : NULL;
    const cJSON *known = mf_json_object(message, "known");
    struct mf_device_info info;
    struct mf_compiler compiler;
    struct mf_shape shape;
    size_t n_steps;
    if (!known || mf_device_info_parse(known, &info, &field) < 0 ||
        mf_unit_shape_parse(message, &shape) < 0 ||
        mf_device_hip_compiler(r->options->device, &info, &compiler) < 0)
        return send_error(r, MF_STATUS_UNSUPPORTED,
                          "ahead: known or shape is missing or invalid, or the device is not a GPU");
    _cleanup_(mf_ahead_release) struct mf_ahead ahead = {.device = &info, .kind = "hip", .shape = &shape};
    int x = mf_ahead_add_shape(&ahead, only, &n_steps);
    (void)setpriority(PRIO_PROCESS, 0, AHEAD_NICE);
    int processes = MF_MIN(mf_cpus_allowed(), COMPILERS_MAX);
    (void)mf_code_make(&compiler, ahead.codes, ahead.n, processes, NULL, NULL);
    return x;
}

static int take_drop(struct mf_runner *r, const cJSON *message)
{
    const char *key;
    if (mf_json_text(message, "key", &key) == 0)
        mf_kept_store_drop(&r->memfd_store.local.store, key);
    return 0;
}

/* clang-format off */
static const struct {
    const char *op;
    int (*handle)(struct mf_runner *r, const cJSON *message);
} handlers[] = {
    {"have",      take_have},
    {"drop",      take_drop},
    {"describe",  describe},
    {"enumerate", enumerate},
    {"unit",      run_unit},
    {"ahead",     compile_ahead},
};
/* clang-format on */

static int handle(struct mf_runner *r, const cJSON *message)
{
    const char *op = mf_channel_op(message);
    for (size_t i = 0; i < MF_ARRAY_LEN(handlers); i++) {
        if (strcmp(op, handlers[i].op) == 0)
            return handlers[i].handle(r, message);
    }
    return send_error(r, MF_STATUS_UNSUPPORTED, "unknown message '%s'", op);
}

static int dying_fd = -1;

/* Signal handler: sends `dying` to the worker at once, because the kernel frees the memory of a process
 * before others can see its exit. Then raises the signal again; SA_RESETHAND has restored its default action.
 */
static void send_dying(int signal_number)
{
    char line[] = "\n{\"op\":\"dying\",\"signal\":00}\n";
    char *digits = line + sizeof(line) - 5;
    digits[0] = (char)(signal_number >= 10 ? '0' + signal_number / 10 : ' ');
    digits[1] = (char)('0' + signal_number % 10);
    (void)send(dying_fd, line, sizeof(line) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)raise(signal_number);
}

/* Installs the handler on an alternate stack, so that it works after a stack overflow. */
static void install_signal_handlers(int fd)
{
    static char stack[16384];
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = send_dying, .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND)};
    dying_fd = fd;
#ifndef __SANITIZE_ADDRESS__ /* AddressSanitizer prints more in its own handler */
    (void)sigaltstack(&other, NULL);
    for (size_t i = 0; i < MF_ARRAY_LEN(signals); i++)
        (void)sigaction(signals[i], &action, NULL);
#else
    (void)other;
    (void)action;
    (void)signals;
#endif
}

/* Appends plugins to `extra`, except those whose names Python families have. */
static void load_plugins(struct mf_runner *r)
{
    char kind[16];
    mf_format(kind, sizeof(kind), "%.*s", (int)strcspn(r->options->device, ":"), r->options->device);
    mf_runner_plugins_load(&r->plugins, r->options->family_so, r->options->n_family_so, kind);
    for (size_t i = 0; i < r->plugins.loaded.n; i++) {
        const struct mf_family *f = r->plugins.loaded.families[i];
        if (mf_family_set_find(&r->extra, kind, f->name))
            mf_runner_refuse_family(r, f->name, "a Python family of this runner has the same name");
        else
            r->extra_families[r->extra.n++] = f;
    }
}

/* Limits this process to itself. */
static int limit_pids(const struct mf_runner *r)
{
    int x = mf_sandbox_pids(&r->limits);
    if (x < 0)
        (void)fprintf(stderr, "runner: cannot install the seccomp filter: %s\n", strerror(-x));
    return x;
}

static int serve(struct mf_runner *r)
{
    int x = send_hello(r);
    while (x >= 0) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        x = mf_channel_wait(&r->channel, -1, &message);
        if (x == 0 || (x > 0 && strcmp(mf_channel_op(message), "stop") == 0))
            return 0;
        if (x > 0)
            x = handle(r, message);
    }
    /* -EPIPE means that the worker has exited, which is not an error. */
    return x == -EPIPE ? 0 : x;
}

static void init_limits(struct mf_runner *r)
{
    const struct mf_runner_options *o = r->options;
    size_t n = 0;
    for (int i = 0; i < o->n_family_so; i++)
        r->readable[n++] = o->family_so[i];
    for (size_t i = 0; i < o->python.n_readable && n < READABLE_MAX - 2; i++)
        r->readable[n++] = o->python.readable[i];
    if (o->asm_folder && o->asm_folder[0])
        r->readable[n++] = o->asm_folder;
    if (o->aiter_folder && o->aiter_folder[0])
        r->readable[n++] = o->aiter_folder;
    r->limits = (struct mf_sandbox){.off = o->no_sandbox,
                                    .pid_namespace = o->pid_namespace,
                                    .device = o->device,
                                    .scratch = o->scratch ? o->scratch : "",
                                    .files = r->readable,
                                    .n_files = n,
                                    .prefixes = o->python.prefixes,
                                    .n_prefixes = o->python.n_prefixes};
}

static int enter_sandbox(struct mf_runner *r)
{
    char why[256] = "";
    int x = mf_sandbox_enter(&r->limits, r->sandbox, why, sizeof(why));
    if (x < 0)
        (void)fprintf(stderr, "runner: %s\n", why);
    return x;
}

/* Sets the environment variables that kernels read. */
static void set_environment(const struct mf_runner_options *o)
{
    const struct {
        const char *name, *value;
    } variables[] = {
        {MF_CODE_FALLBACK_ENV, o->scratch},
        {MF_ASM_FOLDER_ENV, o->asm_folder},
        {MF_AITER_FOLDER_ENV, o->aiter_folder},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(variables); i++) {
        if (variables[i].value && variables[i].value[0])
            (void)setenv(variables[i].name, variables[i].value, 1);
    }
}

int mf_runner_new(const struct mf_runner_options *o, struct mf_runner **ret)
{
    const char *text = getenv(MF_RUNNER_FD_ENV);
    int64_t fd;
    if (!text || mf_parse_i64(text, 0, 1 << 20, &fd) < 0) {
        (void)fprintf(stderr, "runner: %s is not set; only moefarm-worker starts runners\n",
                      MF_RUNNER_FD_ENV);
        return -EINVAL;
    }
    struct mf_runner *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    set_environment(o);
    r->options = o;
    r->extra.families = r->extra_families;
    r->own_steps = (struct mf_own_steps){.enumerate = enumerate_family, .context = r};
    mf_channel_init(&r->channel, (int)fd);
    mf_runner_memfd_store_init(&r->memfd_store, &r->channel, o->keep_bytes);
    mf_runner_sink_init(&r->sink, &r->channel);
    init_limits(r);
    int x = enter_sandbox(r);
    if (x == 0)
        x = limit_pids(r);
    if (x < 0) {
        mf_runner_free(r);
        return x;
    }
    if (o->memory_bytes > 0) {
        struct rlimit limit = {.rlim_cur = o->memory_bytes, .rlim_max = o->memory_bytes};
        (void)setrlimit(RLIMIT_AS, &limit);
    }
    *ret = r;
    return 0;
}

int mf_runner_add_python(struct mf_runner *r, struct mf_python_family *f, char *why, size_t why_cap)
{
    const struct mf_family *family = mf_python_family(f);
    /* devices of another kind may have a family of the same name */
    if (mf_family_set_find(&r->extra, family->device_kind, family->name)) {
        mf_format(why, why_cap, "this runner already has a family %s", family->name);
        return -EEXIST;
    }
    r->python.families[r->python.n++] = f;
    r->extra_families[r->extra.n++] = family;
    return 0;
}

void mf_runner_refuse_family(struct mf_runner *r, const char *name, const char *why)
{
    if (r->python.n_refused == MF_RUNNER_PYTHON_MAX)
        return;
    struct mf_refused_family *refused = &r->python.refused[r->python.n_refused++];
    mf_format(refused->name, sizeof(refused->name), "%s",
              mf_is_name(name, MF_FAMILY_NAME_MAX - 1) ? name : "python");
    mf_format(refused->why, sizeof(refused->why), "%s", why);
}

int mf_runner_run(struct mf_runner *r)
{
    install_signal_handlers(r->channel.fd);
    load_plugins(r);
    int x = serve(r);
    if (x < 0)
        (void)fprintf(stderr, "runner: %s\n", strerror(-x));
    return x < 0 ? 1 : 0;
}

struct mf_runner *mf_runner_free(struct mf_runner *r)
{
    if (!r)
        return NULL;
    mf_session_free(r->session);
    mf_own_steps_release(&r->own_steps);
    cJSON_Delete(r->families);
    mf_device_close(r->device);
    mf_runner_plugins_release(&r->plugins);
    mf_runner_memfd_store_release(&r->memfd_store);
    mf_channel_release(&r->channel);
    free(r);
    return NULL;
}

int mf_runner_main(const struct mf_runner_options *o)
{
    struct mf_runner *r = NULL;
    int x = mf_runner_new(o, &r);
    if (x < 0)
        return x == -EINVAL ? 2 : 1;
    int code = mf_runner_run(r);
    mf_runner_free(r);
    return code;
}
