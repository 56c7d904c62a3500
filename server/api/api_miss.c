/* Handlers of production misses: reports, the list, and batches made from it. */
#include "server/api/api.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/shape_json.h"
#include "server/farm/miss.h"
#include "server/http/problem.h"
#include "server/http/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#define COUNT_MAX  (INT64_C(1) << 53)
#define ERRORS_MAX 1000

/* ---- a report ---- */

struct work {
    struct mf_miss_report report; /* points into the fields below */
    char source[MF_MISS_SOURCE_MAX];
    char key[128];
    char hash[65];
    struct mf_miss_row *rows;
    size_t n_rows;
    cJSON *errors;
};

static void work_free(void *p)
{
    struct work *w = p;
    free(w->rows);
    cJSON_Delete(w->errors);
    free(w);
}

/* Context of add_shape_problem. */
struct row_problems {
    struct work *w;
    int index;
};

static int add_error(struct work *w, const char *at, const char *code, const char *why)
{
    return cJSON_GetArraySize(w->errors) < ERRORS_MAX ? mf_errors_add(w->errors, at, code, "%s", why) : 0;
}

static int add_shape_problem(void *context, const char *member, const char *code, const char *why)
{
    const struct row_problems *to = context;
    char at[112];
    mf_format(at, sizeof(at), "misses[%d].shape%s%.60s", to->index, *member ? "." : "", member);
    return add_error(to->w, at, code, why);
}

/* Returns 1 if the object has only known members. Otherwise adds an error, so that a misspelt member is
 * reported, and returns 0, or -ENOMEM. */
static int check_members(struct work *w, const cJSON *item, int index)
{
    char at[112];
    const cJSON *member;
    mf_format(at, sizeof(at), "misses[%d]", index);
    if (!cJSON_IsObject(item))
        return add_error(w, at, "type", "expected an object with shape and count") < 0 ? -ENOMEM : 0;
    cJSON_ArrayForEach (member, item) {
        if (strcmp(member->string, "shape") == 0 || strcmp(member->string, "count") == 0 ||
            strcmp(member->string, "layout") == 0)
            continue;
        mf_format(at, sizeof(at), "misses[%d].%.60s", index, member->string);
        return add_error(w, at, "unknown", "unknown member; expected shape, count and layout") < 0 ? -ENOMEM
                                                                                                   : 0;
    }
    return 1;
}

static int read_row(struct work *w, const cJSON *item, int index)
{
    struct mf_miss_row *row = &w->rows[w->n_rows];
    char at[112];
    int r = check_members(w, item, index);
    if (r <= 0)
        return r;
    r = mf_shape_from_json(cJSON_GetObjectItemCaseSensitive(item, "shape"), &row->shape, add_shape_problem,
                           &(struct row_problems){w, index});
    if (r <= 0)
        return r;
    const cJSON *layout = cJSON_GetObjectItemCaseSensitive(item, "layout");
    if (layout && (!cJSON_IsString(layout) || !mf_path_is_layout(layout->valuestring))) {
        mf_format(at, sizeof(at), "misses[%d].layout", index);
        return add_error(w, at, "value", "expected \"w1=LAYOUT w2=LAYOUT\"");
    }
    row->layout[0] = '\0';
    if (layout)
        (void)mf_copy(row->layout, sizeof(row->layout), layout->valuestring);
    if (mf_json_i64(item, "count", 1, COUNT_MAX, &row->count) == 0) {
        w->n_rows++;
        return 0;
    }
    mf_format(at, sizeof(at), "misses[%d].count", index);
    return add_error(w, at, "range", "expected an integer from 1 to 2^53");
}

