/* In which order the tiles of a stage are made, where the last cache is two halves (kernels/core/l2_halves.h), or one. Blocks of rows lie by
 * expert; the first ones are of the first half's units, the others of the other's, so that an expert's weights and rows are read by one
 * half, but for that at the split, and for those with which one half helps the other at the end. Within a half some columns are made of every block before the next ones.
 *
 *   RUN      blocks that have the same columns, one after the other
 *   COLS     columns of a tile, TILES_N tiles of a row
 *   MF_CEIL, mf_product_high (of two u32 the upper half) */
struct order {
    i32 n_blocks;
    i32 columns; /* tiles of a row that are made of every block before the next */
    u32 near;    /* the first half's units, in parts of 2^32 of all; 0: there is but one half */
};

/* Runs of blocks that are of the first half's units. */
MF_DEVICE i32 first_runs(struct order o)
{
    const i32 runs = MF_CEIL(o.n_blocks, RUN);
    return o.near == 0 ? runs : (i32)mf_product_high((u32)runs, o.near);
}
/* Number of the count-th run of tiles of a half; -1: it has no more. */
MF_DEVICE i32 nth_run(struct order o, i32 half, i32 count)
{
    const i32 all = MF_CEIL(o.n_blocks, RUN) * TILES_N, split = first_runs(o) * TILES_N;
    if (half)
        return count < all - split ? split + count : -1;
    return count < split ? count : -1;
}

/* Tile i of all, counted by runs: false, there are fewer. Of the last run blocks may lack. */
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
