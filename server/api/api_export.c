/* Handlers of the export: the table, the rows left out, and merging into another table. */
#include "server/api/api.h"

#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/text.h"
#include "common/table/table_merge.h"
#include "server/api/api_table.h"
#include "server/api/export_configs.h"
#include "server/http/problem.h"
#include "server/http/reader.h"

#include <errno.h>
#include <string.h>

static int make_table(struct mf_request *r, struct mf_store *s, const struct mf_export_options *o,
                      struct mf_table **ret, cJSON **ret_left_out)
{
    int e = mf_export(s, o, ret, ret_left_out);
    return e < 0 ? mf_refuse_errno(&r->response, e, "build the table") : 0;
}

static int make(struct mf_request *r, struct mf_store *s, struct mf_table_query *q, struct mf_table **ret,
                cJSON **ret_left_out)
{
    enum mf_framework framework;
    int e = mf_table_query_read(r, s, q);
    if (e < 0)
        return e;
    if (mf_consumer_framework(q->options.consumer, &framework) == 0)
        return mf_refuse_at(&r->response, 400, "consumer", "value",
                            "consumer: %s reads no CSV table; GET /api/v1/export/configs.json has its files",
                            mf_framework_title(framework));
    return make_table(r, s, &q->options, ret, ret_left_out);
}

int mf_api_export(void *reader, struct mf_request *r)
{
    struct mf_store *s = ((struct mf_reader *)reader)->store;
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL;
    struct mf_table_query q;
    char why[MF_REASON_MAX] = "", hash[MF_SHA256_TEXT_MAX];
    struct mf_response *p = &r->response;
    int e = make(r, s, &q, &table, &left_out);
    if (e < 0)
        return e;
    e = mf_export_print(table, &q.options, &p->body, why);
    if (e < 0)
        return mf_refuse(p, 500, "write the table: %s", why);
    mf_sha256_print(p->body.data, p->body.len, hash);
    if ((e = mf_table_answer(r, s, "text/csv; charset=utf-8", hash)) < 0)
        return e;
    (void)mf_respond_header(p, "Moefarm-Left-Out", "%d", cJSON_GetArraySize(left_out));
    return mf_respond_header(p, "Content-Disposition", "inline; filename=\"tuned_fmoe.csv\"");
}

/* ---- configuration files of vLLM and SGLang: their names contain the device model ---- */

static int make_configs(struct mf_request *r, struct mf_store *s, const struct mf_export_options *o,
                        cJSON **ret, cJSON **ret_left_out)
{
    int e = mf_export_configs(s, o, ret, ret_left_out);
    if (e == -EINVAL)
        return mf_refuse_at(&r->response, 400, "consumer", "value",
                            "consumer: expected vllm or sglang; other consumers read tuned_fmoe.csv");
    return e < 0 ? mf_refuse_errno(&r->response, e, "build the files") : 0;
}

int mf_api_configs(void *reader, struct mf_request *r)
{
    struct mf_store *s = ((struct mf_reader *)reader)->store;
    _cleanup_(cJSON_Deletep) cJSON *configs = NULL, *left_out = NULL;
    struct mf_table_query q;
    char hash[MF_SHA256_TEXT_MAX];
    int e = mf_table_query_options(r, &q);
    if (e == 0)
        e = make_configs(r, s, &q.options, &configs, &left_out);
    if (e < 0)
        return e;
    int n = cJSON_GetArraySize(left_out);
    cJSON_AddItemToObject(configs, "left_out", MF_TAKE(left_out));
    _cleanup_(mf_freep) char *text = mf_json_print(configs);
    if (!text || mf_buf_adds(&r->response.body, text) < 0)
        return mf_refuse_errno(&r->response, -ENOMEM, "print the files");
    mf_sha256_print(r->response.body.data, r->response.body.len, hash);
    e = mf_table_answer(r, s, "application/json", hash);
    return e < 0 ? e : mf_respond_header(&r->response, "Moefarm-Left-Out", "%d", n);
}

/* Returns one page of an array in memory. The id of the cursor is an index. */
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
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL, *configs = NULL;
    struct mf_table_query q;
    enum mf_framework framework;
    int e = mf_table_query_options(r, &q);
    if (e < 0)
        return e;
    if (mf_consumer_framework(q.options.consumer, &framework) == 0)
        e = make_configs(r, s, &q.options, &configs, &left_out);
    else if ((e = mf_table_query_read(r, s, &q)) == 0)
        e = make_table(r, s, &q.options, &table, &left_out);
    return e < 0 ? e : mf_respond_json(&r->response, 200, page_of(left_out, &r->page));
}

/* --- merge ---------------------------------------------------------------------------------------------- */

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
    struct mf_merge_options options = {.replace = mf_request_flag(r, "replace")};
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
    struct mf_table_query q;
    char why[MF_REASON_MAX] = "";
    int e = mf_request_check_lines(r, "body", r->body.data, r->body.len, MF_REQUEST_LINES_MAX);
    if (e < 0)
        return e;
    e = mf_table_read("body", r->body.data, r->body.len, &old, why);
    if (e == -EBADMSG || e == -EFBIG)
        return mf_refuse_at(&r->response, 422, "body", "csv", "%s", why);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "read the table");
    e = make(r, ((struct mf_reader *)reader)->store, &q, &fresh, &left_out);
    if (e < 0 || (e = merge(r, old, fresh, o)) < 0)
        return e;
    cJSON_AddNumberToObject(o, "left_out", cJSON_GetArraySize(left_out));
    return mf_respond_json(&r->response, 200, MF_TAKE(o));
}
