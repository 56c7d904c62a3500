/* Generates a shape's test data as kernels/core/data.h defines it, bit for bit: rows of bf16 from Philox,
 * quantised as in kernels/core/codec.h. A block processes one group of values after the other. If many values
 * share a scale, a group consists of all values of one scale. Otherwise a group has a convenient number of
 * values, with one scale per CODEC_GROUP columns of a row.
 *
 * MF_CODEC is as in codecs.h. Everything else is an argument, so that one code object generates every tensor
 * of every layer of a format.
 *
 *   shared memory: the group's values, bf16 [group_rows, group_cols] | scales per CODEC_GROUP columns, u16
 */
#include "dialect.h"
#include "args.h"
#include "codecs.h"

#define THREADS 256
#define WAVES   (THREADS / MF_WAVE)

/* Philox4x32-10 (Salmon et al., SC'11). */
MF_DEVICE void philox(u64 key, u32 counter_low, u64 counter_high, u32 (&c)[4])
{
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    c[0] = counter_low;
    c[1] = 0;
    c[2] = (u32)counter_high;
    c[3] = (u32)(counter_high >> 32);
    MF_UNROLL
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        c[0] = (u32)(p1 >> 32) ^ c[1] ^ k0;
        c[2] = (u32)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (u32)p1;
        c[3] = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Returns the sum of four uniform 16-bit numbers, centred at 0 and scaled by `factor`. */
MF_DEVICE float value_of(u32 a, u32 b, float factor)
{
    return (float)((i32)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - 131070) * factor;
}

struct group {
    i64 matrix, source; /* index of the output matrix, and its index in the tensor */
    i32 row, col, rows, cols;
    i64 at; /* index of the group among all groups */
};

MF_DEVICE i32 groups_across(const mf_hip_data_args &a)
{
    return MF_CEIL(a.cols, a.group_cols);
}
MF_DEVICE i32 groups_of_matrix(const mf_hip_data_args &a)
{
    return groups_across(a) * MF_CEIL(a.rows, a.group_rows);
}

MF_DEVICE group group_at(const mf_hip_data_args &a, i64 at)
{
    const i32 across = groups_across(a), of_matrix = groups_of_matrix(a);
    group g;
    g.at = at;
    g.matrix = g.at / of_matrix;
    g.source = a.matrices ? a.matrices[g.matrix] : g.matrix;
    const i32 within = (i32)(g.at % of_matrix);
    g.row = within / across * a.group_rows;
    g.col = within % across * a.group_cols;
    g.rows = MF_MIN(a.group_rows, a.rows - g.row);
    g.cols = MF_MIN(a.group_cols, a.cols - g.col);
    return g;
}

/* Generates the values of a group. One Philox block yields values k and k + 16 of a run of 32. */
MF_DEVICE void make_values(const mf_hip_data_args &a, const group &g, u16 *values)
{
    const i32 runs = MF_CEIL(g.cols, 32);
    for (i32 i = threadIdx.x; i < g.rows * runs * 16; i += THREADS) {
        const i32 r = i / 16 / runs, run = i / 16 % runs, k = run * 32 + i % 16;
        u32 c[4];
        philox(a.key, (u32)((g.col / 32 + run) * 16 + i % 16), (u64)(g.source * a.rows + g.row + r), c);
        const u32 two = mf_bf16_pair(value_of(c[0], c[1], a.factor), value_of(c[2], c[3], a.factor));
        if (k < g.cols)
            values[r * a.group_cols + k] = (u16)two;
        if (k + 16 < g.cols)
            values[r * a.group_cols + k + 16] = (u16)(two >> 16);
    }
    __syncthreads();
}

MF_DEVICE u32 two_values(const mf_hip_data_args &a, const u16 *values, i32 r, i32 k)
{
    return *(const u32 *)(values + r * a.group_cols + k);
}

MF_DEVICE float max_of_block(float v, float *room)
{
    v = mf_wave_max(v);
    if (threadIdx.x % MF_WAVE == 0)
        room[threadIdx.x / MF_WAVE] = v;
    __syncthreads();
    for (int i = 0; i < WAVES; i++)
        v = fmaxf(v, room[i]);
    return v;
}

MF_DEVICE float amax_of_group(const mf_hip_data_args &a, const group &g, const u16 *values, float *room)
{
    float amax = 0;
    for (i32 i = threadIdx.x; i < g.rows * (g.cols / 2); i += THREADS)
        amax = fmaxf(amax, mf_amax_2(two_values(a, values, i / (g.cols / 2), i % (g.cols / 2) * 2)));
    return max_of_block(amax, room);
}

MF_DEVICE float amax_of_matrix(const mf_hip_data_args &a, const group &g, float *room)
{
    const i32 n = groups_of_matrix(a);
    float amax = 0;
    for (i32 i = threadIdx.x; i < n; i += THREADS)
        amax = fmaxf(amax, a.amax[g.matrix * n + i]);
    return max_of_block(amax, room);
}

/* ---- layout: kernels/core/layout.c ---- */

MF_DEVICE i64 place_of_row(const mf_hip_data_args &a, i32 n)
{
    if (a.gate_rows == 0)
        return n;
    const i32 up = n >= a.rows / 2, i = n - up * (a.rows / 2);
    return (i64)(i / a.gate_rows * 2 + up) * a.gate_rows + i % a.gate_rows;
}

/* Scales of a group's values: one scale for all values, or one per CODEC_GROUP columns of a row. */
struct scales {
    scaling all;
    const u16 *codes; /* scales per CODEC_GROUP columns, in shared memory */
    float global;
};
MF_DEVICE scaling scaling_at(const mf_hip_data_args &a, const scales &s, i32 r, i32 k)
{
#if CODEC_GROUP > 0
    return scaling_of_code(s.codes[(r * a.group_cols + k) / CODEC_GROUP], s.global);
#else
    (void)a, (void)r, (void)k;
    return s.all;
#endif
}

MF_DEVICE void store_codes(const mf_hip_data_args &a, const group &g, const u16 *values, const scales &s)
{
    const i32 words = g.cols / IN_WORD, of_row = a.cols / IN_WORD;
    u32 *out = (u32 *)a.out + g.matrix * a.rows * of_row;
    for (i32 i = threadIdx.x; i < g.rows * words; i += THREADS) {
        const i32 r = i / words, k = i % words * IN_WORD, w = (g.col + k) / IN_WORD;
        const i64 at = place_of_row(a, g.row + r);
        const scaling by = scaling_at(a, s, r, k);
        u32 word = 0;
        MF_UNROLL
        for (int n = 0; n < IN_WORD; n += 2)
            word |= code_pair(two_values(a, values, r, k + n), by) << n * CODEC_BITS;
        out[at / a.panel * a.panel * of_row +
            ((i64)(w / a.group_words) * a.panel + at % a.panel) * a.group_words + w % a.group_words] = word;
    }
}

MF_DEVICE void store_floats(const mf_hip_data_args &a, const group &g, const u16 *values, const scales &s)
{
    float *out = (float *)a.out + (g.matrix * a.rows + g.row) * a.cols + g.col;
    for (i32 i = threadIdx.x; i < g.rows * (g.cols / 2); i += THREADS) {
        const i32 r = i / (g.cols / 2), k = i % (g.cols / 2) * 2;
        float low, high;
        decoded(two_values(a, values, r, k), scaling_at(a, s, r, k), low, high);
        out[(i64)r * a.cols + k] = low;
        out[(i64)r * a.cols + k + 1] = high;
    }
}

/* Scales that each belong to a single row are stored in the permuted order of the rows. Other scales keep
 * their order. */
#if CODEC_GROUP > 0
MF_DEVICE void make_small_scales(const mf_hip_data_args &a, const group &g, const u16 *values, float global,
                                 u16 *codes)
{
    const i32 across = MF_CEIL(g.cols, CODEC_GROUP), all_across = MF_CEIL(a.cols, CODEC_GROUP);
    for (i32 i = threadIdx.x; i < g.rows * across; i += THREADS) {
        const i32 r = i / across, k = i % across * CODEC_GROUP;
        float amax = 0;
        for (i32 n = 0; n < CODEC_GROUP && k + n < g.cols; n += 2)
            amax = fmaxf(amax, mf_amax_2(two_values(a, values, r, k + n)));
        const u32 c = scale_code(amax, global);
        const i64 at =
            (g.matrix * a.rows + place_of_row(a, g.row + r)) * all_across + (g.col + k) / CODEC_GROUP;
        codes[(r * a.group_cols + k) / CODEC_GROUP] = (u16)c;
        if (a.scale && MF_CODEC == 6)
            ((u16 *)a.scale)[at] = (u16)c;
        else if (a.scale)
            ((u8 *)a.scale)[at] = (u8)c;
    }
    __syncthreads();
}
#else
MF_DEVICE void store_scale(const mf_hip_data_args &a, const group &g, float by)
{
    float *scale = (float *)a.scale;
    if (a.amax && g.row == 0 && g.col == 0)
        scale[g.matrix] = by;
    else if (!a.amax)
        scale[(g.matrix * MF_CEIL(a.rows, a.group_rows) + place_of_row(a, g.row / a.group_rows)) *
                  groups_across(a) +
              g.col / a.group_cols] = by;
}
#endif

MF_DEVICE scales make_scales(const mf_hip_data_args &a, const group &g, u16 *values, float *room)
{
    scales s = {};
#if CODEC_GROUP > 0
    u16 *codes = values + a.group_rows * a.group_cols;
    s.codes = codes;
    s.global = 1;
    if (CODEC_GLOBAL) {
        s.global = global_of(amax_of_matrix(a, g, room));
        if (a.global && g.row == 0 && g.col == 0 && threadIdx.x == 0)
            a.global[g.matrix] = s.global;
    }
    make_small_scales(a, g, values, s.global, codes);
#else
    float amax = 0;
    if (MF_CODEC != 0)
        amax = a.amax ? amax_of_matrix(a, g, room) : amax_of_group(a, g, values, room);
    s.all = scaling_of(amax);
    if (a.scale && threadIdx.x == 0)
        store_scale(a, g, scale_value(s.all));
#endif
    return s;
}

MF_DEVICE void make_group(const mf_hip_data_args &a, const group &g, u16 *values, float *room)
{
    make_values(a, g, values);
    if (a.what == MF_DATA_AMAX) {
        const float amax = amax_of_group(a, g, values, room);
        if (threadIdx.x == 0)
            a.amax[g.at] = amax;
        return;
    }
    const scales s = make_scales(a, g, values, room);
    if (a.what == MF_DATA_FLOATS)
        store_floats(a, g, values, s);
    else
        store_codes(a, g, values, s);
}

extern "C" __global__ void __launch_bounds__(THREADS) mf_data(const mf_hip_data_args a)
{
    extern __shared__ u16 lds[];
    __shared__ float room[WAVES];
    for (i64 at = blockIdx.x; at < a.groups; at += gridDim.x) {
        make_group(a, group_at(a, at), lds, room);
        __syncthreads();
    }
}
