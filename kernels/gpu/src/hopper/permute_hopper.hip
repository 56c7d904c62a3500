/* Rows into expert order by Hopper's copies in bulk, where they are many: as mf_permute, but what moves is pieces of rows, each
 * read once into LDS and written from there to all of its places, while the next ones are on their way. A wave has a ring of
 * them for itself; lane j has slot j.
 *
 *   lds: pieces[WAVES][DEPTH][PIECE] | full u64[WAVES][DEPTH] */
#include "dialect.h"
#include "args.h"
#include "dialect_hopper.h"
#include "permute.h"
#include "invert.h"

#define WAVES  (MF_THREADS / MF_WAVE)
#define DEPTH  4 /* pieces of a wave */
#define PIECES MF_CEIL(MF_ROW, 4096)
#define PIECE  (MF_CEIL(MF_ROW / 16, PIECES) * 16) /* bytes; the last of a row may be short */

MF_DEVICE i32 bytes_of(i32 piece)
{
    return MF_MIN(PIECE, MF_ROW - piece * PIECE);
}
MF_DEVICE i64 place_of(i64 row, i32 piece)
{
    return row * MF_ROW + piece * PIECE;
}
MF_DEVICE void ask(const mf_hip_permute_args &a, i64 unit, u8 *to, u64 *full)
{
    const i32 piece = (i32)(unit % PIECES);
    mf_barrier_expect(full, bytes_of(piece));
    mf_bulk_load(to, (const u8 *)a.from + place_of(unit / PIECES, piece), bytes_of(piece), full);
}
MF_DEVICE i32 row_of(const mf_hip_permute_args &a, i64 token)
{
    const i32 slot = threadIdx.x % MF_WAVE;
    return slot < MF_K ? row_or_none(a, mf_load_shared_by_grid_4(a.row_of + token * MF_K + slot), token, slot) : -1;
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_permute_bulk(const mf_hip_permute_args a)
{
    extern __shared__ __align__(128) u8 lds[];
    const i32 wave = threadIdx.x / MF_WAVE, lane = threadIdx.x % MF_WAVE;
    u8 *pieces = lds + wave * DEPTH * PIECE;
    u64 *full = (u64 *)(lds + WAVES * DEPTH * PIECE) + wave * DEPTH;
    const i64 n = (i64)a.token * PIECES, stride = (i64)gridDim.x * WAVES;
    i64 unit = (i64)wave * gridDim.x + blockIdx.x;
    if (lane < DEPTH)
        mf_barrier_init(full + lane, 1);
    mf_async_fence();
    mf_wave_sync();
    mf_begin();
    for (int s = 0; s < DEPTH && lane == 0; s++) {
        if (unit + s * stride < n)
            ask(a, unit + s * stride, pieces + s * PIECE, full + s);
    }
    invert(a);
    i32 row = unit < n ? row_of(a, unit / PIECES) : -1;
    for (u32 i = 0; unit < n; i++, unit += stride) {
        const u32 slot = i % DEPTH, before = (i - 1) % DEPTH;
        const i32 piece = (i32)(unit % PIECES);
        const i64 next = unit + stride, asked = unit + (DEPTH - 1) * stride;
        const i32 next_row = next < n ? row_of(a, next / PIECES) : -1;
        mf_barrier_wait(full + slot, i / DEPTH & 1);
        if (row >= 0)
            mf_bulk_store((u8 *)a.to + place_of(row, piece), pieces + slot * PIECE, bytes_of(piece));
        mf_bulk_commit();
        mf_bulk_wait_read<1>(); /* all but what was asked for just now: the piece before has been read */
        mf_wave_sync();
        if (i > 0 && lane == 0 && asked < n)
            ask(a, asked, pieces + before * PIECE, full + before);
        row = next_row;
    }
    mf_bulk_wait_read();
    gather_scales(a);
}
