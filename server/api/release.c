#include "server/api/release.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "common/moe/shape_json.h"
#include "server/api/export_configs.h"
#include "server/http/problem.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* State while a release is created. */
struct freeze_context {
    struct mf_store *store;
    struct mf_release_work *work;
    struct mf_buf rows; /* rows of the manifest, one per line */
    cJSON *batches;     /* unique ids */
    cJSON *devices;     /* unique {class, model, worker, host, driver, compiler, revision, rows} */
    cJSON *missing;     /* shapes without a result, in the format of left_out */
};

void mf_release_work_free(void *p)
{
    struct mf_release_work *w = p;
    if (!w)
        return;
    for (size_t i = 0; i < w->n_rows; i++) {
        free((char *)w->rows[i].key);
        free((char *)w->rows[i].names);
    }
    free(w->rows);
    free(w->filters);
    mf_buf_release(&w->csv);
    mf_buf_release(&w->manifest);
    free(w);
}

/* ---- a row ---- */

static int add_row(struct mf_release_work *w, const struct mf_export_config *c, const char *key,
                   const char *names, double us)
{
    int r = mf_array_grow(&w->rows, w->n_rows, &w->cap, sizeof(*w->rows));
    if (r < 0)
        return r;
    struct mf_release_row *row = &w->rows[w->n_rows];
    *row = (struct mf_release_row){.key = strdup(key),
                                   .names = strdup(names),
                                   .us = us,
                                   .config = c->config,
                                   .task = c->task,
                                   .pipeline = c->pipeline};
    w->n_rows++;
    return row->key && row->names ? 0 : -ENOMEM;
}

static cJSON *parse(const char *text)
{
    cJSON *json = mf_json_parse(text, strlen(text), strlen(text));
    return json ? json : cJSON_CreateNull();
}

/* Adds the pipelines statistically tied with the winner: [{"pipeline": id, "names": […]}]. */
static int add_ties(struct mf_store *s, const struct mf_export_config *c, cJSON *row)
{
    _cleanup_(cJSON_Deletep) cJSON *ids = parse(c->ties);
    cJSON *list = cJSON_AddArrayToObject(row, "ties");
    const cJSON *id;
    int r = 0;
    cJSON_ArrayForEach (id, ids) {
        char names[MF_EXPORT_PIPELINE_MAX];
        cJSON *tie = cJSON_CreateObject();
        cJSON_AddItemToArray(list, tie);
        r = mf_store_export_names(s, (int64_t)id->valuedouble, names, sizeof(names));
        if (r < 0)
            break;
        mf_json_add_i64(tie, "pipeline", (int64_t)id->valuedouble);
        cJSON_AddItemToObject(tie, "names", mf_pipeline_text_json(names));
    }
    return r;
}

/* Adds the promotion decision; null if the batch replaces every row. */
static int add_promotion(struct mf_store *s, const struct mf_export_config *c, cJSON *row)
{
    char text[MF_EXPORT_PROMOTION_MAX];
    int r = mf_store_export_promotion(s, c->task, c->consumer, text, sizeof(text));
    return r < 0 || cJSON_AddItemToObject(row, "promotion", parse(text)) ? r : -ENOMEM;
}

/* Members of a provenance copied to the manifest; "" if an older version did not record them. */
static const char *const provenance_texts[] = {"routing",  "search", "layout", "method", "revision",
                                               "compiler", "driver", "worker", "host",   "version"};

