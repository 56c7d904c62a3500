/* The waves of tile_hopper.hip that bring weights and tokens of as many bytes each: rows of 128 bytes as the matrix instructions
 * read them. */
#pragma once

/* Where the rows lie that a thread gathers, in 16 bytes from x; ~0: padding. */
struct rows {
    u32 at[PASSES];
};
MF_DEVICE void find_rows(const mf_hip_tile_args &a, i32 block, rows &ret)
{
    const i32 me = threadIdx.x % GROUP;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const i32 r = me / 8 + p * (GROUP / 8);
        const i32 token = r < MF_BM ? mf_id_token(a.sorted_ids[(i64)block * MF_BM + r]) : a.token;
        ret.at[p] = token < a.token ? (u32)token * (MF_D * BYTES / 16) + me % 8 : ~0u;
    }
}
MF_DEVICE void gather(const mf_hip_tile_args &a, const rows &from, i32 slice, u8 *tokens)
{
    const i32 me = threadIdx.x % GROUP, row = me / 8, chunk = me % 8;
    const bool within = slice * SLICE + chunk * 16 < MF_D * BYTES;
    u8 *to = tokens + row * SLICE + ((chunk ^ (row & 7)) << 4);
    const u8 *x = (const u8 *)a.x + slice * SLICE;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const bool there = within && from.at[p] != ~0u;
        if (MF_BM % (GROUP / 8) == 0 || row + p * (GROUP / 8) < MF_BM)
            mf_copy_async_16(to + p * (GROUP / 8) * SLICE, x + (there ? (u64)from.at[p] * 16 : 0), there);
    }
}
/* Each token's scale of a slice. */
MF_DEVICE void copy_scales(const mf_hip_tile_args &a, const i64 (&from)[2], i32 slice, u8 *scales)
{
    const i32 me = threadIdx.x % GROUP;
    MF_UNROLL
    for (int p = 0; p < MF_CEIL(MF_BM, GROUP); p++) {
        if (me + p * GROUP < MF_BM)
            mf_copy_async_4(scales + (me + p * GROUP) * 4, a.x_scale + (from[p] < 0 ? 0 : from[p] + slice),
                            from[p] >= 0);
    }
}
MF_DEVICE void find_scales(const mf_hip_tile_args &a, i32 block, i64 (&ret)[2])
{
    MF_UNROLL
    for (int p = 0; p < MF_CEIL(MF_BM, GROUP); p++) {
        const i32 r = threadIdx.x % GROUP + p * GROUP;
        const i64 at = (i64)block * MF_BM + r;
        const i32 token = r < MF_BM ? mf_id_token(a.sorted_ids[at]) : a.token;
        ret[p] = token < a.token ? (GATHERS ? (i64)token : at) * BLOCKS_D : -1;
    }
}

MF_DEVICE void bring(const mf_hip_bulk_args &a, ring r, i32 n_blocks)
{
    const i32 me = threadIdx.x % GROUP;
    const mf_hip_tile_args &t = a.tile;
    rows row;
    i64 scale[2] = {-1, -1};
    if (!COPIES && me > 0)
        return;
    for (i32 i = blockIdx.x; i < n_blocks * TILES_N; i += gridDim.x) {
        i32 block, col;
        find_tile(t, i, n_blocks, block, col);
        const i32 expert = t.experts[block];
        if (GATHERS)
            find_rows(t, block, row);
        if (BY_BLOCK)
            find_scales(t, block, scale);
        for (i32 slice = 0; slice < SLICES; slice++, r.at++) {
            u8 *to = slice_of(r), *tokens = to + MF_BN * SLICE;
            u64 *full = r.full + r.at % MF_STAGES;
            wait_empty(r);
            if (me == 0) {
                mf_barrier_expect(full, (MF_BN + (GATHERS ? 0 : MF_BM)) * SLICE);
                bring_weights(a, to, full, slice, col, expert);
                if (!GATHERS)
                    mf_bulk_load_2(tokens, &a.x_map, full, slice * SLICE_K, block * MF_BM);
            }
            if (GATHERS)
                gather(t, row, slice, tokens);
            if (BY_BLOCK)
                copy_scales(t, scale, slice, tokens + MF_BM * SLICE);
            if (COPIES)
                mf_barrier_arrive_copied(full);
        }
    }
    mf_copy_commit();
    mf_copy_wait<0>();
}
