/* How a tile's tokens come to LDS as bf16, in the order of narrow.h; included by mx.hip.
 *
 * As bf16 they are copied to their places and each thread turns the order of what it copied. Narrow ones land as they are, in
 * places of the ring that are a thread's own, with a word that has their scale, and become bf16 under it from there: without
 * rounding, as weights do. Their places are two, beside the ring: one that is read while the next is filled. */
#pragma once

#define X_EACH   (128 / X_BITS)  /* elements of 16 bytes */
#define X_PART   (PART / X_EACH) /* chunks of a row and part */
#define X_CHUNKS (X_PART * MF_PARTS)
#define X_STEP   (THREADS / X_CHUNKS)
#define X_PASSES MF_CEIL(MF_BM, X_STEP)
#define X_SCALED (MF_X != BF16 && MF_X_GROUP > 0)
#define X_SCALES (X_SCALED ? MF_D / MF_MAX(MF_X_GROUP, 1) : 0) /* bytes of a row */
#define X_SKEW   (X_SCALES % 4 != 0)

#define ROW_X (PART * 2) /* of tokens as bf16 */
#define OF_X  (MF_BM * ROW_X)
#ifdef MF_COPY_HELD
#    define HELD 1
#else
#    define HELD 0
#endif
#if HELD
#    define RING_OF_X   OF_X
#    define BESIDE_RING 0
#elif MF_X == BF16
#    define RING_OF_X   OF_X
#    define BESIDE_RING 0
#else
#    define RING_OF_X   (MF_BM * X_PART * (X_SCALED ? 20 : 16))
#    define BESIDE_RING (2 * MF_PARTS * OF_X)
#endif

#define TOKENS_STEP (BESIDE_RING ? OF_X : PART_BYTES) /* from part to part of them as bf16 */

/* They are the first of a part of a slice. */
MF_DEVICE u8 *tokens_of(u8 *ring, i32 part)
{
    return ring + part * PART_BYTES;
}

/* Where the elements of a token are of which lanes of that quarter need eight in that step. */
MF_DEVICE i32 place_of_x(i32 token, i32 step, i32 quarter)
{
    return token * ROW_X + (((step * 4 + quarter) ^ ((token & 1) << 2)) << 4);
}
/* The same of eight elements by where they are in their part. */
MF_DEVICE i32 place_of_eight(i32 token, i32 eight)
{
    return place_of_x(token, SUMS_APART ? eight / 4 : eight % 4, SUMS_APART ? eight % 4 : eight / 4);
}

/* The chunk of each row that a thread copies: of bf16, so that neighbours have places in neighbouring banks. */
MF_DEVICE i32 my_chunk()
{
    const i32 at = threadIdx.x % X_CHUNKS, place = at % X_PART;
    return MF_X == BF16 && !SUMS_APART ? at - place + place % 4 * 4 + place / 4 : at;
}

/* Of a block's tokens, which end with padding, as many are multiplied as some instructions of QM have: all, half or a quarter. */
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

/* Of the block that a thread copies: its tokens, and where the thread's chunks of them are, in 16 bytes from x; ~0: padding. */
struct rows_of_x {
    i32 tokens;
    u32 at[X_PASSES];
};
MF_DEVICE i32 row_of_pass(int p)
{
    return threadIdx.x / X_CHUNKS + p * X_STEP;
}
/* The row of x of a token of an expert block; -1: padding. */
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
/* Of the block whose slices land: its tokens; by passes of the thread which are there, a bit, and where in its word the scale of
 * the thread's chunk begins, two bits. */
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

struct way_of_x {
    mf_copy_16 chunk[X_PASSES];
    mf_copy_4 scale[X_PASSES];
};

