/* One stage of the two-stage grouped GEMM with 4-bit weights or with group scales. Weights stay packed in
 * shared memory. The lane that multiplies them dequantises them to bf16 in its registers (narrow.h).
 *
 *   MF_W        FP4, INT4, FP8    MF_W_GROUP  elements of K per scale: 32, 16; 0: one scale per row
 *   MF_X        BF16, FP8, FP4    MF_X_GROUP  the same for tokens
 *   MF_STAGES   pipeline stages; a K tile consists of MF_PARTS parts of 128 elements
 *   the macros of tile_parts.inc.h and tile_waves.h
 *
 * Scales of FP4 and FP8 are powers of two, or e4m3 for FP4. A scaled weight is therefore exactly a bf16, and
 * one multiplication dequantises and scales it. INT4 group scales are bf16, so the sum of each group is
 * scaled separately.
 *
 * A lane multiplies one quarter of each 128 elements of a row along K. If weights are scaled, a quarter is 32
 * elements with one or two scales. If sums are scaled (GROUP_SUMS), a lane's quarter consists of eight
 * elements of each group, and the groups are multiplied one after the other. In both cases the products take
 * four steps of eight elements per lane. Tokens are stored in shared memory in the order of the steps, as
 * chunk step · 4 + quarter. The two halves of every second row are exchanged to avoid bank conflicts.
 *
 *   shared memory: ring[MF_STAGES] of MF_PARTS x { tokens [BM], weights [BN], scales [BN] } |
 *        tokens[2] of MF_PARTS x [BM][128] of bf16, if they arrive narrow | out bf16 [BM][COLS + 8]
 *
 * If copies are staged in registers (MF_COPY_HELD), weights bypass the ring buffer, and tokens enter it as
 * bf16. */
#include "dialect.h"
#include "narrow.h"
#include "tile_waves.h"
#include "narrow_scales.h"

#define K_TILE     (PART * MF_PARTS)
#define K_TILES    MF_CEIL(MF_D, K_TILE)
#define GROUP_SUMS (MF_W == INT4 && MF_W_GROUP > 0)
/* With GROUP_SUMS the loop over the independent steps is not unrolled, which saves registers and raises
 * occupancy. */
#if GROUP_SUMS && !defined(MF_COPY_HELD)
#    define STEPS_LOOP MF_NO_UNROLL
#else
#    define STEPS_LOOP MF_UNROLL
#endif
#define W_BITS     (MF_W == FP8 ? 8 : 4)
#define W_CHUNKS16 (W_BITS / 4)        /* number of 16-byte chunks per quarter */
#define ROW_W      (PART * W_BITS / 8) /* bytes of a row in one part */
#define BYTES_W    (MF_D / 8 * W_BITS) /* bytes of a whole row */
#define AHEAD      (MF_STAGES - 1)

#ifdef MF_COPY_HELD
#    define W_STAGE_BYTES 0
#else
#    define W_STAGE_BYTES (MF_BN * ROW_W)
#endif
#define PART_BYTES  (X_STAGE_BYTES + W_STAGE_BYTES + MF_BN * SCALES_WORDS * 4)
#define STAGE_BYTES (PART_BYTES * MF_PARTS)

/* A lane's share of a 16-row MMA operand: number of rows, first row (also the first token), and quarter of K.
 */
#if MF_MMA_COLS == 8
#    define LANE_ROWS          2
#    define LANE_ROW(lane)     ((lane) >> 2)
#    define LANE_QUARTER(lane) ((lane)&3)
#else
#    define LANE_ROWS          1
#    define LANE_ROW(lane)     ((lane)&15)
#    define LANE_QUARTER(lane) ((lane) >> 4)
#endif

#define W_CHUNKS (4 * W_CHUNKS16 * MF_PARTS)
#define W_STEP   (THREADS / W_CHUNKS)
#define W_PASSES (MF_BN / W_STEP)
#define S_WORDS  (MF_BN * SCALES_WORDS * MF_PARTS)
#define S_PASSES MF_CEIL(S_WORDS, THREADS)

#include "mx_tokens.h"

