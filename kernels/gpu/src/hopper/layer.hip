/* The whole MoE layer in one launch with the Hopper mainloop (hopper_core.inc.h), for enough tokens to use
 * WGMMA.
 *
 * The grid is cooperative, one block per SM. Each block zeroes its part of y and quantises its part of x. It
 * sorts all ids, so that it knows the expert of each expert block, but writes only its part of the order to
 * memory. Its producer warps then issue weight loads, and load tokens of stage 1 after a grid barrier. Each
 * finished tile of h increments a count of its expert block, and stage 2 loads rows of h once the block's
 * count is complete. HBM thus streams weights from the sort to the end of the kernel, and only the first and
 * last tiles expose latency.
 *
 *   MF_E, MF_FIRST (local_experts.h); the macros of hopper_two_stages.h
 *
 *   shared memory: as in hopper_ring.h, with the larger `out` of the two stages, then num_valid i32[2] and
 *        experts i32[rows / MF_BM]; the sort uses the same memory first */
#define MF_WGMMA 1
#include "dialect.h"
#include "hopper_two_stages.h"
#define MF_BLOCK_M MF_BM
#define MF_THREADS 384
#include "sort.h"

__device__ u32 mf_meeting[2];

/* Tile scheduler. A block's first tile of a stage has the block's index, so that the tile is known before the
 * grid barrier. The scheduler ignores L2 partitions, because with few tokens hardly any data are read by more
 * than one SM. */
struct tile_scheduler {
    u32 *claims;
    bool first;
    i32 next;
    __device__ __forceinline__ void request()
    {
        next = first ? (i32)blockIdx.x : (i32)(gridDim.x + mf_fetch_increment(claims));
        first = false;
    }
    __device__ __forceinline__ i32 operator()() const
    {
        return next;
    }
};

/* Waits until x is quantised, the order is written, and y and the counts are zeroed. */
struct wait_prepared {
    static const bool has_order = false;
    u32 generation;
    static __device__ __forceinline__ bool is_pending()
    {
        return true;
    }
    __device__ __forceinline__ void operator()(i32) const
    {
        while (mf_grid_generation(mf_meeting) == generation)
            ;
    }
};
/* Waits until all tiles of h of an expert block are written. */
struct wait_h {
    static const bool has_order = true;
    const u32 *done;
    static __device__ __forceinline__ bool is_pending()
    {
        return true;
    }
    __device__ __forceinline__ void operator()(i32 block) const
    {
        mf_wait_parts(done + block, up::tiles_of_block);
    }
};
/* Counts a tile of h after all threads have stored their rows. */
struct count_tile : up::no_completion_signal {
    u32 *done;
    explicit __device__ __forceinline__ count_tile(u32 *counts) : done(counts)
    {
    }
    __device__ __forceinline__ void operator()(i32 block, const up::tile_part &mine) const
    {
        mf_bulk_wait();
        mf_publish_writes();
        mf_named_barrier_sync(mine.barrier_id, mine.rows.threads);
        if (mine.rows.me == 0)
            mf_signal_part(done + block);
    }
};

#define HELD 4 /* number of 16-byte pieces of x in flight per thread */

/* Prologue of the consumer threads: zeroes y and the counts, and quantises x, eight elements at a time.
 * begin() issues the first loads of x. Their data are used after the sort has issued its loads of ids. */
struct prologue {
    const mf_hip_layer_args &a;
    i32 me, threads;
    mf_16b held[HELD];

