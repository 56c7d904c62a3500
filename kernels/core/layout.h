/* Weight layouts: the storage order of the N x K elements of one expert's weight.
 *
 *   row        [N, K] as most checkpoints have it; w1: all gate rows, then all up rows
 *   panel16    panels of 16 rows; within a panel, four bytes of K of each row together, so that one 64-byte
 *              load feeds a dot product of 16 outputs. bf16 [N/16][K/2][16][2];
 *              fp8 and int8 [N/16][K/4][16][4]; four-bit [N/16][K/8][16][8]
 *   panel32    the same with panels of 32 rows
 *   panel128   [N/128][K·bytes/128][128][128 bytes]: panels of 128 rows; within a panel, 128 bytes of K of
 *              each row together, so that the operand of one K step of a tile is contiguous
 *   gu1        w1 only: [N, K], gate and up rows alternate, as in checkpoints of openai/gpt-oss
 *   gu16       w1 only: [N, K], 16 gate rows and 16 up rows alternate
 *   gu16_panel16, gu32_panel32
 *              w1 only: panels of gate rows and of up rows alternate, so that a tile of both is contiguous
 *
 * A layout is legal if N is a multiple of the rows of its panel and K is a multiple of its group. In a layout
 * in which gate and up alternate, the number of gate rows and the number of up rows must each be a multiple
 * of the number of rows by which they alternate. In other layouts of w1 gate and up rows keep their order:
 * panels divide the 2I rows, and I must be a multiple of the panel, so that no panel contains both gate and
 * up rows.
 *
 * Scales keep their order, with one exception: if gate and up alternate, per-row scales move with their rows.
 * Formats with a scale for several rows have no layout in which gate and up alternate. Biases never move. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/codec.h"

struct mf_layout {
    const char *name;
    const char *word; /* abbreviation in step names */
    int panel;        /* rows per panel; 1: no panels */
    int group_bytes;  /* contiguous bytes of K of one row within a panel */
    int gate_rows;    /* gate and up alternate by this many rows; 0: all gate rows first */
};

#define MF_LAYOUTS_MAX 8

/* Returns NULL if there is no such layout. */
const struct mf_layout *mf_layout_find(const char *name);
/* Returns all layouts, `row` first; *ret_n is their number. */
const struct mf_layout *mf_layouts(size_t *ret_n);
/* Returns the position at which the layout stores row n. n counts rows as in layout `row`. */
size_t mf_layout_stored_row(const struct mf_layout *l, size_t N, size_t n);
/* Returns the index of element (n, k) within one expert. n counts rows as in layout `row`. */
size_t mf_layout_index(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n, size_t k);
bool mf_layout_legal(const struct mf_layout *l, int element_bits, size_t N, size_t K);
/* True if w1 can have this layout with the codec's scales. It does not check sizes: see mf_layout_legal(). */
bool mf_layout_supports_scales(const struct mf_layout *l, const struct mf_codec *c);
/* Returns the arrangement of gate and up rows of w1 in the layout. */
enum mf_gate_up mf_layout_gate_up(const struct mf_layout *l);
/* Converts one expert's elements between layouts. `elements` and `ret` must not overlap. */
void mf_layout_convert(const struct mf_layout *from, const struct mf_layout *to, int element_bits, size_t N,
                       size_t K, const void *elements, void *ret);
/* Copies row n of one expert to `ret` in layout `row`. */
void mf_layout_row(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n,
                   const void *elements, void *ret);
