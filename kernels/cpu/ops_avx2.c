/* AVX2 and FMA kernels: weights and activations are widened to floats in registers. */
#include "kernels/core/quant.h"
#include "kernels/cpu/decode.h"

#include <immintrin.h>

#define MR 4 /* maximum rows of A per loop */

/* Returns the first elements of eight bf16 pairs as floats; high_bf16() returns the second elements. */
static inline __m256 low_bf16(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

static inline __m256 high_bf16(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
}

/* Decodes the e4m3 byte in bits 24..31 of each lane. The shift puts the exponent into the float's exponent
 * field, and the mask removes the copies of the sign bit. One exact multiplication corrects the exponent,
 * subnormals included. */
static inline __m256 fp8_lane(__m256i v, __m256 power)
{
    __m256i bits = _mm256_and_si256(_mm256_srai_epi32(v, 4), _mm256_set1_epi32((int)0x87f00000));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), power);
}

static inline __m256 fp8_power(enum mf_format format)
{
    return _mm256_set1_ps(format == MF_FORMAT_FP8FNUZ ? 0x1p119f : 0x1p120f);
}

/* Returns a vector with K elements k and k + 1 of row r of A in every lane. */
static inline __m256i pair_of(const struct mf_tile *t, int r, size_t k)
{
    int32_t pair;
    memcpy(&pair, t->a + (size_t)r * t->lda + k, 4);
    return _mm256_set1_epi32(pair);
}

/* Multiplies `rows` rows of A by 16 columns of a panel over the K elements [k0, k_end), and adds the products
 * to sum[MR][2]. */
static inline __attribute__((always_inline)) void panel_bf16(const struct mf_tile *t, const char *w, int r0,
                                                             int rows, size_t k0, size_t k_end,
                                                             __m256 (*sum)[2])
{
    size_t stride = (size_t)t->panel * 4;
    const char *end = (const char *)t->w + (size_t)t->n * t->k * 2;

    for (size_t k = k0; k < k_end; k += 2) {
        const char *at = w + k / 2 * stride;
        _mm_prefetch(mf_prefetch_address(t, at, end), _MM_HINT_T0);
        __m256i w0 = _mm256_loadu_si256((const void *)at), w1 = _mm256_loadu_si256((const void *)(at + 32));
        __m256 e0 = low_bf16(w0), o0 = high_bf16(w0), e1 = low_bf16(w1), o1 = high_bf16(w1);
        for (int r = 0; r < rows; r++) {
            __m256i a = pair_of(t, r0 + r, k);
            __m256 ae = low_bf16(a), ao = high_bf16(a);
            sum[r][0] = _mm256_fmadd_ps(ao, o0, _mm256_fmadd_ps(ae, e0, sum[r][0]));
            sum[r][1] = _mm256_fmadd_ps(ao, o1, _mm256_fmadd_ps(ae, e1, sum[r][1]));
        }
    }
}

static inline __attribute__((always_inline)) void
panel_fp8(const struct mf_tile *t, const char *w, int r0, int rows, size_t k0, size_t k_end, __m256 (*sum)[2])
{
    size_t stride = (size_t)t->panel * 4;
    const char *end = (const char *)t->w + (size_t)t->n * t->k;
    __m256 power = fp8_power(t->format), odds[1][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()}};
    /* With one row, separate sums for odd elements hide the FMA latency. With several rows, no registers are
     * left for separate sums. */
    __m256(*odd)[2] = rows == 1 ? odds : sum;

    for (size_t k = k0; k < k_end; k += 4) {
        const char *at = w + k / 4 * stride;
        /* decoding takes so long that few loads are in flight without prefetching */
        _mm_prefetch(mf_prefetch_address(t, at, end), _MM_HINT_T0);
        __m256i w0 = _mm256_loadu_si256((const void *)at), w1 = _mm256_loadu_si256((const void *)(at + 32));
        for (int j = 0; j < 4; j += 2) {
            __m256 e0 = fp8_lane(_mm256_slli_epi32(w0, 24 - 8 * j), power),
                   e1 = fp8_lane(_mm256_slli_epi32(w1, 24 - 8 * j), power);
            __m256 o0 = fp8_lane(_mm256_slli_epi32(w0, 16 - 8 * j), power),
                   o1 = fp8_lane(_mm256_slli_epi32(w1, 16 - 8 * j), power);
            for (int r = 0; r < rows; r++) {
                __m256i a = pair_of(t, r0 + r, k + (size_t)j);
                sum[r][0] = _mm256_fmadd_ps(low_bf16(a), e0, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(low_bf16(a), e1, sum[r][1]);
                odd[r][0] = _mm256_fmadd_ps(high_bf16(a), o0, odd[r][0]);
                odd[r][1] = _mm256_fmadd_ps(high_bf16(a), o1, odd[r][1]);
            }
        }
    }
    for (int i = 0; rows == 1 && i < 2; i++)
        sum[0][i] = _mm256_add_ps(sum[0][i], odd[0][i]);
}

static inline float scale_at(const struct mf_tile *t, int r, size_t n, size_t k)
{
    if (!t->a_scale)
        return 1.0f;
    return t->a_scale[(size_t)r * t->lda_scale + k / 128] *
           t->w_scale[((size_t)t->n_offset + n) / 128 * t->ldw_scale + k / 128];
}

