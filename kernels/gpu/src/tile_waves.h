/* Warp tiling and epilogue of the mainloops in which warps multiply with mf_mma_* (tile.hip, mx.hip). This
 * file extends tile_parts.inc.h.
 *
 *   MF_WARPS_N x MF_WARPS_M  warps over weight rows and tokens
 *
 * With gate and up, MF_MMA_APART gate rows alternate with the matching up rows, so that both values of a
 * column are in one lane's accumulators. If copies are staged in registers (MF_COPY_HELD), `out` overlays the
 * ring buffer, which is empty between tiles. */
#pragma once

#include "tile_parts.inc.h"

#define WAVES   (MF_WARPS_N * MF_WARPS_M)
#define THREADS (WAVES * MF_WAVE)
#define WN      (MF_BN / MF_WARPS_N) /* weight rows of a warp */
#define WM      (MF_BM / MF_WARPS_M) /* tokens of a warp */
#define QN      (WN / 16)
#define QM      (WM / MF_MMA_COLS)
#define APART   MF_MMA_APART
#ifdef MF_COPY_HELD
#    define OUT_IN_RING 1
#else
#    define OUT_IN_RING 0
#endif

/* column_of() returns the output column of weight row r of a tile that starts at `col`. weight_row() returns
 * the index of the same weight row among the rows of the expert. */
MF_DEVICE i32 column_of(i32 col, i32 r)
{
#if MF_HALVES == 2
    return col + (r >> (APART == 8 ? 4 : 2)) * APART + (r & (APART - 1));
#else
    return col + r;
#endif
}
MF_DEVICE i32 weight_row(i32 col, i32 r)
{
    return row_of(column_of(col, r), r & APART);
}
MF_DEVICE bool is_column(i32 col, i32 r)
{
    return column_of(col, r) < MF_N;
}

typedef float sums[QN][QM][4];

template <class T> MF_DEVICE void clear(T (&d)[QN][QM][4])
{
    MF_UNROLL
    for (int q = 0; q < QN * QM * 4; q++)
        d[q / 4 / QM][q / 4 % QM][q % 4] = 0;
}

/* Stores the lane's sums as bf16 into out[token][column]. */
MF_DEVICE void store_sums(const struct mf_hip_tile_args &a, const struct tile &t, i32 first_row,
                          i32 first_token, const sums &d, u16 *out)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int j = 0; j < QM; j++) {
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const i32 token = first_token + j * MF_MMA_COLS + mf_mma_col(lane) + c * MF_MMA_COL_STEP;
            const float weight = MF_WEIGHT ? a.sorted_weights[(i64)t.block * MF_BM + token] : 1.0f;
            MF_UNROLL
            for (int i = 0; i < QN; i++) {
                const i32 r = first_row + i * 16 + mf_mma_row(lane) + c * MF_MMA_ROW_STEP;
                const i32 column = column_of(t.col, r);
#if MF_HALVES == 2
                const float h =
                    mf_activate(finished(d[i][j][c], weight, bias_of(a, t.expert, column, false)),
                                finished(d[i][j][c + 2], weight, bias_of(a, t.expert, column, true)));
                out[column_of(token * OUT_STRIDE, r)] = (u16)mf_bf16_pair(h, 0.0f);
#else
                const float low = finished(d[i][j][c], weight, bias_of(a, t.expert, column, false));
                const float high =
                    finished(d[i][j][c + 2], weight, bias_of(a, t.expert, column + APART, false));
                const u32 two = mf_bf16_pair(activated(low), activated(high));
                out[token * OUT_STRIDE + r] = (u16)two;
                out[token * OUT_STRIDE + r + APART] = (u16)(two >> 16);
#endif
            }
        }
    }
}

/* Stores `out` from shared memory to its rows, 16 bytes at a time. */
MF_DEVICE void store(const struct mf_hip_tile_args &a, const struct tile &t, const u16 *out)
{
#ifdef MF_QUANT
    store_quantised<MF_BM, THREADS>(a, t.block, t.col, out, threadIdx.x);
#else
    for (i32 i = threadIdx.x; i < MF_BM * (COLS / 8); i += THREADS) {
        const i32 row = i / (COLS / 8), col = i % (COLS / 8) * 8;
        const i64 at = (i64)t.block * MF_BM + row;
        const i32 id = a.sorted_ids[at];
        if (mf_id_token(id) >= a.token || t.col + col >= MF_N)
            continue;
        const i64 to = MF_STAGE == 1 ? at : (i64)mf_id_token(id) * MF_K + mf_id_slot(id);
        *(mf_16b *)((u16 *)a.out + to * MF_N + t.col + col) = *(const mf_16b *)(out + row * OUT_STRIDE + col);
    }
#endif
}
