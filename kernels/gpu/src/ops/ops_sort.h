/* Sorts routes by bin: the counting sort of kernels/cpu/blocks.h for one or several blocks, with all sizes
 * given at run time. Each warp counts a contiguous run of ids by bin. The block adds the counts of lower
 * warps and of lower slices, and each warp then writes its ids, so the sort is stable.
 *
 *   shared memory: bin_of[experts] | count[WAVES][bins] | start[bins] | begin[bins] | total[bins] | room */
#pragma once

#include "ops_args.h"
#include "scan.h"

#define IDS_HELD 4 /* ids per lane that stay in registers between counting and writing */

struct sort_room {
    i32 *bin_of, *count, *start, *begin, *total, *room;
};
MF_DEVICE sort_room make_room(const mf_op_sort_args &a, i32 *lds)
{
    sort_room r;
    r.bin_of = lds;
    r.count = r.bin_of + a.experts;
    r.start = r.count + WAVES * a.bins;
    r.begin = r.start + a.bins;
    r.total = r.begin + a.bins;
    r.room = r.total + a.bins;
    return r;
}

/* The part of the sort that one block does. */
struct sort_part {
    i32 slice, slices;
    /* With one slice, several blocks may do the same sort. They share the writing of the outputs, because the
     * bins of one block would take longer than the sort. */
    i32 part, parts;
    i32 *row_of; /* shared memory for the rows of the ids, or nullptr */
};

/* Numbers the experts whose mask is not 0, in order. */
MF_DEVICE void number_bins(const mf_op_sort_args &a, const sort_room &r)
{
    i32 before = 0, all;
    for (i32 first = 0; first < a.experts; first += MF_THREADS) {
        const i32 e = first + (i32)threadIdx.x, has = e < a.experts && a.mask[e] != 0;
        const i32 at = before + scan_block(has, r.room, &all);
        if (e < a.experts)
            r.bin_of[e] = has ? at : -1;
        before += all;
        __syncthreads();
    }
}
MF_DEVICE void prepare_bins(const mf_op_sort_args &a, const sort_room &r)
{
    for (i32 i = threadIdx.x; i < WAVES * a.bins; i += MF_THREADS)
        r.count[i] = 0;
    if (a.mask)
        number_bins(a, r);
    for (i32 e = threadIdx.x; !a.mask && e < a.experts; e += MF_THREADS)
        r.bin_of[e] = a.map ? a.map[e] : e;
    __syncthreads();
}

MF_DEVICE i32 ids_in_use(const mf_op_sort_args &a)
{
    return (a.n_local ? MF_MAX(MF_MIN(*a.n_local, a.token), 0) : a.token) * a.topk;
}

/* Ids of one lane, a warp's width apart: the number of the expert, or -1 for an id that is not valid. */
struct id_batch {
    i32 expert[IDS_HELD];
};
/* The ids that a warp counts. */
struct warp_run {
    i32 from, to, end; /* end: number of ids in use */
};
MF_DEVICE id_batch load_batch(const mf_op_sort_args &a, const warp_run &w, i32 first)
{
    id_batch t;
    MF_UNROLL
    for (int c = 0; c < IDS_HELD; c++) {
        const i32 i = first + c * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
        i64 id = -1;
        if (i < MF_MIN(w.to, w.end))
            id = (a.wide ? ((const i64 *)a.ids)[i] : ((const i32 *)a.ids)[i]) - (i64)a.first;
        t.expert[c] = id < 0 || id >= a.experts ? -1 : (i32)id;
    }
    return t;
}