MF_DEVICE u8 *weights_of(u8 *ring, i32 part)
{
    return tokens_of(ring, part) + X_STAGE_BYTES;
}
MF_DEVICE u8 *scales_of(u8 *ring, i32 part)
{
    return weights_of(ring, part) + W_STAGE_BYTES;
}

/* Returns the offset of chunk c of a weight row. The offsets spread the loads of a step over all banks. */
MF_DEVICE i32 w_offset(i32 row, i32 c)
{
#if MF_W == FP8
    return row * ROW_W + ((((c & 1) << 2 | c >> 1) ^ ((row & 1) << 2)) << 4);
#else
    return row * ROW_W + ((GROUP_SUMS ? c ^ ((row >> 1) & 3) : c) << 4);
#endif
}

/* Position of a word of a K tile's scales: weight row, part, and index of the word in that row and part. */
struct scale_word {
    i32 row, part, word;
};
MF_DEVICE scale_word scale_word_of(i32 i)
{
    scale_word s;
    s.part = i / MF_MAX(MF_BN * SCALES_WORDS, 1);
    s.row = i % MF_MAX(MF_BN * SCALES_WORDS, 1) / MF_MAX(SCALES_WORDS, 1);
    s.word = i % MF_MAX(SCALES_WORDS, 1);
    return s;
}
/* Returns the offset of a row's first scale byte from the start of all experts' scales. */
MF_DEVICE i64 scale_at(const struct tile &t, i32 row)
{
    return ((i64)t.expert * ROWS_OF_W + weight_row(t.col, row)) * SCALES_ROW;
}

/* Returns true if row r of a tile exists in the expert's weights. */
MF_DEVICE bool has_row(i32 col, i32 r)
{
    return MF_N % COLS == 0 || is_column(col, r);
}

/* The tile that is being copied, with the addresses from which this thread copies. */
struct tile_source {
    struct tile tile;
    bool is_there;
    struct rows_of_x x;
    const u8 *w;                   /* first weight row of the thread */
    const u8 *scale[S_PASSES + 1]; /* scale words of the thread for the first K tile; nullptr: no word */
    i32 k_tile;
};

/* Returns the first of the weight rows that this thread copies in each K tile. */
MF_DEVICE i32 first_row_of_w()
{
#ifdef MF_COPY_HELD
    return (i32)(threadIdx.x / MF_WAVE) % MF_WARPS_N * WN + LANE_ROW(threadIdx.x % MF_WAVE);
#else
    return threadIdx.x / W_CHUNKS;
#endif
}

/* Switches to tile `i`. Computes the token addresses only if the expert block changes. */
MF_DEVICE void set_tile(struct tile_source *s, const mf_hip_tile_args &a, i32 i, i32 end)
{
    const i32 before = s->is_there ? s->tile.block : -1;
    s->k_tile = 0;
    s->is_there = i < end;
    if (!s->is_there)
        return;
    s->tile = tile_at(i, a.experts);
    s->w = (const u8 *)a.w +
           ((i64)s->tile.expert * ROWS_OF_W + weight_row(s->tile.col, first_row_of_w())) * BYTES_W;
    MF_UNROLL
    for (int p = 0; p < S_PASSES; p++) {
        const scale_word w = scale_word_of(threadIdx.x + p * THREADS);
        const i64 first = scale_at(s->tile, w.row) + w.part * SCALES_PART;
        s->scale[p] =
            has_row(s->tile.col, w.row) ? (const u8 *)a.w_scale + (first & ~(i64)3) + w.word * 4 : nullptr;
    }
    if (s->tile.block != before)
        find_rows(a, s->tile.block, &s->x);
}

/* raw: packed weights of a K tile in registers. copies: a thread's asynchronous copies of a K tile, still in
 * flight. */
typedef u32 raw[MF_PARTS][QN][LANE_ROWS][4 * W_CHUNKS16];
struct copies {
    struct token_copies x;
    mf_copy_4 scale[S_PASSES + 1];
#ifdef MF_COPY_HELD
    mf_copy_16 w[MF_PARTS][QN][W_CHUNKS16];
    mf_copy_4 step[MF_PARTS][QN][4];
#endif
};

