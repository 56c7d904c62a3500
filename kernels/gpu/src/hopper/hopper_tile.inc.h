/* What Hopper's cores (hopper_core.inc.h, mx_hopper.hip) share of a tile: which one it is, how its rows leave. */

/* Blocks that have the same columns, one after the other. */
#define RUN MF_MAX(MF_KEPT, 1)

#include "hopper_order.inc.h"

MF_DEVICE struct order order_of(const mf_hip_tile_args &a, i32 n_blocks)
{
    return order{n_blocks, a.columns, a.near};
}
/* Tile i, or the end. */
MF_DEVICE spot spot_of(const mf_hip_tile_args &a, i32 n_blocks, i32 i)
{
    spot s = {-1, 0};
    (void)find_tile(order_of(a, n_blocks), i, &s.block, &s.col);
    return s;
}

/* Threads that store some of a tile's rows, as one of them sees it. */
struct writers {
    i32 me, threads;
    i32 first, rows;
};
/* Rows of a wave. Copies in bulk of its lanes are begun one after the other, so all waves have as many. */
MF_DEVICE i32 rows_of_wave(const writers &w)
{
    return MF_CEIL(w.rows, w.threads / MF_WAVE);
}
/* The wave's i-th row, which its lane i % MF_WAVE stores in its turn; -1: none. */
MF_DEVICE i32 nth_row(const writers &w, i32 i)
{
    const i32 row = w.me / MF_WAVE * rows_of_wave(w) + i;
    return i < rows_of_wave(w) && row < w.rows ? w.first + row : -1;
}
MF_DEVICE i32 row_in_turn(const writers &w, i32 turn)
{
    return nth_row(w, turn * MF_WAVE + w.me % MF_WAVE);
}
MF_DEVICE i32 turns_of(const writers &w)
{
    return MF_CEIL(rows_of_wave(w), MF_WAVE);
}
/* The id of that row; of no token where there is none. */
MF_DEVICE i32 id_in_turn(const mf_hip_tile_args &a, i32 block, const writers &w, i32 turn)
{
    const i32 row = row_in_turn(w, turn);
    return row >= 0 ? a.sorted_ids[(i64)block * MF_BM + row] : a.token;
}
/* To be asked for before the rows are there. */
MF_DEVICE i32 first_id(const mf_hip_tile_args &a, i32 block, const writers &w)
{
    return id_in_turn(a, block, w, 0);
}

/* store(row, at, id) for each of this thread's rows that is no padding; at: where it is in sorted order. first: first_id(). */
template <class Store>
MF_DEVICE void store_each(const mf_hip_tile_args &a, i32 block, const writers &w, i32 first,
                          const Store &store)
{
    for (i32 turn = 0; turn < turns_of(w); turn++) {
        const i32 row = row_in_turn(w, turn), id = turn == 0 ? first : id_in_turn(a, block, w, turn);
        if (mf_id_token(id) < a.token)
            store(row, (i64)block * MF_BM + row, id);
    }
    mf_bulk_commit();
}

#ifdef MF_QUANT
/* Rows of codes, which lie where out does. */
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
#    define ROW_LANES MF_MIN(COLS / 8, MF_WAVE) /* lanes that add a row, 16 bytes each at a time */
static_assert(MF_WAVE % ROW_LANES == 0, "a wave's lanes add whole rows");

/* out's rows, each to its token's of y: by a wave's lanes, since copies in bulk that add take longer beside those that bring slices
 * (docs/findings.md). */
MF_DEVICE void store(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, const writers &w,
                     i32 first)
{
    const i32 lane = w.me % MF_WAVE, at = lane % ROW_LANES * 8;
    for (i32 turn = 0; turn < turns_of(w); turn++) {
        const i32 id = turn == 0 ? first : id_in_turn(a, block, w, turn),
                  left = rows_of_wave(w) - turn * MF_WAVE;
        for (i32 i = 0; i < MF_MIN(left, MF_WAVE); i += MF_WAVE / ROW_LANES) {
            const i32 n = i + lane / ROW_LANES, token = mf_id_token(mf_of_lane(id, n));
            const i32 row = nth_row(w, turn * MF_WAVE + n);
            MF_UNROLL
            for (i32 c = at; c < at + COLS; c += ROW_LANES * 8) {
                if (token < a.token && col + c < MF_N)
                    mf_add_8((u16 *)a.out + (i64)token * MF_N + col + c,
                             *(const mf_16b *)(out + row * OUT_STRIDE + c));
            }
        }
    }
}
#else
/* out's rows. */
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
