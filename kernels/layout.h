/* Weight layouts: how the N x K elements of one expert's weight are stored. Scales are never permuted.
 *
 *   row       [N, K] as the checkpoint has it
 *   panel16   bf16: [N/16][K/2][16][2]: sixteen rows side by side, two of K together, so that one 64-byte
 *             load feeds a bf16 dot product of sixteen outputs; fp8 and int8: [N/16][K/4][16][4]; four-bit: [N/16][K/8][16][8]
 *   panel32   the same with panels of 32 rows
 * A layout is legal when N is a multiple of its panel and K of its group. For w1, gate and up rows keep their
 * places: panels are cut over the 2I rows, and I must be a multiple of the panel, so no panel mixes the two. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/artifact.h"
#include "common/shape.h"

struct mf_layout {
    const char *name;
    int panel;       /* rows side by side; 1 for row */
    int group_bytes; /* bytes of K kept together within a row of a panel: 4 */
};

/* NULL: no such layout. */
const struct mf_layout *mf_layout_find(const char *name);
/* Index of element (n, k) within one expert. */
size_t mf_layout_index(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n, size_t k);
bool mf_layout_legal(const struct mf_layout *l, int element_bits, size_t N, size_t K);
/* One expert from row to the layout. to and from do not overlap. */
void mf_layout_pack(const struct mf_layout *l, int element_bits, size_t N, size_t K, const void *from,
                    void *to);
