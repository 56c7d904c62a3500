/* AVX-512 kernels with BF16 instructions. With few rows of A, weights stream through registers at memory
 * speed. With many rows of A, fp8 weights also stream, once for each pass of up to FP8_ROWS rows. For bf16
 * weights with many rows of A, a tile of sums stays in registers, and each block of rows reads the same piece
 * of the weights.
 *
 * Converting fp8 to bf16 takes three instructions for 32 weights: unpack into the high byte of words, shift
 * right arithmetically by four, and select sign, exponent and mantissa with exponent bit 6 set. The result is
 * the value times 2^-56 (e4m3fn) or 2^-55 (e4m3fnuz). The result must be a normal number, because VDPBF16PS
 * treats subnormals as zero. pack() multiplies A by the inverse factor. e4m3 subnormals need a correction
 * from a table. Because subnormals are rare, a branch skips the correction. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* Stores two consecutive K elements of each of 16 rows as a pair of bf16 values. A bf16 value is the upper
 * half of the float, without rounding. */
static inline __attribute__((always_inline)) void store_pairs(__m512 even, __m512 odd, uint32_t *to)
{
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(odd)));
}

/* Rounds each float to the nearest bf16 value, ties to even. The upper half of the float holds the result. */
static inline __attribute__((always_inline)) __m512 round_to_bf16(__m512 f)
{
    __m512i u = _mm512_castps_si512(f),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_castsi512_ps(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))));
}

static inline __attribute__((always_inline)) void quad_by_lookup(__m512 table, const uint32_t *v, __m512 s,
                                                                 bool exact, uint32_t *to)
{
    __m512i codes = _mm512_loadu_si512(v);
    for (int j = 0; j < 4; j++, to += 16) {
        /* the permutation uses only the low four bits of each index */
        __m512 even =
            _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, (unsigned)(8 * j)), table), s);
        __m512 odd =
            _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, (unsigned)(8 * j + 4)), table), s);
        if (exact)
            store_pairs(even, odd, to);
        else
            store_pairs(round_to_bf16(even), round_to_bf16(odd), to);
    }
}

static inline __attribute__((always_inline)) void quad_fp4(const uint32_t *v, const float *s, uint32_t *to)
{
    const __m512 table =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    quad_by_lookup(table, v, _mm512_loadu_ps(s), true, to);
}

static inline __attribute__((always_inline)) void quad_int4(const uint32_t *v, const float *s, uint32_t *to)
{
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    quad_by_lookup(table, v, _mm512_loadu_ps(s), false, to);
}

/* Decodes byte `at` of each lane as e4m3. One exact multiplication corrects the exponent. */
static inline __attribute__((always_inline)) __m512 e4m3_lane(__m512i v, int at, __m512 power)
{
    __m512i up = _mm512_slli_epi32(v, (unsigned)(24 - 8 * at)); /* moves the value to the highest byte */
    __m512i magnitude = _mm512_srli_epi32(_mm512_slli_epi32(up, 1), 5);
    __m512i sign = _mm512_and_si512(up, _mm512_set1_epi32((int)0x80000000));
    magnitude = _mm512_and_si512(magnitude, _mm512_set1_epi32(0x07f00000));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(sign, magnitude)), power);
}

static inline __attribute__((always_inline)) void quad_fp8(const uint32_t *v, const float *s, float power,
                                                           uint32_t *to)
{
    __m512i codes = _mm512_loadu_si512(v);
    __m512 p = _mm512_set1_ps(power), scale = _mm512_loadu_ps(s);
    for (int j = 0; j < 2; j++, to += 16)
        store_pairs(_mm512_mul_ps(e4m3_lane(codes, 2 * j, p), scale),
                    _mm512_mul_ps(e4m3_lane(codes, 2 * j + 1, p), scale), to);
}

static inline __attribute__((always_inline)) void quad_fp8fn(const uint32_t *v, const float *s, uint32_t *to)
{
    quad_fp8(v, s, 0x1p120f, to);
}

static inline __attribute__((always_inline)) void quad_fp8fnuz(const uint32_t *v, const float *s,
                                                               uint32_t *to)
{
    quad_fp8(v, s, 0x1p119f, to);
}

