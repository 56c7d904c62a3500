#include "kernels/data.h"

#include <math.h>

#include "common/cleanup.h"
#include "kernels/philox.h"
#include "kernels/quant.h"
#include "kernels/vector.h"

#define CHUNK 16 /* Philox blocks side by side; each gives two values */

/* Four 16-bit uniforms sum to a mean of 131070 and a standard deviation of 65536 / sqrt(3). */
#define SUM_MEAN  131070
#define SUM_SIGMA 37837.2

MF_VECTOR_INLINE int32_t sum16(uint32_t a, uint32_t b)
{
    return (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - SUM_MEAN;
}

/* Sixteen Philox blocks at counters (first + i, row), lane by lane the same as mf_philox(). */
MF_VECTOR_INLINE void chunk(uint64_t key, uint32_t first, uint64_t row, int32_t out[2 * CHUNK])
{
    uint32_t c0[CHUNK], c1[CHUNK], c2[CHUNK], c3[CHUNK];
    for (int i = 0; i < CHUNK; i++) {
        c0[i] = first + (uint32_t)i;
        c1[i] = 0;
        c2[i] = (uint32_t)row;
        c3[i] = (uint32_t)(row >> 32);
    }
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < CHUNK; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i];
            uint64_t p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < CHUNK; i++) {
        out[i] = sum16(c0[i], c1[i]);
        out[CHUNK + i] = sum16(c2[i], c3[i]);
    }
}

/* One row of n values before rounding to bf16. */
MF_VECTOR_BODY(static, void, make_row, (uint64_t key, uint64_t row, float scale, size_t n, uint16_t *out),
               (key, row, scale, n, out), {
                   int32_t sums[2 * CHUNK];
                   float values[2 * CHUNK];
                   for (size_t i = 0; i < n; i += 2 * CHUNK) {
                       chunk(key, (uint32_t)(i / 2), row, sums);
                       for (int j = 0; j < 2 * CHUNK; j++)
                           values[j] = (float)sums[j] * scale;
                       size_t m = n - i < 2 * CHUNK ? n - i : 2 * CHUNK;
                       uint16_t codes[2 * CHUNK];
                       for (int j = 0; j < 2 * CHUNK; j++) {
                           uint32_t u;
                           __builtin_memcpy(&u, &values[j], 4);
                           codes[j] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
                       }
                       if (m == 2 * CHUNK)
                           __builtin_memcpy(out + i, codes, sizeof(codes));
                       else
                           __builtin_memcpy(out + i, codes, m * sizeof(codes[0]));
                   }
               })

