/* The row of AITER's table for a pipeline. */
#include "common/table/aiter_row.h"

#include <errno.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/mf_check.h"

#define GEMM1 (MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT))
#define GEMM2 MF_OP_BIT(MF_OP_GEMM2)
#define BOTH  (GEMM1 | GEMM2)
#define SORT  MF_OP_BIT(MF_OP_SORT)
#define QUANT MF_OP_BIT(MF_OP_QUANT1)

/* clang-format off */
static const struct {
    struct mf_aiter_step steps[3];
    size_t n;
    int32_t block_m;
    int r;
    const char *json; /* the columns of the row */
} cases[] = {
    {{{"sort", SORT, 0, true}, {"one", GEMM1, 0, true}, {"two", GEMM2, 0, true}}, 3, 32, 0,
     "\"kernelName1\":\"one\",\"kernelName2\":\"two\",\"cu_num\":304,\"block_m\":32,\"ksplit\":0,"
     "\"run_1stage\":0,\"xbf16\":0,\"flat\":0,"},
    /* AITER's names have no factor of split-K */
    {{{"one_sk4", GEMM1, 4, true}, {"two", GEMM2, 0, true}}, 2, 16, 0,
     "\"kernelName1\":\"one\",\"kernelName2\":\"two\",\"cu_num\":304,\"block_m\":16,\"ksplit\":4,"
     "\"run_1stage\":0,\"xbf16\":0,\"flat\":0,"},
    {{{"own_sk4", BOTH, 4, false}}, 1, 0, 0,
     "\"kernelName1\":\"own_sk4\",\"kernelName2\":\"\",\"cu_num\":304,\"block_m\":1,\"ksplit\":4,"
     "\"run_1stage\":1,\"xbf16\":0,\"flat\":0,"},
    {{{"fmoe_blockscaleBf16_flat", BOTH | SORT | QUANT, 0, true}}, 1, 1, 0,
     "\"kernelName1\":\"fmoe_blockscaleBf16_flat\",\"kernelName2\":\"\",\"cu_num\":304,\"block_m\":1,"
     "\"ksplit\":0,\"run_1stage\":1,\"xbf16\":1,\"flat\":1,"},
    {{{"fmoe_a16_emsort", BOTH | SORT | QUANT, 0, true}}, 1, 16, 0,
     "\"kernelName1\":\"fmoe_a16_emsort\",\"kernelName2\":\"\",\"cu_num\":304,\"block_m\":16,\"ksplit\":0,"
     "\"run_1stage\":1,\"xbf16\":1,\"flat\":2,"},
    {{{"sort", SORT, 0, true}, {"one", GEMM1, 0, true}}, 2, 16, -ENOENT, NULL},
    {{{"two", GEMM2, 0, true}}, 1, 16, -ENOENT, NULL},
};
/* clang-format on */

MF_TEST(row_of_a_pipeline, .rows = MF_ARRAY_LEN(cases))
{
    const struct mf_device_class class = {.gfx = "gfx942", .cu_num = 304};
    struct mf_aiter_row row;
    struct mf_shape shape;

    ck_assert_int_eq(mf_shape_parse("4,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                    "torch.bfloat16,QuantType.No,1,0",
                                    &shape),
                     0);
    ck_assert_int_eq(mf_aiter_row(cases[_i].steps, cases[_i].n, cases[_i].block_m, &row), cases[_i].r);
    if (cases[_i].r < 0)
        return;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_aiter_row_json(&class, &shape, &row);
    _cleanup_(mf_freep) char *text = cJSON_PrintUnformatted(json);
    ck_assert_msg(strstr(text, cases[_i].json) != NULL, "%s", text);
    ck_assert_msg(strstr(text, "{\"gfx\":\"gfx942\",") == text, "%s", text);
    ck_assert_msg(strstr(text, "\"token\":\"4\",\"model_dim\":\"256\",") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "\"use_g1u1\":\"1\",\"doweight_stage1\":\"0\"}") != NULL, "%s", text);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 10});
}
