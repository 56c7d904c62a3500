/* Hopper's own core of a stage of the two-stage grouped GEMM. A source includes it once for each stage that it has, in a
 * namespace of its own, with dialect_hopper.h and format.h before it.
 *
 * As in tile.hip a slice is 128 bytes along K of every row, and stage 1 has eight rows of gate and the eight of up in turn.
 * Four waves bring slices, two groups of four waves multiply: they meet at barriers in LDS only, so one group's sums are
 * scaled or stored while the other's are made. Weights, and the tokens of stage 2, come as boxes of tensors in bulk; the
 * tokens of stage 1 are gathered, row by row.
 *
 * Tiles (with MF_KEPT: runs of them) are taken by whoever is free: some units are nearer to memory than others. So the blocks that run
 * at one time have neighbouring tiles: rows of weights that several expert blocks share, and tokens that several columns share, are
 * read while the last cache has them. Of a last cache in two halves each brings for itself what its units ask for, from the other
 * half what is at home there, and what lies between the halves carries no more than memory does; so each half's units have experts of
 * their own.
 *
 *   MF_FORMAT, MF_STAGES  as tile.hip has them, and what tile_parts.inc.h says
 *   MF_ADD      stage 2 adds each row to that of its token in y, which was zeroed; in no order
 *   MF_SWAP     1: rows of the product are tokens (hopper_tokens.inc.h, hopper_short.inc.h); 0: weights (hopper_weights.inc.h)
 *   MF_TURNS    1: each group multiplies a tile of its own, turn and turn about; 0: the groups share a tile's rows
 *   MF_BOTH     1: both stages are in one launch, and share a ring
 *   MF_KEPT     as hopper_ring.h has it
 *
 *   lds: hopper_ring.h's */
#include "tile_parts.inc.h"

#define SLICE_K  (SLICE / BYTES)
#define SLICES   MF_CEIL(MF_D, SLICE_K)
#define BLOCKS_D MF_CEIL(MF_D, 128)
/* Tokens of a block that are multiplied, by eights: all, half or a quarter, where a matrix instruction has that width. */
#define QM       (MF_BM / 8)
#define QM_HALF  (QM == 10 ? 6 : QM == 6 ? 4 : QM / 2)
#define QM_LEAST (QM == 12 ? 6 : QM == 10 ? 4 : QM == 6 ? 2 : QM / 4)
/* Each group writes rows of its own and meets the other only where slices are free, so that one's rows leave while the other
 * multiplies: in turn, or, in stage 2, where they have their own tokens. Stage 1's tiles are long: there a group that is ahead
 * only waits for slices that the other has not left. */
#define ALONE (MF_TURNS || (MF_SWAP && MF_BM >= 128 && MF_STAGE == 2))

/* Stage 2's product of so few slices that it needs no sums of fp32's own. As many as units.h allows, and family_hip_hopper.h's MF_HIP_HOPPER_SHORT. */
#define SHORT (MF_SWAP && ALONE && !MF_TURNS && SLICES <= 4)
/* Such a product's rows of y are added by the wave that made them, through LDS of its own, some columns at a time: waves meet no other, and
 * the ring has a slice more. */
#undef ADDS_OWN
#if SHORT && defined(MF_ADD)
#    define ADDS_OWN 1
#else
#    define ADDS_OWN 0
#endif
#define OWN_COLS   64 /* at a time */
#define OWN_STRIDE (OWN_COLS + 8)
#define OWN_BYTES  (16 * OWN_STRIDE * 2) /* of a wave */

/* Where a group has all columns of its tokens it quantises them itself, and out holds codes, or bf16 of half as many rows. */
#undef OUT_BYTES
#if defined(MF_QUANT) && MF_SWAP && (MF_TURNS || MF_BM >= 128)
#    define OUT_BYTES (MF_BM * CODES_STRIDE)
#elif ADDS_OWN
#    define OUT_BYTES (4 * GROUPS * OWN_BYTES)
#else
#    define OUT_BYTES (MF_BM * OUT_STRIDE * 2)
#endif
#define GATHERS      (MF_STAGE == 1)
#define COPIES       (MF_BOTH || GATHERS || BY_BLOCK) /* all four bringing waves have something to copy */
#define PASSES       MF_CEIL(MF_BM, GROUP / 8)
#define SCALE_PASSES MF_CEIL(MF_BM, GROUP)
/* Registers of a thread that brings and of one that multiplies: 64 Ki in all. */
#define BRINGS     (GATHERS && (MF_SWAP || MF_BOTH) ? 56 : 40)
#define MULTIPLIES (GATHERS && (MF_SWAP || MF_BOTH) ? 224 : 232)

