/* Handlers of the export: the table, what it leaves out, and merging it into another. */
#include "server/api.h"

#include "common/durable.h"
#include "common/json.h"
#include "common/table_merge.h"
#include "common/text.h"
#include "server/export.h"
#include "server/problem.h"
#include "server/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <sodium.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

/* --- the query -------------------------------------------------------------------------------------------- */

static bool flag(const struct mf_request *r, const char *name)
{
    bool value = false;
    const char *text = mf_request_query(r, name);
    if (text)
        (void)mf_parse_bool(text, &value);
    return value;
}

static int read_class(struct mf_request *r, struct mf_device_class *class, struct mf_export_options *o)
{
    const char *text = mf_request_query(r, "class");
    if (!text)
        return 0;
    if (mf_device_class_parse(text, class) < 0)
        return mf_refuse_at(&r->response, 400, "class", "value",
                            "class: a device class is expected, as gfx942/304");
    if (o->filter.gfx && strcmp(o->filter.gfx, class->gfx) != 0)
        return mf_refuse_at(&r->response, 400, "gfx", "conflict",
                            "gfx and class name two different gfx; give one of them");
    o->filter.gfx = class->gfx;
    o->filter.cu_num = class->cu_num;
    return 0;
}

static int read_layer_model(struct mf_request *r, char buf[MF_SHAPE_TEXT_MAX], struct mf_export_options *o)
{
    const char *text = mf_request_query(r, "layer_model");
    char row[MF_SHAPE_TEXT_MAX];
    struct mf_shape shape;
    if (!text)
        return 0;
    mf_say(row, sizeof(row), "1,%s", text);
    if (mf_shape_parse(row, &shape) < 0)
        return mf_refuse_at(&r->response, 400, "layer_model", "value",
                            "layer_model: eleven values are expected, a shape's row without its token");
    mf_shape_print_layer_model(&shape, buf);
    o->filter.layer_model = buf;
    return 0;
}

/* Texts of the filter lie in class and buf. */
static int read_options(struct mf_request *r, struct mf_device_class *class, char buf[MF_SHAPE_TEXT_MAX],
                        struct mf_export_options *o)
{
    const char *batch = mf_request_query(r, "batch"), *consumer = mf_request_query(r, "consumer");
    *o = (struct mf_export_options){.simulated = flag(r, "simulated")};
    o->filter.gfx = mf_request_query(r, "gfx");
    o->filter.model = mf_request_query(r, "model");
    if (batch && mf_parse_i64(batch, 1, INT64_MAX, &o->filter.batch) < 0)
        return mf_refuse_at(&r->response, 400, "batch", "range",
                            "batch: the number of a batch, from 1 on, is expected");
    if (consumer && strcmp(consumer, "aiter") == 0)
        o->consumer = MF_CONSUMER_AITER;
    else if (consumer && strcmp(consumer, "moefarm") != 0)
        return mf_refuse_at(&r->response, 400, "consumer", "value", "consumer: moefarm or aiter is expected");
    int e = read_class(r, class, o);
    return e < 0 ? e : read_layer_model(r, buf, o);
}

/* --- the table -------------------------------------------------------------------------------------------- */

static int check_models(struct mf_store *s, const struct mf_export_options *o, struct mf_response *p)
{
    char models[512];
    if (o->filter.model)
        return 0;
    int r = mf_store_export_models(s, &o->filter, o->simulated, models, sizeof(models));
    if (r < 0)
        return mf_refuse_errno(p, r, "look for the models of a class");
    if (!models[0])
        return 0;
    return mf_refuse_at(
        p, 409, "model", "ambiguous",
        "a class has configs of more than one device model, and a table can hold one: say model=… (%s)",
        models);
}

static int make(struct mf_request *r, struct mf_store *s, struct mf_export_options *o, struct mf_table **ret,
                cJSON **ret_left_out)
{
    struct mf_device_class class;
    char layer_model[MF_SHAPE_TEXT_MAX];
    int e = read_options(r, &class, layer_model, o);
    if (e < 0 || (e = check_models(s, o, &r->response)) < 0)
        return e;
    e = mf_export(s, o, ret, ret_left_out);
    o->filter = (struct mf_export_filter){0};
    return e < 0 ? mf_refuse_errno(&r->response, e, "make the table") : 0;
}

