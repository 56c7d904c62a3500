/* One stage of the two-stage grouped GEMM for few to many tokens per expert. It streams the weights through
 * shared memory once.
 *
 * Weights are the rows of the product and tokens its columns ("swap-AB"): a tile is MF_BN weight rows of an
 * expert times the MF_BM rows of one expert block, so few tokens waste no lanes of a 16-row instruction. The
 * kernel is persistent: a block processes a contiguous run of tiles, all columns of an expert block before
 * the next expert block. Its ring buffer of MF_STAGES pipeline stages continues across tiles, so that loads
 * never wait for an epilogue.
 *
 *   MF_FORMAT   format of rows and weights (format.h)
 *   MF_STAGES   pipeline stages
 *   MF_WGMMA    (Hopper) WGMMA with both operands in shared memory; each warpgroup has 64 weight rows
 *   the macros of tile_parts.inc.h and tile_waves.h
 *
 * A K tile is 128 bytes along K of every row: 64 bf16 or 128 fp8. The 16-byte chunk c of a row is stored at c
 * ^ (row % 8), so that eight rows of a matrix load touch all banks.
 *
 *   shared memory: ring[MF_STAGES] of { weights [BN][128], tokens [BM][128], scales float[BM + 8] } |
 *                  out bf16 [BM][COLS + 8]
 *
 * With MF_DIRECT the ring holds no weights (tile_weights.h). With MF_COPY_HELD, which stages loads in
 * registers, the ring has two pipeline stages. */
#include "dialect.h"
#include "format.h"
#include "tile_waves.h"

#define K_TILE_BYTES 128
#define K_TILE       (K_TILE_BYTES / BYTES)
#define K_TILES      MF_CEIL(MF_D, K_TILE)
#define STEP         (THREADS / 8) /* number of rows that all threads copy in one pass */
#define X_PASSES     MF_CEIL(MF_BM, STEP)
#define SCALES       (BY_BLOCK ? (MF_BM + 8) * 4 : 0)
#define STAGE_BYTES  MF_CEIL(W_STAGE_BYTES + MF_BM * K_TILE_BYTES + SCALES, 1024) * 1024
#define BLOCKS_D     MF_CEIL(MF_D, 128)
/* Number of K tiles in flight. With WGMMA it is smaller by one, because WGMMA is asynchronous and may still
 * read the previous K tile. */
#ifdef MF_WGMMA
#    define AHEAD (MF_STAGES - 2)
#else
#    define AHEAD (MF_STAGES - 1)
#endif

/* Accumulators of the MMA instructions. */
#if IS_INT8
typedef i32 products[QN][QM][4];
#else
typedef sums products;
#endif

MF_DEVICE u8 *chunk_of(u8 *base, i32 row, i32 chunk)
{
    return base + row * K_TILE_BYTES + ((chunk ^ (row & 7)) << 4);
}

#include "tile_weights.h"

/* The tile that is being copied, with the addresses from which this thread copies. */
struct tile_source {
    struct tile tile;
    bool is_there;
    const u8 *w;           /* the thread's first chunk of its first row */
    const u8 *x[X_PASSES]; /* nullptr for padding */
    const float *scale;    /* scale that this thread copies for the K tile; nullptr: none */
    i32 k_tile;
};

/* Returns the address of the scale that this thread copies for each K tile. The first MF_BM threads copy the
 * scales of tokens. The next eight copy scales of the 128-row blocks that contain the tile's weights, first
 * four for gate (or for all rows), then four for up. */
