/* The whole MoE layer in one launch for few tokens, without a sort (FLAT): every slot reads its expert's
 * weights.
 *
 * The grid is co-resident, one block per SM. First, each warp computes one column of h of one slot: the dot
 * products of a gate row and an up row with x. After a grid barrier, each warp computes MF_COLS columns of y
 * of one token: the weighted sum, over the token's slots, of the dot products of rows of w2 with h. The first
 * loads of w2 are issued before the barrier, to keep HBM busy.
 *
 *   MF_FORMAT  BF16 or one of FP8_* (format.h)      MF_H, MF_I, MF_K
 *   MF_WEIGHT1  apply the routing weight before the activation
 *   MF_HALVES1  2: gate and up; 1: gate alone  MF_BIAS1, MF_BIAS2  biases b1 [E, MF_HALVES1·I], b2 [E,H]
 *   MF_PANELS  w1 and w2 have the layout panel128 (kernels/core/layout.h)
 *   MF_THREADS, MF_COLS
 *   MF_BATCH    number of 16-byte loads of gate that a lane has in flight; the same number for up
 *   MF_BATCH_Y  number of 16-byte loads of w2 that a lane has in flight
 *
 * Activations in shared memory have the values of the format: they are stored as bf16 or, for fp8 formats, as
 * f16 with separate scales.
 *
 * Slots of non-local experts (local_experts.h) get zeros for h and do not contribute to y. Without expert
 * parallelism such ids are rare, so that stage 2 reads the weights of expert 0 for them instead of branching.
 *
 *   shared memory: route [T·k] | at a multiple of 128 bytes:
 *                  x u16 [T][H] | scales of x float [T][GROUPS_H]; later overlaid by
 *                  h u16 [T·k][I] | scales of h [T·k][GROUPS_I] */
#include "dialect.h"
#include "args.h"
#include "format.h"
#include "quantise.h"
#include "local_experts.h"
#include "gate_up.h"
#include "activation.h"

#define WAVES     (MF_THREADS / MF_WAVE)
#define EACH      (16 / BYTES) /* elements per load */
#define GROUP(D)  (BY_BLOCK ? 128 : (D))
#define GROUPS(D) MF_CEIL(D, GROUP(D))
#define ROWS_W1   (MF_HALVES1 * MF_I)           /* rows of one expert */
#define LOADS_H   MF_CEIL(MF_H / EACH, MF_WAVE) /* loads of a lane per row of w1 */
#define BATCHES   MF_CEIL(LOADS_H, MF_BATCH)
#define CHUNKS_I  (MF_I / EACH) /* chunks per row of w2 */
#define LOADS_Y   MF_CEIL(MF_COLS *MF_K *CHUNKS_I, MF_WAVE)
#define BATCHES_Y MF_CEIL(LOADS_Y, MF_BATCH_Y)

__device__ u32 mf_barrier[2];

