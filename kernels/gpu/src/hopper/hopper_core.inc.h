/* Warp-specialised mainloop of one stage of the two-stage grouped GEMM for Hopper. A source includes this
 * file once for each stage, inside a namespace of its own, after dialect_hopper.h and format.h.
 *
 * The thread block has one producer warpgroup and two consumer warpgroups. The producer fills a ring buffer
 * of pipeline stages, and the consumers multiply with WGMMA. They synchronise only through mbarriers in
 * shared memory, so one consumer warpgroup can run its epilogue while the other one multiplies. A pipeline
 * stage holds one K tile: 128 bytes along K of every row. Weights, and the tokens of stage 2, arrive by TMA
 * loads. Stage 1 gathers its token rows with cp.async. In stage 1, eight gate rows alternate with eight up
 * rows, as in tile.hip.
 *
 * The kernel is persistent. Blocks claim tiles (with MF_WEIGHT_REUSE: runs of tiles) dynamically, because
 * some SMs have a shorter path to memory than others. Concurrent blocks then work on neighbouring tiles.
 * Weight rows that several expert blocks share, and tokens that several columns share, are therefore still in
 * the L2 cache. On GPUs whose L2 cache has two partitions, a partition also caches a copy of the lines that
 * its SMs read from the other partition, and the link between the partitions is no faster than HBM. Therefore
 * the SMs of each partition process experts of their own.
 *
 *   MF_FORMAT, MF_STAGES  as in tile.hip; the macros of tile_parts.inc.h
 *   MF_ADD       stage 2 adds each row to its token's row of y, which starts as zeros; the order is undefined
 *   MF_SWAP      1: tokens are the M dimension (hopper_tokens_m.inc.h, hopper_short_k.inc.h);
 *                0: weights are the M dimension (hopper_weights_m.inc.h)
 *   MF_PINGPONG  1: the consumer warpgroups take alternate tiles; 0: they share the rows of each tile
 *   MF_TWO_STAGES  1: one launch runs both stages with a common ring buffer
 *   MF_WEIGHT_REUSE  as in hopper_ring.h
 *
 *   shared memory: as in hopper_ring.h */
#include "tile_parts.inc.h"

#define K_TILE   (K_TILE_BYTES / BYTES)
#define K_TILES  MF_CEIL(MF_D, K_TILE)
#define BLOCKS_D MF_CEIL(MF_D, 128)
/* Widths of the product in units of 8 tokens: all of an expert block, about half of it, about a quarter.
 * WGMMA must support each width. */
#define QM       (MF_BM / 8)
#define QM_HALF  (QM == 10 ? 6 : QM == 6 ? 4 : QM / 2)
#define QM_LEAST (QM == 12 ? 6 : QM == 10 ? 4 : QM == 6 ? 2 : QM / 4)
/* True if each consumer warpgroup writes out rows of its own and shares only the ring buffer with the other
 * warpgroup, so that the epilogue of one warpgroup overlaps the mainloop of the other. This is the case for
 * ping-pong, and for stage 2 when the warpgroups have separate tokens. It is not the case for stage 1,
 * because tiles of stage 1 are long, and a warpgroup that runs ahead would only wait for pipeline stages that
 * the other warpgroup has not released. */
#define OWN_EPILOGUE (MF_PINGPONG || (MF_SWAP && MF_BM >= 128 && MF_STAGE == 2))

/* True for stage 2 with so few K tiles that the sums need no separate fp32 accumulation. The limit of 4 K
 * tiles follows from rescale.h and equals MF_HIP_HOPPER_SHORT of family_hip_hopper.h. */
#define SHORT_K (MF_SWAP && OWN_EPILOGUE && !MF_PINGPONG && K_TILES <= 4)
/* With SHORT_K each warp adds its own rows to y through a shared memory region of its own, WARP_OUT_COLS
 * columns at a time. Warps then need no barrier in the epilogue, and the ring buffer has space for another
 * stage. */
#undef WARP_EPILOGUE
#if SHORT_K && defined(MF_ADD)
#    define WARP_EPILOGUE 1
#else
#    define WARP_EPILOGUE 0
#endif
#define WARP_OUT_COLS   64 /* columns per pass */
#define WARP_OUT_STRIDE (WARP_OUT_COLS + 8)
#define WARP_OUT_BYTES  (16 * WARP_OUT_STRIDE * 2) /* bytes of one warp's region */

