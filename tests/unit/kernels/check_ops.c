/* kernels/cpu/ops: tests every instruction set's GEMM against a double-precision sum, and fp8 rows in the
 * format that the GEMM reads. */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"
#include "kernels/cpu/stage.h"
#include "support/mf_check.h"

static const enum mf_isa isas[] = {MF_ISA_C, MF_ISA_AVX2, MF_ISA_AVX512};

/* Returns NULL and prints a message if the machine lacks the instruction set. */
static const struct mf_cpu_ops *ops_of(size_t i)
{
    if (isas[i] > mf_isa_best()) {
        (void)printf("%s is skipped: the machine supports %s\n", mf_isa_name(isas[i]),
                     mf_isa_name(mf_isa_best()));
        return NULL;
    }
    return mf_cpu_ops(isas[i]);
}

/* ---- fp8 rows ---- */

/* Each packed code is the value of the original code times the same power of two. NaN stays NaN, and zeros
 * keep their sign.
 */
MF_TEST(fp8_rows, .rows = MF_ARRAY_LEN(isas))
{
    static const enum mf_format formats[] = {MF_FORMAT_FP8FN, MF_FORMAT_FP8FNUZ};
    const struct mf_cpu_ops *ops = ops_of((size_t)_i);

    for (size_t f = 0; ops && f < MF_ARRAY_LEN(formats); f++) {
        uint8_t codes[256];
        uint16_t packed[256];
        float values[256];
        for (int i = 0; i < 256; i++)
            codes[i] = (uint8_t)i;
        mf_fp8_to_floats(formats[f], codes, 256, 1.0f, values);
        ops->pack(formats[f], codes, 256, packed);
        float power = mf_bf16_to_float(packed[8]) / values[8];
        int exponent;
        ck_assert_double_eq(frexp((double)power, &exponent), 0.5);
        for (int i = 0; i < 256; i++) {
            float is = mf_bf16_to_float(packed[i]), should = values[i] * power;
            if (isnan(should))
                ck_assert_msg(isnan(is), "code %d is %g, not NaN", i, (double)is);
            else
                ck_assert_msg(is == should && signbit(is) == signbit(should), "code %d is %g, not %g", i,
                              (double)is, (double)should);
        }
    }
}

/* ---- the GEMM ---- */

#define N_MOST    112 /* one vector more than the widest tile */
#define ROWS_MOST 34  /* one row more than the tallest tile */
#define K_MOST    640
#define LDA       (K_MOST + 32)
#define GROUPS    (K_MOST / 128)

struct gemm {
    uint8_t w[N_MOST * K_MOST * 2], a[ROWS_MOST * K_MOST * 2]; /* in row layout */
    _Alignas(64) uint8_t laid[N_MOST * K_MOST * 2];
    _Alignas(64) uint16_t packed[ROWS_MOST * LDA];
    _Alignas(64) float c[ROWS_MOST * N_MOST];
    float a_scale[ROWS_MOST * GROUPS], w_scale[2 * GROUPS];
};

static double value(enum mf_format format, const uint8_t *from, size_t i)
{
    float v;

    if (format == MF_FORMAT_BF16)
        return (double)mf_bf16_to_float(((const uint16_t *)(const void *)from)[i]);
    mf_fp8_to_floats(format, from + i, 1, 1.0f, &v);
    return (double)v;
}

/* Codes of every magnitude, subnormals included, without NaN. */
static void fill(enum mf_format format, uint8_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (format == MF_FORMAT_BF16)
            ((uint16_t *)(void *)to)[i] = mf_bf16_from_float((float)(rand() % 2001 - 1000) / 512.0f);
        else
            to[i] = (uint8_t)(rand() % 0x7f | rand() % 2 << 7);
        if (format == MF_FORMAT_FP8FNUZ && to[i] == 0x80)
            to[i] = 0;
    }
}

static void lay(enum mf_format format, int panel, size_t N, size_t K, const uint8_t *from, uint8_t *to)
{
    size_t bytes = format == MF_FORMAT_BF16 ? 2 : 1, group = 4 / bytes, p = (size_t)panel;

    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k++) {
            size_t at = panel == 1 ? n * K + k : n / p * p * K + (k / group * p + n % p) * group + k % group;
            for (size_t b = 0; b < bytes; b++)
                to[at * bytes + b] = from[(n * K + k) * bytes + b];
        }
    }
}

/* Returns the largest difference between C and the double-precision sum, relative to the sum of magnitudes;
 * infinity if C is NaN. */
