#include "kernels/ops/shuffle.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/quant.h"
#include "support/mf_check.h"

/* Positions from the formats' documentation. */
/* clang-format off */
static const struct {
    enum mf_shuffle s;
    struct mf_shuffle_size size;
    size_t row, col, at;
} places[] = {
    {MF_SHUFFLE_W16X16,    {32, 64, 1, false}, 0, 16, 256},
    {MF_SHUFFLE_W16X16,    {32, 64, 1, false}, 1, 0, 16},
    {MF_SHUFFLE_W16X16,    {32, 64, 1, false}, 0, 32, 512},
    {MF_SHUFFLE_W16X16,    {32, 64, 1, false}, 16, 0, 16 * 64},
    {MF_SHUFFLE_W16X16,    {32, 64, 2, false}, 0, 8, 128},
    {MF_SHUFFLE_W16X16,    {32, 64, 2, false}, 1, 0, 8},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 0, 0, 0},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 16, 0, 1},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 0, 4, 2},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 1, 0, 4},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 0, 1, 64},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 0, 8, 256},
    {MF_SHUFFLE_E8M0,      {256, 16, 1, false}, 32, 0, 512},
    {MF_SHUFFLE_NV_32_4_4, {256, 4, 1, false}, 0, 3, 3},
    {MF_SHUFFLE_NV_32_4_4, {256, 4, 1, false}, 1, 0, 16},
    {MF_SHUFFLE_NV_32_4_4, {256, 4, 1, false}, 32, 0, 4},
    {MF_SHUFFLE_NV_32_4_4, {256, 4, 1, false}, 33, 2, 22},
    {MF_SHUFFLE_NV_32_4_4, {256, 4, 1, false}, 127, 3, 511},
    {MF_SHUFFLE_NV_32_4_4, {256, 4, 1, false}, 128, 0, 512},
    {MF_SHUFFLE_NV_32_4_4, {256, 8, 1, false}, 0, 4, 512},
    {MF_SHUFFLE_NV_32_4_4, {256, 8, 1, false}, 5, 6, 594},
    {MF_SHUFFLE_NV_32_4_4, {256, 8, 1, false}, 129, 5, 1553},
    {MF_SHUFFLE_NV_8_4,    {16, 8, 1, false}, 1, 0, 4},
    {MF_SHUFFLE_NV_8_4,    {16, 8, 1, false}, 0, 4, 32},
    {MF_SHUFFLE_NV_8_4,    {16, 8, 1, false}, 8, 0, 64},
    {MF_SHUFFLE_A16W4,     {32, 128, 1, false}, 0, 16, 256},
    {MF_SHUFFLE_A16W4,     {32, 128, 1, false}, 1, 0, 16},
    {MF_SHUFFLE_A16W4,     {32, 128, 1, false}, 0, 64, 1024},
    {MF_SHUFFLE_A16W4_GU,  {64, 128, 1, false}, 32, 0, 2048},  /* gate and up alternate tile by tile */
    {MF_SHUFFLE_A16W4_GU,  {64, 128, 1, false}, 16, 0, 4096},
};

static const struct {
    enum mf_shuffle s;
    struct mf_shuffle_size size;
} sizes[] = {
    {MF_SHUFFLE_W16X16,      {48, 96, 1, false}},   {MF_SHUFFLE_W16X16,    {16, 64, 2, false}},
    {MF_SHUFFLE_A16W4,       {48, 192, 1, false}},  {MF_SHUFFLE_A16W4_GU,  {96, 128, 1, false}},
    {MF_SHUFFLE_A16W4_SCALE, {128, 16, 1, false}},  {MF_SHUFFLE_E8M0,      {300, 11, 1, false}},
    {MF_SHUFFLE_E8M0_1250,   {70, 9, 1, false}},    {MF_SHUFFLE_NV_32_4_4, {130, 7, 1, false}},
    {MF_SHUFFLE_NV_8_4,      {9, 5, 1, false}},
};
/* clang-format on */

MF_TEST(documented_positions, .rows = MF_ARRAY_LEN(places))
{
    ck_assert_uint_eq(mf_shuffle_index(places[_i].s, &places[_i].size, places[_i].row, places[_i].col),
                      places[_i].at);
}

/* All elements have distinct positions within the buffer, padding holds the fill value, and unshuffling
 * restores the input. The test has two experts, because the second expert starts a new pattern. */
