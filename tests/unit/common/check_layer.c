#include "common/moe/layer.h"

#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"

#define ALL "sort+quant1+gather+gemm1+act+quant2+gemm2+weight+combine"

static struct mf_shape shape_of(const char *text)
{
    struct mf_shape shape;
    ck_assert_int_eq(mf_shape_parse(text, &shape), 0);
    return shape;
}

/* clang-format off */
static const struct {
    const char *text, *printed;         /* printed is NULL if the text is rejected */
} ops[] = {
    {"-", "-"}, {"sort", "sort"}, {"gather+gemm1+act", "gather+gemm1+act"},
    {"act+gemm1+gather", "gather+gemm1+act"},
    {ALL, ALL},
    {"", NULL}, {"+", NULL}, {"sort+", NULL}, {"+sort", NULL}, {"sort++act", NULL}, {"sort+sort", NULL},
    {"Sort", NULL}, {"sort act", NULL}, {"-+sort", NULL}, {"sort+-", NULL}, {"gemm3", NULL},
    {"a_name_that_is_longer_than_every_op", NULL},
};

/* Computed by hand for Qwen3-30B-A3B at TP8: T 4, H 2048, I 96, E 128, k 8.
 *   flops: 2 * 4 * 8 * 2048 * 192 + 2 * 4 * 8 * 2048 * 96 = 25165824 + 12582912
 *   one expert in bf16: (192 * 2048 + 2048 * 96) * 2 = 1179648 bytes; x and y: 4 * 2048 * 2 bytes each,
 *   32768 in total */
static const struct {
    const char *shape;
    double flops;
    int64_t active;
    double bytes;
} costs[] = {
    {"4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
     37748736.0, 28, 28 * 1179648.0 + 32768},
    {"4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
     37748736.0, 0, 32768},
    /* without a gate, w1 has 96 rows per expert */
    {"4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,0,0",
     25165824.0, 1, 786432.0 + 32768},
    /* fp8 with one scale per row: 589824 + 4 * (192 + 2048) */
    {"4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,"
     "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0",
     37748736.0, 1, 589824 + 8960.0 + 32768},
    /* I 128, one scale per block of 128 x 128: w1 has 2 x 16 blocks, w2 has 16 x 1 */
    {"4,2048,128,128,8,ActivationType.Silu,torch.bfloat16,"
     "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128,1,0",
     50331648.0, 1, 786432 + 4 * 48.0 + 32768},
    /* one scale per weight tensor */
    {"4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_Tensor,1,0",
     37748736.0, 2, 2 * (589824 + 8.0) + 32768},
    /* 4-bit weights with a one-byte scale per 32 elements: 294912 + 192 * 64 + 2048 * 3 */
    {"4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,"
     "torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
     37748736.0, 1, 294912 + 12288.0 + 6144 + 32768},
};
/* clang-format on */

MF_TEST(ops_round_trip, .rows = MF_ARRAY_LEN(ops))
{
    mf_ops set = 0xdead;
    char text[MF_OPS_TEXT_MAX];
    ck_assert_int_eq(mf_ops_parse(ops[_i].text, &set), ops[_i].printed ? 0 : -EINVAL);
    if (!ops[_i].printed) {
        ck_assert_uint_eq(set, 0xdead);
        return;
    }
    mf_ops_print(set, text);
    ck_assert_str_eq(text, ops[_i].printed);
}

MF_TEST(every_set_round_trips)
{
    for (mf_ops set = 0; set < MF_OP_BIT(MF_OP_N_); set++) {
        char text[MF_OPS_TEXT_MAX];
        mf_ops back = ~set;
        mf_ops_print(set, text);
        ck_assert_int_eq(mf_ops_parse(text, &back), 0);
        ck_assert_uint_eq(back, set);
    }
}

