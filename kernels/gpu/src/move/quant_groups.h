/* Quantises groups of 128, 32 or 16 elements along rows of MF_COLS bf16 to 8 or 4 bits with scales
 * (encode.h). A few lanes share a group; each lane has one or two chunks of eight elements. A row's last
 * group may be shorter, by a multiple of sixteen elements. */
#pragma once

#include "args.h"
#include "encode.h"

#define ROW_CHUNKS (MF_COLS / 8)

MF_DEVICE const u16 *chunk_of(const mf_hip_quant_args &a, i64 chunk)
{
    return (const u16 *)a.x + chunk * 8;
}
MF_DEVICE void store_codes(const mf_hip_quant_args &a, i64 chunk, const codes_of_8 &codes)
{
    *(codes_of_8 *)((u8 *)a.q + chunk * CODES) = codes;
}

#if MF_GROUP > 0
#    define CHUNKS (MF_GROUP >= 32 ? 2 : 1) /* chunks per lane */
#    define LANES  (MF_GROUP / 8 / CHUNKS)  /* lanes per group */
/* groups per lane and iteration, so that a lane has four loads in flight */
#    define GROUPS_IN_FLIGHT (4 / CHUNKS)
#    define GROUPS           MF_CEIL(MF_COLS, MF_GROUP) /* groups per row */
#    define HAS_SHORT_GROUP  (MF_COLS % MF_GROUP != 0)

/* Returns the index of a lane's chunk number `c`. Sets *ret_there to false if the chunk does not exist. */
MF_DEVICE i64 place_of(i64 group, int c, bool *ret_there)
{
    const i32 lane = threadIdx.x % LANES + c * LANES;
    if (!HAS_SHORT_GROUP)
        return group * (MF_GROUP / 8) + lane;
    const i64 row = group / GROUPS;
    const i32 chunk = (i32)(group - row * GROUPS) * (MF_GROUP / 8) + lane;
    *ret_there = *ret_there && chunk < ROW_CHUNKS;
    return row * ROW_CHUNKS + chunk;
}

/* Quantises the groups of `rows` rows. The work is split over `blocks` blocks, and this call does the part of
 * block `block`. */
MF_DEVICE void quantise_groups(const mf_hip_quant_args &a, i32 rows, i32 block, i32 blocks)
{
    const i64 n = (i64)rows * GROUPS, stride = (i64)blocks * (MF_THREADS / LANES);
    const float factor = MF_GROUP == 16 ? *a.factor : 1.0f;
    if (MF_GROUP == 16 && block == 0 && threadIdx.x == 0)
        *a.factor_kept = factor;
    /* all lanes of a warp take part in each iteration */
    for (i64 first = (i64)block * (MF_THREADS / LANES) + threadIdx.x / LANES;
         first - threadIdx.x % MF_WAVE / LANES < n; first += GROUPS_IN_FLIGHT * stride) {
        mf_16b v[GROUPS_IN_FLIGHT][CHUNKS];
        MF_UNROLL
        for (int i = 0; i < GROUPS_IN_FLIGHT * CHUNKS; i++) {
            const i64 group = first + i / CHUNKS * stride;
            bool there = group < n;
            const i64 chunk = place_of(group, i % CHUNKS, &there);
            v[i / CHUNKS][i % CHUNKS] = mf_16b{0, 0, 0, 0};
            if (there)
                v[i / CHUNKS][i % CHUNKS] = mf_load_once(chunk_of(a, chunk));
        }
        MF_UNROLL
        for (int t = 0; t < GROUPS_IN_FLIGHT; t++) {
            const i64 group = first + t * stride;
            u32 top = 0;
            MF_UNROLL
            for (int c = 0; c < CHUNKS; c++)
                top = mf_larger_8(top, v[t][c]);
            const scaling s = scaling_of(mf_larger_of_lanes<LANES>(top), factor);
            MF_UNROLL
            for (int c = 0; c < CHUNKS; c++) {
                bool there = group < n;
                const i64 chunk = place_of(group, c, &there);
                if (there)
                    store_codes(a, chunk, encode_8(v[t][c], s));
            }
            if (group < n && threadIdx.x % LANES == 0)
                store_scale(s, a.scale, group);
        }
    }
}
#endif
