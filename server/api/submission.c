#include "server/api/submission.h"

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/production_key.h"
#include "common/moe/routing.h"
#include "common/moe/shape_json.h"
#include "common/table/table.h"
#include "server/api/api.h"
#include "server/http/problem.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* --- rows ----------------------------------------------------------------------------------------------- */

void mf_submission_work_free(void *p)
{
    struct mf_submission_work *w = p;
    if (!w)
        return;
    free(w->shapes);
    free(w->aiter_keys);
    free(w->known);
    mf_table_free(w->baseline);
    cJSON_Delete(w->errors);
    cJSON_Delete(w->unknown_columns);
    free(w);
}

struct row_error {
    int64_t line; /* 0: no line */
    const char *at, *code, *message;
};

static int add_to(cJSON *list, const struct row_error *e)
{
    int r = mf_errors_add(list, e->at, e->code, "%s", e->message);
    if (r == 0 && e->line > 0)
        cJSON_AddNumberToObject(cJSON_GetArrayItem(list, cJSON_GetArraySize(list) - 1), "line",
                                (double)e->line);
    return r;
}

static int add_error(struct mf_submission_work *w, const struct row_error *e)
{
    return w->n_errors++ < MF_SUBMISSION_ERRORS_MAX ? add_to(w->errors, e) : 0;
}

int mf_submission_error(struct mf_submission_work *w, const char *at, const char *code, const char *message)
{
    return add_error(w, &(struct row_error){0, at, code, message});
}

/* For consumer aiter: replaces a shape by the key that production looks up, or adds the key if the batch has
 * other consumers too. Reports the change in the list of errors. */
static int use_production_key(struct mf_submission_work *w, struct mf_shape *shape, int64_t line,
                              const char *at)
{
    const mf_consumers all = mf_batch_consumers(&w->submission.options);
    const mf_consumers aiter = MF_CONSUMER_BIT(MF_CONSUMER_AITER);
    struct mf_shape key;
    char why[256] = "", message[320];
    if (!(all & aiter) ||
        mf_production_row(shape, &w->submission.options.aiter_env, &key, why, sizeof(why)) == 0)
        return 0;
    int r = mf_array_grow(&w->aiter_keys, w->n_aiter_keys, &w->cap_aiter_keys, sizeof(key));
    if (r < 0)
        return r;
    if (all == aiter)
        *shape = key;
    else
        w->aiter_keys[w->n_aiter_keys++] = key;
    mf_format(message, sizeof(message), "%s; tuning that key %s", why,
              all == aiter ? "instead" : "for AITER, and this one for the other consumers");
    return add_error(w, &(struct row_error){line, at, "production_key", message});
}

static int add_shape(struct mf_submission_work *w, const struct mf_shape *shape)
{
    int r = mf_array_grow(&w->shapes, w->submission.n_shapes, &w->cap, sizeof(*w->shapes));
    if (r < 0)
        return r;
    w->shapes[w->submission.n_shapes++] = *shape;
    return 0;
}

/* Origin of a shape, for reports of duplicates. */
struct origin {
    size_t shape; /* index */
    int64_t at;   /* line of the CSV, or index in `shapes` */
};

static int compare_origins(const void *a, const void *b, void *shapes)
{
    const struct origin *x = a, *y = b;
    const struct mf_shape *list = shapes;
    int r = mf_shape_compare(&list[x->shape], &list[y->shape]);
    return r ? r : (x->shape > y->shape) - (x->shape < y->shape);
}

static int compare_order(const void *a, const void *b)
{
    const struct origin *x = a, *y = b;
    return (x->shape > y->shape) - (x->shape < y->shape);
}

/* If several shapes are equal, keeps the first and reports the others. Does not change the order. lines:
 * true: origin.at is a line of the CSV; false: it is an index in `shapes`. */
