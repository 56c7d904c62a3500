/* What all cores of the two-stage grouped GEMM share: how the work is cut into tiles, and the end of a tile. A core is a file
 * of its own (tile.hip, hopper_core.inc.h, mx.hip, mx_hopper.hip); these are its words whatever its weights are.
 *
 *   MF_STAGE    1: gather, gemm1, act -> h [P,I]     2: gemm2, row by row into z [T·k,H]
 *   MF_N, MF_D  columns of the output; length of the product (stage 1: I, H; stage 2: H, I)
 *   MF_K        topk        MF_WEIGHT  the routing weight multiplies the product
 *   MF_HALVES   weight rows of a column: those of gate and of up in stage 1; 1 in stage 2, and where there is no up
 *   MF_BM, MF_BN  tokens of a tile, which are one expert block; its weight rows
 *   MF_BIAS     b1 is added before the activation, behind a routing weight; b2 before one
 *   MF_QUANT    stage 1 leaves h as e4m3 with scales of 1x128: a tile has whole groups
 *
 * A tile ends as bf16, or as codes, in LDS, out[token][column], from where its rows are stored. */
#include "args.h"
#include "gate_up.h"
#include "quantise.h"
#if MF_STAGE == 1
#    include "activation.h"
#endif

#define COLS      (MF_BN / MF_HALVES) /* of the output, of one tile */
#define ROWS_OF_W (MF_HALVES * MF_N)  /* of one expert */
#define TILES_N   MF_CEIL(MF_N, COLS)
/* Of rows of out: they start in different banks. */
#define OUT_STRIDE   (COLS + 8)  /* elements of bf16 */
#define CODES_STRIDE (COLS + 16) /* bytes of codes */

/* Tile i: its expert block and its first column. */
struct tile {
    i32 block, col, expert;
};

MF_DEVICE struct tile tile_at(i32 i, const i32 *experts)
{
    struct tile t;
    t.block = i / TILES_N;
    t.col = i % TILES_N * COLS;
    t.expert = experts[t.block];
    return t;
}

/* The weight row of gate, or of up, of a column. */
MF_DEVICE i32 row_of(i32 column, bool up)
{
    return MF_HALVES == 2 ? mf_gate_row(column) + (up ? MF_UP_AT(MF_N) : 0) : column;
}

/* What is added to a column's sums of gate, or of up; nothing beyond the last column. */
MF_DEVICE float bias_of(const mf_hip_tile_args &a, i32 expert, i32 column, bool up)
{
#ifdef MF_BIAS
    return column < MF_N ? a.bias[(i64)expert * ROWS_OF_W + column + (up ? MF_N : 0)] : 0.0f;
#else
    (void)a, (void)expert, (void)column, (void)up;
    return 0.0f;
#endif
}
MF_DEVICE float finished(float sum, float weight, float bias)
{
#ifdef MF_BIAS
    return MF_STAGE == 1 ? weight * sum + bias : weight * (sum + bias);
#else
    (void)bias;
    return weight * sum;
#endif
}

/* A column of a tile that has but one half, as it leaves. */
MF_DEVICE float leaving(float v)
{
#if MF_STAGE == 1
    return mf_activate_gate(v);
#else
    return v;
#endif
}

/* Stage 2 begins; stage 1 had to before it read the order of experts. That order is older than the launch before stage 2, so
 * the weights of the first tile, as many bytes of a row, are asked for while that one ends. Thread r asks
 * for its row r. */
MF_DEVICE void begin_at(const mf_hip_tile_args &a, i32 block, i32 col, bool is_there, i32 row_bytes,
                        i32 ahead)
{
    if (MF_STAGE == 1)
        return;
    if (is_there && threadIdx.x < MF_BN && col + (i32)threadIdx.x < MF_N)
        mf_ask_cache((const u8 *)a.w + ((i64)a.experts[block] * MF_N + col + threadIdx.x) * row_bytes,
                     MF_MIN(ahead, row_bytes));
    mf_begin();
}

#ifdef MF_QUANT
/* out's first rows as e4m3 with a scale for 128: sixteen lanes have a group. The work of thread `me`. The turns are unrolled: behind a
 * loop whose end it does not know the compiler takes a wave's counters for numbers of each lane, and fetches them back before every
 * matrix instruction of the next tile (stage 1 of 128 rows by tokens: 1,850 cycles a slice for 1,710, on the H200). */
template <int Rows, int Threads>
MF_DEVICE void store_quantised(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, i32 me)
{
    const int pieces = Rows * (COLS / 8);
    MF_UNROLL
    for (int turn = 0; turn < MF_CEIL(pieces, Threads); turn++) {
        const i32 i = me + turn * Threads;
        if (pieces % Threads > 0 && i >= pieces)
            break;
        const i32 row = i / (COLS / 8), c = i % (COLS / 8) * 8;
        const i64 at = (i64)block * MF_BM + row;
        const mf_16b v = *(const mf_16b *)(out + row * OUT_STRIDE + c);
        const mf_divisor d = mf_divisor_of(mf_amax_of_16_lanes(mf_amax_8(v)));
        if (mf_id_token(a.sorted_ids[at]) >= a.token || col + c >= MF_N)
            continue;
        *(mf_8b *)((u8 *)a.out + at * MF_N + col + c) = mf_quantise_8(v, d);
        if (c % 128 == 0)
            a.out_scale[at * MF_CEIL(MF_N, 128) + (col + c) / 128] = d.by;
    }
}
#endif
