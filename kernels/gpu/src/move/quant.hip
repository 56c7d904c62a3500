/* Quantises rows of MF_COLS bf16 to 8 or 4 bits with scales (encode.h).
 *
 * For scales of groups see quant_groups.h. With one scale per row, a warp processes a row if the row fits in
 * the warp's registers; otherwise a block processes the row. With one scale for all rows, each block writes
 * the amax of its rows. After a grid barrier, each block reads the amax values of all blocks, so the grid
 * must be co-resident. */
#include "dialect.h"
#include "quant_groups.h"

#define WAVES (MF_THREADS / MF_WAVE)

#if MF_GROUP > 0
extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_quant(const mf_hip_quant_args a)
{
    mf_begin();
    quantise_groups(a, a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows, blockIdx.x, gridDim.x);
}
#elif MF_GROUP == 0
#    define LANES (ROW_CHUNKS <= 8 * MF_WAVE ? MF_WAVE : MF_THREADS) /* lanes per row */
/* number of chunks per lane that are kept in registers */
#    define HELD  MF_MIN(MF_CEIL(ROW_CHUNKS, LANES), 8)
#    define ROWS  (MF_THREADS / LANES) /* rows of a block per iteration */

/* Returns the maximum over all lanes of a row. `turn` alternates between two buffers, so that one barrier per
 * row suffices. */
MF_DEVICE u32 larger_of_row(u32 top, u32 (*room)[WAVES], int turn)
{
    top = mf_larger_of_lanes<MF_WAVE>(top);
    if (LANES == MF_WAVE)
        return top;
    if (threadIdx.x % MF_WAVE == 0)
        room[turn][threadIdx.x / MF_WAVE] = top;
    __syncthreads();
    MF_UNROLL
    for (int i = 0; i < WAVES; i++)
        top = mf_larger_2(top, room[turn][i]);
    return top;
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_quant(const mf_hip_quant_args a)
{
    __shared__ u32 room[2][WAVES];
    mf_begin();
    const i32 rows = a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows, lane = threadIdx.x % LANES;
    int turn = 0;
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / LANES; row < rows;
         row += (i64)gridDim.x * ROWS, turn = 1 - turn) {
        const i64 first = row * ROW_CHUNKS;
        mf_16b v[HELD];
        u32 top = 0;
        MF_UNROLL
        for (int i = 0; i < HELD; i++) {
            v[i] = mf_16b{0, 0, 0, 0};
            if (lane + i * LANES < ROW_CHUNKS)
                v[i] = mf_load_once(chunk_of(a, first + lane + i * LANES));
        }
        MF_UNROLL
        for (int i = 0; i < HELD; i++)
            top = mf_larger_8(top, v[i]);
        for (i32 c = lane + HELD * LANES; c < ROW_CHUNKS; c += LANES)
            top = mf_larger_8(top, mf_load_once(chunk_of(a, first + c)));
        const scaling s = scaling_of(larger_of_row(top, room, turn), 1.0f);
        MF_UNROLL
        for (int i = 0; i < HELD; i++) {
            if (lane + i * LANES < ROW_CHUNKS)
                store_codes(a, first + lane + i * LANES, encode_8(v[i], s));
        }
        for (i32 c = lane + HELD * LANES; c < ROW_CHUNKS; c += LANES)
            store_codes(a, first + c, encode_8(mf_load_once(chunk_of(a, first + c)), s));
        if (lane == 0)
            store_scale(s, a.scale, row);
    }
}
#else
#    define HELD 4 /* number of loads in flight per lane */

__device__ u32 mf_barrier[2];

/* Returns false for chunks of padding rows, which have arbitrary contents and must not affect the scale.
 * Padding rows are still encoded. */
MF_DEVICE bool counts(const mf_hip_quant_args &a, i64 chunk)
{
    return !a.sorted_ids || mf_id_token(a.sorted_ids[chunk / ROW_CHUNKS]) < a.token;
}
extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_quant(const mf_hip_quant_args a)
{
    __shared__ u32 room[2][WAVES];
    mf_begin();
    const i64 n = (i64)(a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows) * ROW_CHUNKS;
    const i64 stride = (i64)gridDim.x * MF_THREADS,
              global_thread = (i64)blockIdx.x * MF_THREADS + threadIdx.x;
    u32 top = 0, generation = 0;
    for (i64 first = global_thread; first < n; first += HELD * stride) {
        mf_16b v[HELD];
        MF_UNROLL
        for (int i = 0; i < HELD; i++) {
            const i64 chunk = first + i * stride;
            v[i] = mf_16b{0, 0, 0, 0};
            if (chunk < n && counts(a, chunk))
                v[i] = mf_load_once(chunk_of(a, chunk));
        }
        MF_UNROLL
        for (int i = 0; i < HELD; i++)
            top = mf_larger_8(top, v[i]);
    }
    top = mf_larger_of_block<WAVES>(top, room[0]);
    if (threadIdx.x == 0)
        a.largest[blockIdx.x] = (i32)top;
    mf_grid_arrive(mf_barrier, &generation);
    mf_grid_wait(mf_barrier, generation);
    for (i32 b = threadIdx.x; b < (i32)gridDim.x; b += MF_THREADS)
        top = mf_larger_2(top, (u32)mf_load_shared_by_grid_4(a.largest + b));
    const scaling s = scaling_of(mf_larger_of_block<WAVES>(top, room[1]), 1.0f);
    for (i64 first = global_thread; first < n; first += HELD * stride) {
        mf_16b v[HELD];
        MF_UNROLL
        for (int i = 0; i < HELD; i++) {
            if (first + i * stride < n)
                v[i] = mf_load_once(chunk_of(a, first + i * stride));
        }
        MF_UNROLL
        for (int i = 0; i < HELD; i++) {
            if (first + i * stride < n)
                store_codes(a, first + i * stride, encode_8(v[i], s));
        }
    }
    if (global_thread == 0)
        store_scale(s, a.scale, 0);
}
#endif
