/* Tile selection and row stores shared by the Hopper mainloops (hopper_core.inc.h, mx_hopper.hip). */

/* Number of consecutive expert blocks that are processed with the same columns. */
#define RUN MF_MAX(MF_WEIGHT_REUSE, 1)

#include "hopper_tile_order.inc.h"

MF_DEVICE struct order order_of(const mf_hip_tile_args &a, i32 n_blocks)
{
    return order{n_blocks, a.columns, a.near};
}
/* Returns the coordinate of tile i. The block is -1 beyond the last tile. */
MF_DEVICE tile_coord tile_coord_of(const mf_hip_tile_args &a, i32 n_blocks, i32 i)
{
    tile_coord s = {-1, 0};
    (void)find_tile(order_of(a, n_blocks), i, &s.block, &s.col);
    return s;
}

/* A set of threads that store some of a tile's rows. `me` is the index of this thread in the set. */
struct writers {
    i32 me, threads;
    i32 first, rows;
};
/* Returns the number of rows per warp. A warp's lanes issue bulk copies one after the other, so rows are
 * distributed evenly over the warps. */
MF_DEVICE i32 rows_of_wave(const writers &w)
{
    return MF_CEIL(w.rows, w.threads / MF_WAVE);
}
/* Returns the warp's i-th row, which lane i % MF_WAVE stores, or -1 if the warp has fewer rows. */
MF_DEVICE i32 nth_row(const writers &w, i32 i)
{
    const i32 row = w.me / MF_WAVE * rows_of_wave(w) + i;
    return i < rows_of_wave(w) && row < w.rows ? w.first + row : -1;
}
MF_DEVICE i32 row_of_round(const writers &w, i32 round)
{
    return nth_row(w, round * MF_WAVE + w.me % MF_WAVE);
}
MF_DEVICE i32 rounds_of(const writers &w)
{
    return MF_CEIL(rows_of_wave(w), MF_WAVE);
}
/* Returns the sorted id of the row that this thread stores in round `round`, or a.token (no valid token) if
 * the thread stores no row in this round. */
MF_DEVICE i32 id_of_round(const mf_hip_tile_args &a, i32 block, const writers &w, i32 round)
{
    const i32 row = row_of_round(w, round);
    return row >= 0 ? a.sorted_ids[(i64)block * MF_BM + row] : a.token;
}
/* Returns the result of id_of_round() for round 0. Call this before the rows are ready, to hide the latency
 * of the load. */
MF_DEVICE i32 first_id(const mf_hip_tile_args &a, i32 block, const writers &w)
{
    return id_of_round(a, block, w, 0);
}

/* Calls store(row, at, id) for each of this thread's rows that is not padding. `at` is the row's index in
 * sorted order. `first` is the result of first_id(). */
template <class Store>
MF_DEVICE void store_each(const mf_hip_tile_args &a, i32 block, const writers &w, i32 first,
                          const Store &store)
{
    for (i32 round = 0; round < rounds_of(w); round++) {
        const i32 row = row_of_round(w, round), id = round == 0 ? first : id_of_round(a, block, w, round);
        if (mf_id_token(id) < a.token)
            store(row, (i64)block * MF_BM + row, id);
    }
    mf_bulk_commit();
}

#ifdef MF_QUANT
/* Stores rows of 8-bit codes, which occupy the memory of `out`. */
MF_DEVICE void store_codes(const mf_hip_tile_args &a, i32 block, i32 col, const u8 *codes, const writers &w,
                           i32 first)
{
    const i32 bytes = MF_MIN(COLS, MF_N - col);
    store_each(a, block, w, first, [&](i32 row, i64 at, i32) {
        mf_bulk_store((u8 *)a.out + at * MF_N + col, codes + row * CODES_STRIDE, bytes);
    });
}
#endif

#ifdef MF_ADD
#    define ROW_LANES MF_MIN(COLS / 8, MF_WAVE) /* number of lanes that add one row, 16 bytes each per step */
static_assert(MF_WAVE % ROW_LANES == 0, "a wave's lanes add whole rows");

/* Adds each row of `out` to its token's row of y. The lanes use vector reductions, because bulk reductions
 * would compete with the TMA loads. */
MF_DEVICE void store(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, const writers &w,
                     i32 first)
{
    const i32 lane = w.me % MF_WAVE, at = lane % ROW_LANES * 8;
    for (i32 round = 0; round < rounds_of(w); round++) {
        const i32 id = round == 0 ? first : id_of_round(a, block, w, round),
                  left = rows_of_wave(w) - round * MF_WAVE;
        for (i32 i = 0; i < MF_MIN(left, MF_WAVE); i += MF_WAVE / ROW_LANES) {
            const i32 n = i + lane / ROW_LANES, token = mf_id_token(mf_shuffle(id, n));
            const i32 row = nth_row(w, round * MF_WAVE + n);
            MF_UNROLL
            for (i32 c = at; c < at + COLS; c += ROW_LANES * 8) {
                if (token < a.token && col + c < MF_N)
                    mf_red_add_8((u16 *)a.out + (i64)token * MF_N + col + c,
                                 *(const mf_16b *)(out + row * OUT_STRIDE + c));
            }
        }
    }
}
#else
/* Stores the rows of `out`. */
MF_DEVICE void store(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, const writers &w,
                     i32 first)
{
    const i32 bytes = MF_MIN(COLS, MF_N - col) * 2;
    store_each(a, block, w, first, [&](i32 row, i64 at, i32 id) {
        const i64 to = MF_STAGE == 1 ? at : (i64)mf_id_token(id) * MF_K + mf_id_slot(id);
        mf_bulk_store((u16 *)a.out + to * MF_N + col, out + row * OUT_STRIDE, bytes);
    });
}
#endif
