/* Order of a stage's tiles for an L2 cache with one partition or two (kernels/core/l2_partitions.h). Expert
 * blocks are sorted by expert. The first blocks belong to the SMs of partition 0, the other blocks to
 * partition 1, so that only one partition reads an expert's weights and rows. There are two exceptions: the
 * expert at the split, and the tiles that one partition takes over from the other at the end. Within a
 * partition, `columns` tile columns are computed for every block before the next columns.
 *
 *   RUN      number of consecutive blocks that are processed with the same columns
 *   COLS     columns of a tile
 *   TILES_N  tiles per row of blocks
 *   MF_CEIL, mf_product_high (upper 32 bits of a 32 x 32 bit product) */
struct order {
    i32 n_blocks;
    i32 columns; /* number of tile columns that are computed for every expert block before the next columns */
    u32 near;    /* partition 0's fraction of the SMs, times 2^32; 0: one partition only */
};

/* Returns the number of runs of expert blocks that belong to partition 0. */
MF_DEVICE i32 first_runs(struct order o)
{
    const i32 runs = MF_CEIL(o.n_blocks, RUN);
    return o.near == 0 ? runs : (i32)mf_product_high((u32)runs, o.near);
}
/* Returns the index of the run that has number `count` in partition `half` (0 or 1), or -1 if the partition
 * has fewer runs. */
MF_DEVICE i32 nth_run(struct order o, i32 half, i32 count)
{
    const i32 all = MF_CEIL(o.n_blocks, RUN) * TILES_N, split = first_runs(o) * TILES_N;
    if (half)
        return count < all - split ? split + count : -1;
    return count < split ? count : -1;
}

/* Finds tile i in the order of the runs. Returns false if there are fewer tiles. The last run may be
 * incomplete. */
MF_DEVICE bool find_tile(struct order o, i32 i, i32 *ret_block, i32 *ret_col)
{
    const i32 all = MF_CEIL(o.n_blocks, RUN), split = first_runs(o), second = i / RUN >= split * TILES_N;
    if (i / RUN >= all * TILES_N)
        return false;
    const i32 runs = second ? all - split : split, run = i / RUN - second * split * TILES_N;
    const i32 chunk = run / (runs * o.columns), first = chunk * o.columns, within = run - runs * first;
    const i32 width = TILES_N - first < o.columns ? TILES_N - first : o.columns;
    *ret_block = (second * split + within / width) * RUN + i % RUN;
    *ret_col = (first + within % width) * COLS;
    return true;
}
