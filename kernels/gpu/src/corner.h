/* Where bulk copies find a slice of a tile's weights. Whether these lie in slices is not part of the code, so a tile compiles once. */
#pragma once

#include "args.h"

/* Where a box of a tensor of five dimensions begins. */
struct mf_corner {
    i32 c0, c1, c2, c3, c4;
};
MF_DEVICE struct mf_corner mf_corner_of(const struct mf_hip_weights *w, i32 slice, i32 col, i32 expert)
{
    const u32 within = (u32)col & ((1u << w->log_panel) - 1);
    const struct mf_corner ret = {slice * w->slice_0, 0, 0, slice * w->slice_3 + (i32)(within / 8),
                                  expert * w->panels + (col >> w->log_panel)};
    return ret;
}
