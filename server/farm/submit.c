/* Submissions.
 *
 * A short submission is stored in one transaction. A long one is stored in slices, one per iteration, so that
 * workers do not lose their leases meanwhile. Its batch has state `cancelled` and no receipt until it is
 * complete, which readers show as `submitting`; nothing of it starts before. The last transaction opens the
 * batch, stores the receipt and answers the request. A restart removes incomplete batches. */
#include "server/farm/farm_private.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/moe/production_key.h"
#include "server/farm/promote.h"
#include "server/http/request.h"
#include "server/store/store_promote.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A submission of more tasks and known rows is stored in slices. */
#define TASKS_AT_ONCE 256

/* Progress of a submission. */
struct progress {
    int64_t batch; /* 0: not begun */
    struct mf_ids classes;
    struct mf_shape *shapes; /* in the order of their tasks */
    size_t class_at, shape_at, known_at;
};

struct mf_submitting {
    struct mf_request *request;
    const struct mf_submission *s;
    mf_submitted_fn finish;
    struct progress progress;
    struct mf_submitting *next;
};

static void progress_release(struct progress *p)
{
    mf_ids_release(&p->classes);
    free(p->shapes);
    *p = (struct progress){0};
}

/* Finds the ids of the requested classes or, if no class is requested, of all classes with a worker. If no
 * class has a worker, the list holds only the id 0, which stands for the class of the next worker. */
static int find_classes(struct mf_farm *f, const struct mf_batch_options *o, struct mf_ids *ret)
{
    int r = 0;
    for (int i = 0; r == 0 && i < o->n_classes; i++) {
        int64_t id;
        r = mf_store_class(f->store, &o->classes[i], &id);
        if (r == 0)
            r = mf_ids_add(ret, id);
    }
    for (size_t i = 0; r == 0 && !o->n_classes && i < f->slots.n; i++) {
        bool known = f->slots.all[i]->quarantined;
        for (size_t j = 0; j < ret->n; j++)
            known |= ret->all[j] == f->slots.all[i]->class_id;
        if (!known)
            r = mf_ids_add(ret, f->slots.all[i]->class_id);
    }
    return r == 0 && ret->n == 0 ? mf_ids_add(ret, 0) : r;
}

static int compare_shapes(const void *a, const void *b)
{
    return mf_shape_compare(a, b);
}

/* Sorts the shapes by layer model and token count. Tasks start in the order of mf_store_tasks_waiting.
 * That order keeps units of one layer model together, so that the weights of the layer model are created
 * only once. / */
static int begin(struct mf_farm *f, const struct mf_submission *s, bool partial, struct progress *p)
{
    _cleanup_(cJSON_Deletep) cJSON *options = mf_batch_options_print(&s->options, false);
    _cleanup_(mf_freep) char *text = mf_json_print(options);
    struct mf_batch_row row = {.name = s->name,
                               .options = text,
                               .idempotency_key = s->idempotency_key,
                               .body_hash = s->body_hash,
                               .priority = (int)s->options.priority,
                               .created_ms = f->wall_ms};
    p->shapes = calloc(s->n_shapes + 1, sizeof(*p->shapes));
    if (!text || !p->shapes)
        return -ENOMEM;
    memcpy(p->shapes, s->shapes, s->n_shapes * sizeof(*p->shapes));
    qsort(p->shapes, s->n_shapes, sizeof(*p->shapes), compare_shapes);
    int r = find_classes(f, &s->options, &p->classes);
    if (r < 0)
        return r;
    return partial ? mf_store_batch_add_partial(f->store, &row, &p->batch)
                   : mf_store_batch_add(f->store, &row, &p->batch);
}

static int waiting_reason(struct mf_farm *f, int64_t class_id, char *reason, size_t cap)
{
    char class_text[MF_DEVICE_CLASS_TEXT_MAX];
    struct mf_device_class class;
    mf_format(reason, cap, "waits for a worker of any class");
    if (!class_id)
        return 0;
    int r = mf_store_class_get(f->store, class_id, &class);
    if (r < 0)
        return r;
    mf_device_class_print(&class, class_text);
    mf_format(reason, cap, "waits for a worker of class %s", class_text);
    return 0;
}

/* The consumers of a shape's tasks. A key of AITER that was not submitted itself serves only AITER, and a
 * shape that AITER looks up under another key serves only the others. */
static mf_consumers serves(const struct mf_submission *s, const struct mf_shape *shape)
{
    const mf_consumers all = mf_batch_consumers(&s->options), aiter = MF_CONSUMER_BIT(MF_CONSUMER_AITER);
    struct mf_shape key;
    char why[MF_REASON_MAX];
    if (!(all & aiter) || all == aiter)
        return all;
    if (s->n_aiter_keys > 0 &&
        bsearch(shape, s->aiter_keys, s->n_aiter_keys, sizeof(*s->aiter_keys), compare_shapes))
        return aiter;
    return mf_production_row(shape, &s->options.aiter_env, &key, why, sizeof(why)) > 0 ? all & ~aiter : all;
}