static int drop_duplicates(struct mf_submission_work *w, struct origin *origins, bool lines)
{
    size_t n = w->submission.n_shapes, kept = 0, n_kept = 0;
    qsort_r(origins, n, sizeof(*origins), compare_origins, w->shapes);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !mf_shape_equal(&w->shapes[origins[i].shape], &w->shapes[origins[kept].shape])) {
            kept = n_kept;
            origins[n_kept++] = origins[i];
            continue;
        }
        char at[48], message[96];
        mf_format(at, sizeof(at), lines ? "" : "shapes[%lld]", (long long)origins[i].at);
        mf_format(message, sizeof(message),
                  lines ? "duplicate of line %lld; tuned once" : "duplicate of shapes[%lld]; tuned once",
                  (long long)origins[kept].at);
        int r = add_error(w, &(struct row_error){lines ? origins[i].at : 0, at, "duplicate", message});
        if (r < 0)
            return r;
    }
    qsort(origins, n_kept, sizeof(*origins), compare_order);
    for (size_t i = 0; i < n_kept; i++)
        w->shapes[i] = w->shapes[origins[i].shape];
    w->submission.n_shapes = n_kept;
    return 0;
}

/* Reports a problem found by the table reader. */
static int add_problem(struct mf_submission_work *w, const struct mf_problem *q, struct mf_response *p)
{
    const char *code = mf_problem_code_name(q->code);
    const struct row_error e = {q->line, q->column, code, q->reason};
    int r = 0;
    if (q->code == MF_PROBLEM_MISSPELT_COLUMN)
        return mf_refuse_at(p, 422, q->column, code, "%s", q->reason);
    if (q->code == MF_PROBLEM_UNKNOWN_COLUMN)
        r = add_to(w->unknown_columns, &e);
    else if (q->severity == MF_ERROR)
        r = add_error(w, &e);
    return r < 0 ? mf_refuse_errno(p, r, "read the table") : 0;
}

static int read_csv(struct mf_submission_work *w, const char *text, size_t len, struct mf_response *p)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    _cleanup_(mf_freep) struct origin *origins = NULL;
    char why[MF_REASON_MAX] = "";
    int r = mf_table_read_part("body", text, len, MF_TABLE_SHAPES, &t, why);
    if (r == -EBADMSG || r == -EFBIG)
        return mf_refuse_at(p, 422, "body", "csv", "%s", why);
    if (r < 0)
        return mf_refuse_errno(p, r, "read the table");
    if (t->op != MF_TABLE_FMOE)
        return mf_refuse_at(p, 422, "body", "operator",
                            "the table belongs to another operator; expected an untuned_fmoe.csv");

    for (size_t i = 0; i < t->n_problems; i++)
        if ((r = add_problem(w, &t->problems[i], p)) < 0)
            return r;
    origins = calloc(t->n_rows ? t->n_rows : 1, sizeof(*origins));
    for (size_t i = 0; origins && i < t->n_rows; i++) {
        struct mf_shape shape = t->rows[i].shape;
        if (use_production_key(w, &shape, t->rows[i].line, "") < 0 || add_shape(w, &shape) < 0)
            return mf_refuse_errno(p, -ENOMEM, "read the table");
        origins[i] = (struct origin){i, t->rows[i].line};
    }
    r = origins ? drop_duplicates(w, origins, true) : -ENOMEM;
    return r < 0 ? mf_refuse_errno(p, r, "read the table") : 0;
}

/* Reads the table in a field of the request. */
static int check_csv(struct mf_submission_work *w, const char *at, const char *text, size_t len,
                     struct mf_request *r)
{
    int e = mf_request_check_lines(r, at, text, len, MF_SUBMISSION_ROWS_MAX);
    return e < 0 ? e : read_csv(w, text, len, &r->response);
}

/* Context of add_shape_problem. */
struct shape_problems {
    struct mf_submission_work *w;
    int index;
};

static int add_shape_problem(void *context, const char *column, const char *code, const char *why)
{
    const struct shape_problems *to = context;
    char at[96];
    mf_format(at, sizeof(at), "shapes[%d]%s%.60s", to->index, *column ? "." : "", column);
    return add_error(to->w, &(struct row_error){0, at, code, why});
}

