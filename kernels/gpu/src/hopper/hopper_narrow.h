/* The waves of mx_hopper.hip that bring weights of four bits, and tokens as bf16.
 *
 * A slice is 128 along K: rows of 64 bytes of weights in bulk, as they lie in memory, their scales by words, and tokens that
 * each thread loads, makes bf16, turns and puts where the matrix instructions read them. What the instruction's column 2 i + 8 c, and the
 * next, of step 2 j + h are to the product is free as long as weights and tokens agree, and is what a lane has: of the quarter
 * 32 t along K of lane t elements 8 j + 2 h + c and, four behind it, the order in which narrow.h makes weights bf16. So sixteen
 * bytes of tokens, in rows of 128 whose chunks lie at chunk ^ (row % 8), have a word of each quarter: chunk 4 j + 2 h + c. */
#pragma once

#define LOADS MF_CEIL(MF_BM, 32) /* of a thread and slice, of four chunks: 32 tokens by four of j */
/* Bytes of scales of a token's row, and of a quarter. */
#define X_SCALES  (X_QUARTER * (MF_D / QUARTER))
#define X_QUARTER (MF_X == BF16 || MF_X_GROUP == 0 ? 0 : QUARTER / MF_MAX(MF_X_GROUP, 1))
#define S_WORDS   (MF_BN * SCALES_WORDS)
#define S_LOADS   MF_CEIL(S_WORDS, GROUP)

/* Of the lanes that write at once four have neighbouring tokens, and two neighbours along K: they touch all banks. */
MF_DEVICE i32 my_token(int p)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    return p * 32 + threadIdx.x % GROUP / MF_WAVE * 8 + (lane >> 4) * 4 + (lane >> 1 & 3);
}
MF_DEVICE i32 my_step()
{
    const i32 lane = threadIdx.x % MF_WAVE;
    return (lane & 1) | (lane >> 2 & 2);
}

/* The rows of x that a thread has of a block; ~0: padding. */
struct rows {
    u32 at[LOADS];
};
MF_DEVICE void find_rows(const mf_hip_tile_args &a, i32 block, rows &ret)
{
    MF_UNROLL
    for (int p = 0; p < LOADS; p++) {
        const i64 at = (i64)block * MF_BM + my_token(p);
        const i32 token = my_token(p) < MF_BM ? mf_id_token(a.sorted_ids[at]) : a.token;
        ret.at[p] = token < a.token ? (MF_STAGE == 1 ? (u32)token : (u32)at) : ~0u;
    }
}

/* Tokens on their way to a slice: eight elements of each quarter, and the quarter's scales. */
struct tokens {
    u32 eight[LOADS][4][X_BITS / 4], scale[LOADS][4];
    u32 there; /* a bit of each load */
};
MF_DEVICE void load_tokens(const mf_hip_tile_args &a, const rows &from, i32 slice, tokens &ret)
{
    ret.there = 0;
    MF_UNROLL
    for (int p = 0; p < LOADS; p++) {
        if (from.at[p] == ~0u)
            continue;
        ret.there |= 1u << p;
        const u8 *x =
            (const u8 *)a.x + (u64)(from.at[p] * (MF_D / 8) + slice * (PART / 8) + my_step()) * X_BITS;
        const u8 *scales = (const u8 *)a.x_scale + (u64)from.at[p] * X_SCALES + slice * (4 * X_QUARTER);
        MF_UNROLL
        for (int t = 0; t < 4; t++) {
            const bool within = MF_D % PART == 0 || slice * PART + t * QUARTER < MF_D;
            u32(&v)[X_BITS / 4] = ret.eight[p][t];
            if (!within) {
                MF_UNROLL
                for (int i = 0; i < X_BITS / 4; i++)
                    v[i] = 0;
                ret.scale[p][t] = 0;
                continue;
            }
#if MF_X == BF16
            const mf_16b w = mf_load_once(x + t * 64);
            v[0] = w.x;
            v[1] = w.y;
            v[2] = w.z;
            v[3] = w.w;
#elif MF_X == FP8
            const mf_8b w = *(const mf_8b *)(x + t * 32);
            v[0] = w.x;
            v[1] = w.y;
#else
            v[0] = *(const u32 *)(x + t * 16);
#endif
            if (X_QUARTER > 0)
                ret.scale[p][t] = X_QUARTER == 2 ? *(const u16 *)(scales + t * 2) : scales[t];
        }
    }
}
MF_DEVICE void put_tokens(const tokens &x, u8 *to)
{
    const i32 j = my_step();
    MF_UNROLL
    for (int p = 0; p < LOADS; p++) {
        if (!(x.there >> p & 1))
            continue;
        const i32 token = my_token(p);
        u8 *row = to + (j >> 1) * (MF_BM * 128) + token * 128;
        u32 v[4][4];
        MF_UNROLL
        for (int t = 0; t < 4; t++) {
            const u32 *of = x.eight[p][t];
#if MF_X == BF16
            const mf_16b w = mf_bf16_as_narrow(mf_16b{of[0], of[1], of[2], of[3]});
            v[0][t] = w.x;
            v[1][t] = w.y;
            v[2][t] = w.z;
            v[3][t] = w.w;
#else
            u32 factor[2], w[4];
            factors_of_x(x.scale[p][t], factor);
            eight_of_x(of, j < 2 ? factor[0] : factor[1], w);
            MF_UNROLL
            for (int i = 0; i < 4; i++)
                v[i][t] = w[i];
#endif
        }
        MF_UNROLL
        for (int i = 0; i < 4; i++)
            *(mf_16b *)(row + ((((j & 1) * 4 + i) ^ (token & 7)) << 4)) =
                mf_16b{v[i][0], v[i][1], v[i][2], v[i][3]};
    }
}

