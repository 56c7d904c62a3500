#include "common/moe/production_key.h"

#include "common/base/text.h"

/* Below this token count, layers with swiglu and separated gate/up rows get bf16 activations
 * (GPTOSS_SWIGLU_MXFP4_BF16_BOUND). */
#define SWIGLU_BF16_BELOW 256

#define RULE_MAX 160

static bool is_fp8(enum mf_dtype dtype)
{
    return dtype == MF_DTYPE_FP8_E4M3FN || dtype == MF_DTYPE_FP8_E4M3FNUZ;
}

static enum mf_dtype fp8_of(const struct mf_shape *s)
{
    return is_fp8(s->q_dtype_a) ? s->q_dtype_a : MF_DTYPE_FP8_E4M3FN;
}

static enum mf_dtype situv2_activations(const struct mf_shape *s, const struct mf_production_env *env,
                                        char rule[RULE_MAX])
{
    mf_format(rule, RULE_MAX,
              "situv2 uses bf16 activations unless AITER_SITUV2_A8W4 (now %d) or _A4W4 (now %d) is 1",
              env->situv2_a8w4, env->situv2_a4w4);
    return env->situv2_a8w4 ? fp8_of(s) : env->situv2_a4w4 ? MF_DTYPE_FP4X2 : MF_DTYPE_BF16;
}

static enum mf_dtype interleaved_activations(const struct mf_shape *s, const struct mf_production_env *env,
                                             char rule[RULE_MAX])
{
    mf_format(rule, RULE_MAX,
              "interleaved gate/up rows use bf16 activations below %lld tokens (AITER_BF16_FP8_MOE_BOUND)",
              (long long)env->bf16_fp8_bound);
    return s->token < env->bf16_fp8_bound ? MF_DTYPE_BF16 : fp8_of(s);
}

static enum mf_dtype activations_of(const struct mf_shape *s, const struct mf_production_env *env,
                                    char rule[RULE_MAX])
{
    mf_format(rule, RULE_MAX, "int4 weights use bf16 activations");
    if (s->q_dtype_w == MF_DTYPE_INT4)
        return MF_DTYPE_BF16;
    mf_format(rule, RULE_MAX, "fp8 weights with per_1x32 use fp8 activations");
    if (s->q_dtype_w != MF_DTYPE_FP4X2)
        return s->q_dtype_w;
    if (s->act_type == MF_ACT_SITUV2)
        return situv2_activations(s, env, rule);
    if (is_fp8(s->q_dtype_a) || s->gate_up == MF_GATE_UP_INTERLEAVED)
        return interleaved_activations(s, env, rule);
    mf_format(rule, RULE_MAX, "below %d tokens, layers with swiglu use bf16 activations", SWIGLU_BF16_BELOW);
    if (s->act_type == MF_ACT_SWIGLU && s->token < SWIGLU_BF16_BELOW)
        return MF_DTYPE_BF16;
    if (s->q_dtype_a == MF_DTYPE_BF16 && s->act_type != MF_ACT_SWIGLU && s->token < env->bf16_fp8_bound)
        return MF_DTYPE_BF16;
    mf_format(rule, RULE_MAX, "layers with separated gate/up rows use fp4 activations");
    return MF_DTYPE_FP4X2;
}

int mf_production_shape(const struct mf_shape *requested, const struct mf_production_env *env,
                        struct mf_shape *ret, char *why, size_t why_cap)
{
    const struct mf_production_env initial = MF_PRODUCTION_ENV_INITIAL;
    struct mf_shape key = *requested;
    char rule[RULE_MAX] = "";
    if (requested->q_type == MF_QTYPE_PER_1X32)
        key.q_dtype_a = activations_of(requested, env ? env : &initial, rule);
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

int mf_production_row(const struct mf_shape *row, const struct mf_production_env *env, struct mf_shape *ret,
                      char *why, size_t why_cap)
{
    struct mf_shape call = *row;

    /* Each rule has one bound, so the smallest and the largest token count represent all counts that
     * production pads to the row's. */
    call.token = row->token / 2 + 1;
    if (row->token > 1 && mf_production_shape(&call, env, ret, NULL, 0) > 0 && mf_shape_equal(ret, row))
        return 0;
    return mf_production_shape(row, env, ret, why, why_cap);
}

/* clang-format off */
static const struct {
    struct mf_production_env env;
    const char *name;
} settings[] = {
    {{.bf16_fp8_bound = 0}, "AITER_BF16_FP8_MOE_BOUND=0"},
    {{.bf16_fp8_bound = 256, .situv2_a8w4 = true}, "AITER_SITUV2_A8W4=1"},
    {{.bf16_fp8_bound = 256, .situv2_a4w4 = true}, "AITER_SITUV2_A4W4=1"},
};
/* clang-format on */

const char *mf_production_setting(const struct mf_shape *row)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        struct mf_shape key;
        if (mf_production_row(row, &settings[i].env, &key, NULL, 0) == 0)
            return settings[i].name;
    }
    return NULL;
}