MF_DEVICE void copy_scales(const struct tile_source *s, const mf_hip_mx_args &a, u8 *ring,
                           struct copies *copies)
{
    MF_UNROLL
    for (int p = 0; p < S_PASSES; p++) {
        const i32 i = threadIdx.x + p * THREADS;
        const scale_word w = scale_word_of(i);
        const u8 *from = s->scale[p] + s->k_tile * (MF_PARTS * SCALES_PART);
        const bool there = s->scale[p] && (SCALES_END_WITHIN || from < (const u8 *)a.w_scale_end);
        if (i < S_WORDS)
            mf_copy_start_4(copies->scale[p], scales_of(ring, w.part) + (w.row * SCALES_WORDS + w.word) * 4,
                            there ? from : (const u8 *)a.tile.w_scale, there);
    }
}

MF_DEVICE void copy_weights(const struct tile_source *s, u8 *ring, struct copies *copies)
{
    const i32 row = first_row_of_w();
    const u8 *from = s->w + s->k_tile * (ROW_W * MF_PARTS);
#ifdef MF_COPY_HELD
    const i32 quarter = LANE_QUARTER(threadIdx.x % MF_WAVE);
    MF_UNROLL
    for (int part = 0; part < MF_PARTS; part++) {
        const i32 k = (s->k_tile * MF_PARTS + part) * PART;
        MF_UNROLL
        for (int i = 0; i < QN; i++) {
            const u8 *w =
                from + (i64)(weight_row(0, row + i * 16) - weight_row(0, row)) * BYTES_W + part * ROW_W;
            const bool there = has_row(s->tile.col, row + i * 16);
            MF_UNROLL
            for (int c = 0; c < (GROUP_SUMS ? 0 : W_CHUNKS16); c++)
                mf_copy_start_16(copies->w[part][i][c], nullptr, w + (quarter * W_CHUNKS16 + c) * 16,
                                 there && k + quarter * QUARTER < MF_D);
            MF_UNROLL
            for (int step = 0; step < (GROUP_SUMS ? 4 : 0); step++)
                mf_copy_start_4(copies->step[part][i][step], nullptr, w + step * 16 + quarter * 4,
                                there && k + step * QUARTER < MF_D);
        }
    }
    (void)ring;
#else
    const i32 chunk = threadIdx.x % W_CHUNKS;
    const bool within = MF_D % K_TILE == 0 || s->k_tile * K_TILE + chunk / W_CHUNKS16 * QUARTER < MF_D;
    u8 *to = weights_of(ring, chunk / (4 * W_CHUNKS16));
    MF_UNROLL
    for (int p = 0; p < W_PASSES; p++) {
        const i32 r = row + p * W_STEP;
        const i64 further = (i64)(weight_row(0, r) - weight_row(0, row)) * BYTES_W;
        mf_copy_async_16(to + w_offset(r, chunk % (4 * W_CHUNKS16)), from + further + chunk * 16,
                         within && has_row(s->tile.col, r));
    }
    (void)copies;
#endif
}

/* Starts this thread's copies of the tile's next K tile. */
MF_DEVICE void copy_k_tile(const struct tile_source *s, const mf_hip_mx_args &a, u8 *ring,
                           struct copies *copies)
{
    copy_weights(s, ring, copies);
    copy_tokens(s->x, s->k_tile, a, ring, &copies->x);
    copy_scales(s, a, ring, copies);
}