    __device__ __forceinline__ void load(i64 first)
    {
        MF_UNROLL
        for (int c = 0; c < HELD; c++) {
            const i64 i = first + (i64)c * threads;
            held[c] = mf_16b{0, 0, 0, 0};
            if (i < (i64)a.token * (MF_H / 8))
                held[c] = mf_load_once((const mf_16b *)a.x + i);
        }
    }
    /* Sixteen lanes share a group; all lanes of a warp take part in each iteration. */
    __device__ __forceinline__ void quantise(i64 first) const
    {
        MF_UNROLL
        for (int c = 0; c < HELD; c++) {
            const i64 i = first + (i64)c * threads;
            if (i - me % MF_WAVE >= (i64)a.token * (MF_H / 8))
                break;
            const mf_divisor d = mf_divisor_of(mf_amax_of_16_lanes(mf_amax_8(held[c])));
            if (i >= (i64)a.token * (MF_H / 8))
                continue;
            ((mf_8b *)a.up.x)[i] = mf_quantise_8(held[c], d);
            if (i % 16 == 0)
                ((float *)a.up.x_scale)[i / 16] = d.by;
        }
    }
    __device__ __forceinline__ void begin()
    {
        if (threadIdx.x >= WARPGROUP * CONSUMERS)
            return;
        if (BY_BLOCK)
            load(me);
        for (i64 i = me; i < (i64)a.token * (MF_H / 8); i += threads)
            ((mf_16b *)a.down.out)[i] = mf_16b{0, 0, 0, 0};
        for (i32 i = me; i < a.rows / MF_BM; i += threads)
            a.done[i] = 0;
        if (me < 2)
            a.taken[me] = 0;
    }
    __device__ __forceinline__ void operator()()
    {
        if (!BY_BLOCK || threadIdx.x >= WARPGROUP * CONSUMERS)
            return;
        quantise(me);
        for (i64 first = me + (i64)HELD * threads; first - me % MF_WAVE < (i64)a.token * (MF_H / 8);
             first += (i64)HELD * threads) {
            load(first);
            quantise(first);
        }
    }
};

MF_DEVICE void set_order(mf_hip_tile_args &t, const mf_hip_sort_args &s)
{
    t.sorted_ids = s.sorted_ids;
    t.sorted_weights = s.sorted_weights;
    t.experts = s.experts;
    t.num_valid = s.num_valid;
}

extern "C" __global__ void __launch_bounds__(MF_THREADS, 1)
    mf_layer(const __grid_constant__ mf_hip_layer_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    u8 *outs = lds + MF_STAGES * STAGE_BYTES;
    ring r = ring_at(lds, OUT_REGION_BYTES);
    mf_hip_tile_args t1 = a.up, t2 = a.down;
    mf_hip_sort_args sort;
    sort.ids = a.ids;
    sort.weights = a.weights;
    sort.sorted_ids = a.sorted_ids;
    sort.sorted_weights = a.sorted_weights;
    sort.num_valid = (i32 *)(r.tiles + TILE_QUEUE); /* each block has its own num_valid and experts */
    sort.experts = sort.num_valid + 2;
    sort.counts = nullptr;
    sort.token = a.token;
    sort.types = a.types;

    mf_begin();
    wait_prepared wait_prepared = {mf_grid_generation(mf_meeting)};
    prologue mine = {a, (i32)(blockIdx.x * WARPGROUP * CONSUMERS + threadIdx.x),
                     (i32)gridDim.x * WARPGROUP * CONSUMERS};
    mine.begin();
    sort_ids(sort, (i32 *)lds, block_part{(i32)blockIdx.x, (i32)gridDim.x, RANK_ALL}, mine);
    set_order(t1, sort);
    set_order(t2, sort);
    mf_publish_writes(); /* before the weight loads, because these would delay the writes */
    init_ring(r, WARPGROUP);
    const i32 n_blocks = sort.num_valid[0] / MF_BM;
    if (threadIdx.x >= WARPGROUP * CONSUMERS) {
        mf_registers_dealloc<up::producer_regs>();
        up::no_side_work up_aside;
        down::no_side_work down_aside;
        tile_scheduler of_up = {a.taken, true, 0}, of_down = {a.taken + 1, true, 0};
        wait_h wait_h = {a.done};
        up::produce(a.w1, a.w1.map, t1, r, n_blocks, of_up, wait_prepared, up_aside);
        if ((i32)blockIdx.x >= n_blocks * up::tiles_of_block)
            /* the block had no tile of stage 1, so it has not waited yet; stage 2 needs the wait, because
             * other blocks zero the counts of stage 2 */
            wait_prepared(0);
        down::produce(a.w2, a.h_map, t2, r, n_blocks, of_down, wait_h, down_aside);
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_alloc<up::consumer_regs>();
        if (threadIdx.x == 0)
            mf_grid_count(mf_meeting);
        wait_prepared(0);
        up::consume_tiles(t1, r, outs, count_tile(a.done));
        /* the other warpgroup's rows may still occupy this warpgroup's region of `out` */
        if (down::own_epilogue)
            mf_named_barrier_sync(2 * CONSUMERS + 1, CONSUMERS * WARPGROUP);
        down::consume_tiles(t2, r, outs, down::no_completion_signal());
    }
}
