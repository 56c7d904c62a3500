/* Names of the configuration files that vLLM and SGLang look up for a layer:
 *
 *   vLLM    E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json
 *   SGLang  configs/triton_3_6_0/E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,
 *           block_shape=[128, 128].json (on one line)
 *
 * E is the number of local experts and N the intermediate size of one rank (the last dimension of w2), so a
 * name belongs to one model with one TP and EP, and to no hidden size, topk or activation. Rules of vLLM
 * 0.33.0 (fused_moe/fused_moe.py: get_config_file_name, fused_moe/config.py: _get_config_dtype_str,
 * utils/platform_utils.py: get_device_name_as_file_name) and SGLang 0.5.23 (moe_runner/triton_utils/
 * fused_moe_triton_config.py). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"

/* clang-format off */
#define MF_FRAMEWORK_MAP(X, P) \
    X(P, VLLM, "vllm")         \
    X(P, SGLANG, "sglang")
/* clang-format on */
MF_NAMES_DECLARE(mf_framework, MF_FRAMEWORK_, MF_FRAMEWORK_MAP);

/* Returns "vLLM" or "SGLang". */
const char *mf_framework_title(enum mf_framework framework);
/* Returns the environment variable that names the folder of the files. */
const char *mf_framework_variable(enum mf_framework framework);

#define MF_TRITON_DEVICE_MAX   128
#define MF_TRITON_DTYPE_MAX    32
#define MF_TRITON_NAME_MAX     320
#define MF_TRITON_VERSION_MAX  32
#define MF_TRITON_SELECTOR_MAX 64

struct mf_triton_key {
    int32_t expert, inter_dim;          /* E and N */
    char device[MF_TRITON_DEVICE_MAX];  /* as in the name: NVIDIA_H200 */
    char dtype[MF_TRITON_DTYPE_MAX];    /* fp8_w8a8; "" for bf16 and fp16 weights */
    int32_t block_n, block_k;           /* block_shape; 0: none */
    bool per_channel;                   /* SGLang: ,per_channel_quant=True */
    bool down;                          /* SGLang: _down, the second GEMM */
    char other[MF_TRITON_SELECTOR_MAX]; /* any other selector, such as backend=flydsl; "" for none */
};

/* Writes a device's name as the framework writes it into file names. */
void mf_triton_device(enum mf_framework framework, const char *model, char buf[MF_TRITON_DEVICE_MAX]);
/* Computes the key that the framework looks up for a layer on a device. The token count is ignored. -ENOTSUP,
 * with `why`: the framework's Triton kernels do not compute the layer's quantisation. */
int mf_triton_key(enum mf_framework framework, const struct mf_shape *layer, const char *model,
                  struct mf_triton_key *ret, char why[MF_REASON_MAX]);
/* Prints the file's name without a folder. */
void mf_triton_key_print(enum mf_framework framework, const struct mf_triton_key *key,
                         char buf[MF_TRITON_NAME_MAX]);
/* Prints the file's name, and returns true if `path` ends with this name. False: the name is spelled in
 * another way, such as "[128, 128]" in vLLM, so the framework never reads the file. */
bool mf_triton_key_names(enum mf_framework framework, const struct mf_triton_key *key, const char *path,
                         char name[MF_TRITON_NAME_MAX]);
/* Prints the file's path below the folder that the environment variable names. version: of Triton, "3.6.0";
 * only SGLang's path contains it. */
void mf_triton_key_path(enum mf_framework framework, const struct mf_triton_key *key, const char *version,
                        char buf[MF_TRITON_NAME_MAX]);
/* Parses a file's name, after its last slash, in either framework's spelling. -EINVAL: not such a name. */
int mf_triton_key_parse(const char *path, struct mf_triton_key *ret);
/* clang-format off */
#define MF_TRITON_PART_MAP(X, P)           \
    X(P, E, "E")                           \
    X(P, N, "N")                           \
    X(P, DEVICE, "device_name")            \
    X(P, DTYPE, "dtype")                   \
    X(P, BLOCK, "block_shape")             \
    X(P, CHANNEL, "per_channel_quant")     \
    X(P, OTHER, "selector")                \
    X(P, DOWN, "_down")
/* clang-format on */
MF_NAMES_DECLARE(mf_triton_part, MF_TRITON_PART_, MF_TRITON_PART_MAP);

/* Prints one part of a key. */
void mf_triton_key_part(const struct mf_triton_key *key, enum mf_triton_part part,
                        char buf[MF_TRITON_DEVICE_MAX]);
/* Returns a mask of the parts in which two keys differ; 0: the keys are equal. */
unsigned mf_triton_key_differences(const struct mf_triton_key *a, const struct mf_triton_key *b);

/* True for a Triton version such as "3.6.0". */
bool mf_triton_version_ok(const char *text);
/* Finds "triton 3.6.0", "triton=3.6.0" or "triton3.6.0" in a text of a provenance. -ENOENT: none. */
int mf_triton_version_find(const char *text, char buf[MF_TRITON_VERSION_MAX]);