static inline __attribute__((always_inline)) void panel_rows(const struct mf_tile *t, size_t n0,
                                                             const char *w, int r0, int rows, bool fp8)
{
    size_t step = t->a_scale ? 128 : t->k;
    __m256 total[MR][2];

    for (int r = 0; r < rows; r++)
        total[r][0] = total[r][1] = _mm256_setzero_ps();
    for (size_t k0 = 0; k0 < t->k; k0 += step) {
        size_t k_end = k0 + step < t->k ? k0 + step : t->k;
        __m256 sum[MR][2];
        for (int r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm256_setzero_ps();
        if (fp8)
            panel_fp8(t, w, r0, rows, k0, k_end, sum);
        else
            panel_bf16(t, w, r0, rows, k0, k_end, sum);
        for (int r = 0; r < rows; r++) {
            __m256 s = _mm256_set1_ps(scale_at(t, r0 + r, n0, k0));
            total[r][0] = _mm256_fmadd_ps(sum[r][0], s, total[r][0]);
            total[r][1] = _mm256_fmadd_ps(sum[r][1], s, total[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        float *c = t->c + (size_t)(r0 + r) * t->ldc + n0;
        _mm256_storeu_ps(c, total[r][0]);
        _mm256_storeu_ps(c + 8, total[r][1]);
    }
}

static void gemm_panel(const struct mf_tile *t)
{
    bool fp8 = t->format != MF_FORMAT_BF16;
    size_t element = fp8 ? 1 : 2, panel = (size_t)t->panel;

    for (size_t n0 = 0; n0 < (size_t)t->n; n0 += 16) {
        const char *w = (const char *)t->w + n0 / panel * panel * t->k * element + n0 % panel * 4;
        for (int r = 0; r < t->rows; r += MR) {
            int rows = t->rows - r;
            if (rows >= MR)
                fp8 ? panel_rows(t, n0, w, r, MR, true) : panel_rows(t, n0, w, r, MR, false);
            else if (rows == 1)
                fp8 ? panel_rows(t, n0, w, r, 1, true) : panel_rows(t, n0, w, r, 1, false);
            else if (rows == 2)
                fp8 ? panel_rows(t, n0, w, r, 2, true) : panel_rows(t, n0, w, r, 2, false);
            else
                fp8 ? panel_rows(t, n0, w, r, 3, true) : panel_rows(t, n0, w, r, 3, false);
        }
    }
}

static inline float sum_lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256 widen_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

static inline float value_of(const struct mf_tile *t, const char *row, size_t k)
{
    if (t->format == MF_FORMAT_BF16)
        return bf16_value(((const uint16_t *)(const void *)row)[k]);
    return mf_fp8_to_float(t->format, ((const uint8_t *)row)[k]);
}

static inline __m256i byte_to_top(const char *p)
{
    return _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)), 24);
}

/* Computes the dot products of one weight row with up to MR rows of A. The vectors run along K. */
static inline __attribute__((always_inline)) void row_rows(const struct mf_tile *t, size_t n, int r0,
                                                           int rows, bool fp8)
{
    const char *w = (const char *)t->w + n * t->k * (fp8 ? 1 : 2);
    size_t step = t->a_scale ? 128 : t->k;
    __m256 power = fp8_power(t->format);
    float total[MR] = {0};

    for (size_t k0 = 0; k0 < t->k; k0 += step) {
        size_t k_end = k0 + step < t->k ? k0 + step : t->k, k = k0;
        __m256 sum[MR];
        for (int r = 0; r < rows; r++)
            sum[r] = _mm256_setzero_ps();
        for (; k + 8 <= k_end; k += 8) {
            __m256 v =
                fp8 ? fp8_lane(byte_to_top(w + k), power) : widen_bf16((const uint16_t *)(const void *)w + k);
            for (int r = 0; r < rows; r++)
                sum[r] = _mm256_fmadd_ps(widen_bf16(t->a + (size_t)(r0 + r) * t->lda + k), v, sum[r]);
        }
        for (int r = 0; r < rows; r++) {
            float s = sum_lanes(sum[r]);
            for (size_t i = k; i < k_end; i++)
                s += bf16_value(t->a[(size_t)(r0 + r) * t->lda + i]) * value_of(t, w, i);
            total[r] += s * scale_at(t, r0 + r, n, k0);
        }
    }
    for (int r = 0; r < rows; r++)
        t->c[(size_t)(r0 + r) * t->ldc + n] = total[r];
}

static void gemm_row(const struct mf_tile *t)
{
    bool fp8 = t->format != MF_FORMAT_BF16;

    for (size_t n = 0; n < (size_t)t->n; n++) {
        int r = 0;
        for (; r + MR <= t->rows; r += MR)
            fp8 ? row_rows(t, n, r, MR, true) : row_rows(t, n, r, MR, false);
        for (; r < t->rows; r++)
            fp8 ? row_rows(t, n, r, 1, true) : row_rows(t, n, r, 1, false);
    }
}

static void gemm(const struct mf_tile *t)
{
    if (t->panel == 1)
        gemm_row(t);
    else
        gemm_panel(t);
}

static void pack(enum mf_format format, const void *from, size_t n, uint16_t *to)
{
    if (format == MF_FORMAT_BF16)
        memcpy(to, from, n * 2);
    else
        pack_fp8(format, 0, from, n, to);
}

const struct mf_cpu_ops mf_cpu_ops_avx2 = {
    .isa = MF_ISA_AVX2,
    .fetches = true,
    .decode = decode_weights,
    .unpack = unpack_row,
    .gemm = gemm,
    .pack = pack,
    .activate = activate,
    .scale = scale,
    .add = add,
    .combine = combine,
    .to_bf16 = to_bf16,
};
