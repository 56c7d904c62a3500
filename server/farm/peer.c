/* Messages of workers and the replies to them (docs/protocol.md, section 1). A malformed message is refused
 * with the reason and counted; it changes nothing. */
#include "server/farm/device_claim.h"
#include "server/farm/farm_private.h"
#include "server/farm/promote.h"
#include "server/farm/trust.h"

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/net/wire_bounds.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ID_MAX (INT64_C(1) << 53)
/* maximum log lines per period, about refused messages, and about workers that connect and disconnect */
#define LOG_REFUSED       10
#define LOG_LINKS         100
#define DEVICE_TEXT_MAX   16384
#define EVENT_INTERVAL_MS 500

/* Logs refusals that a correct worker never causes. The other codes are part of a normal restart or are
 * logged by the worker. */
static void log_refusal(struct mf_farm *f, const struct mf_peer *peer, const char *code, const char *reason)
{
    const struct mf_slot *slot = mf_slots_by_peer(&f->slots, peer);
    if (strcmp(code, "malformed") != 0 && strcmp(code, "too_large") != 0)
        return;
    if (mf_log_limit(&f->log_limits.refused, LOG_REFUSED, f->now_ms))
        log_warn("refused a message of %s%s: %s", slot ? "worker " : "an unknown worker",
                 slot ? slot->name : "", reason);
}

int mf_peer_refuse(struct mf_farm *f, const struct mf_peer *peer, const char *code, int64_t sequence,
                   const char *format, ...)
{
    char reason[400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    f->stats.refused++;
    log_refusal(f, peer, code, reason);
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "code", code);
    cJSON_AddStringToObject(json, "reason", reason);
    if (sequence > 0)
        mf_json_add_i64(json, "sequence", sequence);
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    return text ? mf_hub_post(f->hub, peer, MF_MESSAGE_REFUSE, text) : -ENOMEM;
}

/* ---- HELLO ---- */

struct hello {
    const char *worker, *instance, *host, *version, *class_text, *model, *revision, *sandbox;
    int64_t pid;
    bool simulated, compiles;
    struct mf_device_class class;
    struct mf_ceilings ceilings;
    const cJSON *device, *families, *refused_families, *running;
};

/* True if the families are an object of at most MF_SLOT_FAMILIES_MAX names and revisions. */
static bool are_families(const cJSON *families)
{
    const cJSON *family;
    if (!families || cJSON_GetArraySize(families) > MF_SLOT_FAMILIES_MAX)
        return false;
    cJSON_ArrayForEach (family, families) {
        if (!mf_is_name(family->string, MF_FAMILY_NAME_MAX - 1) || !cJSON_IsString(family) ||
            !mf_is_name(family->valuestring, MF_REVISION_TEXT_MAX - 1))
            return false;
    }
    return true;
}

/* True if the refused families are an array of at most MF_SLOT_FAMILIES_MAX names and reasons. NULL: none. */
static bool are_refused_families(const cJSON *refused)
{
    const cJSON *item;
    const char *name, *why;
    if (refused && (!cJSON_IsArray(refused) || cJSON_GetArraySize(refused) > MF_SLOT_FAMILIES_MAX))
        return false;
    cJSON_ArrayForEach (item, refused) {
        if (mf_json_text(item, "name", &name) < 0 || !mf_is_name(name, MF_FAMILY_NAME_MAX - 1) ||
            mf_json_text(item, "why", &why) < 0 || strlen(why) >= MF_REASON_MAX)
            return false;
    }
    return true;
}