static int read_shapes(struct mf_submission_work *w, const cJSON *shapes, struct mf_response *p)
{
    int n = cJSON_GetArraySize(shapes);
    if (n > MF_SUBMISSION_ROWS_MAX)
        return mf_refuse_at(p, 413, "shapes", "too_many", "shapes: %d entries; the limit is %d: split it", n,
                            MF_SUBMISSION_ROWS_MAX);
    _cleanup_(mf_freep) struct origin *origins = calloc((size_t)n + 1, sizeof(*origins));
    const cJSON *item;
    int index = 0, r = origins ? 0 : -ENOMEM;

    for (item = shapes->child; r >= 0 && item; item = item->next, index++) {
        struct mf_shape shape;
        r = mf_shape_from_json(item, &shape, add_shape_problem, &(struct shape_problems){w, index});
        if (r > 0) {
            char at[48];
            mf_format(at, sizeof(at), "shapes[%d]", index);
            origins[w->submission.n_shapes] = (struct origin){w->submission.n_shapes, index};
            r = use_production_key(w, &shape, 0, at);
            if (r == 0)
                r = add_shape(w, &shape);
        }
    }
    if (r >= 0)
        r = drop_duplicates(w, origins, false);
    return r < 0 ? mf_refuse_errno(p, r, "read the shapes") : 0;
}

/* --- body ----------------------------------------------------------------------------------------------- */

static int set_name(struct mf_submission_work *w, const char *text, struct mf_response *p)
{
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return mf_refuse_at(p, 400, "name", "value",
                                "name: expected one line of text without control characters");
    if (mf_copy(w->name, sizeof(w->name), text) < 0)
        return mf_refuse_at(p, 400, "name", "too_long", "name: too long; the limit is %zu bytes",
                            sizeof(w->name) - 1);
    return 0;
}

static int set_option(struct mf_submission_work *w, const char *at, const char *name, const char *text,
                      struct mf_response *p)
{
    const struct mf_batch_option *o = mf_batch_option_find(name);
    char expected[MF_OPTION_HELP_MAX];
    if (!o)
        return mf_refuse_at(p, 400, at, "unknown",
                            "%s: no such option; /api/openapi.json lists the options of a submission", at);
    w->promote_given |= strcmp(name, "promote") == 0;
    w->min_effect_given |= strcmp(name, "min_effect") == 0;
    if (mf_batch_option_parse(o, text, &w->submission.options) == 0)
        return 0;
    mf_batch_option_expected(o, expected);
    return mf_refuse_at(p, 400, at, "value", "%s: %s", at, expected);
}

static int read_query(struct mf_submission_work *w, struct mf_request *r)
{
    int e = 0;
    for (int i = 0; e == 0 && i < r->n_query; i++) {
        const struct mf_query_item *q = &r->query[i];
        e = strcmp(q->name, "name") == 0 ? set_name(w, q->value, &r->response)
                                         : set_option(w, q->name, q->name, q->value, &r->response);
    }
    return e;
}

/* Converts an array of strings to a comma-separated list, and an array of counts to a recorded routing
 * profile. */
static int array_text(const cJSON *array, char *buf, size_t cap)
{
    bool numbers = cJSON_IsNumber(array->child);
    size_t len = 0;
    buf[0] = '\0';
    for (const cJSON *item = array->child; item; item = item->next) {
        if (numbers
                ? !cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 9007199254740991.0 ||
                      item->valuedouble != floor(item->valuedouble)
                : !cJSON_IsString(item))
            return -EINVAL;
        if (numbers)
            mf_format(buf + len, cap - len, "%s%.0f", len > 0 ? "." : "recorded:", item->valuedouble);
        else
            mf_format(buf + len, cap - len, "%s%s", len > 0 ? "," : "", item->valuestring);
        len += strlen(buf + len);
        if (len + 1 >= cap)
            return -EINVAL;
    }
    return 0;
}