static cJSON *make_row(struct freeze_context *f, const struct mf_export_config *c,
                       const struct mf_table_row *row, const cJSON *provenance, const char *names)
{
    cJSON *o = cJSON_CreateObject();
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    double seed = 0;
    mf_device_class_print(&c->class, class);
    (void)mf_json_double(provenance, "seed", &seed);
    mf_json_add_i64(o, "row", (int64_t)f->work->n_rows);
    cJSON_AddStringToObject(o, "key", f->work->rows[f->work->n_rows - 1].key);
    cJSON_AddStringToObject(o, "class", class);
    cJSON_AddStringToObject(o, "model", c->model);
    cJSON_AddBoolToObject(o, "simulated", c->simulated);
    (void)mf_shape_add_to_json(o, c->row);
    cJSON_AddNumberToObject(o, "us", row->us);
    cJSON_AddNumberToObject(o, "us1", row->us1);
    cJSON_AddNumberToObject(o, "us2", row->us2);
    mf_json_add_i64(o, "n", c->n);
    cJSON_AddItemToObject(o, "mad", isnan(c->mad) ? cJSON_CreateNull() : cJSON_CreateNumber(c->mad));
    mf_json_add_i64(o, "tries", c->tries);
    cJSON_AddStringToObject(o, "unstable", c->unstable);
    cJSON_AddNumberToObject(o, "err1", c->err1);
    cJSON_AddNumberToObject(o, "err2", c->err2);
    cJSON_AddItemToObject(o, "names", mf_pipeline_text_json(names));
    mf_json_add_i64(o, "block_m", c->block_m);
    cJSON_AddStringToObject(o, "weights", c->layout);
    cJSON_AddItemToObject(o, "regret", parse(c->regret));
    mf_json_add_i64(o, "seed", (int64_t)seed);
    for (size_t i = 0; i < MF_ARRAY_LEN(provenance_texts); i++) {
        const char *text = "";
        (void)mf_json_text(provenance, provenance_texts[i], &text);
        cJSON_AddStringToObject(o, provenance_texts[i], text);
    }
    mf_json_add_i64(o, "batch", c->batch);
    mf_json_add_i64(o, "task", c->task);
    mf_json_add_i64(o, "config", c->config);
    mf_json_add_i64(o, "pipeline", c->pipeline);
    return o;
}

static void count_batch(struct freeze_context *f, int64_t batch)
{
    const cJSON *known;
    cJSON_ArrayForEach (known, f->batches)
        if ((int64_t)known->valuedouble == batch)
            return;
    cJSON_AddItemToArray(f->batches, cJSON_CreateNumber((double)batch));
}

static void count_device(struct freeze_context *f, const cJSON *row)
{
    static const char *const members[] = {"class",  "model",    "worker",  "host",
                                          "driver", "compiler", "revision"};
    cJSON *device, *rows;
    cJSON_ArrayForEach (device, f->devices) {
        size_t i = 0;
        while (i < MF_ARRAY_LEN(members) &&
               cJSON_Compare(cJSON_GetObjectItemCaseSensitive(device, members[i]),
                             cJSON_GetObjectItemCaseSensitive(row, members[i]), true))
            i++;
        if (i < MF_ARRAY_LEN(members))
            continue;
        rows = cJSON_GetObjectItemCaseSensitive(device, "rows");
        cJSON_SetNumberValue(rows, rows->valuedouble + 1);
        return;
    }
    device = cJSON_CreateObject();
    cJSON_AddItemToArray(f->devices, device);
    for (size_t i = 0; i < MF_ARRAY_LEN(members); i++)
        cJSON_AddItemToObject(device, members[i],
                              cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(row, members[i]), false));
    cJSON_AddNumberToObject(device, "rows", 1);
}

static int add_config(const struct mf_export_config *c, const struct mf_table_row *row, void *data)
{
    struct freeze_context *f = data;
    char key[MF_TABLE_KEY_MAX], names[MF_EXPORT_PIPELINE_MAX];
    mf_table_key(row, key);
    mf_export_join(c, names, sizeof(names));
    int r = add_row(f->work, c, key, names, row->us);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *provenance = parse(c->provenance);
    _cleanup_(cJSON_Deletep) cJSON *o = make_row(f, c, row, provenance, names);
    r = add_ties(f->store, c, o);
    if (r >= 0)
        r = add_promotion(f->store, c, o);
    if (r < 0)
        return r;
    count_batch(f, c->batch);
    count_device(f, o);
    _cleanup_(mf_freep) char *text = mf_json_print(o);
    if (!text)
        return -ENOMEM;
    return mf_buf_addf(&f->rows, "%s\n%s", f->rows.len ? "," : "", text);
}