/* Returns NULL if the HELLO is valid, otherwise the reason why it is malformed. */
static const char *read_hello(const cJSON *json, struct hello *h)
{
    *h = (struct hello){.host = "", .version = "", .sandbox = ""};
    if (mf_json_text(json, "worker", &h->worker) < 0 || !mf_is_name(h->worker, MF_WORKER_NAME_MAX - 1))
        return "worker: expected a name of 1 to 63 letters, digits, '.', '_' and '-'";
    if (mf_json_text(json, "instance", &h->instance) < 0 || !mf_is_name(h->instance, MF_WORKER_NAME_MAX - 1))
        return "instance: expected a name of 1 to 63 letters, digits, '.', '_' and '-'";
    if (mf_json_text(json, "class", &h->class_text) < 0 ||
        mf_device_class_parse(h->class_text, &h->class) < 0)
        return "class: expected gfx/cu_num, as in gfx942/304";
    if (mf_json_text(json, "model", &h->model) < 0 || !*h->model || strlen(h->model) > 200)
        return "model: expected a text of 1 to 200 bytes";
    if (mf_json_text(json, "revision", &h->revision) < 0 ||
        !mf_is_name(h->revision, MF_REVISION_TEXT_MAX - 1))
        return "revision: expected a name of 1 to 79 letters, digits, '.', '_' and '-'";
    if (mf_json_text(json, "host", &h->host) == -EINVAL || strlen(h->host) > 255)
        return "host: expected a text of at most 255 bytes";
    if (mf_json_text(json, "version", &h->version) == -EINVAL || strlen(h->version) > 64)
        return "version: expected a text of at most 64 bytes";
    if (mf_json_text(json, "sandbox", &h->sandbox) == -EINVAL || strlen(h->sandbox) > 200)
        return "sandbox: expected a text of at most 200 bytes";
    if (mf_json_i64(json, "pid", 0, ID_MAX, &h->pid) == -EINVAL)
        return "pid: expected an integer from 0";
    if (mf_json_bool(json, "simulated", &h->simulated) == -EINVAL)
        return "simulated: expected true or false";
    if (mf_json_bool(json, "compiles", &h->compiles) == -EINVAL)
        return "compiles: expected true or false";
    h->device = mf_json_object(json, "device");
    h->families = mf_json_object(json, "families");
    h->refused_families = cJSON_GetObjectItemCaseSensitive(json, "refused_families");
    h->running = mf_json_array(json, "running");
    if (!are_families(h->families))
        return "families: expected an object of at most 64 family names, each with its revision, a name of 1 "
               "to 79 letters, digits, '.', '_' and '-'";
    if (!are_refused_families(h->refused_families))
        return "refused_families: expected an array of at most 64 objects, each with a family name as name "
               "and a text of at most 319 bytes as why";
    if (!h->device || cJSON_GetArraySize(h->running) > 64)
        return "device and running: expected an object and an array of at most 64";
    return NULL;
}

/* A ceiling that was measured on a busy machine is too low. So a new measurement can only raise the slot's
 * ceilings. Returns 1 and the reason if the device is refused. */
static int raise_ceilings(struct mf_farm *f, struct mf_slot *slot, const cJSON *device,
                          char why[MF_REASON_MAX])
{
    struct mf_ceilings now;
    if (mf_device_claim_read(device, &slot->class, slot->simulated, &now, why) < 0)
        return 1;
    slot->ceilings.peak_gflops = fmax(slot->ceilings.peak_gflops, now.peak_gflops);
    slot->ceilings.mem_read_gbs = fmax(slot->ceilings.mem_read_gbs, now.mem_read_gbs);
    for (int i = 0; i < MF_DTYPE_N_; i++)
        slot->ceilings.dtype_gflops[i] = fmax(slot->ceilings.dtype_gflops[i], now.dtype_gflops[i]);
    _cleanup_(mf_freep) char *body = mf_json_print(device);
    if (!body)
        return -ENOMEM;
    int r =
        strlen(body) > DEVICE_TEXT_MAX ? 0 : mf_store_worker_device(f->store, slot->id, slot->model_id, body);
    return r < 0 ? r : mf_trust_judge_model(f, slot);
}

/* Prints the host, device and software that will measure a config, as JSON. */
static char *print_provenance(const struct hello *h)
{
    const char *compiler = "", *driver = "";
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    (void)mf_json_text(h->device, "compiler", &compiler);
    (void)mf_json_text(h->device, "driver", &driver);
    cJSON_AddStringToObject(json, "version", h->version);
    cJSON_AddStringToObject(json, "revision", h->revision);
    cJSON_AddStringToObject(json, "compiler", compiler);
    cJSON_AddStringToObject(json, "driver", driver);
    cJSON_AddStringToObject(json, "worker", h->worker);
    cJSON_AddStringToObject(json, "host", h->host);
    cJSON_AddStringToObject(json, "class", h->class_text);
    cJSON_AddStringToObject(json, "model", h->model);
    cJSON_AddBoolToObject(json, "simulated", h->simulated);
    return mf_json_print(json);
}

/* Assigns to the worker the leases that its HELLO lists, if they have not ended. Releases the worker's other
 * leases, or all leases of a quarantined worker. */