static int read_source(struct work *w, const cJSON *json, struct mf_response *p)
{
    const char *source = "";
    int r = mf_json_text(json, "source", &source);
    for (const char *c = source; r == 0 && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            r = -EINVAL;
    if (r == 0)
        r = *source ? mf_copy(w->source, sizeof(w->source), source) : -EINVAL;
    return r < 0 ? mf_refuse_at(p, 422, "source", "value",
                                "source: expected one line of 1 to %d bytes that names the reporting host",
                                MF_MISS_SOURCE_MAX - 1)
                 : 0;
}

static int read_class(struct work *w, const cJSON *json, struct mf_response *p)
{
    const char *class = "";
    (void)mf_json_text(json, "class", &class);
    return mf_device_class_parse(class, &w->report.class) < 0
               ? mf_refuse_at(p, 422, "class", "value", "class: expected a device class such as gfx942/304")
               : 0;
}

static int read_rows(struct work *w, const cJSON *misses, struct mf_response *p)
{
    const cJSON *item;
    int n = cJSON_GetArraySize(misses), index = 0, r = 0;
    if (!cJSON_IsArray(misses) || n == 0 || n > MF_MISS_REPORT_ROWS)
        return mf_refuse_at(p, 422, "misses", "range",
                            "misses: expected an array of 1 to %d objects {shape, count}",
                            MF_MISS_REPORT_ROWS);
    w->rows = calloc((size_t)n, sizeof(*w->rows));
    r = w->rows ? 0 : -ENOMEM;
    cJSON_ArrayForEach (item, misses)
        if (r >= 0)
            r = read_row(w, item, index++);
    if (r < 0)
        return mf_refuse_errno(p, r, "read the misses");
    if (w->n_rows == 0)
        return mf_refuse_errors(p, 422, "no valid entry in misses; see errors", MF_TAKE(w->errors));
    return 0;
}

static int read_body(struct work *w, struct mf_request *r)
{
    struct mf_response *p = &r->response;
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    const cJSON *member;
    int e = mf_request_object(r, &json);
    if (e < 0)
        return e;
    cJSON_ArrayForEach (member, json)
        if (strcmp(member->string, "source") != 0 && strcmp(member->string, "class") != 0 &&
            strcmp(member->string, "misses") != 0)
            return mf_refuse_at(
                p, 422, member->string, "unknown",
                "%.60s: unknown member; expected source (string), class (gfx/cu) and misses (array)",
                member->string);
    e = read_source(w, json, p);
    if (e == 0)
        e = read_class(w, json, p);
    return e < 0 ? e : read_rows(w, cJSON_GetObjectItemCaseSensitive(json, "misses"), p);
}

int mf_api_misses_read(void *reader, struct mf_request *r)
{
    unsigned char hash[32];
    struct work *w = calloc(1, sizeof(*w));
    (void)reader;
    if (!w)
        return mf_refuse_errno(&r->response, -ENOMEM, "read the misses");
    r->work = w;
    r->work_free = work_free;
    w->errors = cJSON_CreateArray();
    int e = read_body(w, r);
    if (e < 0)
        return e;
    (void)crypto_generichash(hash, sizeof(hash), (const unsigned char *)r->body.data, r->body.len, NULL, 0);
    (void)sodium_bin2hex(w->hash, sizeof(w->hash), hash, sizeof(hash));
    (void)mf_copy(w->key, sizeof(w->key), r->idempotency_key);
    w->report.source = w->source;
    w->report.idempotency_key = w->key;
    w->report.body_hash = w->hash;
    w->report.rows = w->rows;
    w->report.n_rows = w->n_rows;
    w->report.errors = w->errors;
    mf_buf_release(&r->body);
    return 0;
}

int mf_api_misses_write(void *farm, struct mf_request *r)
{
    const struct work *w = r->work;
    cJSON *receipt = NULL;
    int e = mf_farm_misses_add(farm, &w->report, &receipt);
    if (e == -EEXIST)
        return mf_refuse_at(&r->response, 409, "header.Idempotency-Key", "reused",
                            "Idempotency-Key: %s was already used with a different body; use a new key",
                            r->idempotency_key);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "store the misses");
    return mf_respond_json(&r->response, e == 1 ? 200 : 201, receipt);
}

/* ---- list and batches ---- */

static int query_class(struct mf_request *r, struct mf_device_class *class,
                       const struct mf_device_class **ret)
{
    const char *text = mf_request_query(r, "class");
    *ret = text ? class : NULL;
    if (text && mf_device_class_parse(text, class) < 0)
        return mf_refuse_at(&r->response, 400, "class", "value",
                            "class: expected a device class such as gfx942/304");
    return 0;
}

int mf_api_misses(void *reader, struct mf_request *r)
{
    struct mf_device_class class;
    const struct mf_device_class *of;
    const char *state = mf_request_query(r, "state");
    enum mf_miss_state parsed;
    struct mf_list list;
    if (query_class(r, &class, &of) < 0)
        return -EINVAL;
    if (state && mf_miss_state_parse(state, &parsed) < 0)
        return mf_refuse_at(&r->response, 400, "state", "value",
                            "state: expected one of open, tuning, tuned, failed");
    int e = mf_read_misses(((struct mf_reader *)reader)->store, of, state, &r->page, &list);
    return e < 0 ? mf_refuse_errno(&r->response, e, "read the misses")
                 : mf_respond_list(&r->response, list.items, list.next);
}

static int refuse_priority(struct mf_request *r)
{
    char expected[MF_OPTION_HELP_MAX];
    mf_batch_option_expected(mf_batch_option_find("priority"), expected);
    return mf_refuse_at(&r->response, 400, "priority", "range", "priority: %s", expected);
}

int mf_api_misses_submit(void *farm, struct mf_request *r)
{
    struct mf_device_class class;
    struct mf_miss_filter filter = {.min_count = 1, .failed = mf_request_flag(r, "failed")};
    const char *least = mf_request_query(r, "min_count"), *text = mf_request_query(r, "priority");
    struct mf_batch_options options = mf_batch_options_default();
    cJSON *batches = NULL;
    if (query_class(r, &class, &filter.class) < 0)
        return -EINVAL;
    if (least && mf_parse_i64(least, 1, COUNT_MAX, &filter.min_count) < 0)
        return mf_refuse_at(&r->response, 400, "min_count", "range",
                            "min_count: expected an integer of 1 or more");
    if (text && mf_batch_option_parse(mf_batch_option_find("priority"), text, &options) < 0)
        return refuse_priority(r);
    int e = mf_farm_misses_submit(farm, &filter, (int)options.priority, &batches);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "submit the misses");
    cJSON *o = cJSON_CreateObject();
    int status = cJSON_GetArraySize(batches) > 0 ? 201 : 200;
    cJSON_AddItemToObject(o, "batches", batches);
    return mf_respond_json(&r->response, status, o);
}