/* JSON types that an option accepts. */
static const char *json_type(const char *name)
{
    const struct mf_batch_option *o = mf_batch_option_find(name);
    if (o && o->type == MF_OPTION_LIST)
        return "a string or an array of strings";
    if (o && o->type == MF_OPTION_ROUTING)
        return "a string or an array of counts";
    return "a number or a string";
}

static int read_options(struct mf_submission_work *w, const cJSON *list, struct mf_response *p)
{
    const cJSON *member;
    cJSON_ArrayForEach (member, list) {
        char at[96], text[32 + 17 * MF_ROUTING_COUNTS_MAX] = "";
        mf_format(at, sizeof(at), "options.%.60s", member->string);
        int r = cJSON_IsArray(member) ? array_text(member, text, sizeof(text))
                                      : mf_json_value_text(member, text, sizeof(text));
        if (r < 0)
            return mf_refuse_at(p, 400, at, "type", "%s: expected %s", at, json_type(member->string));
        if ((r = set_option(w, at, member->string, text, p)) < 0)
            return r;
    }
    return 0;
}

static const struct {
    const char *name;
    int type;
    const char *expected;
} members[] = {
    {"name", cJSON_String, "a string"},
    {"shapes", cJSON_Array, "an array"},
    {"csv", cJSON_String, "a string with the table"},
    {"baseline", cJSON_String, "a string with the table"},
    {"options", cJSON_Object, "an object"},
};

static int check_member(const cJSON *member, struct mf_response *p)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(members); i++) {
        if (strcmp(member->string, members[i].name) != 0)
            continue;
        return (member->type & 0xff) == members[i].type
                   ? 0
                   : mf_refuse_at(p, 400, member->string, "type", "%s: expected %s", member->string,
                                  members[i].expected);
    }
    return mf_refuse_at(p, 400, member->string, "unknown",
                        "%.60s: unknown member; expected name (string), shapes (array), csv (string), "
                        "baseline (string) or options (object)",
                        member->string);
}

static int read_json(struct mf_submission_work *w, struct mf_request *r)
{
    struct mf_response *p = &r->response;
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    const cJSON *member, *shapes = NULL, *csv = NULL;
    int e = mf_request_object(r, &json);
    if (e < 0)
        return e;
    cJSON_ArrayForEach (member, json) {
        if ((e = check_member(member, p)) < 0)
            return e;
        if (strcmp(member->string, "name") == 0)
            e = set_name(w, member->valuestring, p);
        else if (strcmp(member->string, "options") == 0)
            e = read_options(w, member, p);
        else if (strcmp(member->string, "baseline") == 0)
            e = mf_baseline_read(w, member->valuestring, r);
        else if (strcmp(member->string, "shapes") == 0)
            shapes = member;
        else
            csv = member;
        if (e < 0)
            return e;
    }
    if (!shapes == !csv)
        return mf_refuse_at(p, 400, "shapes", shapes ? "conflict" : "missing",
                            "expected either shapes or csv%s", shapes ? ", not both" : "");
    return shapes ? read_shapes(w, shapes, p)
                  : check_csv(w, "csv", csv->valuestring, strlen(csv->valuestring), r);
}

/* Hashes content type, query and body. The order of query parameters does not matter. */
static void hash_body(struct mf_submission_work *w, const struct mf_request *r, bool json)
{
    unsigned char hash[32], sum[32] = {0};
    crypto_generichash_state state;
    for (int i = 0; i < r->n_query; i++) {
        (void)crypto_generichash_init(&state, NULL, 0, sizeof(hash));
        (void)crypto_generichash_update(&state, (const unsigned char *)r->query[i].name,
                                        strlen(r->query[i].name) + 1);
        (void)crypto_generichash_update(&state, (const unsigned char *)r->query[i].value,
                                        strlen(r->query[i].value));
        (void)crypto_generichash_final(&state, hash, sizeof(hash));
        for (size_t j = 0; j < sizeof(sum); j++)
            sum[j] ^= hash[j];
    }
    (void)crypto_generichash_init(&state, NULL, 0, sizeof(hash));
    (void)crypto_generichash_update(&state, (const unsigned char *)(json ? "json" : "csv "), 4);
    (void)crypto_generichash_update(&state, sum, sizeof(sum));
    (void)crypto_generichash_update(&state, (const unsigned char *)r->body.data, r->body.len);
    (void)crypto_generichash_final(&state, hash, sizeof(hash));
    (void)sodium_bin2hex(w->hash, sizeof(w->hash), hash, sizeof(hash));
}

