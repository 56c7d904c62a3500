#include "common/moe/step.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_stage, MF_STAGE_, MF_STAGE_MAP)

#define TEXT_MAX 8192 /* names, tensor specs and numbers at their longest are less */

enum field_kind { NAME, STAGE, COVERS, COUNT, SIZE, WORK, AMOUNT, GAIN, TENSOR_SPECS, MARK };

struct field {
    const char *key, *opening; /* ",\"key\":" */
    enum field_kind kind;
    size_t offset;
    size_t extra; /* of a NAME its capacity, of TENSOR_SPECS the offset of their number */
};

#define AT(member)     offsetof(struct mf_step, member)
#define KEY(name)      name, ",\"" name "\":"
#define CAP_OF(member) sizeof(((struct mf_step *)0)->member)

/* Also the order in JSON. covers comes before stage, which is checked against it. */
/* clang-format off */
static const struct field fields[] = {
    {KEY("name"),              NAME,      AT(name),              CAP_OF(name)},
    {KEY("family"),            NAME,      AT(family),            CAP_OF(family)},
    {KEY("covers"),            COVERS,    AT(covers),            0},
    {KEY("stage"),             STAGE,     AT(stage),             0},
    {KEY("block_m"),           COUNT,     AT(block_m),           0},
    {KEY("ksplit"),            COUNT,     AT(ksplit),            0},
    {KEY("needs"),             TENSOR_SPECS, AT(needs),             AT(n_needs)},
    {KEY("gives"),             TENSOR_SPECS, AT(gives),             AT(n_gives)},
    {KEY("workspace"),         SIZE,      AT(workspace_bytes),   0},
    {KEY("flops"),             WORK,      AT(flops),             0}, /* whole: a fraction of them is long to print and to read */
    {KEY("bytes"),             WORK,      AT(bytes),             0},
    {KEY("reorder_tolerance"), AMOUNT,    AT(reorder_tolerance), 0},
    {KEY("saved"),             GAIN,      AT(saved),             0}, /* missing when 0 */
    {KEY("aiter"),             MARK,      AT(aiter),             0}, /* missing when false */
};
/* clang-format on */

static void print_tensor_specs(struct mf_buf *b, const struct mf_tensor_spec *tensor_specs, int32_t n)
{
    (void)mf_buf_adds(b, "[");
    for (int32_t i = 0; i < n; i++) {
        char text[MF_TENSOR_SPEC_TEXT_MAX];
        mf_tensor_spec_print(&tensor_specs[i], text);
        if (i > 0)
            (void)mf_buf_adds(b, ",");
        mf_json_put_text(b, text);
    }
    (void)mf_buf_adds(b, "]");
}

static void print_value(struct mf_buf *b, const struct field *f, const struct mf_step *step)
{
    const void *value = (const char *)step + f->offset;
    char ops[MF_OPS_TEXT_MAX];
    switch (f->kind) {
    case NAME:
        mf_json_put_text(b, value);
        break;
    case STAGE:
        mf_json_put_text(b, mf_stage_name(*(const enum mf_stage *)value));
        break;
    case COVERS:
        mf_ops_print(*(const mf_ops *)value, ops);
        mf_json_put_text(b, ops);
        break;
    case COUNT:
        mf_json_put_number(b, *(const int32_t *)value);
        break;
    case SIZE:
        mf_json_put_u64(b, *(const uint64_t *)value);
        break;
    case WORK:
        mf_json_put_number(b, round(*(const double *)value));
        break;
    case AMOUNT:
    case GAIN:
        mf_json_put_number(b, *(const double *)value);
        break;
    case MARK:
        (void)mf_buf_adds(b, "true");
        break;
    case TENSOR_SPECS:
        print_tensor_specs(b, value, *(const int32_t *)(const void *)((const char *)step + f->extra));
        break;
    }
}

static bool is_left_out(const struct field *f, const struct mf_step *step)
{
    const void *value = (const char *)step + f->offset;
    return (f->kind == GAIN && *(const double *)value == 0) || (f->kind == MARK && !*(const bool *)value);
}