/* Returns `sum` plus EACH products. `x` points to activations in shared memory. */
MF_DEVICE float dot(mf_16b w, const u16 *x, float sum)
{
    const u32 four[4] = {w.x, w.y, w.z, w.w};
#if MF_FORMAT == BF16
    const mf_16b v = *(const mf_16b *)x;
    const u32 other[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        sum += mf_bf16_low(four[i]) * mf_bf16_low(other[i]);
        sum += mf_bf16_high(four[i]) * mf_bf16_high(other[i]);
    }
#else
    const mf_16b v0 = ((const mf_16b *)x)[0], v1 = ((const mf_16b *)x)[1];
    const u32 other[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
    MF_UNROLL
    for (int i = 0; i < 8; i++) {
        const u32 two = mf_fp8_to_f16_pair(four[i / 2], i % 2);
        sum += mf_f16_low(two) * mf_f16_low(other[i]);
        sum += mf_f16_high(two) * mf_f16_high(other[i]);
    }
#endif
    return sum;
}

#if BY_TENSOR
/* Returns the amax of n bf16 to every thread. */
MF_DEVICE float amax_of_all(const u16 *from, i32 n)
{
    __shared__ float room[WAVES];
    float amax = 0;
    for (i32 i = threadIdx.x * 8; i < n; i += MF_THREADS * 8)
        amax = fmaxf(amax, mf_amax_8(mf_load_shared_by_grid(from + i)));
    amax = mf_wave_max(amax);
    if (threadIdx.x % MF_WAVE == 0)
        room[threadIdx.x / MF_WAVE] = amax;
    __syncthreads();
    for (int w = 0; w < WAVES; w++)
        amax = fmaxf(amax, room[w]);
    return amax;
}
#endif

/* Loads rows of `cols` bf16 into shared memory, and quantises them if the format is quantised. Loads bypass
 * L1, because another block may have written the rows. */
MF_DEVICE void load_rows(const u16 *from, i32 rows, i32 cols, u16 *to, float *scales)
{
#if MF_FORMAT == BF16
    (void)scales;
    for (i32 i = threadIdx.x; i < rows * cols / 8; i += MF_THREADS)
        ((mf_16b *)to)[i] = mf_load_shared_by_grid(from + (i64)i * 8);
#else
    const i32 lane = threadIdx.x % MF_WAVE, group = GROUP(cols), groups = GROUPS(cols);
#    if BY_TENSOR
    const mf_divisor d = mf_divisor_of(amax_of_all(from, rows * cols));
#    endif
    for (i32 g = threadIdx.x / MF_WAVE; g < rows * groups; g += WAVES) {
        const i32 first = g / groups * cols + g % groups * group,
                  n = MF_MIN(group, cols - g % groups * group);
#    if !BY_TENSOR
        float amax = 0;
        for (i32 i = lane * 8; i < n; i += MF_WAVE * 8)
            amax = fmaxf(amax, mf_amax_8(mf_load_shared_by_grid(from + first + i)));
        const mf_divisor d = mf_divisor_of(mf_wave_max(amax));
#    endif
        for (i32 i = lane * 8; i < n; i += MF_WAVE * 8) {
            const mf_8b q = mf_quantise_8(mf_load_shared_by_grid(from + first + i), d);
            *(mf_16b *)(to + first + i) = mf_16b{mf_fp8_to_f16_pair(q.x, 0), mf_fp8_to_f16_pair(q.x, 1),
                                                 mf_fp8_to_f16_pair(q.y, 0), mf_fp8_to_f16_pair(q.y, 1)};
        }
        if (lane == 0)
            scales[g] = d.by;
    }
#endif
}

/* ---- routes ---- */

struct route {
    i32 expert; /* local; -1: not local */
    float weight;
};
MF_DEVICE void load_routes(const mf_hip_one_args &a, route *to)
{
    MF_NO_UNROLL
    for (i32 i = threadIdx.x; i < a.token * MF_K; i += MF_THREADS)
        to[i] = route{mf_local_expert_of(a.ids, a.types, i), mf_route_weight(a.weights, a.types, i)};
}

/* ---- h ---- */

#define UP_AT MF_UP_AT(MF_I) /* distance from a gate row to its up row */

MF_DEVICE i32 gate_row(i32 n)
{
    return MF_HALVES1 == 2 ? mf_gate_row(n) : n;
}
/* Returns the offset of a 16-byte chunk of a weight row of row_bytes bytes. */
MF_DEVICE i64 place_of_chunk(i64 row, i32 row_bytes, i32 chunk)
{
#ifdef MF_PANELS
    return row / 128 * 128 * row_bytes + (chunk / 8 * 128 + (i32)(row % 128)) * 128 + chunk % 8 * 16;
#else
    return row * row_bytes + chunk * 16;
#endif
}

/* Stride between consecutive loads of a warp along a row of w1. In a panel, pieces of 128 bytes of its 128
 * rows alternate. */
#ifdef MF_PANELS
#    define STRIDE_W1 (MF_WAVE * 16 * 128)
#else
#    define STRIDE_W1 (MF_WAVE * 16)
#endif
/* Returns the address of this lane's first chunk of the gate row of column `n` in w1. */
MF_DEVICE const u8 *row_of_w1(const mf_hip_one_args &a, i32 expert, i32 n)
{
    return (const u8 *)a.w1 +
           place_of_chunk((i64)expert * ROWS_W1 + gate_row(n), MF_H * BYTES, threadIdx.x % MF_WAVE);
}

typedef mf_16b batch[MF_HALVES1][MF_BATCH];

MF_DEVICE void load_batch(const u8 *gate, i32 b, batch &v)
{
    MF_UNROLL
    for (int i = 0; i < MF_BATCH; i++) {
        const i32 at = b * MF_BATCH + i;
        const bool within = at < LOADS_H && (at * MF_WAVE + (i32)threadIdx.x % MF_WAVE) * EACH < MF_H;
        MF_UNROLL
        for (int half = 0; half < MF_HALVES1; half++)
            v[half][i] = within ? mf_load_once(gate + (i64)half * UP_AT * MF_H * BYTES + (i64)at * STRIDE_W1)
                                : mf_16b{0, 0, 0, 0};
    }
}

/* Returns the block scale of weight row `n` of w1 at element k. */
MF_DEVICE float scale_w1(const mf_hip_one_args &a, i32 expert, i32 n, i32 k)
{
    if (BY_BLOCK)
        return a.w1_scale[((i64)expert * MF_CEIL(ROWS_W1, 128) + n / 128) * MF_CEIL(MF_H, 128) + k / 128];
    return 1.0f;
}

MF_DEVICE void multiply_batch(const mf_hip_one_args &a, i32 b, const batch &v, i32 expert, i32 n,
                              const u16 *x, const float *xs, float (&sum)[MF_HALVES1])
{
    MF_UNROLL
    for (int i = 0; i < MF_BATCH; i++) {
        const i32 k = ((b * MF_BATCH + i) * MF_WAVE + (i32)threadIdx.x % MF_WAVE) * EACH;
        if (k >= MF_H)
            continue;
        MF_UNROLL
        for (int half = 0; half < MF_HALVES1; half++) {
            if (BY_BLOCK)
                sum[half] +=
                    dot(v[half][i], x + k, 0.0f) * (xs[k / 128] * scale_w1(a, expert, half * MF_I + n, k));
            else
                sum[half] = dot(v[half][i], x + k, sum[half]);
        }
    }
}

/* ---- y ---- */

typedef mf_16b rows_of_w2[MF_BATCH_Y];

/* Computes column, slot and chunk of a lane's load `i` within a warp's group of columns. Returns false if
 * there is no load `i`. Loads follow the memory order: in panels, a column's 128 bytes are followed by those
 * of the next column. */
MF_DEVICE bool load_position(int i, i32 *col, i32 *slot, i32 *chunk)
{
    const i32 flat = i * MF_WAVE + (i32)threadIdx.x % MF_WAVE;
#ifdef MF_PANELS
    *col = flat / 8 % MF_COLS;
    *chunk = flat / (8 * MF_COLS) % (CHUNKS_I / 8) * 8 + flat % 8;
    *slot = flat / (MF_COLS * CHUNKS_I);
#else
    *chunk = flat % CHUNKS_I;
    *slot = flat / CHUNKS_I % MF_K;
    *col = flat / CHUNKS_I / MF_K;
#endif
    return flat < MF_COLS * MF_K * CHUNKS_I;
}

MF_DEVICE void load_w2_rows(const mf_hip_one_args &a, const route *routes, i32 columns, i32 b, rows_of_w2 &v)
{
    const i32 token = columns / (MF_H / MF_COLS), first = columns % (MF_H / MF_COLS) * MF_COLS;
    MF_UNROLL
    for (int i = 0; i < MF_BATCH_Y; i++) {
        i32 col, slot, chunk;
        v[i] = mf_16b{0, 0, 0, 0};
        if (load_position(b * MF_BATCH_Y + i, &col, &slot, &chunk)) {
            const i32 expert = routes[token * MF_K + slot].expert;
            if (MF_EXPERT_PARALLEL && expert < 0)
                continue;
            v[i] = mf_load_once((const u8 *)a.w2 + place_of_chunk((i64)MF_MAX(expert, 0) * MF_H + first + col,
                                                                  MF_I * BYTES, chunk));
        }
    }
}

MF_DEVICE void multiply_w2_rows(const mf_hip_one_args &a, const route *routes, i32 columns, i32 b,
                                const rows_of_w2 &v, const u16 *h, const float *hs, float (&sum)[MF_COLS])
{
    const i32 token = columns / (MF_H / MF_COLS), first = columns % (MF_H / MF_COLS) * MF_COLS;
    MF_UNROLL
    for (int i = 0; i < MF_BATCH_Y; i++) {
        i32 col, slot, chunk;
        if (!load_position(b * MF_BATCH_Y + i, &col, &slot, &chunk))
            continue;
        const i32 row = token * MF_K + slot, k = chunk * EACH, n = first + col, local = routes[row].expert,
                  expert = MF_MAX(local, 0);
        if (MF_EXPERT_PARALLEL && local < 0)
            continue;
        const float weight = MF_WEIGHT1 ? 1.0f : routes[row].weight;
        float s = weight;
        if (BY_BLOCK)
            s *= hs[row * GROUPS(MF_I) + k / 128] *
                 a.w2_scale[((i64)expert * MF_CEIL(MF_H, 128) + n / 128) * MF_CEIL(MF_I, 128) + k / 128];
        if (BY_TOKEN)
            s *= hs[row] * a.w2_scale[(i64)expert * MF_H + n];
        if (BY_TENSOR)
            s *= hs[row] * a.w2_scale[expert];
        float part = s * dot(v[i], h + row * MF_I + k, 0.0f);
#ifdef MF_BIAS2
        if (chunk == 0)
            part += weight * a.b2[(i64)expert * MF_H + n];
#endif
        MF_UNROLL
        for (int c = 0; c < MF_COLS; c++)
            sum[c] += c == col && local >= 0 ? part : 0.0f;
    }
}

MF_DEVICE void store_columns(const mf_hip_one_args &a, i32 columns, const float (&sum)[MF_COLS])
{
    MF_UNROLL
    for (int c = 0; c < MF_COLS; c++) {
        const float y = mf_wave_sum(sum[c]);
        if (threadIdx.x % MF_WAVE == 0)
            ((u16 *)a.y)[(i64)columns * MF_COLS + c] = (u16)mf_bf16_pair(y, 0.0f);
    }
}

extern "C" __global__ void MF_BOUNDS(MF_THREADS, 1) mf_one(const mf_hip_one_args a)
{
    extern __shared__ __align__(128) u16 lds[];
    const i32 slots = a.token * MF_K, n_waves = gridDim.x * WAVES;
    const i32 wave = threadIdx.x / MF_WAVE * gridDim.x + blockIdx.x;
    route *routes = (route *)lds;
    u16 *rows_at = lds + MF_CEIL(slots * (i32)sizeof(route), 128) * 64;
    float *xs = (float *)(rows_at + a.token * MF_H), *hs = (float *)(rows_at + slots * MF_I);
    batch v;
    rows_of_w2 rows;
    u32 generation;

    const i32 first = wave < slots * MF_I ? mf_local_expert_of(a.ids, a.types, wave / MF_I) : -1;
    if (first >= 0)
        load_batch(row_of_w1(a, first, wave % MF_I), 0, v);
    load_routes(a, routes);
    load_rows((const u16 *)a.x, a.token, MF_H, rows_at, xs);
    __syncthreads();
    for (i32 u = wave; u < slots * MF_I; u += n_waves) {
        const i32 row = u / MF_I, n = u % MF_I, token = row / MF_K,
                  expert = routes[row].expert;
        if (expert < 0) {
            if (threadIdx.x % MF_WAVE == 0)
                ((u16 *)a.h)[u] = 0;
            continue;
        }
        const u8 *gate = row_of_w1(a, expert, n);
        float sum[MF_HALVES1] = {0};
        MF_LOOP
        for (i32 b = 0; b < BATCHES; b++) {
            if (b > 0 || u != wave)
                load_batch(gate, b, v);
            multiply_batch(a, b, v, expert, n, rows_at + token * MF_H, xs + token * GROUPS(MF_H), sum);
        }
        MF_UNROLL
        for (int half = 0; half < MF_HALVES1; half++) {
            sum[half] = mf_wave_sum(sum[half]);
            if (BY_TOKEN)
                sum[half] *= xs[token] * a.w1_scale[(i64)expert * ROWS_W1 + gate_row(n) + half * UP_AT];
            if (BY_TENSOR)
                sum[half] *= xs[token] * a.w1_scale[expert];
            if (MF_WEIGHT1)
                sum[half] *= routes[row].weight;
#ifdef MF_BIAS1
            sum[half] += a.b1[(i64)expert * ROWS_W1 + half * MF_I + n];
#endif
        }
        const float h = MF_HALVES1 == 2 ? mf_activate(sum[0], sum[MF_HALVES1 - 1]) : mf_activate_gate(sum[0]);
        if (threadIdx.x % MF_WAVE == 0)
            ((u16 *)a.h)[u] = (u16)mf_bf16_pair(h, 0.0f);
    }
    mf_grid_arrive(mf_barrier, &generation);
    const i32 n_column_groups = a.token * (MF_H / MF_COLS);
    if (wave < n_column_groups)
        load_w2_rows(a, routes, wave, 0, rows);
    mf_grid_wait(mf_barrier, generation);
    load_rows((const u16 *)a.h, slots, MF_I, rows_at, hs);
    __syncthreads();
    for (i32 u = wave; u < n_column_groups; u += n_waves) {
        float sum[MF_COLS] = {0};
        MF_LOOP
        for (i32 b = 0; b < BATCHES_Y; b++) {
            if (b > 0 || u != wave)
                load_w2_rows(a, routes, u, b, rows);
            multiply_w2_rows(a, routes, u, b, rows, rows_at, hs, sum);
        }
        store_columns(a, u, sum);
    }
}