/* Where a thread's chunk lands; the word of its scale. */
MF_DEVICE u8 *place_of_chunk(u8 *ring, i32 token)
{
    const i32 chunk = my_chunk();
    u8 *part = tokens_of(ring, chunk / X_PART);
    return MF_X == BF16 ? part + place_of_eight(token, chunk % X_PART)
                        : part + (token * X_PART + chunk % X_PART) * 16;
}
MF_DEVICE u8 *place_of_x_scale(u8 *ring, i32 token)
{
    const i32 chunk = my_chunk();
    return tokens_of(ring, chunk / X_PART) + MF_BM * X_PART * 16 + (token * X_PART + chunk % X_PART) * 4;
}
/* The first of its scales, in those of its row and, of a chunk, beyond those of a slice. */
MF_DEVICE i32 scale_of_chunk()
{
    return my_chunk() * X_EACH / MF_MAX(MF_X_GROUP, 1);
}

MF_DEVICE void copy_tokens(const struct rows_of_x &rows, i32 slice, const mf_hip_mx_args &a, u8 *ring,
                           struct way_of_x *way)
{
    const i32 chunk = my_chunk();
    const bool within = MF_D % SLICE_K == 0 || slice * SLICE_K + chunk * X_EACH < MF_D;
    const u8 *x = (const u8 *)a.tile.x + slice * (X_CHUNKS * 16), *scales = (const u8 *)a.tile.x_scale;
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const bool there = within && rows.at[p] != ~0u;
        if (row_of_pass(p) >= rows.tokens)
            continue;
        mf_copy_ask_16(way->chunk[p], place_of_chunk(ring, row_of_pass(p)),
                       x + (there ? (u64)rows.at[p] * 16 : 0), there);
        if (X_SCALED) {
            const i64 row = rows.at[p] / (MF_D / X_EACH);
            const i64 at = row * X_SCALES + slice * (SLICE_K / MF_MAX(MF_X_GROUP, 1)) + scale_of_chunk();
            const u8 *from = there ? scales + (at & ~(i64)3) : scales;
            mf_copy_ask_up_to_4(way->scale[p], place_of_x_scale(ring, row_of_pass(p)), from,
                                there ? (i32)MF_MIN((const u8 *)a.x_scale_end - from, (i64)4) : 0);
        }
    }
}

#if MF_X != BF16
/* A chunk to its places. scale: from its first byte on. */
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
        *(mf_16b *)(to + place_of_eight(token, chunk % X_PART * (X_EACH / 8) + i)) =
            mf_16b{eight[0], eight[1], eight[2], eight[3]};
    }
}
#endif

/* What a thread copied of a slice lands in `tokens`; zeros of padding have their order. */
MF_DEVICE void land_tokens(const struct way_of_x &way, u8 *ring, u8 *tokens, const struct landing &x)
{
    MF_UNROLL
    for (int p = 0; p < X_PASSES; p++) {
        const i32 token = row_of_pass(p);
        if (token >= x.tokens || (MF_X == BF16 && !HELD && !(x.there >> p & 1)))
            continue;
        u32 v[4];
#ifdef MF_COPY_HELD
        mf_copy_take_16(way.chunk[p], v);
#else
        const mf_16b chunk = *(const mf_16b *)place_of_chunk(ring, token);
        v[0] = chunk.x;
        v[1] = chunk.y;
        v[2] = chunk.z;
        v[3] = chunk.w;
#endif
#if MF_X == BF16
        *(mf_16b *)place_of_chunk(tokens, token) = mf_bf16_as_narrow(mf_16b{v[0], v[1], v[2], v[3]});
#else
        u32 scale = 0;
#    ifdef MF_COPY_HELD
        scale = X_SCALED ? mf_copy_take_4(way.scale[p]) : 0;
#    else
        scale = X_SCALED ? *(const u32 *)place_of_x_scale(ring, token) : 0;
#    endif
        decode_chunk(v, scale >> ((scale_of_chunk() + (x.skews >> 2 * p)) & 3) * 8, token, tokens);
#endif
    }
    (void)way, (void)ring;
}
