#include "common/table/table_formula.h"

#include "support/mf_check.h"
#include "support/shipped.h"

#include <math.h>
#include <string.h>

/* clang-format off */
static const struct {
    const char *shape;
    double us, tflops, bw;
} rows[] = {
    /* T 2, H 4, I 5, E 7, k 3: 6 T k H I = 720 FLOP; T H 2 + 3 E H I 2 + T H 2 = 872 bytes; the time is 1 ns
     */
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
     1e-3, 0.72, 872.0},
    /* without a gate, w1 has half as many rows */
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,0,0",
     1e-3, 0.48, 592.0},
    /* AITER's formula counts 1 byte per fp8 weight and 0.5 bytes per int4 weight, but 1 byte per fp4 weight
     */
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
     "QuantType.per_Token,1,0",
     1e-3, 0.72, 444.0},
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.int4,QuantType.per_1x32,1,0",
     1e-3, 0.72, 242.0},
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,"
     "QuantType.per_1x32,1,0",
     1e-3, 0.72, 444.0},
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_Token,1,0",
     1e-3, 0.72, 444.0},
    /* without a valid time the rates are 0 */
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0", 0, 0, 0},
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0", -1, 0, 0},
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
     INFINITY, 0, 0},
    {"2,4,5,7,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
     NAN, 0, 0},
};
/* clang-format on */

MF_TEST(test_rates, .rows = MF_ARRAY_LEN(rows))
{
    struct mf_shape shape;
    double tflops, bw;
    ck_assert_int_eq(mf_shape_parse(rows[_i].shape, &shape), 0);
    mf_table_rates(&shape, rows[_i].us, &tflops, &bw);
    ck_assert_double_eq(tflops, rows[_i].tflops);
    ck_assert_double_eq(bw, rows[_i].bw);
}

/* Tables in which every row has the values that AITER's tuner computes at the supported revision. All other
 * tables have rows that were edited by hand or computed by older formulas. */
static const char *const computed[] = {
    "a8w8_blockscale_tuned_fmoe_glm5.csv",
    "a8w8_blockscale_tuned_fmoe_minimax-m2_5.csv",
    "a8w8_blockscale_tuned_fmoe_qwen3_235b.csv",
    "a8w8_blockscale_tuned_fmoe_qwen3_5_397b.csv",
    "glm5_mxfp8_tuned_fmoe.csv",
    "glm5_ptpc_tuned_fmoe.csv",
    "gptoss_fp4_tuned_fmoe.csv",
    "kimik2_fp8fp4_tuned_fmoe.csv",
    "kimik2_i4_tuned_fmoe.csv",
    "kimik3_a4w4_tuned_fmoe.csv",
    "kimik3_fp4_tuned_fmoe.csv",
    "minimax_m25_fp4_tuned_fmoe.csv",
    "minimax_m3_fp4_tuned_fmoe.csv",
    "qwen3_235b_bf16_tuned_fmoe.csv",
    "qwen3_vl_fp4_tuned_fmoe.csv",
    "qwen3next_80b_fp8_tuned_fmoe.csv",
};

/* The formulas reproduce all values of these tables exactly. */
MF_TEST(test_shipped, .rows = MF_ARRAY_LEN(computed))
{
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(computed[_i]);
    ck_assert_uint_gt(t->n_rows, 0);
    for (size_t i = 0; i < t->n_rows; i++) {
        double tflops, bw;
        mf_table_rates(&t->rows[i].shape, t->rows[i].us, &tflops, &bw);
        ck_assert_double_eq(tflops, t->rows[i].tflops);
        ck_assert_double_eq(bw, t->rows[i].bw);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
