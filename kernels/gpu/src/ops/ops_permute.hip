/* Copies rows into expert order and back, for any row size and any topk.
 *
 *   mf_op_permute       reads each token's row once and writes it to all its places
 *   mf_op_sort_permute  sorts first: every block sorts all ids (MF_OP_SLICE_IDS at most) in shared memory, so
 *                       that few tokens take one launch
 *   mf_op_gather        to[i] = from[index[i]]
 *   mf_op_unpermute     adds the rows of each token in fp32, in slot order, and rounds once to bf16
 *
 * A warp moves a piece of one token's row. It first compacts the token's rows that are in range into a list
 * in shared memory, because a routing map has many routes without a row. Pieces are numbered with 32 bits. */
#include "dialect.h"
#include "ops_sort.h"

#define BLOCKS  2 /* resident blocks per SM or CU */
#define IN_TURN 8 /* rows of a token that are loaded before they are added */

struct row_list {
    i32 row[MF_WAVE];
    float weight[MF_WAVE];
};

/* Lists those of a token's routes `from` … that have a row in [first, last), at most MF_WAVE. Returns their
 * number. All lanes of the warp must call it. */
MF_DEVICE i32 list_rows(row_list &list, const i32 *row_of, const float *weights, i32 from, i32 topk,
                        i32 first, i32 last)
{
    const i32 lane = threadIdx.x % MF_WAVE, j = from + lane;
    const i32 row = j < topk ? row_of[j] : -1;
    const bool has = row >= first && row < last;
    const u64 same = mf_match<2>(has);
    mf_wave_sync(); /* the list of the previous piece has been read */
    if (has) {
        const i32 at = mf_popcount(same & (((u64)1 << lane) - 1));
        list.row[at] = row - first;
        list.weight[at] = weights ? weights[j] : 1.0f;
    }
    mf_wave_sync();
    return has ? mf_popcount(same) : MF_WAVE - mf_popcount(same);
}

MF_DEVICE i64 global_warp()
{
    return (i64)blockIdx.x * WAVES + threadIdx.x / MF_WAVE;
}
MF_DEVICE i64 global_warps()
{
    return (i64)gridDim.x * WAVES;
}

/* ---- permute ---- */

/* N units of a token's row per lane, a warp's width apart. */
template <class UNIT, int N> struct piece {
    UNIT v[N];
};
/* Starts loading piece number `at` of all tokens' pieces. */
template <class UNIT, int N>
MF_DEVICE void load_piece(const mf_op_permute_args &a, const mf_op_rows &r, i64 at, piece<UNIT, N> &p)
{
    const i32 units = r.bytes / (i32)sizeof(UNIT), pieces = MF_CEIL(units, N * MF_WAVE);
    const i32 t = (i32)((u32)at / (u32)pieces);
    const i32 first = ((i32)at - t * pieces) * N * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int i = 0; i < N; i++) {
        if (t < a.token && first + i * MF_WAVE < units)
            p.v[i] = ((const UNIT *)r.from)[(i64)t * units + first + i * MF_WAVE];
    }
}
/* Writes a piece to all places of its token. All lanes of the warp must call it. */
template <class UNIT, int N>
MF_DEVICE void write_piece(const mf_op_permute_args &a, const mf_op_rows &r, i64 at, const i32 *row_of,
                           row_list &list, const piece<UNIT, N> &p)
{
    const i32 units = r.bytes / (i32)sizeof(UNIT), pieces = MF_CEIL(units, N * MF_WAVE);
    const i32 t = (i32)((u32)at / (u32)pieces);
    const i32 first = ((i32)at - t * pieces) * N * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
    for (i32 j = 0; j < a.topk; j += MF_WAVE) {
        const i32 n = list_rows(list, row_of + (i64)t * a.topk, nullptr, j, a.topk, a.first, a.last);
        for (i32 s = 0; s < n; s++) {
            UNIT *to = (UNIT *)r.to + (i64)list.row[s] * units + first;
            MF_UNROLL
            for (int i = 0; i < N; i++) {
                if (first + i * MF_WAVE < units)
                    to[i * MF_WAVE] = p.v[i];
            }
        }
    }
}
/* Moves all pieces of this warp. `p` is its first piece; each next piece is loaded before a piece is written.
 */
