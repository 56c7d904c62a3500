/* GEMM of few rows with quantised weights. Weights are decoded to bf16 in registers, 16 weight rows at a
 * time, and the scale of a group along K is applied to the group's sum. Only ops_avx512.c includes this file.
 *
 * Four-bit weights: VPERMW looks up the low bits of every word in a table. Shifting the words right by 0, 4,
 * 8 and 12 bits yields the pairs (0,4), (1,5), (2,6) and (3,7) of eight elements; order() arranges A in the
 * same way. The lookup uses five index bits, so the table holds its 16 values twice.
 *
 * Eight-bit weights: decode() of ops_avx512.c decodes the weights, and A is in natural order. */
#pragma once

#define STREAM_QUANT_ROWS 8 /* maximum rows of A */

enum decode_kind { DECODE_LOOKUP, DECODE_FP8 };

static const uint16_t fp4_values[16] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                        0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
static const uint16_t int4_values[16] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                         0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};

/* Transposes up to 16 bytes of scales of 16 rows: to[j] receives byte j of every row. */
static void transpose_scales(const uint8_t *from, size_t ld, size_t bytes, __m128i to[16])
{
    __mmask16 there = (__mmask16)(bytes >= 16 ? 0xffff : (1u << bytes) - 1);
    __m128i transposed[16];

    for (size_t r = 0; r < 16; r++)
        to[r] = _mm_maskz_loadu_epi8(there, from + r * ld);
    for (int round = 0; round < 4; round++) {
        EACH (i, 8) {
            transposed[2 * i] = _mm_unpacklo_epi8(to[i], to[i + 8]);
            transposed[2 * i + 1] = _mm_unpackhi_epi8(to[i], to[i + 8]);
        }
        memcpy(to, transposed, sizeof(transposed));
    }
}

/* Returns the scales of group g, from the transposed bytes. */
INLINE __m512 transposed_scale(enum mf_scale_format format, const __m128i *transposed, size_t g)
{
    if (format == MF_SCALE_BF16) {
        __m512i low = _mm512_cvtepu8_epi32(transposed[2 * g]),
                high = _mm512_cvtepu8_epi32(transposed[2 * g + 1]);
        return _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(low, 16), _mm512_slli_epi32(high, 24)));
    }
    __m512i v = _mm512_cvtepu8_epi32(transposed[g]);
    if (format == MF_SCALE_E8M0) /* value 0 means 2^-127 */
        return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(v, 23), _mm512_set1_epi32(0x00400000)));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(v, 20)), _mm512_set1_ps(0x1p120f));
}

/* Computes the sums of 16 weight rows over the K elements [k, k_end). p points to element k. `stride` is the
 * distance in bytes to the next four bytes of K. */
INLINE void stream_group(const struct mf_tile *t, const char *p, size_t stride, size_t k, size_t k_end,
                         __m512i table, const char *end, const int MR, const int KU,
                         const enum decode_kind KIND, __m512 *ret)
{
    __m512 sum[STREAM_QUANT_ROWS][4];
    const uint16_t *a = t->a;

    EACH (m, MR)
        EACH (u, KU)
            sum[m][u] = _mm512_setzero_ps();
    for (; KIND == DECODE_LOOKUP && k < k_end; k += 8, p += stride) {
        __m512i v = _mm512_loadu_si512(p);
        fetch_lines(t, p, end, 1);
        EACH (j, 4) {
            __m512i w = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, (unsigned)(4 * j)), table);
            EACH (m, MR)
                sum[m][j % KU] = dot(sum[m][j % KU], pair_at(a + (size_t)m * t->lda + k + 2 * (size_t)j), w);
        }
    }
    /* sum[m][0] has rows 0 and 1 of every four rows, sum[m][1] rows 2 and 3 */
    for (; KIND == DECODE_FP8 && k < k_end; k += 4, p += stride) {
        __m512i low, high;
        fetch_lines(t, p, end, 1);
        decode(_mm512_loadu_si512(p), &low, &high);
        EACH (m, MR) {
            __m512i v = quad_at(a + (size_t)m * t->lda + k);
            sum[m][0] = dot(sum[m][0], v, low);
            sum[m][1] = dot(sum[m][1], v, high);
        }
    }
    EACH (m, MR) {
        if (KIND == DECODE_FP8) {
            ret[m] = _mm512_mul_ps(fold(sum[m][0], sum[m][1]), _mm512_set1_ps(0x1p56f));
            continue;
        }
        EACH_FROM (1, u, KU)
            sum[m][0] = _mm512_add_ps(sum[m][0], sum[m][u]);
        ret[m] = sum[m][0];
    }
}