/* The bins of a batch. An id without a bin has a.bins. */
struct id_run {
    u32 bin[IDS_HELD];
    i32 rank[IDS_HELD]; /* number of ids of the same bin that the warp has counted before */
};
MF_DEVICE void count_run(const mf_op_sort_args &a, const sort_room &r, i32 first, i32 to, const id_batch &ids,
                         id_run &t)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    i32 *count = r.count + threadIdx.x / MF_WAVE * a.bins;
    MF_UNROLL
    for (int c = 0; c < IDS_HELD; c++)
        t.bin[c] = MF_MIN(ids.expert[c] < 0 ? 0xffffffffu : (u32)r.bin_of[ids.expert[c]], (u32)a.bins);
    MF_UNROLL
    for (int c = 0; c < IDS_HELD; c++) {
        if (first + c * MF_WAVE >= to)
            break;
        const u32 b = t.bin[c];
        const u64 same = mf_match<2 * MF_OP_BINS_MAX>(b), below = same & (((u64)1 << lane) - 1);
        if (b < (u32)a.bins)
            t.rank[c] = count[b] + mf_popcount(below);
        mf_wave_sync();
        if (b < (u32)a.bins && below == 0)
            count[b] += mf_popcount(same);
        mf_wave_sync();
    }
}

MF_DEVICE warp_run run_of(const mf_op_sort_args &a, i32 slice, i32 slices)
{
    const i32 n = a.token * a.topk, runs = slices * WAVES, wave = threadIdx.x / MF_WAVE;
    const i32 each = MF_CEIL(MF_CEIL(n, MF_WAVE), runs) * MF_WAVE;
    warp_run w;
    w.from = MF_MIN((slice * WAVES + wave) * each, n);
    w.to = MF_MIN(n, w.from + each);
    w.end = ids_in_use(a);
    return w;
}
/* `ids` is the first batch of the run, whose loads started earlier. */
MF_DEVICE void count_ids(const mf_op_sort_args &a, const sort_room &r, const warp_run &w, const id_batch &ids,
                         id_run &t)
{
    count_run(a, r, w.from, w.to, ids, t);
    for (i32 first = w.from + IDS_HELD * MF_WAVE; first < w.to; first += IDS_HELD * MF_WAVE)
        count_run(a, r, first, w.to, load_batch(a, w, first), t);
}

/* Replaces each warp's counts by the counts of lower warps. total[b] becomes the number of the block's ids.
 * */
MF_DEVICE void scan_warps(const mf_op_sort_args &a, const sort_room &r)
{
    for (i32 b = threadIdx.x; b < a.bins; b += MF_THREADS) {
        i32 sum = 0;
        MF_UNROLL
        for (int w = 0; w < WAVES; w++) {
            const i32 c = r.count[w * a.bins + b];
            r.count[w * a.bins + b] = sum;
            sum += c;
        }
        r.total[b] = sum;
    }
}

/* start[b] becomes the number of ids of lower slices, total[b] that of all slices. */
MF_DEVICE void scan_slices(const mf_op_sort_args &a, const sort_room &r, const sort_part &p)
{
    for (i32 b = threadIdx.x; b < a.bins; b += MF_THREADS) {
        i32 lower = 0, sum = p.slices > 1 ? 0 : r.total[b];
        MF_UNROLL
        for (i32 s = 0; p.slices > 1 && s < p.slices; s++) {
            const i32 c = a.counts[(i64)s * a.bins + b];
            lower += s < p.slice ? c : 0;
            sum += c;
        }
        r.start[b] = lower;
        r.total[b] = sum;
    }
    __syncthreads();
}

/* begin[b] becomes the first row of bin b; start[b] that of this slice's ids. Returns the rows in use. */
MF_DEVICE i32 place_bins(const mf_op_sort_args &a, const sort_room &r)
{
    i32 rows = 0, all;
    for (i32 first = 0; first < a.bins; first += MF_THREADS) {
        const i32 b = first + (i32)threadIdx.x;
        const i32 padded = b < a.bins ? MF_CEIL(r.total[b], a.block) * a.block : 0;
        const i32 at = rows + scan_block(padded, r.room, &all);
        if (b < a.bins) {
            r.begin[b] = at;
            r.start[b] += at;
        }
        rows += all;
        __syncthreads();
    }
    return rows;
}