template <class UNIT, int N>
MF_DEVICE void permute_pieces(const mf_op_permute_args &a, const mf_op_rows &r, const i32 *row_of,
                              row_list &list, piece<UNIT, N> &p)
{
    const i64 n = (i64)a.token * MF_CEIL(r.bytes / (i32)sizeof(UNIT), N * MF_WAVE);
    for (i64 at = global_warp(); at < n; at += global_warps()) {
        piece<UNIT, N> next;
        load_piece(a, r, at + global_warps(), next);
        write_piece(a, r, at, row_of, list, p);
        p = next;
    }
}
template <class UNIT, int N>
MF_DEVICE void permute_from_start(const mf_op_permute_args &a, const mf_op_rows &r, const i32 *row_of,
                                  row_list &list)
{
    piece<UNIT, N> first;
    load_piece(a, r, global_warp(), first);
    permute_pieces(a, r, row_of, list, first);
}
/* True if the rows are moved in long pieces, which need fewer lists. With few tokens, short pieces use more
 * warps. */
MF_DEVICE bool has_long_pieces(const mf_op_permute_args &a, const mf_op_rows &r)
{
    return r.unit == 16 && (i64)a.token * MF_CEIL(r.bytes / 16, 4 * MF_WAVE) >= global_warps();
}
MF_DEVICE void permute_rows(const mf_op_permute_args &a, const mf_op_rows &r, const i32 *row_of,
                            row_list &list)
{
    if (has_long_pieces(a, r))
        permute_from_start<mf_16b, 4>(a, r, row_of, list);
    else if (r.unit == 16)
        permute_from_start<mf_16b, 1>(a, r, row_of, list);
    else if (r.unit == 4)
        permute_from_start<u32, 1>(a, r, row_of, list);
    else
        permute_from_start<u8, 1>(a, r, row_of, list);
}
/* Copies the tensors from number `from` on, and the probabilities. */
MF_DEVICE void permute_all(const mf_op_permute_args &a, i32 from, const i32 *row_of, row_list &list)
{
    for (i32 i = from; i < a.n_rows; i++)
        permute_rows(a, a.rows[i], row_of, list);
    const i64 thread = (i64)blockIdx.x * MF_THREADS + threadIdx.x;
    for (i64 i = thread; a.out_probs && i < (i64)a.token * a.topk; i += (i64)gridDim.x * MF_THREADS) {
        if (row_of[i] >= a.first && row_of[i] < a.last)
            a.out_probs[row_of[i] - a.first] = a.probs[i];
    }
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, BLOCKS) mf_op_permute(const mf_op_permute_args a)
{
    __shared__ row_list list[WAVES];
    const bool early = a.n_rows > 0 && has_long_pieces(a, a.rows[0]);
    piece<mf_16b, 4> first;
    /* The previous launch is a sort of the same operator. It started after the writer of the rows had ended,
     * so the rows may be read before the sort has ended. */
    if (early)
        load_piece(a, a.rows[0], global_warp(), first);
    mf_begin();
    if (early)
        permute_pieces(a, a.rows[0], a.row_of, list[threadIdx.x / MF_WAVE], first);
    permute_all(a, early, a.row_of, list[threadIdx.x / MF_WAVE]);
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, 1) mf_op_sort_permute(const mf_op_permute_args a)
{
    extern __shared__ i32 lds[];
    __shared__ row_list list[WAVES];
    __shared__ i32 row_of[MF_OP_SLICE_IDS];
    const bool early = a.n_rows > 0 && a.rows[0].unit == 16;
    piece<mf_16b, 1> first;
    mf_begin();
    if (early)
        load_piece(a, a.rows[0], global_warp(), first);
    sort_ids(a.sort, lds, sort_part{0, 1, (i32)blockIdx.x, (i32)gridDim.x, row_of});
    __syncthreads();
    if (early)
        permute_pieces(a, a.rows[0], row_of, list[threadIdx.x / MF_WAVE], first);
    permute_all(a, early, row_of, list[threadIdx.x / MF_WAVE]);
}

/* ---- gather ---- */

MF_DEVICE i64 index_at(const mf_op_gather_args &a, i64 i)
{
    return a.wide ? ((const i64 *)a.index)[i] : ((const i32 *)a.index)[i];
}
template <class UNIT> MF_DEVICE void gather(const mf_op_gather_args &a)
{
    const i32 units = a.rows.bytes / (i32)sizeof(UNIT), pieces = MF_CEIL(units, MF_WAVE);
    for (i64 at = global_warp(); at < a.n * pieces; at += global_warps()) {
        const i64 row = (u32)at / (u32)pieces, column = (at - row * pieces) * MF_WAVE + threadIdx.x % MF_WAVE;
        const i64 from = index_at(a, row);
        if (column >= units || (from >= 0 && a.only_zeros))
            continue;
        UNIT v = UNIT{};
        if (from >= 0)
            v = ((const UNIT *)a.rows.from)[from * units + column];
        ((UNIT *)a.rows.to)[row * units + column] = v;
    }
}
extern "C" __global__ void MF_BOUNDS(MF_THREADS, BLOCKS) mf_op_gather(const mf_op_gather_args a)
{
    mf_begin();
    for (i64 i = (i64)blockIdx.x * MF_THREADS + threadIdx.x; i < a.n_copied; i += (i64)gridDim.x * MF_THREADS)
        a.copy[i] = (i32)index_at(a, i);
    if (a.rows.unit == 16)
        gather<mf_16b>(a);
    else if (a.rows.unit == 4)
        gather<u32>(a);
    else
        gather<u8>(a);
}