INLINE void stream_columns(const struct mf_tile *t, const int MR, const int KU, const enum decode_kind KIND)
{
    const struct mf_codec *c = t->codec;
    const size_t panel = (size_t)t->panel, stride = panel * 4, per = KIND == DECODE_LOOKUP ? 8 : 4;
    const size_t row_bytes = t->k * (size_t)c->bits / 8, group = c->group_cols ? (size_t)c->group_cols : t->k;
    const size_t span = t->group_scale ? 16 / (size_t)c->scale_bytes * group : t->k;
    const size_t scale_bytes = (t->k + group - 1) / group * (size_t)c->scale_bytes;
    const char *end = (const char *)t->w + (size_t)t->n * row_bytes;
    const uint16_t *values = c->format == MF_FORMAT_INT4 ? int4_values : fp4_values;
    const __m512i table = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)values));

    for (size_t n = 0; n < (size_t)t->n; n += 16) {
        const char *p = (const char *)t->w + n / panel * panel * row_bytes + n % panel * 4;
        const uint8_t *scale =
            t->group_scale ? (const uint8_t *)t->group_scale + n * t->ld_group_scale : NULL;
        __m512 total[STREAM_QUANT_ROWS], sum[STREAM_QUANT_ROWS];
        EACH (m, MR)
            total[m] = _mm512_setzero_ps();
        for (size_t k0 = 0; k0 < t->k; k0 += span, scale += scale ? 16 : 0) {
            size_t k_end = MF_MIN(t->k, k0 + span), at = k0 / group * (size_t)c->scale_bytes;
            __m128i transposed[16];
            if (scale)
                transpose_scales(scale, t->ld_group_scale, scale_bytes - at, transposed);
            for (size_t k = k0, g = 0; k < k_end; k += group, g++) {
                __m512 s = scale ? transposed_scale(c->scale_format, transposed, g) : _mm512_set1_ps(1.0f);
                stream_group(t, p + k / per * stride, stride, k, MF_MIN(k_end, k + group), table, end, MR, KU,
                             KIND, sum);
                EACH (m, MR)
                    total[m] = _mm512_fmadd_ps(sum[m], s, total[m]);
            }
        }
        EACH (m, MR)
            _mm512_storeu_ps(t->c + (size_t)m * t->ldc + n, total[m]);
    }
}

#define STREAM_QUANT_CASE(m, ku)                                                                             \
    case m:                                                                                                  \
        t->codec->bits == 4 ? stream_columns(t, m, ku, DECODE_LOOKUP) : stream_columns(t, m, 2, DECODE_FP8); \
        return

static void stream(const struct mf_tile *t)
{
    switch (t->rows) {
        STREAM_QUANT_CASE(1, 4);
        STREAM_QUANT_CASE(2, 2);
        STREAM_QUANT_CASE(3, 2);
        STREAM_QUANT_CASE(4, 1);
        STREAM_QUANT_CASE(5, 1);
        STREAM_QUANT_CASE(6, 1);
        STREAM_QUANT_CASE(7, 1);
        STREAM_QUANT_CASE(8, 1);
    }
}

/* Reorders A as described at the top of this file. K is a multiple of 8 for four-bit weights. */
static void order(const struct mf_codec *w, uint16_t *a, size_t k)
{
    const __m128i pairs = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);

    for (size_t i = 0; w->bits == 4 && i + 8 <= k; i += 8) {
        __m128i v = _mm_loadu_si128((const void *)(a + i));
        _mm_storeu_si128((void *)(a + i), _mm_shuffle_epi8(v, pairs));
    }
}