/* A warpgroup that has all columns of its tokens quantises the sums in registers. `out` then holds 8-bit
 * codes of all rows, or bf16 of half as many rows. */
#undef OUT_BYTES
#if defined(MF_QUANT) && MF_SWAP && (MF_PINGPONG || MF_BM >= 128)
#    define OUT_BYTES (MF_BM * CODES_STRIDE)
#elif WARP_EPILOGUE
#    define OUT_BYTES (4 * CONSUMERS * WARP_OUT_BYTES)
#else
#    define OUT_BYTES (MF_BM * OUT_STRIDE * 2)
#endif
#define GATHERS (MF_STAGE == 1)
/* true: all four producer warps issue copies; false: only one thread does */
#define USES_CP_ASYNC (MF_TWO_STAGES || GATHERS || BY_BLOCK)
#define PASSES        MF_CEIL(MF_BM, WARPGROUP / 8)
#define SCALE_PASSES  MF_CEIL(MF_BM, WARPGROUP)
/* Registers per producer thread and per consumer thread; an SM has 64 Ki registers. */
#define PRODUCER_REGS (GATHERS && (MF_SWAP || MF_TWO_STAGES) ? 56 : 40)
#define CONSUMER_REGS (GATHERS && (MF_SWAP || MF_TWO_STAGES) ? 224 : 232)

enum {
    tiles_of_block = TILES_N,
    out_bytes = OUT_BYTES,
    producer_regs = PRODUCER_REGS,
    consumer_regs = CONSUMER_REGS,
    own_epilogue = OWN_EPILOGUE,
};

#if MF_WEIGHT_REUSE && !SHORT_K
#    error "MF_WEIGHT_REUSE requires stage 2 with few K tiles and tokens as the M dimension"
#endif

#include "hopper_tile.inc.h"

/* ---- producer warpgroup ---- */

/* Offsets of the rows that a thread gathers, in 16-byte units from x; ~0 for padding. */
struct rows {
    u32 at[PASSES];
};
MF_DEVICE void find_rows(const mf_hip_tile_args &a, i32 block, rows &ret)
{
    const i32 me = threadIdx.x % WARPGROUP;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const i32 r = me / 8 + p * (WARPGROUP / 8);
        const i32 token = r < MF_BM ? mf_id_token(a.sorted_ids[(i64)block * MF_BM + r]) : a.token;
        ret.at[p] = token < a.token ? (u32)token * (MF_D * BYTES / 16) + me % 8 : ~0u;
    }
}
MF_DEVICE void gather(const mf_hip_tile_args &a, const rows &from, i32 k_tile, u8 *tokens)
{
    const i32 me = threadIdx.x % WARPGROUP, row = me / 8, chunk = me % 8;
    const bool within = k_tile * K_TILE_BYTES + chunk * 16 < MF_D * BYTES;
    u8 *to = tokens + row * K_TILE_BYTES + ((chunk ^ (row & 7)) << 4);
    const u8 *x = (const u8 *)a.x + k_tile * K_TILE_BYTES;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const bool there = within && from.at[p] != ~0u;
        if (MF_BM % (WARPGROUP / 8) == 0 || row + p * (WARPGROUP / 8) < MF_BM)
            mf_copy_async_16(to + p * (WARPGROUP / 8) * K_TILE_BYTES, x + (there ? (u64)from.at[p] * 16 : 0),
                             there);
    }
}
/* Copies the scale of each token for a K tile. */
MF_DEVICE void copy_scales(const mf_hip_tile_args &a, const i64 (&from)[SCALE_PASSES], i32 k_tile, u8 *scales)
{
    const i32 me = threadIdx.x % WARPGROUP;
    MF_UNROLL
    for (int p = 0; p < SCALE_PASSES; p++) {
        if (me + p * WARPGROUP < MF_BM)
            mf_copy_async_4(scales + (me + p * WARPGROUP) * 4,
                            a.x_scale + (from[p] < 0 ? 0 : from[p] + k_tile), from[p] >= 0);
    }
}
/* Loads the sorted ids of the rows whose scales this thread copies. */
MF_DEVICE void load_ids(const mf_hip_tile_args &a, i32 block, i32 (&ret)[SCALE_PASSES])
{
    MF_UNROLL
    for (int p = 0; p < SCALE_PASSES; p++) {
        const i32 r = threadIdx.x % WARPGROUP + p * WARPGROUP;
        ret[p] = r < MF_BM ? a.sorted_ids[(i64)block * MF_BM + r] : a.token;
    }
}
MF_DEVICE void find_scales(const mf_hip_tile_args &a, i32 block, const i32 (&ids)[SCALE_PASSES],
                           i64 (&ret)[SCALE_PASSES])
{
    MF_UNROLL
    for (int p = 0; p < SCALE_PASSES; p++) {
        const i64 at = (i64)block * MF_BM + threadIdx.x % WARPGROUP + p * WARPGROUP;
        const i32 token = mf_id_token(ids[p]);
        ret[p] = token < a.token ? (GATHERS ? (i64)token : at) * BLOCKS_D : -1;
    }
}

