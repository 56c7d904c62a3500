/* Rows into expert order and back, MF_CHUNK bytes at a time; a row is MF_ROW bytes. K is MF_K.
 *
 *   mf_gather     each row of expert order fetches its token's: reads are repeated, so x should stay in the last cache
 *   mf_permute    each token's row is read once and written to all of its places, as memory is what takes longest then
 *   mf_sort_permute  the sort, too, for few routes: every block makes the order for itself in LDS, so that none waits for
 *                 another, and the rows that it will write are on their way meanwhile
 *   mf_unpermute  y[t] = sum over the slots of t of their rows, times their routing weights where MF_WEIGHTED, slots upwards,
 *                 in floats, so that every run gives the same bits
 *
 * mf_permute and mf_unpermute go by the inverse of the sorted ids: blocks make it together, meet, and use it; all have to be resident. A route
 * without a row leaves in a.row_of what lay there, so that an entry counts only where the row's id says the same. Rows of
 * padding are neither read nor written. */
#include "dialect.h"
#include "args.h"

#define CHUNKS (MF_ROW / MF_CHUNK) /* of a row */
#define TURNS  4                   /* chunks of a thread in flight */

#if MF_CHUNK == 16
typedef mf_16b chunk;
MF_DEVICE chunk load(const void *p)
{
    return mf_load_once(p);
}
#else
typedef mf_8b chunk;
MF_DEVICE chunk load(const void *p)
{
    return *(const mf_8b *)p;
}
#endif

MF_DEVICE i32 used_rows(const mf_hip_permute_args &a)
{
    return MF_MIN(a.rows, a.num_valid[0]);
}
MF_DEVICE i64 me()
{
    return (i64)blockIdx.x * MF_THREADS + threadIdx.x;
}
MF_DEVICE i64 all()
{
    return (i64)gridDim.x * MF_THREADS;
}

