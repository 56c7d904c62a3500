/* Moves few rows into expert order and back. For few rows latency dominates, so no block waits for another
 * block (permute.h).
 *
 *   mf_sort_permute   also sorts: every block sorts all ids (at most MF_ROUTES) itself while it loads the
 *                     rows that it will write. There is one block per SM, because sorting occupies the SM.
 *                     a.parts threads split the slots of a chunk among themselves, up to one thread per slot
 *   mf_unpermute_few  does the same as mf_unpermute, but every block inverts all sorted ids itself */
#include "dialect.h"
#include "args.h"
#include "permute.h"

#ifdef MF_WEIGHTED
#    include "unpermute.h"
#    define LOADS_IN_FLIGHT 4 /* number of loads in flight per thread, four ids each */

/* Finds the row of every route, or -1 if the route has no row. */
MF_DEVICE void find_rows(const mf_hip_permute_args &a, i32 *row_of)
{
    const i32 used = a.num_valid[0];
    for (i32 i = threadIdx.x; i < a.token * MF_K; i += MF_THREADS)
        row_of[i] = -1;
    __syncthreads();
    /* the first ids are loaded at the same time as num_valid; ids beyond num_valid are then ignored */
    for (i32 first = 0, end = a.rows; first < end; first += 4 * MF_THREADS * LOADS_IN_FLIGHT, end = used) {
        mf_16b ids[LOADS_IN_FLIGHT];
        MF_UNROLL
        for (int i = 0; i < LOADS_IN_FLIGHT; i++) {
            const i32 row = first + 4 * (i * MF_THREADS + threadIdx.x);
            if (row < end)
                ids[i] = *(const mf_16b *)(a.sorted_ids + row);
        }
        MF_UNROLL
        for (int i = 0; i < LOADS_IN_FLIGHT; i++) {
            const i32 row = first + 4 * (i * MF_THREADS + threadIdx.x);
            const u32 four[4] = {ids[i].x, ids[i].y, ids[i].z, ids[i].w};
            MF_UNROLL
            for (int e = 0; e < 4; e++) {
                if (row + e < used && mf_id_token((i32)four[e]) < a.token)
                    row_of[mf_id_token((i32)four[e]) * MF_K + mf_id_slot((i32)four[e])] = row + e;
            }
        }
    }
    __syncthreads();
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_unpermute_few(const mf_hip_permute_args a)
{
    __shared__ i32 row_of[MF_ROUTES];
    const i32 n = a.token * CHUNKS;
    mf_begin();
    find_rows(a, row_of);
    for (i32 at = (i32)global_thread(); at < n; at += (i32)global_threads()) {
        i32 rows[MF_K];
        slots s;
        MF_UNROLL
        for (int j = 0; j < MF_K; j++)
            rows[j] = row_of[at / CHUNKS * MF_K + j];
        fetch(a, rows, at % CHUNKS, s);
        ((mf_16b *)a.to)[at] = sum_of(s);
    }
}
#else
#    include "count.h"
#    define COUNTING MF_MIN(WAVES, MF_CEIL(MF_ROUTES, MF_WAVE)) /* number of warps that have routes */
#    define ROUNDS   MF_CEIL(MF_CEIL(MF_ROUTES, MF_WAVE), COUNTING)
#    define EXPERTS  MF_CEIL(MF_E, MF_THREADS) /* experts per thread */

struct order {
    /* number of routes per warp and expert; after the scan, the sum over lower warps */
    i32 count[COUNTING][MF_E];
    i32 start[MF_E], rows[MF_E], room[WAVES], row_of[MF_ROUTES];
};

/* Returns a lane's first route. The lane's other routes follow at distances of MF_WAVE. */
MF_DEVICE i32 first_route()
{
    return (i32)(threadIdx.x / MF_WAVE) * ROUNDS * MF_WAVE + threadIdx.x % MF_WAVE;
}

/* Counts each warp's routes by expert, in the warps that have routes. */
MF_DEVICE void count_routes(const mf_hip_permute_args &a, order &o, id_batch<ROUNDS> &t)
{
    const i32 wave = threadIdx.x / MF_WAVE, n = wave < COUNTING ? a.token * MF_K : 0;
    t.first = first_route();
    load_ids(a.ids, a.types, n, t);
    for (i32 i = threadIdx.x; i < COUNTING * MF_E; i += MF_THREADS)
        o.count[i / MF_E][i % MF_E] = 0;
    __syncthreads();
    if (wave < COUNTING)
        count_batch(n, o.count[wave], t);
}

/* Finds the first row of each expert, and within each expert the first row of each warp's routes. */
MF_DEVICE i32 place_experts(order &o)
{
    i32 padded[EXPERTS], sum = 0, end;
    MF_UNROLL
    for (int p = 0; p < EXPERTS; p++) {
        const i32 e = threadIdx.x * EXPERTS + p;
        i32 c[COUNTING], rows = 0;
        MF_UNROLL
        for (int w = 0; w < COUNTING; w++)
            c[w] = e < MF_E ? o.count[w][e] : 0;
        MF_UNROLL
        for (int w = 0; w < COUNTING; w++) {
            if (e < MF_E)
                o.count[w][e] = rows;
            rows += c[w];
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
    return end;
}

/* Writes the sorted order for later kernels. One warp per expert writes the expert's blocks and padding. A
 * route is written by the thread that holds the route's weight. */
MF_DEVICE void write_order(const mf_hip_permute_args &a, const order &o, i32 end, float weight)
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
    for (i32 i = (i32)global_thread(); i < a.token * MF_K; i += (i32)global_threads()) {
        const i32 row = o.row_of[i];
        if (row >= 0) {
            a.made_ids[row] = ((i % MF_K) << 24) | (i / MF_K);
            a.made_weights[row] = i == (i32)global_thread() ? weight : mf_route_weight(a.weights, a.types, i);
        }
    }
    if (global_thread() == 0) {
        a.made_valid[0] = end;
        a.made_valid[1] = a.token;
    }
}

/* Writes a piece of a token's row to the destinations of the slots for which slot modulo `parts` (a power of
 * two) equals `part`. */
template <typename PIECE>
MF_DEVICE void spread(const order &o, void *to, i32 token, i32 pieces, i32 column, const PIECE &v, i32 part,
                      i32 parts)
{
    MF_UNROLL
    for (int j = 0; j < MF_K; j++) {
        if ((j & (parts - 1)) != part)
            continue;
        const i32 row = o.row_of[token * MF_K + j];
        if (row >= 0)
            ((PIECE *)to)[(i64)row * pieces + column] = v;
    }
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_sort_permute(const mf_hip_permute_args a)
{
    __shared__ order o;
    const i32 chunks = a.token * CHUNKS, n = chunks * a.parts, routes = a.token * MF_K;
    id_batch<ROUNDS> t;
    i32 at = (i32)global_thread();
    float weight = 0.0f;
    chunk v;
    mf_begin();
    if (at < n)
        v = load((const u8 *)a.from + (i64)(at % chunks) * MF_CHUNK);
    if (at < routes)
        weight = mf_route_weight(a.weights, a.types, at);
    count_routes(a, o, t);
    __syncthreads();
    const i32 end = place_experts(o), wave = threadIdx.x / MF_WAVE;
    __syncthreads();
    MF_UNROLL
    for (int r = 0; r < ROUNDS; r++) {
        const i32 i = t.first + r * MF_WAVE, e = (i32)t.expert[r];
        if (wave < COUNTING && i < routes)
            o.row_of[i] = e < MF_E ? o.start[e] + o.count[wave][e] + t.rank[r] : -1;
    }
    __syncthreads();
    while (at < n) {
        const i32 within = at % chunks;
        spread(o, a.to, within / CHUNKS, CHUNKS, within % CHUNKS, v, at / chunks, a.parts);
        at += (i32)global_threads();
        if (at < n)
            v = load((const u8 *)a.from + (i64)(at % chunks) * MF_CHUNK);
    }
#    ifdef MF_SCALES
    const i32 pieces = MF_SCALES / sizeof(scale_part);
    for (i32 i = (i32)global_thread(); i < a.token * pieces; i += (i32)global_threads())
        spread(o, a.to_scale, i / pieces, pieces, i % pieces, ((const scale_part *)a.from_scale)[i], 0, 1);
#    endif
    copy_shared_scales(a);
    write_order(a, o, end, weight);
}
#endif
