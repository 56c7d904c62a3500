/* AITER's manifests, argument blocks and grids: every offset, and every stride with values computed by hand.
 */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/asm_args.h"
#include "kernels/families/asm_manifest.h"
#include "support/mf_check.h"

#define ONE "knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat\n"

/* ---- manifests ---- */

/* clang-format off */
static const struct {
    const char *text;
    size_t n;
    int64_t line;       /* line of the first problem; 0: no problem */
    const char *reason; /* substring of the reason */
} manifests[] = {
    {ONE "a,a.co,0,1,0,1,0,32,128,0\nb,a.co,0,1,0,1,1,32,256,0\n", 2, 0, ""},
    {"// 1\n# 2\n" ONE "; 4\na,a.co,0,1,0,1,0,32,128,1 // flat\n", 1, 0, ""},
    {"/* 1\n2 */ " ONE "a,a.co,0,1,0,1,0,32,128,9\n", 0, 3, "column flat"},
    /* Columns are found by name. Missing columns are 0. */
    {"subGU_n,subGU_m,co_name,knl_name\n128,32,other.co,a\n", 1, 0, ""},
    {"tile_m,tile_n,knl_name,co_name\n16,128,s,s.co\n", 1, 0, ""},
    {"tile_m,knl_name,co_name\n16,s,s.co\n", 0, 2, "column tile_n"},
    {ONE "a,a.co,0,1,0,1,0,32,128,0\na,b.co,0,1,0,1,0,32,128,0\n", 1, 3,
     "kernel a is already listed in m.csv"},
    {ONE "a,../a.co,0,1,0,1,0,32,128,0\nb,b.co,0,1,0,1,0,32,128,0\n", 1, 2, "co_name '../a.co'"},
    {ONE "a,..,0,1,0,1,0,32,128,0\n", 0, 2, "co_name"},
    {ONE ",a.co,0,1,0,1,0,32,128,0\n", 0, 2, "knl_name ''"},
    {ONE "a,a.co,0,1,0,1,0,32\n", 0, 2, "the row has 8 cells, the header has 10"},
    {ONE "a,a.co,0,1,0,1,0,0x20,128,0\n", 0, 2, "column subGU_m"},
    {ONE "a,a.co,0,1,0,1,0,32,0,0\n", 0, 2, "column subGU_n"},
    {ONE "a,a.co,0,1,0,1,0,32,128,0\n/* b", 1, 3, "unterminated comment"},
    {"x,y\n1,2\n", 0, 1, "no column knl_name"},
    {"", 0, 1, "empty"},
};
/* clang-format on */

MF_TEST(manifest, .rows = MF_ARRAY_LEN(manifests))
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    const char *text = manifests[_i].text;
    ck_assert_int_eq(mf_asm_manifest_add(&m, "gfx942", "m.csv", text, strlen(text)), 0);
    ck_assert_uint_eq(m.n, manifests[_i].n);
    ck_assert_uint_eq(m.n_problems, manifests[_i].line > 0);
    if (m.n_problems > 0) {
        ck_assert_int_eq(m.problems[0].line, manifests[_i].line);
        ck_assert_str_eq(m.problems[0].file, "m.csv");
        ck_assert_msg(strstr(m.problems[0].reason, manifests[_i].reason) != NULL, "%s", m.problems[0].reason);
    }
    mf_asm_manifest_release(&m);
}

/* Kernels of one name on two architectures are two kernels; co_name locates the code. */
MF_TEST(manifest_key)
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    static const char a[] = ONE "vs_ps,other.co,1,1,0,2,1,32,128,0\n",
                      b[] = "tile_m,tile_n,knl_name,co_name\n64,256,vs_ps,s.co\n";
    ck_assert_int_eq(mf_asm_manifest_add(&m, "gfx942", "a.csv", a, sizeof(a) - 1), 0);
    ck_assert_int_eq(mf_asm_manifest_add(&m, "gfx950", "b.csv", b, sizeof(b) - 1), 0);
    const struct mf_asm_kernel *k = mf_asm_manifest_find(&m, "gfx942", "vs_ps"),
                               *s = mf_asm_manifest_find(&m, "gfx950", "vs_ps");
    ck_assert(k && s && !mf_asm_manifest_find(&m, "gfx90a", "vs_ps"));
    ck_assert_str_eq(k->co_name, "other.co");
    ck_assert(k->kind == MF_ASM_ONE && k->atm == 1 && k->vskip == 1 && k->smf == 0 && k->tg_num_per_cu == 2 &&
              k->ps == 1 && k->sub_m == 32 && k->sub_n == 128 && k->flat == 0);
    ck_assert(s->kind == MF_ASM_STAGE1 && s->sub_m == 64 && s->sub_n == 256);
    mf_asm_manifest_release(&m);
}

