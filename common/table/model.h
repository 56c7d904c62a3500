/* MoE models: the shape of a model's MoE layer, and the shape that one rank computes.
 *
 * Models come from the built-in list (common/table/models.csv, each with the URL of its public config.json)
 * or from a config.json in the format of Hugging Face transformers. The layer of a model is the layer of a
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
    char source[MF_MODEL_SOURCE_MAX]; /* origin of the numbers: a URL or a file path */
    /* Shape of the whole layer, with token count 1 and fp8 as e4m3fn. For gfx942, mf_model_layer() changes
     * e4m3fn to e4m3fnuz. */
    struct mf_shape layer;
    /* number of shared experts of the size of a routed expert, which can be fused with the routed experts */
    int32_t shared;
    int64_t context; /* in tokens; 0: unknown */
    /* reason why the quantisation is unknown (`layer` then has no quantisation set); "" if it is known */
    char quant_error[MF_REASON_MAX];
};

/* Returns the built-in models in file order. The caller frees *ret. */
int mf_model_list(struct mf_model **ret, size_t *ret_n);
/* Parses a list of models. The columns are those of common/table/models.csv, in any order. -EBADMSG: the text
 * is invalid; `why` contains the line and the reason. */
int mf_model_list_read(const char *text, size_t len, struct mf_model **ret, size_t *ret_n,
                       char why[MF_REASON_MAX]);
/* Finds a built-in model by name (case-insensitive) or by its Hugging Face path ("deepseek-ai/DeepSeek-V3").
 * -ENOENT: unknown. */
int mf_model_find(const char *name, struct mf_model *ret);
/* Parses a config.json. `name` becomes the model's name and source. -EBADMSG: the config is invalid; `why`
 * contains the member and the reason. An unknown quantisation is not an error: see quant_error. */
int mf_model_config_read(const char *text, size_t len, const char *name, struct mf_model *ret,
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
