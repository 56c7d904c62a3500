#include "kernels/tensors.h"

#include <errno.h>
#include <string.h>

#include "common/cleanup.h"
#include "kernels/layout.h"
#include "kernels/quant.h"

int64_t mf_padded_rows(const struct mf_shape *shape, int32_t block_m)
{
    int64_t rows = shape->token * shape->topk, block = block_m > 0 ? block_m : 1;
    int64_t active = MF_MIN((int64_t)shape->expert, rows);
    return (rows + active * (block - 1) + block - 1) / block * block;
}

static int64_t groups(int64_t n)
{
    return (n + 127) / 128;
}

/* 0 for formats that have no definition here. */
static int format_bytes(enum mf_format format)
{
    switch (format) {
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
        return 4;
    case MF_FORMAT_BF16:
        return 2;
    case MF_FORMAT_FP8FN:
    case MF_FORMAT_FP8FNUZ:
        return 1;
    case MF_FORMAT_FP16:
    case MF_FORMAT_INT8:
    case MF_FORMAT_INT4:
    case MF_FORMAT_FP4:
    case MF_FORMAT_N_:
        break;
    }
    return 0;
}

static bool is_fp8(enum mf_format format)
{
    return format == MF_FORMAT_FP8FN || format == MF_FORMAT_FP8FNUZ;
}

static bool is_sorted(const struct mf_artifact *a)
{
    return strcmp(a->order, "sorted") == 0 && a->block > 0;
}

static int index_parts(const struct mf_artifact *a, const struct mf_shape *s, struct mf_part *p)
{
    if (a->format != MF_FORMAT_INDEX || a->scale != MF_SCALE_NONE)
        return -EINVAL;
    if (a->tensor == MF_TENSOR_TOPK) {
        if (strcmp(a->order, "token") != 0)
            return -EINVAL;
        p[0] = (struct mf_part){"ids", 4, s->token, s->topk};
        p[1] = (struct mf_part){"weights", 4, s->token, s->topk};
        return 2;
    }
    if (!is_sorted(a))
        return -EINVAL;
    int64_t rows = mf_padded_rows(s, a->block);
    p[0] = (struct mf_part){"ids", 4, rows, 1};
    p[1] = (struct mf_part){"weights", 4, rows, 1};
    p[2] = (struct mf_part){"experts", 4, rows / a->block, 1};
    p[3] = (struct mf_part){"num_valid", 4, 2, 1};
    return 4;
}

static int weight_parts(const struct mf_artifact *a, const struct mf_shape *s, struct mf_part *p)
{
    const struct mf_layout *l = mf_layout_find(a->order);
    bool first = a->tensor == MF_TENSOR_W1;
    int64_t n = first ? mf_gemm1_cols(s) : s->model_dim, k = first ? s->model_dim : s->inter_dim;
    int bytes = a->format == MF_FORMAT_INDEX || a->format == MF_FORMAT_F32 ? 0 : format_bytes(a->format);
    if (!l || bytes == 0 || !mf_layout_legal(l, bytes, (size_t)n, (size_t)k))
        return -EINVAL;
    p[0] = (struct mf_part){"w", bytes, s->expert * n, k};
    if (a->scale == MF_SCALE_NONE && !is_fp8(a->format))
        return 1;
    if (a->scale == MF_SCALE_PER_TOKEN && is_fp8(a->format))
        p[1] = (struct mf_part){"scale", 4, s->expert, n};
    else if (a->scale == MF_SCALE_PER_128X128 && is_fp8(a->format))
        p[1] = (struct mf_part){"scale", 4, s->expert * groups(n), groups(k)};
    else
        return -EINVAL;
    return 2;
}