/* ---- argument blocks ---- */

static char place[16];

/* Qwen3-30B-A3B with FP8 scales per token: E 128, H 2048, I 768, k 8. */
static struct mf_asm_call call(void)
{
    return (struct mf_asm_call){
        .out = place,
        .x = place + 1,
        .w1 = place + 2,
        .num_valid = place + 3,
        .w2 = place + 4,
        .x_scale = place + 5,
        .w1_scale = place + 6,
        .w2_scale = place + 7,
        .smooth_scale = place + 8,
        .sorted_ids = place + 9,
        .sorted_weights = place + 10,
        .sorted_experts = place + 11,
        .token = 64,
        .model_dim = 2048,
        .inter_dim = 768,
        .expert = 128,
        .topk = 8,
        .gated = true,
        .x_bytes = 1,
        .x_stride = 2048,
        .w_bits = 8,
        .out_bytes = 2,
        .w1_scale_stride = 1536,
        .w2_scale_stride = 2048,
        .scale_bytes = 4,
        .act = MF_ACT_GELU,
        .cu_num = 304,
        .n_blocks = 129,
    };
}

static uint64_t slot_of(const unsigned char *block, int slot)
{
    uint64_t low, high;
    memcpy(&low, block + 16 * slot, 8);
    memcpy(&high, block + 16 * slot + 8, 8);
    ck_assert_uint_eq(high, 0); /* padding */
    return low;
}

static const struct mf_asm_kernel plain = {.kind = MF_ASM_ONE, .tg_num_per_cu = 1, .sub_m = 32, .sub_n = 128},
                                  persistent = {.kind = MF_ASM_ONE,
                                                .tg_num_per_cu = 2,
                                                .ps = 1,
                                                .sub_m = 32,
                                                .sub_n = 512};

