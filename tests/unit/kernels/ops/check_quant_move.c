#include "kernels/ops/quant_move.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"
#include "support/farm/route_cases.h"
#include "support/mf_check.h"

#define SEED   20251124
#define TOKENS 37
#define TOPK   4
#define ROWS   (TOKENS * TOPK)
#define WIDTH  201 /* odd, not a multiple of a scale group */

/* All combinations of format and scale for activations. */
static const struct {
    enum mf_format format;
    enum mf_scale scale;
} codecs[] = {
    {MF_FORMAT_BF16, MF_SCALE_NONE},          {MF_FORMAT_FP8FN, MF_SCALE_PER_TENSOR},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TENSOR}, {MF_FORMAT_INT8, MF_SCALE_PER_TENSOR},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_TOKEN},    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TOKEN},
    {MF_FORMAT_INT8, MF_SCALE_PER_TOKEN},     {MF_FORMAT_FP8FN, MF_SCALE_PER_1X128},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_1X128},  {MF_FORMAT_INT8, MF_SCALE_PER_1X128},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_1X32},     {MF_FORMAT_FP4, MF_SCALE_PER_1X32},
    {MF_FORMAT_FP4, MF_SCALE_PER_1X16},
};

struct coded {
    float *values; /* dequantised, row by row */
    uint8_t *q, *scale;
    struct mf_quantised_rows rows;
};

static void coded_make(struct coded *c, int codec, size_t rows)
{
    const struct mf_codec *k = mf_codec_find(codecs[codec].format, codecs[codec].scale);
    ck_assert_ptr_nonnull(k);
    size_t scales = mf_codec_scale_rows(k, rows) * mf_codec_scale_cols(k, WIDTH) * (size_t)k->scale_bytes;
    c->values = malloc(rows * WIDTH * sizeof(float));
    c->q = malloc(rows * mf_codec_row_bytes(k, WIDTH));
    c->scale = malloc(scales + 4);
    float top = 0;
    for (size_t i = 0; i < rows * WIDTH; i++) {
        c->values[i] = (float)route_random(SEED, i, 2001) * 0.01f - 10;
        top = fmaxf(top, fabsf(c->values[i]));
    }
    c->rows = (struct mf_quantised_rows){k, c->q, c->scale, mf_codec_global(k, top)};
    mf_codec_encode(k, c->values, rows, WIDTH, c->rows.global, c->q, c->scale);
    for (size_t r = 0; r < rows; r++)
        mf_codec_decode_row(k, c->q, c->scale, c->rows.global, r, WIDTH, c->values + r * WIDTH);
}

static void coded_release(struct coded *c)
{
    free(c->values);
    free(c->q);
    free(c->scale);
}

/* Makes a permutation in which some routes belong to other ranks (-1). 29 is coprime to the number of routes.
 */
static void make_map(int32_t row_of[ROWS])
{
    for (int i = 0; i < ROWS; i++)
        row_of[i] = i % 7 == 5 ? -1 : i * 29 % ROWS;
}

MF_TEST(dequantising_permute, .rows = 2 * MF_ARRAY_LEN(codecs))
{
    int threads = 1 + _i % 2;
    int32_t row_of[ROWS];
    static uint16_t to[ROWS * WIDTH];
    float out_probs[ROWS] = {0}, probs[ROWS];
    struct coded c;
    _cleanup_(mf_freep) float *room = malloc(mf_quant_move_workspace(WIDTH, threads));
    coded_make(&c, _i / 2, TOKENS);
    make_map(row_of);
    memset(to, 0xa5, sizeof(to));
    for (int i = 0; i < ROWS; i++)
        probs[i] = (float)i;
    struct mf_permute p = {.row_of = row_of,
                           .tokens = TOKENS,
                           .topk = TOPK,
                           .first = 10,
                           .last = 100,
                           .probs = probs,
                           .out_probs = out_probs};
    mf_permute_decoded(&p, &c.rows, WIDTH, to, room, threads);
    int written = 0;
    for (int i = 0; i < ROWS; i++) {
        if (row_of[i] < 10 || row_of[i] >= 100)
            continue;
        const uint16_t *row = to + (row_of[i] - 10) * WIDTH;
        for (int k = 0; k < WIDTH; k++) {
            if (row[k] != mf_bf16_from_float(c.values[i / TOPK * WIDTH + k]))
                ck_abort_msg("%s: route %d, element %d", c.rows.codec->name, i, k);
        }
        ck_assert(out_probs[row_of[i] - 10] == probs[i]);
        written++;
    }
    ck_assert_int_gt(written, 60);
    for (int k = 90 * WIDTH; k < ROWS * WIDTH; k++) {
        if (to[k] != 0xa5a5)
            ck_abort_msg("%s: wrote beyond the range", c.rows.codec->name);
    }
    coded_release(&c);
}

MF_TEST(dequantising_unpermute, .rows = 2 * MF_ARRAY_LEN(codecs))
{
    int threads = 1 + _i % 2;
    int32_t row_of[ROWS];
    static uint16_t to[TOKENS * WIDTH];
    float probs[ROWS];
    struct coded c;
    _cleanup_(mf_freep) float *room = malloc(mf_quant_move_workspace(WIDTH, threads));
    coded_make(&c, _i / 2, ROWS);
    make_map(row_of);
    for (int j = 0; j < TOPK; j++)
        row_of[3 * TOPK + j] = -1; /* a token without local routes */
    for (int i = 0; i < ROWS; i++)
        probs[i] = row_of[i] < 0 ? (float)NAN : (float)(i % 5) * 0.25f;
    memset(to, 0xff, sizeof(to));
    struct mf_unpermute u = {.row_of = row_of,
                             .tokens = TOKENS,
                             .topk = TOPK,
                             .last = ROWS,
                             .width = WIDTH,
                             .probs = probs,
                             .to = to};
    mf_unpermute_decoded(&u, &c.rows, room, threads);
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < WIDTH; k++) {
            double sum = 0, size = 0;
            for (int i = t * TOPK; i < (t + 1) * TOPK; i++) {
                if (row_of[i] < 0)
                    continue;
                double term = (double)probs[i] * (double)c.values[row_of[i] * WIDTH + k];
                sum += term;
                size += fabs(term);
            }
            double got = (double)mf_bf16_to_float(to[t * WIDTH + k]);
            if (!(fabs(got - sum) <= 0.004 * fabs(sum) + 1e-6 * size) || (t == 3 && to[t * WIDTH + k] != 0))
                ck_abort_msg("%s: token %d, element %d is %g, should be %g", c.rows.codec->name, t, k, got,
                             sum);
        }
    }
    coded_release(&c);
}

int main(void)
{
    printf("seed %d\n", SEED);
    return mf_check_main(NULL);
}