static int add_task(struct mf_farm *f, const struct mf_submission *s, const struct progress *p, size_t i)
{
    char reason[120];
    int64_t shape, class_id = p->classes.all[p->class_at];
    if (i > 0 && mf_shape_equal(&p->shapes[i], &p->shapes[i - 1]))
        return 0;
    int r = waiting_reason(f, class_id, reason, sizeof(reason));
    if (r == 0)
        r = mf_store_shape(f->store, &p->shapes[i], &shape);
    return r < 0 ? r
                 : mf_store_task_add(f->store, p->batch, shape, class_id, serves(s, &p->shapes[i]), reason);
}

/* Adds a known row. If the batch's classes are known, skips a row of another class. */
static int add_known(struct mf_farm *f, const struct progress *p, const struct mf_known_row *k)
{
    int64_t class, shape;
    bool wanted = p->classes.n == 1 && p->classes.all[0] == 0;
    int r = mf_store_class(f->store, &k->class, &class);
    for (size_t j = 0; j < p->classes.n; j++)
        wanted |= p->classes.all[j] == class;
    if (r < 0 || !wanted)
        return r;
    r = mf_store_shape(f->store, k->shape, &shape);
    return r < 0 ? r
                 : mf_store_baseline_row_add(f->store, p->batch, shape, class, k->pipeline, k->us, k->line);
}

/* Adds tasks and known rows until end_ns. Returns 1 once all are stored. */
static int add_rows(struct mf_farm *f, const struct mf_submission *s, struct progress *p, uint64_t end_ns)
{
    int r = 0;
    while (r == 0 && p->class_at < p->classes.n) {
        if (p->shape_at == s->n_shapes) {
            p->class_at++;
            p->shape_at = 0;
            continue;
        }
        r = add_task(f, s, p, p->shape_at++);
        if (r == 0 && mf_now_ns() >= end_ns)
            return 0;
    }
    while (r == 0 && p->known_at < s->n_known) {
        r = add_known(f, p, &s->known[p->known_at++]);
        if (r == 0 && mf_now_ns() >= end_ns)
            return 0;
    }
    return r < 0 ? r : 1;
}

/* Copies a list of the submission to the receipt. list NULL: adds an empty list. */
static bool add_list(cJSON *receipt, const char *name, const cJSON *list)
{
    return cJSON_AddItemToObject(receipt, name, list ? cJSON_Duplicate(list, true) : cJSON_CreateArray());
}

/* Prints the classes of the connected workers: " (connected: gfx942/304, sm_90/132)"; "" without workers. */
static void print_connected(const struct mf_farm *f, char *buf, size_t cap)
{
    size_t len = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < f->slots.n; i++) {
        const struct mf_slot *slot = f->slots.all[i];
        char text[MF_DEVICE_CLASS_TEXT_MAX];
        bool known = false;
        for (size_t j = 0; j < i; j++)
            known |= f->slots.all[j]->class_id == slot->class_id;
        mf_device_class_print(&slot->class, text);
        if (known || len + strlen(text) + sizeof(" (connected: )") > cap)
            continue;
        mf_format(buf + len, cap - len, "%s%s", len == 0 ? " (connected: " : ", ", text);
        len += strlen(buf + len);
    }
    if (len > 0)
        mf_format(buf + len, cap - len, ")");
}

/* Adds a warning for each class that has no connected worker. */
static int add_warnings(struct mf_farm *f, const struct mf_ids *classes, cJSON *receipt)
{
    cJSON *list = cJSON_AddArrayToObject(receipt, "warnings");
    for (size_t i = 0; list && i < classes->n; i++) {
        char text[480], connected[320], class_text[MF_DEVICE_CLASS_TEXT_MAX];
        struct mf_device_class class;
        if (mf_slots_count(&f->slots, classes->all[i]) > 0)
            continue;
        if (!classes->all[i]) {
            mf_format(text, sizeof(text), "no worker is connected; the tasks wait for the first one");
        } else {
            int r = mf_store_class_get(f->store, classes->all[i], &class);
            if (r < 0)
                return r;
            mf_device_class_print(&class, class_text);
            print_connected(f, connected, sizeof(connected));
            mf_format(text, sizeof(text), "no worker of class %s is connected%s; its tasks wait for one",
                      class_text, connected);
        }
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(text)))
            return -ENOMEM;
    }
    return list ? 0 : -ENOMEM;
}

