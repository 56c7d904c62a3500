#include "common/moe/step.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/net/wire_bounds.h"

MF_NAMES_DEFINE(mf_stage, MF_STAGE_, MF_STAGE_MAP)

#define TEXT_MAX 8192 /* more than any step needs, even if all its members have their maximum length */

enum field_kind {
    NAME,
    STAGE,
    COVERS,
    INT32,
    UINT64,
    ROUNDED_DOUBLE,
    DOUBLE,
    OPTIONAL_DOUBLE,
    TENSOR_SPECS,
    OPTIONAL_FLAG
};

struct field {
    const char *key, *opening; /* ",\"key\":" */
    enum field_kind kind;
    size_t offset;
    size_t extra; /* NAME: capacity; TENSOR_SPECS: offset of the number of specs */
};

#define AT(member)     offsetof(struct mf_step, member)
#define KEY(name)      name, ",\"" name "\":"
#define CAP_OF(member) sizeof(((struct mf_step *)0)->member)

/* The fields, in the order of the JSON members. `covers` precedes `stage`, because `stage` is checked against
 * `covers`. */
/* clang-format off */
static const struct field fields[] = {
    {KEY("name"),              NAME,            AT(name),              CAP_OF(name)},
    {KEY("family"),            NAME,            AT(family),            CAP_OF(family)},
    {KEY("covers"),            COVERS,          AT(covers),            0},
    {KEY("stage"),             STAGE,           AT(stage),             0},
    {KEY("block_m"),           INT32,           AT(block_m),           0},
    {KEY("ksplit"),            INT32,           AT(ksplit),            0},
    {KEY("needs"),             TENSOR_SPECS,    AT(needs),             AT(n_needs)},
    {KEY("gives"),             TENSOR_SPECS,    AT(gives),             AT(n_gives)},
    {KEY("workspace"),         UINT64,          AT(workspace_bytes),   0},
    /* rounded, because fractions are long to print and parse */
    {KEY("flops"),             ROUNDED_DOUBLE,  AT(flops),             0},
    {KEY("bytes"),             ROUNDED_DOUBLE,  AT(bytes),             0},
    {KEY("reorder_tolerance"), DOUBLE,          AT(reorder_tolerance), 0},
    {KEY("saved"),             OPTIONAL_DOUBLE, AT(saved),             0}, /* omitted if 0 */
    {KEY("aiter"),             OPTIONAL_FLAG,   AT(aiter),             0}, /* omitted if false */
    {KEY("foreign"),           OPTIONAL_FLAG,   AT(foreign),           0}, /* omitted if false */
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
    case INT32:
        mf_json_put_number(b, *(const int32_t *)value);
        break;
    case UINT64:
        mf_json_put_u64(b, *(const uint64_t *)value);
        break;
    case ROUNDED_DOUBLE:
        mf_json_put_number(b, round(*(const double *)value));
        break;
    case DOUBLE:
    case OPTIONAL_DOUBLE:
        mf_json_put_number(b, *(const double *)value);
        break;
    case OPTIONAL_FLAG:
        (void)mf_buf_adds(b, "true");
        break;
    case TENSOR_SPECS:
        print_tensor_specs(b, value, *(const int32_t *)(const void *)((const char *)step + f->extra));
        break;
    }
}

static bool is_omitted(const struct field *f, const struct mf_step *step)
{
    const void *value = (const char *)step + f->offset;
    return (f->kind == OPTIONAL_DOUBLE && *(const double *)value == 0) ||
           (f->kind == OPTIONAL_FLAG && !*(const bool *)value);
}

int mf_step_compare(const struct mf_step *a, const struct mf_step *b)
{
    int c = strcmp(a->family, b->family);
    return c ? c : strcmp(a->name, b->name);
}

int32_t mf_step_drop_ksplit(const char *name, char ret[MF_STEP_NAME_MAX])
{
    size_t len = strlen(name), digits = len;
    int64_t factor = 0;
    mf_format(ret, MF_STEP_NAME_MAX, "%s", name);
    while (digits > 0 && isdigit((unsigned char)name[digits - 1]))
        digits--;
    if (len < MF_STEP_NAME_MAX && digits < len && digits >= 3 && strncmp(name + digits - 3, "_sk", 3) == 0 &&
        mf_parse_i64(name + digits, 1, 1 << 20, &factor) == 0)
        ret[digits - 3] = '\0';
    return (int32_t)factor;
}

char *mf_step_print(const struct mf_step *step)
{
    struct mf_buf b;
    mf_buf_init(&b, TEXT_MAX);
    (void)mf_buf_adds(&b, "{");
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++) {
        if (is_omitted(&fields[i], step))
            continue;
        (void)mf_buf_adds(&b, fields[i].opening + (i == 0));
        print_value(&b, &fields[i], step);
    }
    (void)mf_buf_adds(&b, "}");
    char *text = mf_buf_take(&b);
    mf_buf_release(&b);
    return text;
}

/* Returns the stage that follows from the ops. */
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

static int read_number(const cJSON *item, const struct field *f, void *value)
{
    int64_t whole;
    double amount;
    if (f->kind == OPTIONAL_DOUBLE && !item)
        return 0;
    if (f->kind == ROUNDED_DOUBLE || f->kind == DOUBLE || f->kind == OPTIONAL_DOUBLE) {
        if (mf_json_value_double(item, &amount) < 0 || mf_wire_bounds_check_step(f->key, amount) < 0)
            return -EINVAL;
        *(double *)value = amount;
        return 0;
    }
    if (mf_json_value_i64(item, 0, f->kind == INT32 ? INT32_MAX : INT64_MAX, &whole) < 0 ||
        mf_wire_bounds_check_step(f->key, (double)whole) < 0)
        return -EINVAL;
    if (f->kind == INT32)
        *(int32_t *)value = (int32_t)whole;
    else
        *(uint64_t *)value = (uint64_t)whole;
    return 0;
}

static int read_field(const cJSON *item, const struct field *f, struct mf_step *step)
{
    void *value = (char *)step + f->offset;
    if (f->kind == INT32 || f->kind == UINT64 || f->kind == ROUNDED_DOUBLE || f->kind == DOUBLE ||
        f->kind == OPTIONAL_DOUBLE)
        return read_number(item, f, value);
    if (f->kind == TENSOR_SPECS)
        return read_tensor_specs(item, value, (int32_t *)(void *)((char *)step + f->extra));

    if (f->kind == OPTIONAL_FLAG) {
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

/* Returns the index of the field with this key. Starts the search at `expected`, because fields mostly come
 * in the order of the table. */
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
    const cJSON *items[MF_ARRAY_LEN(fields) + 1] = {NULL}; /* the last entry takes unknown members */
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
