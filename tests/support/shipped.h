/* The 51 tables of ROCm/aiter (tests/data/aiter) with their expected contents, for tests of the table code.
 */
#pragma once

#include "common/base/cleanup.h"
#include "common/table/table_file.h"

#include <check.h>

/* clang-format off */
static const struct shipped {
    const char *file;
    size_t n_rows;      /* number of rows in the file */
    size_t n_warnings, n_errors;
    bool tuned;
    enum mf_table_op op;
} shipped[] = {
    {"a8w8_blockscale_tuned_fmoe_ds_v3.csv",         395, 324,  0, true,  MF_TABLE_FMOE},
    {"a8w8_blockscale_tuned_fmoe_glm5.csv",           16,  0,  0, true,  MF_TABLE_FMOE},
    {"a8w8_blockscale_tuned_fmoe_glm5_1.csv",         35,  8,  0, true,  MF_TABLE_FMOE},
    {"a8w8_blockscale_tuned_fmoe_minimax-m2_5.csv",   64,  0,  0, true,  MF_TABLE_FMOE},
    {"a8w8_blockscale_tuned_fmoe_qwen3_235b.csv",     28,  0,  0, true,  MF_TABLE_FMOE},
    {"a8w8_blockscale_tuned_fmoe_qwen3_5_397b.csv",   16,  0,  0, true,  MF_TABLE_FMOE},
    {"a8w8_blockscale_untuned_fmoe_ds_v3.csv",        16,  0,  0, false, MF_TABLE_FMOE},
    {"a8w8_blockscale_untuned_fmoe_glm5.csv",         16,  0,  0, false, MF_TABLE_FMOE},
    {"a8w8_blockscale_untuned_fmoe_minimax-m2_5.csv",  32,  0,  0, false, MF_TABLE_FMOE},
    {"a8w8_blockscale_untuned_fmoe_qwen3_235b.csv",   32,  0,  0, false, MF_TABLE_FMOE},
    {"a8w8_blockscale_untuned_fmoe_qwen3_5_397b.csv",  16,  0,  0, false, MF_TABLE_FMOE},
    {"dsv3_fp4_tuned_fmoe.csv",                       95,  0,  0, true,  MF_TABLE_FMOE},
    {"dsv3_fp4_untuned_fmoe.csv",                     62,  0,  0, false, MF_TABLE_FMOE},
    {"glm5_fp4_tuned_fmoe.csv",                       64, 11,  0, true,  MF_TABLE_FMOE},
    {"glm5_fp4_untuned_fmoe.csv",                     64,  0,  0, false, MF_TABLE_FMOE},
    {"glm5_mxfp8_tuned_fmoe.csv",                     32,  0,  0, true,  MF_TABLE_FMOE},
    {"glm5_mxfp8_untuned_fmoe.csv",                   32,  0,  0, false, MF_TABLE_FMOE},
    {"glm5_ptpc_tuned_fmoe.csv",                      16,  0,  0, true,  MF_TABLE_FMOE},
    {"glm5_ptpc_untuned_fmoe.csv",                    16,  0,  0, false, MF_TABLE_FMOE},
    {"gptoss_fp4_tuned_fmoe.csv",                     24,  0,  0, true,  MF_TABLE_FMOE},
    {"gptoss_fp4_untuned_fmoe.csv",                   48,  0,  0, false, MF_TABLE_FMOE},
    {"gptoss_fp8fp4_tuned_fmoe.csv",                  30, 14,  0, true,  MF_TABLE_FMOE},
    {"gptoss_fp8fp4_untuned_fmoe.csv",                15,  0,  0, false, MF_TABLE_FMOE},
    {"kimik2_fp4_tuned_fmoe.csv",                     80,  0,  0, true,  MF_TABLE_FMOE},
    {"kimik2_fp4_untuned_fmoe.csv",                   64,  0,  0, false, MF_TABLE_FMOE},
    {"kimik2_fp8fp4_tuned_fmoe.csv",                  63,  0,  0, true,  MF_TABLE_FMOE},
    {"kimik2_fp8fp4_untuned_fmoe.csv",                63,  0,  0, false, MF_TABLE_FMOE},
    {"kimik2_i4_tuned_fmoe.csv",                      88,  0,  0, true,  MF_TABLE_FMOE},
    {"kimik2_i4_untuned_fmoe.csv",                    84,  0,  0, false, MF_TABLE_FMOE},
    {"kimik3_a4w4_tuned_fmoe.csv",                    17,  1,  0, true,  MF_TABLE_FMOE},
    {"kimik3_a4w4_untuned_fmoe.csv",                  17,  0,  0, false, MF_TABLE_FMOE},
    {"kimik3_fp4_tuned_fmoe.csv",                     32,  2,  0, true,  MF_TABLE_FMOE},
    {"kimik3_fp4_untuned_fmoe.csv",                   32,  0,  0, false, MF_TABLE_FMOE},
    {"minimax_m25_fp4_tuned_fmoe.csv",                64,  0,  0, true,  MF_TABLE_FMOE},
    {"minimax_m25_fp4_untuned_fmoe.csv",              64,  0,  0, false, MF_TABLE_FMOE},
    {"minimax_m3_fp4_tuned_fmoe.csv",                 32,  0,  0, true,  MF_TABLE_FMOE},
    {"minimax_m3_fp4_untuned_fmoe.csv",               32,  0,  0, false, MF_TABLE_FMOE},
    {"qwen3_235b_bf16_tuned_fmoe.csv",                48,  0,  0, true,  MF_TABLE_FMOE},
    {"qwen3_235b_bf16_untuned_fmoe.csv",              32,  0,  0, false, MF_TABLE_FMOE},
    {"qwen3_5_397b_fp4_tuned_fmoe.csv",               48,  0,  0, true,  MF_TABLE_FMOE},
    {"qwen3_5_397b_fp4_untuned_fmoe.csv",             48,  0,  0, false, MF_TABLE_FMOE},
    {"qwen3_vl_fp4_tuned_fmoe.csv",                   16,  0,  0, true,  MF_TABLE_FMOE},
    {"qwen3_vl_fp4_untuned_fmoe.csv",                 16,  0,  0, false, MF_TABLE_FMOE},
    {"qwen3next_80b_fp8_tuned_fmoe.csv",             118,  0,  0, true,  MF_TABLE_FMOE},
    {"qwen3next_80b_fp8_untuned_fmoe.csv",            96,  0,  0, false, MF_TABLE_FMOE},
    {"tuned_fhmoe.csv",                               12,  1,  0, true,  MF_TABLE_FHMOE},
    {"tuned_fmoe.csv",                               617, 281,  0, true,  MF_TABLE_FMOE},
    {"tuned_grouped_fmoe.csv",                       111,  1, 26, true,  MF_TABLE_GROUPED},
    {"untuned_fhmoe.csv",                              0,  0,  0, false, MF_TABLE_FMOE},
    {"untuned_fmoe.csv",                              13,  0,  0, false, MF_TABLE_FMOE},
    {"untuned_grouped_fmoe.csv",                      16,  1,  0, false, MF_TABLE_GROUPED},
};
/* clang-format on */

static inline void shipped_path(const char *file, char path[512])
{
    snprintf(path, 512, "%s/aiter/%s", MF_TEST_DATA, file);
}

static inline struct mf_table *shipped_read(const char *file)
{
    char path[512], why[MF_REASON_MAX];
    struct mf_table *t = NULL;
    shipped_path(file, path);
    ck_assert_msg(mf_table_file_read(path, &t, why) == 0, "%s: %s", file, why);
    return t;
}
