/* Stage 1 with the kernel argument block of AITER's prebuilt kernels (kernels/families/asm_args.h), for code
 * objects that a manifest lists. Sizes are arguments; the kernel name determines the tile. Supports bf16,
 * silu or gelu, and output in sorted order.
 *
 *   MF_NAME             kernel name, the manifest's knl_name
 *   MF_SUB_M, MF_SUB_N  tokens of an expert block; columns of a tile
 *   MF_WEIGHT           apply the routing weight before the activation
 *
 * The grid has a block of 256 threads for each column tile of each expert block. As in tile.hip, weights are
 * the rows of the product, one lane accumulates both gate and up of a column, and a K tile consists of 128
 * bytes along K of every row. The next K tile is held in registers while the current one is multiplied.
 *
 *   shared memory: weights [2·MF_SUB_N][128] | tokens [MF_SUB_M][128]; later
 *        out bf16 [MF_SUB_M][OUT_STRIDE] overlays the weights */
#include "dialect.h"

#define MF_ACT   0
#define MF_LIMIT 0.0f
#define MF_ALPHA 0.0f
#include "activation.h"

#define THREADS      256
#define WAVES        (THREADS / MF_WAVE)
#define K_TILE_BYTES 128
#define K_TILE       (K_TILE_BYTES / 2)
#define ROWS         (2 * MF_SUB_N)
#define QN           (ROWS / 16 / WAVES) /* number of 16-row operands per warp */
#define QM           (MF_SUB_M / MF_MMA_COLS)
#define APART        MF_MMA_APART
#define STEP         (THREADS / 8) /* number of rows that all threads copy in one pass */
#define PASSES_W     (ROWS / STEP)
#define PASSES_X     MF_CEIL(MF_SUB_M, STEP)
#define OUT_STRIDE   (MF_SUB_N + 8)

enum {
    O,
    X,
    GU,
    XC,
    STP = 7,
    SEP,
    DIM,
    HIDDEN_DIM,
    TOKEN_CNT,
    XS = 13,
    GUS,
    OS,
    EGUS,
    TOPK = 19,
    ACTIVATION = 21,
    SW,
    SLOTS
};

struct asm_slot {
    u64 value, unused;
};
struct asm_stage1_args {
    asm_slot at[SLOTS];
};
MF_DEVICE const u8 *address(const asm_stage1_args &a, int slot)
{
    return (const u8 *)a.at[slot].value;
}
MF_DEVICE i32 number(const asm_stage1_args &a, int slot)
{
    return (i32)a.at[slot].value;
}

/* Returns the column of the tile to which weight row `r` belongs. */
MF_DEVICE i32 column_of(i32 r)
{
    return (r >> (APART == 8 ? 4 : 2)) * APART + (r & (APART - 1));
}
MF_DEVICE u8 *chunk_of(u8 *base, i32 row, i32 chunk)
{
    return base + row * K_TILE_BYTES + ((chunk ^ (row & 7)) << 4);
}

/* Addresses of a thread's chunk in each of its rows (nullptr for padding), and the data loaded from there. */
struct rows {
    const u8 *w[PASSES_W], *x[PASSES_X];
    mf_16b from_w[PASSES_W], from_x[PASSES_X];
};

MF_DEVICE void locate_rows(const asm_stage1_args &a, rows &r)
{
    const i32 row = threadIdx.x / 8, chunk = threadIdx.x % 8, inter = number(a, HIDDEN_DIM);
    const i32 expert = ((const i32 *)address(a, SEP))[blockIdx.y];
    const u8 *w = address(a, GU) + (u64)(u32)number(a, EGUS) * expert + chunk * 16;
    MF_UNROLL
    for (int p = 0; p < PASSES_W; p++) {
        const i32 at = row + p * STEP, column = (i32)blockIdx.x * MF_SUB_N + column_of(at);
        r.w[p] = w + (u64)(u32)number(a, GUS) * (u32)(column + (at & APART ? inter : 0));
    }
    MF_UNROLL
    for (int p = 0; p < PASSES_X; p++) {
        const i32 at = row + p * STEP;
        const i32 token = at < MF_SUB_M
                              ? mf_id_token(((const i32 *)address(a, STP))[blockIdx.y * MF_SUB_M + at])
                              : 0xffffff;
        r.x[p] = token < number(a, TOKEN_CNT)
                     ? address(a, X) + (u64)(u32)number(a, XS) * (u32)token + chunk * 16
                     : nullptr;
    }
}