static inline __attribute__((always_inline)) __m512 int8_lane(__m512i v, int at)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, (unsigned)(24 - 8 * at)), 24));
}

static inline __attribute__((always_inline)) void quad_int8(const uint32_t *v, const float *s, uint32_t *to)
{
    __m512i codes = _mm512_loadu_si512(v);
    (void)s; /* scales are always 1, because int8 has no group scales */
    for (int j = 0; j < 2; j++, to += 16)
        store_pairs(int8_lane(codes, 2 * j), int8_lane(codes, 2 * j + 1), to);
}

#define MF_OWN_QUADS
#include "common/base/cleanup.h"
#include "kernels/cpu/decode.h"

/* Loops with constant bounds, unrolled so that the arrays inside are kept in registers. */
#define EACH(i, n)            _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#define EACH_FROM(from, i, n) _Pragma("GCC unroll 16") for (int i = from; i < (n); i++)
#define INLINE                static inline __attribute__((always_inline))
#define STREAM_ROWS           8 /* maximum rows for streaming bf16 weights */
#define FP8_ROWS              8 /* maximum rows of A per pass with fp8 weights */
#define TILE_ROWS             6
/* column vectors per tile: 24 vectors of sums (6 rows x 4), 4 of weights and 1 of A fit the 32 registers */
#define TILE_Z 4

INLINE __m512 dot(__m512 sum, __m512i a, __m512i w)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)w);
}

INLINE __m512i pair_at(const uint16_t *a)
{
    int32_t v;
    memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512i quad_at(const uint16_t *a)
{
    int64_t v;
    memcpy(&v, a, 8);
    return _mm512_set1_epi64(v);
}

/* Prefetches N cache lines, t->fetch bytes after p, into the L2 cache. L2 supports more outstanding reads
 * than L1, and without prefetching a core stalls at each page boundary. */
INLINE void fetch_lines(const struct mf_tile *t, const char *p, const char *end, const int N)
{
    const char *at = mf_prefetch_address(t, p, end);

    EACH (i, N)
        _mm_prefetch(at + i * 64, _MM_HINT_T1);
}

/* ---- bf16, panels ---- */

INLINE void bf16_stream(const struct mf_tile *t, int r0, const int MR, const int NZ, const int KU)
{
    const char *p = t->w, *end = p + (size_t)t->n * t->k * 2;
    size_t steps = t->k / 2;

    for (int n = 0; n < t->n; n += NZ * 16) {
        __m512 sum[8][2][8];
        size_t s = 0;
        EACH (m, MR)
            EACH (z, NZ)
                EACH (u, KU)
                    sum[m][z][u] = _mm512_setzero_ps();
        for (; s + (size_t)KU <= steps; s += (size_t)KU) {
            fetch_lines(t, p, end, KU * NZ);
            EACH (u, KU) {
                EACH (z, NZ) {
                    __m512i w = _mm512_loadu_si512(p + (u * NZ + z) * 64);
                    EACH (m, MR)
                        sum[m][z][u] = dot(
                            sum[m][z][u], pair_at(t->a + (size_t)(r0 + m) * t->lda + (s + (size_t)u) * 2), w);
                }
            }
            p += KU * NZ * 64;
        }
        for (; s < steps; s++) {
            EACH (z, NZ) {
                __m512i w = _mm512_loadu_si512(p + z * 64);
                EACH (m, MR)
                    sum[m][z][0] = dot(sum[m][z][0], pair_at(t->a + (size_t)(r0 + m) * t->lda + s * 2), w);
            }
            p += NZ * 64;
        }
        EACH (m, MR)
            EACH (z, NZ) {
                EACH_FROM (1, u, KU)
                    sum[m][z][0] = _mm512_add_ps(sum[m][z][0], sum[m][z][u]);
                _mm512_storeu_ps(t->c + (size_t)(r0 + m) * t->ldc + n + z * 16, sum[m][z][0]);
            }
    }
}

#define STREAM_BF16(m, u16, u32)                                                      \
    case m:                                                                           \
        t->panel == 16 ? bf16_stream(t, 0, m, 1, u16) : bf16_stream(t, 0, m, 2, u32); \
        return

static void bf16_few_rows(const struct mf_tile *t)
{
    switch (t->rows) {
        STREAM_BF16(1, 8, 4);
        STREAM_BF16(2, 4, 2);
        STREAM_BF16(3, 2, 1);
        STREAM_BF16(4, 2, 1);
        STREAM_BF16(5, 1, 1);
        STREAM_BF16(6, 1, 1);
        STREAM_BF16(7, 1, 1);
        STREAM_BF16(8, 1, 1);
    }
}

/* A piece of K for up to TILE_Z column vectors. */
struct piece {
    const char *w; /* weights at K element k0 */
    size_t s1, s2; /* bytes to the next vector, and to the next pair of vectors */
    size_t step;   /* bytes to the next group of K */
    size_t k0, k_end;
    int n; /* first column in C */
};

INLINE void bf16_block(const struct mf_tile *t, const struct piece *g, int r0, const int MR, const int Z)
{
    __m512 sum[TILE_ROWS][TILE_Z];
    const uint16_t *a = t->a + (size_t)r0 * t->lda;
    float *c = t->c + (size_t)r0 * t->ldc + g->n;
    const char *p = g->w;

    EACH (m, MR)
        EACH (z, Z)
            sum[m][z] = g->k0 == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)m * t->ldc + z * 16);
    for (size_t k = g->k0; k < g->k_end; k += 2, p += g->step) {
        __m512i w[TILE_Z];
        EACH (z, Z)
            w[z] = _mm512_loadu_si512(p + (size_t)(z / 2) * g->s2 + (size_t)(z % 2) * g->s1);
        EACH (m, MR) {
            __m512i v = pair_at(a + (size_t)m * t->lda + k);
            EACH (z, Z)
                sum[m][z] = dot(sum[m][z], v, w[z]);
        }
    }
    EACH (m, MR)
        EACH (z, Z)
            _mm512_storeu_ps(c + (size_t)m * t->ldc + z * 16, sum[m][z]);
}

