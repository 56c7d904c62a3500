/* int8 x int8 GEMM with VNNI. VNNI multiplies unsigned by signed bytes, so an offset of 128 is added to A.
 * One extra instruction per weight vector sums the weights, and 128 times that sum is subtracted from the
 * result. Results are exact integers, because K is split before a sum can overflow 32 bits. Only ops_avx512.c
 * includes this file. */
#pragma once

#define INT8_K    65536 /* maximum K per int32 sum, because 255 · 128 · K must stay below 2^31 */
#define INT8_ROWS 8

INLINE const uint8_t *int8_row(const struct mf_tile *t, int r)
{
    return (const uint8_t *)t->a + (size_t)r * t->lda * 2;
}

INLINE __m512i four_at(const uint8_t *a)
{
    int32_t v;
    memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512 int8_sum(__m512i sum, __m512i weights)
{
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_slli_epi32(weights, 7)));
}

/* Computes 16 columns of C, from column n, for MR rows of A, from row r0. */
INLINE void int8_columns(const struct mf_tile *t, size_t n, int r0, const int MR, const int KU)
{
    const size_t panel = (size_t)t->panel, stride = panel * 4, chunk = t->a_scale ? 128 : INT8_K;
    const char *p = (const char *)t->w + n / panel * panel * t->k + n % panel * 4;
    const char *end = (const char *)t->w + (size_t)t->n * t->k;
    const __m512i one = _mm512_set1_epi8(1);
    __m512 total[INT8_ROWS];

    EACH (m, MR)
        total[m] = _mm512_setzero_ps();
    for (size_t k0 = 0; k0 < t->k; k0 += chunk) {
        size_t k = k0, k_end = MF_MIN(t->k, k0 + chunk);
        __m512i sum[INT8_ROWS][2], weights[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        EACH (m, MR)
            sum[m][0] = sum[m][1] = _mm512_setzero_si512();
        for (; k + 4 * (size_t)KU <= k_end; k += 4 * (size_t)KU) {
            EACH (u, KU) {
                __m512i w = _mm512_loadu_si512(p);
                fetch_lines(t, p, end, 1);
                weights[u] = _mm512_dpbusd_epi32(weights[u], one, w);
                EACH (m, MR)
                    sum[m][u] =
                        _mm512_dpbusd_epi32(sum[m][u], four_at(int8_row(t, r0 + m) + k + 4 * (size_t)u), w);
                p += stride;
            }
        }
        for (; k < k_end; k += 4, p += stride) {
            __m512i w = _mm512_loadu_si512(p);
            weights[0] = _mm512_dpbusd_epi32(weights[0], one, w);
            EACH (m, MR)
                sum[m][0] = _mm512_dpbusd_epi32(sum[m][0], four_at(int8_row(t, r0 + m) + k), w);
        }
        weights[0] = _mm512_add_epi32(weights[0], weights[1]);
        EACH (m, MR)
            total[m] = _mm512_fmadd_ps(int8_sum(_mm512_add_epi32(sum[m][0], sum[m][1]), weights[0]),
                                       scale_of(t, r0 + m, n, k0), total[m]);
    }
    EACH (m, MR)
        _mm512_storeu_ps(t->c + (size_t)(r0 + m) * t->ldc + n, total[m]);
}

#define INT8_COLUMNS(m, ku)           \
    case m:                           \
        int8_columns(t, n, r, m, ku); \
        break

/* Divides the rows of A evenly among passes over each strip of 16 weight rows. The strip stays in the L2
 * cache between passes. */
static void int8_panels(const struct mf_tile *t)
{
    int passes = (t->rows + INT8_ROWS - 1) / INT8_ROWS;

    for (size_t n = 0; n < (size_t)t->n; n += 16) {
        for (int b = 0; b < passes; b++) {
            int r = t->rows * b / passes;
            switch (t->rows * (b + 1) / passes - r) {
                INT8_COLUMNS(1, 2);
                INT8_COLUMNS(2, 2);
                INT8_COLUMNS(3, 2);
                INT8_COLUMNS(4, 1);
                INT8_COLUMNS(5, 1);
                INT8_COLUMNS(6, 1);
                INT8_COLUMNS(7, 1);
                INT8_COLUMNS(8, 1);
            }
        }
    }
}

/* Computes column n of C for MR rows of A, from row r0. The weights are in row layout, so the vectors run
 * along K. */
INLINE void int8_along(const struct mf_tile *t, int n, int r0, const int MR)
{
    const char *w = (const char *)t->w + (size_t)n * t->k;
    const size_t chunk = t->a_scale ? 128 : INT8_K;
    float total[ROW_M] = {0};

    for (size_t k0 = 0; k0 < t->k; k0 += chunk) {
        size_t k_end = MF_MIN(t->k, k0 + chunk);
        __m512i sum[ROW_M], weights = _mm512_setzero_si512();
        EACH (m, MR)
            sum[m] = _mm512_setzero_si512();
        for (size_t k = k0; k < k_end; k += 64) {
            __mmask64 there = k_end - k >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (k_end - k)) - 1;
            __m512i v = _mm512_maskz_loadu_epi8(there, w + k);
            weights = _mm512_dpbusd_epi32(weights, _mm512_set1_epi8(1), v);
            EACH (m, MR)
                sum[m] =
                    _mm512_dpbusd_epi32(sum[m], _mm512_maskz_loadu_epi8(there, int8_row(t, r0 + m) + k), v);
        }
        float scale = 1.0f;
        EACH (m, MR) {
            if (t->a_scale)
                scale = t->a_scale[(size_t)(r0 + m) * t->lda_scale + k0 / 128] *
                        t->w_scale[(size_t)(t->n_offset + n) / 128 * t->ldw_scale + k0 / 128];
            total[m] += scale * (float)_mm512_reduce_add_epi32(
                                    _mm512_sub_epi32(sum[m], _mm512_slli_epi32(weights, 7)));
        }
    }
    EACH (m, MR)
        t->c[(size_t)(r0 + m) * t->ldc + (size_t)n] = total[m];
}

#define INT8_ALONG(tile, column, row, m, unused) int8_along(tile, column, row, m)

static void int8_gemm(const struct mf_tile *t)
{
    if (t->panel > 1) {
        int8_panels(t);
        return;
    }
    for (int n = 0; n < t->n; n++)
        ROW_LOOP(INT8_ALONG, 1);
}

/* Adds the offset of 128 to each byte. */
static void int8_pack(const uint8_t *restrict from, size_t n, uint8_t *restrict to)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] ^ 0x80;
}
