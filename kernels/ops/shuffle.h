/* The orders in which other people's kernels want weights and scales: index formulas, applied to whole matrices. Each is a
 * permutation of elements, given as the place of element (row, column); out of range of a padded matrix the fill stands.
 * Sources: ROCm/aiter (ops/shuffle.py, fused_moe.py), NVIDIA (cuBLAS block scaling, "32_4_4"), FlashInfer.
 *
 *   16x16       shuffle_weight(layout=(16,16)): 16 rows, 32 elements of K in parts of 16 bytes (int4: 32 elements)
 *   a16w4       shuffle_weight_a16w4: 16 rows, 4 parts of 16 bytes of K; with gate_up the tile of gate rows and that of
 *               up rows of the same 16 follow each other
 *   a16w4_scale its companion for the e8m0 scales of w1, [rows, K/32]
 *   e8m0        e8m0_shuffle: rows padded to 256, columns to 8
 *   e8m0_1250   gfx1250: tiles of 32 rows by 4 columns, padded with 0x7f
 *   32_4_4      NVFP4's swizzle: rows padded to 128, columns to 4, zeros; begins anew at each expert
 *   8_4         the small variant: rows padded to 8
 * Weights that were shuffled for one kernel and read by another are finite garbage, so a shuffle is part of a layout's
 * name and never assumed. */
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

/* One expert's matrix. Columns count elements: bytes of a8w8, halves of bf16, bytes that hold two four-bit values. */
struct mf_shuffle_size {
    size_t rows, cols;
    int element_bytes; /* 1 or 2 */
    bool four_bit;     /* int4 of 16x16: parts of 32 values, counted as values */
};

/* Whether the order is defined for the size; else the sentence. */
bool mf_shuffle_legal(enum mf_shuffle s, const struct mf_shuffle_size *size, char *why, size_t why_cap);
/* Elements of the shuffled matrix, padding included. */
size_t mf_shuffle_elements(enum mf_shuffle s, const struct mf_shuffle_size *size);
/* Place of element (row, col). */
size_t mf_shuffle_index(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t row, size_t col);
/* Whole matrices of `experts` experts, one after the other; to has mf_shuffle_elements() for each. Elements of one byte or
 * two; four-bit values of 16x16 are not moved by this but by mf_int4_pack_a16wi4(). */
void mf_shuffle_apply(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t experts, const void *from,
                      void *to);
void mf_shuffle_undo(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t experts, const void *from,
                     void *to);

/* --- int4 ------------------------------------------------------------------------------------------------------- */

/* Eight values of int4, each in a byte, to four bytes as AITER's a16wi4 packs them after its (16,16) shuffle:
 * v4 << 4 | v0, v5 << 4 | v1, v6 << 4 | v2, v7 << 4 | v3. */
void mf_int4_pack_a16wi4(const int8_t v[8], uint8_t out[4]);
void mf_int4_unpack_a16wi4(const uint8_t in[4], int8_t v[8]);
/* AITER's w4a8 word: from the highest nibble e0 e2 e4 e6 e1 e3 e5 e7. */
uint32_t mf_int4_pack_w4a8(const int8_t e[8]);
void mf_int4_unpack_w4a8(uint32_t word, int8_t e[8]);
/* GPTQ's uint4b8 of a nibble: value 8 more. */
static inline int8_t mf_int4_from_uint4b8(uint8_t nibble)
{
    return (int8_t)((int)(nibble & 15) - 8);
}
/* Place of scale (n, g) of [N, K/32] in AITER's (K/32/2, N, 2). */
static inline size_t mf_int4_scale_index(size_t n_rows, size_t n, size_t g)
{
    return (g / 2 * n_rows + n) * 2 + g % 2;
}

/* --- fp8 of one flavour read as the other ------------------------------------------------------------------------ */

/* The same bits mean half as much in e4m3fnuz: a checkpoint of e4m3fn keeps its bytes, 0x80 (-0, NaN there) becomes 0x00,
 * and its scales are doubled. 0x7f and 0xff (NaN) have no place: their number is returned. */
size_t mf_fp8fn_to_fnuz(uint8_t *codes, size_t n);
