/* Producer warpgroup of mx_hopper.hip. It loads 4-bit weights as they are stored, and tokens as bf16.
 *
 * A K tile is 128 elements. It consists of weights, scales and tokens. The weights are rows of 64 bytes,
 * which TMA loads copy in their global layout. The scales are copied by 4-byte cp.async. Each thread loads
 * tokens, converts them to bf16, reorders them and stores them in the layout that WGMMA reads.
 *
 * The K order within a K tile is free as long as weights and tokens agree. Of each four lanes, lane t has
 * quarter t of the K tile, which begins at element 32t. Columns 2t + 8c and 2t + 8c + 1 of WGMMA step 2j + h
 * hold elements 8j + 2h + c and 8j + 2h + c + 4 of quarter t, because narrow.h produces this order. A token
 * has two rows of 128 bytes in shared memory, and chunk i of a row is stored at i ^ (row % 8). Hence the
 * sixteen bytes of the token's chunk 4j + 2h + c contain one word of each quarter. */
#pragma once

/* number of loads per thread and K tile, each of four chunks; one load of all threads covers 32 tokens by
 * four values of j */
#define LOADS MF_CEIL(MF_BM, 32)
/* Bytes of the scales of a token's whole row, and of a quarter of a K tile. */
#define X_SCALES  (X_QUARTER * (MF_D / QUARTER))
#define X_QUARTER (MF_X == BF16 || MF_X_GROUP == 0 ? 0 : QUARTER / MF_MAX(MF_X_GROUP, 1))
#define S_WORDS   (MF_BN * SCALES_WORDS)
#define S_LOADS   MF_CEIL(S_WORDS, WARPGROUP)

/* my_token() and my_step() return the position of the data that a thread loads and stores. Lanes that store
 * at the same time have four adjacent tokens and two adjacent positions along K, which avoids bank conflicts.
 */
MF_DEVICE i32 my_token(int p)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    return p * 32 + threadIdx.x % WARPGROUP / MF_WAVE * 8 + (lane >> 4) * 4 + (lane >> 1 & 3);
}
MF_DEVICE i32 my_step()
{
    const i32 lane = threadIdx.x % MF_WAVE;
    return (lane & 1) | (lane >> 2 & 2);
}

/* Rows of x that a thread loads for a block; ~0 for padding. */
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

/* Token data in flight: eight elements of each quarter, and the scales of the quarters. */
struct tokens {
    u32 eight[LOADS][4][X_BITS / 4], scale[LOADS][4];
    u32 there; /* bit mask of the loads that are not padding */
};
MF_DEVICE void load_tokens(const mf_hip_tile_args &a, const rows &from, i32 k_tile, tokens &ret)
{
    ret.there = 0;
    MF_UNROLL
    for (int p = 0; p < LOADS; p++) {
        if (from.at[p] == ~0u)
            continue;
        ret.there |= 1u << p;
        const u8 *x =
            (const u8 *)a.x + (u64)(from.at[p] * (MF_D / 8) + k_tile * (PART / 8) + my_step()) * X_BITS;
        const u8 *scales = (const u8 *)a.x_scale + (u64)from.at[p] * X_SCALES + k_tile * (4 * X_QUARTER);
        MF_UNROLL
        for (int t = 0; t < 4; t++) {
            const bool within = MF_D % PART == 0 || k_tile * PART + t * QUARTER < MF_D;
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
MF_DEVICE void store_tokens(const tokens &x, u8 *to)
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

/* weight_row() returns the row of the expert's weights that is row r of a tile. has_row() returns true if
 * this row exists. */
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

/* Offsets of the scale words that a thread copies for the first K tile, in words from the start of all
 * scales; ~0 if there is no word. */
struct scale_words {
    u32 at[S_LOADS + 1];
};
MF_DEVICE void find_scales(i32 expert, i32 col, scale_words &ret)
{
    MF_UNROLL
    for (int p = 0; p < S_LOADS; p++) {
        const i32 i = threadIdx.x % WARPGROUP + p * WARPGROUP, row = i / MF_MAX(SCALES_WORDS, 1);
        ret.at[p] = i < S_WORDS && has_row(col, row)
                        ? (u32)(scale_at(expert, weight_row(col, row)) / 4) + i % MF_MAX(SCALES_WORDS, 1)
                        : ~0u;
    }
}
MF_DEVICE void copy_scales(const mf_hip_bulk_args &a, const scale_words &words, i32 k_tile, u8 *to)
{
    MF_UNROLL
    for (int p = 0; p < S_LOADS; p++) {
        const i32 i = threadIdx.x % WARPGROUP + p * WARPGROUP;
        const u8 *from = (const u8 *)a.tile.w_scale + (u64)words.at[p] * 4 + k_tile * SCALES_PART;
        const bool there = words.at[p] != ~0u && (SCALES_END_WITHIN || from < (const u8 *)a.w_scale_end);
        if (S_WORDS % WARPGROUP == 0 || i < S_WORDS)
            mf_copy_async_4(to + i * 4, there ? from : (const u8 *)a.tile.w_scale, there);
    }
}

MF_DEVICE void produce(const mf_hip_bulk_args &a, ring r, i32 n_blocks)
{
    const i32 me = threadIdx.x % WARPGROUP, n_tiles = n_blocks * TILES_N;
    const mf_hip_tile_args &t = a.tile;
    rows row;
    tokens x;
    if ((i32)blockIdx.x >= n_tiles)
        return;
    tile_coord now = tile_coord_of(t, n_blocks, blockIdx.x);
    find_rows(t, now.block, row);
    load_tokens(t, row, 0, x);
    for (i32 i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        scale_words words;
        const i32 expert = t.experts[now.block], col = now.col;
        const bool is_last = i + (i32)gridDim.x >= n_tiles;
        find_scales(expert, col, words);
        for (i32 k_tile = 0; k_tile < K_TILES; k_tile++, r.at++) {
            u8 *to = stage_of(r), *tokens = to + MF_BN * W_ROW_BYTES;
            u64 *full = r.full + r.at % MF_STAGES;
            wait_empty(r);
            if (me == 0) {
                mf_mbarrier_arrive_expect_tx(full, MF_BN * W_ROW_BYTES);
                mf_tma_load_5d(to, &a.w.map, full, mf_tma_coord_of(&a.w, k_tile, col, expert), false);
            }
            copy_scales(a, words, k_tile, tokens + MF_BM * X_ROW_BYTES);
            mf_mbarrier_arrive_cp_async(full);
            store_tokens(x, tokens);
            mf_async_fence();
            mf_mbarrier_arrive(full);
            if (k_tile + 1 < K_TILES) {
                load_tokens(t, row, k_tile + 1, x);
            } else if (!is_last) {
                now = tile_coord_of(t, n_blocks, i + gridDim.x);
                find_rows(t, now.block, row);
                load_tokens(t, row, 0, x);
            }
        }
    }
    mf_copy_commit();
    mf_copy_wait<0>();
}
