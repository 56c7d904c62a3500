/* Tensor specs in memory: the arrays (parts) of a tensor spec, their sizes and their order.
 *
 * T is the number of tokens, k topk, E the number of experts, H model_dim, I inter_dim, B block_m, and P =
 * mf_padded_rows(). Each part is 64-byte aligned.
 *   x        {x [T,H], scale, global}; in sorted order, P rows instead of T
 *   topk     {ids i32 [T,k], weights f32 [T,k]}
 *   sorted   {ids i32 [P], weights f32 [P], experts i32 [P/B], num_valid i32 [2]}
 *   aligned  {ids i32 [P], experts i32 [P/B], num_post_pad i32 [1]}
 *   w1 w2    {w, scale, global}: [E,2I,H] and [E,H,I] elements in the layout (kernels/core/layout.h)
 *   g gw     {g [P,2I]}
 *   h        {h [P,I], scale, global}
 *   z zw     {z [P,H]}; g, gw, h, z and zw in slot order have T*k rows
 *   y        {y [T,H]}
 *   calib    {calib [2]}
 *   w1d w2d  {w bf16}: dequantised weights, [E,2I,H] and [E,H,I] in the layout
 *   b1       {b1 f32 [E,2I]}, for shapes with this bias
 *   b2       {b2 f32 [E,H]}, for shapes with this bias
 * With use_g1u1 = 0 gemm1 has no up half, so w1, b1, g and gw have I instead of 2I.
 *   scale:   absent if the format has no scales; otherwise the codec's scales (kernels/core/codec.h),
 *            in a weight separate for each expert:
 *            per_token f32 [rows] (weights: [E,N]); per_1x128 f32 [rows, ceil(cols/128)];
 *            per_128x128 f32 [E, ceil(N/128), ceil(K/128)]; per_tensor f32 [1] ([E]);
 *            per_1x32 [rows, ceil(cols/32)]
 *   global:  only for codecs with a global factor, f32 [1] ([E])
 * Four-bit elements are packed in pairs: `cols` of such a part is in bytes, (columns + 1) / 2. In sorted
 * order, the contents of rows from num_valid[0] on, and of rows with a padding id, are undefined. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/quant.h"

#define MF_PARTS_MAX 4

struct mf_part {
    const char *name; /* "x", "scale", … as in the list above */
    int32_t element_bytes;
    int64_t rows, cols; /* bytes = rows * cols * element_bytes */
};

static inline int64_t mf_part_bytes(const struct mf_part *p)
{
    return p->rows * p->cols * p->element_bytes;
}

/* Returns the columns of gemm1's output: 2I, or I with use_g1u1 = 0. */
static inline int64_t mf_gemm1_cols(const struct mf_shape *shape)
{
    return (int64_t)shape->inter_dim * (shape->use_g1u1 ? 2 : 1);
}

/* Addresses of the parts of a tensor spec, in the order of the array that mf_tensor_spec_parts fills. */
struct mf_tensor_ref {
    void *part[MF_PARTS_MAX];
};

/* Returns the address of row p of a part. If all rows share the part, such as a per-tensor scale, returns the
 * address of its only row. `parts` are all parts of the tensor spec. */
static inline void *mf_part_row(const struct mf_part *parts, const struct mf_tensor_ref *ref, int part,
                                int64_t p)
{
    const struct mf_part *q = &parts[part];
    return (uint8_t *)ref->part[part] + (q->rows == parts[0].rows ? p : 0) * q->cols * q->element_bytes;
}

/* Returns the largest number of rows, including padding, that sorted order can have for any routing of the
 * shape: ceil((T·k + min(E, T·k)·(block_m − 1)) / block_m)·block_m (ROCm/aiter, adaptive bound). */
int64_t mf_padded_rows(const struct mf_shape *shape, int32_t block_m);

/* Fills `parts` and returns their number. Returns -EINVAL if the shape has no such tensor spec. */
int mf_tensor_spec_parts(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                         struct mf_part parts[MF_PARTS_MAX]);
/* Returns the number of elements per row of the first part. It differs from parts[0].cols for four-bit
 * elements, because `cols` then counts bytes. */
int64_t mf_tensor_spec_cols(const struct mf_tensor_spec *a, const struct mf_shape *shape);
/* Returns the poison pattern of an element that no kernel has written (mf_poison). *ret_is_value is true if
 * the pattern is also a valid value, as in integer formats. */
uint32_t mf_part_poison(const struct mf_tensor_spec *a, int part, bool *ret_is_value);
/* Returns the poison pattern of a part, repeated until it fills four bytes, for functions that fill words. */
uint32_t mf_part_poison_word(const struct mf_tensor_spec *a, const struct mf_part *parts, int part);

/* Returns the tensor spec whose rows are gathered to create `sorted`: in token order for x, in slot order for
 * other tensors. */
struct mf_tensor_spec mf_gathered_from(const struct mf_tensor_spec *sorted);

/* These functions return the tensor specs of the plain (unfused) pipeline of a shape: x as read by gemm1, h
 * as read by gemm2, and the weights in the given layout, with the codecs of mf_codecs_of_shape. The format is
 * bf16 if the shape's formats are not a valid pair. */
/* quantised, in token order */
struct mf_tensor_spec mf_plain_x(const struct mf_shape *shape);
/* quantised, in sorted order */
struct mf_tensor_spec mf_plain_h(const struct mf_shape *shape, int32_t block_m);
struct mf_tensor_spec mf_plain_bias(enum mf_tensor b); /* b is b1 or b2 */
/* Returns the quantised weight from which a dequantised weight is computed: w1 for w1d, w2 for w2d. */
enum mf_tensor mf_encoded_weight_of(enum mf_tensor decoded);
struct mf_tensor_spec mf_plain_w(const struct mf_shape *shape, enum mf_tensor w, const char *layout);

/* Element types of the tensor topk. Zero, which measurements use, is int32 and float32; a call of libfmoe may
 * have others. */
struct mf_route_types {
    bool wide;         /* ids are int64, else int32 */
    bool bf16_weights; /* weights are bf16, else float32 */
};
/* Return id and weight of route i. An int64 id that does not fit int32 becomes -1, which no expert has. */
static inline int32_t mf_route_id(const struct mf_tensor_ref *topk, struct mf_route_types t, int64_t i)
{
    int64_t id = t.wide ? ((const int64_t *)topk->part[0])[i] : ((const int32_t *)topk->part[0])[i];
    return id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
}
static inline float mf_route_weight(const struct mf_tensor_ref *topk, struct mf_route_types t, int64_t i)
{
    return t.bf16_weights ? mf_bf16_to_float(((const uint16_t *)topk->part[1])[i])
                          : ((const float *)topk->part[1])[i];
}

/* Entries of sorted_token_ids, packed as AITER does: slot in bits 24 to 31, token in bits 0 to 23. */
static inline int32_t mf_pack_id(int32_t token, int32_t slot)
{
    return (int32_t)((uint32_t)slot << 24 | (uint32_t)token);
}
static inline int32_t mf_id_token(int32_t id)
{
    return id & 0xffffff;
}
static inline int32_t mf_id_slot(int32_t id)
{
    return (int32_t)((uint32_t)id >> 24);
}