/* Writes the blocks and the padding of this block's share of the bins, one warp per bin. */
MF_DEVICE void write_bins(const mf_op_sort_args &a, const sort_room &r, const sort_part &p)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    for (i32 b = p.part * WAVES + (i32)threadIdx.x / MF_WAVE; b < a.bins; b += p.parts * WAVES) {
        const i32 begin = r.begin[b], used = r.total[b], blocks = MF_CEIL(used, a.block);
        for (i32 i = lane; a.block_experts && i < blocks; i += MF_WAVE)
            a.block_experts[begin / a.block + i] = a.names ? a.names[b] : b;
        for (i32 i = used + lane; i < blocks * a.block; i += MF_WAVE) {
            if (a.sorted_ids)
                a.sorted_ids[begin + i] = a.pad;
            if (a.sorted_weights)
                a.sorted_weights[begin + i] = 0.0f;
        }
        if (a.first_row && lane == 0)
            a.first_row[b] = begin;
    }
}
/* Writes the totals and fills the tail beyond the rows in use. */
MF_DEVICE void write_end(const mf_op_sort_args &a, const sort_part &p, i32 end)
{
    const i64 thread = (i64)p.part * MF_THREADS + threadIdx.x, threads = (i64)p.parts * MF_THREADS;
    for (i64 i = end + thread; !a.packed && a.sorted_ids && i < a.rows; i += threads)
        a.sorted_ids[i] = a.pad;
    for (i64 i = end / a.block + thread; !a.packed && a.block_experts && i < MF_CEIL(a.rows, (i64)a.block);
         i += threads)
        a.block_experts[i] = -1;
    if (thread != 0)
        return;
    if (a.first_row)
        a.first_row[a.bins] = end;
    if (a.num_rows)
        a.num_rows[0] = end;
    if (a.num_rows && a.packed)
        a.num_rows[1] = ids_in_use(a) / a.topk;
}

MF_DEVICE void write_id(const mf_op_sort_args &a, const sort_part &p, i32 i, i32 row)
{
    if (p.row_of)
        p.row_of[i] = row;
    if (p.slices == 1 && i / MF_WAVE % p.parts != p.part)
        return;
    if (a.row_of)
        a.row_of[i] = row < 0 ? a.none : row;
    if (a.valid)
        a.valid[i] = row < 0 ? -1 : i;
    if (row < 0)
        return;
    if (a.sorted_ids)
        a.sorted_ids[row] = a.packed ? (i % a.topk) << 24 | i / a.topk : i;
    if (a.sorted_weights)
        a.sorted_weights[row] = a.weights[i];
}
MF_DEVICE void write_run(const mf_op_sort_args &a, const sort_room &r, const sort_part &p, i32 first, i32 to,
                         const i32 *lower, const id_run &t)
{
    MF_UNROLL
    for (int c = 0; c < IDS_HELD; c++) {
        const i32 i = first + c * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
        const u32 b = t.bin[c];
        if (i < to)
            write_id(a, p, i, b < (u32)a.bins ? r.start[b] + t.rank[c] + (lower ? lower[b] : 0) : -1);
    }
}
/* Writes the ids of a warp. A run that does not fit the registers is counted again; its counts then start at
 * those of the lower warps. */
MF_DEVICE void write_ids(const mf_op_sort_args &a, const sort_room &r, const sort_part &p, const warp_run &w,
                         const id_run &held)
{
    if (w.to - w.from <= IDS_HELD * MF_WAVE) {
        write_run(a, r, p, w.from, w.to, r.count + threadIdx.x / MF_WAVE * a.bins, held);
        return;
    }
    for (i32 first = w.from; first < w.to; first += IDS_HELD * MF_WAVE) {
        id_run t;
        count_run(a, r, first, w.to, load_batch(a, w, first), t);
        write_run(a, r, p, first, w.to, nullptr, t);
    }
}

/* Does one block's part of a sort. All threads of the block must call it. */
MF_DEVICE void sort_ids(const mf_op_sort_args &a, i32 *lds, const sort_part &p)
{
    const sort_room r = make_room(a, lds);
    const warp_run w = run_of(a, p.slice, p.slices);
    const id_batch ids = load_batch(a, w, w.from);
    id_run held;
    prepare_bins(a, r);
    count_ids(a, r, w, ids, held);
    __syncthreads();
    scan_warps(a, r);
    scan_slices(a, r, p);
    const i32 end = place_bins(a, r);
    write_ids(a, r, p, w, held);
    write_bins(a, r, p);
    write_end(a, p, end);
}
