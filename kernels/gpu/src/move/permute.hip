/* Rows into expert order and back, where they are many (permute.h).
 *
 *   mf_gather     each row of expert order fetches its token's: reads are repeated, so x should stay in the last cache
 *   mf_permute    each token's row is read once and written to all of its places, as memory is what takes longest then
 *   mf_unpermute  y[t] = sum over the slots of t of their rows, times their routing weights where MF_WEIGHTED, slots upwards,
 *                 in floats, so that every run gives the same bits
 *
 * The last two go by the inverse of the sorted ids: blocks make it together, meet, and use it; all have to be resident. Where
 * the rows lie is asked for a turn ahead: it may be in memory again by then, behind all that was written. A route of a rank's
 * share that has no row leaves in a.row_of what lay there, so that an entry counts only where the row's id says the same. */
#include "dialect.h"
#include "args.h"
#include "permute.h"
#include "invert.h"

#define TURNS 4 /* chunks of a thread in flight */

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

extern "C" __global__ void MF_BOUNDS(MF_THREADS, MF_BLOCKS) mf_permute(const mf_hip_permute_args a)
{
    const i64 n = (i64)a.token * CHUNKS;
    i64 at = me();
    chunk v;
    i32 rows[MF_K];
    mf_begin();
    if (at < n)
        v = load((const u8 *)a.from + at * MF_CHUNK);
    invert(a);
    if (at < n)
        rows_of(a, at / CHUNKS, rows);
    while (at < n) {
        const i64 next = at + all(), column = at % CHUNKS;
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
    i64 at = me();
    i32 rows[MF_K];
    mf_begin();
    invert(a);
    if (at < n)
        rows_of(a, at / CHUNKS, rows);
    while (at < n) {
        const i64 next = at + all();
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
