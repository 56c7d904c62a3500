#include "common/step.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"

MF_NAMES_DEFINE(mf_stage, MF_STAGE_, MF_STAGE_MAP)

enum field_kind { NAME, STAGE, COVERS, COUNT, SIZE, WORK, AMOUNT, GAIN, ARTIFACTS, MARK };

struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;
    size_t extra; /* of a NAME its capacity, of ARTIFACTS the offset of their number */
};

#define AT(member)     offsetof(struct mf_step, member)
#define CAP_OF(member) sizeof(((struct mf_step *)0)->member)

/* Also the order in JSON. covers comes before stage, which is checked against it. */
/* clang-format off */
static const struct field fields[] = {
    {"name",              NAME,      AT(name),              CAP_OF(name)},
    {"family",            NAME,      AT(family),            CAP_OF(family)},
    {"covers",            COVERS,    AT(covers),            0},
    {"stage",             STAGE,     AT(stage),             0},
    {"block_m",           COUNT,     AT(block_m),           0},
    {"ksplit",            COUNT,     AT(ksplit),            0},
    {"needs",             ARTIFACTS, AT(needs),             AT(n_needs)},
    {"gives",             ARTIFACTS, AT(gives),             AT(n_gives)},
    {"workspace",         SIZE,      AT(workspace_bytes),   0},
    {"flops",             WORK,      AT(flops),             0}, /* whole: a fraction of them is long to print and to read */
    {"bytes",             WORK,      AT(bytes),             0},
    {"reorder_tolerance", AMOUNT,    AT(reorder_tolerance), 0},
    {"saved",             GAIN,      AT(saved),             0}, /* missing when 0 */
    {"aiter",             MARK,      AT(aiter),             0}, /* missing when false */
};
/* clang-format on */

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

static bool add_field(cJSON *json, const struct field *f, const struct mf_step *step)
{
    const void *value = (const char *)step + f->offset;
    char ops[MF_OPS_TEXT_MAX];
    switch (f->kind) {
    case NAME:
        return cJSON_AddStringToObject(json, f->key, value);
    case STAGE:
        return cJSON_AddStringToObject(json, f->key, mf_stage_name(*(const enum mf_stage *)value));
    case COVERS:
        mf_ops_print(*(const mf_ops *)value, ops);
        return cJSON_AddStringToObject(json, f->key, ops);
    case COUNT:
        return mf_json_add_i64(json, f->key, *(const int32_t *)value);
    case SIZE:
        return mf_json_add_i64(json, f->key, (int64_t) * (const uint64_t *)value);
    case WORK:
        return cJSON_AddNumberToObject(json, f->key, round(*(const double *)value));
    case AMOUNT:
        return cJSON_AddNumberToObject(json, f->key, *(const double *)value);
    case GAIN:
        return *(const double *)value == 0 || cJSON_AddNumberToObject(json, f->key, *(const double *)value);
    case MARK:
        return !*(const bool *)value || cJSON_AddTrueToObject(json, f->key);
    case ARTIFACTS:
        return add_artifacts(json, f->key, value, *(const int32_t *)((const char *)step + f->extra));
    }
    return false;
}

cJSON *mf_step_to_json(const struct mf_step *step)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++) {
        if (!json || !add_field(json, &fields[i], step))
            return NULL;
    }
    return MF_TAKE(json);
}

/* The stage that the ops make it. */
static enum mf_stage stage_of(mf_ops covers)
{
    bool first = covers & MF_OP_BIT(MF_OP_GEMM1), second = covers & MF_OP_BIT(MF_OP_GEMM2);
    if (first && second)
        return MF_STAGE_ONE;
    return first ? MF_STAGE_STAGE1 : second ? MF_STAGE_STAGE2 : MF_STAGE_MOVE;
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

static int read_number(const cJSON *json, const struct field *f, void *value)
{
    int64_t whole;
    double amount;
    if (f->kind == GAIN && !cJSON_GetObjectItemCaseSensitive(json, f->key))
        return 0;
    if (f->kind == WORK || f->kind == AMOUNT || f->kind == GAIN) {
        if (mf_json_double(json, f->key, &amount) < 0 || amount < 0)
            return -EINVAL;
        *(double *)value = amount;
        return 0;
    }
    if (mf_json_i64(json, f->key, 0, f->kind == COUNT ? INT32_MAX : INT64_MAX, &whole) < 0)
        return -EINVAL;
    if (f->kind == COUNT)
        *(int32_t *)value = (int32_t)whole;
    else
        *(uint64_t *)value = (uint64_t)whole;
    return 0;
}

static int read_field(const cJSON *json, const struct field *f, struct mf_step *step)
{
    void *value = (char *)step + f->offset;
    const char *text;
    if (f->kind == COUNT || f->kind == SIZE || f->kind == WORK || f->kind == AMOUNT || f->kind == GAIN)
        return read_number(json, f, value);
    if (f->kind == ARTIFACTS)
        return read_artifacts(json, f->key, value, (int32_t *)(void *)((char *)step + f->extra));

    if (f->kind == MARK) {
        const cJSON *mark = cJSON_GetObjectItemCaseSensitive(json, f->key);
        *(bool *)value = cJSON_IsTrue(mark);
        return mark && !cJSON_IsBool(mark) ? -EINVAL : 0;
    }

    if (mf_json_text(json, f->key, &text) < 0)
        return -EINVAL;
    if (f->kind == NAME)
        return mf_is_name(text, f->extra - 1) ? mf_copy(value, f->extra, text) : -EINVAL;
    if (f->kind == COVERS)
        return mf_ops_parse(text, value);
    if (mf_stage_parse(text, value) < 0 || step->stage != stage_of(step->covers))
        return -EINVAL;
    return 0;
}

int mf_step_from_json(const cJSON *json, struct mf_step *ret, const char **ret_field)
{
    struct mf_step step = {0};
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++) {
        if (read_field(json, &fields[i], &step) < 0) {
            *ret_field = fields[i].key;
            return -EINVAL;
        }
    }
    *ret = step;
    return 0;
}
