#include "kernels/core/tensors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/layout.h"
#include "kernels/core/quant.h"

int64_t mf_padded_rows(const struct mf_shape *shape, int32_t block_m)
{
    int64_t rows = shape->token * shape->topk, block = block_m > 0 ? block_m : 1;
    int64_t active = MF_MIN((int64_t)shape->expert, rows);
    return (rows + active * (block - 1) + block - 1) / block * block;
}

static bool is_sorted(const struct mf_tensor_spec *a)
{
    return strcmp(a->order, "sorted") == 0 && a->block > 0;
}

static int index_parts(const struct mf_tensor_spec *a, const struct mf_shape *s, struct mf_part *p)
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
    if (a->tensor == MF_TENSOR_ALIGNED) {
        p[1] = (struct mf_part){"experts", 4, rows / a->block, 1};
        p[2] = (struct mf_part){"num_post_pad", 4, 1, 1};
        return 3;
    }
    p[1] = (struct mf_part){"weights", 4, rows, 1};
    p[2] = (struct mf_part){"experts", 4, rows / a->block, 1};
    p[3] = (struct mf_part){"num_valid", 4, 2, 1};
    return 4;
}

static const struct mf_codec *codec_of(const struct mf_tensor_spec *a)
{
    return mf_codec_find(a->format, a->scale);
}

/* Returns the part that holds a tensor's elements. For four-bit elements, `cols` counts bytes. */
static struct mf_part elements(const char *name, const struct mf_codec *c, int64_t rows, int64_t cols)
{
    if (c->bits < 8)
        return (struct mf_part){name, 1, rows, (int64_t)mf_codec_row_bytes(c, (size_t)cols)};
    return (struct mf_part){name, c->bits / 8, rows, cols};
}

/* Fills p[1] and p[2] with the scales and global factors of n matrices of rows x cols. Returns the number of
 * parts. */
static int scale_parts(const struct mf_codec *c, int64_t n, int64_t rows, int64_t cols, struct mf_part *p)
{
    if (c->scale_bytes == 0)
        return 1;
    p[1] = (struct mf_part){"scale", c->scale_bytes, n * (int64_t)mf_codec_scale_rows(c, (size_t)rows),
                            (int64_t)mf_codec_scale_cols(c, (size_t)cols)};
    if (!c->global)
        return 2;
    p[2] = (struct mf_part){"global", 4, n, 1};
    return 3;
}

static int weight_parts(const struct mf_tensor_spec *a, const struct mf_shape *s, struct mf_part *p)
{
    const struct mf_layout *l = mf_layout_find(a->order);
    const struct mf_codec *c = codec_of(a);
    bool first = a->tensor == MF_TENSOR_W1 || a->tensor == MF_TENSOR_W1D;
    int64_t n = first ? mf_gemm1_cols(s) : s->model_dim, k = first ? s->model_dim : s->inter_dim;
    if (!l || !c || a->scale == MF_SCALE_PER_1X128 || !mf_layout_legal(l, c->bits, (size_t)n, (size_t)k) ||
        !mf_layout_supports_scales(l, c) || (l->gate_rows > 0 && (!first || !s->use_g1u1)))
        return -EINVAL;
    p[0] = elements("w", c, s->expert * n, k);
    return scale_parts(c, s->expert, n, k, p);
}

/* Fills the parts of a dequantised weight, which exists only for shapes with quantised weights. */
static int decoded_parts(const struct mf_tensor_spec *a, const struct mf_shape *s, struct mf_part *p)
{
    struct mf_tensor_spec w = mf_plain_w(s, mf_encoded_weight_of(a->tensor), a->order);
    if (a->format != MF_FORMAT_BF16 || a->scale != MF_SCALE_NONE || w.scale == MF_SCALE_NONE)
        return -EINVAL;
    return weight_parts(a, s, p);
}

