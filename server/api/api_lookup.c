/* Handler of GET /lookup: the tuned row or configuration for one call of a consumer, with its provenance. */
#include "server/api/api.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/production_lookup.h"
#include "common/moe/shape_json.h"
#include "common/table/triton/triton_config.h"
#include "server/api/api_table.h"
#include "server/api/export_configs.h"
#include "server/http/problem.h"
#include "server/http/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the answer needs of a config besides its table row. */
struct origin {
    int64_t batch, task, config;
    double us;
    struct mf_shape shape;
    char model[128], step[MF_STEP_NAME_MAX];
    cJSON *provenance;
};

struct lookup {
    struct mf_table_query query;
    struct mf_shape call;
    struct mf_table *table;
    struct origin *origins; /* origins[i] belongs to row i of the table */
    size_t n, cap;
};

static void release(struct lookup *l)
{
    for (size_t i = 0; i < l->n; i++)
        cJSON_Delete(l->origins[i].provenance);
    free(l->origins);
    (void)mf_table_free(l->table);
}

/* ---- the request ---- */

static int read_call(struct mf_request *r, struct lookup *l)
{
    const char *layer = mf_request_query(r, "layer"), *token = mf_request_query(r, "token");
    char row[MF_SHAPE_TEXT_MAX];
    int64_t n;
    if (!mf_request_query(r, "class"))
        return mf_refuse_at(&r->response, 400, "class", "missing",
                            "class: expected a device class such as gfx942/304");
    if (!token || mf_parse_i64(token, 1, INT32_MAX, &n) < 0)
        return mf_refuse_at(&r->response, 400, "token", token ? "range" : "missing",
                            "token: expected a token count of 1 or more");
    mf_format(row, sizeof(row), "1,%s", layer ? layer : "");
    if (!layer || mf_shape_parse(row, &l->call) < 0)
        return mf_refuse_at(&r->response, 400, "layer", layer ? "value" : "missing",
                            "layer: expected eleven comma-separated values, a shape's row without its token "
                            "count; a form may follow");
    l->call.token = n;
    return 0;
}

/* ---- the rows ---- */

static int add_origin(const struct mf_export_config *c, const struct mf_table_row *row, void *data)
{
    struct lookup *l = data;
    int r = mf_array_grow(&l->origins, l->n, &l->cap, sizeof(*l->origins));
    if (r < 0)
        return r;
    struct origin *o = &l->origins[l->n++];
    *o = (struct origin){
        .batch = c->batch, .task = c->task, .config = c->config, .us = c->us, .shape = row->shape};
    mf_format(o->model, sizeof(o->model), "%s", c->model);
    mf_format(o->step, sizeof(o->step), "%s", c->n_steps > 0 ? c->steps[0].name : "");
    o->provenance = mf_json_parse(c->provenance, strlen(c->provenance), strlen(c->provenance));
    return 0;
}

static int read_rows(struct mf_store *s, struct lookup *l)
{
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL;
    l->query.options.on_row = add_origin;
    l->query.options.data = l;
    return mf_export(s, &l->query.options, &l->table, &left_out);
}

/* ---- the answer ---- */

static cJSON *begin_answer(const struct lookup *l, const struct origin *o)
{
    cJSON *json = cJSON_CreateObject();
    char class[MF_DEVICE_CLASS_TEXT_MAX], row[MF_SHAPE_TEXT_MAX];
    mf_device_class_print(&l->query.class, class);
    mf_shape_print(&o->shape, row);
    cJSON_AddStringToObject(json, "consumer", mf_consumer_name(l->query.options.consumer));
    cJSON_AddStringToObject(json, "class", class);
    cJSON_AddStringToObject(json, "model", o->model);
    (void)mf_json_add_i64(json, "token", l->call.token);
    cJSON_AddBoolToObject(json, "exact", o->shape.token == l->call.token);
    (void)mf_shape_add_to_json(json, row);
    cJSON_AddNumberToObject(json, "us", o->us);
    (void)mf_json_add_i64(json, "batch", o->batch);
    (void)mf_json_add_i64(json, "task", o->task);
    (void)mf_json_add_i64(json, "config_id", o->config);
    cJSON_AddItemToObject(json, "provenance",
                          o->provenance ? cJSON_Duplicate(o->provenance, true) : cJSON_CreateNull());
    return json;
}

static int send(struct mf_request *r, struct mf_store *s, const cJSON *json)
{
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    char hash[MF_SHA256_TEXT_MAX];
    if (!text || mf_buf_adds(&r->response.body, text) < 0)
        return mf_refuse_errno(&r->response, -ENOMEM, "print the row");
    mf_sha256_print(r->response.body.data, r->response.body.len, hash);
    return mf_table_answer(r, s, "application/json", hash);
}