/* Drops shapes that the routing profile does not fit, and reports them as errors. All shapes of a batch are
 * timed with one profile. */
static int drop_unroutable(struct mf_submission_work *w)
{
    size_t kept = 0;
    for (size_t i = 0; i < w->submission.n_shapes; i++) {
        char why[192], message[MF_SHAPE_TEXT_MAX + 256], text[MF_SHAPE_TEXT_MAX];
        if (mf_routing_fits(&w->submission.options.routing, &w->shapes[i], why, sizeof(why)) == 0) {
            w->shapes[kept++] = w->shapes[i];
            continue;
        }
        mf_shape_print(&w->shapes[i], text);
        mf_format(message, sizeof(message), "%s: %s", text, why);
        int r = add_error(w, &(struct row_error){0, "options.routing", "mismatch", message});
        if (r < 0)
            return r;
    }
    w->submission.n_shapes = kept;
    return 0;
}

static int compare_shapes(const void *a, const void *b)
{
    return mf_shape_compare(a, b);
}

/* Appends AITER's keys that were not submitted themselves to the shapes. Keeps only these in aiter_keys,
 * sorted. */
static int add_aiter_keys(struct mf_submission_work *w)
{
    size_t n = w->submission.n_shapes, kept = 0;
    _cleanup_(mf_freep) struct mf_shape *sorted = calloc(n + 1, sizeof(*sorted));
    int r = sorted ? 0 : -ENOMEM;
    if (r < 0 || w->n_aiter_keys == 0)
        return r;
    for (size_t i = 0; i < n; i++)
        sorted[i] = w->shapes[i];
    qsort(sorted, n, sizeof(*sorted), compare_shapes);
    qsort(w->aiter_keys, w->n_aiter_keys, sizeof(*w->aiter_keys), compare_shapes);
    for (size_t i = 0; r == 0 && i < w->n_aiter_keys; i++) {
        const struct mf_shape *key = &w->aiter_keys[i];
        if ((kept > 0 && mf_shape_equal(key, &w->aiter_keys[kept - 1])) ||
            bsearch(key, sorted, n, sizeof(*sorted), compare_shapes))
            continue;
        r = add_shape(w, key);
        w->aiter_keys[kept++] = *key;
    }
    w->n_aiter_keys = kept;
    return r;
}

/* Adds an entry with the number of errors that are not listed. */
static int report_unlisted(struct mf_submission_work *w)
{
    struct row_error e = {.at = "body", .code = "more"};
    char message[64];

    if (w->n_errors <= MF_SUBMISSION_ERRORS_MAX)
        return 0;
    mf_format(message, sizeof(message), "%zu more %s not listed", w->n_errors - MF_SUBMISSION_ERRORS_MAX,
              w->n_errors - MF_SUBMISSION_ERRORS_MAX == 1 ? "is" : "are");
    e.message = message;
    return add_to(w->errors, &e);
}