/* ---- unpermute ---- */

/* The routes of a token. */
struct route_range {
    i64 first;
    i32 n;
};
MF_DEVICE route_range routes_of(const mf_op_unpermute_args &a, i64 t)
{
    if (!a.starts)
        return route_range{t * a.topk, a.topk};
    return route_range{a.starts[t], (i32)(a.starts[t + 1] - a.starts[t])};
}

struct eight {
    float v[8];
};
MF_DEVICE void add(eight &sum, const mf_16b &v, float w)
{
    const u32 two[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        sum.v[2 * i] += w * mf_bf16_low(two[i]);
        sum.v[2 * i + 1] += w * mf_bf16_high(two[i]);
    }
}
/* Adds the listed rows to a sum. All loads of IN_TURN rows are in flight before the first addition. */
MF_DEVICE void add_rows(const mf_op_unpermute_args &a, const row_list &list, i32 n, i64 chunks, i64 column,
                        eight &sum)
{
    for (i32 first = 0; first < n; first += IN_TURN) {
        mf_16b v[IN_TURN];
        MF_UNROLL
        for (int i = 0; i < IN_TURN; i++) {
            if (first + i < n)
                v[i] = mf_load_once((const mf_16b *)a.from + list.row[first + i] * chunks + column);
        }
        MF_UNROLL
        for (int i = 0; i < IN_TURN; i++) {
            if (first + i < n)
                add(sum, v[i], list.weight[first + i]);
        }
    }
}
MF_DEVICE void unpermute_chunks(const mf_op_unpermute_args &a, row_list &list)
{
    const i32 chunks = a.width / 8, pieces = MF_CEIL(chunks, MF_WAVE);
    for (i64 at = global_warp(); at < (i64)a.token * pieces; at += global_warps()) {
        const i64 t = (u32)at / (u32)pieces;
        const route_range routes = routes_of(a, t);
        const i32 column = (i32)(at - t * pieces) * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
        eight sum = {{0, 0, 0, 0, 0, 0, 0, 0}};
        for (i32 j = 0; j < routes.n; j += MF_WAVE) {
            const i32 n = list_rows(list, a.row_of + routes.first, a.probs ? a.probs + routes.first : nullptr,
                                    j, routes.n, a.first, a.last);
            if (column < chunks)
                add_rows(a, list, n, chunks, column, sum);
        }
        if (column < chunks)
            ((mf_16b *)a.to)[t * chunks + column] =
                mf_16b{mf_bf16_pair(sum.v[0], sum.v[1]), mf_bf16_pair(sum.v[2], sum.v[3]),
                       mf_bf16_pair(sum.v[4], sum.v[5]), mf_bf16_pair(sum.v[6], sum.v[7])};
    }
}
/* For rows that cannot be read 16 bytes at a time. */
MF_DEVICE void unpermute_elements(const mf_op_unpermute_args &a, row_list &list)
{
    const i32 pieces = MF_CEIL(a.width, MF_WAVE);
    for (i64 at = global_warp(); at < (i64)a.token * pieces; at += global_warps()) {
        const i64 t = (u32)at / (u32)pieces;
        const route_range routes = routes_of(a, t);
        const i32 column = (i32)(at - t * pieces) * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
        float sum = 0;
        for (i32 j = 0; j < routes.n; j += MF_WAVE) {
            const i32 n = list_rows(list, a.row_of + routes.first, a.probs ? a.probs + routes.first : nullptr,
                                    j, routes.n, a.first, a.last);
            for (i32 s = 0; column < a.width && s < n; s++)
                sum += list.weight[s] * mf_bf16(((const u16 *)a.from)[(i64)list.row[s] * a.width + column]);
        }
        if (column < a.width)
            ((u16 *)a.to)[t * a.width + column] = (u16)(mf_bf16_pair(sum, 0.0f) & 0xffff);
    }
}
extern "C" __global__ void MF_BOUNDS(MF_THREADS, BLOCKS) mf_op_unpermute(const mf_op_unpermute_args a)
{
    __shared__ row_list list[WAVES];
    mf_begin();
    if (a.by_eight)
        unpermute_chunks(a, list[threadIdx.x / MF_WAVE]);
    else
        unpermute_elements(a, list[threadIdx.x / MF_WAVE]);
}