MF_DEVICE const float *scale_of(const struct tile &t, const struct mf_hip_tile_args &a)
{
    const i32 i = threadIdx.x, block = t.col / 128 + (i - MF_BM) % 4, up = (i - MF_BM) / 4;
    if (i < MF_BM) {
        const i64 at = (i64)t.block * MF_BM + i;
        const i32 token = mf_id_token(a.sorted_ids[at]);
        return token < a.token ? a.x_scale + (MF_STAGE == 1 ? (i64)token : at) * BLOCKS_D : nullptr;
    }
    if (i >= MF_BM + 8 || block * 128 >= MF_N || up >= MF_HALVES)
        return nullptr;
    return a.w_scale + ((i64)t.expert * MF_CEIL(ROWS_OF_W, 128) + up * (MF_N / 128) + block) * BLOCKS_D;
}

/* Switches to tile `i`. Computes the token addresses only if the expert block changes. */
MF_DEVICE void set_tile(struct tile_source *s, const struct mf_hip_tile_args &a, i32 i, i32 end)
{
    const i32 row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const i32 before = s->is_there ? s->tile.block : -1;
    s->k_tile = 0;
    s->is_there = i < end;
    if (!s->is_there)
        return;
    s->tile = tile_at(i, a.experts);
    if (BY_BLOCK && (s->tile.block != before || threadIdx.x >= MF_BM))
        s->scale = scale_of(s->tile, a);
    s->w = (const u8 *)a.w +
           (((i64)s->tile.expert * ROWS_OF_W + weight_row(s->tile.col, first_row_of_w())) * MF_D) * BYTES +
           first_chunk_of_w() * 16;
    if (s->tile.block == before)
        return;
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const i32 r = row + p * STEP;
        s->x[p] = nullptr;
        if (r < MF_BM) {
            const i64 at = (i64)s->tile.block * MF_BM + r;
            const i32 token = mf_id_token(a.sorted_ids[at]);
            if (token < a.token)
                s->x[p] = (const u8 *)a.x + (MF_STAGE == 1 ? (i64)token : at) * MF_D * BYTES + chunk * 16;
        }
    }
}

/* A thread's asynchronous copies of a K tile, still in flight. */
struct copies {
    struct weight_copies w;
    mf_copy_16 x[X_PASSES];
    mf_copy_4 scale;
};

/* Starts this thread's copies of the tile's next K tile. */
MF_DEVICE void copy_k_tile(const struct tile_source *s, const struct mf_hip_tile_args &a, u8 *ring,
                           struct copies *copies)
{
    const i32 row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const i64 along = (i64)s->k_tile * K_TILE_BYTES;
    const bool within = s->k_tile * K_TILE_BYTES + chunk * 16 < MF_D * BYTES;
    u8 *tokens = ring + W_STAGE_BYTES;
    copy_weights(s->w, s->tile.col, s->k_tile, ring, &copies->w);
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const i32 r = row + p * STEP;
        if (r < MF_BM)
            mf_copy_start_16(copies->x[p], chunk_of(tokens, r, chunk), s->x[p] ? s->x[p] + along : a.x,
                             within && s->x[p]);
    }
#if BY_BLOCK
    if (threadIdx.x < MF_BM + 8)
        mf_copy_start_4(copies->scale, tokens + MF_BM * K_TILE_BYTES + threadIdx.x * 4,
                        s->scale ? s->scale + s->k_tile : a.w_scale, s->scale);
#endif
}

/* Completes the oldest K tile in flight by writing the data staged in registers to its pipeline stage. */
MF_DEVICE void finish_k_tile(const struct copies *copies, u8 *ring, struct held_weights *held)
{
    const i32 row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    u8 *tokens = ring + W_STAGE_BYTES;
    finish_weights(&copies->w, ring, held);
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        if (row + p * STEP < MF_BM)
            mf_copy_finish_16(copies->x[p], chunk_of(tokens, row + p * STEP, chunk));
    }
    if (BY_BLOCK && threadIdx.x < MF_BM + 8)
        mf_copy_finish_4(copies->scale, tokens + MF_BM * K_TILE_BYTES + threadIdx.x * 4);
}

#ifdef MF_WGMMA

MF_DEVICE void before_mma()
{
    mf_async_fence();
}
/* Compiler fence for all accumulators, because the tensor core owns them from the first WGMMA until the wait
 * for the last one. */