/* Loads a K tile into registers. Padding rows, and elements beyond the end of K, become zeros. */
MF_DEVICE void load_k_tile(const asm_stage1_args &a, rows &r, i32 k_tile)
{
    const bool within = k_tile * K_TILE + (i32)(threadIdx.x % 8) * 8 < number(a, DIM);
    MF_UNROLL
    for (int p = 0; p < PASSES_W; p++)
        r.from_w[p] = within ? mf_load_once(r.w[p] + k_tile * K_TILE_BYTES) : mf_16b{0, 0, 0, 0};
    MF_UNROLL
    for (int p = 0; p < PASSES_X; p++)
        r.from_x[p] = within && r.x[p] ? mf_load_once(r.x[p] + k_tile * K_TILE_BYTES) : mf_16b{0, 0, 0, 0};
}
MF_DEVICE void store_k_tile(const rows &r, u8 *w, u8 *x)
{
    const i32 row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    MF_UNROLL
    for (int p = 0; p < PASSES_W; p++)
        *(mf_16b *)chunk_of(w, row + p * STEP, chunk) = r.from_w[p];
    MF_UNROLL
    for (int p = 0; p < PASSES_X; p++) {
        if (row + p * STEP < MF_SUB_M)
            *(mf_16b *)chunk_of(x, row + p * STEP, chunk) = r.from_x[p];
    }
}

typedef float sums[QN][QM][4];

MF_DEVICE void multiply(u8 *w, u8 *x, i32 first_row, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int s = 0; s < K_TILE_BYTES / MF_MMA_BYTES; s++) {
        const i32 chunk = s * (MF_MMA_BYTES / 16);
        MF_UNROLL
        for (int j = 0; j < QM; j++) {
            u32 b[MF_MMA_B];
#if MF_MMA_COLS == 16
            mf_load_matrix_4(b, chunk_of(x, j * 16 + (lane & 15), chunk + (lane >> 4)));
#else
            mf_load_matrix_2(b, chunk_of(x, j * 8 + (lane & 7), chunk + ((lane >> 3) & 1)));
#endif
            MF_UNROLL
            for (int i = 0; i < QN; i++) {
                u32 a[MF_MMA_A];
                mf_load_matrix_4(a, chunk_of(w, first_row + i * 16 + (lane & 15), chunk + (lane >> 4)));
                mf_mma_bf16(d[i][j], a, b);
            }
        }
    }
}

MF_DEVICE float activated(float gate, float up, bool gelu)
{
    return (gelu ? 0.5f * gate * (1.0f + erff(gate * 0.70710678f)) : gate * mf_sigmoid(gate)) * up;
}

/* Stores the lane's sums as bf16 into out[token][column]. */
MF_DEVICE void store_sums(const asm_stage1_args &a, i32 first_row, const sums &d, u16 *out)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const float *weights = (const float *)address(a, SW) + (i64)blockIdx.y * MF_SUB_M;
    MF_UNROLL
    for (int j = 0; j < QM; j++) {
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const i32 token = j * MF_MMA_COLS + mf_mma_col(lane) + c * MF_MMA_COL_STEP;
            const float weight = MF_WEIGHT ? weights[token] : 1.0f;
            MF_UNROLL
            for (int i = 0; i < QN; i++) {
                const i32 r = first_row + i * 16 + mf_mma_row(lane) + c * MF_MMA_ROW_STEP;
                const float h =
                    activated(weight * d[i][j][c], weight * d[i][j][c + 2], number(a, ACTIVATION) == 1);
                out[token * OUT_STRIDE + column_of(r)] = (u16)mf_bf16_pair(h, 0.0f);
            }
        }
    }
}

MF_DEVICE void store(const asm_stage1_args &a, const u16 *out)
{
    const i32 row_bytes = number(a, OS) / number(a, TOPK);
    for (i32 i = threadIdx.x; i < MF_SUB_M * (MF_SUB_N / 8); i += THREADS) {
        const i32 row = i / (MF_SUB_N / 8), col = i % (MF_SUB_N / 8) * 8;
        const i64 at = (i64)blockIdx.y * MF_SUB_M + row;
        if (mf_id_token(((const i32 *)address(a, STP))[at]) < number(a, TOKEN_CNT))
            *(mf_16b *)((u8 *)address(a, O) + at * row_bytes + ((i32)blockIdx.x * MF_SUB_N + col) * 2) =
                *(const mf_16b *)(out + row * OUT_STRIDE + col);
    }
}

extern "C" __global__ void MF_BOUNDS(THREADS, 1) MF_NAME(const asm_stage1_args a)
{
    __shared__ __align__(1024) u8 w[ROWS * K_TILE_BYTES];
    __shared__ __align__(1024) u8 x[MF_SUB_M * K_TILE_BYTES];
    const i32 first_row = threadIdx.x / MF_WAVE * (QN * 16), k_tiles = MF_CEIL(number(a, DIM), K_TILE);
    rows r;
    sums d;
    if ((i32)blockIdx.y * MF_SUB_M >= ((const i32 *)address(a, XC))[0])
        return;
    locate_rows(a, r);
    MF_UNROLL
    for (int i = 0; i < QN * QM * 4; i++)
        d[i / 4 / QM][i / 4 % QM][i % 4] = 0;
    load_k_tile(a, r, 0);
    MF_LOOP
    for (i32 k_tile = 0; k_tile < k_tiles; k_tile++) {
        __syncthreads();
        store_k_tile(r, w, x);
        __syncthreads();
        if (k_tile + 1 < k_tiles)
            load_k_tile(a, r, k_tile + 1);
        multiply(w, x, first_row, d);
    }
    __syncthreads();
    store_sums(a, first_row, d, (u16 *)w);
    __syncthreads();
    store(a, (const u16 *)w);
}