#define BLOCK_Z(m)                            \
    case m:                                   \
        z == 4   ? bf16_block(t, g, r, m, 4)  \
        : z == 3 ? bf16_block(t, g, r, m, 3)  \
        : z == 2 ? bf16_block(t, g, r, m, 2)  \
                 : bf16_block(t, g, r, m, 1); \
        break

/* Divides rows evenly among blocks, which avoids a last block of one row. */
static void bf16_rows(const struct mf_tile *t, const struct piece *g, int z)
{
    int blocks = (t->rows + TILE_ROWS - 1) / TILE_ROWS;

    for (int b = 0; b < blocks; b++) {
        int r = t->rows * b / blocks;
        switch (t->rows * (b + 1) / blocks - r) {
            BLOCK_Z(1);
            BLOCK_Z(2);
            BLOCK_Z(3);
            BLOCK_Z(4);
            BLOCK_Z(5);
            BLOCK_Z(6);
        }
    }
}

static void bf16_many_rows(const struct mf_tile *t)
{
    size_t panel = (size_t)t->panel, panel_bytes = panel * t->k * 2, step = panel * 4;
    size_t k_step = t->block_k ? t->block_k : t->k;

    for (int n = 0; n < t->n; n += TILE_Z * 16) {
        int z = (t->n - n) / 16 < TILE_Z ? (t->n - n) / 16 : TILE_Z;
        struct piece g = {.step = step, .n = n};
        g.s1 = panel == 16 ? panel_bytes : 64;
        g.s2 = panel == 16 ? 2 * panel_bytes : panel_bytes;
        for (g.k0 = 0; g.k0 < t->k; g.k0 += k_step) {
            g.k_end = g.k0 + k_step < t->k ? g.k0 + k_step : t->k;
            g.w = (const char *)t->w + (size_t)n / panel * panel_bytes + g.k0 / 2 * step;
            bf16_rows(t, &g, z);
        }
    }
}

/* ---- fp8 ---- */

/* Converts words with fp8 in their high bytes to bf16, scaled as described at the top of this file. */
INLINE __m512i decode_words(__m512i v)
{
    v = _mm512_srai_epi16(v, 4);
    return _mm512_ternarylogic_epi32(v, _mm512_set1_epi16((short)0x87f0), _mm512_set1_epi16(0x2000), 0xea);
}