MF_DEVICE void fence_sums(sums &d)
{
    MF_UNROLL
    for (int q = 0; q < QM * 4; q++)
        mf_wgmma_fence_operand(d[0][q / 4][q % 4]);
}
/* Waits until the products of at most N K tiles are still running. */
template <int N> MF_DEVICE void after_mma(sums &d)
{
    mf_wgmma_wait<N>();
    if (N == 0)
        fence_sums(d);
}

/* Multiplies one K tile. Each warpgroup multiplies 64 weight rows by all tokens. */
MF_DEVICE void multiply_k_tile(const struct held_weights &held, u8 *ring, i32 first_row, i32 first_token,
                               sums &d)
{
    const u64 w = mf_wgmma_descriptor(ring + first_row / 64 * 64 * K_TILE_BYTES),
              x = mf_wgmma_descriptor(ring + MF_BN * K_TILE_BYTES);
    (void)held, (void)first_token;
    fence_sums(d);
    mf_wgmma_fence();
    MF_UNROLL
    for (int s = 0; s < K_TILE_BYTES / 32; s++) {
        if (MF_FORMAT == BF16)
            mf_wgmma<QM>::bf16(d[0], w + 2 * s, x + 2 * s, 1);
        else
            mf_wgmma<QM>::fp8(d[0], w + 2 * s, x + 2 * s, !BY_BLOCK || s > 0);
    }
    mf_wgmma_commit();
}

#else

MF_DEVICE void before_mma()
{
}
template <int N, class T> MF_DEVICE void after_mma(T &d)
{
    (void)d;
}

typedef u32 rows_of_x[QM][MF_MMA_B];

/* Loads the token operands of step s along K. Each lane passes the address of 16 bytes of a token's row. */
MF_DEVICE void load_tokens(u8 *tokens, i32 first_token, int s, rows_of_x &x)
{
    const i32 lane = threadIdx.x % MF_WAVE, chunk = s * (MF_MMA_BYTES / 16);
#    if MF_MMA_COLS == 16
    MF_UNROLL
    for (int j = 0; j < QM; j++)
        mf_load_matrix_4(x[j], chunk_of(tokens, first_token + j * 16 + (lane & 15), chunk + (lane >> 4)));
#    else
    if (QM == 1) {
        mf_load_matrix_2(x[0], chunk_of(tokens, first_token + (lane & 7), chunk + ((lane >> 3) & 1)));
        return;
    }
    MF_UNROLL
    for (int j = 0; j + 1 < QM; j += 2) {
        u32 two[4];
        mf_load_matrix_4(two, chunk_of(tokens, first_token + j * 8 + (lane & 7) + ((lane >> 4) << 3),
                                       chunk + ((lane >> 3) & 1)));
        x[j][0] = two[0];
        x[j][1] = two[1];
        x[j + 1][0] = two[2];
        x[j + 1][1] = two[3];
    }
#    endif
}

/* Multiplies one K tile. A warp computes QN x QM products of 16 rows by MF_MMA_COLS tokens, each along
 * MF_MMA_BYTES of K at a time. */
