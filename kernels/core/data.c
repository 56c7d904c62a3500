#include "kernels/core/data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#    include <immintrin.h>
#endif

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/device.h"
#include "kernels/core/philox.h"
#include "kernels/core/quant.h"
#include "kernels/core/vector.h"

#define CHUNK 16 /* Philox blocks per chunk; each block gives two values */

/* A sum of four 16-bit uniforms has mean 131070 and standard deviation 65536 / sqrt(3). */
#define SUM_MEAN  131070
#define SUM_SIGMA 37837.2

#define MULTIPLY_0 0xD2511F53u
#define MULTIPLY_1 0xCD9E8D57u
#define WEYL_0     0x9E3779B9u
#define WEYL_1     0xBB67AE85u
#define N_ROUNDS   10

/* Computes 16 Philox blocks at counters (first + i, row), bitwise equal to mf_philox(). Writes two sums per
 * block. Each sum adds four 16-bit uniforms and subtracts SUM_MEAN. The 16 sums from words 0 and 1 come
 * first, then the 16 sums from words 2 and 3. */
typedef void (*chunk_fn)(uint64_t key, uint32_t first, uint64_t row, int32_t out[2 * CHUNK]);

static void chunk_c(uint64_t key, uint32_t first, uint64_t row, int32_t out[2 * CHUNK])
{
    for (uint32_t i = 0; i < CHUNK; i++) {
        struct mf_philox4 p = mf_philox(key, first + i, row);
        for (int half = 0; half < 2; half++) {
            uint32_t a = p.v[2 * half], b = p.v[2 * half + 1];
            out[half * CHUNK + i] = (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - SUM_MEAN;
        }
    }
}

#if defined(__x86_64__)

/* Each 64-bit lane of a and b holds one 32-bit word in its lower half. The upper half is ignored. */
MF_TARGET_AVX512 static inline __m256i sums_avx512(__m512i a, __m512i b)
{
    const __m512i low = _mm512_set1_epi64(0xffff);
    __m512i top_a = _mm512_and_si512(_mm512_srli_epi64(a, 16), low), bottom_a = _mm512_and_si512(a, low);
    __m512i top_b = _mm512_and_si512(_mm512_srli_epi64(b, 16), low), bottom_b = _mm512_and_si512(b, low);
    __m512i sum = _mm512_add_epi64(_mm512_add_epi64(top_a, bottom_a), _mm512_add_epi64(top_b, bottom_b));
    return _mm256_sub_epi32(_mm512_cvtepi64_epi32(sum), _mm256_set1_epi32(SUM_MEAN));
}

MF_TARGET_AVX512 static void chunk_avx512(uint64_t key, uint32_t first, uint64_t row, int32_t out[2 * CHUNK])
{
    const __m512i m0 = _mm512_set1_epi64(MULTIPLY_0), m1 = _mm512_set1_epi64(MULTIPLY_1);
    for (int half = 0; half < CHUNK; half += 8) {
        __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
        __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64((int64_t)first + half), lane),
                c1 = _mm512_setzero_si512();
        __m512i c2 = _mm512_set1_epi64((int64_t)(row & UINT32_MAX)),
                c3 = _mm512_set1_epi64((int64_t)(row >> 32));
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < N_ROUNDS; round++) {
            __m512i p0 = _mm512_mul_epu32(c0, m0), p1 = _mm512_mul_epu32(c2, m1);
            c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c1), _mm512_set1_epi64(k0));
            c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c3), _mm512_set1_epi64(k1));
            c1 = p1;
            c3 = p0;
            k0 += WEYL_0;
            k1 += WEYL_1;
        }
        _mm256_storeu_si256((__m256i *)(out + half), sums_avx512(c0, c1));
        _mm256_storeu_si256((__m256i *)(out + CHUNK + half), sums_avx512(c2, c3));
    }
}

MF_TARGET_AVX2 static inline __m128i sums_avx2(__m256i a, __m256i b)
{
    const __m256i low = _mm256_set1_epi64x(0xffff), even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    __m256i top_a = _mm256_and_si256(_mm256_srli_epi64(a, 16), low), bottom_a = _mm256_and_si256(a, low);
    __m256i top_b = _mm256_and_si256(_mm256_srli_epi64(b, 16), low), bottom_b = _mm256_and_si256(b, low);
    __m256i sum = _mm256_add_epi64(_mm256_add_epi64(top_a, bottom_a), _mm256_add_epi64(top_b, bottom_b));
    __m128i packed = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(sum, even));
    return _mm_sub_epi32(packed, _mm_set1_epi32(SUM_MEAN));
}