/* Completes the oldest K tile in flight. */
MF_DEVICE void finish_k_tile(const struct copies *copies, u8 *ring, u8 *tokens, const struct landing &x,
                             raw &held)
{
    finish_tokens(copies->x, ring, tokens, x);
#ifdef MF_COPY_HELD
    MF_UNROLL
    for (int i = 0; i < MF_PARTS * QN; i++) {
        MF_UNROLL
        for (int c = 0; c < (GROUP_SUMS ? 0 : W_CHUNKS16); c++) {
            u32 v[4];
            mf_copy_get_16(copies->w[i / QN][i % QN][c], v);
            MF_UNROLL
            for (int j = 0; j < 4; j++)
                held[i / QN][i % QN][0][c * 4 + j] = v[j];
        }
        MF_UNROLL
        for (int step = 0; step < (GROUP_SUMS ? 4 : 0); step++)
            held[i / QN][i % QN][0][step] = mf_copy_get_4(copies->step[i / QN][i % QN][step]);
    }
    MF_UNROLL
    for (int p = 0; p < S_PASSES; p++) {
        const i32 i = threadIdx.x + p * THREADS;
        const scale_word w = scale_word_of(i);
        if (i < S_WORDS)
            mf_copy_finish_4(copies->scale[p], scales_of(ring, w.part) + (w.row * SCALES_WORDS + w.word) * 4);
    }
#else
    (void)held;
#endif
}

/* Loads the lane's packed weights of a part. With GROUP_SUMS they are not loaded here, because each step
 * loads its own word. */
MF_DEVICE void load_weights(u8 *ring, i32 part, i32 first_row, raw &held)
{
#if !defined(MF_COPY_HELD) && !GROUP_SUMS
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int i = 0; i < QN * LANE_ROWS; i++) {
        const i32 row = first_row + i / LANE_ROWS * 16 + LANE_ROW(lane) + i % LANE_ROWS * 8;
        MF_UNROLL
        for (int c = 0; c < W_CHUNKS16; c++) {
            u32 *to = held[part][i / LANE_ROWS][i % LANE_ROWS] + c * 4;
            const mf_16b v = *(const mf_16b *)(weights_of(ring, part) +
                                               w_offset(row, LANE_QUARTER(lane) * W_CHUNKS16 + c));
            to[0] = v.x;
            to[1] = v.y;
            to[2] = v.z;
            to[3] = v.w;
        }
    }
#else
    (void)ring, (void)part, (void)first_row, (void)held;
#endif
}
/* Dequantises to bf16 one step of row r of the i-th group of sixteen rows. If weights are scaled, the result
 * is scaled. */
MF_DEVICE void weights_of_step(const raw &held, u8 *ring, i32 part, i32 first_row, int i, int r, int step,
                               u32 factor, u32 (&ret)[4])
{
#if MF_W == FP8
    mf_fp8_to_bf16(held[part][i][r][2 * step], held[part][i][r][2 * step + 1], factor, ret);
#elif MF_W == FP4
    mf_fp4_to_bf16(held[part][i][r][step], factor, ret);
#elif !defined(MF_COPY_HELD) && GROUP_SUMS
    const i32 lane = threadIdx.x % MF_WAVE, row = first_row + i * 16 + LANE_ROW(lane) + r * 8;
    mf_int4_to_bf16(*(const u32 *)(weights_of(ring, part) + w_offset(row, step) + LANE_QUARTER(lane) * 4),
                    ret);
#else
    mf_int4_to_bf16(held[part][i][r][step], ret);
#endif
    (void)held, (void)ring, (void)part, (void)first_row, (void)i, (void)r, (void)step, (void)factor;
}

/* For each row of a lane: byte offset of the row's first scale within the word that contains the scale. */
#if GROUP_SUMS
#    define SCALED_ROWS 4
#else
#    define SCALED_ROWS LANE_ROWS
#endif
typedef i32 skews[QN][SCALED_ROWS];
/* Returns the i-th of the rows for which a lane has scales, if the warp's rows begin at first_row. It is the
 * row of the lane's accumulator i with GROUP_SUMS, otherwise the row of the lane's weights i. */
MF_DEVICE i32 scaled_row(i32 first_row, int i)
{
    const i32 lane = threadIdx.x % MF_WAVE;
#if GROUP_SUMS
    return first_row + mf_mma_row(lane) + i % 2 * MF_MMA_ROW_STEP + i / 2 * APART;
#else
    return first_row + LANE_ROW(lane) + i * 8;
#endif
}
MF_DEVICE void find_skews(const struct tile &t, i32 first_row, skews &ret)
{
    MF_UNROLL
    for (int i = 0; i < QN * SCALED_ROWS; i++) {
        const i32 row = scaled_row(first_row + i / SCALED_ROWS * 16, i % SCALED_ROWS);
        ret[i / SCALED_ROWS][i % SCALED_ROWS] = SCALES_SKEW ? (i32)(scale_at(t, row) & 3) : 0;
    }
}

