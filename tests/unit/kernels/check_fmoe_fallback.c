/* kernels/pipeline/fmoe_fallback.c: the fallback pipeline for calls without a row opens for the given layout
 * of the weights, or the reason says why no pipeline exists. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/layout.h"
#include "kernels/pipeline/fmoe.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"

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

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 110, .setup = open_device, .teardown = close_device});
}
