/* Rows of a routing map, for permutations as Megatron-Core defines them (kernels/ops/permute_megatron.h).
 * Thread e of a block goes through the tokens of the block's slice and numbers those that are routed to
 * expert e. mf_op_map_count counts each slice, then mf_op_map places the slice's rows. */
#include "dialect.h"
#include "ops_args.h"
#include "scan.h"

MF_DEVICE i32 slice_begin(const mf_op_map_args &a, i32 slice)
{
    return (i32)((i64)a.token * slice / a.slices);
}
MF_DEVICE bool routed(const mf_op_map_args &a, i32 t, i32 e)
{
    return ((const u8 *)a.routing_map)[(i64)t * a.experts + e] != 0;
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_op_map_count(const mf_op_map_args a)
{
    mf_begin();
    for (i32 e = threadIdx.x; e < a.experts; e += MF_THREADS) {
        i32 n = 0;
        for (i32 t = slice_begin(a, blockIdx.x); t < slice_begin(a, blockIdx.x + 1); t++)
            n += routed(a, t, e);
        a.counts[(i64)blockIdx.x * a.experts + e] = n;
    }
}

/* Rows of one expert: routed tokens of lower slices and of all slices. */
struct expert_rows {
    i32 lower, total;
};
MF_DEVICE expert_rows rows_of_expert(const mf_op_map_args &a, i32 e)
{
    expert_rows r = {0, 0};
    for (i32 s = 0; e < a.experts && s < a.slices; s++) {
        const i32 c = a.counts[(i64)s * a.experts + e];
        r.lower += s < (i32)blockIdx.x ? c : 0;
        r.total += c;
    }
    return r;
}
/* Returns how many of an expert's routed tokens get a row. `before`: routed tokens of lower experts. */
MF_DEVICE i32 kept_rows(const mf_op_map_args &a, i32 total, i32 before)
{
    if (a.capacity > 0)
        return MF_MIN(total, a.capacity);
    return a.limit < 0 ? total : MF_MAX(MF_MIN(total, a.limit - before), 0);
}

MF_DEVICE void write_padding(const mf_op_map_args &a, i64 from, i64 to)
{
    for (i64 row = from + blockIdx.x; row < to; row += a.slices) {
        a.token_of[row] = -1;
        if (a.out_probs)
            a.out_probs[row] = 0.0f;
    }
}
MF_DEVICE void write_row(const mf_op_map_args &a, i64 row, i32 t, i32 e, bool is_routed)
{
    a.token_of[row] = t;
    if (a.out_probs)
        a.out_probs[row] = !is_routed ? 0.0f : a.probs ? a.probs[(i64)t * a.experts + e] : 1.0f;
}

/* Each expert has `capacity` rows: its first routed tokens, then the first tokens that are not routed to it.
 */
MF_DEVICE void place_capacity(const mf_op_map_args &a, i32 e, const expert_rows &r)
{
    i32 rank = r.lower;
    for (i32 t = slice_begin(a, blockIdx.x); t < slice_begin(a, blockIdx.x + 1); t++) {
        const bool is = routed(a, t, e);
        const i32 at = is ? rank : r.total + t - rank;
        a.row_of[(i64)t * a.experts + e] = is && at < a.capacity ? e * a.capacity + at : -1;
        if (at < a.capacity)
            write_row(a, (i64)e * a.capacity + at, t, e, is);
        rank += is;
    }
}
MF_DEVICE void place_rows(const mf_op_map_args &a, i32 e, const expert_rows &r, i32 begin, i32 kept,
                          i32 padded)
{
    i32 rank = r.lower;
    for (i32 t = slice_begin(a, blockIdx.x); t < slice_begin(a, blockIdx.x + 1); t++) {
        const bool is = routed(a, t, e), has_row = is && rank < kept;
        a.row_of[(i64)t * a.experts + e] = has_row ? begin + rank : -1;
        if (has_row)
            write_row(a, begin + rank, t, e, true);
        rank += is;
    }
    write_padding(a, (i64)begin + kept, (i64)begin + padded);
}

/* Sums over the experts that a block has gone through. */
struct experts_before {
    i32 routed, kept, rows;
};
MF_DEVICE i32 scan_experts(i32 v, i32 *room, i32 *sum)
{
    i32 all;
    const i32 before = *sum + scan_block(v, room, &all);
    *sum += all;
    __syncthreads();
    return before;
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_op_map(const mf_op_map_args a)
{
    __shared__ i32 room[WAVES];
    experts_before sum = {0, 0, 0};
    mf_begin();
    for (i32 first = 0; first < a.experts; first += MF_THREADS) {
        const i32 e = first + (i32)threadIdx.x;
        const expert_rows r = rows_of_expert(a, e);
        const i32 routed_before = scan_experts(r.total, room, &sum.routed);
        const i32 kept = e < a.experts ? kept_rows(a, r.total, routed_before) : 0;
        const i32 padded = e >= a.experts   ? 0
                           : a.capacity > 0 ? a.capacity
                                            : MF_CEIL(kept, a.align) * a.align;
        const i32 kept_before = scan_experts(kept, room, &sum.kept);
        const i32 begin = scan_experts(padded, room, &sum.rows);
        if (e >= a.experts)
            continue;
        if (a.capacity > 0)
            place_capacity(a, e, r);
        else
            place_rows(a, e, r, begin, kept, padded);
        if (blockIdx.x == 0) {
            a.per_expert[e] = padded;
            a.pad_offsets[e] = begin - kept_before;
        }
    }
}