static int add_missing(const char *class, const char *row, const char *reason, void *data)
{
    struct freeze_context *f = data;
    cJSON *o = cJSON_CreateObject();
    if (!o || !cJSON_AddItemToArray(f->missing, o))
        return -ENOMEM;
    char why[MF_REASON_MAX];
    mf_format(why, sizeof(why), "no config: %s", reason);
    cJSON_AddStringToObject(o, "class", class);
    cJSON_AddNullToObject(o, "model");
    cJSON_AddStringToObject(o, "shape", row);
    cJSON_AddNullToObject(o, "us");
    cJSON_AddStringToObject(o, "reason", why);
    return 0;
}

/* ---- the manifest ---- */

static cJSON *make_filters(const struct mf_export_options *o)
{
    cJSON *json = cJSON_CreateObject();
    const struct mf_export_filter *f = &o->filter;
    if (f->batch)
        mf_json_add_i64(json, "batch", f->batch);
    if (f->gfx && f->cu_num) {
        struct mf_device_class class = {.cu_num = (int)f->cu_num};
        char text[MF_DEVICE_CLASS_TEXT_MAX];
        (void)mf_copy(class.gfx, sizeof(class.gfx), f->gfx);
        mf_device_class_print(&class, text);
        cJSON_AddStringToObject(json, "class", text);
    } else if (f->gfx) {
        cJSON_AddStringToObject(json, "gfx", f->gfx);
    }
    if (f->model)
        cJSON_AddStringToObject(json, "model", f->model);
    if (f->layer_model)
        cJSON_AddStringToObject(json, "layer_model", f->layer_model);
    cJSON_AddBoolToObject(json, "simulated", o->simulated);
    cJSON_AddStringToObject(json, "consumer", mf_consumer_name(o->consumer));
    if (o->triton)
        cJSON_AddStringToObject(json, "triton", o->triton);
    return json;
}

/* Creates the manifest without its rows. The rows are already printed to text, because there can be many. */
static cJSON *make_head(const struct mf_release_work *w, const struct freeze_context *f, cJSON *filters,
                        cJSON *left_out)
{
    cJSON *o = cJSON_CreateObject(), *csv;
    cJSON_AddNumberToObject(o, "format", MF_RELEASE_FORMAT);
    cJSON_AddStringToObject(o, "name", w->name);
    mf_json_add_i64(o, "created_ms", w->release.created_ms);
    cJSON_AddStringToObject(o, "created_by", w->created_by);
    cJSON_AddStringToObject(o, "moefarm", MF_VERSION);
    cJSON_AddItemReferenceToObject(o, "filters", filters);
    csv = cJSON_AddObjectToObject(o, "csv");
    cJSON_AddStringToObject(csv, "sha256", w->release.sha256);
    mf_json_add_i64(csv, "bytes", (int64_t)w->csv.len);
    mf_json_add_i64(csv, "rows", (int64_t)w->n_rows);
    cJSON_AddItemReferenceToObject(o, "batches", f->batches);
    cJSON_AddItemReferenceToObject(o, "devices", f->devices);
    cJSON_AddItemReferenceToObject(o, "left_out", left_out);
    return o;
}

static int print_manifest(struct mf_release_work *w, const struct freeze_context *f, cJSON *filters,
                          cJSON *left_out)
{
    _cleanup_(cJSON_Deletep) cJSON *head = make_head(w, f, filters, left_out);
    _cleanup_(mf_freep) char *text = mf_json_print(head);
    if (!text)
        return -ENOMEM;
    text[strlen(text) - 1] = '\0'; /* replaces the last '}', because the rows follow */
    return mf_buf_addf(&w->manifest, "%s,\"rows\":[%s\n]}\n", text, f->rows.data);
}

static int set_name(struct mf_release_work *w, const struct mf_release_request *request)
{
    if (request->name)
        return mf_copy(w->name, sizeof(w->name), request->name);
    mf_format(w->name, sizeof(w->name), "r-%.12s", w->release.sha256);
    return 0;
}

