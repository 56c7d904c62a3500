/* Handler of POST /models/layer: the MoE layer of a model, as one rank runs it. */
#include "server/api/api.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/device_class.h"
#include "common/moe/shape_json.h"
#include "common/table/model.h"
#include "server/http/problem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_MAX 32768 /* the largest bucket that libfmoe looks up for most calls */

/* Numeric members of the body. */
static const struct {
    const char *name;
    int64_t min, max;
} numbers[] = {{"tp", 1, 1024}, {"ep", 1, 4096}, {"fused_shared", 0, 64}};
enum { TP, EP, FUSED_SHARED, N_NUMBERS };

struct work {
    struct mf_model model;
    struct mf_device_class class;
    struct mf_model_split split;
};

static int refuse_value(struct mf_request *r, const char *at, const char *expected)
{
    return mf_refuse_at(&r->response, 422, at, "value", "%.60s: %s", at, expected);
}

static bool is_known(const char *member)
{
    static const char *const others[] = {"model", "files", "class", "name"};
    for (size_t i = 0; i < MF_ARRAY_LEN(others); i++) {
        if (strcmp(member, others[i]) == 0)
            return true;
    }
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (strcmp(member, numbers[i].name) == 0)
            return true;
    }
    return false;
}

static int read_numbers(struct mf_request *r, const cJSON *json, struct mf_model_split *split)
{
    int64_t values[N_NUMBERS] = {[TP] = 1, [EP] = 1};
    char expected[64];
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (!cJSON_GetObjectItemCaseSensitive(json, numbers[i].name) ||
            mf_json_i64(json, numbers[i].name, numbers[i].min, numbers[i].max, &values[i]) == 0)
            continue;
        mf_format(expected, sizeof(expected), "expected an integer from %d to %d", (int)numbers[i].min,
                  (int)numbers[i].max);
        return refuse_value(r, numbers[i].name, expected);
    }
    split->tp = (int32_t)values[TP];
    split->ep = (int32_t)values[EP];
    split->fused_shared = (int32_t)values[FUSED_SHARED];
    return 0;
}

static int read_class(struct mf_request *r, const cJSON *json, struct work *w)
{
    const char *class = NULL;
    if (!cJSON_GetObjectItemCaseSensitive(json, "class"))
        return 0;
    if (mf_json_text(json, "class", &class) < 0 || mf_device_class_parse(class, &w->class) < 0)
        return refuse_value(r, "class", "expected a device class such as gfx942/304");
    w->split.gfx = w->class.gfx;
    return 0;
}

static int read_files(struct mf_request *r, const cJSON *files, const char *name, struct mf_model *ret)
{
    struct mf_checkpoint_text texts = {0};
    char why[MF_REASON_MAX] = "";
    const cJSON *file;
    enum mf_checkpoint kind;
    cJSON_ArrayForEach (file, files) {
        if (mf_checkpoint_parse(file->string, &kind) < 0 || !cJSON_IsString(file))
            return mf_refuse_at(&r->response, 422, "files", "value",
                                "files: %.60s: expected the texts of files of a checkpoint by name, such as "
                                "config.json or hf_quant_config.json",
                                file->string);
        texts.text[kind] = file->valuestring;
        texts.len[kind] = strlen(file->valuestring);
    }
    if (mf_model_read(&texts, name, ret, why) < 0)
        return mf_refuse_at(&r->response, 422, "files", "value", "files: %s", why);
    return 0;
}

static int read_model(struct mf_request *r, const cJSON *json, struct mf_model *ret)
{
    const cJSON *files = mf_json_object(json, "files");
    const char *model = NULL, *name = "model";
    struct mf_model similar;
    (void)mf_json_text(json, "model", &model);
    if (cJSON_GetObjectItemCaseSensitive(json, "name") && mf_json_text(json, "name", &name) < 0)
        return refuse_value(r, "name", "expected a text, the name of the model in messages");
    if (!files == !model)
        return refuse_value(r, "model",
                            "expected either files, an object, or model, the name of a known model");
    if (files)
        return read_files(r, files, name, ret);
    if (mf_model_find(model, ret) == 0)
        return 0;
    bool has_similar = mf_model_similar(model, &similar) == 0;
    return mf_refuse_at(&r->response, 422, "model", "value",
                        "model: %.90s is not a known model%s%s; send the files of its checkpoint", model,
                        has_similar ? "; did you mean " : "", has_similar ? similar.name : "");
}

static int read_body(struct mf_request *r, const cJSON *json, struct work *w)
{
    const cJSON *member;
    cJSON_ArrayForEach (member, json) {
        if (!is_known(member->string))
            return mf_refuse_at(&r->response, 422, member->string, "unknown",
                                "%.60s: unknown member; expected model, files, name, class, tp, ep or "
                                "fused_shared",
                                member->string);
    }
    int e = read_numbers(r, json, &w->split);
    if (e == 0)
        e = read_class(r, json, w);
    return e < 0 ? e : read_model(r, json, &w->model);
}

static cJSON *answer(const struct work *w, const struct mf_shape *layer)
{
    cJSON *json = cJSON_CreateObject(), *tokens;
    char row[MF_SHAPE_TEXT_MAX];
    mf_shape_print(layer, row);
    cJSON_AddStringToObject(json, "name", w->model.name);
    (void)mf_shape_add_to_json(json, row);
    tokens = cJSON_AddArrayToObject(json, "tokens");
    for (int token = 1; token <= TOKEN_MAX; token *= 2)
        cJSON_AddItemToArray(tokens, cJSON_CreateNumber(token));
    (void)mf_json_add_i64(json, "shared", w->model.shared);
    (void)mf_json_add_i64(json, "context", w->model.context);
    cJSON_AddStringToObject(json, "quant_source", w->model.quant_source);
    cJSON_AddStringToObject(json, "quant_error", w->model.quant_error);
    cJSON_AddStringToObject(json, "not_modelled", w->model.not_modelled);
    return json;
}

int mf_api_model_layer(void *reader, struct mf_request *r)
{
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    _cleanup_(mf_freep) struct work *w = calloc(1, sizeof(*w));
    char why[MF_REASON_MAX] = "";
    struct mf_shape layer;
    (void)reader;
    if (!w)
        return mf_refuse_errno(&r->response, -ENOMEM, "read the model");
    int e = mf_request_object(r, &json);
    if (e == 0)
        e = read_body(r, json, w);
    if (e < 0)
        return e;
    if (mf_model_layer(&w->model, &w->split, &layer, why) < 0)
        return mf_refuse_at(&r->response, 422, "tp", "value", "%s", why);
    return mf_respond_json(&r->response, 200, answer(w, &layer));
}
