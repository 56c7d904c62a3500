#include "common/moe/production_key.h"

#include "common/base/text.h"

/* Below this token count, layers with swiglu or with interleaved gate/up rows get bf16 activations
 * (GPTOSS_SWIGLU_MXFP4_BF16_BOUND, AITER_BF16_FP8_MOE_BOUND). */
#define BF16_BELOW 256

static enum mf_dtype activations_of(const struct mf_shape *s, const char **ret_rule)
{
    bool interleaved = s->q_dtype_a == MF_DTYPE_FP8_E4M3FN || s->q_dtype_a == MF_DTYPE_FP8_E4M3FNUZ;
    *ret_rule = "int4 weights use bf16 activations";
    if (s->q_dtype_w == MF_DTYPE_INT4)
        return MF_DTYPE_BF16;
    *ret_rule = "fp8 weights with per_1x32 use fp8 activations";
    if (s->q_dtype_w != MF_DTYPE_FP4X2)
        return s->q_dtype_w;
    *ret_rule = "situv2 uses bf16 activations unless AITER_SITUV2_A8W4 or AITER_SITUV2_A4W4 is set";
    if (s->act_type == MF_ACT_SITUV2)
        return MF_DTYPE_BF16;
    *ret_rule = "below 256 tokens, layers with swiglu or interleaved gate/up rows use bf16 activations";
    if (s->token < BF16_BELOW &&
        (s->act_type == MF_ACT_SWIGLU || interleaved || s->q_dtype_a == MF_DTYPE_BF16))
        return MF_DTYPE_BF16;
    *ret_rule = "layers with separated gate/up rows use fp4 activations";
    return interleaved ? s->q_dtype_a : MF_DTYPE_FP4X2;
}

int mf_production_shape(const struct mf_shape *requested, struct mf_shape *ret, char *why, size_t why_cap)
{
    struct mf_shape key = *requested;
    const char *rule = "";
    if (requested->q_type == MF_QTYPE_PER_1X32)
        key.q_dtype_a = activations_of(requested, &rule);
    key.token = mf_token_bucket(requested->token);
    *ret = key;
    if (key.q_dtype_a != requested->q_dtype_a)
        mf_format(why, why_cap, "production looks up q_dtype_a %s instead of %s: %s",
                  mf_dtype_name(key.q_dtype_a), mf_dtype_name(requested->q_dtype_a), rule);
    else if (key.token != requested->token)
        mf_format(why, why_cap, "production looks up token %lld instead of %lld, because it pads to buckets",
                  (long long)key.token, (long long)requested->token);
    return !mf_shape_equal(&key, requested);
}

int mf_production_row(const struct mf_shape *row, struct mf_shape *ret, char *why, size_t why_cap)
{
    struct mf_shape call = *row;

    /* The rules change at bucket values only, so one token count represents all counts between two buckets */
    call.token = row->token / 2 + 1;
    if (row->token > 1 && mf_production_shape(&call, ret, NULL, 0) > 0 && mf_shape_equal(ret, row))
        return 0;
    return mf_production_shape(row, ret, why, why_cap);
}