/* The rows that an order of that tensor has, 0 when it has no such order. */
static int64_t order_rows(const struct mf_artifact *a, const struct mf_shape *s)
{
    bool sorted = is_sorted(a), token = strcmp(a->order, "token") == 0, slot = strcmp(a->order, "slot") == 0;
    switch (a->tensor) {
    case MF_TENSOR_X:
        return token ? s->token : sorted ? mf_padded_rows(s, a->block) : 0;
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
    case MF_TENSOR_H:
        return sorted ? mf_padded_rows(s, a->block) : 0;
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
        return slot ? s->token * s->topk : 0;
    case MF_TENSOR_Y:
        return token ? s->token : 0;
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
    case MF_TENSOR_N_:
        break;
    }
    return 0;
}

static int activation_parts(const struct mf_artifact *a, const struct mf_shape *s, struct mf_part *p)
{
    bool quantised = a->tensor == MF_TENSOR_X || a->tensor == MF_TENSOR_H;
    bool first = a->tensor == MF_TENSOR_G || a->tensor == MF_TENSOR_GW;
    int64_t rows = order_rows(a, s);
    int64_t cols = first ? mf_gemm1_cols(s) : a->tensor == MF_TENSOR_H ? s->inter_dim : s->model_dim;
    if (rows == 0 || a->format == MF_FORMAT_INDEX || format_bytes(a->format) == 0 ||
        (is_fp8(a->format) && !quantised))
        return -EINVAL;
    p[0] = (struct mf_part){mf_tensor_name(a->tensor), format_bytes(a->format), rows, cols};
    if (a->tensor == MF_TENSOR_GW)
        p[0].name = "g";
    if (a->tensor == MF_TENSOR_ZW)
        p[0].name = "z";
    if (!is_fp8(a->format))
        return a->scale == MF_SCALE_NONE ? 1 : -EINVAL;
    if (a->scale == MF_SCALE_PER_TOKEN)
        p[1] = (struct mf_part){"scale", 4, rows, 1};
    else if (a->scale == MF_SCALE_PER_1X128)
        p[1] = (struct mf_part){"scale", 4, rows, groups(cols)};
    else
        return -EINVAL;
    return 2;
}

int mf_artifact_parts(const struct mf_artifact *a, const struct mf_shape *shape,
                      struct mf_part parts[MF_PARTS_MAX])
{
    switch (a->tensor) {
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
        return index_parts(a, shape, parts);
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
        return weight_parts(a, shape, parts);
    case MF_TENSOR_X:
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
    case MF_TENSOR_H:
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
    case MF_TENSOR_Y:
        return activation_parts(a, shape, parts);
    case MF_TENSOR_N_:
        break;
    }
    return -EINVAL;
}

/* A shape that is quantised in no way that we know keeps the format of its weights' dtype, if that has one. */
static void plain_format(const struct mf_shape *shape, bool weight, struct mf_artifact *a)
{
    enum mf_dtype dtype = weight ? shape->q_dtype_w : shape->q_dtype_a;
    a->format = MF_FORMAT_BF16;
    a->scale = MF_SCALE_NONE;
    if (shape->q_type == MF_QTYPE_NO || mf_format_of_dtype(dtype, &a->format) < 0 || !is_fp8(a->format))
        return;
    if (shape->q_type == MF_QTYPE_PER_1X128)
        a->scale = weight ? MF_SCALE_PER_128X128 : MF_SCALE_PER_1X128;
    else
        a->scale = MF_SCALE_PER_TOKEN;
}

struct mf_artifact mf_plain_x(const struct mf_shape *shape)
{
    struct mf_artifact a = {.tensor = MF_TENSOR_X, .order = "token"};
    plain_format(shape, false, &a);
    return a;
}

struct mf_artifact mf_plain_h(const struct mf_shape *shape, int32_t block_m)
{
    struct mf_artifact a = {.tensor = MF_TENSOR_H, .order = "sorted", .block = block_m};
    plain_format(shape, false, &a);
    return a;
}

struct mf_artifact mf_plain_w(const struct mf_shape *shape, enum mf_tensor w, const char *layout)
{
    struct mf_artifact a = {.tensor = w};
    plain_format(shape, true, &a);
    strncpy(a.order, layout, sizeof(a.order) - 1);
    return a;
}
