/* AITER's search space: the fused-MoE kernels that its tuner tries for a layer on a device class, under the
 * names that its dispatcher uses.
 *
 * There is one generator per kind of kernel. The order is that of the tuner (ROCm/aiter, gemm_moe_tune.py at
 * e4048607). Most family names are values of the tuner's option TUNE_ONLY. cktile2, flydslv2 and opusv2 are
 * added because two candidates of a family would otherwise have the same name:
 *
 *    asm       prebuilt stage 1 and one-stage code objects (the manifests in hsa/<gfx>/fmoe*)
 *    ck        composable kernel two-stage (the lists in gemm_moe_ck2stages_common.py)
 *    cktile    CK-Tile A8W4, stage 1
 *    cktile2   CK-Tile A8W4, stage 2, which has the same kernel names as stage 1
 *    flydsl    FlyDSL for 1x32 (the registry in flydsl/moe_kernels.py)
 *    flydslv2  FlyDSL's "layout" pairs: stage 1 has the kernel names of flydsl but another layout of h
 *    opus      A8W4 for gfx950 (the instances in opus_moe_common.py)
 *    opusv2    the kernels of opus with the h layout of flydslv2
 *    flydsli4  FlyDSL for bf16 activations and int4 weights
 *    mxmoe     FlyDSL for fp4 activations and weights, in pairs that share a layout of h
 *
 * Prebuilt kernels, instances of composable kernel and of Opus come from AITER's lists (aiter_lists.h), the
 * others from the rules of AITER's registries.
 *
 * Kernels that the tuner tries but AITER's launcher refuses are included, because the tuner spends time on
 * them; mf_aiter_launch_refuses identifies them. Kernels that AITER dispatches but its tuner does not try are
 * included too (MF_AITER_UNTRIED), because AITER's shipped tables have rows with them. A generator that has
 * no kernel for a layer reports the reason. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/step.h"

enum mf_aiter_flag {
    MF_AITER_FUSED = 1 << 0, /* stage 1 quantises h before writing it */
    MF_AITER_V2 = 1 << 1,    /* writes or reads h in a layout that only v2 kernels support */
    /* adds into a zeroed output; without this flag the kernel overwrites the output */
    MF_AITER_ATOMIC = 1 << 2,
    MF_AITER_XBF16 = 1 << 3,    /* reads bf16 hidden states and quantises them itself */
    MF_AITER_FLAT = 1 << 4,     /* reads the router's top-k directly, so that no sort is required */
    MF_AITER_PERTOKEN = 1 << 5, /* requires per-token scales, even if the layer has other scales */
    MF_AITER_MXMOE = 1 << 6,    /* as MF_AITER_V2, for the layout that only mxmoe kernels support */
    MF_AITER_UNTRIED = 1 << 7,  /* AITER dispatches the kernel by its name, but its tuner does not try it */
};

struct mf_aiter_kernel {
    char name[MF_STEP_NAME_MAX];
    const char *family; /* one of the families listed at the top of this file */
    enum mf_stage stage;
    int32_t block_m; /* 0: no expert blocks */
    /* factor of split-K, 0: none. The name then ends with "_sk" and the factor, as in AITER's tuner; tables
     * have the factor in a column of its own (mf_step_drop_ksplit) */
    int32_t ksplit;
    unsigned flags; /* bits of enum mf_aiter_flag */
};

struct mf_aiter_lists;

struct mf_aiter_layer {
    const char *gfx;
    const struct mf_shape *shape;
    const struct mf_aiter_lists *lists; /* NULL: the built-in lists (aiter_lists.h) */
};

/* Receives kernels and rejections. A negative result stops the enumeration and is returned. */
struct mf_aiter_sink {
    int (*kernel)(struct mf_aiter_sink *s, const struct mf_aiter_kernel *k);
    int (*no)(struct mf_aiter_sink *s, const char *family, const char *kernel, const char *rule,
              const char *format, ...) __attribute__((format(printf, 5, 6)));
};

/* Enumerates all candidates. Each pair of family and name occurs once. */
int mf_aiter_enumerate(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);

enum mf_aiter_known {
    MF_AITER_NO_KERNEL, /* AITER has no kernel of this name */
    MF_AITER_NEWER,     /* the name is like one of AITER's, but the lists do not have it */
    MF_AITER_KNOWN,
};
/* Looks up the name of a kernel in a table. Includes kernels that AITER dispatches but its tuner does not
 * try. lists may be NULL for the built-in lists. With the lists of the user's own AITER, prebuilt kernels and
 * instances that are not listed do not exist. Mangled names are compared as text, because some manifests have
 * names with a wrong length. */
enum mf_aiter_known mf_aiter_name_known(const struct mf_aiter_lists *lists, const char *name);
/* True for the names of AITER's steps: host steps (mf_aiter_host_step), and kernels, with the factor of
 * split-K at the end, that are known or of a newer AITER. */
bool mf_aiter_is_step(const char *name);

/* Steps in which AITER's fused_moe() moves data around its kernels. Tuned tables do not name these steps. */
enum mf_aiter_host {
    MF_AITER_HOST_SORT,   /* moe_sorting, which also zeroes the output */
    MF_AITER_HOST_QUANT1, /* quantises the hidden states */
    MF_AITER_HOST_QUANT2, /* quantises h */
    MF_AITER_HOST_ZERO,   /* zeroes the output if no sort runs */
    MF_AITER_HOST_N_
};
/* Writes the step name, e.g. "aiter_moe_sorting_m32". block_m 0: the step has no expert blocks. */
void mf_aiter_host_step(enum mf_aiter_host host, int32_t block_m, char ret[MF_STEP_NAME_MAX]);

/* True, with the reason in why, if AITER's launcher refuses the kernel for the shape. */
bool mf_aiter_launch_refuses(const struct mf_shape *shape, const char *name, char *why, size_t cap);
