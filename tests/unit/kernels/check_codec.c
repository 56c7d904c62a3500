#include "kernels/core/codec.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/philox.h"
#include "kernels/core/quant.h"
#include "kernels/core/quant_mx.h"
#include "support/mf_check.h"

/* --- worked examples ------------------------------------------------------------------------------------ */

/* e2m1 rounds to the nearest code. Midpoints between neighbouring codes round to the even code. */
/* clang-format off */
static const struct {
    float value;
    uint8_t code;
} e2m1[] = {
    {0, 0},      {0.25f, 0},  {0.26f, 1},  {0.5f, 1},   {0.74f, 1}, {0.75f, 2}, {1, 2},      {1.25f, 2},
    {1.26f, 3},  {1.5f, 3},   {1.74f, 3},  {1.75f, 4},  {2, 4},     {2.5f, 4},  {2.6f, 5},   {3, 5},
    {3.4f, 5},   {3.5f, 6},   {4, 6},      {5, 6},      {5.1f, 7},  {6, 7},     {7, 7},      {1e30f, 7},
    {-0.1f, 8},  {-0.5f, 9},  {-2.5f, 12}, {-5.01f, 15},
};

/* Expected scale of a group with a given largest magnitude, for the rounding modes down, up, even and ceil.
 */
static const struct {
    enum mf_format format;
    float amax;
    double scale[4];
} mx_scales[] = {
    {MF_FORMAT_FP4, 3,    {0.5, 0.5, 0.5, 1}},
    {MF_FORMAT_FP4, 4,    {1, 1, 1, 1}},
    {MF_FORMAT_FP4, 5,    {1, 1, 1, 2}},
    {MF_FORMAT_FP4, 6,    {1, 1, 1, 2}},
    {MF_FORMAT_FP4, 6.5f, {1, 2, 1, 2}},
    {MF_FORMAT_FP4, 7,    {1, 2, 2, 2}},
    {MF_FORMAT_FP4, 8,    {2, 2, 2, 2}},
    {MF_FORMAT_FP8FN, 448, {1, 1, 1, 2}},
    {MF_FORMAT_FP8FN, 449, {1, 2, 1, 2}},
    {MF_FORMAT_FP8FN, 480, {1, 2, 1, 2}},
    {MF_FORMAT_FP8FN, 500, {1, 2, 2, 2}},
};
/* clang-format on */

MF_TEST(e2m1_rounds_to_even, .rows = MF_ARRAY_LEN(e2m1))
{
    ck_assert_uint_eq(mf_e2m1_from_float(e2m1[_i].value), e2m1[_i].code);
}

MF_TEST(mx_scale_by_rounding, .rows = MF_ARRAY_LEN(mx_scales))
{
    for (int round = 0; round < MF_MX_N_; round++) {
        uint8_t code = mf_mx_scale(mx_scales[_i].format, (enum mf_mx_round)round, mx_scales[_i].amax);
        ck_assert_double_eq((double)mf_e8m0_to_float(code), mx_scales[_i].scale[round]);
    }
}

MF_TEST(mx_scale_of_zero_and_infinity)
{
    for (int round = 0; round < MF_MX_N_; round++) {
        ck_assert_uint_eq(mf_mx_scale(MF_FORMAT_FP4, (enum mf_mx_round)round, 0), 0);
        ck_assert_uint_eq(mf_mx_scale(MF_FORMAT_FP4, (enum mf_mx_round)round, INFINITY), 0xff);
        ck_assert_uint_eq(mf_mx_scale(MF_FORMAT_FP4, (enum mf_mx_round)round, NAN), 0xff);
        ck_assert_uint_le(mf_mx_scale(MF_FORMAT_FP4, (enum mf_mx_round)round, 3.4e38f), 254);
    }
    ck_assert_double_eq((double)mf_e8m0_to_float(0), 0x1p-127);
    ck_assert(isnan(mf_e8m0_to_float(0xff)));
    ck_assert_uint_eq(mf_e8m0_pack((const uint8_t[]){1, 2, 3, 4}), 0x04030201);
}