MF_DEVICE void multiply_k_tile(const struct held_weights &held, u8 *ring, i32 first_row, i32 first_token,
                               products &d)
{
    MF_UNROLL
    for (int s = 0; s < K_TILE_BYTES / MF_MMA_BYTES; s++) {
        rows_of_w w;
        rows_of_x x;
        load_weights(held, ring, first_row, s, w);
        load_tokens(ring + W_STAGE_BYTES, first_token, s, x);
#    if MF_FORMAT == BF16 || IS_INT8 || defined(MF_MMA_FP8)
        MF_UNROLL
        for (int i = 0; i < QN; i++) {
            MF_UNROLL
            for (int j = 0; j < QM; j++)
#        if MF_FORMAT == BF16
                mf_mma_bf16(d[i][j], w[i], x[j]);
#        elif IS_INT8
                mf_mma_s8(d[i][j], w[i], x[j]);
#        else
                mf_mma_fp8(d[i][j], w[i], x[j]);
#        endif
        }
#    else
        MF_UNROLL
        for (int half = 0; half < 2; half++) {
            rows_of_w wf;
            MF_UNROLL
            for (int i = 0; i < QN; i++)
                mf_fp8_half_a(w[i], half, wf[i]);
            MF_UNROLL
            for (int j = 0; j < QM; j++) {
                u32 xf[MF_MMA_B];
                mf_fp8_half_b(x[j], half, xf);
                MF_UNROLL
                for (int i = 0; i < QN; i++)
                    mf_mma_f16(d[i][j], wf[i], xf);
            }
        }
#    endif
    }
}

#endif

#if IS_INT8 && !BY_BLOCK
MF_DEVICE void convert_sums(const products &whole, sums &d)
{
    MF_UNROLL
    for (int q = 0; q < QN * QM * 4; q++)
        d[q / 4 / QM][q / 4 % QM][q % 4] = (float)whole[q / 4 / QM][q / 4 % QM][q % 4];
}
#endif

#if BY_BLOCK
/* Multiplies a K tile's product by its scales, adds it to the sum over all K tiles, and zeroes the product.
 */
MF_DEVICE void add_scaled(const u8 *ring, i32 col, i32 first_row, i32 first_token, products &part, sums &d)
{
    const float *scales = (const float *)(ring + W_STAGE_BYTES + MF_BM * K_TILE_BYTES);
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int j = 0; j < QM; j++) {
        const float s0 = scales[first_token + j * MF_MMA_COLS + mf_mma_col(lane)];
        const float s1 = scales[first_token + j * MF_MMA_COLS + mf_mma_col(lane) + MF_MMA_COL_STEP];
        MF_UNROLL
        for (int i = 0; i < QN; i++) {
            const i32 r = first_row + i * 16;
            /* The 16 rows are within one block of 128 rows, because a tile starts at a multiple of its width,
             * and the width divides 128 or is a multiple of 128. */
            const float *block = scales + MF_BM + (col % 128 + r / MF_HALVES) / 128;
            const float low = block[0], high = MF_HALVES == 2 ? block[4] : low;
            d[i][j][0] += (float)part[i][j][0] * (low * s0);
            d[i][j][1] += (float)part[i][j][1] * (low * s1);
            d[i][j][2] += (float)part[i][j][2] * (high * s0);
            d[i][j][3] += (float)part[i][j][3] * (high * s1);
            part[i][j][0] = part[i][j][1] = part[i][j][2] = part[i][j][3] = 0;
        }
    }
}

#elif MF_FORMAT != BF16
/* Multiplies the sum over all K tiles by per-row or per-tensor scales. */
MF_DEVICE void scale_by_row(const struct mf_hip_tile_args &a, const struct tile &t, i32 first_row,
                            i32 first_token, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int j = 0; j < QM; j++) {
        float s[2];
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const i64 at =
                (i64)t.block * MF_BM + first_token + j * MF_MMA_COLS + mf_mma_col(lane) + c * MF_MMA_COL_STEP;
            const i32 token = mf_id_token(a.sorted_ids[at]);
            s[c] = token < a.token ? a.x_scale[BY_TENSOR ? 0 : MF_STAGE == 1 ? (i64)token : at] : 0;
        }
        MF_UNROLL
        for (int i = 0; i < QN; i++) {
            const float *w = a.w_scale + (i64)t.expert * (BY_TENSOR ? 1 : ROWS_OF_W);
            float f[2][1 + MF_MMA_ROW_STEP];
            MF_UNROLL
            for (int c = 0; c < 2 + 2 * MF_MMA_ROW_STEP; c++) {
                const i32 r = first_row + i * 16 + mf_mma_row(lane) + c / 2 * MF_MMA_ROW_STEP + c % 2 * APART;
                f[c % 2][c / 2] = is_column(t.col, r) ? w[BY_TENSOR ? 0 : weight_row(t.col, r)] : 0;
            }
            MF_UNROLL
            for (int c = 0; c < 4; c++)
                d[i][j][c] *= f[c / 2][c & MF_MMA_ROW_STEP] * s[c & 1];
        }
    }
}