static int reclaim_leases(struct mf_farm *f, struct mf_slot *slot, const cJSON *running, struct mf_buf *keep)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, running) {
        int64_t unit = 0, attempt = 0, epoch = 0;
        (void)mf_json_i64(item, "unit", 1, ID_MAX, &unit);
        (void)mf_json_i64(item, "attempt", 1, ID_MAX, &attempt);
        (void)mf_json_i64(item, "epoch", 1, ID_MAX, &epoch);
        struct mf_lease *l = unit ? mf_map_get(&f->leases, (uint64_t)unit) : NULL;
        if (!l || l->attempt != attempt || l->epoch != epoch || l->worker != slot->id || l->slot ||
            slot->quarantined)
            continue;
        mf_lease_assign(f, l, slot);
        mf_lease_extend(f, l);
        (void)mf_buf_addf(keep, "%s{\"unit\":%" PRId64 ",\"attempt\":%" PRId64 "}", keep->len ? "," : "",
                          unit, attempt);
    }
    return mf_leases_release_worker(f, slot, false, "its worker reconnected without it");
}

static int send_welcome(struct mf_farm *f, struct mf_slot *slot, const cJSON *running)
{
    struct mf_buf keep, text;
    mf_buf_init(&keep, 64u << 10);
    mf_buf_init(&text, 65u << 10);
    int r = reclaim_leases(f, slot, running, &keep);
    if (r == 0)
        r = mf_buf_addf(&text,
                        "{\"epoch\":%" PRId64 ",\"beat_ms\":%" PRId64 ",\"lease_ms\":%" PRId64
                        ",\"keep\":[%s],\"quarantined\":%s}",
                        f->epoch, f->options.beat_ms, f->lease_ms, keep.len ? keep.data : "",
                        slot->quarantined ? "true" : "false");
    if (r == 0)
        r = mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_WELCOME, text.data);
    mf_buf_release(&keep);
    mf_buf_release(&text);
    return r;
}

/* Copies the fields of HELLO to the slot and to the worker's row. */
static int fill_slot(struct mf_farm *f, struct mf_slot *slot, const struct hello *h, const char *device)
{
    _cleanup_(mf_freep) char *families = mf_json_print(h->families);
    _cleanup_(mf_freep) char *refused =
        h->refused_families ? mf_json_print(h->refused_families) : strdup("[]");
    struct mf_worker_row row = {.name = h->worker,
                                .instance = h->instance,
                                .host = h->host,
                                .version = h->version,
                                .revision = h->revision,
                                .families = families,
                                .refused_families = refused,
                                .sandbox = h->sandbox,
                                .device = device,
                                .model = slot->model_id,
                                .pid = h->pid};
    char *provenance = families && refused ? print_provenance(h) : NULL;
    if (!provenance)
        return -ENOMEM;
    free(slot->provenance);
    slot->provenance = provenance;
    slot->class = h->class;
    slot->simulated = h->simulated;
    slot->compiles = h->compiles;
    slot->seen_ms = f->now_ms;
    slot->credit = 0;
    slot->draining = slot->starved = false;
    slot->dirty = true;
    slot->ceilings = h->ceilings;
    int r = mf_copy(slot->instance, sizeof(slot->instance), h->instance);
    return r < 0 ? r : mf_store_worker_hello(f->store, &row, f->wall_ms, slot);
}

static int admit(struct mf_farm *f, const struct mf_mail *mail, const struct hello *h, const char *device,
                 int64_t class_id, int64_t model_id)
{
    struct mf_slot *slot = mf_slots_by_name(&f->slots, h->worker);
    int r = 0;
    if (slot) {
        /* The worker has reconnected. reclaim_leases assigns the leases that its HELLO lists to the slot
         * again */
        MF_MAP_EACH(&f->leases, e)
        {
            struct mf_lease *l = e->value;
            if (l->slot == slot)
                l->slot = NULL;
        }
        slot->n_leases = 0;
        r = mf_slots_set_peer(&f->slots, slot, &mail->peer);
    } else {
        struct mf_slot *previous = mf_slots_by_peer(&f->slots, &mail->peer);
        if (previous)
            r = mf_peer_remove(f, previous, "lost", "another worker name uses its connection");
        if (r == 0)
            r = mf_slots_add(&f->slots, h->worker, &mail->peer, &slot);
    }
    if (r < 0)
        return r;
    slot->class_id = class_id;
    slot->model_id = model_id;
    r = fill_slot(f, slot, h, device);
    if (r == 0)
        r = mf_trust_judge_model(f, slot);
    if (r == 0)
        r = send_welcome(f, slot, h->running);
    if (r == 0)
        r = mf_peer_set_available(f, slot, mf_slot_is_available(slot));
    if (mf_log_limit(&f->log_limits.link, LOG_LINKS, f->now_ms))
        log_info("worker %s connected: class %s, model %s", h->worker, h->class_text, h->model);
    return r;
}

