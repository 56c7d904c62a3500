/* AITER's space of fused-MoE kernels: which of its kernels its tuner would try for a layer on a device class, by the
 * names that its production dispatches.
 *
 * One generator a kind of kernel, in the order of the tuner (ROCm/aiter, gemm_moe_tune.py at e4048607): the words of
 * its TUNE_ONLY, and two more where a name alone does not tell two candidates apart:
 *
 *     asm       prebuilt stage 1 and one-stage code objects (hsa/<gfx>/fmoe*: the manifests)
 *     ck        composable kernel two-stage (gemm_moe_ck2stages_common.py: the lists)
 *     cktile    CK-Tile A8W4; its stage 2 has the name of its stage 1, and is cktile2 here
 *     flydsl    FlyDSL for 1x32 (flydsl/moe_kernels.py: the registry)
 *     flydslv2  its "layout" pairs: stage 1 kernels of the same names on the other layout, stage 2 of their own
 *     opus      A8W4 for gfx950 (opus_moe_common.py: the instances); opusv2 the same in the layout of flydslv2
 *     flydsli4  bf16 activations, int4 weights
 *
 * What the tuner tries and its launcher then throws at is listed too, as it is tried and paid for there:
 * mf_aiter_launch_refuses says which. A generator that has nothing for a layer says why in words. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/step.h"

enum mf_aiter_flag {
    MF_AITER_FUSED = 1 << 0,    /* stage 1 writes h quantised */
    MF_AITER_V2 = 1 << 1,       /* h in the layout that only v2 kernels read */
    MF_AITER_ATOMIC = 1 << 2,   /* adds into a zeroed output; without it the kernel writes all of it */
    MF_AITER_XBF16 = 1 << 3,    /* takes the hidden states as they are and quantises them itself */
    MF_AITER_FLAT = 1 << 4,     /* takes the router's choice as it is: no sort before it */
    MF_AITER_PERTOKEN = 1 << 5, /* wants scales per token, whatever the layer has */
};

struct mf_aiter_kernel {
    char name[MF_STEP_NAME_MAX];
    const char *family; /* one of the words above */
    enum mf_stage stage;
    int32_t block_m; /* 0: no blocks */
    unsigned flags;  /* of enum mf_aiter_flag */
};

struct mf_aiter_layer {
    const char *gfx;
    const struct mf_shape *shape;
};

/* A negative return stops the enumeration and is passed up. */
struct mf_aiter_sink {
    int (*kernel)(struct mf_aiter_sink *s, const struct mf_aiter_kernel *k);
    int (*no)(struct mf_aiter_sink *s, const char *family, const char *kernel, const char *rule,
              const char *format, ...) __attribute__((format(printf, 5, 6)));
};

/* Every candidate, each (family, name) once. */
int mf_aiter_enumerate(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink);

/* Does AITER dispatch a kernel of this name? By its grammar, mangled lengths included; true also for those that its
 * tables hold and its tuner does not emit (mxmoe, the heuristic's cktile), and for the host steps around them
 * (mf_aiter_host_step). */
bool mf_aiter_name_parse(const char *name);

/* The data movement that AITER's fused_moe() does around its kernels, which no table names. */
enum mf_aiter_host {
    MF_AITER_HOST_SORT,   /* moe_sorting, which zeroes the output too */
    MF_AITER_HOST_QUANT1, /* of the hidden states */
    MF_AITER_HOST_QUANT2, /* of the intermediate */
    MF_AITER_HOST_ZERO,   /* of the output, where nothing is sorted */
    MF_AITER_HOST_N_
};
/* "aiter_moe_sorting_m32": block_m 0 for a step that has none. */
void mf_aiter_host_step(enum mf_aiter_host host, int32_t block_m, char ret[MF_STEP_NAME_MAX]);

/* Does AITER's launcher throw for that kernel on that shape? The sentence in why. */
bool mf_aiter_launch_refuses(const struct mf_shape *shape, const char *name, char *why, size_t cap);