static double worst(const struct gemm *g, const struct mf_tile *t)
{
    double most = 0;

    for (size_t r = 0; r < (size_t)t->rows; r++) {
        for (size_t n = 0; n < (size_t)t->n; n++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < t->k; k++) {
                double v = value(t->format, g->a, r * t->k + k) * value(t->format, g->w, n * t->k + k);
                if (t->a_scale)
                    v *= (double)(g->a_scale[r * GROUPS + k / 128] *
                                  g->w_scale[((size_t)t->n_offset + n) / 128 * GROUPS + k / 128]);
                sum += v;
                magnitude += fabs(v);
            }
            double off = fabs((double)g->c[r * t->ldc + n] - sum) / magnitude;
            most = isfinite(off) ? fmax(most, off) : (double)INFINITY;
        }
    }
    return most;
}

static const struct {
    enum mf_format format;
    int panel, n;
    size_t k;
    bool scaled;
    int n_offset;
} tiles[] = {
    {MF_FORMAT_BF16, 16, 48, 250, false, 0},    {MF_FORMAT_BF16, 32, 96, 640, false, 0},
    {MF_FORMAT_BF16, 1, 7, 250, false, 0},      {MF_FORMAT_FP8FN, 16, 48, 252, false, 0},
    {MF_FORMAT_FP8FN, 32, 96, 640, false, 0},   {MF_FORMAT_FP8FN, 1, 7, 252, false, 0},
    {MF_FORMAT_FP8FN, 16, 48, 320, true, 0},    {MF_FORMAT_FP8FN, 32, 64, 640, true, 0},
    {MF_FORMAT_FP8FNUZ, 16, 48, 252, false, 0}, {MF_FORMAT_FP8FNUZ, 32, 96, 320, true, 64},
};

/* Tests every row count that has a specialised loop, row counts that need several passes, and every prefetch
 * distance. */
MF_TEST(gemm_matches_sum, .rows = MF_ARRAY_LEN(tiles) * MF_ARRAY_LEN(isas))
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
    static const size_t fetches[] = {MF_FETCH_NONE, MF_FETCH_NEAR, MF_FETCH_FAR};
    const struct mf_cpu_ops *ops = ops_of((size_t)_i % MF_ARRAY_LEN(isas));
    size_t at = (size_t)_i / MF_ARRAY_LEN(isas), K = tiles[at].k, N = (size_t)tiles[at].n;
    enum mf_format format = tiles[at].format;
    _cleanup_(mf_freep) struct gemm *g = aligned_alloc(64, (sizeof(*g) + 63) / 64 * 64);

    if (!ops)
        return;
    ck_assert_ptr_nonnull(g);
    srand((unsigned)_i + 1);
    fill(format, g->w, N * K);
    fill(format, g->a, ROWS_MOST * K);
    lay(format, tiles[at].panel, N, K, g->w, g->laid);
    for (int i = 0; i < ROWS_MOST * GROUPS; i++)
        g->a_scale[i] = 1.0f + (float)(i % 7) / 8.0f;
    for (int i = 0; i < 2 * GROUPS; i++)
        g->w_scale[i] = 1.0f + (float)i / 4.0f;
    for (size_t r = 0; r < ROWS_MOST; r++)
        ops->pack(format, g->a + r * K * (format == MF_FORMAT_BF16 ? 2 : 1), K, g->packed + r * LDA);
    for (size_t i = 0; i < MF_ARRAY_LEN(rows) * MF_ARRAY_LEN(fetches); i++) {
        struct mf_tile t = {.a = g->packed,
                            .lda = LDA,
                            .rows = rows[i % MF_ARRAY_LEN(rows)],
                            .n = (int)N,
                            .format = format,
                            .panel = tiles[at].panel,
                            .w = g->laid,
                            .next = g->laid,
                            .fetch = fetches[i / MF_ARRAY_LEN(rows)],
                            .k = K,
                            .block_k = 128,
                            .c = g->c,
                            .ldc = N_MOST,
                            .a_scale = tiles[at].scaled ? g->a_scale : NULL,
                            .lda_scale = GROUPS,
                            .w_scale = g->w_scale,
                            .ldw_scale = GROUPS,
                            .n_offset = tiles[at].n_offset};
        for (size_t j = 0; j < MF_ARRAY_LEN(g->c); j++)
            g->c[j] = NAN;
        ops->gemm(&t);
        ck_assert_msg(worst(g, &t) < 1e-6, "%d rows, prefetch distance %zu: relative error %g", t.rows,
                      t.fetch, worst(g, &t));
        for (size_t j = 0; j < MF_ARRAY_LEN(g->c); j++) {
            bool within = j / N_MOST < (size_t)t.rows && j % N_MOST < (N + 15) / 16 * 16;
            ck_assert_msg(within || isnan(g->c[j]), "%d rows: column %zu of row %zu was written", t.rows,
                          j % N_MOST, j / N_MOST);
        }
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
