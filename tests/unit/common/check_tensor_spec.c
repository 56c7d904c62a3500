#include "common/moe/tensor_spec.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct {
    const char *text;
    struct mf_tensor_spec tensor_spec;
    bool weight, input;
} tensor_specs[] = {
    {"x/bf16/none/token",
     {MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0, false}, false, true},
    {"topk/index/none/token",
     {MF_TENSOR_TOPK, MF_FORMAT_INDEX, MF_SCALE_NONE, "token", 0, false}, false, true},
    {"x/fp8fn/per_token/token",
     {MF_TENSOR_X, MF_FORMAT_FP8FN, MF_SCALE_PER_TOKEN, "token", 0, false}, false, false},
    {"x/bf16/none/sorted.64",
     {MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", 64, false}, false, false},
    {"sorted/index/none/sorted.32",
     {MF_TENSOR_SORTED, MF_FORMAT_INDEX, MF_SCALE_NONE, "sorted", 32, false}, false, false},
    {"w1/bf16/none/panel16",
     {MF_TENSOR_W1, MF_FORMAT_BF16, MF_SCALE_NONE, "panel16", 0, false}, true, false},
    {"w2/fp8fnuz/per_128x128/row",
     {MF_TENSOR_W2, MF_FORMAT_FP8FNUZ, MF_SCALE_PER_128X128, "row", 0, false}, true, false},
    {"h/fp8fn/per_1x128/sorted.2147483647",
     {MF_TENSOR_H, MF_FORMAT_FP8FN, MF_SCALE_PER_1X128, "sorted", 2147483647, false}, false, false},
    {"h/fp4/per_1x32/sorted_v2.32",
     {MF_TENSOR_H, MF_FORMAT_FP4, MF_SCALE_PER_1X32, "sorted_v2", 32, false}, false, false},
    {"h/fp4/per_1x32/sorted_mxmoe.128",
     {MF_TENSOR_H, MF_FORMAT_FP4, MF_SCALE_PER_1X32, "sorted_mxmoe", 128, false}, false, false},
    {"gw/f32/none/sorted.16",
     {MF_TENSOR_GW, MF_FORMAT_F32, MF_SCALE_NONE, "sorted", 16, false}, false, false},
    {"zw/bf16/none/slot",
     {MF_TENSOR_ZW, MF_FORMAT_BF16, MF_SCALE_NONE, "slot", 0, false}, false, false},
    {"y/f32/none/token+zeroed",
     {MF_TENSOR_Y, MF_FORMAT_F32, MF_SCALE_NONE, "token", 0, true}, false, false},
    {"x/bf16/none/token+zeroed",
     {MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0, true}, false, false},
    {"x/fp16/none/token",
     {MF_TENSOR_X, MF_FORMAT_FP16, MF_SCALE_NONE, "token", 0, false}, false, true},
    {"w1/fp4/per_1x32/panel16",
     {MF_TENSOR_W1, MF_FORMAT_FP4, MF_SCALE_PER_1X32, "panel16", 0, false}, true, false},
    {"b1/f32/none/row", {MF_TENSOR_B1, MF_FORMAT_F32, MF_SCALE_NONE, "row", 0, false}, false, true},
    {"w1d/bf16/none/panel32",
     {MF_TENSOR_W1D, MF_FORMAT_BF16, MF_SCALE_NONE, "panel32", 0, false}, false, false},
    {"b2/f32/none/token", {MF_TENSOR_B2, MF_FORMAT_F32, MF_SCALE_NONE, "token", 0, false}, false, false},
    {"x/f32/none/token",
     {MF_TENSOR_X, MF_FORMAT_F32, MF_SCALE_NONE, "token", 0, false}, false, false},
};

static const char *const rejected[] = {
    "", "x", "x/bf16", "x/bf16/none", "x/bf16/none/", "x/bf16/none/token/", "/bf16/none/token",
    "q/bf16/none/token", "X/bf16/none/token", "x/fp32/none/token", "x/bf16/per_1x64/token",
    "x/bf16/none/token+", "x/bf16/none/token+zero", "x/bf16/none/token+zeroed+zeroed", "x/bf16/none/+zeroed",
    "x/bf16/none/to ken", " x/bf16/none/token", "x/bf16/none/token\n",
    /* only the order `sorted` has a block size, and `sorted` must have a block size */
    "x/bf16/none/sorted", "x/bf16/none/sorted.", "x/bf16/none/sorted.0", "x/bf16/none/sorted.-1",
    "x/bf16/none/sorted.2147483648", "x/bf16/none/sorted.32x", "x/bf16/none/sorted.3.2",
    "x/bf16/none/token.32",
    "x/bf16/none/.32",
    /* an order of twenty characters; the limit is nineteen */
    "w1/bf16/none/abcdefghijklmnopqrst",
    "w1/bf16/none/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};
/* clang-format on */

MF_TEST(text_round_trips, .rows = MF_ARRAY_LEN(tensor_specs))
{
    struct mf_tensor_spec parsed;
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    mf_tensor_spec_print(&tensor_specs[_i].tensor_spec, text);
    ck_assert_str_eq(text, tensor_specs[_i].text);
    ck_assert_int_eq(mf_tensor_spec_parse(text, &parsed), 0);
    ck_assert(mf_tensor_spec_equal(&parsed, &tensor_specs[_i].tensor_spec));
    ck_assert_str_eq(parsed.order, tensor_specs[_i].tensor_spec.order);
    ck_assert_int_eq(parsed.block, tensor_specs[_i].tensor_spec.block);
    ck_assert(parsed.zeroed == tensor_specs[_i].tensor_spec.zeroed);
}

MF_TEST(all_differ, .rows = MF_ARRAY_LEN(tensor_specs))
{
    for (size_t j = 0; j < MF_ARRAY_LEN(tensor_specs); j++)
        ck_assert(mf_tensor_spec_equal(&tensor_specs[_i].tensor_spec, &tensor_specs[j].tensor_spec) ==
                  ((size_t)_i == j));
}

MF_TEST(weights_and_inputs, .rows = MF_ARRAY_LEN(tensor_specs))
{
    ck_assert(mf_tensor_spec_is_weight(&tensor_specs[_i].tensor_spec) == tensor_specs[_i].weight);
    ck_assert(mf_tensor_spec_is_input(&tensor_specs[_i].tensor_spec) == tensor_specs[_i].input);
}

MF_TEST(rejects_invalid_text, .rows = MF_ARRAY_LEN(rejected))
{
    struct mf_tensor_spec a = {.tensor = MF_TENSOR_Y, .block = 7};
    ck_assert_int_eq(mf_tensor_spec_parse(rejected[_i], &a), -EINVAL);
    ck_assert_int_eq(a.tensor, MF_TENSOR_Y);
    ck_assert_int_eq(a.block, 7);
    ck_assert_int_eq(mf_tensor_spec_parse(NULL, &a), -EINVAL);
}

/* Every combination of names with the longest possible order fits the buffer and survives a round trip. */
MF_TEST(every_combination_round_trips)
{
    for (int t = 0; t < MF_TENSOR_N_; t++) {
        for (int f = 0; f < MF_FORMAT_N_; f++) {
            for (int s = 0; s < MF_SCALE_N_; s++) {
                struct mf_tensor_spec a = {
                    (enum mf_tensor)t, (enum mf_format)f, (enum mf_scale)s, "nineteen_characters", 0, true};
                struct mf_tensor_spec back;
                char text[MF_TENSOR_SPEC_TEXT_MAX];
                mf_tensor_spec_print(&a, text);
                ck_assert_int_eq(mf_tensor_spec_parse(text, &back), 0);
                ck_assert(mf_tensor_spec_equal(&a, &back));
            }
        }
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
