/* Internal functions shared by aiter.c and the generators. */
#pragma once

#include "kernels/aiter/aiter.h"

typedef int (*mf_aiter_generator)(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);

int mf_aiter_asm_stage1(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_asm_one(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_ck(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_cktile(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_flydsl(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_flydsl_int4(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_opus(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);

/* Sets the name of kernel k to the formatted text and emits k. */
int mf_aiter_emit(struct mf_aiter_sink *sink, struct mf_aiter_kernel k, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Does the same as mf_aiter_emit, but the name is the mangled symbol "_ZN5aiter<length><name>E". */
int mf_aiter_emit_mangled(struct mf_aiter_sink *sink, struct mf_aiter_kernel k, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* True if the dtype is e4m3fn or e4m3fnuz. */
static inline bool mf_aiter_is_fp8(enum mf_dtype dtype)
{
    return dtype == MF_DTYPE_FP8_E4M3FN || dtype == MF_DTYPE_FP8_E4M3FNUZ;
}

/* Returns the spelling of an activation in kernel names, e.g. "silu", or NULL if AITER does not support it.
 */
const char *mf_aiter_act(enum mf_act act);