char *mf_step_print(const struct mf_step *step)
{
    struct mf_buf b;
    mf_buf_init(&b, TEXT_MAX);
    (void)mf_buf_adds(&b, "{");
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++) {
        if (is_left_out(&fields[i], step))
            continue;
        (void)mf_buf_adds(&b, fields[i].opening + (i == 0));
        print_value(&b, &fields[i], step);
    }
    (void)mf_buf_adds(&b, "}");
    char *text = mf_buf_take(&b);
    mf_buf_release(&b);
    return text;
}

/* The stage that the ops make it. */
static enum mf_stage stage_of(mf_ops covers)
{
    bool first = covers & MF_OP_BIT(MF_OP_GEMM1), second = covers & MF_OP_BIT(MF_OP_GEMM2);
    if (first && second)
        return MF_STAGE_ONE;
    return first ? MF_STAGE_STAGE1 : second ? MF_STAGE_STAGE2 : MF_STAGE_MOVE;
}

static int read_tensor_specs(const cJSON *array, struct mf_tensor_spec *tensor_specs, int32_t *ret_n)
{
    const cJSON *item;
    int32_t n = 0;
    if (!cJSON_IsArray(array))
        return -EINVAL;
    cJSON_ArrayForEach (item, array) {
        if (n == MF_STEP_TENSOR_SPECS_MAX ||
            mf_tensor_spec_parse(cJSON_GetStringValue(item), &tensor_specs[n]) < 0)
            return -EINVAL;
        n++;
    }
    *ret_n = n;
    return 0;
}

static int read_number(const cJSON *item, enum field_kind kind, void *value)
{
    int64_t whole;
    double amount;
    if (kind == GAIN && !item)
        return 0;
    if (kind == WORK || kind == AMOUNT || kind == GAIN) {
        if (mf_json_value_double(item, &amount) < 0 || amount < 0)
            return -EINVAL;
        *(double *)value = amount;
        return 0;
    }
    if (mf_json_value_i64(item, 0, kind == COUNT ? INT32_MAX : INT64_MAX, &whole) < 0)
        return -EINVAL;
    if (kind == COUNT)
        *(int32_t *)value = (int32_t)whole;
    else
        *(uint64_t *)value = (uint64_t)whole;
    return 0;
}

static int read_field(const cJSON *item, const struct field *f, struct mf_step *step)
{
    void *value = (char *)step + f->offset;
    if (f->kind == COUNT || f->kind == SIZE || f->kind == WORK || f->kind == AMOUNT || f->kind == GAIN)
        return read_number(item, f->kind, value);
    if (f->kind == TENSOR_SPECS)
        return read_tensor_specs(item, value, (int32_t *)(void *)((char *)step + f->extra));

    if (f->kind == MARK) {
        *(bool *)value = cJSON_IsTrue(item);
        return item && !cJSON_IsBool(item) ? -EINVAL : 0;
    }

    const char *text = cJSON_GetStringValue(item);
    if (!text)
        return -EINVAL;
    if (f->kind == NAME)
        return mf_is_name(text, f->extra - 1) ? mf_copy(value, f->extra, text) : -EINVAL;
    if (f->kind == COVERS)
        return mf_ops_parse(text, value);
    if (mf_stage_parse(text, value) < 0 || step->stage != stage_of(step->covers))
        return -EINVAL;
    return 0;
}

/* The field of that name; they mostly come in the order of the table. */
static size_t find_field(const char *key, size_t expected)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++, expected++) {
        if (strcmp(key, fields[expected % MF_ARRAY_LEN(fields)].key) == 0)
            return expected % MF_ARRAY_LEN(fields);
    }
    return MF_ARRAY_LEN(fields);
}

int mf_step_from_json(const cJSON *json, struct mf_step *ret, const char **ret_field)
{
    struct mf_step step = {0};
    const cJSON *items[MF_ARRAY_LEN(fields) + 1] = {NULL}; /* the last one: of no field */
    size_t at = 0;
    for (const cJSON *item = cJSON_IsObject(json) ? json->child : NULL; item; item = item->next, at++) {
        at = find_field(item->string, at);
        if (!items[at])
            items[at] = item;
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++) {
        if (read_field(items[i], &fields[i], &step) < 0) {
            *ret_field = fields[i].key;
            return -EINVAL;
        }
    }
    *ret = step;
    return 0;
}