/* Type of side_work for a producer without side work. */
struct no_side_work {
    __device__ __forceinline__ void operator()()
    {
    }
    __device__ __forceinline__ void end()
    {
    }
};

/* Type of `ready` if an earlier launch wrote the tokens, so that the producer need not wait. */
struct no_wait {
    static const bool has_order = true;
    static __device__ __forceinline__ bool is_pending()
    {
        return false;
    }
    __device__ __forceinline__ void operator()(i32) const
    {
    }
};

MF_DEVICE u8 *weights_of(const ring &r, i32 k_tile)
{
    return MF_WEIGHT_REUSE ? r.resident + k_tile * WEIGHT_BYTES : stage_of(r);
}
MF_DEVICE u8 *tokens_of(const ring &r)
{
    return stage_of(r) + (MF_WEIGHT_REUSE ? 0 : WEIGHT_BYTES);
}

/* A tile that the producer loads. */
struct tile_load {
    tile_coord at;
    mf_tma_coord next; /* coordinate of the next K tile of weights */
    /* no other expert block uses these weights, so L2 should evict them before tokens, h and y */
    bool evict_first;
    bool reuses_weights;   /* true: the weights of the previous tile are used again */
    i32 ids[SCALE_PASSES]; /* set by load_ids() */
};
/* Prepares the loads of a tile and starts the tile's global reads at once. follows: true if the tile belongs
 * to the same run as the previous tile. with_ids: true if the sorted ids are already written, so that they
 * can be loaded here. */
MF_DEVICE void begin_load(const mf_hip_tile_args &a, const mf_hip_weights &w, const tile_coord &at,
                          i32 n_blocks, bool follows, bool with_ids, tile_load &ret)
{
    ret.at = at;
    if (at.block < 0)
        return;
    const i32 before = a.experts[MF_MAX(at.block - 1, 0)], expert = a.experts[at.block],
              behind = a.experts[MF_MIN(at.block + 1, n_blocks - 1)];
    if (with_ids)
        load_ids(a, at.block, ret.ids);
    const bool is_first = at.block == 0 || before != expert,
               is_last = at.block + 1 == n_blocks || behind != expert;
    ret.next = mf_tma_coord_of(&w, 0, at.col, expert);
    ret.evict_first = is_first & is_last;
    ret.reuses_weights = follows & !is_first;
}

/* Waits until the pipeline stage is empty. Then issues the TMA load of the next K tile of weights, unless
 * weights are reused. */
MF_DEVICE void load_weights(const mf_hip_weights &w, const ring &r, i32 k_tile, tile_load &c)
{
    wait_empty(r);
    if (threadIdx.x % WARPGROUP > 0)
        return;
    u64 *full = r.full + r.at % MF_STAGES;
    mf_mbarrier_arrive_expect_tx(full,
                                 ((c.reuses_weights ? 0 : MF_BN) + (GATHERS ? 0 : MF_BM)) * K_TILE_BYTES);
    if (c.reuses_weights)
        return;
    /* with fewer pipeline stages, wait_empty() has already waited for the release of these weights */
    if (MF_WEIGHT_REUSE && MF_STAGES > K_TILES && r.at >= K_TILES)
        wait_released(r, K_TILES);
    mf_tma_load_5d(weights_of(r, k_tile), &w.map, full, c.next, c.evict_first);
    /* the coordinate is incremented, because the compiler would otherwise keep all products k_tile *
     * w.slice_0 in registers */
    c.next.c0 += w.slice_0;
    c.next.c3 += w.slice_3;
}

