/* The whole layer in one launch by Hopper's core (hopper_core.inc.h), for tokens that matrix instructions multiply.
 *
 * The grid is resident as a whole, a block a unit. Each block zeroes its share of y, quantises its share of x and sorts for itself,
 * so that it knows which expert each block of rows has; of the order itself it writes a share. Then its bringing waves ask for
 * weights, and for the tokens of stage 1 once all blocks have met. A tile of h that is stored is counted for its block of rows, and
 * stage 2 brings rows of h once all tiles of their block are there. So memory is asked for weights from the sort to the end, and
 * nothing but the first and the last tiles waits.
 *
 *   MF_E, MF_FIRST (share.h), and what hopper_both.h says
 *
 *   lds: as hopper_ring.h has it, of the stage whose out is larger, then num_valid i32[2] and experts i32[rows / MF_BM];
 *        before that the sort's */
#define MF_WGMMA 1
#include "dialect.h"
#include "hopper_both.h"
#define MF_BLOCK_M MF_BM
#define MF_THREADS 384
#include "sort.h"

__device__ u32 mf_meeting[2];

/* A block's first tile of a stage is that of its number, which it knows before the blocks have met. Units have no halves here: with few
 * tokens nearly all that is read is read by one. */
struct taking {
    u32 *taken;
    bool first;
    i32 next;
    __device__ __forceinline__ void ask()
    {
        next = first ? (i32)blockIdx.x : (i32)(gridDim.x + mf_take_one(taken));
        first = false;
    }
    __device__ __forceinline__ i32 operator()() const
    {
        return next;
    }
};

/* Until x is quantised, the order written, and y and the counts zeroed. */
struct prepared {
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
/* Until all of h that an expert block has is there. */
struct multiplied {
    static const bool has_order = true;
    const u32 *done;
    static __device__ __forceinline__ bool is_pending()
    {
        return true;
    }
    __device__ __forceinline__ void operator()(i32 block) const
    {
        mf_parts_wait(done + block, up::tiles_of_block);
    }
};
/* Counts a tile of h, once all have stored their rows. */
struct count_tile : up::no_completion_signal {
    u32 *done;
    explicit __device__ __forceinline__ count_tile(u32 *counts) : done(counts) {}
    __device__ __forceinline__ void operator()(i32 block, const up::part_of &mine) const
    {
        mf_bulk_wait();
        mf_written_for_all();
        mf_group_sync(mine.number, mine.rows.threads);
        if (mine.rows.me == 0)
            mf_part_done(done + block);
    }
};

#define HELD 4 /* pieces of x that a thread has at once */

/* What the threads that multiply do before anything is multiplied: zero y and the counts, and quantise x, eight elements at a
 * time. The first loads are asked for by begin, and used while ids are on their way. */
struct preparing {
    const mf_hip_layer_args &a;
    i32 me, threads;
    mf_16b held[HELD];

    __device__ __forceinline__ void take(i64 first)
    {
        MF_UNROLL
        for (int c = 0; c < HELD; c++) {
            const i64 i = first + (i64)c * threads;
            held[c] = mf_16b{0, 0, 0, 0};
            if (i < (i64)a.token * (MF_H / 8))
                held[c] = mf_load_once((const mf_16b *)a.x + i);
        }
    }
    /* Sixteen lanes have a group; all lanes of a wave take part in each turn. */
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
        if (threadIdx.x >= GROUP * GROUPS)
            return;
        if (BY_BLOCK)
            take(me);
        for (i64 i = me; i < (i64)a.token * (MF_H / 8); i += threads)
            ((mf_16b *)a.down.out)[i] = mf_16b{0, 0, 0, 0};
        for (i32 i = me; i < a.rows / MF_BM; i += threads)
            a.done[i] = 0;
        if (me < 2)
            a.taken[me] = 0;
    }
    __device__ __forceinline__ void operator()()
    {
        if (!BY_BLOCK || threadIdx.x >= GROUP * GROUPS)
            return;
        quantise(me);
        for (i64 first = me + (i64)HELD * threads; first - me % MF_WAVE < (i64)a.token * (MF_H / 8);
             first += (i64)HELD * threads) {
            take(first);
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

extern "C" __global__ void __launch_bounds__(MF_THREADS, 1) mf_layer(const __grid_constant__ mf_hip_layer_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    u8 *outs = lds + MF_STAGES * RING_BYTES;
    ring r = ring_at(lds, BOTH_OUTS);
    mf_hip_tile_args t1 = a.up, t2 = a.down;
    mf_hip_sort_args sort;
    sort.ids = a.ids;
    sort.weights = a.weights;
    sort.sorted_ids = a.sorted_ids;
    sort.sorted_weights = a.sorted_weights;
    sort.num_valid = (i32 *)(r.tiles + QUEUE); /* each block's own, and so are the experts */
    sort.experts = sort.num_valid + 2;
    sort.counts = nullptr;
    sort.token = a.token;

    mf_begin();
    prepared prepared = {mf_grid_generation(mf_meeting)};
    preparing mine = {a, (i32)(blockIdx.x * GROUP * GROUPS + threadIdx.x), (i32)gridDim.x * GROUP * GROUPS};
    mine.begin();
    sort_ids(sort, (i32 *)lds, sharing{(i32)blockIdx.x, (i32)gridDim.x, RANK_ALL}, mine);
    set_order(t1, sort);
    set_order(t2, sort);
    mf_written_for_all(); /* before memory is busy with weights, behind which it would wait */
    begin_ring(r, GROUP);
    const i32 n_blocks = sort.num_valid[0] / MF_BM;
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<up::brings>();
        up::nothing_aside up_aside;
        down::nothing_aside down_aside;
        taking of_up = {a.taken, true, 0}, of_down = {a.taken + 1, true, 0};
        multiplied multiplied = {a.done};
        up::bring(a.w1, a.w1.map, t1, r, n_blocks, of_up, prepared, up_aside);
        if ((i32)blockIdx.x >= n_blocks * up::tiles_of_block)
            prepared(0); /* has waited for no tile of the first stage, and the counts of the second are zeroed by others, too */
        down::bring(a.w2, a.h_map, t2, r, n_blocks, of_down, multiplied, down_aside);
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_take<up::multiplies>();
        if (threadIdx.x == 0)
            mf_grid_count(mf_meeting);
        prepared(0);
        up::multiply_tiles(t1, r, outs, count_tile(a.done));
        if (down::alone) /* rows that another group has yet to store lie where this one's will */
            mf_group_sync(2 * GROUPS + 1, GROUPS * GROUP);
        down::multiply_tiles(t2, r, outs, down::no_completion_signal());
    }
}
