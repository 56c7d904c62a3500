#include "common/moe/production_key.h"

#include "common/base/text.h"

/* Below so many tokens swiglu, and a gate that is interleaved with up, are served with bf16 activations
 * (GPTOSS_SWIGLU_MXFP4_BF16_BOUND, AITER_BF16_FP8_MOE_BOUND). */
#define BF16_BELOW 256

static enum mf_dtype activations_of(const struct mf_shape *s, const char **ret_rule)
{
    bool interleaved = s->q_dtype_a == MF_DTYPE_FP8_E4M3FN || s->q_dtype_a == MF_DTYPE_FP8_E4M3FNUZ;
    *ret_rule = "int4 weights are served with bf16 activations";
    if (s->q_dtype_w == MF_DTYPE_INT4)
        return MF_DTYPE_BF16;
    *ret_rule = "fp8 weights with per_1x32 are served with fp8 activations";
    if (s->q_dtype_w != MF_DTYPE_FP4X2)
        return s->q_dtype_w;
    *ret_rule =
        "situv2 is served with bf16 activations, unless AITER_SITUV2_A8W4 or AITER_SITUV2_A4W4 is set";
    if (s->act_type == MF_ACT_SITUV2)
        return MF_DTYPE_BF16;
    *ret_rule =
        "below 256 tokens swiglu, and a gate that is interleaved with up, are served with bf16 activations";
    if (s->token < BF16_BELOW &&
        (s->act_type == MF_ACT_SWIGLU || interleaved || s->q_dtype_a == MF_DTYPE_BF16))
        return MF_DTYPE_BF16;
    *ret_rule = "a gate that is separated from up is served with fp4 activations";
    return interleaved ? s->q_dtype_a : MF_DTYPE_FP4X2;
}

int mf_production_shape(const struct mf_shape *asked, struct mf_shape *ret, char *why, size_t why_cap)
{
    struct mf_shape key = *asked;
    const char *rule = "";
    if (asked->q_type == MF_QTYPE_PER_1X32)
        key.q_dtype_a = activations_of(asked, &rule);
    key.token = mf_token_bucket(asked->token);
    *ret = key;
    if (key.q_dtype_a != asked->q_dtype_a)
        mf_format(why, why_cap, "production asks for q_dtype_a %s in place of %s: %s",
                  mf_dtype_name(key.q_dtype_a), mf_dtype_name(asked->q_dtype_a), rule);
    else if (key.token != asked->token)
        mf_format(why, why_cap, "production asks for token %lld in place of %lld, the bucket that it pads to",
                  (long long)key.token, (long long)asked->token);
    return !mf_shape_equal(&key, asked);
}

int mf_production_row(const struct mf_shape *row, struct mf_shape *ret, char *why, size_t why_cap)
{
    struct mf_shape call = *row;

    /* The rules change at a count that is a bucket, so the least that pads to one stands for all others */
    call.token = row->token / 2 + 1;
    if (row->token > 1 && mf_production_shape(&call, ret, NULL, 0) > 0 && mf_shape_equal(ret, row))
        return 0;
    return mf_production_shape(row, ret, why, why_cap);
}