/* Returns the number of rows of the tensor in its order, or 0 if the tensor cannot have that order. */
static int64_t order_rows(const struct mf_tensor_spec *a, const struct mf_shape *s)
{
    bool sorted = is_sorted(a), token = strcmp(a->order, "token") == 0, slot = strcmp(a->order, "slot") == 0;
    switch (a->tensor) {
    case MF_TENSOR_X:
        return token ? s->token : sorted ? mf_padded_rows(s, a->block) : 0;
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
    case MF_TENSOR_H:
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
        return slot ? s->token * s->topk : sorted ? mf_padded_rows(s, a->block) : 0;
    case MF_TENSOR_Y:
        return token ? s->token : 0;
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
    case MF_TENSOR_CALIB:
    case MF_TENSOR_ALIGNED:
    case MF_TENSOR_B1:
    case MF_TENSOR_B2:
    case MF_TENSOR_W1D:
    case MF_TENSOR_W2D:
    case MF_TENSOR_N_:
        break;
    }
    return 0;
}

int64_t mf_tensor_spec_cols(const struct mf_tensor_spec *a, const struct mf_shape *s)
{
    switch (a->tensor) {
    case MF_TENSOR_TOPK:
        return s->topk;
    case MF_TENSOR_SORTED:
    case MF_TENSOR_ALIGNED:
        return 1;
    case MF_TENSOR_CALIB:
        return 2;
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
    case MF_TENSOR_B1:
        return mf_gemm1_cols(s);
    case MF_TENSOR_W2:
    case MF_TENSOR_W2D:
    case MF_TENSOR_H:
        return s->inter_dim;
    case MF_TENSOR_W1:
    case MF_TENSOR_W1D:
    case MF_TENSOR_X:
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
    case MF_TENSOR_Y:
    case MF_TENSOR_B2:
    case MF_TENSOR_N_:
        break;
    }
    return s->model_dim;
}

uint32_t mf_part_poison(const struct mf_tensor_spec *a, int part, bool *ret_is_value)
{
    const struct mf_codec *c = codec_of(a);
    enum mf_format format = a->format;
    *ret_is_value = false;
    if (format == MF_FORMAT_INDEX)
        return mf_poison(part == 1 && a->tensor != MF_TENSOR_ALIGNED ? MF_FORMAT_F32 : MF_FORMAT_INDEX);
    if (part == 0) {
        *ret_is_value = format == MF_FORMAT_INT8 || format == MF_FORMAT_INT4 || format == MF_FORMAT_FP4;
        return mf_poison(format);
    }
    if (part == 1 && c && c->scale_format == MF_SCALE_E8M0)
        return 0xff;
    if (part == 1 && c && c->scale_format == MF_SCALE_E4M3)
        return mf_poison(MF_FORMAT_FP8FN);
    return mf_poison(part == 1 && c && c->scale_format == MF_SCALE_BF16 ? MF_FORMAT_BF16 : MF_FORMAT_F32);
}

uint32_t mf_part_poison_word(const struct mf_tensor_spec *a, const struct mf_part *parts, int part)
{
    bool is_value;
    uint32_t poison = mf_part_poison(a, part, &is_value);
    if (parts[part].element_bytes == 1)
        return (poison & 0xff) * 0x01010101u;
    return parts[part].element_bytes == 2 ? (poison & 0xffff) * 0x00010001u : poison;
}

static int activation_parts(const struct mf_tensor_spec *a, const struct mf_shape *s, struct mf_part *p)
{
    bool quantised = a->tensor == MF_TENSOR_X || a->tensor == MF_TENSOR_H;
    const struct mf_codec *c = codec_of(a);
    int64_t rows = order_rows(a, s), cols = mf_tensor_spec_cols(a, s);
    const char *name = a->tensor == MF_TENSOR_GW   ? "g"
                       : a->tensor == MF_TENSOR_ZW ? "z"
                                                   : mf_tensor_name(a->tensor);
    if (rows > 0 && a->format == MF_FORMAT_F32 && a->scale == MF_SCALE_NONE) {
        p[0] = (struct mf_part){name, 4, rows, cols};
        return 1;
    }
    if (rows == 0 || !c || (c->scale_bytes > 0 && !quantised) || a->format == MF_FORMAT_INT4 ||
        a->scale == MF_SCALE_PER_128X128)
        return -EINVAL;
    p[0] = elements(name, c, rows, cols);
    return scale_parts(c, 1, rows, cols, p);
}