/* Producer loop: loads all K tiles of this block's tiles.
 *
 * scheduler.request() requests the next run. scheduler() returns the first tile of the run, or an index
 * beyond the last tile if no run is left. ready(block) waits until the tokens of an expert block are written;
 * all producer threads that copy tokens call ready(). When they call it, the weights of the tile's first K
 * tile are already in flight. If tokens may be missing (is_pending()), the weights of the first tile fill the
 * whole ring before the wait. Ready::has_order is true if the sorted ids are already written. side_work()
 * runs after each K tile. */
template <class Scheduler, class Ready, class SideWork>
MF_DEVICE void produce(const mf_hip_weights &w, const mf_hip_map &x_map, const mf_hip_tile_args &t, ring &r,
                       i32 n_blocks, Scheduler &scheduler, Ready &ready, SideWork &side_work)
{
    const bool with_ids = BY_BLOCK && Ready::has_order;
    const i32 me = threadIdx.x % WARPGROUP;
    rows row;
    i64 scale[SCALE_PASSES];
    tile_load now;
    i32 i = 0, ahead = MF_STAGES; /* i: index of the tile; only thread 0 knows it */
    if (!USES_CP_ASYNC && me > 0)
        return;
    if (me == 0) {
        scheduler.request();
        publish_tile(r, tile_coord_of(t, n_blocks, i = scheduler()));
    }
    begin_load(t, w, wait_tile(r), n_blocks, false, with_ids, now);
    for (; now.at.block >= 0; ahead = 1) {
        const i32 block = now.at.block;
        i32 issued;
        bool follows = false; /* true: the next tile belongs to the same run */
        for (issued = 0; issued < (ready.is_pending() ? MF_MIN(ahead, K_TILES) : 1); issued++) {
            ring later = r;
            later.at += issued;
            load_weights(w, later, issued, now);
        }
        ready(block);
        if (GATHERS)
            find_rows(t, block, row);
        if (BY_BLOCK && !with_ids)
            load_ids(t, block, now.ids);
        if (BY_BLOCK)
            find_scales(t, block, now.ids, scale);
        r.n_tiles++;
        for (i32 k_tile = 0; k_tile < K_TILES; k_tile++, r.at++) {
            u8 *tokens = tokens_of(r);
            u64 *full = r.full + r.at % MF_STAGES;
            if (k_tile >= issued)
                load_weights(w, r, k_tile, now);
            if (k_tile == 0 && me == 0) {
                follows = (i + 1) % RUN > 0 && block + 1 < n_blocks;
                if (!follows)
                    scheduler.request();
            }
            if (!GATHERS && me == 0)
                mf_tma_load_2d(tokens, &x_map, full, k_tile * K_TILE, block * MF_BM);
            if (GATHERS)
                gather(t, row, k_tile, tokens);
            if (BY_BLOCK)
                copy_scales(t, scale, k_tile, tokens + MF_BM * K_TILE_BYTES);
            if (USES_CP_ASYNC)
                mf_mbarrier_arrive_cp_async(full);
            side_work();
        }
        if (me == 0)
            publish_tile(r, tile_coord_of(t, n_blocks, i = follows ? i + 1 : scheduler()));
        begin_load(t, w, wait_tile(r), n_blocks, follows, with_ids, now);
    }
    r.n_tiles++;
}

/* A consumer's data about a tile, which are loaded before the mainloop. */
struct tile_info {
    i32 block, col, expert;
    /* Sorted ids at token QM_HALF * 8 and at token QM_LEAST * 8 of the block. They are loaded long before
     * they are tested. */
    i32 half, least;
    i32 id; /* result of first_id() or warp_row_id() */
};

/* is_few() returns true if the block's tokens fit into QM_HALF groups of 8, is_fewest() if they fit into
 * QM_LEAST groups. Padding is at the end of a block. */
MF_DEVICE bool is_few(const mf_hip_tile_args &a, const tile_info &p)
{
    return mf_id_token(p.half) >= a.token;
}
MF_DEVICE bool is_fewest(const mf_hip_tile_args &a, const tile_info &p)
{
    return mf_id_token(p.least) >= a.token;
}

