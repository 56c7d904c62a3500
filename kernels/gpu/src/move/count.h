/* Ids counted by expert, the waves of a block each a run of them: what sorts and aligns begins so. MF_E experts, at most
 * MF_THREADS; what is no expert's here (share.h), and what lies beyond the end, is MF_E. */
#pragma once

#include "scan.h"
#include "share.h"

#define AT_ONCE 8 /* loads in flight of a thread */

/* Ids that a lane has at once: N of its wave's run, a wave's width apart. */
template <int N> struct turn {
    i32 first; /* the lane's own first */
    u32 expert[N];
    i32 rank[N]; /* among the expert's of what was counted */
};

/* Asks for the turn's ids. */
template <int N> MF_DEVICE void take_ids(const i32 *ids, i32 to, turn<N> &t)
{
    MF_UNROLL
    for (int c = 0; c < N; c++)
        t.expert[c] =
            t.first + c * MF_WAVE < to ? MF_MIN((u32)mf_local(ids[t.first + c * MF_WAVE]), (u32)MF_E) : MF_E;
}

/* Counts them on top of `count`, which holds the wave's experts. */
template <int N> MF_DEVICE void count_turn(i32 to, i32 *count, turn<N> &t)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int c = 0; c < N; c++) {
        const u32 e = t.expert[c];
        if (t.first - lane + c * MF_WAVE >= to)
            break;
        const u64 same = mf_match<MF_E + 1>(e), below = same & (((u64)1 << lane) - 1);
        if (e < MF_E)
            t.rank[c] = count[e] + mf_popcount(below);
        mf_wave_sync();
        if (e < MF_E && below == 0)
            count[e] += mf_popcount(same);
        mf_wave_sync();
    }
}

/* Thread e has expert e: where each wave's share of it begins within the block's, and how many the block has. */
MF_DEVICE i32 scan_waves(i32 *count)
{
    i32 c[WAVES], rows = 0;
    if (threadIdx.x < MF_E) {
        MF_UNROLL
        for (int w = 0; w < WAVES; w++)
            c[w] = count[w * MF_E + threadIdx.x];
        MF_UNROLL
        for (int w = 0; w < WAVES; w++) {
            count[w * MF_E + threadIdx.x] = rows;
            rows += c[w];
        }
    }
    return rows;
}

/* Which expert each block of rows has: a share of it. */
MF_DEVICE void place_experts(i32 *experts, const i32 *begin, const i32 *total, i32 share, i32 shares)
{
    for (i32 e = share * MF_THREADS + threadIdx.x; e < MF_E; e += shares * MF_THREADS) {
        for (i32 b = 0; b < MF_CEIL(total[e], MF_BLOCK_M); b++)
            experts[begin[e] / MF_BLOCK_M + b] = e;
    }
}
