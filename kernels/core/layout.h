/* Weight layouts: how the N x K elements of one expert's weight are stored.
 *
 *   row       [N, K] as most checkpoints have it; of w1 all gate rows, then all up rows
 *   panel16   bf16: [N/16][K/2][16][2]: sixteen rows side by side, two of K together, so that one 64-byte
 *             load feeds a bf16 dot product of sixteen outputs; fp8 and int8: [N/16][K/4][16][4]; four-bit: [N/16][K/8][16][8]
 *   panel32   the same with panels of 32 rows
 *   panel128  [N/128][K·bytes/128][128][128 bytes]: panels of 128 rows, of which 128 bytes of K of each row lie together, so that what a
 *             tile's product takes of them at a time is one run of memory
 *   gu1       of w1 only: [N, K] with gate and up rows alternating, as openai/gpt-oss's checkpoints have them
 *   gu16_panel16, gu32_panel32   of w1 only: panels of gate rows and panels of up rows alternating, so that a tile of both
 *             is one run of memory
 *   gu16      of w1 only: [N, K] with sixteen gate rows and sixteen up rows in turn
 * A layout is legal when N is a multiple of its panel and K of its group, and where gate and up alternate, each of the two
 * of the rows that alternate. For w1 in the others, gate and up rows keep their places: panels are cut over the 2I rows, and
 * I must be a multiple of the panel, so no panel mixes the two.
 *
 * Scales stay where they are, with one exception: where gate and up alternate, scales of single rows follow their rows, and
 * formats whose scales are of several rows have no such layout. Biases never move. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/codec.h"
#include "kernels/core/tensors.h"

struct mf_layout {
    const char *name;
    const char *word; /* of it in names of steps */
    int panel;        /* rows side by side; 1 for row */
    int group_bytes;  /* of K that lie together within a row of a panel */
    int gate_rows;    /* so many of gate, so many of up, in turn; 0: all of gate first */
};

#define MF_LAYOUTS_MAX 8

/* NULL: no such layout. */
const struct mf_layout *mf_layout_find(const char *name);
/* All of them, `row` first; *ret_n of them. */
const struct mf_layout *mf_layouts(size_t *ret_n);
/* Index of element (n, k) within one expert; row n as `row` counts it. */
size_t mf_layout_index(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n, size_t k);
bool mf_layout_legal(const struct mf_layout *l, int element_bits, size_t N, size_t K);
/* Is there such a layout of w1 for the format, its scales considered? The sizes are mf_layout_legal()'s business. */
bool mf_layout_takes_scales(const struct mf_layout *l, const struct mf_codec *c);
/* How gate and up of a w1 in that layout lie. */
enum mf_gate_up mf_layout_gate_up(const struct mf_layout *l);
/* The elements of one expert from one layout to another. to and from do not overlap. */
void mf_layout_convert(const struct mf_layout *from, const struct mf_layout *to, int element_bits, size_t N,
                       size_t K, const void *elements, void *ret);
/* One row of one expert, in `row` layout. */
void mf_layout_row(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n,
                   const void *elements, void *ret);
/* Every part of one expert of the weight `from` as the tensor spec `to` has it: the same but for the layout. -EINVAL: it is
 * not the same weight, or the shape has no such. */
int mf_layout_convert_weight(const struct mf_shape *shape, const struct mf_tensor_spec *from,
                             const struct mf_tensor_spec *to, const struct mf_tensor_ref *expert,
                             const struct mf_tensor_ref *ret);
