/* Tile shape and epilogue helpers shared by all mainloops of the two-stage grouped GEMM (tile.hip,
 * hopper_core.inc.h, mx.hip, mx_hopper.hip), independent of the weight format.
 *
 *   MF_STAGE    1: gather, gemm1, act -> h [P,I]     2: gemm2, row by row into z [T·k,H]
 *   MF_N, MF_D  columns of the output; K of the product (stage 1: I, H; stage 2: H, I)
 *   MF_K        topk        MF_WEIGHT  multiply the product by the routing weight
 *   MF_HALVES   weight rows per column: 2 (gate and up) in stage 1; 1 in stage 2, and in stage 1 without up
 *   MF_BM, MF_BN  tokens of a tile, which are one expert block; weight rows of a tile
 *   MF_BIAS     stage 1 adds b1 after the multiplication by the routing weight, before the activation;
 *               stage 2 adds b2 before the multiplication by the routing weight
 *   MF_QUANT    stage 1 stores h as e4m3 with 1x128 block scales; a tile then consists of whole groups
 *
 * The epilogue first leaves a tile as bf16 or 8-bit codes in shared memory, out[token][column], and stores
 * the tile's rows from there. */
#include "args.h"
#include "gate_up.h"
#include "quantise.h"
#if MF_STAGE == 1
#    include "activation.h"
#endif

#define COLS      (MF_BN / MF_HALVES) /* output columns of a tile */
#define ROWS_OF_W (MF_HALVES * MF_N)  /* weight rows of one expert */
#define TILES_N   MF_CEIL(MF_N, COLS)
/* Padded row strides of `out`, so that rows start in different banks. */
#define OUT_STRIDE   (COLS + 8)  /* bf16 elements */
#define CODES_STRIDE (COLS + 16) /* bytes */

/* A tile: expert block, first column, expert. */
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

/* Returns the weight row of gate or of up for an output column. */
MF_DEVICE i32 row_of(i32 column, bool up)
{
    return MF_HALVES == 2 ? mf_gate_row(column) + (up ? MF_UP_AT(MF_N) : 0) : column;
}

/* Returns the bias of a column of gate or up, or 0 beyond the last column. */
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

/* Returns the output value of a column if there is no up. */
MF_DEVICE float activated(float v)
{
#if MF_STAGE == 1
    return mf_activate_gate(v);
#else
    return v;
#endif
}

/* Starts stage 2: prefetches the first tile's weights into L2, then waits for the preceding launch
 * (mf_begin). The sort wrote the order of experts before that launch, so stage 2 can read the order before
 * mf_begin. Thread r prefetches weight row r. Stage 1 has already called mf_begin, because it needs the
 * order. */
MF_DEVICE void prefetch_and_begin(const mf_hip_tile_args &a, i32 block, i32 col, bool is_there, i32 row_bytes,
                                  i32 ahead)
{
    if (MF_STAGE == 1)
        return;
    if (is_there && threadIdx.x < MF_BN && col + (i32)threadIdx.x < MF_N)
        mf_prefetch_l2((const u8 *)a.w + ((i64)a.experts[block] * MF_N + col + threadIdx.x) * row_bytes,
                       MF_MIN(ahead, row_bytes));
    mf_begin();
}

#ifdef MF_QUANT
/* Quantises the first rows of `out` to e4m3 with one scale per 128 columns. Sixteen lanes share a group. `me`
 * is the thread index. The rounds are unrolled, because after a loop with an unknown trip count the compiler
 * treats warp-uniform counters as per-lane values and reads them back before every WGMMA of the next tile. */
template <int Rows, int Threads>
MF_DEVICE void store_quantised(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, i32 me)
{
    const int pieces = Rows * (COLS / 8);
    MF_UNROLL
    for (int round = 0; round < MF_CEIL(pieces, Threads); round++) {
        const i32 i = me + round * Threads;
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
