/* Internal functions shared by aiter.c and the generators. */
#pragma once

#include "kernels/aiter/aiter.h"
#include "kernels/aiter/aiter_lists.h"

typedef int (*mf_aiter_generator)(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);

int mf_aiter_asm_stage1(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_asm_one(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_ck(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_cktile(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_flydsl(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_flydsl_int4(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_opus(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);
int mf_aiter_mxmoe(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);

/* The lists that a layer's generators use. */
static inline const struct mf_aiter_lists *mf_aiter_lists_of(const struct mf_aiter_layer *layer)
{
    return layer->lists ? layer->lists : mf_aiter_lists_builtin();
}

/* True for the block sizes that AITER's tuner tries. */
static inline bool mf_aiter_is_block_m(int32_t rows)
{
    return rows == 16 || rows == 32 || rows == 64 || rows == 128;
}

/* Sets the name of kernel k to the formatted text and emits k. */
int mf_aiter_emit(struct mf_aiter_sink *sink, struct mf_aiter_kernel k, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Emits FlyDSL's stage 2 kernels for the layout of v2 and mxmoe whose tiles have tile_m rows. k has the
 * family, block size and flags. */
int mf_aiter_emit_layouts(const struct mf_shape *s, struct mf_aiter_sink *sink,
                          const struct mf_aiter_kernel *k, int tile_m);

/* True, with the rule in why, if a tile of n columns and depth k does not divide the layer in stage 1 or 2.
 */
bool mf_aiter_ck_tile_refused(const struct mf_shape *s, int stage, int n, int k, char *why, size_t cap);

/* True if the dtype is e4m3fn or e4m3fnuz. */
static inline bool mf_aiter_is_fp8(enum mf_dtype dtype)
{
    return dtype == MF_DTYPE_FP8_E4M3FN || dtype == MF_DTYPE_FP8_E4M3FNUZ;
}

/* Returns the spelling of an activation in kernel names, e.g. "silu", or NULL if AITER does not support it.
 */
const char *mf_aiter_act(enum mf_act act);
