#include "common/step.h"

#include <stdbool.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"

MF_NAMES_DEFINE(mf_stage, MF_STAGE_, MF_STAGE_MAP)

static bool add_text(cJSON *json, const char *key, const char *text)
{
    return cJSON_AddStringToObject(json, key, text) != NULL;
}

static bool add_artifacts(cJSON *json, const char *key, const struct mf_artifact *artifacts, int32_t n)
{
    cJSON *array = cJSON_AddArrayToObject(json, key);
    for (int32_t i = 0; array && i < n; i++) {
        char text[MF_ARTIFACT_TEXT_MAX];
        mf_artifact_print(&artifacts[i], text);
        cJSON *item = cJSON_CreateString(text);
        if (!cJSON_AddItemToArray(array, item)) {
            cJSON_Delete(item);
            return false;
        }
    }
    return array != NULL;
}

cJSON *mf_step_to_json(const struct mf_step *step)
{
    char covers[MF_OPS_TEXT_MAX];
    mf_ops_print(step->covers, covers);

    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    if (!json || !add_text(json, "name", step->name) || !add_text(json, "family", step->family) ||
        !add_text(json, "stage", mf_stage_name(step->stage)) || !add_text(json, "covers", covers) ||
        !mf_json_add_i64(json, "block_m", step->block_m) || !mf_json_add_i64(json, "ksplit", step->ksplit) ||
        !add_artifacts(json, "needs", step->needs, step->n_needs) ||
        !add_artifacts(json, "gives", step->gives, step->n_gives) ||
        !mf_json_add_i64(json, "workspace", (int64_t)step->workspace_bytes) ||
        !cJSON_AddNumberToObject(json, "flops", step->flops) ||
        !cJSON_AddNumberToObject(json, "bytes", step->bytes) ||
        !cJSON_AddNumberToObject(json, "reorder_tolerance", step->reorder_tolerance))
        return NULL;
    return MF_TAKE(json);
}

static int read_name(const cJSON *json, const char *key, char *dst, size_t cap)
{
    const char *text;
    if (mf_json_text(json, key, &text) < 0 || !mf_is_name(text, cap - 1))
        return -EINVAL;
    return mf_copy(dst, cap, text);
}

static int read_i32(const cJSON *json, const char *key, int32_t *ret)
{
    int64_t value;
    if (mf_json_i64(json, key, 0, INT32_MAX, &value) < 0)
        return -EINVAL;
    *ret = (int32_t)value;
    return 0;
}

static int read_not_negative(const cJSON *json, const char *key, double *ret)
{
    double value;
    if (mf_json_double(json, key, &value) < 0 || value < 0)
        return -EINVAL;
    *ret = value;
    return 0;
}

static int read_artifacts(const cJSON *json, const char *key, struct mf_artifact *artifacts, int32_t *ret_n)
{
    const cJSON *array = mf_json_array(json, key), *item;
    int32_t n = 0;
    if (!array)
        return -EINVAL;
    cJSON_ArrayForEach (item, array) {
        if (n == MF_STEP_ARTIFACTS_MAX || mf_artifact_parse(cJSON_GetStringValue(item), &artifacts[n]) < 0)
            return -EINVAL;
        n++;
    }
    *ret_n = n;
    return 0;
}

/* The stage that the ops make it. */
static enum mf_stage stage_of(mf_ops covers)
{
    bool first = covers & MF_OP_BIT(MF_OP_GEMM1), second = covers & MF_OP_BIT(MF_OP_GEMM2);
    if (first && second)
        return MF_STAGE_ONE;
    return first ? MF_STAGE_STAGE1 : second ? MF_STAGE_STAGE2 : MF_STAGE_MOVE;
}

static int read_covers(const cJSON *json, mf_ops *ret)
{
    const char *text;
    return mf_json_text(json, "covers", &text) < 0 ? -EINVAL : mf_ops_parse(text, ret);
}

static int read_stage(const cJSON *json, mf_ops covers, enum mf_stage *ret)
{
    const char *text;
    if (mf_json_text(json, "stage", &text) < 0 || mf_stage_parse(text, ret) < 0)
        return -EINVAL;
    return *ret == stage_of(covers) ? 0 : -EINVAL;
}

static int read_workspace(const cJSON *json, uint64_t *ret)
{
    int64_t value;
    if (mf_json_i64(json, "workspace", 0, INT64_MAX, &value) < 0)
        return -EINVAL;
    *ret = (uint64_t)value;
    return 0;
}

int mf_step_from_json(const cJSON *json, struct mf_step *ret, const char **ret_field)
{
    struct mf_step s = {0};
    const char *wrong = read_name(json, "name", s.name, sizeof(s.name)) < 0         ? "name"
                        : read_name(json, "family", s.family, sizeof(s.family)) < 0 ? "family"
                        : read_covers(json, &s.covers) < 0                          ? "covers"
                        : read_stage(json, s.covers, &s.stage) < 0                  ? "stage"
                        : read_i32(json, "block_m", &s.block_m) < 0                 ? "block_m"
                        : read_i32(json, "ksplit", &s.ksplit) < 0                   ? "ksplit"
                        : read_artifacts(json, "needs", s.needs, &s.n_needs) < 0    ? "needs"
                        : read_artifacts(json, "gives", s.gives, &s.n_gives) < 0    ? "gives"
                        : read_workspace(json, &s.workspace_bytes) < 0              ? "workspace"
                        : read_not_negative(json, "flops", &s.flops) < 0            ? "flops"
                        : read_not_negative(json, "bytes", &s.bytes) < 0            ? "bytes"
                        : read_not_negative(json, "reorder_tolerance", &s.reorder_tolerance) < 0
                            ? "reorder_tolerance"
                            : NULL;
    if (wrong) {
        *ret_field = wrong;
        return -EINVAL;
    }
    *ret = s;
    return 0;
}
