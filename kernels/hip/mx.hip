/* A stage of the two-stage grouped GEMM with weights of four bits: they stay as they are on their way through LDS and become
 * bf16 in the registers of the lane that multiplies them (narrow.h).
 *
 *   MF_W        FP4, INT4         MF_GROUP  elements of K under one scale: 32, 16; 0: a row's
 *   MF_STAGES   slices of the ring; MF_PARTS of 128 along K are a slice
 *   and what tile_parts.h and tile_waves.h say
 *
 * FP4's scales are powers of two, or e4m3: a weight under its scale is a bf16 without rounding, so that one multiplication
 * gives both. INT4's of a group are bf16: the sum of each group is scaled apart.
 *
 * Of 128 along K one quarter is a lane's, or a quarter of the lanes' (MFMA). Where weights are scaled as they come, that quarter
 * is a group of 32, so a lane has one scale, or two, for its row; where sums are scaled, the lanes have eight of each group, one
 * group after the other. Either way the products take four steps of eight from each lane, and tokens lie in LDS as steps want
 * them: chunk step · 4 + quarter, the halves of pairs of rows exchanged so that lanes touch all banks.
 *
 *   lds: ring[MF_STAGES] of MF_PARTS x { tokens [BM][256], weights [BN][64], scales [BN] } | out bf16 [BM][COLS + 8]
 *
 * Where copies wait in registers until they land (MF_COPY_HELD), the weights do not go through the ring. */
#include "dialect.h"
#include "narrow.h"
#include "tile_waves.h"

#define FP4  0
#define INT4 1

#define PART       128                    /* of K */
#define QUARTER    32
#define SLICE_K    (PART * MF_PARTS)
#define SLICES     MF_CEIL(MF_D, SLICE_K)
#define SUMS_APART (MF_W == INT4 && MF_GROUP > 0)
/* Where a step needs nothing of the others, one after the other keeps registers for blocks. */
#if SUMS_APART && !defined(MF_COPY_HELD)
#    define STEPS_LOOP MF_NO_UNROLL
#else
#    define STEPS_LOOP MF_UNROLL
#endif
#define ROW_X      (PART * 2)             /* bytes of a part */
#define ROW_W      (PART / 2)
#define AHEAD      (MF_STAGES - 1)

/* Scales of a row in memory, and those of a part as words: they may begin within one. */
#define SCALE_BYTES  (MF_W == INT4 ? 2 : 1)
#define SCALES_ROW   (MF_GROUP == 0 ? 0 : MF_D / MF_MAX(MF_GROUP, 1) * SCALE_BYTES)
#define SCALES_PART  (MF_GROUP == 0 ? 0 : PART / MF_MAX(MF_GROUP, 1) * SCALE_BYTES)
#define SCALES_SKEW  (SCALES_ROW % 4 != 0)
#define SCALES_WORDS (SCALES_PART / 4 + SCALES_SKEW)

#ifdef MF_COPY_HELD
#    define RING_OF_W 0
#else
#    define RING_OF_W (MF_BN * ROW_W)
#endif
#define PART_BYTES (MF_BM * ROW_X + RING_OF_W + MF_BN * SCALES_WORDS * 4)
#define RING_BYTES (PART_BYTES * MF_PARTS)

/* Rows of 16 that a lane has weights of, its first one, its quarter of K, and its token. */
#if MF_MMA_COLS == 8
#    define LANE_ROWS 2
#    define LANE_ROW(lane)     ((lane) >> 2)
#    define LANE_QUARTER(lane) ((lane) & 3)
#else
#    define LANE_ROWS 1
#    define LANE_ROW(lane)     ((lane) & 15)
#    define LANE_QUARTER(lane) ((lane) >> 4)
#endif

#define X_CHUNKS (16 * MF_PARTS) /* of a row and slice */
#define X_STEP   (THREADS / X_CHUNKS)
#define X_PASSES MF_CEIL(MF_BM, X_STEP)
#define W_CHUNKS (4 * MF_PARTS)
#define W_STEP   (THREADS / W_CHUNKS)
#define W_PASSES (MF_BN / W_STEP)
#define S_WORDS  (MF_BN * SCALES_WORDS * MF_PARTS)
#define S_PASSES MF_CEIL(S_WORDS, THREADS)

