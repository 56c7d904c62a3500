/* What Hopper's cores (hopper_core.inc.h, mx_hopper.hip) share of a tile: which one it is, how its weights come, how its rows leave.
 *
 *   W_BOX  elements of the weights' tensor that a slice has of a row, as its map counts them */

/* Tile i of all: block and column. Some columns, all where out is in cache whole, are made of every block before the next. */
MF_DEVICE void find_tile(const mf_hip_tile_args &a, i32 i, i32 n_blocks, i32 &ret_block, i32 &ret_col)
{
    const i32 chunk = i / (n_blocks * a.columns), first = chunk * a.columns,
              width = MF_MIN(a.columns, TILES_N - first);
    const i32 within = i - n_blocks * first;
    ret_block = within / width;
    ret_col = (first + within % width) * COLS;
}

/* A slice of a tile's weights, in one box. Where rows lie by sixteens, eight columns are not always as far from the next
 * eight: the box then counts sixteens through all experts, and the eights in them. once: no other tile has these weights. */
MF_DEVICE void bring_weights(const mf_hip_map &map, u8 *to, u64 *full, i32 slice, i32 col, i32 expert,
                             bool once = false)
{
#if MF_STAGE == 1 && defined(MF_GATE_ROWS) && MF_GATE_ROWS == 16
    mf_bulk_load_5(to, &map, full, slice * W_BOX, 0, 0, 0, expert * (MF_N / 16) + col / 16, once);
#else
    mf_bulk_load_5(to, &map, full, slice * W_BOX, 0, 0, col / 8, expert, once);
#endif
}

/* Threads that store some of a tile's rows, as one of them sees it. */
struct writers {
    i32 me, threads;
    i32 first, rows;
};
/* The id of the first row that this thread stores, to be asked for before the rows are there; of no token where it has none. */
MF_DEVICE i32 first_id(const mf_hip_tile_args &a, i32 block, const writers &w)
{
    return w.me < w.rows ? a.sorted_ids[(i64)block * MF_BM + w.first + w.me] : a.token;
}

/* out's rows: in bulk, each by one thread, or quantised. first: first_id(), in stage 2. */
MF_DEVICE void store(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, const writers &w,
                     i32 first)
{
#ifdef MF_QUANT
    (void)first;
    store_quantised(a, block, col, out, w.me, w.threads);
#else
    const i32 bytes = MF_MIN(COLS, MF_N - col) * 2;
    for (i32 i = w.me; i < w.rows; i += w.threads) {
        const i32 row = w.first + i;
        const i64 at = (i64)block * MF_BM + row;
        const i32 id = MF_STAGE == 2 && i == w.me ? first : a.sorted_ids[at];
        if (mf_id_token(id) >= a.token)
            continue;
#    ifdef MF_ADD
        mf_bulk_add((u16 *)a.out + (i64)mf_id_token(id) * MF_N + col, out + row * OUT_STRIDE, bytes);
#    else
        const i64 to = MF_STAGE == 1 ? at : (i64)mf_id_token(id) * MF_K + mf_id_slot(id);
        mf_bulk_store((u16 *)a.out + to * MF_N + col, out + row * OUT_STRIDE, bytes);
#    endif
    }
    mf_bulk_commit();
#endif
}
