#include "common/moe/tensor_spec.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_tensor, MF_TENSOR_, MF_TENSOR_MAP)
MF_NAMES_DEFINE(mf_format, MF_FORMAT_, MF_FORMAT_MAP)
MF_NAMES_DEFINE(mf_scale, MF_SCALE_, MF_SCALE_MAP)

static const char zeroed_suffix[] = "+zeroed";

void mf_tensor_spec_print(const struct mf_tensor_spec *a, char buf[MF_TENSOR_SPEC_TEXT_MAX])
{
    const char *const parts[] = {mf_tensor_name(a->tensor), mf_format_name(a->format),
                                 mf_scale_name(a->scale)};
    const char *end = buf + MF_TENSOR_SPEC_TEXT_MAX;
    char *at = buf;
    for (size_t i = 0; i < MF_ARRAY_LEN(parts); i++)
        at = mf_append(mf_append(at, end, parts[i]), end, "/");
    at = mf_append(at, end, a->order);
    if (a->block > 0)
        at = mf_append_i64(mf_append(at, end, "."), end, a->block);
    (void)mf_append(at, end, a->zeroed ? zeroed_suffix : "");
}

/* Terminates the text at its first slash and returns the text after this slash; NULL if there is no slash. */
static char *cut_part(char *text)
{
    char *slash = strchr(text, '/');
    if (slash)
        *slash++ = '\0';
    return slash;
}

/* Parses "sorted.32", "token" or "panel16". Only sorted orders have a block size, and they require it. */
static int parse_order(char *text, struct mf_tensor_spec *a)
{
    char *dot = strchr(text, '.');
    if (dot) {
        int64_t block;
        *dot = '\0';
        if (mf_parse_i64(dot + 1, 1, INT32_MAX, &block) < 0)
            return -EINVAL;
        a->block = (int32_t)block;
    }
    bool sorted =
        strcmp(text, "sorted") == 0 || strcmp(text, "sorted_v2") == 0 || strcmp(text, "sorted_mxmoe") == 0;
    if (sorted != (a->block > 0))
        return -EINVAL;
    if (!mf_is_name(text, sizeof(a->order) - 1))
        return -EINVAL;
    return mf_copy(a->order, sizeof(a->order), text);
}

int mf_tensor_spec_parse(const char *text, struct mf_tensor_spec *ret)
{
    char copy[MF_TENSOR_SPEC_TEXT_MAX];
    if (!text || mf_copy(copy, sizeof(copy), text) < 0)
        return -EINVAL;

    struct mf_tensor_spec a = {0};
    char *suffix = strchr(copy, '+');
    if (suffix) {
        if (strcmp(suffix, zeroed_suffix) != 0)
            return -EINVAL;
        *suffix = '\0';
        a.zeroed = true;
    }
    char *format = cut_part(copy);
    char *scale = format ? cut_part(format) : NULL;
    char *order = scale ? cut_part(scale) : NULL;
    if (!order || mf_tensor_parse(copy, &a.tensor) < 0 || mf_format_parse(format, &a.format) < 0 ||
        mf_scale_parse(scale, &a.scale) < 0 || parse_order(order, &a) < 0)
        return -EINVAL;
    *ret = a;
    return 0;
}

bool mf_tensor_spec_equal(const struct mf_tensor_spec *a, const struct mf_tensor_spec *b)
{
    return a->tensor == b->tensor && a->format == b->format && a->scale == b->scale && a->block == b->block &&
           a->zeroed == b->zeroed && strcmp(a->order, b->order) == 0;
}

bool mf_tensor_spec_is_weight(const struct mf_tensor_spec *a)
{
    return a->tensor == MF_TENSOR_W1 || a->tensor == MF_TENSOR_W2;
}

bool mf_tensor_spec_is_decoded(const struct mf_tensor_spec *a)
{
    return a->tensor == MF_TENSOR_W1D || a->tensor == MF_TENSOR_W2D;
}

bool mf_tensor_spec_is_input(const struct mf_tensor_spec *a)
{
    /* x may be bf16 or fp16; the families know the dtype of the shape */
    bool hidden = a->tensor == MF_TENSOR_X && (a->format == MF_FORMAT_BF16 || a->format == MF_FORMAT_FP16);
    bool topk = a->tensor == MF_TENSOR_TOPK && a->format == MF_FORMAT_INDEX;
    bool calib = a->tensor == MF_TENSOR_CALIB && a->format == MF_FORMAT_F32;
    bool bias = (a->tensor == MF_TENSOR_B1 || a->tensor == MF_TENSOR_B2) && a->format == MF_FORMAT_F32;
    return (hidden || topk || calib || bias) && a->scale == MF_SCALE_NONE && a->block == 0 && !a->zeroed &&
           strcmp(a->order, bias ? "row" : "token") == 0;
}