MF_TEST(shuffle_is_a_permutation, .rows = MF_ARRAY_LEN(sizes))
{
    const struct mf_shuffle_size *z = &sizes[_i].size;
    size_t bytes = (size_t)z->element_bytes, n = z->rows * z->cols,
           room = mf_shuffle_elements(sizes[_i].s, z);
    char why[160];
    ck_assert(mf_shuffle_legal(sizes[_i].s, z, why, sizeof(why)));
    _cleanup_(mf_freep) uint8_t *from = malloc(2 * n * bytes), *to = malloc(2 * room * bytes),
                                *back = malloc(2 * n * bytes);
    _cleanup_(mf_freep) uint8_t *seen = calloc(room, 1);
    for (size_t i = 0; i < 2 * n * bytes; i++)
        from[i] = (uint8_t)(i * 131 + i / 253 + 1);
    mf_shuffle_apply(sizes[_i].s, z, 2, from, to);
    mf_shuffle_undo(sizes[_i].s, z, 2, to, back);
    ck_assert_mem_eq(from, back, 2 * n * bytes);
    for (size_t r = 0; r < z->rows; r++) {
        for (size_t c = 0; c < z->cols; c++) {
            size_t at = mf_shuffle_index(sizes[_i].s, z, r, c);
            ck_assert_uint_lt(at, room);
            ck_assert_uint_eq(seen[at]++, 0);
            ck_assert_mem_eq(to + (room + at) * bytes, from + (n + r * z->cols + c) * bytes, bytes);
        }
    }
    uint8_t fill = sizes[_i].s == MF_SHUFFLE_E8M0_1250 ? 0x7f : 0;
    for (size_t i = 0; i < room; i++)
        ck_assert(seen[i] || to[i * bytes] == fill);
}

/* A transcription of AITER's view as (m/32, 2, 16, n/8, 2, 4) and its permute (0, 3, 5, 2, 4, 1). */
MF_TEST(e8m0_matches_view)
{
    const struct mf_shuffle_size z = {512, 24, 1, false};
    size_t at = 0;
    for (size_t a = 0; a < 512 / 32; a++)
        for (size_t d = 0; d < 24 / 8; d++)
            for (size_t f = 0; f < 4; f++)
                for (size_t c = 0; c < 16; c++)
                    for (size_t e = 0; e < 2; e++)
                        for (size_t b = 0; b < 2; b++, at++)
                            ck_assert_uint_eq(
                                mf_shuffle_index(MF_SHUFFLE_E8M0, &z, a * 32 + b * 16 + c, d * 8 + e * 4 + f),
                                at);
}

/* A transcription of the view as (-1, N/16, 16, K/32, 32/Kp, Kp) and the permute (0, 1, 3, 4, 2, 5). */
MF_TEST(w16x16_matches_view)
{
    const struct mf_shuffle_size z = {48, 96, 2, false};
    size_t at = 0;
    for (size_t a = 0; a < 3; a++)
        for (size_t c = 0; c < 3; c++)
            for (size_t d = 0; d < 4; d++)
                for (size_t b = 0; b < 16; b++)
                    for (size_t e = 0; e < 8; e++, at++)
                        ck_assert_uint_eq(
                            mf_shuffle_index(MF_SHUFFLE_W16X16, &z, a * 16 + b, c * 32 + d * 8 + e), at);
}

MF_TEST(indivisible_size_refused)
{
    const struct mf_shuffle_size z = {24, 64, 1, false};
    char why[160];
    ck_assert(!mf_shuffle_legal(MF_SHUFFLE_W16X16, &z, why, sizeof(why)));
    ck_assert_str_eq(why, "16x16 requires multiples of 16 rows and 32 columns; 24 rows leave a remainder of "
                          "8, 64 columns a remainder of 0");
}

MF_TEST(int4_orders)
{
    static const int8_t v[8] = {0, 1, 2, 3, 4, 5, -8, -1};
    static const uint8_t a16wi4[4] = {0x40, 0x51, 0x82, 0xf3};
    uint8_t packed[4];
    int8_t back[8];
    mf_int4_pack_a16wi4(v, packed);
    ck_assert_mem_eq(packed, a16wi4, 4);
    mf_int4_unpack_a16wi4(packed, back);
    ck_assert_mem_eq(back, v, 8);
    ck_assert_uint_eq(mf_int4_pack_w4a8(v), 0x0248135fu);
    mf_int4_unpack_w4a8(0x0248135fu, back);
    ck_assert_mem_eq(back, v, 8);
    ck_assert_int_eq(mf_int4_from_uint4b8(0), -8);
    ck_assert_int_eq(mf_int4_from_uint4b8(8), 0);
    ck_assert_int_eq(mf_int4_from_uint4b8(15), 7);
    ck_assert_uint_eq(mf_int4_scale_index(100, 3, 0), 6);
    ck_assert_uint_eq(mf_int4_scale_index(100, 3, 1), 7);
    ck_assert_uint_eq(mf_int4_scale_index(100, 0, 2), 200);
}

/* The value of a code as e4m3fn is twice its value as e4m3fnuz; -0 and NaN are the exceptions. */
MF_TEST(fn_to_fnuz)
{
    uint8_t codes[256];
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    ck_assert_uint_eq(mf_fp8fn_to_fnuz(codes, 256), 2);
    for (int i = 0; i < 256; i++) {
        if ((i & 0x7f) == 0x7f)
            continue;
        double fn = (double)mf_fp8_to_float(MF_FORMAT_FP8FN, (uint8_t)i);
        ck_assert_double_eq(2 * (double)mf_fp8_to_float(MF_FORMAT_FP8FNUZ, codes[i]), fn);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