/* A file without a name beside the database, so that a large table does not stay in memory. */
static int unnamed_file(struct mf_store *s)
{
    _cleanup_(mf_freep) char *path = strdup(mf_store_path(s));
    int fd = path ? open(dirname(path), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        fd = memfd_create("export", MFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static void set_etag(struct mf_response *p, const struct mf_buf *b)
{
    unsigned char hash[24];
    char hex[sizeof(hash) * 2 + 1];
    (void)crypto_generichash(hash, sizeof(hash), (const unsigned char *)b->data, b->len, NULL, 0);
    (void)sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
    mf_say(p->etag, sizeof(p->etag), "\"%s\"", hex);
}

static int answer_csv(struct mf_request *r, struct mf_store *s, const struct mf_table *t,
                      enum mf_consumer consumer)
{
    struct mf_response *p = &r->response;
    char why[MF_REASON_MAX] = "";
    int e = mf_table_write(t, consumer == MF_CONSUMER_AITER ? MF_TABLE_AITER : MF_TABLE_ALL, &p->body, why);
    if (e < 0)
        return mf_refuse(p, 500, "write the table: %s", why);
    set_etag(p, &p->body);
    _cleanup_(mf_closep) int fd = unnamed_file(s);
    e = fd < 0 ? fd : mf_write_all(fd, p->body.data, p->body.len);
    if (e < 0)
        return mf_refuse_errno(p, e, "write the table to a file");
    mf_buf_release(&p->body);
    p->fd = fd;
    fd = -1;
    p->status = 200;
    p->content_type = "text/csv; charset=utf-8";
    return 0;
}

int mf_api_export(void *reader, struct mf_request *r)
{
    struct mf_store *s = ((struct mf_reader *)reader)->store;
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL;
    struct mf_export_options o;
    int e = make(r, s, &o, &table, &left_out);
    if (e < 0 || (e = answer_csv(r, s, table, o.consumer)) < 0)
        return e;
    (void)mf_respond_header(&r->response, "Moefarm-Left-Out", "%d", cJSON_GetArraySize(left_out));
    return mf_respond_header(&r->response, "Content-Disposition", "inline; filename=\"tuned_fmoe.csv\"");
}

/* The page of an array that is in memory: the cursor's id is an index. */
static cJSON *page_of(cJSON *list, const struct mf_page *page)
{
    cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");
    int64_t i = 0, from = page->id;
    char next[MF_CURSOR_TEXT_MAX] = "";
    for (cJSON *item = list->child, *after; item; item = after, i++) {
        after = item->next;
        if (i < from)
            continue;
        if (i >= from + page->limit) {
            mf_cursor_print(0, 0, i, next);
            break;
        }
        cJSON_AddItemToArray(items, cJSON_DetachItemViaPointer(list, item));
    }
    cJSON_AddItemToObject(o, "next", *next ? cJSON_CreateString(next) : cJSON_CreateNull());
    return o;
}

int mf_api_left_out(void *reader, struct mf_request *r)
{
    struct mf_store *s = ((struct mf_reader *)reader)->store;
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL;
    struct mf_export_options o;
    int e = make(r, s, &o, &table, &left_out);
    return e < 0 ? e : mf_respond_json(&r->response, 200, page_of(left_out, &r->page));
}

/* --- merge ------------------------------------------------------------------------------------------------ */

static int add_merged(const struct mf_merge_result *merged, cJSON *o)
{
    cJSON *lists[MF_MERGED_N_];
    for (int i = 0; i < MF_MERGED_N_; i++)
        lists[i] = cJSON_AddArrayToObject(o, mf_merged_name((enum mf_merged)i));
    for (size_t i = 0; i < merged->n_items; i++) {
        const struct mf_merge_item *m = &merged->items[i];
        cJSON *item = cJSON_CreateObject();
        if (!item || !cJSON_AddItemToArray(lists[m->what], item))
            return -ENOMEM;
        cJSON_AddStringToObject(item, "key", m->key);
        cJSON_AddItemToObject(item, "old_us",
                              m->old_us > 0 ? cJSON_CreateNumber(m->old_us) : cJSON_CreateNull());
        cJSON_AddNumberToObject(item, "new_us", m->new_us);
        cJSON_AddStringToObject(item, "reason", m->reason);
    }
    return 0;
}

static int add_dirty(const struct mf_table *t, cJSON *o)
{
    cJSON *list = cJSON_AddArrayToObject(o, "dirty");
    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *q = &t->problems[i];
        cJSON *item = cJSON_CreateObject();
        if (!item || !cJSON_AddItemToArray(list, item))
            return -ENOMEM;
        cJSON_AddNumberToObject(item, "line", (double)q->line);
        cJSON_AddStringToObject(item, "at", q->column);
        cJSON_AddStringToObject(item, "code", mf_problem_code_name(q->code));
        cJSON_AddStringToObject(item, "severity", q->severity == MF_ERROR ? "error" : "warning");
        cJSON_AddStringToObject(item, "reason", q->reason);
    }
    return 0;
}

static int merge(struct mf_request *r, struct mf_table *old, const struct mf_table *fresh, cJSON *o)
{
    struct mf_merge_options options = {.replace = flag(r, "replace")};
    struct mf_merge_result merged = MF_MERGE_RESULT_INIT;
    struct mf_buf csv;
    char why[MF_REASON_MAX] = "";
    int e = mf_table_merge(old, fresh, &options, &merged, why);
    if (e == -EEXIST || e == -ENOTSUP || e == -EINVAL)
        return mf_refuse_at(&r->response, e == -EEXIST ? 409 : 422, "body",
                            e == -EEXIST ? "duplicate" : "table", "%s", why);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "merge the tables");
    mf_buf_init(&csv, MF_RESPONSE_BODY_MAX);
    e = mf_table_write(old, MF_TABLE_ALL, &csv, why);
    if (e == 0 && !cJSON_AddStringToObject(o, "csv", csv.data))
        e = -ENOMEM;
    if (e == 0)
        e = add_merged(&merged, o);
    if (e == 0)
        e = add_dirty(old, o);
    mf_buf_release(&csv);
    mf_merge_result_release(&merged);
    return e < 0 ? mf_refuse(&r->response, 422, "write the merged table: %s", *why ? why : strerror(-e)) : 0;
}

int mf_api_merge(void *reader, struct mf_request *r)
{
    _cleanup_(mf_table_freep) struct mf_table *old = NULL, *fresh = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL, *o = cJSON_CreateObject();
    struct mf_export_options options;
    char why[MF_REASON_MAX] = "";
    int e = mf_table_read("body", r->body.data, r->body.len, &old, why);
    if (e == -EBADMSG || e == -EFBIG)
        return mf_refuse_at(&r->response, 422, "body", "csv", "%s", why);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "read the table");
    e = make(r, ((struct mf_reader *)reader)->store, &options, &fresh, &left_out);
    if (e < 0 || (e = merge(r, old, fresh, o)) < 0)
        return e;
    cJSON_AddNumberToObject(o, "left_out", cJSON_GetArraySize(left_out));
    return mf_respond_json(&r->response, 200, MF_TAKE(o));
}