MF_TARGET_AVX2 static void chunk_avx2(uint64_t key, uint32_t first, uint64_t row, int32_t out[2 * CHUNK])
{
    const __m256i m0 = _mm256_set1_epi64x(MULTIPLY_0), m1 = _mm256_set1_epi64x(MULTIPLY_1);
    for (int quarter = 0; quarter < CHUNK; quarter += 4) {
        __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
        __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)first + quarter), lane);
        __m256i c1 = _mm256_setzero_si256();
        __m256i c2 = _mm256_set1_epi64x((int64_t)(row & UINT32_MAX)),
                c3 = _mm256_set1_epi64x((int64_t)(row >> 32));
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < N_ROUNDS; round++) {
            __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
            c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(k0));
            c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(k1));
            c1 = p1;
            c3 = p0;
            k0 += WEYL_0;
            k1 += WEYL_1;
        }
        _mm_storeu_si128((__m128i *)(out + quarter), sums_avx2(c0, c1));
        _mm_storeu_si128((__m128i *)(out + CHUNK + quarter), sums_avx2(c2, c3));
    }
}

#else

#    define chunk_avx512 chunk_c
#    define chunk_avx2   chunk_c

#endif

MF_VECTOR_BODY(static, void, round_chunk, (const int32_t sums[2 * CHUNK], float scale, uint16_t *out),
               (sums, scale, out), {
                   for (int j = 0; j < 2 * CHUNK; j++) {
                       float value = (float)sums[j] * scale;
                       uint32_t u;
                       __builtin_memcpy(&u, &value, 4);
                       out[j] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
                   }
               })

/* Generates one row of n values, rounded to bf16. */
static void make_row(uint64_t key, uint64_t row, float scale, size_t n, uint16_t *out)
{
    static const chunk_fn chunks[] = {
        [MF_ISA_C] = chunk_c, [MF_ISA_AVX2] = chunk_avx2, [MF_ISA_AVX512] = chunk_avx512};
    chunk_fn chunk = chunks[mf_isa_best()];
    int32_t sums[2 * CHUNK];
    uint16_t codes[2 * CHUNK];
    for (size_t i = 0; i < n; i += 2 * CHUNK) {
        chunk(key, (uint32_t)(i / 2), row, sums);
        if (n - i >= 2 * CHUNK) {
            round_chunk(sums, scale, out + i);
        } else {
            round_chunk(sums, scale, codes);
            memcpy(out + i, codes, (n - i) * sizeof(codes[0]));
        }
    }
}