MF_DEVICE u8 *tokens_of(u8 *ring, i32 part)
{
    return ring + part * PART_BYTES;
}
MF_DEVICE u8 *weights_of(u8 *ring, i32 part)
{
    return tokens_of(ring, part) + MF_BM * ROW_X;
}
MF_DEVICE u8 *scales_of(u8 *ring, i32 part)
{
    return weights_of(ring, part) + RING_OF_W;
}

/* Where eight tokens' elements of step and quarter are; and chunk c of a row of weights. */
MF_DEVICE i32 place_of_x(i32 token, i32 step, i32 quarter)
{
    return token * ROW_X + (((step * 4 + quarter) ^ ((token & 1) << 2)) << 4);
}
MF_DEVICE i32 place_of_w(i32 row, i32 c)
{
    return row * ROW_W + ((SUMS_APART ? c ^ ((row >> 1) & 3) : c) << 4);
}

/* What a thread knows of the tile that it is copying. */
struct source {
    struct tile tile;
    bool is_there;
    u32 x[X_PASSES]; /* where its chunks are, in 16 bytes; ~0: padding */
    const u8 *w;     /* its first row */
    i32 slice;
};

/* The first weight row of a slice that a thread copies, and how far along K. */
MF_DEVICE i32 first_row_of_w()
{
#ifdef MF_COPY_HELD
    return (i32)(threadIdx.x / MF_WAVE) % MF_WARPS_N * WN + LANE_ROW(threadIdx.x % MF_WAVE);
#else
    return threadIdx.x / W_CHUNKS;
#endif
}

/* Turns to tile i; the tokens of the same expert block stay where they are. */
MF_DEVICE void aim(struct source *s, const mf_hip_tile_args &a, i32 i, i32 end)
{
    const i32 row = threadIdx.x / X_CHUNKS, chunk = threadIdx.x % X_CHUNKS;
    const i32 before = s->is_there ? s->tile.block : -1;
    s->slice = 0;
    s->is_there = i < end;
    if (!s->is_there)
        return;
    s->tile = tile_at(i, a.experts);
    s->w = (const u8 *)a.w +
           ((i64)s->tile.expert * ROWS_OF_W + weight_row(s->tile.col, first_row_of_w())) * (MF_D / 2);
    if (s->tile.block == before)
        return;
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const i32 r = row + p * X_STEP;
        s->x[p] = ~0u;
        if (r < MF_BM) {
            const i64 at = (i64)s->tile.block * MF_BM + r;
            const i32 token = mf_id_token(a.sorted_ids[at]);
            if (token < a.token)
                s->x[p] = (u32)((MF_STAGE == 1 ? (i64)token : at) * (MF_D / 8) + chunk);
        }
    }
}

/* What a thread holds of a slice that is on its way; weights of one that has come. */
typedef u32 raw[MF_PARTS][QN][LANE_ROWS][4];
struct way {
    mf_copy_16 x[X_PASSES];
    mf_copy_4 scale[S_PASSES + 1];
#ifdef MF_COPY_HELD
    mf_copy_16 w[MF_PARTS][QN];
    mf_copy_4 step[MF_PARTS][QN][4];
#endif
};

/* Word i of the slice's scales: its row and what it is of the row's; where it lies in the ring. */
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
/* The first byte of a row's scales, of those of all experts. */
MF_DEVICE i64 scale_at(const struct tile &t, i32 row)
{
    return ((i64)t.expert * ROWS_OF_W + weight_row(t.col, row)) * SCALES_ROW;
}

