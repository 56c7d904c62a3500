/* Moves many rows into expert order with Hopper bulk copies. Like mf_permute, it reads each row once and
 * writes it to all of its destinations. Here each piece of a row is read into shared memory and written from
 * there, while the next pieces are in flight. Each warp has a ring buffer of its own; lane j handles top-k
 * slot j.
 *
 *   shared memory: pieces[WAVES][DEPTH][PIECE] | full u64[WAVES][DEPTH] */
#include "dialect.h"
#include "args.h"
#include "dialect_hopper.h"
#include "permute.h"
#include "invert.h"

#define WAVES  (MF_THREADS / MF_WAVE)
#define DEPTH  4 /* number of pieces in flight per warp */
#define PIECES MF_CEIL(MF_ROW, 4096)
#define PIECE  (MF_CEIL(MF_ROW / 16, PIECES) * 16) /* bytes per piece; a row's last piece may be shorter */

MF_DEVICE i32 bytes_of(i32 piece)
{
    return MF_MIN(PIECE, MF_ROW - piece * PIECE);
}
MF_DEVICE i64 place_of(i64 row, i32 piece)
{
    return row * MF_ROW + piece * PIECE;
}
MF_DEVICE void load_piece(const mf_hip_permute_args &a, i64 piece_index, u8 *to, u64 *full)
{
    const i32 piece = (i32)(piece_index % PIECES);
    mf_mbarrier_arrive_expect_tx(full, bytes_of(piece));
    mf_bulk_load(to, (const u8 *)a.from + place_of(piece_index / PIECES, piece), bytes_of(piece), full);
}
MF_DEVICE i32 row_of(const mf_hip_permute_args &a, i64 token)
{
    const i32 slot = threadIdx.x % MF_WAVE;
    return slot < MF_K ? row_or_none(a, mf_load_shared_by_grid_4(a.row_of + token * MF_K + slot), token, slot)
                       : -1;
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_permute_bulk(const mf_hip_permute_args a)
{
    extern __shared__ __align__(128) u8 lds[];
    const i32 wave = threadIdx.x / MF_WAVE, lane = threadIdx.x % MF_WAVE;
    u8 *pieces = lds + wave * DEPTH * PIECE;
    u64 *full = (u64 *)(lds + WAVES * DEPTH * PIECE) + wave * DEPTH;
    const i64 n = (i64)a.token * PIECES, stride = (i64)gridDim.x * WAVES;
    i64 piece_index = (i64)wave * gridDim.x + blockIdx.x;
    if (lane < DEPTH)
        mf_mbarrier_init(full + lane, 1);
    mf_async_fence();
    mf_wave_sync();
    mf_begin();
    for (int s = 0; s < DEPTH && lane == 0; s++) {
        if (piece_index + s * stride < n)
            load_piece(a, piece_index + s * stride, pieces + s * PIECE, full + s);
    }
    invert(a);
    i32 row = piece_index < n ? row_of(a, piece_index / PIECES) : -1;
    for (u32 i = 0; piece_index < n; i++, piece_index += stride) {
        const u32 slot = i % DEPTH, before = (i - 1) % DEPTH;
        const i32 piece = (i32)(piece_index % PIECES);
        const i64 next = piece_index + stride, asked = piece_index + (DEPTH - 1) * stride;
        const i32 next_row = next < n ? row_of(a, next / PIECES) : -1;
        mf_mbarrier_wait(full + slot, i / DEPTH & 1);
        if (row >= 0)
            mf_bulk_store((u8 *)a.to + place_of(row, piece), pieces + slot * PIECE, bytes_of(piece));
        mf_bulk_commit();
        mf_bulk_wait_read<1>(); /* waits for all groups but the last, so the previous piece has been read */
        mf_wave_sync();
        if (i > 0 && lane == 0 && asked < n)
            load_piece(a, asked, pieces + before * PIECE, full + before);
        row = next_row;
    }
    mf_bulk_wait_read();
    gather_scales(a);
}
