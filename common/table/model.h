/* MoE models: the shape of a model's MoE layer, and the shape that one rank computes.
 *
 * Models come from the built-in list (common/table/models.csv, each with the URL of its public config.json)
 * or from the files of a checkpoint. The layer of a model is the layer of a
 * single rank that holds all routed experts and no shared experts. mf_model_layer() splits the layer: tensor
 * parallelism divides inter_dim, expert parallelism divides the experts. Each fused shared expert adds one
 * expert and one route, as in AITER's callers: 256 experts and topk 8 become 257 experts and topk 9. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/status.h"

#define MF_MODEL_NAME_MAX   96
#define MF_MODEL_SOURCE_MAX 256

struct mf_model {
    char name[MF_MODEL_NAME_MAX];
    char hub[MF_MODEL_NAME_MAX];      /* path on the Hugging Face hub; "" for a checkpoint */
    char source[MF_MODEL_SOURCE_MAX]; /* origin of the numbers: a URL or a file path */
    /* Shape of the whole layer, with token count 1 and fp8 as e4m3fn. For gfx942, mf_model_layer() changes
     * e4m3fn to e4m3fnuz. */
    struct mf_shape layer;
    /* number of shared experts of the size of a routed expert, which can be fused with the routed experts */
    int32_t shared;
    int64_t context; /* in tokens; 0: unknown */
    /* reason why the quantisation is unknown (`layer` then has no quantisation set); "" if it is known */
    char quant_error[MF_REASON_MAX];
    /* file, member and value that gave the quantisation; "" for built-in models */
    char quant_source[MF_REASON_MAX];
    /* members that change the layer in a way that a shape cannot express; "" if there are none */
    char not_modelled[MF_REASON_MAX];
};

/* Files of a checkpoint that describe its MoE layers: config.json; modelopt's, AutoGPTQ's and AutoAWQ's files
 * for the quantisation; Mistral's config; and the list of tensors. */
/* clang-format off */
#define MF_CHECKPOINT_MAP(X, P)              \
    X(P, CONFIG, "config.json")              \
    X(P, HF_QUANT, "hf_quant_config.json")   \
    X(P, QUANTIZE, "quantize_config.json")   \
    X(P, QUANT, "quant_config.json")         \
    X(P, PARAMS, "params.json")              \
    X(P, INDEX, "model.safetensors.index.json")
/* clang-format on */
MF_NAMES_DECLARE(mf_checkpoint, MF_CHECKPOINT_, MF_CHECKPOINT_MAP);

#define MF_CHECKPOINT_FILE_MAX (32u << 20) /* maximum size of a file in bytes */

/* Text of each file; NULL: the checkpoint has no such file. */
struct mf_checkpoint_text {
    const char *text[MF_CHECKPOINT_N_];
    size_t len[MF_CHECKPOINT_N_];
};

/* Returns the built-in models in file order. The caller frees *ret. */
int mf_model_list(struct mf_model **ret, size_t *ret_n);
/* Parses a list of models. The columns are those of common/table/models.csv, in any order. -EBADMSG: the text
 * is invalid; `why` contains the line and the reason. */
int mf_model_list_read(const char *text, size_t len, struct mf_model **ret, size_t *ret_n,
                       char why[MF_REASON_MAX]);
/* Finds a built-in model by its name, its name on the hub, or its path on the hub ("deepseek-v3",
 * "DeepSeek-V3", "deepseek-ai/DeepSeek-V3"). Ignores case and any other organisation. -ENOENT: unknown. */
int mf_model_find(const char *name, struct mf_model *ret);
/* Returns the built-in model whose name is the most similar, or -ENOENT if none is similar. */
int mf_model_similar(const char *name, struct mf_model *ret);
/* Parses the files of a checkpoint; config.json or params.json is required. `name` becomes the model's name
 * and source. -EBADMSG: a file is invalid; `why` contains the file or the member, and the reason. An unknown
 * quantisation is not an error: see quant_error. */
int mf_model_read(const struct mf_checkpoint_text *files, const char *name, struct mf_model *ret,
                  char why[MF_REASON_MAX]);

struct mf_model_split {
    int32_t tp, ep;       /* number of ranks; 1: not split */
    int32_t fused_shared; /* shared experts computed as routed experts */
    const char *gfx;      /* architecture of the rank's device, which selects the fp8 type; NULL: e4m3fn */
};
/* Computes the layer of the first rank. -EINVAL: a size is not divisible by the number of ranks, or the model
 * has fewer shared experts than fused_shared; `why` contains the reason. */
int mf_model_layer(const struct mf_model *model, const struct mf_model_split *split, struct mf_shape *ret,
                   char why[MF_REASON_MAX]);