/* Writes the CSV table. */
static int write_table(struct freeze_context *f, const struct mf_export_options *o, cJSON **ret_left_out,
                       char why[MF_REASON_MAX])
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    int r = mf_export(f->store, o, &table, ret_left_out);
    if (r == 0 && f->work->n_rows == 0)
        return -ENODATA;
    return r < 0 ? r : mf_export_print(table, o, &f->work->csv, why);
}

/* Writes the configuration files of vLLM or SGLang as one JSON object. */
static int write_configs(struct freeze_context *f, const struct mf_export_options *o, cJSON **ret_left_out)
{
    _cleanup_(cJSON_Deletep) cJSON *configs = NULL;
    int r = mf_export_configs(f->store, o, &configs, ret_left_out);
    if (r < 0 || f->work->n_rows == 0)
        return r < 0 ? r : -ENODATA;
    _cleanup_(mf_freep) char *text = mf_json_print(configs);
    return text ? mf_buf_adds(&f->work->csv, text) : -ENOMEM;
}

static int gather(struct freeze_context *f, const struct mf_export_options *o, cJSON **ret_left_out,
                  char why[MF_REASON_MAX])
{
    struct mf_export_options options = *o;
    enum mf_framework framework;
    options.on_row = add_config;
    options.data = f;
    options.filter.consumer = mf_consumer_name(o->consumer);
    int r = mf_consumer_framework(o->consumer, &framework) == 0 ? write_configs(f, &options, ret_left_out)
                                                                : write_table(f, &options, ret_left_out, why);
    if (r == 0)
        r = mf_store_export_missing(f->store, &options.filter, add_missing, f);
    if (r < 0)
        return r;
    while (f->missing->child)
        cJSON_AddItemToArray(*ret_left_out, cJSON_DetachItemFromArray(f->missing, 0));
    return 0;
}

static int fill(struct freeze_context *f, const struct mf_export_options *o,
                const struct mf_release_request *request, char why[MF_REASON_MAX])
{
    struct mf_release_work *w = f->work;
    struct mf_release *release = &w->release;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL, *filters = make_filters(o);
    int r = gather(f, o, &left_out, why);
    if (r < 0)
        return r;
    mf_sha256_print(w->csv.data, w->csv.len, release->sha256);
    release->created_ms = request->created_ms;
    w->filters = mf_json_print(filters);
    r = w->filters ? set_name(w, request) : -ENOMEM;
    if (r == 0)
        r = mf_copy(w->created_by, sizeof(w->created_by), request->created_by);
    if (r == 0)
        r = print_manifest(w, f, filters, left_out);
    if (r < 0)
        return r;
    mf_sha256_print(w->manifest.data, w->manifest.len, release->manifest_sha256);
    release->name = w->name;
    release->created_by = w->created_by;
    release->filters = w->filters;
    release->csv = w->csv.data;
    release->csv_len = w->csv.len;
    release->manifest = w->manifest.data;
    release->manifest_len = w->manifest.len;
    release->n_left_out = cJSON_GetArraySize(left_out);
    release->rows = w->rows;
    release->n_rows = w->n_rows;
    return 0;
}

int mf_release_make(struct mf_store *s, const struct mf_export_options *o,
                    const struct mf_release_request *request, struct mf_release_work **ret,
                    char why[MF_REASON_MAX])
{
    struct mf_release_work *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    struct freeze_context f = {.store = s,
                               .work = w,
                               .batches = cJSON_CreateArray(),
                               .devices = cJSON_CreateArray(),
                               .missing = cJSON_CreateArray()};
    *why = '\0';
    mf_buf_init(&f.rows, MF_RESPONSE_BODY_MAX);
    mf_buf_init(&w->csv, MF_RESPONSE_BODY_MAX);
    mf_buf_init(&w->manifest, MF_RESPONSE_BODY_MAX);
    int r = f.batches && f.devices && f.missing ? fill(&f, o, request, why) : -ENOMEM;
    mf_buf_release(&f.rows);
    cJSON_Delete(f.batches);
    cJSON_Delete(f.devices);
    cJSON_Delete(f.missing);
    if (r < 0) {
        mf_release_work_free(w);
        return r;
    }
    *ret = w;
    return 0;
}