MF_DEVICE void copy_scales(const struct source *s, const mf_hip_mx_args &a, u8 *ring, struct way *way)
{
    MF_UNROLL
    for (int p = 0; p < S_PASSES; p++) {
        const i32 i = threadIdx.x + p * THREADS;
        const scale_word w = scale_word_of(i);
        const i64 first = scale_at(s->tile, w.row) + (s->slice * MF_PARTS + w.part) * SCALES_PART;
        const u8 *from = (const u8 *)a.tile.w_scale + (first & ~(i64)3) + w.word * 4;
        if (i < S_WORDS)
            mf_copy_ask_4(way->scale[p], scales_of(ring, w.part) + (w.row * SCALES_WORDS + w.word) * 4,
                          from, is_column(s->tile.col, w.row) && from + 4 <= a.w_scale_end);
    }
}

MF_DEVICE void copy_weights(const struct source *s, u8 *ring, struct way *way)
{
    const i32 row = first_row_of_w();
    const u8 *from = s->w + s->slice * (ROW_W * MF_PARTS);
#ifdef MF_COPY_HELD
    const i32 quarter = LANE_QUARTER(threadIdx.x % MF_WAVE);
    MF_UNROLL
    for (int part = 0; part < MF_PARTS; part++) {
        const i32 k = (s->slice * MF_PARTS + part) * PART;
        MF_UNROLL
        for (int i = 0; i < QN; i++) {
            const u8 *w = from + (i64)(weight_row(0, row + i * 16) - weight_row(0, row)) * (MF_D / 2) + part * ROW_W;
            const bool there = is_column(s->tile.col, row + i * 16);
            if (!SUMS_APART)
                mf_copy_ask_16(way->w[part][i], nullptr, w + quarter * 16, there && k + quarter * QUARTER < MF_D);
            MF_UNROLL
            for (int step = 0; step < (SUMS_APART ? 4 : 0); step++)
                mf_copy_ask_4(way->step[part][i][step], nullptr, w + step * 16 + quarter * 4, there && k + step * QUARTER < MF_D);
        }
    }
    (void)ring;
#else
    const i32 chunk = threadIdx.x % W_CHUNKS;
    const bool within = s->slice * SLICE_K + chunk * QUARTER < MF_D;
    u8 *to = weights_of(ring, chunk / 4);
    MF_UNROLL
    for (int p = 0; p < W_PASSES; p++) {
        const i32 r = row + p * W_STEP;
        const i64 further = (i64)(weight_row(0, r) - weight_row(0, row)) * (MF_D / 2);
        mf_copy_async_16(to + place_of_w(r, chunk % 4), from + further + chunk * 16, within && is_column(s->tile.col, r));
    }
    (void)way;
#endif
}

/* Where this thread's chunk of a token goes. */
MF_DEVICE u8 *place_of_chunk(u8 *ring, i32 token)
{
    const i32 chunk = threadIdx.x % X_CHUNKS, c = chunk % 16;
    return tokens_of(ring, chunk / 16) + place_of_x(token, SUMS_APART ? c / 4 : c % 4, SUMS_APART ? c % 4 : c / 4);
}

/* Asks for the next slice of the source's tile. */
MF_DEVICE void copy_slice(const struct source *s, const mf_hip_mx_args &a, u8 *ring, struct way *way)
{
    const i32 row = threadIdx.x / X_CHUNKS, chunk = threadIdx.x % X_CHUNKS;
    const bool within = s->slice * SLICE_K + chunk * 8 < MF_D;
    const u8 *x = (const u8 *)a.tile.x + s->slice * (SLICE_K * 2);
    copy_weights(s, ring, way);
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const bool there = within && s->x[p] != ~0u;
        if (row + p * X_STEP < MF_BM)
            mf_copy_ask_16(way->x[p], place_of_chunk(ring, row + p * X_STEP), x + (there ? (u64)s->x[p] * 16 : 0), there);
    }
    copy_scales(s, a, ring, way);
}

