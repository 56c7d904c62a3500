/* kernels/pipeline/fmoe_fallback.c: the fallback pipeline for calls without a row opens for the given layout
 * of the weights, or the reason says why no pipeline exists. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/layout.h"
#include "kernels/pipeline/cost.h"
#include "kernels/pipeline/fmoe.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"
#include "support/tuned_table.h"

static struct mf_device *device;

static void open_device(void)
{
    char why[MF_REASON_MAX];

    ck_assert_int_eq(mf_device_open_with("cpu:0", &(struct mf_device_open_options){.guest = true}, why,
                                         sizeof(why), &device),
                     0);
}
static void close_device(void)
{
    device = mf_device_close(device);
}

static struct mf_pipeline *open_pipeline(const struct mf_shape *s, const struct mf_fmoe_choice *choice)
{
    struct mf_pipeline *p = NULL;
    char why[MF_REASON_MAX];

    ck_assert_msg(mf_pipeline_open(device, s, NULL, choice->names, why, sizeof(why), &p) == 0, "%s: %s",
                  choice->names, why);
    return p;
}

/* The fallback pipeline opens for every format, for few and many tokens, and in every weight layout that the
 * build's kernels cover. */
MF_TEST(opens_in_given_layout, .rows = CONTRACT_N_FORMATS)
{
    static const int64_t tokens[] = {1, 16, 256, 2048};
    static struct mf_fmoe_choice choice;
    struct mf_shape s =
        contract_shape(&(struct contract_case){1, 256, 128, 8, 2, MF_ACT_SILU, false}, &contract_formats[_i]);
    const struct mf_layout *layouts;
    size_t n_layouts, served = 0;
    char why[MF_REASON_MAX];

    layouts = mf_layouts(&n_layouts);
    for (size_t t = 0; t < MF_ARRAY_LEN(tokens); t++) {
        s.token = tokens[t];
        for (size_t l = 0; l < n_layouts; l++) {
            const char *w1 = layouts[l].name, *w2 = layouts[l].gate_rows > 0 ? "row" : w1;
            int r = mf_fmoe_fallback(NULL, device, &s, NULL, w1, w2, why, sizeof(why), &choice);
            struct mf_pipeline *p;
            if (r == -ENOENT) {
                ck_assert_msg(strstr(why, "no pipeline of this build covers the layer") == why, "%s", why);
                ck_assert_str_ne(w1, "row");
                continue;
            }
            ck_assert_int_eq(r, 0);
            ck_assert_uint_eq(choice.row, SIZE_MAX);
            p = open_pipeline(&s, &choice);
            ck_assert_str_eq(mf_pipeline_weight(p, MF_TENSOR_W1).order, w1);
            ck_assert_str_eq(mf_pipeline_weight(p, MF_TENSOR_W2).order, w2);
            p = mf_pipeline_close(p);
            served++;
        }
        ck_assert_int_eq(mf_fmoe_fallback(NULL, device, &s, NULL, NULL, NULL, why, sizeof(why), &choice), 0);
        (void)mf_pipeline_close(open_pipeline(&s, &choice));
    }
    ck_assert_uint_ge(served, MF_ARRAY_LEN(tokens));
}

/* With few tokens each expert has at most one row, so large blocks would compute padding. With many tokens,
 * small blocks would read the weights repeatedly. */
MF_TEST(block_size_fits_rows)
{
    static struct mf_fmoe_choice few, many;
    struct mf_shape s = contract_shape(&(struct contract_case){16, 2048, 768, 128, 8, MF_ACT_SILU, false},
                                       &contract_formats[0]);
    char why[MF_REASON_MAX];
    struct mf_pipeline *p[2];
    int32_t block[2] = {0, 0};

    ck_assert_int_eq(mf_fmoe_fallback(NULL, device, &s, NULL, NULL, NULL, why, sizeof(why), &few), 0);
    p[0] = open_pipeline(&s, &few);
    s.token = 4096;
    ck_assert_int_eq(mf_fmoe_fallback(NULL, device, &s, NULL, NULL, NULL, why, sizeof(why), &many), 0);
    p[1] = open_pipeline(&s, &many);
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < mf_pipeline_n_steps(p[i]); k++)
            block[i] = MF_MAX(block[i], mf_pipeline_step(p[i], k)->block_m);
        p[i] = mf_pipeline_close(p[i]);
    }
    ck_assert_int_le(block[0], 8); /* 0: the pipeline has no sorted blocks */
    ck_assert_int_ge(block[1], 16);
}