/* The weight row that is row r of a tile, of its expert's; whether there is one. */
MF_DEVICE i32 weight_row(i32 col, i32 r)
{
    return MF_HALVES == 2 ? row_of(col + (r >> 4) * 8 + (r & 7), r & 8) : col + r;
}
MF_DEVICE bool has_row(i32 col, i32 r)
{
    return MF_N % COLS == 0 || (MF_HALVES == 2 ? col + (r >> 4) * 8 + (r & 7) : col + r) < MF_N;
}
MF_DEVICE i64 scale_at(i32 expert, i32 row)
{
    return ((i64)expert * ROWS_OF_W + row) * SCALES_ROW;
}

/* A thread's words of scales of the first slice, in words from the first of all; ~0: none. */
struct scale_words {
    u32 at[S_LOADS + 1];
};
MF_DEVICE void find_scales(i32 expert, i32 col, scale_words &ret)
{
    MF_UNROLL
    for (int p = 0; p < S_LOADS; p++) {
        const i32 i = threadIdx.x % GROUP + p * GROUP, row = i / MF_MAX(SCALES_WORDS, 1);
        ret.at[p] = i < S_WORDS && has_row(col, row)
                        ? (u32)(scale_at(expert, weight_row(col, row)) / 4) + i % MF_MAX(SCALES_WORDS, 1)
                        : ~0u;
    }
}
MF_DEVICE void copy_scales(const mf_hip_bulk_args &a, const scale_words &words, i32 slice, u8 *to)
{
    MF_UNROLL
    for (int p = 0; p < S_LOADS; p++) {
        const i32 i = threadIdx.x % GROUP + p * GROUP;
        const u8 *from = (const u8 *)a.tile.w_scale + (u64)words.at[p] * 4 + slice * SCALES_PART;
        const bool there = words.at[p] != ~0u && (SCALES_END_WITHIN || from < (const u8 *)a.w_scale_end);
        if (S_WORDS % GROUP == 0 || i < S_WORDS)
            mf_copy_async_4(to + i * 4, there ? from : (const u8 *)a.tile.w_scale, there);
    }
}

MF_DEVICE void bring(const mf_hip_bulk_args &a, ring r, i32 n_blocks)
{
    const i32 me = threadIdx.x % GROUP, n_tiles = n_blocks * TILES_N;
    const mf_hip_tile_args &t = a.tile;
    rows row;
    tokens x;
    if ((i32)blockIdx.x >= n_tiles)
        return;
    spot now = spot_of(t, n_blocks, blockIdx.x);
    find_rows(t, now.block, row);
    load_tokens(t, row, 0, x);
    for (i32 i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        scale_words words;
        const i32 expert = t.experts[now.block], col = now.col;
        const bool is_last = i + (i32)gridDim.x >= n_tiles;
        find_scales(expert, col, words);
        for (i32 slice = 0; slice < SLICES; slice++, r.at++) {
            u8 *to = slice_of(r), *tokens = to + MF_BN * W_SLICE;
            u64 *full = r.full + r.at % MF_STAGES;
            wait_empty(r);
            if (me == 0) {
                mf_barrier_expect(full, MF_BN * W_SLICE);
                mf_bulk_load_5(to, &a.w.map, full, mf_corner_of(&a.w, slice, col, expert), false);
            }
            copy_scales(a, words, slice, tokens + MF_BM * X_SLICE);
            mf_barrier_arrive_copied(full);
            put_tokens(x, tokens);
            mf_async_fence();
            mf_barrier_arrive(full);
            if (slice + 1 < SLICES) {
                load_tokens(t, row, slice + 1, x);
            } else if (!is_last) {
                now = spot_of(t, n_blocks, i + gridDim.x);
                find_rows(t, now.block, row);
                load_tokens(t, row, 0, x);
            }
        }
    }
    mf_copy_commit();
    mf_copy_wait<0>();
}