/* Stores the class and model of a HELLO. Returns 1 if the class or model was refused; the caller then rolls
 * back. */
static int register_device(struct mf_farm *f, const struct mf_mail *mail, const struct hello *h,
                           const char *body, int64_t *ret_class, int64_t *ret_model)
{
    int64_t known_model = 0;
    int r = mf_store_class(f->store, &h->class, ret_class);
    if (r == 0)
        r = mf_store_model(f->store, *ret_class, h->model, h->simulated, body, ret_model);
    if (r == 0)
        r = mf_store_worker_model(f->store, h->worker, &known_model);
    if (r > 0 && known_model != *ret_model) {
        r = mf_peer_refuse(f, &mail->peer, "class_conflict", (int64_t)mail->sequence,
                           "worker %s is registered with another device class or model; use another --name",
                           h->worker);
        return r < 0 ? r : 1;
    }
    return r < 0 ? r : 0;
}

static int handle_hello(struct mf_farm *f, struct mf_slot *unused, const struct mf_mail *mail)
{
    (void)unused;
    struct hello h;
    int64_t class_id, model_id;
    char device_why[MF_REASON_MAX];
    const char *why = read_hello(mail->json, &h);
    if (why)
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence, "%s", why);
    char key_owner[MF_KEY_WORKER_MAX];
    int r = f->zap ? mf_access_worker(f, &mail->peer, key_owner) : 0;
    if (r < 0)
        return r;
    if (r > 0 && strcmp(key_owner, h.worker) != 0)
        return mf_peer_refuse(f, &mail->peer, "not_its_name", (int64_t)mail->sequence,
                              "the key is enrolled for worker %s; use this name as --name", key_owner);
    const struct mf_slot *other = mf_slots_by_name(&f->slots, h.worker);
    if (other && strcmp(other->instance, h.instance) != 0)
        return mf_peer_refuse(f, &mail->peer, "name_taken", (int64_t)mail->sequence,
                              "worker %s is already connected (last message %" PRId64
                              " ms ago): a restarted worker can connect once the old one has been silent"
                              " for %" PRId64 " ms; a second worker needs another --name",
                              h.worker, f->now_ms - other->seen_ms, f->lease_ms);
    if (mf_device_claim_read(h.device, &h.class, h.simulated, &h.ceilings, device_why) < 0)
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence, "%s", device_why);
    _cleanup_(mf_freep) char *body = mf_json_print(h.device);
    if (!body)
        return -ENOMEM;
    if (strlen(body) > DEVICE_TEXT_MAX)
        return mf_peer_refuse(f, &mail->peer, "too_large", (int64_t)mail->sequence,
                              "device: expected at most %d bytes", DEVICE_TEXT_MAX);
    r = mf_store_savepoint(f->store, MF_SAVEPOINT_PART);
    if (r < 0)
        return r;
    int refused = register_device(f, mail, &h, body, &class_id, &model_id);
    if (refused < 0)
        return refused;
    r = refused ? mf_store_savepoint_rollback(f->store, MF_SAVEPOINT_PART)
                : mf_store_savepoint_release(f->store, MF_SAVEPOINT_PART);
    if (r < 0 || refused)
        return r < 0 ? r : 0;
    return admit(f, mail, &h, body, class_id, model_id);
}

/* ---- other messages ---- */

static int refuse_malformed(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail,
                            const char *why)
{
    int r = mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence, "%s: %s",
                           mf_message_name(mail->type), why);
    return r == 0 && slot && mail->type == MF_MESSAGE_RESULT ? mf_deliver_refused(f, slot, mail->json, why)
                                                             : r;
}

static int handle_ready(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail)
{
    int64_t credit;
    if (mf_json_i64(mail->json, "credit", 0, MF_CREDIT_MAX, &credit) < 0)
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence,
                              "credit: expected an integer from 0 to %d", MF_CREDIT_MAX);
    slot->credit = (int)credit;
    return 0;
}