/* Corrects the results of decode_words() for subnormals (exponent 0). The table holds m · 2^-65 for mantissa
 * m. */
static __attribute__((noinline)) __m512i fix_subnormals(__m512i v)
{
    static const uint16_t table[8] = {0, 0x1f00, 0x1f80, 0x1fc0, 0x2000, 0x2020, 0x2040, 0x2060};
    __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    __mmask32 subnormal = _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x0780));
    __m512i m = _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi16(7));
    __m512i sign = _mm512_and_si512(v, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_blend_epi16(subnormal, v, _mm512_or_si512(sign, _mm512_permutexvar_epi16(m, values)));
}

INLINE void decode(__m512i w, __m512i *low, __m512i *high)
{
    *low = decode_words(_mm512_unpacklo_epi8(_mm512_setzero_si512(), w));
    *high = decode_words(_mm512_unpackhi_epi8(_mm512_setzero_si512(), w));
    if (__builtin_expect(_mm512_testn_epi8_mask(w, _mm512_set1_epi8(0x78)) != 0, 0)) {
        *low = fix_subnormals(*low);
        *high = fix_subnormals(*high);
    }
}

/* Adds the two partial sums of each weight row. The first covers K elements 0 and 1 of each group of four,
 * the second K elements 2 and 3. `low` holds rows 0 and 1 of every four rows, `high` rows 2 and 3. */
INLINE __m512 fold(__m512 low, __m512 high)
{
    return _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
}

INLINE __m512 scale_of(const struct mf_tile *t, int row, size_t n, size_t k)
{
    if (!t->a_scale)
        return _mm512_set1_ps(1.0f);
    return _mm512_set1_ps(t->a_scale[(size_t)row * t->lda_scale + k / 128] *
                          t->w_scale[((size_t)t->n_offset + n) / 128 * t->ldw_scale + k / 128]);
}

/* Computes H · 16 columns of C (H half panels of 16 weight rows), from column n, for MR rows of A, from row
 * r0. */
INLINE void fp8_columns(const struct mf_tile *t, size_t n, int r0, const int MR, const int H, const int KU)
{
    const size_t panel = (size_t)t->panel, stride = panel * 4, chunk = t->a_scale ? 128 : t->k;
    const char *p = (const char *)t->w + n / panel * panel * t->k + n % panel * 4;
    const char *end = (const char *)t->w + (size_t)t->n * t->k;
    const uint16_t *a = t->a + (size_t)r0 * t->lda;
    __m512 total[FP8_ROWS][2];

    EACH (m, MR)
        EACH (h, H)
            total[m][h] = _mm512_setzero_ps();
    for (size_t k0 = 0; k0 < t->k; k0 += chunk) {
        size_t k = k0, k_end = MF_MIN(t->k, k0 + chunk);
        __m512 low[FP8_ROWS][2][4], high[FP8_ROWS][2][4];
        EACH (m, MR)
            EACH (h, H)
                EACH (u, KU)
                    low[m][h][u] = high[m][h][u] = _mm512_setzero_ps();
        for (; k + 4 * (size_t)KU <= k_end; k += 4 * (size_t)KU) {
            if (stride == (size_t)H * 64)
                fetch_lines(t, p, end, KU * H);
            else if (n % panel == 0) /* prefetch both halves, because the next pass reads the other half */
                fetch_lines(t, p, end, KU * 2);
            EACH (u, KU) {
                EACH (h, H) {
                    __m512i wl, wh;
                    decode(_mm512_loadu_si512(p + (size_t)u * stride + h * 64), &wl, &wh);
                    EACH (m, MR) {
                        __m512i v = quad_at(a + (size_t)m * t->lda + k + 4 * (size_t)u);
                        low[m][h][u] = dot(low[m][h][u], v, wl);
                        high[m][h][u] = dot(high[m][h][u], v, wh);
                    }
                }
            }
            p += (size_t)KU * stride;
        }
        for (; k < k_end; k += 4, p += stride) {
            EACH (h, H) {
                __m512i wl, wh;
                decode(_mm512_loadu_si512(p + h * 64), &wl, &wh);
                EACH (m, MR) {
                    __m512i v = quad_at(a + (size_t)m * t->lda + k);
                    low[m][h][0] = dot(low[m][h][0], v, wl);
                    high[m][h][0] = dot(high[m][h][0], v, wh);
                }
            }
        }
        EACH (m, MR)
            EACH (h, H) {
                EACH_FROM (1, u, KU) {
                    low[m][h][0] = _mm512_add_ps(low[m][h][0], low[m][h][u]);
                    high[m][h][0] = _mm512_add_ps(high[m][h][0], high[m][h][u]);
                }
                total[m][h] = _mm512_fmadd_ps(fold(low[m][h][0], high[m][h][0]),
                                              scale_of(t, r0 + m, n + (size_t)h * 16, k0), total[m][h]);
            }
    }
    EACH (m, MR)
        EACH (h, H)
            _mm512_storeu_ps(t->c + (size_t)(r0 + m) * t->ldc + n + h * 16, total[m][h]);
}