static uint64_t key_of(uint64_t seed, enum mf_tensor tensor)
{
    return seed + ((uint64_t)tensor + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

/* The result has the same bits on every machine, because IEEE 754 defines the rounding of the division, of
 * the square root and of the conversion to float. */
static float scale_of(double inverse_variance)
{
    return (float)(1.0 / (SUM_SIGMA * sqrt(inverse_variance)));
}

struct weight {
    size_t n, k; /* rows and columns of one expert's matrix */
};

static struct weight weight_of(const struct mf_shape *shape, enum mf_tensor w)
{
    return w == MF_TENSOR_W1 ? (struct weight){(size_t)mf_gemm1_cols(shape), (size_t)shape->model_dim}
                             : (struct weight){(size_t)shape->model_dim, (size_t)shape->inter_dim};
}

struct mf_data_rule mf_data_rule(const struct mf_shape *shape, enum mf_tensor tensor, uint64_t seed)
{
    double inverse_variance = tensor == MF_TENSOR_X ? 1 : (double)weight_of(shape, tensor).k;
    return (struct mf_data_rule){key_of(seed, tensor), scale_of(inverse_variance)};
}

void mf_data_x_row(const struct mf_shape *shape, uint64_t seed, int64_t token, uint16_t *out)
{
    struct mf_data_rule rule = mf_data_rule(shape, MF_TENSOR_X, seed);
    make_row(rule.key, (uint64_t)token, rule.factor, (size_t)shape->model_dim, out);
}

void mf_data_w_row(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert, int64_t n,
                   uint16_t *out)
{
    struct weight d = weight_of(shape, w);
    struct mf_data_rule rule = mf_data_rule(shape, w, seed);
    make_row(rule.key, (uint64_t)expert * d.n + (uint64_t)n, rule.factor, d.k, out);
}

static float row_amax(const uint16_t *codes, size_t n)
{
    uint16_t top = 0;
    for (size_t i = 0; i < n; i++)
        top = MF_MAX(top, (uint16_t)(codes[i] & 0x7fff));
    return mf_bf16_to_float(top);
}

/* Returns the largest magnitude of an expert's weight. The weight is generated twice, once here and once to
 * encode it, because generating it twice is cheaper than storing it. */
static float expert_amax(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert,
                         uint16_t *row)
{
    struct weight d = weight_of(shape, w);
    float top = 0;
    for (size_t n = 0; n < d.n; n++) {
        mf_data_w_row(shape, w, seed, expert, (int64_t)n, row);
        float a = row_amax(row, d.k);
        top = MF_MAX(top, a);
    }
    return top;
}

/* Generates and encodes an expert's weight, in each pass all rows that share scales. If one scale covers the
 * whole matrix, the largest magnitude is computed first. */
static void encode_expert(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert,
                          const struct mf_codec *c, uint16_t *rows, float *floats,
                          const struct mf_tensor_ref *out)
{
    struct weight d = weight_of(shape, w);
    bool whole = c->scale_bytes > 0 && c->group_rows == 0;
    size_t step = c->group_rows > 0 ? (size_t)c->group_rows : 1, at_scale = 0;
    size_t scale_bytes = mf_codec_scale_cols(c, d.k) * (size_t)c->scale_bytes;
    float amax = whole || c->global ? expert_amax(shape, w, seed, expert, rows) : 0;
    float global = mf_codec_global(c, amax);
    if (c->global)
        *(float *)out->part[2] = global;
    if (whole)
        mf_codec_group_scale(c, amax, global, out->part[1]);
    for (size_t n = 0; n < d.n; n += step, at_scale += scale_bytes) {
        size_t m = MF_MIN(step, d.n - n);
        uint8_t *q = (uint8_t *)out->part[0] + n * mf_codec_row_bytes(c, d.k);
        for (size_t r = 0; r < m; r++)
            mf_data_w_row(shape, w, seed, expert, (int64_t)(n + r), rows + r * d.k);
        mf_bf16_to_floats(rows, m * d.k, floats);
        if (whole)
            mf_codec_encode_row(c, floats, d.k, out->part[1], global, q);
        else
            mf_codec_encode(c, floats, m, d.k, global, q, (uint8_t *)out->part[1] + at_scale);
    }
}

int mf_data_expert(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert,
                   const struct mf_tensor_ref *out)
{
    struct weight d = weight_of(shape, w);
    struct mf_tensor_spec a = mf_plain_w(shape, w, "row");
    const struct mf_codec *c = mf_codec_find(a.format, a.scale);
    if (c->scale_bytes == 0) {
        for (size_t n = 0; n < d.n; n++)
            mf_data_w_row(shape, w, seed, expert, (int64_t)n, (uint16_t *)out->part[0] + n * d.k);
        return 0;
    }
    size_t step = c->group_rows > 0 ? (size_t)c->group_rows : 1;
    _cleanup_(mf_freep) uint16_t *rows = reallocarray(NULL, step * d.k, sizeof(*rows));
    _cleanup_(mf_freep) float *floats = reallocarray(NULL, step * d.k, sizeof(*floats));
    if (!rows || !floats)
        return -ENOMEM;
    encode_expert(shape, w, seed, expert, c, rows, floats, out);
    return 0;
}

struct weight_job {
    const struct mf_shape *shape;
    enum mf_tensor w;
    uint64_t seed;
    const struct mf_tensor_ref *out;
    size_t expert_bytes[MF_PARTS_MAX];
    int n_parts, error;
};

static void weight_thread(void *context, int thread, int n_threads)
{
    struct weight_job *j = context;
    for (int32_t e = thread; e < j->shape->expert; e += n_threads) {
        struct mf_tensor_ref out = {0};
        for (int i = 0; i < j->n_parts; i++)
            out.part[i] = (uint8_t *)j->out->part[i] + (size_t)e * j->expert_bytes[i];
        int r = mf_data_expert(j->shape, j->w, j->seed, e, &out);
        if (r < 0)
            __atomic_store_n(&j->error, r, __ATOMIC_RELAXED);
    }
}

int mf_data_weight(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed,
                   const struct mf_tensor_ref *out)
{
    struct mf_tensor_spec a = mf_plain_w(shape, w, "row");
    struct mf_part parts[MF_PARTS_MAX];
    struct weight_job job = {.shape = shape, .w = w, .seed = seed, .out = out};
    job.n_parts = mf_tensor_spec_parts(&a, shape, parts);
    if (job.n_parts < 0)
        return job.n_parts;
    for (int i = 0; i < job.n_parts; i++)
        job.expert_bytes[i] = (size_t)(mf_part_bytes(&parts[i]) / shape->expert);
    mf_pool_run(weight_thread, &job, mf_pool_threads());
    return job.error;
}

int mf_data_bias(const struct mf_shape *shape, enum mf_tensor b, uint64_t seed, float *out)
{
    struct mf_tensor_spec a = mf_plain_bias(b);
    size_t n = (size_t)mf_tensor_spec_cols(&a, shape);
    _cleanup_(mf_freep) uint16_t *codes = reallocarray(NULL, n, sizeof(*codes));
    if (!codes)
        return -ENOMEM;
    for (int32_t e = 0; e < shape->expert; e++) {
        make_row(key_of(seed, b), (uint64_t)e, scale_of(4), n, codes);
        mf_bf16_to_floats(codes, n, out + (size_t)e * n);
    }
    return 0;
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