static uint64_t key_of(uint64_t seed, enum mf_tensor tensor)
{
    return seed + ((uint64_t)tensor + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

/* One rounded division and one rounded square root, both exact by IEEE 754, then one rounding to float. */
static float scale_of(double inverse_variance)
{
    return (float)(1.0 / (SUM_SIGMA * sqrt(inverse_variance)));
}

void mf_data_x_row(const struct mf_shape *shape, uint64_t seed, int64_t token, uint16_t *out)
{
    make_row(key_of(seed, MF_TENSOR_X), (uint64_t)token, scale_of(1), (size_t)shape->model_dim, out);
}

struct weight {
    size_t n, k; /* of one expert */
};

static struct weight weight_of(const struct mf_shape *shape, enum mf_tensor w)
{
    return w == MF_TENSOR_W1 ? (struct weight){(size_t)mf_gemm1_cols(shape), (size_t)shape->model_dim}
                             : (struct weight){(size_t)shape->model_dim, (size_t)shape->inter_dim};
}

void mf_data_w_row(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert, int64_t n,
                   uint16_t *out)
{
    struct weight d = weight_of(shape, w);
    uint64_t row = (uint64_t)expert * d.n + (uint64_t)n;
    make_row(key_of(seed, w), row, scale_of((double)d.k), d.k, out);
}

/* Rows that are quantised together: a block of 128 of them, or one. */
static void quantise_rows(const struct mf_artifact *a, const uint16_t *rows, size_t n, size_t k,
                          float *floats, uint8_t *q, float *scales)
{
    mf_bf16_to_floats(rows, n * k, floats);
    if (a->scale == MF_SCALE_PER_128X128)
        mf_quant_128x128(a->format, floats, n, k, q, scales);
    else
        scales[0] = mf_quant_row(a->format, floats, k, q);
}

int mf_data_expert(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert, void *out_w,
                   float *out_scale)
{
    struct weight d = weight_of(shape, w);
    struct mf_artifact a = mf_plain_w(shape, w, "row");
    if (a.format == MF_FORMAT_BF16) {
        for (size_t n = 0; n < d.n; n++)
            mf_data_w_row(shape, w, seed, expert, (int64_t)n, (uint16_t *)out_w + n * d.k);
        return 0;
    }
    size_t step = a.scale == MF_SCALE_PER_128X128 ? 128 : 1;
    size_t scales_a_step = a.scale == MF_SCALE_PER_128X128 ? (d.k + 127) / 128 : 1;
    _cleanup_(mf_freep) uint16_t *rows = reallocarray(NULL, step * d.k, sizeof(*rows));
    _cleanup_(mf_freep) float *floats = reallocarray(NULL, step * d.k, sizeof(*floats));
    if (!rows || !floats)
        return -ENOMEM;
    for (size_t n = 0; n < d.n; n += step) {
        size_t m = MF_MIN(step, d.n - n);
        for (size_t r = 0; r < m; r++)
            mf_data_w_row(shape, w, seed, expert, (int64_t)(n + r), rows + r * d.k);
        quantise_rows(&a, rows, m, d.k, floats, (uint8_t *)out_w + n * d.k,
                      out_scale + n / step * scales_a_step);
    }
    return 0;
}

struct weight_job {
    const struct mf_shape *shape;
    enum mf_tensor w;
    uint64_t seed;
    uint8_t *out;
    float *scale;
    size_t expert_bytes, expert_scales;
    int error;
};

static void weight_thread(void *context, int thread, int n_threads)
{
    struct weight_job *j = context;
    for (int32_t e = thread; e < j->shape->expert; e += n_threads) {
        int r = mf_data_expert(j->shape, j->w, j->seed, e, j->out + (size_t)e * j->expert_bytes,
                               j->scale ? j->scale + (size_t)e * j->expert_scales : NULL);
        if (r < 0)
            __atomic_store_n(&j->error, r, __ATOMIC_RELAXED);
    }
}

int mf_data_weight(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, void *out_w,
                   float *out_scale)
{
    struct mf_artifact a = mf_plain_w(shape, w, "row");
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_artifact_parts(&a, shape, parts);
    if (n < 0)
        return n;
    struct weight_job job = {
        .shape = shape,
        .w = w,
        .seed = seed,
        .out = out_w,
        .scale = out_scale,
        .expert_bytes = (size_t)(mf_part_bytes(&parts[0]) / shape->expert),
        .expert_scales = n > 1 ? (size_t)(parts[1].rows * parts[1].cols / shape->expert) : 0,
    };
    mf_pool_run(weight_thread, &job, mf_pool_threads());
    return job.error;
}

struct x_job {
    const struct mf_shape *shape;
    uint64_t seed;
    uint16_t *out;
};

static void x_thread(void *context, int thread, int n_threads)
{
    struct x_job *j = context;
    for (int64_t t = thread; t < j->shape->token; t += n_threads)
        mf_data_x_row(j->shape, j->seed, t, j->out + t * j->shape->model_dim);
}

void mf_data_x(const struct mf_shape *shape, uint64_t seed, uint16_t *out)
{
    struct x_job job = {shape, seed, out};
    mf_pool_run(x_thread, &job, mf_pool_threads());
}