/* Releases all K tiles of a tile in which this warpgroup has nothing to multiply. */
MF_DEVICE void skip_k_tiles(ring &r)
{
    MF_NO_UNROLL
    for (i32 k_tile = 0; k_tile < K_TILES; k_tile++, r.at++) {
        wait_full(r);
        release_stage(r, 0);
    }
}

/* Returns true if the weight scales of the next 32 K tiles must be loaded. Each lane holds the scales of one
 * K tile in 32. */
MF_DEVICE bool scales_exhausted(i32 k_tile)
{
    return K_TILES > MF_WAVE && k_tile > 0 && k_tile % MF_WAVE == 0;
}

#if SHORT_K
#    include "hopper_short_k.inc.h"
#elif MF_SWAP
#    include "hopper_tokens_m.inc.h"
#else
#    include "hopper_weights_m.inc.h"
#endif

MF_DEVICE tile_info tile_info_of(const mf_hip_tile_args &a, const tile_coord &t, const writers &w)
{
    tile_info p;
    p.block = t.block;
    p.col = t.col;
    p.expert = a.experts[p.block];
    p.half = a.sorted_ids[(i64)p.block * MF_BM + QM_HALF * 8];
    p.least = a.sorted_ids[(i64)p.block * MF_BM + QM_LEAST * 8];
#if WARP_EPILOGUE
    p.id = warp_row_id(a, p.block, w);
#else
    p.id = first_id(a, p.block, w);
#endif
    return p;
}

/* A consumer warpgroup's part of a tile, and the named barrier that it shares with the threads that write the
 * same rows. */
struct tile_part {
    i32 part_index, barrier_id;
    writers rows;
    bool waits; /* ping-pong: true if this warpgroup must wait for the other warpgroup's mainloop */
    u16 *out;
};

/* Returns a warpgroup's part of a tile. `tile` is the running number of the tile in this block. If the two
 * warpgroups split the tokens, a tile with few tokens occupies only one warpgroup. The parts alternate from
 * tile to tile, so that the epilogue of one warpgroup overlaps the mainloop of the other. */
MF_DEVICE tile_part tile_part_of(i32 group, u32 tile, u8 *outs)
{
    const i32 each = MF_BM / CONSUMERS; /* rows per consumer warpgroup */
    tile_part ret;
    ret.waits = false;
    ret.part_index = MF_PINGPONG ? 0 : OWN_EPILOGUE ? group ^ (i32)(tile & 1) : group;
    ret.barrier_id = OWN_EPILOGUE ? 1 + group : 1;
    ret.rows.me = OWN_EPILOGUE ? threadIdx.x % WARPGROUP : threadIdx.x;
    ret.rows.threads = OWN_EPILOGUE ? WARPGROUP : CONSUMERS * WARPGROUP;
    ret.rows.rows = OWN_EPILOGUE && !MF_PINGPONG ? each : MF_BM;
    ret.rows.first = OWN_EPILOGUE && !MF_PINGPONG ? ret.part_index * each : 0;
    ret.out = (u16 *)(outs + (MF_PINGPONG ? group * OUT_BYTES : 0));
    /* a warpgroup always uses the same rows of `out`, whichever part of the tile it computes */
    if (OWN_EPILOGUE && !MF_PINGPONG && !WARP_EPILOGUE)
        ret.out += (group - ret.part_index) * each * OUT_STRIDE;
    return ret;
}

/* Runs the mainloop and the first half of the epilogue, and leaves the tile's product in `out`. Returns true
 * if another tile follows. */