static int bias_parts(const struct mf_tensor_spec *a, const struct mf_shape *s, struct mf_part *p)
{
    bool there = a->tensor == MF_TENSOR_B1 ? s->has_b1 : s->has_b2;
    if (!there || !mf_tensor_spec_is_input(a))
        return -EINVAL;
    *p = (struct mf_part){mf_tensor_name(a->tensor), 4, s->expert, mf_tensor_spec_cols(a, s)};
    return 1;
}

int mf_tensor_spec_parts(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                         struct mf_part parts[MF_PARTS_MAX])
{
    switch (a->tensor) {
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
    case MF_TENSOR_ALIGNED:
        return index_parts(a, shape, parts);
    case MF_TENSOR_CALIB:
        if (a->format != MF_FORMAT_F32 || a->scale != MF_SCALE_NONE || strcmp(a->order, "token") != 0)
            return -EINVAL;
        parts[0] = (struct mf_part){"calib", 4, 1, 2};
        return 1;
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
        return weight_parts(a, shape, parts);
    case MF_TENSOR_W1D:
    case MF_TENSOR_W2D:
        return decoded_parts(a, shape, parts);
    case MF_TENSOR_X:
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
    case MF_TENSOR_H:
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
    case MF_TENSOR_Y:
        return activation_parts(a, shape, parts);
    case MF_TENSOR_B1:
    case MF_TENSOR_B2:
        return bias_parts(a, shape, parts);
    case MF_TENSOR_N_:
        break;
    }
    return -EINVAL;
}

struct mf_tensor_spec mf_gathered_from(const struct mf_tensor_spec *sorted)
{
    struct mf_tensor_spec a = *sorted;
    a.block = 0;
    (void)snprintf(a.order, sizeof(a.order), "%s", a.tensor == MF_TENSOR_X ? "token" : "slot");
    return a;
}

static void plain_format(const struct mf_shape *shape, bool weight, struct mf_tensor_spec *a)
{
    struct mf_codecs codecs;
    const char *why;
    bool known = mf_codecs_of_shape(shape, &codecs, &why) == 0;
    const struct mf_codec *c =
        known ? weight ? codecs.w : codecs.a : mf_codec_find(MF_FORMAT_BF16, MF_SCALE_NONE);
    a->format = c->format;
    a->scale = c->scale;
}

struct mf_tensor_spec mf_plain_x(const struct mf_shape *shape)
{
    struct mf_tensor_spec a = {.tensor = MF_TENSOR_X, .order = "token"};
    plain_format(shape, false, &a);
    return a;
}

struct mf_tensor_spec mf_plain_h(const struct mf_shape *shape, int32_t block_m)
{
    struct mf_tensor_spec a = {.tensor = MF_TENSOR_H, .order = "sorted", .block = block_m};
    plain_format(shape, false, &a);
    return a;
}

struct mf_tensor_spec mf_plain_bias(enum mf_tensor b)
{
    return (struct mf_tensor_spec){
        .tensor = b, .format = MF_FORMAT_F32, .scale = MF_SCALE_NONE, .order = "row"};
}

enum mf_tensor mf_encoded_weight_of(enum mf_tensor decoded)
{
    return decoded == MF_TENSOR_W1D ? MF_TENSOR_W1 : MF_TENSOR_W2;
}

struct mf_tensor_spec mf_plain_w(const struct mf_shape *shape, enum mf_tensor w, const char *layout)
{
    struct mf_tensor_spec a = {.tensor = w};
    plain_format(shape, true, &a);
    (void)snprintf(a.order, sizeof(a.order), "%s", layout);
    return a;
}