static int write_receipt(struct mf_farm *f, const struct progress *p, const struct mf_submission *s,
                         int n_skipped, cJSON **ret)
{
    const size_t n_classes = p->classes.n;
    const int64_t batch = p->batch;
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    mf_json_add_i64(json, "batch", batch);
    mf_json_add_i64(json, "shapes", (int64_t)s->n_shapes);
    mf_json_add_i64(json, "tasks", (int64_t)(s->n_shapes * n_classes));
    mf_json_add_i64(json, "undecided", n_skipped);
    bool whole = add_list(json, "errors", s->errors) && add_list(json, "unknown_columns", s->unknown_columns);
    int r = whole ? add_warnings(f, &p->classes, json) : -ENOMEM;
    _cleanup_(mf_freep) char *text = r == 0 ? mf_json_print(json) : NULL;
    if (!text)
        return r < 0 ? r : -ENOMEM;
    r = mf_store_batch_set_receipt(f->store, batch, text);
    if (r == 0)
        *ret = MF_TAKE(json);
    return r;
}

/* Completes a batch whose tasks are stored. */
static int complete(struct mf_farm *f, const struct progress *p, const struct mf_submission *s,
                    cJSON **ret_receipt)
{
    int n_skipped = 0;
    int r = mf_store_batch_open(f->store, p->batch);
    if (r == 0)
        r = mf_batch_event(f, p->batch, "open");
    if (r == 0)
        r = n_skipped = mf_promote_skip_unnamed(f, p->batch);
    if (r >= 0)
        r = write_receipt(f, p, s, n_skipped, ret_receipt);
    f->wake_waiting = true;
    return r;
}

static int find_receipt(struct mf_farm *f, const struct mf_submission *s, cJSON **ret)
{
    return s->idempotency_key && *s->idempotency_key
               ? mf_store_batch_find_receipt(f->store, s->idempotency_key, s->body_hash, ret)
               : 0;
}

int mf_farm_submit(struct mf_farm *f, const struct mf_submission *s, cJSON **ret_receipt)
{
    struct progress p = {0};
    int r = find_receipt(f, s, ret_receipt);
    if (r != 0)
        return r;
    r = begin(f, s, false, &p);
    if (r == 0)
        r = add_rows(f, s, &p, UINT64_MAX);
    if (r > 0)
        r = complete(f, &p, s, ret_receipt);
    progress_release(&p);
    return r;
}

/* ---- long submissions ---- */

bool mf_farm_submits_later(const struct mf_farm *f, const struct mf_submission *s)
{
    size_t n_classes = s->options.n_classes ? (size_t)s->options.n_classes : f->slots.n;
    for (const struct mf_submitting *other = f->submitting; other && s->idempotency_key;
         other = other->next) {
        if (*s->idempotency_key && strcmp(other->s->idempotency_key, s->idempotency_key) == 0)
            return true;
    }
    return s->n_shapes * MF_MAX(n_classes, (size_t)1) + s->n_known > TASKS_AT_ONCE;
}

int mf_farm_submit_later(struct mf_farm *f, struct mf_request *request, const struct mf_submission *s,
                         mf_submitted_fn finish)
{
    struct mf_submitting *last = calloc(1, sizeof(*last)), **at = &f->submitting;
    if (!last)
        return -ENOMEM;
    *last = (struct mf_submitting){.request = request, .s = s, .finish = finish};
    while (*at)
        at = &(*at)->next;
    *at = last;
    request->deferred = true;
    return 0;
}

static struct mf_submitting *submitting_free(struct mf_submitting *first)
{
    struct mf_submitting *next = first->next;
    progress_release(&first->progress);
    free(first);
    return next;
}

/* Answers the first submission and removes it. r, receipt: as from mf_farm_submit. */
static int answer(struct mf_farm *f, int r, cJSON *receipt)
{
    struct mf_submitting *first = f->submitting;
    struct mf_request *request = first->request;
    int reserved = mf_farm_reserve_answer(f);
    if (reserved < 0) {
        cJSON_Delete(receipt);
        return reserved;
    }
    (void)first->finish(request, r, receipt);
    request->deferred = false;
    request->hop++;
    mf_farm_answer(f, request);
    f->submitting = submitting_free(first);
    return 0;
}

int mf_submissions_continue(struct mf_farm *f)
{
    struct mf_submitting *first = f->submitting;
    cJSON *receipt = NULL;
    if (!first)
        return 0;
    struct progress *p = &first->progress;
    if (!p->batch) {
        int known = find_receipt(f, first->s, &receipt);
        if (known != 0)
            return answer(f, known, receipt);
    }
    int r = p->batch ? 0 : begin(f, first->s, true, p);
    if (r == 0)
        r = add_rows(f, first->s, p, mf_now_ns() + MF_SLICE_NS);
    if (r <= 0)
        return r;
    r = complete(f, p, first->s, &receipt);
    return r < 0 ? r : answer(f, 0, receipt);
}

void mf_submissions_restart(struct mf_farm *f)
{
    for (struct mf_submitting *s = f->submitting; s; s = s->next)
        progress_release(&s->progress);
}

void mf_submissions_free(struct mf_farm *f)
{
    while (f->submitting) {
        mf_request_free(f->submitting->request);
        f->submitting = submitting_free(f->submitting);
    }
}
