/* Moves a tile's tokens to shared memory as bf16, in the order of narrow.h; included by mx.hip.
 *
 * bf16 tokens are copied to their final place, and each thread then reorders in place the tokens that it
 * copied. Narrow tokens first arrive unchanged in the ring buffer, in slots that only one thread uses,
 * together with a word that holds their scale. This thread then converts the tokens to scaled bf16, which
 * needs no rounding, as with weights. It writes them to one of two buffers next to the ring, while the other
 * buffer is read. */
#pragma once

#define X_EACH   (128 / X_BITS)  /* elements per 16 bytes */
#define X_PART   (PART / X_EACH) /* chunks of a row in one part */
#define X_CHUNKS (X_PART * MF_PARTS)
#define X_STEP   (THREADS / X_CHUNKS)
#define X_PASSES MF_CEIL(MF_BM, X_STEP)
#define X_SCALED (MF_X != BF16 && MF_X_GROUP > 0)
#define X_SCALES (X_SCALED ? MF_D / MF_MAX(MF_X_GROUP, 1) : 0) /* bytes of scales per row */
#define X_SKEW   (X_SCALES % 4 != 0)

#define ROW_X        (PART * 2) /* bytes of a token's bf16 in one part */
#define X_BF16_BYTES (MF_BM * ROW_X)
#ifdef MF_COPY_HELD
#    define STAGED 1
#else
#    define STAGED 0
#endif
#if STAGED
#    define X_STAGE_BYTES     X_BF16_BYTES
#    define BF16_TOKENS_BYTES 0
#elif MF_X == BF16
#    define X_STAGE_BYTES     X_BF16_BYTES
#    define BF16_TOKENS_BYTES 0
#else
#    define X_STAGE_BYTES     (MF_BM * X_PART * (X_SCALED ? 20 : 16))
#    define BF16_TOKENS_BYTES (2 * MF_PARTS * X_BF16_BYTES)
#endif

#define TOKENS_STEP (BF16_TOKENS_BYTES ? X_BF16_BYTES : PART_BYTES) /* stride between parts of bf16 tokens */

/* Tokens come first in each part of a pipeline stage. */
MF_DEVICE u8 *tokens_of(u8 *ring, i32 part)
{
    return ring + part * PART_BYTES;
}

/* Returns the offset of the eight elements of a token that the lanes of a quarter need in a step. */
MF_DEVICE i32 x_offset(i32 token, i32 step, i32 quarter)
{
    return token * ROW_X + (((step * 4 + quarter) ^ ((token & 1) << 2)) << 4);
}
/* Returns the same offset as x_offset(), for element group `eight` of a part in the order along K. */
MF_DEVICE i32 eight_offset(i32 token, i32 eight)
{
    return x_offset(token, GROUP_SUMS ? eight / 4 : eight % 4, GROUP_SUMS ? eight % 4 : eight / 4);
}

/* Returns the index of the chunk that this thread copies in each of its rows. For bf16 the chunks are
 * permuted so that adjacent threads write adjacent banks. */
MF_DEVICE i32 my_chunk()
{
    const i32 at = threadIdx.x % X_CHUNKS, place = at % X_PART;
    return MF_X == BF16 && !GROUP_SUMS ? at - place + place % 4 * 4 + place / 4 : at;
}

/* The number of valid tokens of a block is rounded up to a compiled width: all, half or a quarter of QM.
 * Padding is at the end of a block. */
#define TRIMS    (MF_WARPS_M == 1 && QM > 1)
#define QM_HALF  MF_MAX(QM / 2, 1)
#define QM_LEAST MF_MAX(QM / 4, 1)
MF_DEVICE i32 tokens_of_block(const mf_hip_tile_args &a, i32 block)
{
    const i32 *ids = a.sorted_ids + (i64)block * MF_BM;
    if (TRIMS && mf_id_token(ids[QM_LEAST * MF_MMA_COLS]) >= a.token)
        return QM_LEAST * MF_MMA_COLS;
    if (TRIMS && mf_id_token(ids[QM_HALF * MF_MMA_COLS]) >= a.token)
        return QM_HALF * MF_MMA_COLS;
    return MF_BM;
}

/* Data about the block that is being copied: its token count, and the offsets of the thread's chunks in
 * 16-byte units from x, or ~0 for padding. */
struct rows_of_x {
    i32 tokens;
    u32 at[X_PASSES];
};
MF_DEVICE i32 row_of_pass(int p)
{
    return threadIdx.x / X_CHUNKS + p * X_STEP;
}
/* Returns the row of x that holds a token of an expert block, or -1 for padding. */
MF_DEVICE i64 row_of_token(const mf_hip_tile_args &a, i32 block, i32 token)
{
    const i64 at = (i64)block * MF_BM + token;
    const i32 id = mf_id_token(a.sorted_ids[at]);
    return id < a.token ? (MF_STAGE == 1 ? (i64)id : at) : -1;
}
MF_DEVICE void find_rows(const mf_hip_tile_args &a, i32 block, struct rows_of_x *ret)
{
    ret->tokens = tokens_of_block(a, block);
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const i64 row = row_of_pass(p) < MF_BM ? row_of_token(a, block, row_of_pass(p)) : -1;
        ret->at[p] = row < 0 ? ~0u : (u32)(row * (MF_D / X_EACH) + my_chunk());
    }
}
/* Data about the block for which copies complete. `tokens` is its token count. For each pass of the thread,
 * `there` has one bit, which is 0 for padding, and `skews` has two bits: the byte offset of the chunk's scale
 * within its word. */
