/* Quantises rows of bf16 while moving them into expert order: each token's row is read and encoded once, and
 * its codes and scales are written to all of its destinations (permute.h, invert.h, encode.h). A row is
 * MF_ROW bytes of bf16.
 *
 * As in quant.hip, a few lanes share a group; with one scale per row, the group is the row and a warp shares
 * it. A lane with few chunks of a group keeps them in registers; a lane with more chunks loads them again for
 * encoding. With one scale for all rows, each block writes the amax of its rows before the grid barrier of
 * the inversion. */
#include "dialect.h"
#include "args.h"
#include "permute.h"
#include "invert.h"
#include "encode.h"

#define WAVES (MF_THREADS / MF_WAVE)
#if MF_GROUP > 0
#    define GROUP_CHUNKS (MF_GROUP / 8)
#    define LANES        (GROUP_CHUNKS / (MF_GROUP >= 32 ? 2 : 1))
#else
#    define GROUP_CHUNKS CHUNKS
#    define LANES        MF_WAVE
#endif
#define GROUPS      MF_CEIL(CHUNKS, GROUP_CHUNKS) /* groups per row */
#define OF_LANE     MF_CEIL(GROUP_CHUNKS, LANES)
#define HOLDS       (OF_LANE <= 4)
#define ALL_OF_LANE _Pragma("unroll 4") /* unrolls the loop completely if the chunks stay in registers */

#if MF_GROUP < 0
/* Writes the amax of this block's rows to memory, where all blocks read it. */
MF_DEVICE void write_block_amax(const mf_hip_permute_args &a)
{
    __shared__ u32 room[WAVES];
    const i64 n = (i64)a.token * CHUNKS;
    u32 top = 0;
    for (i64 at = global_thread(); at < n; at += global_threads())
        top = mf_larger_8(top, load((const u8 *)a.from + at * MF_CHUNK));
    top = mf_larger_of_block<WAVES>(top, room);
    if (threadIdx.x == 0)
        a.largest[blockIdx.x] = (i32)top;
}
/* Returns the maximum of the amax values of all blocks. Every warp reads all of these values. */
MF_DEVICE u32 amax_of_grid(const mf_hip_permute_args &a)
{
    u32 top = 0;
    for (i32 b = threadIdx.x % MF_WAVE; b < (i32)gridDim.x; b += MF_WAVE)
        top = mf_larger_2(top, (u32)mf_load_shared_by_grid_4(a.largest + b));
    return mf_larger_of_lanes<MF_WAVE>(top);
}
#endif

/* A group of a token's row. It consists of chunks `first` to `first + n - 1`. */
struct group {
    i64 token;
    i32 index, first, n;
};
MF_DEVICE group group_of(i64 at)
{
    group g;
    g.token = at / GROUPS;
    g.index = (i32)(at - g.token * GROUPS);
    g.first = g.index * GROUP_CHUNKS;
    g.n = MF_MIN(GROUP_CHUNKS, CHUNKS - g.first);
    return g;
}
MF_DEVICE chunk fetch(const mf_hip_permute_args &a, const group &g, i32 i)
{
    return load((const u8 *)a.from + (g.token * CHUNKS + g.first + i) * MF_CHUNK);
}
/* Writes the codes of a chunk to all destinations of the row. */
MF_DEVICE void spread(const mf_hip_permute_args &a, const group &g, const i32 (&rows)[MF_K], i32 i,
                      const codes_of_8 &codes)
{
    MF_UNROLL
    for (int j = 0; j < MF_K; j++) {
        if (rows[j] >= 0)
            ((codes_of_8 *)a.to)[(i64)rows[j] * CHUNKS + g.first + i] = codes;
    }
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_quant_gather(const mf_hip_permute_args a)
{
    const i32 lane = threadIdx.x % LANES;
    const i64 n = a.token * (i64)GROUPS, stride = global_threads() / LANES;
    mf_begin();
    const float factor = MF_GROUP == 16 ? *a.from_factor : 1.0f;
#if MF_GROUP < 0
    write_block_amax(a);
#endif
    invert(a);
#if MF_GROUP < 0
    const scaling shared = scaling_of(amax_of_grid(a), factor);
    if (global_thread() == 0)
        store_scale(shared, a.to_scale, 0);
#endif
    /* all lanes of a warp take part in each iteration */
    for (i64 at = global_thread() / LANES; at - threadIdx.x % MF_WAVE / LANES < n; at += stride) {
        const bool there = at < n;
        const group g = group_of(there ? at : 0);
        chunk held[OF_LANE];
        i32 rows[MF_K];
        u32 top = 0;
        rows_of(a, g.token, rows);
#if MF_GROUP >= 0
        ALL_OF_LANE
        for (int c = 0; c < OF_LANE; c++) {
            const i32 i = lane + c * LANES;
            const chunk v = there && i < g.n ? fetch(a, g, i) : chunk{0, 0, 0, 0};
            top = mf_larger_8(top, v);
            if (HOLDS)
                held[c] = v;
        }
        const scaling s = scaling_of(mf_larger_of_lanes<LANES>(top), factor);
#else
        const scaling s = shared;
        (void)top;
#endif
        ALL_OF_LANE
        for (int c = 0; c < OF_LANE; c++) {
            const i32 i = lane + c * LANES;
            if (there && i < g.n)
                spread(a, g, rows, i, encode_8(HOLDS && MF_GROUP >= 0 ? held[c] : fetch(a, g, i), s));
        }
#if MF_GROUP >= 0
        MF_UNROLL
        for (int j = 0; j < MF_K; j++) {
            if (there && lane == 0 && rows[j] >= 0)
                store_scale(s, a.to_scale, (i64)rows[j] * GROUPS + g.index);
        }
#endif
    }
    if (MF_GROUP == 16 && global_thread() == 0)
        *a.to_factor = factor;
}
