#include "kernels/cpu/dequant.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/small_float.h"
#include "kernels/core/vector.h"

#define HALF_ROWS 16 /* rows per panel written by decode() */
/* K elements per piece: a multiple of every scale group, and few enough that 32 rows of a piece fit the L1
 * cache */
#define PIECE_K 256

#define GROUP_BYTES 4 /* consecutive bytes of a row in a panel */

/* The workspace holds the decoded values of a piece and, if the weights are repacked, its quantised weights.
 */
size_t mf_dequant_workspace(void)
{
    return (size_t)MF_DEQUANT_ROWS * PIECE_K * (sizeof(uint16_t) + 1);
}

/* Interleaves two panels of 16 rows into one panel of 32 rows. */
static void join(const uint16_t *from, size_t half, size_t n_pairs, uint16_t *to)
{
    for (size_t k = 0; k < n_pairs; k++) {
        memcpy(to + k * 4 * HALF_ROWS, from + k * 2 * HALF_ROWS, 2 * HALF_ROWS * sizeof(*to));
        memcpy(to + k * 4 * HALF_ROWS + 2 * HALF_ROWS, from + half + k * 2 * HALF_ROWS,
               2 * HALF_ROWS * sizeof(*to));
    }
}

/* Does the same as join(), but multiplies or divides each value by the factor of its row. `by` holds the
 * factors in output order; they are the same for every pair of K elements. */
#define JOIN(op)                                                                                  \
    {                                                                                             \
        for (size_t k = 0; k < n_pairs; k++) {                                                    \
            for (size_t h = 0; h < 2; h++) {                                                      \
                for (size_t i = 0; i < (size_t)2 * HALF_ROWS; i++) {                              \
                    float v = mf_float_of((uint32_t)from[h * half + k * 2 * HALF_ROWS + i] << 16) \
                        op by[h * 2 * HALF_ROWS + i];                                             \
                    uint32_t u = mf_bits_of(v);                                                   \
                    to[k * 4 * HALF_ROWS + h * 2 * HALF_ROWS + i] =                               \
                        (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);                           \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }
MF_VECTOR_BODY(static, void, join_scaled,
               (const uint16_t *restrict from, size_t half, size_t n_pairs, const float *restrict by,
                uint16_t *restrict to),
               (from, half, n_pairs, by, to), JOIN(*))
MF_VECTOR_BODY(static, void, join_divided,
               (const uint16_t *restrict from, size_t half, size_t n_pairs, const float *restrict by,
                uint16_t *restrict to),
               (from, half, n_pairs, by, to), JOIN(/))

/* Returns the factor of row n at K element k that decode() does not apply: a scale that is not folded, or the
 * global factor. */
static float factor_of(const struct mf_dequant *d, size_t expert, size_t n, size_t k)
{
    const struct mf_codec *c = d->codec;
    if (mf_codec_folds(c))
        return ((const float *)d->from.part[2])[expert];
    size_t rows = mf_codec_scale_rows(c, d->N), cols = mf_codec_scale_cols(c, d->K);
    size_t row = c->group_rows > 0 ? n / (size_t)c->group_rows : 0;
    size_t col = c->group_cols > 0 ? k / (size_t)c->group_cols : 0;
    return ((const float *)d->from.part[1])[(expert * rows + row) * cols + col];
}

static void join_and_scale(const struct mf_dequant *d, size_t expert, size_t n0, size_t k0, size_t k_end,
                           const uint16_t *values, uint16_t *to)
{
    const struct mf_codec *c = d->codec;
    bool folds = mf_codec_folds(c);
    size_t half = HALF_ROWS * (k_end - k0),
           group = folds || c->group_cols == 0 ? PIECE_K : (size_t)c->group_cols;
    float by[2 * MF_DEQUANT_ROWS];

    if (folds && !c->global) {
        join(values, half, (k_end - k0) / 2, to);
        return;
    }
    for (size_t k = k0; k < k_end; k += group) {
        size_t n_pairs = (MF_MIN(k + group, k_end) - k) / 2;
        for (size_t i = 0; i < MF_ARRAY_LEN(by); i++)
            by[i] = factor_of(d, expert, n0 + i / 2, k);
        (folds ? join_divided : join_scaled)(values + (k - k0) * HALF_ROWS, half, n_pairs, by,
                                             to + (k - k0) * MF_DEQUANT_ROWS);
    }
}

/* Repacks a piece of the `row` layout as a panel, because decode() processes a panel many times faster. */
static void repack_as_panel(const struct mf_dequant *d, struct mf_decode *piece, uint8_t *codes)
{
    const struct mf_codec *c = d->codec;
    size_t row_bytes = mf_codec_row_bytes(c, d->K),
           n_groups = mf_codec_row_bytes(c, piece->k_end - piece->k0) / GROUP_BYTES;
    const uint8_t *from = (const uint8_t *)piece->w + mf_codec_row_bytes(c, piece->k0);

    for (size_t g = 0; g < n_groups; g++) {
        for (size_t r = 0; r < MF_DEQUANT_ROWS; r++)
            memcpy(codes + (g * MF_DEQUANT_ROWS + r) * GROUP_BYTES, from + r * row_bytes + g * GROUP_BYTES,
                   GROUP_BYTES);
    }
    if (mf_codec_folds(c))
        piece->scale =
            (const uint8_t *)piece->scale + piece->k0 / (size_t)c->group_cols * (size_t)c->scale_bytes;
    piece->panel = MF_DEQUANT_ROWS;
    piece->w = codes;
    piece->K = piece->k_end -= piece->k0;
    piece->k0 = 0;
}

void mf_dequant_strip(const struct mf_dequant *d, size_t expert, size_t n0, void *workspace)
{
    const struct mf_codec *c = d->codec;
    size_t first = expert * d->N + n0, scales = mf_codec_scale_cols(c, d->K) * (size_t)c->scale_bytes;
    uint8_t *codes = (uint8_t *)workspace + (size_t)MF_DEQUANT_ROWS * PIECE_K * sizeof(uint16_t);
    const struct mf_decode strip = {
        .codec = c,
        .panel = d->panel,
        .w = (const uint8_t *)d->from.part[0] + first * mf_codec_row_bytes(c, d->K),
        .scale = mf_codec_folds(c) ? (const uint8_t *)d->from.part[1] + first * scales : NULL,
        .ld_scale = scales,
        .n = MF_DEQUANT_ROWS,
        .K = d->K,
        .to = workspace,
    };

    for (size_t k = 0; k < d->K; k += PIECE_K) {
        size_t end = MF_MIN(k + PIECE_K, d->K);
        struct mf_decode piece = strip;
        piece.k0 = k;
        piece.k_end = end;
        if (d->panel == 1)
            repack_as_panel(d, &piece, codes);
        d->ops->decode(&piece);
        join_and_scale(d, expert, n0, k, end, workspace, d->to + first * d->K + k * MF_DEQUANT_ROWS);
    }
}
