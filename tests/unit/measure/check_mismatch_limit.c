/* The mismatch limit allows what a format itself causes: correct kernels pass in every format and at every
 * scale of the output, and wrong kernels do not. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"
#include "measure/verify/mismatch_share.h"
#include "measure/verify/verify.h"
#include "support/kernels/host_layer.h"

#include "support/mf_check.h"

enum { T = 8, H = 256, I = 128, E = 8 };

static const struct {
    enum mf_dtype a, w;
    enum mf_qtype q;
} formats[] = {
    {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TENSOR},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TENSOR},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_1X128},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X32},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32},
    {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16},
    {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16},
    {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_1X32},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN},
};
static const int32_t topks[] = {1, 2, 8};
/* factors of the routing weights, and with them of the output */
static const float scales[] = {1.0F / 64, 1.0F / 8, 1, 8, 64};
#define N_LAYERS ((int)(MF_ARRAY_LEN(formats) * MF_ARRAY_LEN(topks) * 2 * MF_ARRAY_LEN(scales)))

static void make_layer(int combo, struct host_layer *l)
{
    int format = combo % (int)MF_ARRAY_LEN(formats), rest = combo / (int)MF_ARRAY_LEN(formats);
    struct mf_shape s = {
        .token = T,
        .model_dim = H,
        .inter_dim = I,
        .expert = E,
        .topk = topks[rest % 3],
        .dtype = MF_DTYPE_BF16,
        .q_dtype_a = formats[format].a,
        .q_dtype_w = formats[format].w,
        .q_type = formats[format].q,
        .use_g1u1 = true,
        .doweight_stage1 = rest / 3 % 2,
    };
    host_layer_make(l, &s, "balanced", 5);
    mf_reference_release(&l->ref);
    float *weights = (float *)(uintptr_t)l->data.weights; /* allocated by host_layer_make, and writable */
    for (int64_t i = 0; i < T * s.topk; i++)
        weights[i] *= scales[rest / 6];
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
}

/* ---- kernels: correct ones and wrong ones, written for readability ---- */

struct kernel {
    const char *name;
    bool rounds_g;   /* rounds the output of gemm1 to bf16, as a separate activation kernel needs it */
    bool quantises;  /* quantises h; false: computes with h in bf16 */
    int32_t dropped; /* last values of h that gemm2 leaves out */
    int32_t skew;    /* each gate is multiplied with the up value this many columns to the right */
    int32_t shift;   /* gemm2 uses the weights of the expert with this distance */
};
static const struct kernel correct[] = {
    {.name = "fused"},
    {.name = "fused, quantised", .quantises = true},
    {.name = "separate activation", .rounds_g = true},
    {.name = "separate activation, quantised", .rounds_g = true, .quantises = true},
};
static const struct kernel wrong[] = {
    {.name = "drops a quarter of K", .quantises = true, .dropped = I / 4},
    {.name = "takes up from the next column", .quantises = true, .skew = 1},
    {.name = "uses the next expert", .quantises = true, .shift = 1},
};

static void compute_h(const struct host_layer *l, const struct kernel *k, int64_t slot, float *h)
{
    const struct mf_shape *s = &l->data.shape;
    const struct mf_tensor_spec a = mf_plain_h(s, 1);
    const float *g = l->ref.g + slot * 2 * I;
    char scratch[8 * I + 256];
    for (int i = 0; i < I; i++) {
        float gate = g[i], up = g[I + (i + k->skew) % I];
        if (k->rounds_g) {
            gate = mf_bf16_to_float(mf_bf16_from_float(gate));
            up = mf_bf16_to_float(mf_bf16_from_float(up));
        }
        double factor = s->doweight_stage1 ? (double)l->data.weights[slot] : 1;
        double value = mf_activate(s, (double)gate * factor, (double)up * factor);
        h[i] = mf_bf16_to_float(mf_bf16_from_float((float)value));
    }
    if (k->quantises)
        mf_reference_requantise(&l->ref, &a, h, I, scratch);
}

static void compute_row(const struct host_layer *l, const struct kernel *k, int64_t token, uint16_t *y)
{
    const struct mf_shape *s = &l->data.shape;
    float h[I], w[I], sum[H] = {0};
    for (int64_t slot = token * s->topk; slot < (token + 1) * s->topk; slot++) {
        int32_t expert = (l->data.ids[slot] + k->shift) % E;
        compute_h(l, k, slot, h);
        for (int n = 0; n < H; n++) {
            float z = 0;
            mf_reference_weight_row(&l->data, MF_TENSOR_W2, expert, n, w);
            for (int i = I - k->dropped - 1; i >= 0; i--)
                z += h[i] * w[i];
            z = mf_bf16_to_float(mf_bf16_from_float(z));
            sum[n] += s->doweight_stage1 ? z : l->data.weights[slot] * z;
        }
    }
    mf_bf16_from_floats(sum, H, y);
}

/* Runs the kernel and verifies its output. */
static int verify(const struct host_layer *l, const struct kernel *k, struct mf_verdict *verdict)
{
    struct mf_tensor_spec y;
    struct mf_guarded out;
    ck_assert_int_eq(mf_tensor_spec_parse("y/bf16/none/token", &y), 0);
    ck_assert_int_eq(mf_guarded_new(&y, &l->data.shape, NULL, &out), 0);
    for (int64_t t = 0; t < T; t++)
        compute_row(l, k, t, (uint16_t *)out.ref.part[0] + t * H);
    struct mf_verify_input v = {.data = &l->data,
                                .ref = &l->ref,
                                .out = &out,
                                .covers = mf_layer_ops(&l->data.shape),
                                .err_ratio = 0.1};
    int r = mf_verify(&v, verdict);
    mf_guarded_release(&out);
    return r;
}

MF_TEST(no_format_is_refused, .rows = N_LAYERS)
{
    struct host_layer l;
    struct mf_verdict verdict;
    make_layer(_i, &l);
    for (size_t i = 0; i < MF_ARRAY_LEN(correct); i++)
        ck_assert_msg(verify(&l, &correct[i], &verdict) == 0, "layer %d, %s: %s", _i, correct[i].name,
                      verdict.reason);
    for (size_t i = 0; i < MF_ARRAY_LEN(wrong); i++)
        ck_assert_msg(verify(&l, &wrong[i], &verdict) == 1, "layer %d, %s: passed with error %g", _i,
                      wrong[i].name, verdict.err);
    host_layer_release(&l);
}

/* Expected shares by closed forms: without the absolute part the ratio d/r is Cauchy distributed; without the
 * relative part, d alone is normal. */
static const struct {
    double error, rms, share, tolerance;
} shares[] = {
    {0, 1, 0, 0},
    {0.02, 0, 0, 0},
    {0.02, 1e-3, 0, 1e-12},
    {0.02, 1e6, 0.7048, 0.002}, /* 2/π · atan(0.02/0.01) */
    {0.005, 1e6, 0.2952, 0.002},
    {1, 0.01, 0.3135, 0.01}, /* erfc(1/√2) = 0.317, slightly less by the relative part */
    {1e6, 1, 1, 1e-3},
};

MF_TEST(share_of_normal_errors, .rows = MF_ARRAY_LEN(shares))
{
    double share = mf_mismatch_share(shares[_i].error, shares[_i].rms);
    ck_assert_msg(fabs(share - shares[_i].share) <= shares[_i].tolerance, "%g", share);
}

int main(void)
{
    return mf_check_main(NULL);
}
