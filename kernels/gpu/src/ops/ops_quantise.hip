/* Quantises matrices of bf16 in every format of kernels/core/codec.h, bit for bit (encode.h).
 *
 *   mf_op_quantise         groups of up to 128 columns of one row: a few lanes share a group
 *   mf_op_quantise_block   larger groups (a row, or 128 rows by 128 columns): a block per group
 *   mf_op_amax, mf_op_quantise_all
 *                          one scale per matrix: each block first writes the amax of its part */
#include "dialect.h"
#include "ops_args.h"
#ifdef MF_INT4
#    include "codecs.h"
#else
#    include "encode.h"
#endif

#define WAVES (MF_THREADS / MF_WAVE)

#ifdef MF_INT4
#    define CODES 4
typedef u32 codes_of_8;
MF_DEVICE scaling scaling_of(u32 top, float)
{
#    if CODEC_GROUP > 0
    return scaling_of_code(scale_code(mf_larger_half(top), 1.0f), 1.0f);
#    else
    return scaling_of(mf_larger_half(top));
#    endif
}
MF_DEVICE void store_scale(const scaling &s, void *scales, i64 at)
{
#    if CODEC_GROUP > 0
    ((u16 *)scales)[at] = (u16)(mf_bf16_pair(s.by, 0.0f) & 0xffff);
#    else
    ((float *)scales)[at] = s.by;
#    endif
}
MF_DEVICE u32 int4_code(float v, const scaling &s)
{
    const float q = mf_divide(v, s.by);
    return q == q ? (u32)(i32)whole(q, 7.0f) & 15 : 0;
}
MF_DEVICE codes_of_8 encode_8(const mf_16b &v, const scaling &s)
{
    float x[8];
    u32 r = 0;
    mf_floats_of_8(v, x);
    MF_UNROLL
    for (int i = 0; i < 8; i++)
        r |= int4_code(x[i], s) << 4 * i;
    return r;
}
#endif

MF_DEVICE float factor_of(const mf_op_quantise_args &a, i64 matrix)
{
    return a.factor ? a.factor[matrix] : 1.0f;
}
MF_DEVICE mf_16b load_8(const mf_op_quantise_args &a, i64 chunk)
{
    return mf_load_once((const mf_16b *)a.x + chunk);
}
MF_DEVICE void store_8(const mf_op_quantise_args &a, i64 chunk, const codes_of_8 &codes)
{
    *(codes_of_8 *)((u8 *)a.q + chunk * CODES) = codes;
}

/* The lanes of a group are adjacent, one per eight columns. */
template <int LANES> MF_DEVICE void quantise_groups(const mf_op_quantise_args &a)
{
    const i32 groups = MF_CEIL(a.cols, a.group_cols), lane = threadIdx.x % LANES, chunks = a.cols / 8;
    const i64 n = (i64)a.matrices * a.rows * groups;
    for (i64 at = ((i64)blockIdx.x * MF_THREADS + threadIdx.x) / LANES;
         at - threadIdx.x % MF_WAVE / LANES < n; at += (i64)gridDim.x * (MF_THREADS / LANES)) {
        const i64 row = at / groups;
        const i32 chunk = (i32)(at - row * groups) * LANES + lane;
        const bool has = at < n && chunk < chunks;
        mf_16b v = {0, 0, 0, 0};
        if (has)
            v = load_8(a, row * chunks + chunk);
        const scaling s = scaling_of(mf_larger_of_lanes<LANES>(mf_larger_8(0, v)),
                                     at < n ? factor_of(a, row / a.rows) : 1.0f);
        if (has)
            store_8(a, row * chunks + chunk, encode_8(v, s));
        if (at < n && lane == 0)
            store_scale(s, a.scale, at);
    }
}
extern "C" __global__ void MF_BOUNDS(MF_THREADS, 2) mf_op_quantise(const mf_op_quantise_args a)
{
    mf_begin();
    if (a.group_cols == 128)
        quantise_groups<16>(a);
    else if (a.group_cols == 32)
        quantise_groups<4>(a);
    else
        quantise_groups<2>(a);
}

/* A rectangle of a matrix, in chunks of eight columns. */
struct rectangle {
    i64 first; /* index of the first chunk */
    i32 rows, chunks;
};
MF_DEVICE i64 chunk_at(const rectangle &r, i32 all_chunks, i64 i)
{
    return r.first + i / r.chunks * all_chunks + i % r.chunks;
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, 2) mf_op_quantise_block(const mf_op_quantise_args a)
{
    __shared__ u32 room[WAVES];
    const i32 chunks = a.cols / 8, across = MF_CEIL(a.cols, a.group_cols), of_group = a.group_cols / 8;
    const i64 down = MF_CEIL(a.rows, (i64)a.group_rows), n = a.matrices * down * across;
    mf_begin();
    for (i64 at = blockIdx.x; at < n; at += gridDim.x) {
        const i64 line = at / across, matrix = line / down, row = line % down * a.group_rows;
        const i32 column = (i32)(at - line * across) * of_group;
        const rectangle r = {(matrix * a.rows + row) * chunks + column,
                             (i32)MF_MIN((i64)a.group_rows, a.rows - row), MF_MIN(of_group, chunks - column)};
        u32 top = 0;
        for (i32 i = threadIdx.x; i < r.rows * r.chunks; i += MF_THREADS)
            top = mf_larger_8(top, load_8(a, chunk_at(r, chunks, i)));
        const scaling s = scaling_of(mf_larger_of_block<WAVES>(top, room), factor_of(a, matrix));
        for (i32 i = threadIdx.x; i < r.rows * r.chunks; i += MF_THREADS)
            store_8(a, chunk_at(r, chunks, i), encode_8(load_8(a, chunk_at(r, chunks, i)), s));
        if (threadIdx.x == 0)
            store_scale(s, a.scale, at);
        __syncthreads();
    }
}

/* Block b processes part b % parts of matrix b / parts. */
extern "C" __global__ void MF_BOUNDS(MF_THREADS, 2) mf_op_amax(const mf_op_quantise_args a)
{
    __shared__ u32 room[WAVES];
    const i64 n = a.rows * (a.cols / 8), matrix = blockIdx.x / a.parts;
    u32 top = 0;
    mf_begin();
    for (i64 i = (i64)(blockIdx.x % a.parts) * MF_THREADS + threadIdx.x; i < n;
         i += (i64)a.parts * MF_THREADS)
        top = mf_larger_8(top, load_8(a, matrix * n + i));
    top = mf_larger_of_block<WAVES>(top, room);
    if (threadIdx.x == 0)
        a.amax[blockIdx.x] = top;
}
extern "C" __global__ void MF_BOUNDS(MF_THREADS, 2) mf_op_quantise_all(const mf_op_quantise_args a)
{
    __shared__ u32 room[WAVES];
    const i64 n = a.rows * (a.cols / 8), matrix = blockIdx.x / a.parts;
    u32 top = 0;
    mf_begin();
    for (i32 i = threadIdx.x; i < a.parts; i += MF_THREADS)
        top = mf_larger_2(top, a.amax[matrix * a.parts + i]);
    const scaling s = scaling_of(mf_larger_of_block<WAVES>(top, room), factor_of(a, matrix));
    for (i64 i = (i64)(blockIdx.x % a.parts) * MF_THREADS + threadIdx.x; i < n;
         i += (i64)a.parts * MF_THREADS)
        store_8(a, matrix * n + i, encode_8(load_8(a, matrix * n + i), s));
    if (blockIdx.x % a.parts == 0 && threadIdx.x == 0)
        store_scale(s, a.scale, matrix);
}
