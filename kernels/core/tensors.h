/* Tensor specs in memory: which arrays an tensor spec is made of, how large, in which order.
 *
 * T tokens, k topk, E experts, H, I, B block_m, P = mf_padded_rows(). Every part is 64-byte aligned.
 *   x      {x [T,H], scale, global}; sorted order: P rows in place of T
 *   topk   {ids i32 [T,k], weights f32 [T,k]}
 *   sorted {ids i32 [P], weights f32 [P], experts i32 [P/B], num_valid i32 [2]}
 *   aligned {ids i32 [P], experts i32 [P/B], num_post_pad i32 [1]}
 *   w1 w2  {w, scale, global}: [E,2I,H] and [E,H,I] elements permuted by the layout (kernels/core/layout.h)
 *   g gw   {g [P,2I]}   h {h [P,I], scale, global}   z zw {z [P,H]}: T*k rows in slot order   y {y [T,H]}   calib {calib [2]}
 *   w1d w2d {w bf16}: [E,2I,H] and [E,H,I] in the layout
 *   b1 {b1 f32 [E,2I]}   b2 {b2 f32 [E,H]}: of shapes that have such a bias
 *   With use_g1u1 = 0 gemm1 has no up half: I takes the place of 2I in w1, b1, g and gw.
 *   scale: absent for none; else the grid of the codec (kernels/core/codec.h) over the rows, for weights expert by expert:
 *          per_token f32 [rows] (weights: [E,N]); per_1x128 f32 [rows, ceil(cols/128)];
 *          per_128x128 f32 [E, ceil(N/128), ceil(K/128)]; per_tensor f32 [1] ([E]); per_1x32 [rows, ceil(cols/32)]
 *   global: of codecs that have one, f32 [1] ([E])
 * Elements of four bits lie two to a byte: such a part counts bytes in its cols, (cols + 1) / 2 of them.
 * Rows at and beyond num_valid[0], and rows whose id is padding, are unspecified in sorted order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

#define MF_PARTS_MAX 4

struct mf_part {
    const char *name; /* "x", "scale", … as above */
    int32_t element_bytes;
    int64_t rows, cols; /* bytes = rows * cols * element_bytes */
};

static inline int64_t mf_part_bytes(const struct mf_part *p)
{
    return p->rows * p->cols * p->element_bytes;
}

/* Columns of gemm1's output: 2I, or I without use_g1u1. */
static inline int64_t mf_gemm1_cols(const struct mf_shape *shape)
{
    return (int64_t)shape->inter_dim * (shape->use_g1u1 ? 2 : 1);
}

/* The addresses of an tensor spec's parts, in the order of mf_tensor_spec_parts. */
struct mf_tensor_ref {
    void *part[MF_PARTS_MAX];
};

/* Where row p of a part begins; a part that all rows share, a scale or a factor, has one row. parts: all of the tensor spec's. */
static inline void *mf_part_row(const struct mf_part *parts, const struct mf_tensor_ref *ref, int part,
                                int64_t p)
{
    const struct mf_part *q = &parts[part];
    return (uint8_t *)ref->part[part] + (q->rows == parts[0].rows ? p : 0) * q->cols * q->element_bytes;
}

/* Most rows that any routing of the shape can need in sorted order, a multiple of block_m:
 * ceil((T·k + min(E, T·k)·(block_m − 1)) / block_m)·block_m (ROCm/aiter, adaptive bound). */
int64_t mf_padded_rows(const struct mf_shape *shape, int32_t block_m);

/* Fills parts, returns their number; -EINVAL when the shape has no such tensor spec. */
int mf_tensor_spec_parts(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                         struct mf_part parts[MF_PARTS_MAX]);
/* Values in a row of the tensor spec's first part, which parts[0].cols is not for four-bit elements. */
int64_t mf_tensor_spec_cols(const struct mf_tensor_spec *a, const struct mf_shape *shape);
/* What an element of that part holds that no kernel has written (mf_poison), and whether it could be a value all the
 * same, as every byte of a whole number is. */
uint32_t mf_part_poison(const struct mf_tensor_spec *a, int part, bool *ret_is_value);
/* The same four bytes long, for filling. */
uint32_t mf_part_poison_word(const struct mf_tensor_spec *a, const struct mf_part *parts, int part);

/* What one in sorted order is gathered from: x from token order, the others from slot order. */
struct mf_tensor_spec mf_gathered_from(const struct mf_tensor_spec *sorted);

/* The tensor specs as the plain pipeline of a shape has them: the format in which x enters gemm1 and h enters gemm2, and
 * the weights in a given layout, all by mf_codecs_of_shape. bf16 for a shape whose formats make no pair. */
struct mf_tensor_spec mf_plain_x(const struct mf_shape *shape);                  /* quantised, token order */
struct mf_tensor_spec mf_plain_h(const struct mf_shape *shape, int32_t block_m); /* quantised, sorted order */
struct mf_tensor_spec mf_plain_bias(enum mf_tensor b);                           /* b1, b2 */
/* Which weight a decoded one is of. */
enum mf_tensor mf_decoded_of(enum mf_tensor decoded);
struct mf_tensor_spec mf_plain_w(const struct mf_shape *shape, enum mf_tensor w, const char *layout);

/* sorted_token_ids, AITER's packing. */
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
