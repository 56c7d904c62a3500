#include "kernels/ops/calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "kernels/reference/reference.h"
#include "support/mf_check.h"

#define T 6
#define H 64
#define I 32
#define E 4
#define K 2

struct batch {
    struct mf_layer_data data;
    uint16_t x[T * H];
    int32_t ids[T * K];
    float weights[T * K], g1[E], g2[E];
    uint8_t w1[E * 2 * I * H / 2], w2[E * H * I / 2], s1[E * 2 * I * H / 16], s2[E * H * I / 16];
};

static struct batch *batch_new(void)
{
    struct batch *b = calloc(1, sizeof(*b));
    const struct mf_shape s = {.token = T,
                               .model_dim = H,
                               .inter_dim = I,
                               .expert = E,
                               .topk = K,
                               .act_type = MF_ACT_SILU,
                               .dtype = MF_DTYPE_BF16,
                               .q_dtype_a = MF_DTYPE_FP4X2,
                               .q_dtype_w = MF_DTYPE_FP4X2,
                               .q_type = MF_QTYPE_PER_1X16,
                               .use_g1u1 = true};
    struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};
    b->data = (struct mf_layer_data){
        s, b->x, b->ids, b->weights, {{b->w1, b->s1, b->g1}}, {{b->w2, b->s2, b->g2}}, NULL, NULL};
    mf_data_x(&s, 1, b->x);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 1, b->ids, b->weights), 0);
    ck_assert_int_eq(mf_data_weight(&s, MF_TENSOR_W1, 1, &b->data.w1), 0);
    ck_assert_int_eq(mf_data_weight(&s, MF_TENSOR_W2, 1, &b->data.w2), 0);
    return b;
}

static const struct mf_codec *nvfp4(void)
{
    return mf_codec_find(MF_FORMAT_FP4, MF_SCALE_PER_1X16);
}

/* Adds the magnitudes that the reference computes for a batch. */
static int add(struct mf_calibration *c, const struct batch *b, char *why, size_t why_cap)
{
    struct mf_reference r;
    int result;

    ck_assert_int_eq(mf_reference_make(&b->data, &r), 0);
    result = mf_calibration_add(c, T, r.x_amax, r.h_amax, why, why_cap);
    mf_reference_release(&r);
    return result;
}

/* The largest value of all batches determines the factor, whichever batch contains it. */
MF_TEST(largest_batch_value_used)
{
    struct batch *b = batch_new();
    struct mf_calibration c = {0};
    float one[2], two[2];
    char why[160] = "";
    ck_assert_int_eq(add(&c, b, why, sizeof(why)), 0);
    ck_assert_int_eq(mf_calibration_factors(&c, nvfp4(), 1, one, why, sizeof(why)), 0);
    ck_assert_double_eq_tol((double)one[0], 2688 / (double)c.x_amax, 1e-3);
    b->x[5] = 0x42c8; /* 100 */
    ck_assert_int_eq(add(&c, b, why, sizeof(why)), 0);
    b->x[5] = 0;
    ck_assert_int_eq(add(&c, b, why, sizeof(why)), 0);
    ck_assert_int_eq(mf_calibration_factors(&c, nvfp4(), 1, two, why, sizeof(why)), 0);
    ck_assert_double_eq_tol((double)two[0], 26.88, 1e-4);
    ck_assert(two[1] <= one[1]);
    ck_assert_int_eq(c.batches, 3);
    ck_assert_int_eq(c.tokens, 3 * T);
    ck_assert_int_eq(mf_calibration_factors(&c, nvfp4(), 2, one, why, sizeof(why)), 0);
    ck_assert_double_eq_tol((double)one[0], 13.44, 1e-4);
    free(b);
}

MF_TEST(invalid_batch_ignored)
{
    struct batch *b = batch_new();
    struct mf_calibration c = {0};
    float factors[2];
    char why[160] = "";
    ck_assert_int_eq(mf_calibration_factors(&c, nvfp4(), 1, factors, why, sizeof(why)), -ENODATA);
    ck_assert_ptr_nonnull(strstr(why, "no calibration batch"));
    b->x[7] = 0x7f80; /* infinity */
    ck_assert_int_eq(add(&c, b, why, sizeof(why)), -EINVAL);
    ck_assert_str_eq(why, "x of batch 0 holds a value that is not finite");
    ck_assert_int_eq(c.batches, 0);
    ck_assert(c.x_amax == 0.0f);
    ck_assert_int_eq(mf_calibration_add(&c, T, 1, (float)NAN, why, sizeof(why)), -EINVAL);
    ck_assert_str_eq(why, "the intermediate h of batch 0 holds a value that is not finite");
    c.batches = 1;
    ck_assert_int_eq(mf_calibration_factors(&c, nvfp4(), 0, factors, why, sizeof(why)), -EINVAL);
    free(b);
}

int main(void)
{
    return mf_check_main(NULL);
}
