/* TMA coordinates of a K tile of weights. The coordinates are computed from kernel arguments, so that one
 * compiled kernel serves every panel width. */
#pragma once

#include "args.h"

/* Coordinates of the first element of a box in a five-dimensional tensor map. */
struct mf_tma_coord {
    i32 c0, c1, c2, c3, c4;
};
MF_DEVICE struct mf_tma_coord mf_tma_coord_of(const struct mf_hip_weights *w, i32 k_tile, i32 col, i32 expert)
{
    const u32 within = (u32)col & ((1u << w->log_panel) - 1);
    const struct mf_tma_coord ret = {k_tile * w->slice_0, 0, 0, k_tile * w->slice_3 + (i32)(within / 8),
                                     expert * w->panels + (col >> w->log_panel)};
    return ret;
}
