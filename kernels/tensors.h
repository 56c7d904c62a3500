/* Artifacts in memory: which arrays an artifact is made of, how large, in which order.
 *
 * T tokens, k topk, E experts, H, I, B block_m, P = mf_padded_rows(). Every part is 64-byte aligned.
 *   x      bf16: {x [T,H]}; fp8: {x [T,H] bytes, scale}; sorted order: P rows in place of T
 *   topk   {ids i32 [T,k], weights f32 [T,k]}
 *   sorted {ids i32 [P], weights f32 [P], experts i32 [P/B], num_valid i32 [2]}
 *   w1 w2  {w, scale}: [E,2I,H] and [E,H,I] elements permuted by the layout (kernels/layout.h)
 *   g gw   {g [P,2I]}   h {h [P,I], scale}   z zw {z [T*k,H]}   y {y [T,H]}
 *   With use_g1u1 = 0 gemm1 has no up half: I takes the place of 2I in w1, g and gw.
 *   scale: absent for none; per_token f32 [rows] (weights: [E,N]); per_1x128 f32 [rows, ceil(cols/128)];
 *          per_128x128 f32 [E, ceil(N/128), ceil(K/128)]
 * Rows at and beyond num_valid[0], and rows whose id is padding, are unspecified in sorted order. */
#pragma once

#include <stdint.h>

#include "common/artifact.h"
#include "common/shape.h"

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

/* The addresses of an artifact's parts, in the order of mf_artifact_parts. */
struct mf_tensor_ref {
    void *part[MF_PARTS_MAX];
};

/* Most rows that any routing of the shape can need in sorted order, a multiple of block_m:
 * ceil((T·k + min(E, T·k)·(block_m − 1)) / block_m)·block_m (ROCm/aiter, adaptive bound). */
int64_t mf_padded_rows(const struct mf_shape *shape, int32_t block_m);

/* Fills parts, returns their number; -EINVAL when the shape has no such artifact. */
int mf_artifact_parts(const struct mf_artifact *a, const struct mf_shape *shape,
                      struct mf_part parts[MF_PARTS_MAX]);

/* The artifacts as the plain pipeline of a shape has them: the format in which x enters gemm1 and h enters
 * gemm2 (bf16, or the shape's fp8 with its scale), and the weights in a given layout. */
struct mf_artifact mf_plain_x(const struct mf_shape *shape);                  /* quantised, token order */
struct mf_artifact mf_plain_h(const struct mf_shape *shape, int32_t block_m); /* quantised, sorted order */
struct mf_artifact mf_plain_w(const struct mf_shape *shape, enum mf_tensor w, const char *layout);

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
