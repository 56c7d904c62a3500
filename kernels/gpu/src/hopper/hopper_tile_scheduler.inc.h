/* Dynamic tile scheduler for GPUs whose L2 cache may have two partitions (hopper_tile_order.inc.h), and
 * prefetch of the likely first tile. Include after hopper_core.inc.h, in the same namespace. */

/* Claims runs of tiles: runs of this SM's L2 partition or, when this partition has none left, runs of the
 * other partition. The consumers count a tile only after the block has claimed its next tile. It is therefore
 * enough that the block's second claim waits until the tile counts are zeroed. */
struct tile_scheduler {
    struct order order;
    i32 half;
    u32 *claims; /* number of claims per L2 partition */
    u32 *zeroed; /* becomes 1 once the tile counts are zeroed; NULL: there are no tile counts */
    i32 n_claims;
    /* number of the claimed run; this result of an atomic is not needed before the end of the current tile */
    u32 count;
    __device__ __forceinline__ void request()
    {
        count = mf_fetch_increment(claims + half);
    }
    __device__ __forceinline__ i32 operator()()
    {
        if (zeroed && ++n_claims == 2)
            mf_wait_parts(zeroed, 1);
        i32 run = nth_run(order, half, (i32)count);
        if (run < 0)
            run = nth_run(order, !half, (i32)mf_fetch_increment(claims + !half));
        return run < 0 ? 0x7fffffff : run * RUN;
    }
};

MF_DEVICE i32 l2_half_of(const mf_hip_bulk_args &a, i32 sm)
{
    return (i32)(a.far[sm / 32] >> sm % 32 & 1);
}
/* Returns the first tile that this SM claims if all SMs of its partition claim tiles in the order of SM
 * numbers. */
MF_DEVICE tile_coord likely_tile(const mf_hip_bulk_args &a, i32 n_blocks)
{
    const i32 sm = mf_sm_id(), half = l2_half_of(a, sm);
    i32 before = 0;
    for (i32 word = 0; word <= sm / 32; word++) {
        const u32 same = half ? a.far[word] : ~a.far[word];
        before += mf_popcount(word < sm / 32 ? same : same & ((1u << sm % 32) - 1));
    }
    const i32 run = nth_run(order_of(a.tile, n_blocks), half, before);
    return run < 0 ? tile_coord{-1, 0} : tile_coord_of(a.tile, n_blocks, run * RUN);
}

/* Prefetches a tile's first n K tiles of weights into L2. Called by one thread. */
MF_DEVICE void prefetch_weights(const mf_hip_bulk_args &a, i32 col, i32 expert, i32 n)
{
    MF_UNROLL
    for (i32 k_tile = 0; k_tile < n; k_tile++)
        mf_tma_prefetch_5d(&a.w.map, mf_tma_coord_of(&a.w, k_tile, col, expert));
}

#if MF_STAGE == 1
/* number of K tiles of 32 KB. For 132 SMs they are 17 MB, about 6 us of HBM bandwidth on an H100 */
#    define LIKELY_K_TILES 4
/* Prefetches the first weights of this SM's likely first tile while the sort still runs and HBM is idle.
 * Estimates the tile's expert as if all experts had equally many rows. Another SM may get the tile instead.
 * Called by one thread. */
MF_DEVICE void prefetch_likely(const mf_hip_bulk_args &a)
{
    const tile_coord likely = a.likely_blocks > 0 ? likely_tile(a, a.likely_blocks) : tile_coord{-1, 0};
    if (likely.block < 0)
        return;
    const i32 expert = (i32)((i64)likely.block * a.n_experts / a.likely_blocks);
    prefetch_weights(a, likely.col, expert, MF_MIN(LIKELY_K_TILES, K_TILES));
}
#endif