struct landing {
    i32 block, tokens;
    u32 there, skews;
};
MF_DEVICE void find_landing(const mf_hip_tile_args &a, i32 block, struct landing *ret)
{
    *ret = landing{block, tokens_of_block(a, block), 0, 0};
    MF_UNROLL
    for (int p = 0; p < (X_SKEW || MF_X == BF16 ? X_PASSES : 0); p++) {
        const i64 row = row_of_pass(p) < MF_BM ? row_of_token(a, block, row_of_pass(p)) : -1;
        ret->there |= (u32)(row >= 0) << p;
        ret->skews |= (u32)((row * X_SCALES) & 3) << 2 * p;
    }
}

struct token_copies {
    mf_copy_16 chunk[X_PASSES];
    mf_copy_4 scale[X_PASSES];
};

/* chunk_slot() returns the slot of a thread's chunk, x_scale_slot() the slot of the word with the chunk's
 * scale. */
MF_DEVICE u8 *chunk_slot(u8 *ring, i32 token)
{
    const i32 chunk = my_chunk();
    u8 *part = tokens_of(ring, chunk / X_PART);
    return MF_X == BF16 ? part + eight_offset(token, chunk % X_PART)
                        : part + (token * X_PART + chunk % X_PART) * 16;
}
MF_DEVICE u8 *x_scale_slot(u8 *ring, i32 token)
{
    const i32 chunk = my_chunk();
    return tokens_of(ring, chunk / X_PART) + MF_BM * X_PART * 16 + (token * X_PART + chunk % X_PART) * 4;
}
/* Returns the index of the chunk's first scale among the scales of its row in the K tile. */
MF_DEVICE i32 scale_of_chunk()
{
    return my_chunk() * X_EACH / MF_MAX(MF_X_GROUP, 1);
}

MF_DEVICE void copy_tokens(const struct rows_of_x &rows, i32 k_tile, const mf_hip_mx_args &a, u8 *ring,
                           struct token_copies *copies)
{
    const i32 chunk = my_chunk();
    const bool within = MF_D % K_TILE == 0 || k_tile * K_TILE + chunk * X_EACH < MF_D;
    const u8 *x = (const u8 *)a.tile.x + k_tile * (X_CHUNKS * 16), *scales = (const u8 *)a.tile.x_scale;
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const bool there = within && rows.at[p] != ~0u;
        if (row_of_pass(p) >= rows.tokens)
            continue;
        mf_copy_start_16(copies->chunk[p], chunk_slot(ring, row_of_pass(p)),
                         x + (there ? (u64)rows.at[p] * 16 : 0), there);
        if (X_SCALED) {
            const i64 row = rows.at[p] / (MF_D / X_EACH);
            const i64 at = row * X_SCALES + k_tile * (K_TILE / MF_MAX(MF_X_GROUP, 1)) + scale_of_chunk();
            const u8 *from = there ? scales + (at & ~(i64)3) : scales;
            mf_copy_start_up_to_4(copies->scale[p], x_scale_slot(ring, row_of_pass(p)), from,
                                  there ? (i32)MF_MIN((const u8 *)a.x_scale_end - from, (i64)4) : 0);
        }
    }
}

#if MF_X != BF16
/* Dequantises a chunk and stores it in `tokens`. `scale` is shifted so that the chunk's first scale is in the
 * low byte. */
MF_DEVICE void decode_chunk(const u32 (&v)[4], u32 scale, i32 token, u8 *tokens)
{
    const i32 chunk = my_chunk();
    u8 *to = tokens + chunk / X_PART * TOKENS_STEP;
    u32 factor[2];
    factors_of_x(scale, factor);
    MF_UNROLL
    for (int i = 0; i < X_EACH / 8; i++) {
        u32 eight[4];
        eight_of_x(v + i * (X_BITS / 4), factor[X_BITS == 4 ? i / 2 : 0], eight);
        *(mf_16b *)(to + eight_offset(token, chunk % X_PART * (X_EACH / 8) + i)) =
            mf_16b{eight[0], eight[1], eight[2], eight[3]};
    }
}
#endif

/* Completes a thread's copies of a K tile into `tokens`. Padding rows are zeros and need no reordering. */
MF_DEVICE void finish_tokens(const struct token_copies &copies, u8 *ring, u8 *tokens, const struct landing &x)
{
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const i32 token = row_of_pass(p);
        if (token >= x.tokens || (MF_X == BF16 && !STAGED && !(x.there >> p & 1)))
            continue;
        u32 v[4];
#ifdef MF_COPY_HELD
        mf_copy_get_16(copies.chunk[p], v);
#else
        const mf_16b chunk = *(const mf_16b *)chunk_slot(ring, token);
        v[0] = chunk.x;
        v[1] = chunk.y;
        v[2] = chunk.z;
        v[3] = chunk.w;
#endif
#if MF_X == BF16
        *(mf_16b *)chunk_slot(tokens, token) = mf_bf16_as_narrow(mf_16b{v[0], v[1], v[2], v[3]});
#else
        u32 scale = 0;
#    ifdef MF_COPY_HELD
        scale = X_SCALED ? mf_copy_get_4(copies.scale[p]) : 0;
#    else
        scale = X_SCALED ? *(const u32 *)x_scale_slot(ring, token) : 0;
#    endif
        decode_chunk(v, scale >> ((scale_of_chunk() + (x.skews >> 2 * p)) & 3) * 8, token, tokens);
#endif
    }
    (void)copies, (void)ring;
}