#define FP8_COLUMNS(m, u1, u2)                                                         \
    case m:                                                                            \
        halves == 2 ? fp8_columns(t, n, r, m, 2, u2) : fp8_columns(t, n, r, m, 1, u1); \
        break
#define FP8_HALF(m)                    \
    case m:                            \
        fp8_columns(t, n, r, m, 1, 1); \
        break

/* Divides the rows of A evenly among passes over each strip of weights. The strip stays in the L2 cache
 * between passes. Each pass decodes the weights again. With four or more rows per pass this takes no extra
 * time, because the dot products hide the decoding. */
static void fp8_panels(const struct mf_tile *t)
{
    int passes = (t->rows + FP8_ROWS - 1) / FP8_ROWS;
    /* as many half panels as the registers for the sums permit */
    int halves = t->panel == 32 && t->rows <= 4 ? 2 : 1;

    for (size_t n = 0; n < (size_t)t->n; n += (size_t)halves * 16) {
        for (int b = 0; b < passes; b++) {
            int r = t->rows * b / passes;
            switch (t->rows * (b + 1) / passes - r) {
                FP8_COLUMNS(1, 4, 2);
                FP8_COLUMNS(2, 2, 1);
                FP8_COLUMNS(3, 1, 1);
                FP8_COLUMNS(4, 1, 1);
                FP8_HALF(5);
                FP8_HALF(6);
                FP8_HALF(7);
                FP8_HALF(8);
            }
        }
    }
}

/* ---- row layout: along K ---- */

#define ROW_M 4
#define ROW_N 4

INLINE __m512i words_at(const uint16_t *p, size_t n)
{
    if (n >= 32)
        return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}

INLINE void row_bf16(const struct mf_tile *t, int n0, int r0, const int MR, const int NR)
{
    const uint16_t *w = (const uint16_t *)t->w + (size_t)n0 * t->k, *a = t->a + (size_t)r0 * t->lda;
    __m512 sum[ROW_M][ROW_N];

    EACH (m, MR)
        EACH (j, NR)
            sum[m][j] = _mm512_setzero_ps();
    for (size_t k = 0; k < t->k; k += 32) {
        size_t left = t->k - k;
        __m512i v[ROW_N];
        EACH (j, NR)
            v[j] = words_at(w + (size_t)j * t->k + k, left);
        EACH (m, MR) {
            __m512i x = words_at(a + (size_t)m * t->lda + k, left);
            EACH (j, NR)
                sum[m][j] = dot(sum[m][j], x, v[j]);
        }
    }
    EACH (m, MR)
        EACH (j, NR)
            t->c[(size_t)(r0 + m) * t->ldc + (size_t)(n0 + j)] = _mm512_reduce_add_ps(sum[m][j]);
}

