#include "common/moe/shape.h"

#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/shape_internal.h"

MF_NAMES_DEFINE(mf_act, MF_ACT_, MF_ACT_MAP)
MF_NAMES_DEFINE(mf_dtype, MF_DTYPE_, MF_DTYPE_MAP)
MF_NAMES_DEFINE(mf_qtype, MF_QTYPE_, MF_QTYPE_MAP)
MF_NAMES_DEFINE(mf_gate_up, MF_GATE_UP_, MF_GATE_UP_MAP)

/* sorted_token_ids packs slot << 24 | token and uses T as padding, so T must fit into 24 bits and k into
 * seven. */
#define TOKEN_MAX 16777215
#define TOPK_MAX  127
/* Greater than the dimensions of every model, but so small that E * 2I * H stays within 2^53. */
#define DIM_MAX    262144
#define EXPERT_MAX 65535

enum column_kind { TOKEN, SIZE, ACT, DTYPE, QTYPE, FLAG, FORM };

struct column {
    const char *name;
    enum column_kind kind;
    size_t offset;
    int64_t max; /* maximum value of a TOKEN or SIZE column */
    const char *expects;
};

#define DTYPES                                                                                              \
    "torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int8, torch.int4 or " \
    "torch.float4_e2m1fn_x2"
#define AT(member) offsetof(struct mf_shape, member)

/* clang-format off */
static const struct column columns[MF_SHAPE_N_COLUMNS] = {
    {"token",           TOKEN, AT(token),           TOKEN_MAX,  "an integer from 1 to 16777215"},
    {"model_dim",       SIZE,  AT(model_dim),       DIM_MAX,    "an integer from 1 to 262144"},
    {"inter_dim",       SIZE,  AT(inter_dim),       DIM_MAX,    "an integer from 1 to 262144"},
    {"expert",          SIZE,  AT(expert),          EXPERT_MAX, "an integer from 1 to 65535"},
    {"topk",            SIZE,  AT(topk),            TOPK_MAX,   "an integer from 1 to 127"},
    {"act_type",        ACT,   AT(act_type),        0,
     "ActivationType.Silu, ActivationType.Gelu, ActivationType.Swiglu, ActivationType.Situv2, "
     "ActivationType.No, or the extensions ActivationType.GeluTanh, ActivationType.SiluStep or "
     "ActivationType.Relu2"},
    {"dtype",           DTYPE, AT(dtype),           0,          DTYPES},
    {"q_dtype_a",       DTYPE, AT(q_dtype_a),       0,          DTYPES},
    {"q_dtype_w",       DTYPE, AT(q_dtype_w),       0,          DTYPES},
    {"q_type",          QTYPE, AT(q_type),          0,
     "QuantType.No, QuantType.per_Tensor, QuantType.per_Token, QuantType.per_1x32, QuantType.per_1x128 "
     "or QuantType.per_1x16"},
    {"use_g1u1",        FLAG,  AT(use_g1u1),        0,          "1 or 0"},
    {"doweight_stage1", FLAG,  AT(doweight_stage1), 0,          "1 or 0"},
};

static const struct column form_column = {MF_SHAPE_FORM, FORM, 0, 0, MF_SHAPE_FORM_EXPECTS};

const char *const mf_shape_columns[MF_SHAPE_N_COLUMNS] = {
    "token", "model_dim", "inter_dim", "expert", "topk", "act_type",
    "dtype", "q_dtype_a", "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1",
};

/* Non-canonical spellings. */
static const struct {
    const char *text;
    enum mf_dtype value;
} dtype_aliases[] = {
    {"dtypes.bf16",  MF_DTYPE_BF16},
    {"dtypes.fp16",  MF_DTYPE_FP16},
    {"torch.half",   MF_DTYPE_FP16},
    {"dtypes.fp8",   MF_DTYPE_FP8_E4M3FN},
    {"dtypes.i8",    MF_DTYPE_INT8},
    {"dtypes.i4x2",  MF_DTYPE_INT4},
    {"dtypes.fp4x2", MF_DTYPE_FP4X2},
};
/* clang-format on */

/* Removes a prefix such as "torch.". */
static const char *without_prefix(const char *text, const char *prefix)
{
    size_t len = strlen(prefix);
    return strncmp(text, prefix, len) == 0 ? text + len : text;
}

/* True for the canonical text with or without its prefix ("bfloat16", "Silu"). */
static bool matches_name(const char *text, const char *canonical, const char *prefix)
{
    return strcmp(text, canonical) == 0 || strcmp(text, without_prefix(canonical, prefix)) == 0;
}