enum {
    tiles_of_block = TILES_N,
    out_bytes = OUT_BYTES,
    brings = BRINGS,
    multiplies = MULTIPLIES,
    alone = ALONE,
};

#if MF_KEPT && !SHORT
#    error "MF_KEPT is for stage 2 of a few slices, with tokens as rows"
#endif

#include "hopper_tile.inc.h"

/* ---- the waves that bring ---- */

/* Where the rows lie that a thread gathers, in 16 bytes from x; ~0: padding. */
struct rows {
    u32 at[PASSES];
};
MF_DEVICE void find_rows(const mf_hip_tile_args &a, i32 block, rows &ret)
{
    const i32 me = threadIdx.x % GROUP;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const i32 r = me / 8 + p * (GROUP / 8);
        const i32 token = r < MF_BM ? mf_id_token(a.sorted_ids[(i64)block * MF_BM + r]) : a.token;
        ret.at[p] = token < a.token ? (u32)token * (MF_D * BYTES / 16) + me % 8 : ~0u;
    }
}
MF_DEVICE void gather(const mf_hip_tile_args &a, const rows &from, i32 slice, u8 *tokens)
{
    const i32 me = threadIdx.x % GROUP, row = me / 8, chunk = me % 8;
    const bool within = slice * SLICE + chunk * 16 < MF_D * BYTES;
    u8 *to = tokens + row * SLICE + ((chunk ^ (row & 7)) << 4);
    const u8 *x = (const u8 *)a.x + slice * SLICE;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const bool there = within && from.at[p] != ~0u;
        if (MF_BM % (GROUP / 8) == 0 || row + p * (GROUP / 8) < MF_BM)
            mf_copy_async_16(to + p * (GROUP / 8) * SLICE, x + (there ? (u64)from.at[p] * 16 : 0), there);
    }
}
/* Each token's scale of a slice. */
MF_DEVICE void copy_scales(const mf_hip_tile_args &a, const i64 (&from)[SCALE_PASSES], i32 slice, u8 *scales)
{
    const i32 me = threadIdx.x % GROUP;
    MF_UNROLL
    for (int p = 0; p < SCALE_PASSES; p++) {
        if (me + p * GROUP < MF_BM)
            mf_copy_async_4(scales + (me + p * GROUP) * 4, a.x_scale + (from[p] < 0 ? 0 : from[p] + slice),
                            from[p] >= 0);
    }
}
/* Ids of the rows whose scales this thread copies. */
MF_DEVICE void look_up_ids(const mf_hip_tile_args &a, i32 block, i32 (&ret)[SCALE_PASSES])
{
    MF_UNROLL
    for (int p = 0; p < SCALE_PASSES; p++) {
        const i32 r = threadIdx.x % GROUP + p * GROUP;
        ret[p] = r < MF_BM ? a.sorted_ids[(i64)block * MF_BM + r] : a.token;
    }
}
MF_DEVICE void find_scales(const mf_hip_tile_args &a, i32 block, const i32 (&ids)[SCALE_PASSES],
                           i64 (&ret)[SCALE_PASSES])
{
    MF_UNROLL
    for (int p = 0; p < SCALE_PASSES; p++) {
        const i64 at = (i64)block * MF_BM + threadIdx.x % GROUP + p * GROUP;
        const i32 token = mf_id_token(ids[p]);
        ret[p] = token < a.token ? (GATHERS ? (i64)token : at) * BLOCKS_D : -1;
    }
}

/* Where nothing is done aside: with a slice, nor at the end. */
struct nothing_aside {
    __device__ __forceinline__ void operator()()
    {
    }
    __device__ __forceinline__ void end()
    {
    }
};

/* Tokens are those of a launch that has ended. */
struct all_there {
    static const bool has_order = true;
    static __device__ __forceinline__ bool is_pending()
    {
        return false;
    }
    __device__ __forceinline__ void operator()(i32) const
    {
    }
};

