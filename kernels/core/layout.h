/* Weight layouts. A layout is the order in which the N x K elements of one expert's weight are stored.
 *
 *   row        [N, K] as in most checkpoints; w1: all gate rows, then all up rows
 *   panel16    panels of 16 rows; a panel stores four bytes of K of its first row, then four of the next row,
 *              so that one 64-byte load feeds the dot products of 16 outputs. bf16 [N/16][K/2][16][2];
 *              fp8 and int8 [N/16][K/4][16][4]; four-bit [N/16][K/8][16][8]
 *   panel32    the same with panels of 32 rows
 *   panel128   [N/128][K·bytes/128][128][128 bytes]: panels of 128 rows; a panel stores 128 bytes of K of
 *              each row in turn, so that the operand of one K step of a tile is contiguous
 *   gu1        w1 only: [N, K] with gate and up rows alternating, as in checkpoints of openai/gpt-oss
 *   gu16       w1 only: [N, K] with groups of 16 gate rows and of 16 up rows alternating
 *   gu16_panel16, gu32_panel32
 *              w1 only: panels of gate rows and of up rows alternate, so that a tile with both is contiguous
 *
 * A layout is legal if N is a multiple of the rows per panel, and K is a multiple of the elements per group
 * (four bytes in panel16). In an alternating layout (gu…), I must also be a multiple of the number of
 * consecutive gate rows. In the other layouts of w1, all gate rows precede all up rows. I must then be a
 * multiple of the rows of a panel, so that no panel contains both gate and up rows.
 *
 * Scales are stored in the same order in every layout, except that in alternating layouts per-row scales move
 * with their rows. Formats in which several rows share a scale have no alternating layouts. The order of a
 * bias never changes. */
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
    /* gate rows that are followed by as many up rows, repeatedly; 0: all gate rows, then all up rows */
    int gate_rows;
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
/* True if w1 can have this layout with the codec's scales. Sizes are not checked here but in
 * mf_layout_legal(). */
bool mf_layout_supports_scales(const struct mf_layout *l, const struct mf_codec *c);
/* Returns how gate and up rows of w1 are arranged in the layout. */
enum mf_gate_up mf_layout_gate_up(const struct mf_layout *l);
/* Converts one expert's elements between layouts. `elements` and `ret` must not overlap. */
void mf_layout_convert(const struct mf_layout *from, const struct mf_layout *to, int element_bits, size_t N,
                       size_t K, const void *elements, void *ret);
/* Copies row n of one expert to `ret` in layout `row`. */
void mf_layout_row(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n,
                   const void *elements, void *ret);