static int check_rows(struct mf_submission_work *w, struct mf_request *r)
{
    int e = add_aiter_keys(w);
    if (e == 0)
        e = drop_unroutable(w);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "check the routing");
    if (w->submission.n_shapes > MF_SUBMISSION_SHAPES_MAX)
        return mf_refuse_at(&r->response, 422, "body", "too_many",
                            "%zu shapes; the limit of a batch is %d: split it", w->submission.n_shapes,
                            MF_SUBMISSION_SHAPES_MAX);
    if (w->submission.n_shapes == 0 && w->n_errors == 0)
        return mf_refuse_at(&r->response, 422, "body", "empty",
                            "the submission is empty; add one row per shape");
    if (w->submission.n_shapes == 0 && report_unlisted(w) < 0)
        return mf_refuse_errno(&r->response, -ENOMEM, "list the errors");
    if (w->submission.n_shapes == 0)
        return mf_refuse_errors(&r->response, 422, "no valid shape in the submission; see errors",
                                MF_TAKE(w->errors));
    return 0;
}

/* Refuses a threshold that would have no effect. A baseline implies promote=improved. */
static int check_min_effect(const struct mf_submission_work *w, bool json, struct mf_response *p)
{
    if (!w->min_effect_given || w->submission.options.promote == MF_PROMOTE_IMPROVED)
        return 0;
    return mf_refuse_at(
        p, 400, json ? "options.min_effect" : "min_effect", "conflict",
        "min_effect: has no effect without promote=improved or a baseline; add promote=improved");
}

/* Refuses a time budget if every candidate is measured, or none. */
static int check_time_budget(const struct mf_submission_work *w, bool json, struct mf_response *p)
{
    const struct mf_batch_options *o = &w->submission.options;
    if (o->time_budget == 0 || o->search == MF_SEARCH_RACE)
        return 0;
    return mf_refuse_at(p, 400, json ? "options.time_budget" : "time_budget", "conflict",
                        "time_budget: has no effect with search=%s; leave out one of them",
                        mf_search_name(o->search));
}

static void name_by_default(struct mf_submission_work *w)
{
    if (!w->name[0])
        mf_format(w->name, sizeof(w->name), "%zu shape%s", w->submission.n_shapes,
                  w->submission.n_shapes == 1 ? "" : "s");
}

int mf_api_submit_read(void *reader, struct mf_request *r)
{
    struct mf_submission_work *w = calloc(1, sizeof(*w));
    bool json = strncasecmp(r->content_type, "application/json", 16) == 0;
    (void)reader;
    if (!w)
        return mf_refuse_errno(&r->response, -ENOMEM, "read the submission");
    r->work = w;
    r->work_free = mf_submission_work_free;
    w->errors = cJSON_CreateArray();
    w->unknown_columns = cJSON_CreateArray();
    w->submission = (struct mf_submission){.options = mf_batch_options_default()};
    if (json && r->n_query > 0)
        return mf_refuse_at(&r->response, 400, r->query[0].name, "place",
                            "%s: a JSON submission takes no query parameters; put name into the body and the "
                            "other options into its `options`",
                            r->query[0].name);
    int e = read_query(w, r);
    if (e == 0)
        e = json ? read_json(w, r) : check_csv(w, "body", r->body.data, r->body.len, r);
    if (e == 0)
        e = check_rows(w, r);
    if (e == 0)
        e = mf_baseline_check(w, &r->response);
    if (e == 0)
        e = check_min_effect(w, json, &r->response);
    if (e == 0)
        e = check_time_budget(w, json, &r->response);
    if (e == 0 && report_unlisted(w) < 0)
        e = mf_refuse_errno(&r->response, -ENOMEM, "list the errors");
    if (e < 0)
        return e;
    name_by_default(w);
    hash_body(w, r, json);
    (void)mf_copy(w->key, sizeof(w->key), r->idempotency_key);
    w->submission.name = w->name;
    w->submission.idempotency_key = w->key;
    w->submission.body_hash = w->hash;
    w->submission.shapes = w->shapes;
    w->submission.aiter_keys = w->aiter_keys;
    w->submission.n_aiter_keys = w->n_aiter_keys;
    w->submission.errors = w->errors;
    w->submission.unknown_columns = w->unknown_columns;
    mf_buf_release(&r->body);
    return 0;
}