/* A lane's scales of a part. With GROUP_SUMS: pointers to the scales of the lane's sums. Otherwise: factors
 * of the lane's weights, one for each half of its quarter. */
struct scaled {
#if GROUP_SUMS
    const u8 *of[QN][SCALED_ROWS];
#else
    u32 of[QN][SCALED_ROWS][2];
#endif
};
MF_DEVICE void load_scales(u8 *ring, i32 part, i32 first_row, const skews &skew, struct scaled *ret)
{
#if MF_W_GROUP > 0
    MF_UNROLL
    for (int i = 0; i < QN * SCALED_ROWS; i++) {
        const int q = i / SCALED_ROWS, r = i % SCALED_ROWS;
        const u8 *scales =
            scales_of(ring, part) + scaled_row(first_row + q * 16, r) * SCALES_WORDS * 4 + skew[q][r];
#    if GROUP_SUMS
        ret->of[q][r] = scales;
#    else
        const i32 quarter = LANE_QUARTER(threadIdx.x % MF_WAVE);
        if (MF_W_GROUP == 16)
            factors_of_e4m3(*(const u16 *)(scales + quarter * 2), ret->of[q][r]);
        else
            ret->of[q][r][0] = ret->of[q][r][1] =
                factor_of_power(scales[quarter], MF_W == FP8 ? FP8_EXPONENT_OFFSET : FP4_EXPONENT_OFFSET);
#    endif
    }
#else
    (void)ring, (void)part, (void)first_row, (void)skew, (void)ret;
#endif
}

#if MF_W == INT4
#    define W_FACTOR(s, i, r, step) 0u
#else
#    define W_FACTOR(s, i, r, step) (s).of[i][r][(step) / 2]
#endif

/* Multiplies 16 weight rows by tokens, eight elements of K per lane, and adds the products. `i` is the index
 * of the instruction, below INSTRUCTIONS. */
#if MF_MMA_COLS == 8
#    define INSTRUCTIONS 2
#else
#    define INSTRUCTIONS 1
#endif
MF_DEVICE void multiply(float (&d)[4], const u32 (&w)[LANE_ROWS][4], const u32 (&x)[4], int i)
{
#if MF_MMA_COLS == 8
    const u32 a[4] = {w[0][2 * i], w[1][2 * i], w[0][2 * i + 1], w[1][2 * i + 1]},
              b[2] = {x[2 * i], x[2 * i + 1]};
    mf_mma_bf16(d, a, b);
#else
    (void)i;
    mf_mma_bf16(d, w[0], x);
#endif
}

/* Multiplies the weights of one step (eight elements along K per lane) by the first N columns of tokens. */
template <int N>
MF_DEVICE void multiply_step(const raw &held, const struct scaled &s, u8 *ring, const u8 *tokens, i32 part,
                             int step, i32 first_row, i32 first_token, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    u32 x[N][4];
    MF_UNROLL
    for (int j = 0; j < N; j++) {
        const i32 token = first_token + j * MF_MMA_COLS + LANE_ROW(lane);
        const mf_16b v = *(const mf_16b *)(tokens + x_offset(token, step, LANE_QUARTER(lane)));
        x[j][0] = v.x;
        x[j][1] = v.y;
        x[j][2] = v.z;
        x[j][3] = v.w;
    }
    u32 w[QN][LANE_ROWS][4];
    MF_UNROLL
    for (int i = 0; i < QN * LANE_ROWS; i++) {
        const int q = i / LANE_ROWS, r = i % LANE_ROWS;
        weights_of_step(held, ring, part, first_row, q, r, step, W_FACTOR(s, q, r, step), w[q][r]);
    }
    /* consecutive instructions use different accumulators, so that no instruction waits for the previous one
     */
#if GROUP_SUMS
    MF_UNROLL
    for (int i = 0; i < QN; i++) {
        float group[N][4] = {};
        MF_UNROLL
        for (int k = 0; k < INSTRUCTIONS * N; k++)
            multiply(group[k % N], w[i], x[k % N], k / N);
        MF_UNROLL
        for (int c = 0; c < 4; c++) {
            const float scale = mf_bf16(((const u16 *)s.of[i][c])[step]);
            MF_UNROLL
            for (int j = 0; j < N; j++)
                d[i][j][c] += group[j][c] * scale;
        }
    }
#else
    MF_UNROLL
    for (int k = 0; k < INSTRUCTIONS * QN * N; k++)
        multiply(d[k / N % QN][k % N], w[k / N % QN], x[k % N], k / N / QN);
#endif
}