static int refuse_missing(struct mf_request *r, const struct lookup *l)
{
    return mf_refuse(
        &r->response, 404,
        "no row of class %s serves this layer with %" PRId64 " tokens for consumer %s; submit it, "
        "or see /api/v1/export/left_out",
        mf_request_query(r, "class"), l->call.token, mf_consumer_name(l->query.options.consumer));
}

/* Appends the row as a table of one row, in the format that the consumer reads. */
static int add_csv(const struct lookup *l, const struct mf_table_row *row, cJSON *json)
{
    _cleanup_(mf_table_freep) struct mf_table *one = NULL;
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    mf_buf_init(&text, MF_RESPONSE_BODY_MAX);
    int r = mf_table_new("lookup", true, &one);
    if (r == 0)
        r = mf_table_add(one, row);
    if (r == 0)
        r = mf_export_print(one, &l->query.options, &text, why);
    if (r == 0 && !cJSON_AddStringToObject(json, "csv", text.data))
        r = -ENOMEM;
    return r;
}

static int answer_row(struct mf_request *r, struct mf_store *s, struct lookup *l)
{
    enum mf_lookup rules =
        l->query.options.consumer == MF_CONSUMER_AITER ? MF_LOOKUP_AITER : MF_LOOKUP_MOEFARM;
    const struct mf_table *table;
    struct mf_lookup_found found;
    int e = read_rows(s, l);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "read the rows");
    table = l->table;
    if (!mf_lookup_find(&table, 1, &l->query.class, &l->call, rules, NULL, &found))
        return refuse_missing(r, l);
    _cleanup_(cJSON_Deletep) cJSON *json = begin_answer(l, &l->origins[found.row - table->rows]);
    e = add_csv(l, found.row, json);
    cJSON_AddNullToObject(json, "config");
    cJSON_AddNullToObject(json, "config_down");
    cJSON_AddNullToObject(json, "file");
    return e < 0 ? mf_refuse_errno(&r->response, e, "write the row") : send(r, s, json);
}

/* ---- vLLM and SGLang ---- */

/* Returns the row with the nearest token count, as the frameworks choose an entry. NULL: no row. */
static const struct origin *find_nearest(const struct lookup *l)
{
    const struct origin *best = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const struct origin *o = &l->origins[i];
        if (!best || llabs(o->shape.token - l->call.token) < llabs(best->shape.token - l->call.token))
            best = o;
    }
    return best;
}

static void add_config(cJSON *json, const char *name, const struct mf_triton_config *config)
{
    cJSON_AddItemToObject(json, name, config ? mf_triton_config_json(config) : cJSON_CreateNull());
}

static int answer_config(struct mf_request *r, struct mf_store *s, struct lookup *l,
                         enum mf_framework framework)
{
    char layer_model[MF_SHAPE_TEXT_MAX], why[MF_REASON_MAX] = "", name[MF_TRITON_NAME_MAX];
    struct mf_triton_step step = {0};
    struct mf_triton_key key;
    mf_shape_print_layer_model(&l->call, layer_model);
    l->query.options.filter.layer_model = layer_model;
    int e = read_rows(s, l);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "read the rows");
    const struct origin *o = find_nearest(l);
    if (!o)
        return refuse_missing(r, l);
    if (mf_triton_key(framework, &o->shape, o->model, &key, why) < 0)
        return mf_refuse_at(&r->response, 400, "layer", "value", "layer: %s", why);
    mf_triton_key_print(framework, &key, name);
    /* The step `default` has no configuration: the framework chooses it without a file. */
    bool tuned = mf_triton_step_parse(o->step, &step) == 0;
    _cleanup_(cJSON_Deletep) cJSON *json = begin_answer(l, o);
    cJSON_AddNullToObject(json, "csv");
    add_config(json, "config", tuned ? &step.up : NULL);
    add_config(json, "config_down", tuned && step.has_down ? &step.down : NULL);
    cJSON_AddStringToObject(json, "file", name);
    return send(r, s, json);
}

int mf_api_lookup(void *reader, struct mf_request *r)
{
    struct mf_store *s = ((struct mf_reader *)reader)->store;
    struct lookup l = {0};
    enum mf_framework framework;
    int e = read_call(r, &l);
    if (e == 0)
        e = mf_table_query_read(r, s, &l.query);
    if (e < 0)
        return e;
    e = mf_consumer_framework(l.query.options.consumer, &framework) == 0 ? answer_config(r, s, &l, framework)
                                                                         : answer_row(r, s, &l);
    release(&l);
    return e;
}
