/* kernels/aiter/aiter_lists.c, aiter_tree.c: the built-in kernel lists and those of an AITER tree. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/aiter/aiter.h"
#include "kernels/aiter/aiter_lists.h"
#include "support/mf_check.h"

#define TREE MF_TEST_DATA "/aiter_tree"

/* clang-format off */
static const struct {
    const char *list, *gfx;
    int n;                  /* number of kernels; -1: there is no such list */
    struct mf_aiter_entry first;
} lists[] = {
    {"fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu", "gfx950", 6,
     {"_ZN5aiter47fmoe_bf16_blockscaleBf16_g1u1_vs_ps_silu_32x128E", {32, 128}}},
    {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu", "gfx950", 15,
     {"_ZN5aiter52fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_ps_32x256E", {32, 256}}},
    {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu", "gfx942", 12,
     {"_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x128E", {32, 128}}},
    {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu", "gfx1250", -1, {"", {0}}},
    {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1", "gfx950", -1, {"", {0}}},
    {"a8w8_gemm1_blockscale_kernels_list", NULL, 5, {"256x16x128x256_1x4", {16, 128, 256, 1}}},
    {"a16w16_gemm2_kernels_list", NULL, 12, {"256x32x64x128_1x4", {32, 64, 128, 1}}},
    {"opus_stage1", NULL, 21, {"opus_moe1_afp8_wfp4_bf16_t16x384_pair_kw4_m2_fp8", {16, 32, 4}}},
    {"opus_stage2", NULL, 19,
     {"opus_moe2_afp8_wfp4_atomic_t16x64x256_sbm16_cache_b3_ws2", {16, 64, 0, 1024}}},
};
/* clang-format on */

static int count(const struct mf_aiter_lists *l, const char *list, const char *gfx,
                 struct mf_aiter_entry *ret)
{
    struct mf_aiter_cursor c = mf_aiter_list_find(l, list, gfx);
    struct mf_aiter_entry e;
    int n = 0;
    if (!c.at)
        return -1;
    for (; mf_aiter_list_next(&c, &e); n++)
        if (n == 0)
            *ret = e;
    return n;
}

static void assert_entry(const struct mf_aiter_entry *e, const struct mf_aiter_entry *expected)
{
    ck_assert_str_eq(e->name, expected->name);
    for (int i = 0; i < MF_AITER_N_VALUES; i++)
        ck_assert_msg(e->value[i] == expected->value[i], "%s: value %d is %d", e->name, i, e->value[i]);
}

MF_TEST(builtin, .rows = MF_ARRAY_LEN(lists))
{
    struct mf_aiter_entry first = {.name = ""};
    ck_assert_int_eq(count(mf_aiter_lists_builtin(), lists[_i].list, lists[_i].gfx, &first), lists[_i].n);
    assert_entry(&first, &lists[_i].first);
}

MF_TEST(version)
{
    char version[MF_AITER_VERSION_MAX];
    mf_aiter_lists_version(mf_aiter_lists_builtin(), version);
    ck_assert_str_eq(version, "e4048607");
    mf_aiter_lists_version(&(struct mf_aiter_lists){.text = "list x\n"}, version);
    ck_assert_str_eq(version, "unknown");
}

/* clang-format off */
static const struct {
    const char *list, *gfx;
    int n;
    struct mf_aiter_entry first;
} tree_lists[] = {
    {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu", "gfx950", 3,
     {"_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E", {32, 256}}},
    {"fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu", "gfx950", 1,
     {"_ZN5aiter48fmoe_bf16_blockscaleBf16_g1u1_flat_vs_silu_1x128E", {1, 128, 0, 1}}},
    {"fmoe_2stages/fmoe_stage1_bf16_pertokenFp8_blockscale_g1u1", "gfx950", 1,
     {"_ZN5aiter59fmoe_stage1_bf16_pertokenFp8_blockscale_g1u1_32x128_9tg_pf2E", {32, 128}}},
    {"a8w8_gemm1_blockscale_kernels_list", NULL, 1, {"256x32x128x128_1x4", {32, 128, 128, 7}}},
    {"a8w8_gemm2_blockscale_kernels_list", NULL, 1, {"256x32x128x128_1x4", {32, 128, 128, 7}}},
    {"opus_stage1", NULL, 2, {"opus_moe1_afp8_wfp4_bf16_t32x512_gs_qgb9_fp8", {32, 256, 1}}},
    {"opus_stage2", NULL, 2, {"opus_moe2_afp8_wfp4_atomic_t32x64x256_sbm32_new", {32, 64, 0, 1024}}},
};
/* clang-format on */

MF_TEST(tree, .rows = MF_ARRAY_LEN(tree_lists))
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    struct mf_aiter_entry first = {.name = ""};
    char why[MF_REASON_MAX];
    mf_buf_init(&text, 1 << 20);
    ck_assert_msg(mf_aiter_tree_read(TREE, &text, why) == 0, "%s", why);
    const struct mf_aiter_lists own = {.text = text.data, .own = true};
    ck_assert_int_eq(count(&own, tree_lists[_i].list, tree_lists[_i].gfx, &first), tree_lists[_i].n);
    assert_entry(&first, &tree_lists[_i].first);
}

/* With the lists of a tree, the kernels of the tree are offered, and unlisted ones are no kernels. */
/* clang-format off */
static const struct {
    const char *name;
    enum mf_aiter_known own, builtin;
} names[] = {
    {"_ZN5aiter43fmoe_bf16_blockscaleFp8_g1u1_new_vs_silu_32x128E", MF_AITER_KNOWN, MF_AITER_NO_KERNEL},
    {"_ZN5aiter43fmoe_bf16_blockscaleFp8_g1u1_vs_silu_32x384E", MF_AITER_NO_KERNEL, MF_AITER_KNOWN},
    {"moe_ck2stages_gemm1_256x32x128x128_1x4_MulABScaleExpertWeightA8W8blkscale_v7_Nswizzle0_Quant4_"
     "MulRoutedWeight0_silu_F8_F8_B16", MF_AITER_KNOWN, MF_AITER_NEWER},
    {"moe_ck2stages_gemm1_256x32x128x128_1x4_MulABScaleExpertWeightA8W8blkscale_v1_Nswizzle0_Quant4_"
     "MulRoutedWeight0_silu_F8_F8_B16", MF_AITER_NO_KERNEL, MF_AITER_KNOWN},
    {"opus_moe2_layout_afp8_wfp4_fp8_t64x256x256_sbm64_new", MF_AITER_KNOWN, MF_AITER_NEWER},
    {"flydsl_moe1_afp4_wfp4_bf16_t32x128x256_w2_fp4", MF_AITER_KNOWN, MF_AITER_KNOWN},
    {"flydsl_moe1_afp4_wfp4_bf16_t32x128x256_w2_newest", MF_AITER_NEWER, MF_AITER_NEWER},
};
/* clang-format on */

MF_TEST(known, .rows = MF_ARRAY_LEN(names))
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    mf_buf_init(&text, 1 << 20);
    ck_assert_msg(mf_aiter_tree_read(TREE, &text, why) == 0, "%s", why);
    const struct mf_aiter_lists own = {.text = text.data, .own = true};
    ck_assert_int_eq(mf_aiter_name_known(&own, names[_i].name), names[_i].own);
    ck_assert_int_eq(mf_aiter_name_known(NULL, names[_i].name), names[_i].builtin);
}

MF_TEST(no_tree)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    mf_buf_init(&text, 1 << 20);
    ck_assert_int_eq(mf_aiter_tree_read(MF_TEST_DATA "/cases", &text, why), -ENOENT);
    ck_assert_msg(strstr(why, "not an AITER source tree") != NULL, "%s", why);
    mf_buf_clear(&text);
    mf_buf_release(&text);
    mf_buf_init(&text, 16);
    ck_assert_int_eq(mf_aiter_tree_read(TREE, &text, why), -EFBIG);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
