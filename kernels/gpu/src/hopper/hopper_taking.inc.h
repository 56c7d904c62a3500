/* Which tiles of a stage a unit takes, where the last cache may be two halves (hopper_order.inc.h), and what it asks the last cache for
 * before it knows. Behind hopper_core.inc.h, in its namespace. */

/* The first tile of a run that nobody has: of this unit's half, and of the other one when that has no more. A tile is counted after the
 * next one was taken, and by then counts are zeroed. */
struct taking {
    struct order order;
    i32 half;
    u32 *taken;  /* of each half, how often a run of its was asked for */
    u32 *zeroed; /* 1 once what is counted of tiles is zeroed; NULL: nothing is */
    i32 turn;
    u32 count; /* of the half's runs, asked for: memory has until the end of a tile to say it */
    __device__ __forceinline__ void ask()
    {
        count = mf_take_one(taken + half);
    }
    __device__ __forceinline__ i32 operator()()
    {
        if (zeroed && ++turn == 2)
            mf_parts_wait(zeroed, 1);
        i32 run = nth_run(order, half, (i32)count);
        if (run < 0)
            run = nth_run(order, !half, (i32)mf_take_one(taken + !half));
        return run < 0 ? 0x7fffffff : run * RUN;
    }
};

MF_DEVICE i32 half_of(const mf_hip_bulk_args &a, i32 unit)
{
    return (i32)(a.far[unit / 32] >> unit % 32 & 1);
}
/* What a unit takes first if all of its half do so in their order. */
MF_DEVICE spot likely_first(const mf_hip_bulk_args &a, i32 n_blocks)
{
    const i32 unit = mf_unit(), half = half_of(a, unit);
    i32 before = 0;
    for (i32 word = 0; word <= unit / 32; word++) {
        const u32 same = half ? a.far[word] : ~a.far[word];
        before += mf_popcount(word < unit / 32 ? same : same & ((1u << unit % 32) - 1));
    }
    const i32 run = nth_run(order_of(a.tile, n_blocks), half, before);
    return run < 0 ? spot{-1, 0} : spot_of(a.tile, n_blocks, run * RUN);
}

/* Asks the last cache for a tile's first weights; by one thread. */
MF_DEVICE void ask_slices(const mf_hip_bulk_args &a, i32 col, i32 expert, i32 n)
{
    MF_UNROLL
    for (i32 slice = 0; slice < n; slice++)
        mf_ask_cache_5(&a.w.map, mf_corner_of(&a.w, slice, col, expert));
}

#if MF_STAGE == 1
#    define LIKELY_SLICES 4 /* of 32 KB: 17 MB of 132 units, what an H100's memory reads in 6 µs */
/* Where tiles begin is known when the sort has ended, for whose last part memory has nothing to do. Meanwhile a unit asks the last
 * cache for the first weights of what is likely to be its first tile, or a neighbour's: of the block of rows that it were if all
 * experts had as many. By one thread. */
MF_DEVICE void ask_for_likely(const mf_hip_bulk_args &a)
{
    const spot likely = a.likely_blocks > 0 ? likely_first(a, a.likely_blocks) : spot{-1, 0};
    if (likely.block < 0)
        return;
    const i32 expert = (i32)((i64)likely.block * a.n_experts / a.likely_blocks);
    ask_slices(a, likely.col, expert, MF_MIN(LIKELY_SLICES, SLICES));
}
#endif