/* ---- rows ---- */

/* A GPU that only offers steps. */
static const struct mf_device_ops h200_ops = {.kind = "hip", .own_memory = true};
static struct mf_device h200 = {
    .ops = &h200_ops,
    .info = {.class = {"sm_90", 132}, .cores = 132, .lds_bytes = 227 << 10, .llc_bytes = 50 << 20}};

#define BF16    "ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define MIXTRAL ",4096,3584,8,2," BF16
#define QWEN3   ",2048,768,128,8," BF16
#define PAIR    "two_stage_single_launch:pair_bf16_silu_"

/* Rows that were tuned on an H200: Mixtral-8x7B (TP4) and Qwen3-30B-A3B. */
static const struct {
    const char *shape, *us, *pipeline;
    double time;
} h200_rows[] = {
    {"1" MIXTRAL, "52.0", "one_stage:one_bf16_silu_t1024_b4_c1_y6_p128", 52.0},
    {"16" MIXTRAL, "170.0", "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 170.0},
    {"64" MIXTRAL, "170.7", "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 170.7},
    {"256" MIXTRAL, "176.4", "move:sort_zero_m80|" PAIR "m80_n256_b_p128", 176.4},
    {"1024" MIXTRAL, "361.4", "whole_layer_persistent:layer_bf16_silu_m96_n256_b_p128", 361.4},
    {"1" QWEN3, "28.4", "one_stage:one_bf16_silu_t512_b4_c1_y8_p128", 28.4},
    {"1024" QWEN3, "307.2", "move:sort_zero_m96|" PAIR "m96_n256_b_p128", 307.2},
    {"4096" QWEN3, "593.0",
     "move:sort_m96|two_stage:s1_bf16_silu_m96_n256_b_p128_zero|two_stage:s2_bf16_m96_n256_b_p128_y", 593.0},
};

/* Writes the first n rows to a file and opens the table. */
static struct mf_fmoe *open_rows(size_t n)
{
    static char text[1 << 14];
    char path[] = "/tmp/check_fmoe_fallback.XXXXXX", why[MF_REASON_MAX];
    const char *const paths[] = {path};
    struct mf_fmoe *f = NULL;
    int fd = mkstemp(path);

    mf_format(text, sizeof(text), "%s", TABLE_HEADER);
    for (size_t i = 0; i < n; i++)
        add_row(text, sizeof(text), "sm_90,132", h200_rows[i].shape, h200_rows[i].us, h200_rows[i].pipeline,
                "");
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(close(fd), 0);
    ck_assert_msg(mf_fmoe_open(&h200, paths, 1, NULL, why, sizeof(why), &f) == 0, "%s", why);
    ck_assert_int_eq(unlink(path), 0);
    return f;
}

static void choose(const struct mf_fmoe *f, const char *row, struct mf_fmoe_choice *ret)
{
    struct mf_shape s;
    char why[MF_REASON_MAX];

    ck_assert_int_eq(mf_shape_parse(row, &s), 0);
    ck_assert_msg(mf_fmoe_fallback(f, &h200, &s, NULL, "panel128", "panel128", why, sizeof(why), ret) == 0,
                  "%s", why);
}

/* Times on an H100, of small and of large blocks. */
#define QWEN235                                                                                   \
    ",4096,384,128,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn," \
    "QuantType.per_1x128,1,0"
#define FP8 "two_stage_single_launch:pair_fp8fn_128_silu_"
static const struct {
    const char *shape, *pipeline;
    double us;
} h100_times[] = {
    {"512" MIXTRAL, "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 626.9},
    {"512" MIXTRAL, "move:sort_zero_m96|" PAIR "m96_n256_b_p128", 378.0},
    {"2048" MIXTRAL, "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 2333.9},
    {"2048" MIXTRAL, "move:sort_zero_m96|" PAIR "m96_n256_b_p128", 778.5},
    {"16384" MIXTRAL, "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 20374.9},
    {"16384" MIXTRAL, "move:sort_zero_m96|" PAIR "m96_n256_b_p128", 5062.3},
    {"512" QWEN3, "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 442.7},
    {"512" QWEN3, "move:sort_zero_m96|" PAIR "m96_n256_b_p128", 411.5},
    {"16384" QWEN3, "move:sort_zero_m32|" PAIR "m32_n256_b_p128", 5126.5},
    {"16384" QWEN3, "move:sort_zero_m96|" PAIR "m96_n256_b_p128", 2263.1},
    {"512" QWEN235, "move:sort_zero_quant1_fp8fn_128_m128|" FP8 "m128_n256_bs_p128", 218.2},
    {"8192" QWEN235, "move:sort_zero_quant1_fp8fn_128_m32|" FP8 "m32_n256_b_p128", 1502.0},
    {"8192" QWEN235, "move:sort_zero_quant1_fp8fn_128_m128|" FP8 "m128_n256_bs_p128", 754.4},
};

/* Estimates follow measured times: the ratio of time to estimate varies by at most a factor of 1.9, although
 * blocks of 32 rows take up to 4 times as long as blocks of 96 rows. */
MF_TEST(estimates_follow_measured_times)
{
    double least = (double)INFINITY, most = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(h100_times); i++) {
        struct mf_shape s;
        double us;
        ck_assert_int_eq(mf_shape_parse(h100_times[i].shape, &s), 0);
        ck_assert_int_eq(mf_cost_of_pipeline(&h200, &s, NULL, h100_times[i].pipeline, &us), 0);
        ck_assert(isfinite(us) && us > 0);
        least = fmin(least, h100_times[i].us / us);
        most = fmax(most, h100_times[i].us / us);
    }
    ck_assert_msg(most <= 1.9 * least, "the ratio is between %.2f and %.2f", least, most);
}

/* The model reproduces what was measured: at the shape of a row, no other pipeline is modelled as faster. */
MF_TEST(models_measured_rows, .rows = MF_ARRAY_LEN(h200_rows))
{
    static struct mf_fmoe_choice choice;
    struct mf_fmoe *f = open_rows(MF_ARRAY_LEN(h200_rows));

    choose(f, h200_rows[_i].shape, &choice);
    ck_assert_msg(strcmp(choice.names, h200_rows[_i].pipeline) == 0, "%s: %s", choice.names, choice.reason);
    ck_assert_double_eq_tol(choice.us, h200_rows[_i].time, 1e-6);
    f = mf_fmoe_close(f);
}

/* Shapes without a row. A row counts less the farther away it is, and a pipeline that is not in the table
 * counts less than a row's. With 4,096 tokens, Mixtral's row for 1,024 tokens took 1,320 us on an H200. */
static const struct {
    const char *shape;
    size_t n_rows;
    int row;         /* index in h200_rows; -1: the pipeline with the lowest estimate */
    int32_t block_m; /* of an estimated pipeline */
    double least, most;
} missing[] = {
    {"2" MIXTRAL, 8, 0, 0, 85, 110},           {"32" MIXTRAL, 8, 2, 0, 165, 185},
    {"128" MIXTRAL, 8, 3, 0, 150, 185},        {"512" MIXTRAL, 8, 4, 0, 200, 361},
    {"4096" MIXTRAL, 8, 4, 0, 1100, 1400},     {"16384" MIXTRAL, 8, 7, 0, 4500, 6500},
    {"512" QWEN3, 8, 6, 0, 280, 310},          {"8192" QWEN3, 8, -1, 128, 900, 1200},
    {"1024" QWEN3, 5, 3, 0, 250, 400},                                             /* rows of Mixtral only */
    {"16384" MIXTRAL, 4, -1, 128, 3500, 8000}, {"4096" MIXTRAL, 0, -1, 128, 0, 0}, /* no rows */
};

MF_TEST(chooses_by_modelled_time, .rows = MF_ARRAY_LEN(missing))
{
    static struct mf_fmoe_choice choice;
    struct mf_fmoe *f = open_rows(missing[_i].n_rows);
    const int row = missing[_i].row;
    char block[16];

    choose(f, missing[_i].shape, &choice);
    mf_format(block, sizeof(block), "_m%d_", missing[_i].block_m);
    ck_assert_msg(row < 0 ? choice.row == SIZE_MAX && strstr(choice.names, block)
                          : choice.row == (size_t)row && strcmp(choice.names, h200_rows[row].pipeline) == 0,
                  "%s: %s", choice.names, choice.reason);
    ck_assert_msg(choice.us >= missing[_i].least && choice.us <= missing[_i].most, "%g us", choice.us);
    ck_assert_msg(
        strstr(choice.reason, row < 0 ? "the pipeline with the lowest estimate" : "scaled from the row"),
        "%s", choice.reason);
    f = mf_fmoe_close(f);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 110, .setup = open_device, .teardown = close_device});
}