MF_DEVICE u8 *weights_of(const ring &r, i32 slice)
{
    return MF_KEPT ? r.kept + slice * WEIGHTS : slice_of(r);
}
MF_DEVICE u8 *tokens_of(const ring &r)
{
    return slice_of(r) + (MF_KEPT ? 0 : WEIGHTS);
}

/* A tile that is to be brought. */
struct coming {
    spot at;
    mf_corner next; /* where the next slice of its weights begins */
    bool once;      /* no other block has its weights: the last cache gives them up before tokens, h and y */
    bool are_there; /* its weights are those of the tile before */
    i32 ids[SCALE_PASSES]; /* look_up_ids() */
};
/* follows: the tile is of the same run as the one before. with_ids: the order of tokens is written. What is read is asked for at once. */
MF_DEVICE void look_up(const mf_hip_tile_args &a, const mf_hip_weights &w, const spot &at, i32 n_blocks,
                       bool follows, bool with_ids, coming &ret)
{
    ret.at = at;
    if (at.block < 0)
        return;
    const i32 before = a.experts[MF_MAX(at.block - 1, 0)], expert = a.experts[at.block],
              behind = a.experts[MF_MIN(at.block + 1, n_blocks - 1)];
    if (with_ids)
        look_up_ids(a, at.block, ret.ids);
    const bool is_first = at.block == 0 || before != expert,
               is_last = at.block + 1 == n_blocks || behind != expert;
    ret.next = mf_corner_of(&w, 0, at.col, expert);
    ret.once = is_first & is_last;
    ret.are_there = follows & !is_first;
}

/* The next slice of weights into its place, once that is empty, but for those that are there. */
MF_DEVICE void ask_weights(const mf_hip_weights &w, const ring &r, i32 slice, coming &c)
{
    wait_empty(r);
    if (threadIdx.x % GROUP > 0)
        return;
    u64 *full = r.full + r.at % MF_STAGES;
    mf_barrier_expect(full, ((c.are_there ? 0 : MF_BN) + (GATHERS ? 0 : MF_BM)) * SLICE);
    if (c.are_there)
        return;
    if (MF_KEPT && MF_STAGES > SLICES && r.at >= SLICES) /* a shorter ring's place says it, too */
        wait_left(r, SLICES);
    mf_bulk_load_5(weights_of(r, slice), &w.map, full, c.next, c.once);
    c.next.c0 += w.slice_0; /* step by step: of products for each slice the compiler would keep all */
    c.next.c3 += w.slice_3;
}

/* All slices of this block's tiles. take.ask() asks for the next run, take() then has its first tile, beyond all tiles where there is none.
 * there(block): waits until the tokens of an expert block are written, by all threads that come here; the weights of a tile's first slice
 * are on their way by then and, where tokens may not be there (is_pending()), of the first tile as many as the ring holds.
 * There::has_order: the order of tokens is written before. aside(): what else a thread that brings does with each slice. */
template <class Take, class There, class Aside>
MF_DEVICE void bring(const mf_hip_weights &w, const mf_hip_map &x_map, const mf_hip_tile_args &t, ring &r,
                     i32 n_blocks, Take &take, There &there, Aside &aside)
{
    const bool with_ids = BY_BLOCK && There::has_order;
    const i32 me = threadIdx.x % GROUP;
    rows row;
    i64 scale[SCALE_PASSES];
    coming now;
    i32 i = 0, ahead = MF_STAGES; /* i: the tile's number, which the first thread knows */
    if (!COPIES && me > 0)
        return;
    if (me == 0) {
        take.ask();
        tell_tile(r, spot_of(t, n_blocks, i = take()));
    }
    look_up(t, w, told_tile(r), n_blocks, false, with_ids, now);
    for (; now.at.block >= 0; ahead = 1) {
        const i32 block = now.at.block;
        i32 asked;
        bool follows = false; /* the next tile is of this run */
        for (asked = 0; asked < (there.is_pending() ? MF_MIN(ahead, SLICES) : 1); asked++) {
            ring later = r;
            later.at += asked;
            ask_weights(w, later, asked, now);
        }
        there(block);
        if (GATHERS)
            find_rows(t, block, row);
        if (BY_BLOCK && !with_ids)
            look_up_ids(t, block, now.ids);
        if (BY_BLOCK)
            find_scales(t, block, now.ids, scale);
        r.n_tiles++;
        for (i32 slice = 0; slice < SLICES; slice++, r.at++) {
            u8 *tokens = tokens_of(r);
            u64 *full = r.full + r.at % MF_STAGES;
            if (slice >= asked)
                ask_weights(w, r, slice, now);
            if (slice == 0 && me == 0) {
                follows = (i + 1) % RUN > 0 && block + 1 < n_blocks;
                if (!follows)
                    take.ask();
            }
            if (!GATHERS && me == 0)
                mf_bulk_load_2(tokens, &x_map, full, slice * SLICE_K, block * MF_BM);
            if (GATHERS)
                gather(t, row, slice, tokens);
            if (BY_BLOCK)
                copy_scales(t, scale, slice, tokens + MF_BM * SLICE);
            if (COPIES)
                mf_barrier_arrive_copied(full);
            aside();
        }
        if (me == 0)
            tell_tile(r, spot_of(t, n_blocks, i = follows ? i + 1 : take()));
        look_up(t, w, told_tile(r), n_blocks, follows, with_ids, now);
    }
    r.n_tiles++;
}