/* One group of 16 values in a tensor with a largest magnitude of 100. */
MF_TEST(nvfp4_worked_block)
{
    static const uint8_t packed[] = {0x10, 0x32, 0x43, 0x55, 0x65, 0x66, 0x77, 0x77};
    const struct mf_codec *c = mf_codec_find(MF_FORMAT_FP4, MF_SCALE_PER_1X16);
    float x[16], back[16], global = mf_codec_global(c, 100);
    uint8_t q[8], scale;
    for (int i = 0; i < 16; i++)
        x[i] = 0.5f * (float)i;
    ck_assert_double_eq_tol((double)global, 26.88, 1e-5);
    mf_codec_encode(c, x, 1, 16, global, q, &scale);
    ck_assert_uint_eq(scale, 0x60);
    ck_assert_mem_eq(q, packed, sizeof(packed));
    mf_codec_decode_row(c, q, &scale, global, 0, 16, back);
    ck_assert_double_eq_tol((double)back[15], 7.1429, 1e-4);
}

/* A factor calibrated on other data neither overflows the scale nor makes it 0. */
MF_TEST(nvfp4_scale_stays_in_range)
{
    const struct mf_codec *c = mf_codec_find(MF_FORMAT_FP4, MF_SCALE_PER_1X16);
    uint8_t scale;
    mf_codec_group_scale(c, 1000, 26.88f, &scale);
    ck_assert_uint_eq(scale, 0x7e);
    mf_codec_group_scale(c, 1e-9f, 26.88f, &scale);
    ck_assert_uint_eq(scale, 0x01);
    mf_codec_group_scale(c, 0, 26.88f, &scale);
    ck_assert_uint_eq(scale, 0x01);
    ck_assert_double_eq((double)mf_codec_global(c, 0), 1);
    ck_assert(isfinite(mf_codec_global(c, 1e-40f)));
}

MF_TEST(int4_nibbles_and_signs)
{
    const struct mf_codec *c = mf_codec_find(MF_FORMAT_INT4, MF_SCALE_PER_1X32);
    static const float x[5] = {7, -7, 3.5f, -0.4f, 1};
    float back[5];
    uint8_t q[3];
    uint16_t scale;
    mf_codec_encode(c, x, 1, 5, 1, q, &scale);
    ck_assert_uint_eq(scale, mf_bf16_from_float(1));
    ck_assert_uint_eq(q[0], 0x97);
    ck_assert_uint_eq(q[1], 0x04);
    ck_assert_uint_eq(q[2], 0x01);
    q[1] = 0x84; /* -8 is legal, although no quantiser writes it */
    mf_codec_decode_row(c, q, &scale, 1, 0, 5, back);
    ck_assert_double_eq((double)back[1], -7);
    ck_assert_double_eq((double)back[2], 4);
    ck_assert_double_eq((double)back[3], -8);
    ck_assert_double_eq((double)back[4], 1);
}

MF_TEST(nan_stays_in_its_group)
{
    const struct mf_codec *c = mf_codec_find(MF_FORMAT_FP4, MF_SCALE_PER_1X32);
    float x[64], back[64];
    uint8_t q[32], scale[2];
    for (int i = 0; i < 64; i++)
        x[i] = i < 32 ? 0 : 1;
    x[40] = NAN;
    mf_codec_encode(c, x, 1, 64, 1, q, scale);
    mf_codec_decode_row(c, q, scale, 1, 0, 64, back);
    ck_assert_uint_eq(scale[0], 0);
    ck_assert_uint_eq(scale[1], 0xff);
    for (int i = 0; i < 64; i++)
        ck_assert(i < 32 ? back[i] == 0.0f : (bool)isnan(back[i]));
}

