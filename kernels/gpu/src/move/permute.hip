/* Moves many rows into expert order and back (permute.h).
 *
 *   mf_gather     each row in expert order loads its token's row; x is read repeatedly, so it should fit L2
 *   mf_permute    each token's row is read once and written to all of its destinations; used for sizes at
 *                 which memory bandwidth is the limit
 *   mf_unpermute  y[t] is the sum of the rows of the slots of t. With MF_WEIGHTED, each row is first
 *                 multiplied by its routing weight. Sums are computed in floats and in slot order, so results
 *                 are reproducible
 *
 * mf_permute and mf_unpermute use the inverse of the sorted ids. All blocks compute the inverse together
 * before a grid barrier, so the grid must be co-resident. Row indices are loaded one iteration ahead, because
 * writes may have evicted them from L2. */
#include "dialect.h"
#include "args.h"
#include "permute.h"
#include "invert.h"

#define UNROLL 4 /* number of chunks in flight per thread */

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_gather(const mf_hip_permute_args a)
{
    mf_begin();
    const i64 n = (i64)used_rows(a) * CHUNKS;
    for (i64 first = global_thread(); first < n; first += UNROLL * global_threads()) {
        chunk v[UNROLL];
        bool there[UNROLL];
        MF_UNROLL
        for (int t = 0; t < UNROLL; t++) {
            const i64 at = first + t * global_threads(), row = at / CHUNKS;
            const i64 token = at < n ? mf_id_token(a.sorted_ids[row]) : a.token;
            there[t] = token < a.token;
            if (there[t])
                v[t] = load((const u8 *)a.from + (token * CHUNKS + (at - row * CHUNKS)) * MF_CHUNK);
        }
        MF_UNROLL
        for (int t = 0; t < UNROLL; t++) {
            if (there[t])
                ((chunk *)a.to)[first + t * global_threads()] = v[t];
        }
    }
    gather_scales(a);
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_permute(const mf_hip_permute_args a)
{
    const i64 n = (i64)a.token * CHUNKS;
    i64 at = global_thread();
    chunk v;
    i32 rows[MF_K];
    mf_begin();
    if (at < n)
        v = load((const u8 *)a.from + at * MF_CHUNK);
    invert(a);
    if (at < n)
        rows_of(a, at / CHUNKS, rows);
    while (at < n) {
        const i64 next = at + global_threads(), column = at % CHUNKS;
        chunk next_v;
        i32 next_rows[MF_K];
        if (next < n) {
            next_v = load((const u8 *)a.from + next * MF_CHUNK);
            rows_of(a, next / CHUNKS, next_rows);
        }
        MF_UNROLL
        for (int j = 0; j < MF_K; j++) {
            if (rows[j] >= 0)
                ((chunk *)a.to)[(i64)rows[j] * CHUNKS + column] = v;
        }
        at = next;
        v = next_v;
        MF_UNROLL
        for (int j = 0; j < MF_K; j++)
            rows[j] = next_rows[j];
    }
    gather_scales(a);
}

#ifdef MF_WEIGHTED
#    include "unpermute.h"

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_unpermute(const mf_hip_permute_args a)
{
    const i64 n = (i64)a.token * CHUNKS;
    i64 at = global_thread();
    i32 rows[MF_K];
    mf_begin();
    invert(a);
    if (at < n)
        rows_of(a, at / CHUNKS, rows);
    while (at < n) {
        const i64 next = at + global_threads();
        slots s;
        i32 next_rows[MF_K];
        fetch(a, rows, at % CHUNKS, s);
        if (next < n)
            rows_of(a, next / CHUNKS, next_rows);
        ((mf_16b *)a.to)[at] = sum_of(s);
        at = next;
        MF_UNROLL
        for (int j = 0; j < MF_K; j++)
            rows[j] = next_rows[j];
    }
}
#endif