#if defined(MF_SCALES) && MF_SCALES % 4 == 0
typedef u32 scale_part;
#else
typedef u8 scale_part;
#endif
/* What scales all rows. */
MF_DEVICE void keep_shared(const mf_hip_permute_args &a)
{
#ifndef MF_SCALES
    if (a.to_scale && me() == 0)
        *(u32 *)a.to_scale = *(const u32 *)a.from_scale;
#endif
    if (a.to_factor && me() == 0)
        *a.to_factor = *a.from_factor;
}
/* And each, MF_SCALES bytes of it. */
MF_DEVICE void gather_scales(const mf_hip_permute_args &a)
{
#ifdef MF_SCALES
    const i32 parts = MF_SCALES / sizeof(scale_part);
    const i64 n = (i64)used_rows(a) * parts;
    for (i64 at = me(); at < n; at += all()) {
        const i64 row = at / parts, token = mf_id_token(a.sorted_ids[row]);
        if (token < a.token)
            ((scale_part *)a.to_scale)[at] = ((const scale_part *)a.from_scale)[token * parts + (at - row * parts)];
    }
#endif
    keep_shared(a);
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_gather(const mf_hip_permute_args a)
{
    mf_begin();
    const i64 n = (i64)used_rows(a) * CHUNKS;
    for (i64 first = me(); first < n; first += TURNS * all()) {
        chunk v[TURNS];
        bool there[TURNS];
        MF_UNROLL
        for (int t = 0; t < TURNS; t++) {
            const i64 at = first + t * all(), row = at / CHUNKS;
            const i64 token = at < n ? mf_id_token(a.sorted_ids[row]) : a.token;
            there[t] = token < a.token;
            if (there[t])
                v[t] = load((const u8 *)a.from + (token * CHUNKS + (at - row * CHUNKS)) * MF_CHUNK);
        }
        MF_UNROLL
        for (int t = 0; t < TURNS; t++) {
            if (there[t])
                ((chunk *)a.to)[first + t * all()] = v[t];
        }
    }
    gather_scales(a);
}

__device__ u32 mf_barrier[2];

MF_DEVICE void invert(const mf_hip_permute_args &a)
{
    u32 generation = 0;
    mf_begin();
    for (i64 row = me(); row < used_rows(a); row += all()) {
        const i32 id = a.sorted_ids[row];
        if (mf_id_token(id) < a.token)
            a.row_of[(i64)mf_id_token(id) * MF_K + mf_id_slot(id)] = (i32)row;
    }
    mf_grid_arrive(mf_barrier, &generation);
    mf_grid_wait(mf_barrier, generation);
}
/* -1: the route has none. */
MF_DEVICE void rows_of(const mf_hip_permute_args &a, i32 token, i32 (&rows)[MF_K])
{
    const i32 used = used_rows(a);
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        rows[j] = mf_load_shared_by_grid_4(a.row_of + (i64)token * MF_K + j);
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        rows[j] = (u32)rows[j] < (u32)used && a.sorted_ids[rows[j]] == (j << 24 | token) ? rows[j] : -1;
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_permute(const mf_hip_permute_args a)
{
    const i64 n = (i64)a.token * CHUNKS;
    invert(a);
    for (i64 at = me(); at < n; at += all()) {
        const i32 token = (i32)(at / CHUNKS);
        const i64 column = at - (i64)token * CHUNKS;
        const chunk v = load((const u8 *)a.from + at * MF_CHUNK);
        i32 rows[MF_K];
        rows_of(a, token, rows);
        MF_UNROLL
        for (int j = 0; j < MF_K; j++) {
            if (rows[j] >= 0)
                ((chunk *)a.to)[(i64)rows[j] * CHUNKS + column] = v;
        }
    }
    gather_scales(a);
}

#ifdef MF_ROUTES /* at most */
#    include "share.h"
#    include "scan.h"
#    define ROUNDS  MF_CEIL(MF_CEIL(MF_ROUTES, MF_WAVE), WAVES) /* of a wave, over its routes */
#    define EXPERTS MF_CEIL(MF_E, MF_THREADS)                   /* of a thread */

struct order {
    i32 count[WAVES][MF_E]; /* routes of a wave by expert, then those of lower waves */
    i32 start[MF_E], rows[MF_E], room[WAVES], row_of[MF_ROUTES];
};

/* Expert (MF_E or more: none) and place within the wave's of it, of each of a lane's routes. */
MF_DEVICE void count_routes(const mf_hip_permute_args &a, order &o, i32 from, i32 to, u32 (&expert)[ROUNDS],
                            i32 (&rank)[ROUNDS])
{
    const i32 lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    MF_UNROLL
    for (int r = 0; r < ROUNDS; r++) {
        const i32 i = from + r * MF_WAVE + lane;
        expert[r] = i < to ? MF_MIN((u32)mf_local(a.ids[i]), (u32)MF_E) : MF_E;
    }
    for (i32 i = threadIdx.x; i < WAVES * MF_E; i += MF_THREADS)
        o.count[i / MF_E][i % MF_E] = 0;
    __syncthreads();
    MF_UNROLL
    for (int r = 0; r < ROUNDS; r++) {
        const u64 same = mf_match((i32)expert[r]);
        const i32 below = mf_popcount(same & (((u64)1 << lane) - 1));
        const i32 before = expert[r] < MF_E ? o.count[wave][expert[r]] : 0;
        mf_wave_sync();
        if (expert[r] < MF_E && below == 0)
            o.count[wave][expert[r]] = before + mf_popcount(same);
        mf_wave_sync();
        rank[r] = before + below;
    }
    __syncthreads();
}

/* Where each expert's rows begin, and each wave's among them. */
MF_DEVICE i32 place_experts(order &o)
{
    i32 padded[EXPERTS], sum = 0, end;
    MF_UNROLL
    for (int p = 0; p < EXPERTS; p++) {
        const i32 e = threadIdx.x * EXPERTS + p;
        i32 rows = 0;
        for (int w = 0; w < WAVES && e < MF_E; w++) {
            const i32 c = o.count[w][e];
            o.count[w][e] = rows;
            rows += c;
        }
        padded[p] = MF_CEIL(rows, MF_BLOCK_M) * MF_BLOCK_M;
        sum += padded[p];
        if (e < MF_E)
            o.rows[e] = rows;
    }
    i32 first = scan_block(sum, o.room, &end);
    MF_UNROLL
    for (int p = 0; p < EXPERTS; p++) {
        const i32 e = threadIdx.x * EXPERTS + p;
        if (e < MF_E)
            o.start[e] = first;
        first += padded[p];
    }
    __syncthreads();
    return end;
}

/* The sorted order for others: an expert's blocks and padding by one wave of all, the routes by the first block. */
MF_DEVICE void keep_order(const mf_hip_permute_args &a, const order &o, i32 end)
{
    const i32 lane = threadIdx.x % MF_WAVE, runs = gridDim.x * WAVES;
    for (i32 e = blockIdx.x * WAVES + threadIdx.x / MF_WAVE; e < MF_E; e += runs) {
        const i32 at = o.start[e], used = o.rows[e], blocks = MF_CEIL(used, MF_BLOCK_M);
        for (i32 b = lane; b < blocks; b += MF_WAVE)
            a.made_experts[at / MF_BLOCK_M + b] = e;
        for (i32 i = used + lane; i < blocks * MF_BLOCK_M; i += MF_WAVE) {
            a.made_ids[at + i] = (MF_K << 24) | a.token;
            a.made_weights[at + i] = 0.0f;
        }
    }
    if (blockIdx.x > 0)
        return;
    for (i32 i = threadIdx.x; i < a.token * MF_K; i += MF_THREADS) {
        const i32 row = o.row_of[i];
        if (row >= 0) {
            a.made_ids[row] = ((i % MF_K) << 24) | (i / MF_K);
            a.made_weights[row] = a.weights[i];
        }
    }
    if (threadIdx.x == 0) {
        a.made_valid[0] = end;
        a.made_valid[1] = a.token;
    }
}

/* A part of each token's row to its places. */
template <typename PART>
MF_DEVICE void spread(const order &o, void *to, i32 token, i32 parts, i32 column, const PART &v)
{
    for (int j = 0; j < MF_K; j++) {
        const i32 row = o.row_of[token * MF_K + j];
        if (row >= 0)
            ((PART *)to)[(i64)row * parts + column] = v;
    }
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_sort_permute(const mf_hip_permute_args a)
{
    __shared__ order o;
    const i32 n = a.token * CHUNKS, routes = a.token * MF_K;
    const i32 each = MF_CEIL(MF_CEIL(routes, MF_WAVE), WAVES) * MF_WAVE;
    const i32 from = (i32)(threadIdx.x / MF_WAVE) * each, to = MF_MIN(routes, from + each);
    u32 expert[ROUNDS];
    i32 rank[ROUNDS];
    i32 at = (i32)me();
    chunk v;
    mf_begin();
    if (at < n)
        v = load((const u8 *)a.from + (i64)at * MF_CHUNK);
    count_routes(a, o, from, to, expert, rank);
    const i32 end = place_experts(o);
    MF_UNROLL
    for (int r = 0; r < ROUNDS; r++) {
        const i32 i = from + r * MF_WAVE + threadIdx.x % MF_WAVE;
        if (i < to)
            o.row_of[i] =
                expert[r] < MF_E ? o.start[expert[r]] + o.count[threadIdx.x / MF_WAVE][expert[r]] + rank[r] : -1;
    }
    __syncthreads();
    while (at < n) {
        spread(o, a.to, at / CHUNKS, CHUNKS, at % CHUNKS, v);
        at += (i32)all();
        if (at < n)
            v = load((const u8 *)a.from + (i64)at * MF_CHUNK);
    }
#ifdef MF_SCALES
    const i32 parts = MF_SCALES / sizeof(scale_part);
    for (i32 i = (i32)me(); i < a.token * parts; i += (i32)all())
        spread(o, a.to_scale, i / parts, parts, i % parts, ((const scale_part *)a.from_scale)[i]);
#endif
    keep_shared(a);
    keep_order(a, o, end);
}
#endif

#ifdef MF_WEIGHTED
MF_DEVICE void add(float (&sum)[8], const mf_16b &v, float w)
{
    const u32 two[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += w * mf_bf16_low(two[i]);
        sum[2 * i + 1] += w * mf_bf16_high(two[i]);
    }
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_unpermute(const mf_hip_permute_args a)
{
    const i64 n = (i64)a.token * CHUNKS;
    invert(a);
    for (i64 at = me(); at < n; at += all()) {
        const i32 token = (i32)(at / CHUNKS);
        const i64 column = at - (i64)token * CHUNKS;
        i32 rows[MF_K];
        mf_16b v[MF_K];
        float weight[MF_K], sum[8] = {0};
        rows_of(a, token, rows);
        MF_UNROLL
        for (int j = 0; j < MF_K; j++) {
            v[j] = mf_16b{0, 0, 0, 0};
            weight[j] = 0.0f;
            if (rows[j] >= 0) {
                v[j] = load((const u8 *)a.from + ((i64)rows[j] * CHUNKS + column) * MF_CHUNK);
                weight[j] = MF_WEIGHTED ? a.sorted_weights[rows[j]] : 1.0f;
            }
        }
        MF_UNROLL
        for (int j = 0; j < MF_K; j++)
            add(sum, v[j], weight[j]);
        ((mf_16b *)a.to)[at] = mf_16b{mf_bf16_pair(sum[0], sum[1]), mf_bf16_pair(sum[2], sum[3]),
                                      mf_bf16_pair(sum[4], sum[5]), mf_bf16_pair(sum[6], sum[7])};
    }
}
#endif