/* The oldest slice on its way lands in its place, tokens in the order of narrow.h. */
MF_DEVICE void land_slice(const struct way *way, u8 *ring, raw &held)
{
    const i32 row = threadIdx.x / X_CHUNKS;
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        if (row + p * X_STEP < MF_BM) {
            mf_16b *place = (mf_16b *)place_of_chunk(ring, row + p * X_STEP);
#ifdef MF_COPY_HELD
            u32 v[4];
            mf_copy_take_16(way->x[p], v);
            *place = mf_bf16_as_narrow(mf_16b{v[0], v[1], v[2], v[3]});
#else
            *place = mf_bf16_as_narrow(*place);
#endif
        }
    }
#ifdef MF_COPY_HELD
    MF_UNROLL
    for (int i = 0; i < MF_PARTS * QN; i++) {
        if (!SUMS_APART)
            mf_copy_take_16(way->w[i / QN][i % QN], held[i / QN][i % QN][0]);
        MF_UNROLL
        for (int step = 0; step < (SUMS_APART ? 4 : 0); step++)
            held[i / QN][i % QN][0][step] = mf_copy_take_4(way->step[i / QN][i % QN][step]);
    }
    MF_UNROLL
    for (int p = 0; p < S_PASSES; p++) {
        const i32 i = threadIdx.x + p * THREADS;
        const scale_word w = scale_word_of(i);
        if (i < S_WORDS)
            mf_copy_land_4(way->scale[p], scales_of(ring, w.part) + (w.row * SCALES_WORDS + w.word) * 4);
    }
#else
    (void)held;
#endif
}

/* The lane's weights of a part, as they are; steps load their own where each has a word of its own. */
MF_DEVICE void load_weights(u8 *ring, i32 part, i32 first_row, raw &held)
{
#if !defined(MF_COPY_HELD) && !SUMS_APART
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int i = 0; i < QN * LANE_ROWS; i++) {
        const i32 row = first_row + i / LANE_ROWS * 16 + LANE_ROW(lane) + i % LANE_ROWS * 8;
        u32(&to)[4] = held[part][i / LANE_ROWS][i % LANE_ROWS];
        const mf_16b v = *(const mf_16b *)(weights_of(ring, part) + place_of_w(row, LANE_QUARTER(lane)));
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    }
#else
    (void)ring, (void)part, (void)first_row, (void)held;
#endif
}
/* Those of a step: of row r of the i-th sixteen. */
MF_DEVICE u32 weights_of_step(const raw &held, u8 *ring, i32 part, i32 first_row, int i, int r, int step)
{
#if !defined(MF_COPY_HELD) && SUMS_APART
    const i32 lane = threadIdx.x % MF_WAVE, row = first_row + i * 16 + LANE_ROW(lane) + r * 8;
    (void)held;
    return *(const u32 *)(weights_of(ring, part) + place_of_w(row, step) + LANE_QUARTER(lane) * 4);
#else
    (void)ring, (void)first_row;
    return held[part][i][r][step];
#endif
}

#if MF_W == FP4
/* Weights are made smaller by so much, lest the factor that also undoes e2m1's 2^-126 overflows: scales go up to 2^33, and down to
 * 2^-93 before a bf16 would be a subnormal. Of e4m3 16 is enough. */
#    define SMALLER (MF_GROUP == 32 ? 32 : 16)

/* The factors of the lane's halves of a row's quarter. */
MF_DEVICE void load_factors(const u8 *scales, u32 (&ret)[2])
{
    const i32 quarter = LANE_QUARTER(threadIdx.x % MF_WAVE);
#    if MF_GROUP == 32
    const u32 power = scales[quarter] + 126 - SMALLER;
    ret[0] = ret[1] = MF_MIN(power, 255u) * 0x00800080u;
#    else
    const u32 two = mf_fp8_to_f16_pair(*(const u16 *)(scales + quarter * 2), 0);
    ret[0] = mf_bf16_both(mf_f16_low(two) * 0x1p110f);
    ret[1] = mf_bf16_both(mf_f16_high(two) * 0x1p110f);
#    endif
}
#endif