/* What is known of a tile before it is multiplied. */
struct place {
    i32 block, col, expert;
    i32 half,
        least; /* ids behind the block's first QM_HALF, QM_LEAST eights of tokens: looked at when wanted */
    i32 id;    /* first_id(), or own_id() */
};

/* Do the block's tokens fit QM_HALF, or QM_LEAST? Padding is at its end. */
MF_DEVICE bool is_few(const mf_hip_tile_args &a, const place &p)
{
    return mf_id_token(p.half) >= a.token;
}
MF_DEVICE bool is_fewest(const mf_hip_tile_args &a, const place &p)
{
    return mf_id_token(p.least) >= a.token;
}

/* Of a group that has nothing to multiply in a tile. */
MF_DEVICE void pass_slices(ring &r)
{
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++, r.at++) {
        wait_full(r);
        leave_slice(r, 0);
    }
}

/* Of weights' scales by slice a lane holds those of one slice of 32. Is it time for the next 32? */
MF_DEVICE bool scales_have_ended(i32 slice)
{
    return SLICES > MF_WAVE && slice > 0 && slice % MF_WAVE == 0;
}

#if SHORT
#    include "hopper_short.inc.h"
#elif MF_SWAP
#    include "hopper_tokens.inc.h"
#else
#    include "hopper_weights.inc.h"
#endif

MF_DEVICE place place_of(const mf_hip_tile_args &a, const spot &t, const writers &w)
{
    place p;
    p.block = t.block;
    p.col = t.col;
    p.expert = a.experts[p.block];
    p.half = a.sorted_ids[(i64)p.block * MF_BM + QM_HALF * 8];
    p.least = a.sorted_ids[(i64)p.block * MF_BM + QM_LEAST * 8];
#if ADDS_OWN
    p.id = own_id(a, p.block, w);
#else
    p.id = first_id(a, p.block, w);
#endif
    return p;
}

/* A group's part of tiles, and how it meets those with whom it writes rows. */
struct part_of {
    i32 share, number;
    writers rows;
    bool waits; /* MF_TURNS: for the other group */
    u16 *out;
};

/* tile: counts those of the block's. A group without tokens in a tile has no rows of it to store either: of a tile of few tokens it is one
 * group that works, and from tile to tile it is the other one, so that one's rows leave while the other multiplies. */
MF_DEVICE part_of part_at(i32 group, u32 tile, u8 *outs)
{
    const i32 each = MF_BM / GROUPS; /* rows */
    part_of ret;
    ret.waits = false;
    ret.share = MF_TURNS ? 0 : ALONE ? group ^ (i32)(tile & 1) : group;
    ret.number = ALONE ? 1 + group : 1;
    ret.rows.me = ALONE ? threadIdx.x % GROUP : threadIdx.x;
    ret.rows.threads = ALONE ? GROUP : GROUPS * GROUP;
    ret.rows.rows = ALONE && !MF_TURNS ? each : MF_BM;
    ret.rows.first = ALONE && !MF_TURNS ? ret.share * each : 0;
    ret.out = (u16 *)(outs + (MF_TURNS ? group * OUT_BYTES : 0));
    if (ALONE && !MF_TURNS && !ADDS_OWN) /* its own rows of out, whichever they are of the tile */
        ret.out += (group - ret.share) * each * OUT_STRIDE;
    return ret;
}