/* clang-format off */
static const struct { int slot; int64_t value; } one_slots[] = {
    {12, 2048}, {13, 768}, {14, 64}, {15, 128},
    {16, 2048},             /* Xs   2048 x 1 */
    {17, 2048},             /* GUs  2048 x 1 */
    {18, 768},              /* Ds   768 x 1 */
    {19, 4096},             /* Os   2048 x 2 */
    {20, 3145728},          /* eGUs 2048 x 768 x 2 */
    {21, 1572864},          /* eDs  768 x 2048 */
    {22, 6144},             /* eGUQs 1536 x 4 */
    {23, 8192},             /* eDQs 2048 x 4 */
    {24, 3072},             /* eSMQs 4 x 768 */
    {25, 8}, {26, 0}, {27, 6},
}, stage1_slots[] = {
    {9, 2048}, {10, 768}, {11, 64}, {12, 128}, {13, 2048}, {14, 2048},
    {15, 12288},            /* Os   8 x 768 x 2 */
    {16, 3145728}, {17, 6144}, {18, 3072}, {19, 8}, {20, 1}, {21, 1},
};
/* index of the address in call() that each slot holds */
static const int one_places[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                 stage1_places[] = {0, 1, 2, 3, 5, 6, 8, 9, 11};
/* clang-format on */

MF_TEST(one_block)
{
    unsigned char block[MF_ASM_ONE_BYTES];
    struct mf_asm_call c = call();
    const char *slot = NULL;
    ck_assert_int_eq(mf_asm_one_block(&plain, &c, block, &slot), 0);
    ck_assert_uint_eq(sizeof(block), 28 * 16);
    for (int i = 0; i < (int)MF_ARRAY_LEN(one_places); i++)
        ck_assert_uint_eq(slot_of(block, i), (uintptr_t)(place + one_places[i]));
    for (size_t i = 0; i < MF_ARRAY_LEN(one_slots); i++)
        ck_assert_msg((int64_t)slot_of(block, one_slots[i].slot) == one_slots[i].value, "slot %d",
                      one_slots[i].slot);
}

MF_TEST(stage1_block)
{
    unsigned char block[MF_ASM_STAGE1_BYTES];
    struct mf_asm_call c = call();
    const char *slot = NULL;
    c.ksplit = 1;
    ck_assert_int_eq(mf_asm_stage1_block(&c, block, &slot), 0);
    ck_assert_uint_eq(sizeof(block), 23 * 16);
    for (int i = 0; i < (int)MF_ARRAY_LEN(stage1_places); i++)
        ck_assert_uint_eq(slot_of(block, i), (uintptr_t)(place + stage1_places[i]));
    for (size_t i = 0; i < MF_ARRAY_LEN(stage1_slots); i++)
        ck_assert_msg((int64_t)slot_of(block, stage1_slots[i].slot) == stage1_slots[i].value, "slot %d",
                      stage1_slots[i].slot);
    ck_assert_uint_eq(slot_of(block, 22), (uintptr_t)(place + 10));
}

/* Slots that depend on the formats: GUs, Ds, Xs, eGUs, eDs. */
/* clang-format off */
static const struct {
    const char *what;
    int32_t w_bits, x_bytes;
    bool gated;
    int64_t gus, ds, xs, egus, eds;
} formats[] = {
    {"4-bit weights: halved",              4, 1, true,  1024,  384, 2048, 1572864,  786432},
    {"no quantisation: 2-byte elements",  16, 2, true,  4096, 1536, 4096, 6291456, 3145728},
    {"bf16 x on fp8 weights (xbf16)",      8, 2, true,  2048,  768, 4096, 3145728, 1572864},
    {"no gate: I rows",                    8, 1, false, 2048,  768, 2048, 1572864, 1572864},
};
/* clang-format on */

MF_TEST(block_formats, .rows = MF_ARRAY_LEN(formats))
{
    unsigned char block[MF_ASM_ONE_BYTES];
    struct mf_asm_call c = call();
    const char *slot = NULL;
    c.w_bits = formats[_i].w_bits;
    c.x_bytes = formats[_i].x_bytes;
    c.gated = formats[_i].gated;
    c.x_scale = c.w1_scale = c.w2_scale = NULL;
    c.w1_scale_stride = c.w2_scale_stride = 0;
    ck_assert_int_eq(mf_asm_one_block(&plain, &c, block, &slot), 0);
    ck_assert_int_eq((int64_t)slot_of(block, MF_ASM_ONE_GUS), formats[_i].gus);
    ck_assert_int_eq((int64_t)slot_of(block, MF_ASM_ONE_DS), formats[_i].ds);
    ck_assert_int_eq((int64_t)slot_of(block, MF_ASM_ONE_XS), formats[_i].xs);
    ck_assert_int_eq((int64_t)slot_of(block, MF_ASM_ONE_EGUS), formats[_i].egus);
    ck_assert_int_eq((int64_t)slot_of(block, MF_ASM_ONE_EDS), formats[_i].eds);
    for (int i = MF_ASM_ONE_XQ; i <= MF_ASM_ONE_DQ; i++)
        ck_assert_uint_eq(slot_of(block, i), 0);
    ck_assert_uint_eq(slot_of(block, MF_ASM_ONE_EGUQS), 0);
}

/* An expert's weights of 4 GiB overflow a 32-bit stride. They fit if inter_dim is smaller by one. */
MF_TEST(block_overflow)
{
    unsigned char block[MF_ASM_ONE_BYTES];
    struct mf_asm_call c = call();
    const char *slot = NULL;
    c.model_dim = 65536;
    c.inter_dim = 32768;
    ck_assert_int_eq(mf_asm_one_block(&plain, &c, block, &slot), -ERANGE);
    ck_assert_str_eq(slot, "eGUs");
    c.inter_dim = 32767;
    ck_assert_int_eq(mf_asm_one_block(&plain, &c, block, &slot), 0);
    ck_assert_uint_eq(slot_of(block, MF_ASM_ONE_EGUS), UINT64_C(65536) * 32767 * 2);
}

MF_TEST(persistent_groups)
{
    struct mf_asm_call c = call();
    unsigned char block[MF_ASM_ONE_BYTES];
    const char *slot = NULL;
    c.inter_dim = 1300; /* 3 tiles of 512: 202 x 3 of 608 workgroups */
    ck_assert_int_eq(mf_asm_persistent(&persistent, 304), 608);
    ck_assert_int_eq(mf_asm_total_tgs(&persistent, &c), 606);
    ck_assert_int_eq(mf_asm_total_tgs(&plain, &c), 0);
    ck_assert_int_eq(mf_asm_one_block(&persistent, &c, block, &slot), 0);
    ck_assert_uint_eq(slot_of(block, MF_ASM_ONE_TOTAL_TGS), 606);
    ck_assert_uint_eq(slot_of(block, MF_ASM_ONE_PS_DENO), 3);
}

/* Derives inter_dim from the shapes of w1 [E, 1536, 2048] and w2 [E, 2048, 768]. With two values per byte,
 * rows are 1024 and 384 bytes long. */
MF_TEST(inter_dim)
{
    ck_assert_int_eq(mf_asm_inter_dim(2048, 2048, 768), 768);
    ck_assert_int_eq(mf_asm_inter_dim(1024, 2048, 384), 768);
    ck_assert_int_eq(mf_asm_inter_dim(0, 2048, 384), 0);
}

/* clang-format off */
static const struct {
    struct mf_asm_kernel k;
    bool switch_xy;
    int32_t ksplit;
    struct mf_asm_grid want;
} grids[] = {
    {{.kind = MF_ASM_ONE, .sub_m = 32, .sub_n = 128},                                   false, 0, {6, 129,
     1}},
    {{.kind = MF_ASM_ONE, .sub_m = 32, .sub_n = 512},                                   false, 0, {2, 129,
     1}},
    {{.kind = MF_ASM_ONE, .sub_m = 32, .sub_n = 128},                                   true,  0, {129, 6,
     1}},
    {{.kind = MF_ASM_ONE, .sub_m = 1,  .sub_n = 128, .flat = 1},                        false, 0, {6, 8, 64}},
    {{.kind = MF_ASM_ONE, .sub_m = 32, .sub_n = 128, .ps = 1, .tg_num_per_cu = 2},      false, 0, {608, 1,
     1}},
    {{.kind = MF_ASM_ONE, .sub_m = 32, .sub_n = 128, .ps = 1, .tg_num_per_cu = 0},      false, 0, {6, 129,
     1}},
    {{.kind = MF_ASM_STAGE1, .sub_m = 16, .sub_n = 256},                                false, 0, {3, 129,
     1}},
    {{.kind = MF_ASM_STAGE1, .sub_m = 16, .sub_n = 256},                                false, 2, {3, 129,
     4}},
};
/* clang-format on */

MF_TEST(grid, .rows = MF_ARRAY_LEN(grids))
{
    struct mf_asm_call c = call();
    c.ksplit = grids[_i].ksplit;
    struct mf_asm_grid g = mf_asm_grid_of(&grids[_i].k, &c, grids[_i].switch_xy);
    ck_assert_uint_eq(g.x, grids[_i].want.x);
    ck_assert_uint_eq(g.y, grids[_i].want.y);
    ck_assert_uint_eq(g.z, grids[_i].want.z);
}

/* Workgroups and rounds for 129 blocks on 304 CUs, by tile width (512 does not divide 768):
 *
 *   128  774 workgroups, 3 rounds
 *   256  387 workgroups, 2 rounds
 *   384  258 workgroups, 1 round (46 CUs idle)
 *   768  129 workgroups, 1 round (175 CUs idle) */
/* clang-format off */
static const struct { const char *rows, *want; } picks[] = {
    {"n128,a.co,0,1,0,1,0,32,128,0\nn256,a.co,0,1,0,1,0,32,256,0\n", "n256"},
    {"n768,a.co,0,1,0,1,0,32,768,0\nn384,a.co,0,1,0,1,0,32,384,0\n", "n384"},
    {"n384,a.co,0,1,0,1,0,32,384,0\nps,a.co,0,1,0,1,1,32,384,0\nlater,a.co,0,1,0,1,1,32,384,0\n", "ps"},
    {"n512,a.co,0,1,0,1,0,32,512,0\nn128,a.co,0,1,0,1,0,32,128,0\n", "n128"},
    {"novs,a.co,0,0,0,1,0,32,384,0\nsmf,a.co,0,1,1,1,0,32,384,0\nm64,a.co,0,1,0,1,0,64,384,0\n"
     "flat,a.co,0,1,0,1,0,32,384,1\n", NULL},
};
/* clang-format on */

MF_TEST(pick, .rows = MF_ARRAY_LEN(picks))
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    struct mf_asm_wish wish = {.arch = "gfx942", .kind = MF_ASM_ONE, .vskip = 1, .block_m = 32};
    struct mf_asm_call c = call();
    char text[1024];
    mf_format(text, sizeof(text), ONE "%s", picks[_i].rows);
    ck_assert_int_eq(mf_asm_manifest_add(&m, "gfx942", "m.csv", text, strlen(text)), 0);
    ck_assert_uint_eq(m.n_problems, 0);
    const struct mf_asm_kernel *k = mf_asm_pick(&m, &wish, &c);
    if (picks[_i].want)
        ck_assert_str_eq(k ? k->name : "none", picks[_i].want);
    else
        ck_assert_ptr_null(k);
    mf_asm_manifest_release(&m);
}

int main(void)
{
    return mf_check_main(NULL);
}