/* Where in its first word a row's scales begin, of each row of a lane. */
#if SUMS_APART
#    define SCALED_ROWS 4
#else
#    define SCALED_ROWS LANE_ROWS
#endif
typedef i32 skews[QN][SCALED_ROWS];
/* Row i of those of 16 from first_row on that a lane has scales for: that of its sum i, or of its weights i. */
MF_DEVICE i32 scaled_row(i32 first_row, int i)
{
    const i32 lane = threadIdx.x % MF_WAVE;
#if SUMS_APART
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

/* A part's scales for a lane: factors of its weights, by halves of its quarter, or bytes to read those of its sums from. */
struct scaled {
#if SUMS_APART
    const u8 *of[QN][SCALED_ROWS];
#elif MF_W == FP4
    u32 of[QN][SCALED_ROWS][2];
#endif
};
MF_DEVICE void load_scales(u8 *ring, i32 part, i32 first_row, const skews &skew, struct scaled *ret)
{
#if MF_GROUP > 0
    MF_UNROLL
    for (int i = 0; i < QN * SCALED_ROWS; i++) {
        const int q = i / SCALED_ROWS, r = i % SCALED_ROWS;
        const u8 *scales =
            scales_of(ring, part) + scaled_row(first_row + q * 16, r) * SCALES_WORDS * 4 + skew[q][r];
#    if SUMS_APART
        ret->of[q][r] = scales;
#    else
        load_factors(scales, ret->of[q][r]);
#    endif
    }
#else
    (void)ring, (void)part, (void)first_row, (void)skew, (void)ret;
#endif
}

/* Adds the products of 16 weight rows with eight of K from each lane. */
MF_DEVICE void multiply(float (&d)[4], const u32 (&w)[LANE_ROWS][4], const u32 (&x)[4])
{
#if MF_MMA_COLS == 8
    MF_UNROLL
    for (int i = 0; i < 4; i += 2) {
        const u32 a[4] = {w[0][i], w[1][i], w[0][i + 1], w[1][i + 1]}, b[2] = {x[i], x[i + 1]};
        mf_mma_bf16(d, a, b);
    }
#else
    mf_mma_bf16(d, w[0], x);
#endif
}

/* A step along K: eight of it from each lane. */
MF_DEVICE void multiply_step(const raw &held, const struct scaled &s, u8 *ring, i32 part, int step, i32 first_row,
                             i32 first_token, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    u32 x[QM][4];
    MF_UNROLL
    for (int j = 0; j < QM; j++) {
        const i32 token = first_token + j * MF_MMA_COLS + LANE_ROW(lane);
        const mf_16b v = *(const mf_16b *)(tokens_of(ring, part) + place_of_x(token, step, LANE_QUARTER(lane)));
        x[j][0] = v.x;
        x[j][1] = v.y;
        x[j][2] = v.z;
        x[j][3] = v.w;
    }
    MF_UNROLL
    for (int i = 0; i < QN; i++) {
        u32 w[LANE_ROWS][4];
        MF_UNROLL
        for (int r = 0; r < LANE_ROWS; r++)
#if MF_W == FP4
            mf_fp4_to_bf16(weights_of_step(held, ring, part, first_row, i, r, step), s.of[i][r][step / 2], w[r]);
#else
            mf_int4_to_bf16(weights_of_step(held, ring, part, first_row, i, r, step), w[r]);
#endif
#if SUMS_APART
        float scale[4];
        MF_UNROLL
        for (int c = 0; c < 4; c++)
            scale[c] = mf_bf16(((const u16 *)s.of[i][c])[step]);
#endif
        MF_UNROLL
        for (int j = 0; j < QM; j++) {
#if SUMS_APART
            float group[4] = {0, 0, 0, 0};
            multiply(group, w, x[j]);
            MF_UNROLL
            for (int c = 0; c < 4; c++)
                d[i][j][c] += group[c] * scale[c];
#else
            multiply(d[i][j], w, x[j]);
#endif
        }
    }
}

MF_DEVICE void multiply_slice(raw &held, u8 *ring, i32 first_row, i32 first_token, const skews &skew, sums &d)
{
    MF_UNROLL
    for (int part = 0; part < MF_PARTS; part++) {
        struct scaled s;
        load_weights(ring, part, first_row, held);
        load_scales(ring, part, first_row, skew, &s);
        STEPS_LOOP
        for (int step = 0; step < 4; step++)
            multiply_step(held, s, ring, part, step, first_row, first_token, d);
    }
}

/* What scales a whole sum. */
MF_DEVICE void scale_whole(const mf_hip_mx_args &a, const struct tile &t, i32 first_row, sums &d)
{
#if MF_GROUP == 0
    const i32 lane = threadIdx.x % MF_WAVE;
    const float *w = a.tile.w_scale + (i64)t.expert * ROWS_OF_W;
#elif MF_W == FP4
    const float by = MF_GROUP == 32 ? 0x1p32f : mf_divide(65536.0f, a.w_global[t.expert]);
#endif
    MF_UNROLL
    for (int i = 0; i < QN * 4; i++) {
#if MF_GROUP == 0
        const int c = i % 4;
        const i32 r = first_row + i / 4 * 16 + mf_mma_row(lane) + c % 2 * MF_MMA_ROW_STEP + c / 2 * APART;
        const float by = is_column(t.col, r) ? w[weight_row(t.col, r)] : 0;
#elif SUMS_APART
        const float by = 1;
#endif
        MF_UNROLL
        for (int j = 0; j < QM; j++)
            d[i / 4][j][i % 4] *= by;
    }
    (void)a, (void)t, (void)first_row;
}

extern "C" __global__ void MF_BOUNDS(THREADS, MF_BLOCKS) mf_mx(const mf_hip_mx_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    const i64 n_tiles = (i64)(a.tile.num_valid[0] / MF_BM) * TILES_N;
    /* the first blocks have one more, so that few tiles are spread over all units */
    const i32 each = (i32)(n_tiles / gridDim.x), more = (i32)(n_tiles % gridDim.x);
    const i32 begin = (i32)blockIdx.x * each + MF_MIN((i32)blockIdx.x, more);
    const i32 end = begin + each + ((i32)blockIdx.x < more);
    const i32 wave = threadIdx.x / MF_WAVE;
    const i32 first_row = wave % MF_WARPS_N * WN, first_token = wave / MF_WARPS_N * WM;
    u16 *out = (u16 *)(lds + (OUT_IN_RING ? 0 : MF_STAGES * RING_BYTES));
    struct way way;
    raw held;
    struct source from;
    i32 asked_tile = begin, asked = 0, used = 0;
    sums d;

    from.is_there = false;
    aim(&from, a.tile, asked_tile, end);
    /* One more slice is on its way, or one more empty group, so that groups count slices. */
#define ASK()                                                     \
    do {                                                          \
        if (from.is_there) {                                      \
            copy_slice(&from, a, lds + asked * RING_BYTES, &way); \
            asked = asked + 1 == MF_STAGES ? 0 : asked + 1;       \
            if (++from.slice == SLICES)                           \
                aim(&from, a.tile, ++asked_tile, end);            \
        }                                                         \
        mf_copy_commit();                                         \
    } while (0)
    for (int s = 0; s < AHEAD; s++)
        ASK();
    for (i32 i = begin; i < end; i++) {
        const struct tile t = tile_at(i, a.tile.experts);
        skews skew;
        find_skews(t, first_row, skew);
        clear(d);
        MF_LOOP
        for (i32 slice = 0; slice < SLICES; slice++) {
            u8 *ring = lds + used * RING_BYTES;
            used = used + 1 == MF_STAGES ? 0 : used + 1;
            mf_copy_wait<AHEAD - 1>();
            land_slice(&way, ring, held);
            __syncthreads();
            ASK();
            multiply_slice(held, ring, first_row, first_token, skew, d);
        }
        scale_whole(a, t, first_row, d);
        if (OUT_IN_RING)
            __syncthreads();
        leave(a.tile, t, first_row, first_token, d, out);
        __syncthreads();
        store(a.tile, t, out);
        if (OUT_IN_RING)
            __syncthreads();
    }
    mf_copy_wait<0>();
}
