#include "cli/coverage/coverage_print.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"

static void add_row_key(cJSON *object, const char *name, const struct mf_shape *shape)
{
    char text[MF_SHAPE_TEXT_MAX];

    mf_shape_print(shape, text);
    cJSON_AddStringToObject(object, name, text);
}

static cJSON *span_json(const struct mf_coverage_span *s)
{
    cJSON *json = cJSON_CreateObject();

    mf_json_add_i64(json, "first", s->first);
    mf_json_add_i64(json, "last", s->last);
    cJSON_AddStringToObject(json, "what", mf_covered_name(s->result));
    add_row_key(json, "key", &s->key);
    if (s->row) {
        cJSON_AddStringToObject(json, "file", s->table->name);
        mf_json_add_i64(json, "line", s->row->line);
        cJSON_AddNumberToObject(json, "us", s->row->us);
        cJSON_AddStringToObject(json, "kernel", mf_coverage_kernel(s->row));
        cJSON_AddStringToObject(json, "act_type", mf_act_name(s->row->shape.act_type));
        if (s->own)
            mf_json_add_i64(json, "own_line", s->own->line);
    }
    return json;
}

static cJSON *near_json(const struct mf_coverage_near *n, const struct mf_device_class *class)
{
    cJSON *json = cJSON_CreateObject(), *differs;
    char row[MF_NEAR_VALUE_MAX], key[MF_NEAR_VALUE_MAX];

    cJSON_AddStringToObject(json, "file", n->table->name);
    mf_json_add_i64(json, "line", n->row->line);
    mf_json_add_i64(json, "last_line", n->last_line);
    mf_json_add_i64(json, "rows", (int64_t)n->n_rows);
    mf_json_add_i64(json, "tokens", n->tokens);
    differs = cJSON_AddArrayToObject(json, "differs");
    for (int i = 0; i < MF_NEAR_COLUMNS; i++) {
        cJSON *item;

        if (!(n->differs & 1u << i))
            continue;
        item = cJSON_CreateObject();
        mf_near_values(n, class, i, row, key);
        cJSON_AddStringToObject(item, "column", mf_near_name(i));
        cJSON_AddStringToObject(item, "row", row);
        cJSON_AddStringToObject(item, "asked", key);
        cJSON_AddItemToArray(differs, item);
    }
    cJSON_AddStringToObject(json, "meaning", n->meaning);
    return json;
}

cJSON *mf_coverage_json(const struct mf_coverage_report *r)
{
    _cleanup_(mf_buf_release) struct mf_buf headline;
    cJSON *json = cJSON_CreateObject(), *list;
    char class[MF_DEVICE_CLASS_TEXT_MAX], layer[MF_SHAPE_TEXT_MAX];

    mf_buf_init(&headline, 1u << 16);
    mf_coverage_headline(r, &headline);
    mf_device_class_print(&r->query->class, class);
    mf_shape_print_layer_model(&r->query->layer, layer);
    cJSON_AddStringToObject(json, "model", r->model->name);
    cJSON_AddStringToObject(json, "source", r->model->source);
    cJSON_AddStringToObject(json, "quant_source", r->model->quant_source);
    cJSON_AddStringToObject(json, "not_modelled", r->model->not_modelled);
    mf_json_add_i64(json, "tp", r->split.tp);
    mf_json_add_i64(json, "ep", r->split.ep);
    mf_json_add_i64(json, "fused_shared_experts", r->split.fused_shared);
    cJSON_AddStringToObject(json, "class", class);
    cJSON_AddStringToObject(json, "consumer", mf_lookup_name(r->query->rules));
    cJSON_AddStringToObject(json, "layer", layer);
    cJSON_AddBoolToObject(json, "complete", mf_coverage_complete(r->coverage));
    cJSON_AddStringToObject(json, "headline", headline.data);
    list = cJSON_AddObjectToObject(json, "tokens");
    for (int i = 0; i < MF_COVERED_N_; i++)
        mf_json_add_i64(list, mf_covered_name((enum mf_covered)i), r->coverage->tokens[i]);
    list = cJSON_AddArrayToObject(json, "spans");
    for (size_t i = 0; i < r->coverage->n_spans; i++)
        cJSON_AddItemToArray(list, span_json(&r->coverage->spans[i]));
    list = cJSON_AddArrayToObject(json, "near_misses");
    for (size_t i = 0; i < r->coverage->n_near; i++)
        cJSON_AddItemToArray(list, near_json(&r->coverage->near[i], &r->query->class));
    return json;
}
