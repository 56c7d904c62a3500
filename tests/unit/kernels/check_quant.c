/* Tests the number formats exhaustively against their definitions in double precision. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/quant.h"
#include "kernels/cpu/device_cpu.h"
#include "support/mf_check.h"

static const enum mf_format fp8s[] = {MF_FORMAT_FP8FN, MF_FORMAT_FP8FNUZ};

static bool is_nan_code(enum mf_format f, int code)
{
    return f == MF_FORMAT_FP8FN ? (code & 0x7f) == 0x7f : code == 0x80;
}

/* Returns the value of a code by the definition of the format: 1.m · 2^(e - bias), or 0.m · 2^(1 - bias) if e
 * is 0. */
static double code_value(enum mf_format f, int code)
{
    int bias = f == MF_FORMAT_FP8FN ? 7 : 8, e = code >> 3 & 15, m = code & 7;
    double v = e == 0 ? ldexp(m / 8.0, 1 - bias) : ldexp(1 + m / 8.0, e - bias);
    return code & 0x80 ? -v : v;
}

/* Searches for the nearest code. Ties go to the even mantissa, and large values saturate. */
static int nearest_code(enum mf_format f, double v)
{
    double a = fabs(v), best = INFINITY;
    int top = f == MF_FORMAT_FP8FN ? 0x7e : 0x7f, at = 0;
    for (int c = 0; c <= top; c++) {
        double d = fabs(code_value(f, c) - a);
        if (d < best || (d == best && c % 2 == 0)) {
            best = d;
            at = c;
        }
    }
    if (a > code_value(f, top))
        at = top;
    bool sign = signbit(v) && (f == MF_FORMAT_FP8FN || at != 0);
    return sign ? at | 0x80 : at;
}

MF_TEST(every_code_decodes, .rows = 2)
{
    enum mf_format f = fp8s[_i];
    for (int c = 0; c < 256; c++) {
        float v = mf_fp8_to_float(f, (uint8_t)c);
        if (is_nan_code(f, c)) {
            ck_assert(isnan(v));
            continue;
        }
        ck_assert_double_eq((double)v, code_value(f, c));
        ck_assert_int_eq(signbit(v) != 0, f == MF_FORMAT_FP8FN ? c >= 0x80 : c > 0x80);
        ck_assert_int_eq(mf_fp8_from_float(f, v), c);
    }
}

MF_TEST(every_bf16_rounds, .rows = 2)
{
    enum mf_format f = fp8s[_i];
    for (int u = 0; u < 65536; u++) {
        float v = mf_bf16_to_float((uint16_t)u);
        int code = mf_fp8_from_float(f, v);
        if (isnan(v)) {
            ck_assert_msg(is_nan_code(f, code), "NaN %04x gives %02x", (unsigned)u, (unsigned)code);
            continue;
        }
        ck_assert_msg(code == nearest_code(f, (double)v), "%g (%04x) gives %02x, not %02x", (double)v,
                      (unsigned)u, (unsigned)code, (unsigned)nearest_code(f, (double)v));
    }
}

/* Midpoints between neighbouring codes round to the even code. The midpoints of large codes are not
 * representable in bf16, but they are exact floats. */
MF_TEST(halfway_goes_to_even, .rows = 2)
{
    enum mf_format f = fp8s[_i];
    int top = f == MF_FORMAT_FP8FN ? 0x7e : 0x7f;
    for (int c = 0; c < top; c++) {
        float mid = (float)((code_value(f, c) + code_value(f, c + 1)) / 2);
        ck_assert_int_eq(mf_fp8_from_float(f, mid), c % 2 == 0 ? c : c + 1);
        ck_assert_int_eq(mf_fp8_from_float(f, nextafterf(mid, 0)), c);
        ck_assert_int_eq(mf_fp8_from_float(f, nextafterf(mid, 1e9f)), c + 1);
    }
}

static const struct {
    float value;
    int fn, fnuz;
} vectors[] = {
    {17, 0x58, 0x60},    {19, 0x5a, 0x62},       {248, 0x78, 0x7f},
    {464, 0x7e, 0x7f},   {0x1p-10f, 0x00, 0x01}, {1, 0x38, 0x40},
    {-0.0f, 0x80, 0x00}, {INFINITY, 0x7e, 0x7f}, {-INFINITY, 0xfe, 0xff},
};

MF_TEST(known_vector, .rows = MF_ARRAY_LEN(vectors))
{
    ck_assert_int_eq(mf_fp8_from_float(MF_FORMAT_FP8FN, vectors[_i].value), vectors[_i].fn);
    ck_assert_int_eq(mf_fp8_from_float(MF_FORMAT_FP8FNUZ, vectors[_i].value), vectors[_i].fnuz);
}

MF_TEST(bf16_rounds_to_nearest_even)
{
    for (uint32_t hi = 0; hi < 65536; hi++) {
        static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < MF_ARRAY_LEN(lows); i++) {
            uint32_t u = hi << 16 | lows[i];
            float v;
            memcpy(&v, &u, 4);
            uint16_t got = mf_bf16_from_float(v);
            if (isnan(v)) {
                ck_assert(isnan(mf_bf16_to_float(got)));
                continue;
            }
            uint32_t up = lows[i] > 0x8000 || (lows[i] == 0x8000 && (hi & 1));
            ck_assert_uint_eq(got, (uint16_t)(hi + up));
        }
    }
}

static float noise(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return ((float)(*state >> 8) / 8388608.0f - 1) * (*state & 64 ? 3.0f : 0.01f);
}