#endif

extern "C" __global__ void MF_BOUNDS(THREADS, MF_BLOCKS) mf_tile(const mf_hip_tile_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    if (MF_STAGE == 1)
        mf_begin();
    const i64 n_tiles = (i64)(a.num_valid[0] / MF_BM) * TILES_N;
    const i32 begin = (i32)(n_tiles * blockIdx.x / gridDim.x),
              end = (i32)(n_tiles * (blockIdx.x + 1) / gridDim.x);
    const i32 wave = threadIdx.x / MF_WAVE;
    const i32 first_row = wave % MF_WARPS_N * WN, first_token = wave / MF_WARPS_N * WM;
    u16 *out = (u16 *)(lds + (OUT_IN_RING ? 0 : MF_STAGES * STAGE_BYTES));
    struct copies copies;
    struct held_weights held;
    struct tile_source from;
    i32 issued_tile = begin, issued = 0, consumed = 0;
    sums d;

    prefetch_and_begin(a, begin / TILES_N, begin % TILES_N * COLS, begin < end, MF_D * BYTES,
                       AHEAD * K_TILE_BYTES);
    from.is_there = false;
    set_tile(&from, a, issued_tile, end);
    /* Starts the copies of one more K tile. If no K tile is left, commits an empty group of copies, so that
     * the number of groups equals the number of K tiles. */
#define ISSUE()                                                         \
    do {                                                                \
        if (from.is_there) {                                            \
            copy_k_tile(&from, a, lds + issued * STAGE_BYTES, &copies); \
            issued = issued + 1 == MF_STAGES ? 0 : issued + 1;          \
            if (++from.k_tile == K_TILES)                               \
                set_tile(&from, a, ++issued_tile, end);                 \
        }                                                               \
        mf_copy_commit();                                               \
    } while (0)
    for (int s = 0; s < AHEAD; s++)
        ISSUE();
    for (i32 i = begin; i < end; i++) {
        const struct tile t = tile_at(i, a.experts);
#if BY_BLOCK
        products part;
        clear(part);
#elif IS_INT8
        products whole;
        clear(whole);
#endif
        clear(d);
        MF_LOOP
        for (i32 k_tile = 0; k_tile < K_TILES; k_tile++) {
            mf_copy_wait<AHEAD - 1>();
            finish_k_tile(&copies, lds + consumed * STAGE_BYTES, &held);
            before_mma();
            __syncthreads();
            ISSUE();
            u8 *ring = lds + consumed * STAGE_BYTES;
            consumed = consumed + 1 == MF_STAGES ? 0 : consumed + 1;
#if BY_BLOCK
            multiply_k_tile(held, ring, first_row, first_token, part);
            after_mma<0>(part);
            add_scaled(ring, t.col, first_row, first_token, part, d);
#elif IS_INT8
            multiply_k_tile(held, ring, first_row, first_token, whole);
#else
            multiply_k_tile(held, ring, first_row, first_token, d);
            after_mma<1>(d);
#endif
        }
        after_mma<0>(d);
#if IS_INT8 && !BY_BLOCK
        convert_sums(whole, d);
#endif
#if MF_FORMAT != BF16 && !BY_BLOCK
        scale_by_row(a, t, first_row, first_token, d);
#endif
        if (OUT_IN_RING)
            __syncthreads();
        store_sums(a, t, first_row, first_token, d, out);
        __syncthreads();
        store(a, t, out);
        if (OUT_IN_RING)
            __syncthreads();
    }
    mf_copy_wait<0>();
}
