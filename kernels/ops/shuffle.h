/* Reorders weights and scales as external kernels expect them. Each order is defined by a formula for the
 * position of element (row, column). Each order has its own fill value for padding. Sources: ROCm/aiter
 * (ops/shuffle.py, fused_moe.py), NVIDIA (cuBLAS block scaling, "32_4_4"), FlashInfer.
 *
 *   16x16       shuffle_weight(layout=(16,16)): tiles of 16 rows, with K in parts of 16 bytes (int4: of 32
 *               values)
 *   a16w4       shuffle_weight_a16w4: tiles of 16 rows by 4 parts of 16 bytes of K; with gate_up, tiles of
 *               16 gate rows alternate with tiles of the corresponding 16 up rows
 *   a16w4_scale the e8m0 scales [rows, K/32] of w1, in an order that matches a16w4
 *   e8m0        e8m0_shuffle: rows padded to 256, columns to 8
 *   e8m0_1250   gfx1250: tiles of 32 rows by 4 columns, padded with 0x7f
 *   32_4_4      NVFP4 swizzle: rows padded to 128, columns to 4, with zeros; each expert begins a new matrix
 *   8_4         the variant of 32_4_4 for few rows: rows padded to 8
 *
 * A kernel that reads weights in the wrong order computes plausible but wrong values, so the order is always
 * part of a layout's name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

/* clang-format off */
#define MF_SHUFFLE_MAP(X, P)            \
    X(P, W16X16, "16x16")               \
    X(P, A16W4, "a16w4")                \
    X(P, A16W4_GU, "a16w4_gu")          \
    X(P, A16W4_SCALE, "a16w4_scale")    \
    X(P, E8M0, "e8m0")                  \
    X(P, E8M0_1250, "e8m0_1250")        \
    X(P, NV_32_4_4, "32_4_4")           \
    X(P, NV_8_4, "8_4")
/* clang-format on */
MF_NAMES_DECLARE(mf_shuffle, MF_SHUFFLE_, MF_SHUFFLE_MAP);

/* The size of one expert's matrix. Columns count elements: bytes for a8w8, 16-bit elements for bf16, and
 * bytes that hold two values for four-bit formats. */
struct mf_shuffle_size {
    size_t rows, cols;
    int element_bytes; /* 1 or 2 */
    /* true for int4 with 16x16: cols counts values, and K is divided into parts of 32 values */
    bool four_bit;
};

/* Returns true if the order supports the size, otherwise false with the reason in why. */
bool mf_shuffle_legal(enum mf_shuffle s, const struct mf_shuffle_size *size, char *why, size_t why_cap);
/* Returns the number of elements of the shuffled matrix, including padding. */
size_t mf_shuffle_elements(enum mf_shuffle s, const struct mf_shuffle_size *size);
/* Sets the rows and columns of the shuffled matrix, including padding. */
void mf_shuffle_padded(enum mf_shuffle s, const struct mf_shuffle_size *size, long long *ret_rows,
                       long long *ret_cols);
/* Returns the position of element (row, col) in the shuffled matrix. */
size_t mf_shuffle_index(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t row, size_t col);
/* Shuffles the matrices of `experts` experts, stored one after the other. `to` has mf_shuffle_elements()
 * elements per expert. Elements have one or two bytes. For four-bit values with 16x16 use
 * mf_int4_pack_a16wi4(). */
void mf_shuffle_apply(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t experts, const void *from,
                      void *to);
void mf_shuffle_undo(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t experts, const void *from,
                     void *to);

/* --- int4 --- */

/* Packs eight int4 values, one per byte, into four bytes as AITER's a16wi4 does after its (16,16) shuffle:
 * v4 << 4 | v0, v5 << 4 | v1, v6 << 4 | v2, v7 << 4 | v3. */
void mf_int4_pack_a16wi4(const int8_t v[8], uint8_t out[4]);
void mf_int4_unpack_a16wi4(const uint8_t in[4], int8_t v[8]);
/* Packs eight int4 values into AITER's w4a8 word. From the highest nibble on, the word holds e0 e2 e4 e6 e1
 * e3 e5 e7. */
uint32_t mf_int4_pack_w4a8(const int8_t e[8]);
void mf_int4_unpack_w4a8(uint32_t word, int8_t e[8]);
/* Converts a value of GPTQ's uint4b8 format, which stores the value plus 8. */
static inline int8_t mf_int4_from_uint4b8(uint8_t nibble)
{
    return (int8_t)((int)(nibble & 15) - 8);
}
/* Returns the index of scale (n, g) of [N, K/32] in AITER's order (K/32/2, N, 2). */
static inline size_t mf_int4_scale_index(size_t n_rows, size_t n, size_t g)
{
    return (g / 2 * n_rows + n) * 2 + g % 2;
}

/* --- conversion of e4m3fn to e4m3fnuz --- */

/* Converts e4m3fn bytes in place. The caller must double the scales, because the same bits represent half the
 * value in e4m3fnuz. Only bytes of value 0x80 change: 0x80 is -0 in e4m3fn but NaN in e4m3fnuz, and becomes
 * 0x00. Returns the number of NaNs (0x7f, 0xff), which the conversion cannot represent. */
size_t mf_fp8fn_to_fnuz(uint8_t *codes, size_t n);