INLINE void row_fp8(const struct mf_tile *t, int n0, int r0, const int MR, const int NR)
{
    const uint8_t *w = (const uint8_t *)t->w + (size_t)n0 * t->k;
    const uint16_t *a = t->a + (size_t)r0 * t->lda;
    const __m512i natural = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    size_t chunk = t->a_scale ? 128 : t->k;
    __m512 total[ROW_M][ROW_N];

    EACH (m, MR)
        EACH (j, NR)
            total[m][j] = _mm512_setzero_ps();
    for (size_t k0 = 0; k0 < t->k; k0 += chunk) {
        size_t k_end = k0 + chunk < t->k ? k0 + chunk : t->k;
        __m512 sum[ROW_M][ROW_N];
        EACH (m, MR)
            EACH (j, NR)
                sum[m][j] = _mm512_setzero_ps();
        for (size_t k = k0; k < k_end; k += 64) {
            size_t left = k_end - k;
            __mmask64 bytes = left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
            __m512i low[ROW_N], high[ROW_N];
            EACH (j, NR) {
                __m512i v = _mm512_maskz_loadu_epi8(bytes, w + (size_t)j * t->k + k);
                decode(_mm512_permutexvar_epi64(natural, v), &low[j], &high[j]);
            }
            EACH (m, MR) {
                const uint16_t *x = a + (size_t)m * t->lda + k;
                __m512i x0 = words_at(x, left), x1 = words_at(x + 32, left > 32 ? left - 32 : 0);
                EACH (j, NR)
                    sum[m][j] = dot(dot(sum[m][j], x0, low[j]), x1, high[j]);
            }
        }
        EACH (m, MR)
            EACH (j, NR)
                total[m][j] =
                    _mm512_fmadd_ps(sum[m][j], scale_of(t, r0 + m, (size_t)(n0 + j), k0), total[m][j]);
    }
    EACH (m, MR)
        EACH (j, NR)
            t->c[(size_t)(r0 + m) * t->ldc + (size_t)(n0 + j)] = _mm512_reduce_add_ps(total[m][j]);
}

#define ROW_LOOP(f, NR)                          \
    do {                                         \
        int r = 0;                               \
        for (; r + ROW_M <= t->rows; r += ROW_M) \
            f(t, n, r, ROW_M, NR);               \
        switch (t->rows - r) {                   \
        case 1:                                  \
            f(t, n, r, 1, NR);                   \
            break;                               \
        case 2:                                  \
            f(t, n, r, 2, NR);                   \
            break;                               \
        case 3:                                  \
            f(t, n, r, 3, NR);                   \
            break;                               \
        }                                        \
    } while (0)

static void gemm_row(const struct mf_tile *t)
{
    bool bf16 = t->format == MF_FORMAT_BF16;
    int n = 0;

    for (; bf16 && n + 4 <= t->n; n += 4)
        ROW_LOOP(row_bf16, 4);
    for (; !bf16 && n + 2 <= t->n; n += 2)
        ROW_LOOP(row_fp8, 2);
    for (; n < t->n; n++) {
        if (bf16)
            ROW_LOOP(row_bf16, 1);
        else
            ROW_LOOP(row_fp8, 1);
    }
}

#include "kernels/cpu/int8_avx512.h"
#include "kernels/cpu/stream_avx512.h"

static void gemm(const struct mf_tile *t)
{
    if (t->format == MF_FORMAT_INT8)
        int8_gemm(t);
    else if (t->panel == 1)
        gemm_row(t);
    else if (t->format == MF_FORMAT_BF16)
        t->rows <= STREAM_ROWS ? bf16_few_rows(t) : bf16_many_rows(t);
    else
        fp8_panels(t);
}

static void pack(enum mf_format format, const void *from, size_t n, uint16_t *to)
{
    if (format == MF_FORMAT_BF16)
        memcpy(to, from, n * 2);
    else if (format == MF_FORMAT_INT8)
        int8_pack(from, n, (uint8_t *)to);
    else
        pack_fp8(format, format == MF_FORMAT_FP8FNUZ ? 55 : 56, from, n, to);
}

const struct mf_cpu_ops mf_cpu_ops_avx512 = {
    .isa = MF_ISA_AVX512,
    .fetches = true,
    .decode = decode_weights,
    .unpack = unpack_row,
    .gemm = gemm,
    .int8 = true,
    .stream = stream,
    .stream_rows = STREAM_QUANT_ROWS,
    .order = order,
    .pack = pack,
    .activate = activate,
    .scale = scale,
    .add = add,
    .combine = combine,
    .to_bf16 = to_bf16,
};