static int parse_act(const char *text, enum mf_act *ret)
{
    for (int i = 0; i < MF_ACT_N_; i++) {
        if (matches_name(text, mf_act_name((enum mf_act)i), "ActivationType.")) {
            *ret = (enum mf_act)i;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_dtype(const char *text, enum mf_dtype *ret)
{
    for (int i = 0; i < MF_DTYPE_N_; i++) {
        if (matches_name(text, mf_dtype_name((enum mf_dtype)i), "torch.")) {
            *ret = (enum mf_dtype)i;
            return 0;
        }
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(dtype_aliases); i++) {
        if (matches_name(text, dtype_aliases[i].text, "dtypes.")) {
            *ret = dtype_aliases[i].value;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_qtype(const char *text, enum mf_qtype *ret)
{
    if (matches_name(text, "QuantType.per_128x128", "QuantType.")) {
        *ret = MF_QTYPE_PER_1X128;
        return 0;
    }
    for (int i = 0; i < MF_QTYPE_N_; i++) {
        if (matches_name(text, mf_qtype_name((enum mf_qtype)i), "QuantType.")) {
            *ret = (enum mf_qtype)i;
            return 0;
        }
    }
    return -EINVAL;
}

static const struct column *find_column(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(columns); i++) {
        if (strcmp(columns[i].name, name) == 0)
            return &columns[i];
    }
    return strcmp(name, MF_SHAPE_FORM) == 0 ? &form_column : NULL;
}

static int set_field(const struct column *c, const char *text, void *field)
{
    int64_t value;
    switch (c->kind) {
    case TOKEN:
        return mf_parse_i64(text, 1, c->max, field);
    case SIZE:
        if (mf_parse_i64(text, 1, c->max, &value) < 0)
            return -EINVAL;
        *(int32_t *)field = (int32_t)value;
        return 0;
    case ACT:
        return parse_act(text, field);
    case DTYPE:
        return parse_dtype(text, field);
    case QTYPE:
        return parse_qtype(text, field);
    case FLAG:
        return mf_parse_bool(text, field);
    case FORM:
        return mf_shape_form_parse(text, field);
    }
    return -EINVAL;
}

int mf_shape_set(struct mf_shape *shape, const char *column, const char *text, const char **ret_why)
{
    const struct column *c = find_column(column);
    if (!c)
        return -ENOENT;
    if (set_field(c, text, (char *)shape + c->offset) < 0) {
        *ret_why = c->expects;
        return -EINVAL;
    }
    return 0;
}

static void print_field(const struct column *c, const void *field, char *buf, size_t cap)
{
    switch (c->kind) {
    case TOKEN:
        (void)mf_append_i64(buf, buf + cap, *(const int64_t *)field);
        break;
    case SIZE:
        (void)mf_append_i64(buf, buf + cap, *(const int32_t *)field);
        break;
    case ACT:
        (void)mf_append(buf, buf + cap, mf_act_name(*(const enum mf_act *)field));
        break;
    case DTYPE:
        (void)mf_append(buf, buf + cap, mf_dtype_name(*(const enum mf_dtype *)field));
        break;
    case QTYPE:
        (void)mf_append(buf, buf + cap, mf_qtype_name(*(const enum mf_qtype *)field));
        break;
    case FLAG:
        (void)mf_append(buf, buf + cap, *(const bool *)field ? "1" : "0");
        break;
    case FORM:
        mf_shape_form_print(field, buf, cap);
        break;
    }
}

int mf_shape_get(const struct mf_shape *shape, const char *column, char *buf, size_t cap)
{
    const struct column *c = find_column(column);
    if (!c)
        return -ENOENT;
    print_field(c, (const char *)shape + c->offset, buf, cap);
    return 0;
}

/* Returns the value of a numeric column; 1 for other columns. */
static int64_t size_of(const struct column *c, const struct mf_shape *shape)
{
    const char *field = (const char *)shape + c->offset;
    return c->kind == TOKEN  ? *(const int64_t *)(const void *)field
           : c->kind == SIZE ? *(const int32_t *)(const void *)field
                             : 1;
}

bool mf_shape_splits_blocks(const struct mf_shape *shape)
{
    return shape->q_type == MF_QTYPE_PER_1X128 && shape->use_g1u1 && shape->inter_dim % 128 != 0;
}

int mf_shape_check(const struct mf_shape *shape, const char **ret_column, const char **ret_why)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(columns); i++) {
        const struct column *c = &columns[i];
        int64_t size = size_of(c, shape);
        if (size < 1 || (c->max > 0 && size > c->max)) {
            *ret_column = c->name;
            *ret_why = c->expects;
            return -EINVAL;
        }
    }
    const char *form = mf_shape_form_check(shape);
    if (form) {
        *ret_column = MF_SHAPE_FORM;
        *ret_why = form;
        return -EINVAL;
    }
    if (shape->topk > mf_shape_global_experts(shape)) {
        *ret_column = "topk";
        *ret_why =
            "at most the number of experts (of all ranks with ep): a token selects topk distinct experts";
        return -EINVAL;
    }
    if (mf_shape_splits_blocks(shape)) {
        *ret_column = "inter_dim";
        *ret_why =
            "a multiple of 128 with QuantType.per_1x128, so that no block of 128 rows of w1 holds both "
            "gate and up; use a smaller tensor-parallel size, or expert parallelism";
        return -EINVAL;
    }
    return 0;
}

static int compare_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int compare_layer_model(const struct mf_shape *a, const struct mf_shape *b)
{
    const int64_t pairs[][2] = {
        {a->model_dim, b->model_dim},
        {a->inter_dim, b->inter_dim},
        {a->expert, b->expert},
        {a->topk, b->topk},
        {a->act_type, b->act_type},
        {a->dtype, b->dtype},
        {a->q_dtype_a, b->q_dtype_a},
        {a->q_dtype_w, b->q_dtype_w},
        {a->q_type, b->q_type},
        {a->use_g1u1, b->use_g1u1},
        {a->doweight_stage1, b->doweight_stage1},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(pairs); i++) {
        if (pairs[i][0] != pairs[i][1])
            return compare_i64(pairs[i][0], pairs[i][1]);
    }
    return mf_shape_form_compare(a, b);
}

int mf_shape_compare(const struct mf_shape *a, const struct mf_shape *b)
{
    int r = compare_layer_model(a, b);
    return r != 0 ? r : compare_i64(a->token, b->token);
}

bool mf_shape_equal(const struct mf_shape *a, const struct mf_shape *b)
{
    return mf_shape_compare(a, b) == 0;
}

bool mf_shape_same_layer_model(const struct mf_shape *a, const struct mf_shape *b)
{
    return compare_layer_model(a, b) == 0;
}

/* Prints the columns from `first` on, and the form. */
static void print_columns(const struct mf_shape *shape, size_t first, char buf[MF_SHAPE_TEXT_MAX])
{
    size_t len = 0;
    for (size_t i = first; i < MF_ARRAY_LEN(columns); i++) {
        if (i > first)
            len = (size_t)(mf_append(buf + len, buf + MF_SHAPE_TEXT_MAX, ",") - buf);
        print_field(&columns[i], (const char *)shape + columns[i].offset, buf + len, MF_SHAPE_TEXT_MAX - len);
        len += strlen(buf + len);
    }
    char form[MF_SHAPE_FORM_MAX];
    mf_shape_form_print(shape, form, sizeof(form));
    if (form[0])
        mf_format(buf + len, MF_SHAPE_TEXT_MAX - len, ",%s", form);
}

void mf_shape_print(const struct mf_shape *shape, char buf[MF_SHAPE_TEXT_MAX])
{
    print_columns(shape, 0, buf);
}

void mf_shape_print_layer_model(const struct mf_shape *shape, char buf[MF_SHAPE_TEXT_MAX])
{
    print_columns(shape, 1, buf);
}

int mf_shape_parse(const char *text, struct mf_shape *ret)
{
    char copy[MF_SHAPE_TEXT_MAX];
    if (!text || mf_copy(copy, sizeof(copy), text) < 0)
        return -EINVAL;

    struct mf_shape shape = {0};
    char *rest = copy;
    for (size_t i = 0; i < MF_ARRAY_LEN(columns); i++) {
        char *value = strsep(&rest, ",");
        if (!value || set_field(&columns[i], value, (char *)&shape + columns[i].offset) < 0)
            return -EINVAL;
    }
    const char *column, *why, *form = rest ? strsep(&rest, ",") : NULL;
    if (form && (*form == '\0' || mf_shape_form_parse(form, &shape) < 0))
        return -EINVAL;
    if (rest || mf_shape_check(&shape, &column, &why) < 0)
        return -EINVAL;
    *ret = shape;
    return 0;
}

int mf_dtype_bits(enum mf_dtype dtype)
{
    switch (dtype) {
    case MF_DTYPE_BF16:
    case MF_DTYPE_FP16:
        return 16;
    case MF_DTYPE_FP8_E4M3FN:
    case MF_DTYPE_FP8_E4M3FNUZ:
    case MF_DTYPE_INT8:
        return 8;
    case MF_DTYPE_INT4:
    case MF_DTYPE_FP4X2:
        return 4;
    case MF_DTYPE_N_:
        break;
    }
    return 0;
}

int64_t mf_token_bucket(int64_t token)
{
    if (token >= 131072)
        return 131072;
    int64_t bucket = 1;
    while (bucket < token && bucket < 32768)
        bucket *= 2;
    return bucket;
}
