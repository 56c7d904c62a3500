/* Production pads a call's token count to the next bucket and uses that bucket's row. In ROCm/aiter#3933,
 * #3964 and #5049 this gave wrong results or faults for token counts between buckets. Steps opened for a
 * bucket's token count must be correct for every token count that pads to it. */
#include "common/base/cleanup.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

static const int formats[] = {0, 1, 3, 11, 14, 16};
#define N_FORMATS ((int)MF_ARRAY_LEN(formats))

/* Buckets near thresholds. Threads share the rows if there are at least 65 rows, and the routes if there are
 * at least 1025 routes. Rows of 4 MiB or more are stored with streaming stores. */
/* clang-format off */
static const struct contract_case cases[] = {
    /* T     H   I   E  k */
    {  16,   64, 32,  8, 6, MF_ACT_SILU, false},
    {  32,   64, 32,  8, 3, MF_ACT_SILU, true},
    { 128, 2048, 32,  8, 8, MF_ACT_SILU, false},
    { 256,   64, 32, 33, 6, MF_ACT_SILU, false},
    { 512, 2048, 32,  8, 6, MF_ACT_SILU, false},
};
/* clang-format on */

MF_TEST(every_token_count_of_bucket, .rows = MF_ARRAY_LEN(cases) * N_FORMATS)
{
    if (!mf_draw(_i, 3))
        return;
    const struct contract_format *f = &contract_formats[formats[_i % N_FORMATS]];
    struct contract_case c = cases[_i / N_FORMATS];
    int n_steps = 0;
    const int64_t bucket = c.token, tokens[] = {bucket / 2 + 1, bucket / 4 * 3, bucket - 1};
    const char *const families[] = {f->family, "one_stage", "move", "onednn"};
    struct mf_device *d = contract_device(NULL);

    for (size_t i = 0; i < MF_ARRAY_LEN(tokens); i++) {
        c.token = tokens[i];
        const struct mf_shape s = contract_shape(&c, f);
        const struct contract_run run = {.device = d,
                                         .families = families,
                                         .n_families = MF_ARRAY_LEN(families),
                                         .shape = &s,
                                         .most = 6,
                                         .bucket = bucket};
        ck_assert_int_eq(mf_token_bucket(s.token), bucket);
        n_steps += contract_check_some(&run);
    }
    ck_assert_int_gt(n_steps, 0);
    (void)mf_device_close(d);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 110});
}