template <int N>
MF_DEVICE void multiply_k_tile(raw &held, u8 *ring, const u8 *tokens, i32 first_row, i32 first_token,
                               const skews &skew, sums &d)
{
    MF_UNROLL
    for (int part = 0; part < MF_PARTS; part++) {
        struct scaled s;
        load_weights(ring, part, first_row, held);
        load_scales(ring, part, first_row, skew, &s);
        STEPS_LOOP
        for (int step = 0; step < 4; step++)
            multiply_step<N>(held, s, ring, tokens + part * TOKENS_STEP, part, step, first_row, first_token,
                             d);
    }
}

/* Factors of a whole sum: row_scale() depends on the weight row (narrow_scales.h), token_scale() on the
 * token. */
MF_DEVICE float row_scale(const mf_hip_mx_args &a, const struct tile &t, i32 r)
{
    return MF_W_GROUP > 0 || has_row(t.col, r) ? scale_of_row(a.tile, t.expert, weight_row(t.col, r)) : 0;
}
MF_DEVICE float token_scale(const mf_hip_mx_args &a, const struct tile &t, i32 token)
{
    return scale_of_token(a.tile, SCALED_BY_TOKEN ? row_of_token(a.tile, t.block, token) : 0);
}
MF_DEVICE void scale_whole(const mf_hip_mx_args &a, const struct tile &t, i32 first_row, i32 first_token,
                           sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    float rows[QN][2][1 + MF_MMA_ROW_STEP];
    MF_UNROLL
    for (int i = 0; i < QN * 2 * (1 + MF_MMA_ROW_STEP); i++) {
        const int q = i / 2 / (1 + MF_MMA_ROW_STEP), half = i % 2, c = i / 2 % (1 + MF_MMA_ROW_STEP);
        rows[q][half][c] =
            row_scale(a, t, first_row + q * 16 + mf_mma_row(lane) + c * MF_MMA_ROW_STEP + half * APART);
    }
    MF_UNROLL
    for (int j = 0; j < QM; j++) {
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const float token =
                token_scale(a, t, first_token + j * MF_MMA_COLS + mf_mma_col(lane) + c * MF_MMA_COL_STEP);
            MF_UNROLL
            for (int i = 0; i < QN; i++) {
                d[i][j][c] *= rows[i][0][c & MF_MMA_ROW_STEP] * token;
                d[i][j][c + 2] *= rows[i][1][c & MF_MMA_ROW_STEP] * token;
            }
        }
    }
}

/* State of the software pipeline. */
struct pipeline {
    u8 *ring;
    struct tile_source from;
    struct copies copies;
    i32 tile, end; /* tile that is being loaded; end of the block's range of tiles */
    i32 issued, consumed;
    bool other; /* selects one of the two buffers for bf16 tokens */
};
/* Starts the copies of one more K tile. If no K tile is left, commits an empty group of copies, so that the
 * number of groups equals the number of K tiles. */