/* A tile's product into out; whether there is another tile after it. */
template <int N, class Done>
MF_DEVICE bool make_tile(const mf_hip_tile_args &a, ring &r, const place &p, const part_of &mine, Done &done)
{
    const i32 group = mf_of_wave(threadIdx.x / GROUP);
    product d;
    /* A group may not run ahead to its slices: of a barrier only the last phase and the one before can be told apart. */
    if (MF_TURNS && mine.waits)
        mf_group_sync(GROUPS + 1 + group, GROUPS * GROUP);
    multiply_tile<N>(a, r, p, mine.share, d);
    r.n_tiles++;
    const bool more = told_tile(r).block >= 0;
    if (MF_TURNS && more)
        mf_group_arrive(GROUPS + 1 + (group + 1) % GROUPS, GROUPS * GROUP);
    if (ADDS_OWN) {
        store_tile<N>(a, p, mine.share, d, mine.out);
        return more;
    }
    done.wait_out();
    mf_group_sync(mine.number, mine.rows.threads);
    done.count(mine.rows.me);
    store_tile<N>(a, p, mine.share, d, mine.out);
    mf_async_fence();
    mf_group_sync(mine.number, mine.rows.threads);
    return more;
}

/* A tile's rows, as store_tile left them, if it did not add them itself. */
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const place &p, const part_of &mine)
{
#if ADDS_OWN
    (void)a, (void)p, (void)mine;
#elif defined(MF_QUANT)
    if (leaves_codes(a, p))
        store_codes(a, p.block, p.col, (const u8 *)mine.out, mine.rows, p.id);
    else
        store_quantised<LEFT_ROWS, ALONE ? GROUP : GROUPS * GROUP>(a, p.block, p.col, mine.out, mine.rows.me);
#else
    store(a, p.block, p.col, mine.out, mine.rows, p.id);
#endif
}

/* Of whom nobody is told which tiles are made. */
struct no_completion_signal {
    static const bool counts_late = false;
    __device__ __forceinline__ void wait_out() const
    {
        mf_bulk_wait_read();
    }
    __device__ __forceinline__ void count(i32) const
    {
    }
    __device__ __forceinline__ void operator()(i32, const part_of &) const
    {
    }
};

/* done(block, mine): of a tile whose rows are on their way or have left, by all that store them. wait_out(): by them, until out may be written again.
 * count(me): when all of them have waited so; behind the last tile, too, where it counts late. */
template <class Done> MF_DEVICE void multiply_tiles(const mf_hip_tile_args &a, ring &r, u8 *outs, Done done)
{
    const i32 group = mf_of_wave(threadIdx.x / GROUP);
    const u32 first_slice = r.at, first_tile = r.n_tiles;
    bool more = told_tile(r).block >= 0;
    if (MF_TURNS && more && group > 0) {
        r.at += SLICES;
        r.n_tiles++;
        more = told_tile(r).block >= 0;
    }
    place next;
    if (more)
        next = place_of(a, told_tile(r), part_at(group, r.n_tiles, outs).rows);
    while (more) {
        const place p = next;
        part_of mine = part_at(group, r.n_tiles, outs);
        mine.waits = r.n_tiles > first_tile;
        if (TRIMS > 1 && is_fewest(a, p))
            more = make_tile<QM_LEAST>(a, r, p, mine, done);
        else if (TRIMS > 0 && is_few(a, p))
            more = make_tile<QM_HALF>(a, r, p, mine, done);
        else
            more = make_tile<QM>(a, r, p, mine, done);
        if (!MF_TURNS && more)
            next = place_of(a, told_tile(r), part_at(group, r.n_tiles, outs).rows);
        store_tile(a, p, mine);
        done(p.block, mine);
        if (MF_TURNS && more) { /* the other group's */
            r.at += SLICES;
            r.n_tiles++;
            more = told_tile(r).block >= 0;
            if (more)
                next = place_of(a, told_tile(r), mine.rows);
        }
    }
    done.wait_out();
    if (Done::counts_late) {
        const part_of mine = part_at(group, r.n_tiles, outs);
        mf_group_sync(mine.number, mine.rows.threads);
        done.count(mine.rows.me);
    }
    r.at = first_slice + (r.n_tiles - first_tile) * SLICES;
    r.n_tiles++;
}