static int handle_result(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail)
{
    const char *why = "";
    int r = mf_deliver(f, slot, mail->json, &why);
    return r > 0 ? refuse_malformed(f, slot, mail, why) : r;
}

static int cancel_stale(struct mf_farm *f, struct mf_slot *slot, int64_t unit, int64_t attempt)
{
    char text[80];
    mf_format(text, sizeof(text), "{\"unit\":%" PRId64 ",\"attempt\":%" PRId64 "}", unit, attempt);
    return mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_CANCEL, text);
}

static int handle_beat(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail)
{
    const cJSON *item, *busy = mf_json_object(mail->json, "busy"),
                       *running = mf_json_array(mail->json, "running");
    double elapsed_s = (double)(f->now_ms - slot->beat_ms) * 1e-3;
    int n = 0;
    slot->unit = 0;
    slot->step[0] = 0;
    cJSON_ArrayForEach (item, running) {
        int64_t unit = 0, attempt = 0, epoch = 0;
        const char *step = "";
        (void)mf_json_i64(item, "unit", 1, ID_MAX, &unit);
        (void)mf_json_i64(item, "attempt", 1, ID_MAX, &attempt);
        (void)mf_json_i64(item, "epoch", 1, ID_MAX, &epoch);
        (void)mf_json_text(item, "step", &step);
        if (!unit || !attempt || n++ >= 64)
            continue;
        struct mf_lease *l = mf_map_get(&f->leases, (uint64_t)unit);
        if (!l || l->slot != slot || l->attempt != attempt || l->epoch != epoch) {
            int r = cancel_stale(f, slot, unit, attempt);
            if (r < 0)
                return r;
            continue;
        }
        mf_lease_extend(f, l);
        /* The first unit is running; the other units are prefetched */
        if (!slot->unit) {
            slot->unit = unit;
            mf_format(slot->step, sizeof(slot->step), "%s", step);
        }
    }
    if (mf_json_object(mail->json, "device")) {
        char why[MF_REASON_MAX];
        int r = raise_ceilings(f, slot, mf_json_object(mail->json, "device"), why);
        if (r != 0)
            return r < 0 ? r : refuse_malformed(f, slot, mail, why);
    }
    for (int i = 0; i < MF_N_PHASES; i++) {
        double share = 0;
        if (slot->beat_ms && mf_json_double(busy, mf_phase_names[i], &share) == 0 && share >= 0 && share <= 1)
            slot->busy_s[i] += share * elapsed_s;
    }
    slot->beat_ms = f->now_ms;
    slot->dirty = true;
    return mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_BEAT, "{}");
}

static int handle_bye(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail)
{
    const char *reason = "";
    (void)mf_json_text(mail->json, "reason", &reason);
    if (mf_log_limit(&f->log_limits.link, LOG_LINKS, f->now_ms))
        log_info("worker %s leaves: %.200s", slot->name, reason);
    return mf_peer_remove(f, slot, "gone", "its worker disconnected");
}

static const struct {
    int (*handle)(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail);
    bool needs_no_slot;
} messages[MF_MESSAGE_N_] = {
    [MF_MESSAGE_HELLO] = {handle_hello, true},    [MF_MESSAGE_READY] = {handle_ready, false},
    [MF_MESSAGE_RESULT] = {handle_result, false}, [MF_MESSAGE_BEAT] = {handle_beat, false},
    [MF_MESSAGE_BYE] = {handle_bye, false},       [MF_MESSAGE_ENROL] = {mf_access_enrol, true},
};

/* Checks a message of a peer without a slot. Returns 0 if it is allowed, 1 if it was refused. */
static int refuse_unregistered(struct mf_farm *f, const struct mf_mail *mail, int64_t sequence)
{
    char worker[MF_KEY_WORKER_MAX];
    int r = 0;
    if (f->zap && mf_access_is_token(&mail->peer))
        r = mail->type == MF_MESSAGE_ENROL;
    else if (f->zap)
        r = mf_access_worker(f, &mail->peer, worker);
    else
        r = 1;
    if (r < 0)
        return r;
    if (r == 0)
        r = mf_peer_refuse(f, &mail->peer, "unknown_key", sequence,
                           "the key is unknown or revoked, or does not allow %s",
                           mf_message_name(mail->type));
    else if (!messages[mail->type].needs_no_slot)
        r = mf_peer_refuse(f, &mail->peer, "unknown_worker", sequence, "send HELLO first");
    else
        return 0;
    return r < 0 ? r : 1;
}