MF_TEST(quantise_ops_only_if_activation_type_changes)
{
    struct mf_shape shape = shape_of(costs[0].shape);
    for (int q = 0; q < MF_QTYPE_N_; q++) {
        char text[MF_OPS_TEXT_MAX];
        shape.q_type = (enum mf_qtype)q;
        shape.q_dtype_a = MF_DTYPE_FP8_E4M3FN;
        mf_ops_print(mf_layer_ops(&shape), text);
        ck_assert_str_eq(text, ALL);
    }
    shape.q_dtype_a = shape.dtype;
    for (int q = 0; q < MF_QTYPE_N_; q++) {
        char text[MF_OPS_TEXT_MAX];
        shape.q_type = (enum mf_qtype)q;
        mf_ops_print(mf_layer_ops(&shape), text);
        ck_assert_str_eq(text, "sort+gather+gemm1+act+gemm2+weight+combine");
    }
}

MF_TEST(cost_matches_hand_computation, .rows = MF_ARRAY_LEN(costs))
{
    struct mf_shape shape = shape_of(costs[_i].shape);
    ck_assert_double_eq(mf_layer_flops(&shape), costs[_i].flops);
    ck_assert_double_eq(mf_layer_min_bytes(&shape, costs[_i].active), costs[_i].bytes);
}

/* The largest valid shape does not overflow. */
MF_TEST(cost_of_the_largest_shape)
{
    struct mf_shape shape = shape_of("16777215,262144,262144,65535,127,ActivationType.Silu,torch.bfloat16,"
                                     "torch.bfloat16,torch.bfloat16,QuantType.No,1,0");
    ck_assert_double_eq_tol(mf_layer_flops(&shape) / (6.0 * 16777215 * 127 * 262144 * 262144), 1, 1e-15);
    ck_assert_double_eq_tol(mf_layer_min_bytes(&shape, 65535) / (65535 * 6.0 * 262144 * 262144), 1, 1e-3);
}

/* Returns the exact expected number of blocks of all experts. The number of rows of an expert has a binomial
 * distribution. */
static double binomial_blocks(const struct mf_shape *s, int32_t block_m)
{
    double p = (double)s->topk / mf_shape_global_experts(s), blocks = 0, n = (double)s->token;
    for (int64_t rows = p < 1 ? 1 : s->token; rows <= s->token; rows++) {
        double k = (double)rows, choose = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1);
        double share = p < 1 ? exp(choose + k * log(p) + (n - k) * log1p(-p)) : 1;
        blocks += share * (double)((rows + block_m - 1) / block_m);
    }
    return s->expert * blocks;
}

/* clang-format off */
static const struct {
    const char *shape;
    int32_t block_m;
} blocks[] = {
    {"1,4096,384,128,8,", 16}, {"16,4096,384,128,8,", 16}, {"64,4096,384,128,8,", 16},
    {"1024,4096,384,128,8,", 64}, {"1024,4096,384,128,8,", 80}, {"1024,4096,384,128,8,", 128},
    {"4096,7168,256,256,8,", 128}, {"16384,7168,256,256,8,", 128}, {"256,4096,3584,8,2,", 32},
    {"300,1024,256,8,8,", 128}, /* each expert gets all tokens */
};
/* clang-format on */

MF_TEST(expected_blocks_match_binomial_sum, .rows = MF_ARRAY_LEN(blocks))
{
    char text[256];
    mf_format(text, sizeof(text),
              "%sActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
              blocks[_i].shape);
    struct mf_shape s = shape_of(text);
    double expected = binomial_blocks(&s, blocks[_i].block_m),
           actual = mf_layer_expected_blocks(&s, blocks[_i].block_m);
    ck_assert_msg(fabs(actual / expected - 1) < 0.01, "%g blocks, expected %g", actual, expected);
}

/* A rank with a quarter of the experts has a quarter of the blocks. */
MF_TEST(expected_blocks_with_expert_parallelism)
{
    struct mf_shape all = shape_of("1024,4096,384,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                   "torch.bfloat16,QuantType.No,1,0"),
                    share = all;
    share.expert = 32;
    share.ep_experts = 128;
    ck_assert_double_eq_tol(mf_layer_expected_blocks(&share, 64), mf_layer_expected_blocks(&all, 64) / 4,
                            1e-9);
}

int main(void)
{
    return mf_check_main(NULL);
}