MF_DEVICE void issue(struct pipeline *p, const mf_hip_mx_args &a)
{
    if (p->from.is_there) {
        copy_k_tile(&p->from, a, p->ring + p->issued * STAGE_BYTES, &p->copies);
        p->issued = p->issued + 1 == MF_STAGES ? 0 : p->issued + 1;
        if (++p->from.k_tile == K_TILES)
            set_tile(&p->from, a.tile, ++p->tile, p->end);
    }
    mf_copy_commit();
}
/* Multiplies a tile's weights by the tile's first N columns of tokens. */
template <int N>
MF_DEVICE void compute_tile(struct pipeline *p, const mf_hip_mx_args &a, const struct landing &x,
                            i32 first_row, i32 first_token, const skews &skew, sums &d)
{
    u8 *bf16_tokens = p->ring + MF_STAGES * STAGE_BYTES;
    raw held;
    MF_LOOP
    for (i32 k_tile = 0; k_tile < K_TILES; k_tile++) {
        u8 *ring = p->ring + p->consumed * STAGE_BYTES;
        u8 *tokens = BF16_TOKENS_BYTES ? bf16_tokens + (p->other ? BF16_TOKENS_BYTES / 2 : 0) : ring;
        p->consumed = p->consumed + 1 == MF_STAGES ? 0 : p->consumed + 1;
        p->other = !p->other;
        mf_copy_wait<AHEAD - 1>();
        finish_k_tile(&p->copies, ring, tokens, x, held);
        __syncthreads();
        issue(p, a);
        multiply_k_tile<N>(held, ring, tokens, first_row, first_token, skew, d);
    }
}

extern "C" __global__ void MF_BOUNDS(THREADS, MF_BLOCKS) mf_mx(const mf_hip_mx_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    if (MF_STAGE == 1)
        mf_begin();
    const i64 n_tiles = (i64)(a.tile.num_valid[0] / MF_BM) * TILES_N;
    /* the first blocks get one tile more than the others, so that few tiles are spread over all SMs */
    const i32 each = (i32)(n_tiles / gridDim.x), more = (i32)(n_tiles % gridDim.x);
    const i32 begin = (i32)blockIdx.x * each + MF_MIN((i32)blockIdx.x, more);
    const i32 end = begin + each + ((i32)blockIdx.x < more);
    const i32 wave = threadIdx.x / MF_WAVE;
    const i32 first_row = wave % MF_WARPS_N * WN, first_token = wave / MF_WARPS_N * WM;
    u16 *out = (u16 *)(lds + (OUT_IN_RING ? 0 : MF_STAGES * STAGE_BYTES + BF16_TOKENS_BYTES));
    struct pipeline pipeline;
    struct landing x;
    sums d;

    pipeline.ring = lds;
    pipeline.tile = begin;
    pipeline.end = end;
    pipeline.issued = pipeline.consumed = 0;
    pipeline.other = false;
    pipeline.from.is_there = false;
    x.block = -1;
    prefetch_and_begin(a.tile, begin / TILES_N, begin % TILES_N * COLS, begin < end, BYTES_W,
                       AHEAD * ROW_W * MF_PARTS);
    set_tile(&pipeline.from, a.tile, begin, end);
    for (int s = 0; s < AHEAD; s++)
        issue(&pipeline, a);
    for (i32 i = begin; i < end; i++) {
        const struct tile t = tile_at(i, a.tile.experts);
        skews skew;
        find_skews(t, first_row, skew);
        if (t.block != x.block)
            find_landing(a.tile, t.block, &x);
        clear(d);
        if (TRIMS && x.tokens == QM_LEAST * MF_MMA_COLS)
            compute_tile<QM_LEAST>(&pipeline, a, x, first_row, first_token, skew, d);
        else if (TRIMS && x.tokens == QM_HALF * MF_MMA_COLS)
            compute_tile<QM_HALF>(&pipeline, a, x, first_row, first_token, skew, d);
        else
            compute_tile<QM>(&pipeline, a, x, first_row, first_token, skew, d);
        scale_whole(a, t, first_row, first_token, d);
        if (OUT_IN_RING)
            __syncthreads();
        store_sums(a.tile, t, first_row, first_token, d, out);
        __syncthreads();
        store(a.tile, t, out);
        if (OUT_IN_RING)
            __syncthreads();
    }
    mf_copy_wait<0>();
}