int mf_peer_handle(struct mf_farm *f, const struct mf_mail *mail)
{
    int64_t sequence = mail->sequence <= (uint64_t)ID_MAX ? (int64_t)mail->sequence : 0;
    if (!messages[mail->type].handle)
        return mf_peer_refuse(f, &mail->peer, "malformed", sequence, "%s: not a message to the coordinator",
                              mf_message_name(mail->type));
    struct mf_slot *slot = mf_slots_by_peer(&f->slots, &mail->peer);
    int refused = slot ? 0 : refuse_unregistered(f, mail, sequence);
    if (refused != 0)
        return refused < 0 ? refused : 0;
    if (slot)
        slot->seen_ms = f->now_ms;
    if (mail->error == -E2BIG)
        return mf_peer_refuse(f, &mail->peer, "too_large", sequence, "body: too many values in %zu bytes",
                              mail->body_len);
    /* after this REFUSE the worker sends HELLO and all unacknowledged results again */
    if (mail->error == -ENOBUFS)
        return mf_peer_refuse(f, &mail->peer, "no_memory", sequence, "out of memory for a body of %zu bytes",
                              mail->body_len);
    if (!cJSON_IsObject(mail->json))
        return mf_peer_refuse(f, &mail->peer, "malformed", sequence, "%s: expected a JSON object as body",
                              mf_message_name(mail->type));
    char why[MF_REASON_MAX];
    if (mf_wire_bounds_check(mail->json, why) < 0)
        return refuse_malformed(f, slot, mail, why);
    return messages[mail->type].handle(f, slot, mail);
}

int mf_peer_set_available(struct mf_farm *f, const struct mf_slot *slot, bool available)
{
    int r = available ? mf_store_tasks_unpin_lacking(f->store, slot->id)
                      : mf_store_tasks_unpin(f->store, slot->id);
    if (r == 0 && available)
        r = mf_store_tasks_assign_class(f->store, slot->class_id);
    if (r > 0)
        r = mf_promote_skip_for_class(f, slot->class_id);
    /* A worker may take units that avoid it once no other worker is available */
    mf_slots_clear_starved(&f->slots, slot->class_id);
    f->wake_waiting = true;
    return r;
}

int mf_peer_remove(struct mf_farm *f, struct mf_slot *slot, const char *state, const char *why)
{
    int r = mf_leases_release_worker(f, slot, true, why);
    slot->unit = 0;
    slot->step[0] = 0;
    if (r == 0)
        r = mf_store_worker_save(f->store, slot, state, f->wall_ms);
    if (r == 0)
        r = mf_peer_set_available(f, slot, false);
    if (r == 0)
        r = mf_event_worker(f, slot, state);
    if (r < 0) /* the slot may still have leases */
        return r;
    mf_slots_remove(&f->slots, slot);
    return 0;
}

int mf_peers_flush(struct mf_farm *f)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < f->slots.n;) {
        struct mf_slot *slot = f->slots.all[i];
        if (f->now_ms - slot->seen_ms > f->lease_ms) {
            log_warn("worker %s is lost: silent for %" PRId64 " ms", slot->name, f->now_ms - slot->seen_ms);
            r = mf_peer_remove(f, slot, "lost", "its worker was silent for the length of a lease");
            continue;
        }
        if (slot->dirty)
            r = mf_store_worker_save(f->store, slot, mf_slot_state(slot), f->wall_ms);
        slot->dirty = false;
        if (r == 0 && f->now_ms - slot->published.at_ms >= EVENT_INTERVAL_MS && mf_slot_has_changed(slot))
            r = mf_event_worker(f, slot, mf_slot_state(slot));
        i++;
    }
    return r;
}

int mf_peers_acknowledge(struct mf_farm *f)
{
    f->n_acknowledged = 0;
    for (size_t i = 0; i < f->slots.n; i++) {
        struct mf_slot *slot = f->slots.all[i];
        if (!slot->acks.len)
            continue;
        (void)mf_buf_adds(&slot->acks, "]}");
        int r = mf_buf_error(&slot->acks);
        if (r == 0)
            r = mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_ACK, slot->acks.data);
        f->n_acknowledged++;
        mf_buf_clear(&slot->acks);
        if (r < 0)
            return r;
    }
    return 0;
}