static void encode(enum mf_format f, enum mf_scale scale, const float *x, size_t rows, size_t cols,
                   uint8_t *q, float *scales)
{
    mf_codec_encode(mf_codec_find(f, scale), x, rows, cols, 1, q, scales);
}

static float largest(enum mf_format f)
{
    return f == MF_FORMAT_FP8FN ? 448 : 240;
}

/* The scale is the largest magnitude in the row divided by the largest value of the format, and no value
 * differs from x by more than half a step of the format. */
MF_TEST(row_is_within_half_a_step, .rows = 2)
{
    enum mf_format f = fp8s[_i];
    float x[300], scales[3];
    uint8_t q[300];
    uint32_t state = 7;
    for (int i = 0; i < 300; i++)
        x[i] = noise(&state);
    encode(f, MF_SCALE_PER_1X128, x, 1, 300, q, scales);
    for (int b = 0; b < 3; b++) {
        float amax = 0;
        for (int i = b * 128; i < MF_MIN(300, b * 128 + 128); i++)
            amax = fmaxf(amax, fabsf(x[i]));
        ck_assert(scales[b] == amax / largest(f));
        for (int i = b * 128; i < MF_MIN(300, b * 128 + 128); i++) {
            float v = mf_fp8_to_float(f, q[i]) * scales[b];
            ck_assert_int_eq(q[i], mf_fp8_from_float(f, x[i] / scales[b]));
            ck_assert(fabsf(v - x[i]) <= fmaxf(fabsf(x[i]) * 0.0626f, amax * 0x1p-9f));
        }
    }
}

/* The quotient by the scale is exactly a midpoint between two codes. Multiplying by the reciprocal of the
 * scale would move some quotients off the midpoint. */
MF_TEST(row_is_divided_by_its_scale, .rows = 2)
{
    enum mf_format f = fp8s[_i];
    for (int i = 1; i < 1024; i += 2) {
        float s = 1 + (float)i / 1024, x[2] = {largest(f) * s, 17 * s}, scale;
        uint8_t q[2];
        encode(f, MF_SCALE_PER_TOKEN, x, 1, 2, q, &scale);
        ck_assert(scale == s);
        ck_assert_double_eq((double)mf_fp8_to_float(f, q[1]), 16);
    }
}

MF_TEST(zero_row_has_scale_one, .rows = 2)
{
    float x[5] = {0, -0.0f, 0, 0, 0};
    uint8_t q[5];
    float scale;
    encode(fp8s[_i], MF_SCALE_PER_TOKEN, x, 1, 5, q, &scale);
    ck_assert(scale == 1.0f);
    for (int i = 0; i < 5; i++)
        ck_assert(mf_fp8_to_float(fp8s[_i], q[i]) == 0);
}

MF_TEST(nan_stays, .rows = 2)
{
    float x[3] = {1, NAN, 2};
    uint8_t q[3];
    float scale;
    encode(fp8s[_i], MF_SCALE_PER_TOKEN, x, 1, 3, q, &scale);
    ck_assert(isnan(mf_fp8_to_float(fp8s[_i], q[1])));
}

/* Quantising blocks of 128x128, the last of them incomplete, gives the same result as quantising each block
 * alone. */
MF_TEST(blocks_with_short_edges, .rows = 2)
{
    enum { ROWS = 130, COLS = 200 };
    enum mf_format f = fp8s[_i];
    static float x[ROWS * COLS];
    static uint8_t q[ROWS * COLS];
    float scales[4];
    uint32_t state = 3;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = noise(&state);
    encode(f, MF_SCALE_PER_128X128, x, ROWS, COLS, q, scales);
    for (int b = 0; b < 4; b++) {
        float amax = 0;
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLS; c++) {
                if (r / 128 * 2 + c / 128 == b)
                    amax = fmaxf(amax, fabsf(x[r * COLS + c]));
            }
        }
        ck_assert(scales[b] == amax / largest(f));
    }
    for (int i = 0; i < ROWS * COLS; i++)
        ck_assert_int_eq(q[i], mf_fp8_from_float(f, x[i] / scales[i / COLS / 128 * 2 + i % COLS / 128]));
}

/* Every instruction set gives the same bits, for all codes and odd lengths. */
MF_TEST(instruction_sets_agree, .rows = 2)
{
    static const char *const names[] = {"c", "avx2", "avx512"};
    enum { N = 65536 };
    static float x[N], back[3][N];
    static uint8_t q[3][N];
    static uint16_t b[3][N];
    float scale[3];
    for (int u = 0; u < N; u++)
        x[u] = mf_bf16_to_float((uint16_t)(u & 0x7f80 ? u : 0));
    for (int u = 0; u < N; u++)
        x[u] = isfinite(x[u]) && fabsf(x[u]) < 1e30f ? x[u] : (float)u * 0.37f;
    for (int i = 0; i < 3; i++) {
        setenv("MOEFARM_ISA", names[i], 1);
        mf_isa_refresh();
        encode(fp8s[_i], MF_SCALE_PER_TOKEN, x, 1, N - 3, q[i], &scale[i]);
        mf_fp8_to_floats(fp8s[_i], q[i], N - 3, scale[i], back[i]);
        mf_bf16_from_floats(x, N - 3, b[i]);
        ck_assert(scale[i] == scale[0]);
        ck_assert_int_eq(memcmp(q[i], q[0], N), 0);
        ck_assert_int_eq(memcmp(back[i], back[0], sizeof(back[0])), 0);
        ck_assert_int_eq(memcmp(b[i], b[0], sizeof(b[0])), 0);
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
