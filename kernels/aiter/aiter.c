#include "kernels/aiter/aiter.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/aiter/aiter_private.h"

/* The generators, in the order in which AITER's tuner runs them. */
static const mf_aiter_generator generators[] = {
    mf_aiter_asm_stage1, mf_aiter_ck,          mf_aiter_cktile,  mf_aiter_flydsl,
    mf_aiter_opus,       mf_aiter_flydsl_int4, mf_aiter_asm_one, mf_aiter_mxmoe,
};

int mf_aiter_enumerate(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    const struct mf_shape *s = layer->shape;
    char form[MF_SHAPE_FORM_MAX] = "";
    (void)mf_shape_get(s, MF_SHAPE_FORM, form, sizeof(form));
    if (form[0] || !mf_aiter_act(s->act_type))
        return sink->no(sink, "aiter", "*", "form",
                        "AITER's keys cannot express form '%s' with activation %s", form,
                        mf_act_name(s->act_type));
    if (!s->use_g1u1)
        return sink->no(sink, "aiter", "*", "use_g1u1",
                        "use_g1u1 is 0; AITER's tuner has kernels for fused gate and up only");
    if (s->q_type == MF_QTYPE_PER_1X32 && strcmp(layer->gfx, "gfx950") != 0)
        return sink->no(sink, "aiter", "*", "gfx",
                        "%s requires gfx950; %s has no matrix instruction with a scale per 32 elements",
                        mf_qtype_name(s->q_type), layer->gfx);
    if (mf_aiter_is_fp8(s->q_dtype_a) &&
        (s->q_dtype_a == MF_DTYPE_FP8_E4M3FNUZ) != (strcmp(layer->gfx, "gfx942") == 0))
        return sink->no(sink, "aiter", "*", "dtype", "fp8 on %s is %s; the layer has %s", layer->gfx,
                        strcmp(layer->gfx, "gfx942") == 0 ? "torch.float8_e4m3fnuz" : "torch.float8_e4m3fn",
                        mf_dtype_name(s->q_dtype_a));
    for (size_t i = 0; i < MF_ARRAY_LEN(generators); i++) {
        int r = generators[i](layer, sink);
        if (r < 0)
            return r;
    }
    return 0;
}

int mf_aiter_emit(struct mf_aiter_sink *sink, struct mf_aiter_kernel k, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(k.name, sizeof(k.name), format, args);
    va_end(args);
    return n < 0 || (size_t)n >= sizeof(k.name) ? -ENAMETOOLONG : sink->kernel(sink, &k);
}

const char *mf_aiter_act(enum mf_act act)
{
    static const char *const words[MF_ACT_N_] = {
        [MF_ACT_SILU] = "silu",     [MF_ACT_GELU] = "gelu", [MF_ACT_SWIGLU] = "swiglu",
        [MF_ACT_SITUV2] = "situv2", [MF_ACT_NO] = "no",
    };
    return words[act];
}

/* clang-format off */
static const char *const host_steps[MF_AITER_HOST_N_] = {
    [MF_AITER_HOST_SORT]   = "aiter_moe_sorting",
    [MF_AITER_HOST_QUANT1] = "aiter_quant_x",
    [MF_AITER_HOST_QUANT2] = "aiter_quant_h",
    [MF_AITER_HOST_ZERO]   = "aiter_zero_moe_buf",
};
/* clang-format on */

void mf_aiter_host_step(enum mf_aiter_host host, int32_t block_m, char ret[MF_STEP_NAME_MAX])
{
    mf_format(ret, MF_STEP_NAME_MAX, block_m > 0 ? "%s_m%d" : "%s", host_steps[host], block_m);
}

/* Checks the same as asm_moe_2stage.cu: the tile width of a stage 1 kernel must divide inter_dim, and scales
 * must be fp32, per token or per 1x128. */
static bool asm_refuses(const struct mf_shape *shape, const char *name, char *why, size_t cap)
{
    int tile_m, tile_n;
    const char *tile = strstr(name, "fmoe_stage1_") ? strstr(name, "_g1u1_") : NULL;
    if (!tile || sscanf(tile, "_g1u1_%dx%d", &tile_m, &tile_n) != 2 || tile_n < 1)
        return false;
    if (shape->inter_dim % tile_n != 0)
        mf_format(why, cap, "AITER's launcher fails: inter_dim %d is not a multiple of the tile width %d",
                  shape->inter_dim, tile_n);
    else if (shape->q_type == MF_QTYPE_PER_1X32)
        mf_format(why, cap, "AITER's launcher fails: the kernel needs fp32 scales per token, not %s",
                  mf_qtype_name(shape->q_type));
    else
        return false;
    return true;
}

bool mf_aiter_launch_refuses(const struct mf_shape *shape, const char *name, char *why, size_t cap)
{
    int stage, threads, m, n, k;
    if (sscanf(name, "moe_ck2stages_gemm%d_%dx%dx%dx%d_", &stage, &threads, &m, &n, &k) == 5)
        return (stage == 1 || stage == 2) && n > 0 && k > 0 &&
               mf_aiter_ck_tile_refused(shape, stage, n, k, why, cap);
    return asm_refuses(shape, name, why, cap);
}
