/* Production pads a call's token count to the next bucket and takes that row (ROCm/aiter#3933, #3964, #5049: wrong or faulting for
 * counts between buckets). Steps that are worth trying for a bucket's count have to open, and be right, for every count that pads
 * to it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "family_contract.h"
#include "kernels/fmoe.h"
#include "mf_check.h"

static const int formats[] = {0, 1, 3, 11, 14, 16};
#define N_FORMATS ((int)MF_ARRAY_LEN(formats))

/* Buckets around which thresholds lie: threads share rows from 65 on, routes from 1025, and 4 MiB of rows go around the
 * caches. */
/* clang-format off */
static const struct {
    struct contract_case layer;
    int some; /* a format, by its place above, that has steps for the bucket which fewer tokens are not offered */
} cases[] = {
    /* T     H   I   E  k */
    {{  16,   64, 32,  8, 6, MF_ACT_SILU, false}, 0},
    {{  32,   64, 32,  8, 3, MF_ACT_SILU, true},  5},
    {{ 128, 2048, 32,  8, 8, MF_ACT_SILU, false}, 0},
    {{ 256,   64, 32, 33, 6, MF_ACT_SILU, false}, 3},
    {{ 512, 2048, 32,  8, 6, MF_ACT_SILU, false}, 1},
};
/* clang-format on */

START_TEST(every_count_of_a_bucket)
{
    const struct contract_format *f = &contract_formats[formats[_i % N_FORMATS]];
    struct contract_case c = cases[_i / N_FORMATS].layer;
    int n_steps = 0;
    const int64_t bucket = c.token, tokens[] = {bucket / 2 + 1, bucket / 4 * 3, bucket - 1};
    const char *const families[] = {f->family, "one", "move", "lib"};
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
    printf("%s, bucket %d: %d steps that are not offered below it\n", f->family, (int)bucket, n_steps);
    if (d->info.cores > 1 && _i % N_FORMATS == cases[_i / N_FORMATS].some)
        ck_assert_int_gt(n_steps, 0);
    (void)mf_device_close(d);
}
END_TEST

/* The operator finds such a step for a call of a bucket, and none for counts that no bucket of it serves. */
START_TEST(operator_opens_it)
{
    const struct contract_case c = {9, 64, 32, 8, 6, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[1]);
    struct mf_device *d = contract_device(NULL);
    char name[64], why[MF_REASON_MAX];
    const char *names[] = {name};
    struct mf_pipeline *p;

    mf_say(name, sizeof(name), "move:quant1_gather_m16_t%d", d->info.cores);
    if (d->info.cores > 1) {
        ck_assert_int_eq(mf_pipeline_open(d, &s, names, 1, why, sizeof(why), &p), -EINVAL);
        /* found and opened; one step is no layer */
        ck_assert_msg(strstr(why, "which nothing before it gives") != NULL, "%s", why);
        s.token = 4;
        ck_assert_int_eq(mf_pipeline_open(d, &s, names, 1, why, sizeof(why), &p), -EINVAL);
        ck_assert_msg(strstr(why, "offers no step") != NULL, "%s", why);
    }
    (void)mf_device_close(d);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bucket");
    TCase *tc = tcase_create("bucket");

    tcase_set_timeout(tc, 110);
    tcase_add_loop_test(tc, every_count_of_a_bucket, 0, (int)MF_ARRAY_LEN(cases) * N_FORMATS);
    tcase_add_test(tc, operator_opens_it);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