template <int N, class Done>
MF_DEVICE bool compute_tile(const mf_hip_tile_args &a, ring &r, const tile_info &p, const tile_part &mine,
                            Done &done)
{
    const i32 group = mf_warp_uniform(threadIdx.x / WARPGROUP);
    product d;
    /* A warpgroup waits for the other warpgroup's mainloop before it waits for its own K tiles, because an
     * mbarrier distinguishes only the current phase and the previous one. */
    if (MF_PINGPONG && mine.waits)
        mf_named_barrier_sync(CONSUMERS + 1 + group, CONSUMERS * WARPGROUP);
    multiply_tile<N>(a, r, p, mine.part_index, d);
    r.n_tiles++;
    const bool more = wait_tile(r).block >= 0;
    if (MF_PINGPONG && more)
        mf_named_barrier_arrive(CONSUMERS + 1 + (group + 1) % CONSUMERS, CONSUMERS * WARPGROUP);
    if (WARP_EPILOGUE) {
        store_tile<N>(a, p, mine.part_index, d, mine.out);
        return more;
    }
    done.wait_out();
    mf_named_barrier_sync(mine.barrier_id, mine.rows.threads);
    done.count(mine.rows.me);
    store_tile<N>(a, p, mine.part_index, d, mine.out);
    mf_async_fence();
    mf_named_barrier_sync(mine.barrier_id, mine.rows.threads);
    return more;
}

/* Runs the second half of the epilogue: writes the tile's rows from `out` to global memory, unless the first
 * half has already added them to y. */
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const tile_info &p, const tile_part &mine)
{
#if WARP_EPILOGUE
    (void)a, (void)p, (void)mine;
#elif defined(MF_QUANT)
    if (quantises_in_registers(a, p))
        store_codes(a, p.block, p.col, (const u8 *)mine.out, mine.rows, p.id);
    else
        store_quantised<BF16_ROWS, OWN_EPILOGUE ? WARPGROUP : CONSUMERS * WARPGROUP>(a, p.block, p.col,
                                                                                     mine.out, mine.rows.me);
#else
    store(a, p.block, p.col, mine.out, mine.rows, p.id);
#endif
}

/* Type of `done` if no other block waits for the tiles. */
struct no_completion_signal {
    static const bool counts_late = false;
    __device__ __forceinline__ void wait_out() const
    {
        mf_bulk_wait_read();
    }
    __device__ __forceinline__ void count(i32) const
    {
    }
    __device__ __forceinline__ void operator()(i32, const tile_part &) const
    {
    }
};

/* Consumer loop. After a tile's rows are stored, or their stores are in flight, all threads that store rows
 * call done(block, mine). done.wait_out() makes each of these threads wait until `out` may be overwritten.
 * done.count(me) runs when all these threads have waited; with Done::counts_late it also runs after the last
 * tile. */
template <class Done> MF_DEVICE void consume_tiles(const mf_hip_tile_args &a, ring &r, u8 *outs, Done done)
{
    const i32 group = mf_warp_uniform(threadIdx.x / WARPGROUP);
    const u32 first_k_tile = r.at, first_tile = r.n_tiles;
    bool more = wait_tile(r).block >= 0;
    if (MF_PINGPONG && more && group > 0) {
        r.at += K_TILES;
        r.n_tiles++;
        more = wait_tile(r).block >= 0;
    }
    tile_info next;
    if (more)
        next = tile_info_of(a, wait_tile(r), tile_part_of(group, r.n_tiles, outs).rows);
    while (more) {
        const tile_info p = next;
        tile_part mine = tile_part_of(group, r.n_tiles, outs);
        mine.waits = r.n_tiles > first_tile;
        if (TRIMS > 1 && is_fewest(a, p))
            more = compute_tile<QM_LEAST>(a, r, p, mine, done);
        else if (TRIMS > 0 && is_few(a, p))
            more = compute_tile<QM_HALF>(a, r, p, mine, done);
        else
            more = compute_tile<QM>(a, r, p, mine, done);
        if (!MF_PINGPONG && more)
            next = tile_info_of(a, wait_tile(r), tile_part_of(group, r.n_tiles, outs).rows);
        store_tile(a, p, mine);
        done(p.block, mine);
        if (MF_PINGPONG && more) { /* skip the other warpgroup's tile */
            r.at += K_TILES;
            r.n_tiles++;
            more = wait_tile(r).block >= 0;
            if (more)
                next = tile_info_of(a, wait_tile(r), mine.rows);
        }
    }
    done.wait_out();
    if (Done::counts_late) {
        const tile_part mine = tile_part_of(group, r.n_tiles, outs);
        mf_named_barrier_sync(mine.barrier_id, mine.rows.threads);
        done.count(mine.rows.me);
    }
    r.at = first_k_tile + (r.n_tiles - first_tile) * K_TILES;
    r.n_tiles++;
}