/* --- properties of every codec -------------------------------------------------------------------------- */

static const struct {
    enum mf_format format;
    enum mf_scale scale;
    double step; /* largest error of a value, relative to its group's largest magnitude */
} codecs[] = {
    {MF_FORMAT_BF16, MF_SCALE_NONE, 1.0 / 256},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_TENSOR, 1.0 / 16},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_TOKEN, 1.0 / 16},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_1X128, 1.0 / 16},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_128X128, 1.0 / 16},
    {MF_FORMAT_FP8FN, MF_SCALE_PER_1X32, 1.0 / 16},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TENSOR, 1.0 / 16},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TOKEN, 1.0 / 16},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_1X128, 1.0 / 16},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_128X128, 1.0 / 16},
    {MF_FORMAT_INT8, MF_SCALE_PER_TENSOR, 0.5 / 127},
    {MF_FORMAT_INT8, MF_SCALE_PER_TOKEN, 0.5 / 127},
    {MF_FORMAT_INT8, MF_SCALE_PER_1X128, 0.5 / 127},
    {MF_FORMAT_INT8, MF_SCALE_PER_128X128, 0.5 / 127},
    {MF_FORMAT_INT4, MF_SCALE_PER_1X32, 0.5 / 7 + 1.0 / 256},
    {MF_FORMAT_INT4, MF_SCALE_PER_TOKEN, 0.5 / 7},
    {MF_FORMAT_FP4, MF_SCALE_PER_1X32, 1.0 / 4},
    {MF_FORMAT_FP4, MF_SCALE_PER_1X16, 1.0 / 6 + 1.0 / 16},
};

static const struct {
    size_t rows, cols;
} sizes[] = {{1, 1}, {1, 31}, {3, 33}, {2, 64}, {5, 127}, {130, 130}, {129, 257}, {4, 2880}};

static double group_amax(const struct mf_codec *c, const float *x, size_t rows, size_t cols, size_t r,
                         size_t i)
{
    size_t gr = c->scale_bytes == 0 ? 1 : c->group_rows ? (size_t)c->group_rows : rows;
    size_t gc = c->scale_bytes == 0 ? 1 : c->group_cols ? (size_t)c->group_cols : cols;
    double top = 0;
    for (size_t a = r / gr * gr; a < MF_MIN(rows, r / gr * gr + gr); a++) {
        for (size_t b = i / gc * gc; b < MF_MIN(cols, i / gc * gc + gc); b++)
            top = MF_MAX(top, fabs((double)x[a * cols + b]));
    }
    return top;
}

