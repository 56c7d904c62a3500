/* The reason why steps contain no legal pipeline names the op and the tensor spec. */
#include <stdlib.h>
#include <string.h>

#include "common/moe/pipeline_gap.h"
#include "common/moe/status.h"

#include "support/mf_check.h"

enum { STEPS_MAX = 6 };
#define SORT    MF_OP_BIT(MF_OP_SORT)
#define STAGE_1 (MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT))
#define STAGE_2 (MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_COMBINE))

struct row {
    const char *name;
    mf_ops covers;
    int32_t block_m;
    const char *needs[2], *gives;
};

static const struct row sort16 = {
    "sort_16", SORT, 16, {"topk/index/none/token"}, "sorted/index/none/sorted.16"};
static const struct row up16 = {
    "up_16", STAGE_1, 16, {"sorted/index/none/sorted.16"}, "h/bf16/none/sorted.16"};
static const struct row down16 = {"down_16", STAGE_2, 16, {"h/bf16/none/sorted.16"}, "y/bf16/none/token"};
static const struct row down32 = {"down_32", STAGE_2, 32, {"h/bf16/none/sorted.32"}, "y/bf16/none/token"};
static const struct row down_slot = {
    "down_slot", STAGE_2, 32, {"h/bf16/none/sorted.16"}, "y/bf16/none/token"};

static const struct {
    const struct row *steps[STEPS_MAX];
    const char *reason;
} cases[] = {
    {{&sort16, &down16}, "no correct step covers gather+gemm1+act"},
    {{NULL}, "no correct step covers sort+gather+gemm1+act+gemm2+weight+combine"},
    {{&sort16, &up16, &down32},
     "no correct step writes h/bf16/none/sorted.32, which down_32 needs for gemm2"},
    {{&down32, &sort16, &up16},
     "no correct step writes h/bf16/none/sorted.32, which down_32 needs for gemm2"},
    {{&sort16, &up16, &down_slot}, "no correct steps agree on block_m and on the weight layouts"},
};

static void make_step(const struct row *row, struct mf_step *ret)
{
    *ret = (struct mf_step){.family = "two_stage", .covers = row->covers, .block_m = row->block_m};
    strcpy(ret->name, row->name);
    for (; ret->n_needs < 2 && row->needs[ret->n_needs]; ret->n_needs++)
        ck_assert_int_eq(mf_tensor_spec_parse(row->needs[ret->n_needs], &ret->needs[ret->n_needs]), 0);
    ck_assert_int_eq(mf_tensor_spec_parse(row->gives, &ret->gives[ret->n_gives++]), 0);
}

MF_TEST(gap_is_named, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_step steps[STEPS_MAX];
    struct mf_path_step timed[STEPS_MAX];
    struct mf_path_problem p = {
        .ops = SORT | STAGE_1 | STAGE_2, .format = MF_FORMAT_BF16, .steps = timed, .keep = 1};
    char text[MF_REASON_MAX];
    for (; p.n_steps < STEPS_MAX && cases[_i].steps[p.n_steps]; p.n_steps++) {
        make_step(cases[_i].steps[p.n_steps], &steps[p.n_steps]);
        timed[p.n_steps] = (struct mf_path_step){&steps[p.n_steps], 1};
    }
    struct mf_path *paths = NULL;
    size_t n = 1;
    ck_assert_int_eq(mf_path_find(&p, &paths, &n), 0);
    ck_assert_uint_eq(n, 0); /* no legal pipeline */
    free(paths);
    ck_assert_int_eq(mf_pipeline_gap(&p, text, sizeof(text)), 0);
    ck_assert_str_eq(text, cases[_i].reason);
}

int main(void)
{
    return mf_check_main(NULL);
}