static void check_round_trip(const struct mf_codec *c, double step, size_t rows, size_t cols, uint64_t seed)
{
    size_t row_bytes = mf_codec_row_bytes(c, cols),
           n_scales = mf_codec_scale_rows(c, rows) * mf_codec_scale_cols(c, cols);
    float *x = malloc(rows * cols * sizeof(*x)), *back = malloc(cols * sizeof(*back)), amax = 0;
    uint8_t *q = calloc(rows, row_bytes), *again = calloc(1, row_bytes), *scale = calloc(n_scales + 1, 4);
    for (size_t i = 0; i < rows * cols; i++) {
        struct mf_philox4 w = mf_philox(seed, i, rows);
        x[i] = (float)((int32_t)w.v[0] / 65536) * 0x1p-12f * (w.v[1] % 8 == 0 ? 8.0f : 1.0f);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    float global = mf_codec_global(c, amax);
    mf_codec_encode(c, x, rows, cols, global, q, scale);
    for (size_t r = 0; r < rows; r++) {
        mf_codec_decode_row(c, q, scale, global, r, cols, back);
        for (size_t i = 0; i < cols; i += 1 + cols / 64) {
            double limit =
                c->scale_bytes == 0 ? fabs((double)x[r * cols + i]) : group_amax(c, x, rows, cols, r, i);
            double error = fabs((double)back[i] - (double)x[r * cols + i]);
            ck_assert_msg(error <= limit * step + 1e-30,
                          "%s %zux%zu seed %llu: row %zu col %zu: %g, should be near %g", c->name, rows, cols,
                          (unsigned long long)seed, r, i, (double)back[i], (double)x[r * cols + i]);
        }
        /* Decoded values encode to the same codes again if the scales are the same. */
        size_t scale_row = c->group_rows ? r / (size_t)c->group_rows : 0;
        mf_codec_encode_row(c, back, cols,
                            scale + scale_row * mf_codec_scale_cols(c, cols) * (size_t)c->scale_bytes, global,
                            again);
        ck_assert_msg(memcmp(again, q + r * row_bytes, row_bytes) == 0,
                      "%s %zux%zu seed %llu: row %zu differs", c->name, rows, cols, (unsigned long long)seed,
                      r);
    }
    free(x);
    free(back);
    free(q);
    free(again);
    free(scale);
}

MF_TEST(round_trip, .rows = MF_ARRAY_LEN(codecs))
{
    const struct mf_codec *c = mf_codec_find(codecs[_i].format, codecs[_i].scale);
    ck_assert_ptr_nonnull(c);
    for (size_t s = 0; s < MF_ARRAY_LEN(sizes); s++)
        check_round_trip(c, codecs[_i].step, sizes[s].rows, sizes[s].cols, 20261121 + s);
}

/* --- combinations of formats that a shape can have --- */

MF_TEST(format_combinations)
{
    static const struct {
        const char *q_type, *a, *w, *codec_a, *codec_w; /* NULL: not supported */
    } rows[] = {
        {"No", "bfloat16", "bfloat16", "bf16", "bf16"},
        {"per_Tensor", "int8", "int8", "int8_tensor", "int8_tensor"},
        {"per_Token", "float8_e4m3fnuz", "float8_e4m3fnuz", "fp8fnuz_token", "fp8fnuz_token"},
        {"per_128x128", "float8_e4m3fn", "float8_e4m3fn", "fp8fn_128", "fp8fn_128"},
        {"per_1x32", "float8_e4m3fn", "float4_e2m1fn_x2", "mxfp8", "mxfp4"},
        {"per_1x32", "bfloat16", "int4", "bf16", "int4_32"},
        {"per_1x32", "bfloat16", "float4_e2m1fn_x2", "bf16", "mxfp4"},
        {"per_Token", "float8_e4m3fn", "int4", "fp8fn_token", "int4_channel"},
        {"per_1x16", "float4_e2m1fn_x2", "float4_e2m1fn_x2", "nvfp4", "nvfp4"},
        {"No", "bfloat16", "int8", NULL, NULL},
        {"per_Token", "float8_e4m3fn", "float8_e4m3fnuz", NULL, NULL},
        {"per_1x32", "float8_e4m3fnuz", "float8_e4m3fnuz", NULL, NULL},
        {"per_1x128", "bfloat16", "float8_e4m3fn", NULL, NULL},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        struct mf_shape s = {0};
        struct mf_codecs codecs_of = {0};
        const char *why = NULL;
        ck_assert_int_eq(mf_shape_set(&s, "q_type", rows[i].q_type, &why), 0);
        ck_assert_int_eq(mf_shape_set(&s, "q_dtype_a", rows[i].a, &why), 0);
        ck_assert_int_eq(mf_shape_set(&s, "q_dtype_w", rows[i].w, &why), 0);
        int r = mf_codecs_of_shape(&s, &codecs_of, &why);
        ck_assert_int_eq(r, rows[i].codec_a ? 0 : -EINVAL);
        if (r < 0) {
            ck_assert_ptr_nonnull(strstr(why, " takes "));
            continue;
        }
        ck_assert_str_eq(codecs_of.a->name, rows[i].codec_a);
        ck_assert_str_eq(codecs_of.w->name, rows[i].codec_w);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
