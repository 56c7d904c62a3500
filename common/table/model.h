/* MoE models: the layer that a model has, and the layer that a kernel of one rank sees of it.
 *
 * Models come from the shipped list (common/table/models.csv, built in, each with the address of its public config.json) or from
 * somebody's config.json in the form of Hugging Face's transformers. A model's layer is that of one rank with all experts and
 * no shared one among them; mf_model_layer() splits it: tensor parallelism divides inter_dim, expert parallelism the experts,
 * and each fused shared expert adds one expert and one route, as AITER's callers do it: (256, 8) becomes (257, 9). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/status.h"

#define MF_MODEL_NAME_MAX   96
#define MF_MODEL_SOURCE_MAX 256

struct mf_model {
    char name[MF_MODEL_NAME_MAX];
    char source[MF_MODEL_SOURCE_MAX]; /* where its numbers are from: an address, or a file's path */
    /* Token count 1; fp8 is e4m3fn, which a rank of gfx942 sees as e4m3fnuz. */
    struct mf_shape layer;
    int32_t shared;            /* shared experts of the routed ones' size, which can be fused in with them */
    int64_t context;           /* tokens; 0: not said */
    char quant[MF_REASON_MAX]; /* why its quantisation could not be told, so layer has none; "": it could */
};

/* The shipped models in the order of their file, on the heap. */
int mf_model_list(struct mf_model **ret, size_t *ret_n);
/* Reads the text of a list: common/table/models.csv's columns, by name. -EBADMSG with the line and the sentence in why. */
int mf_model_list_read(const char *text, size_t len, struct mf_model **ret, size_t *ret_n,
                       char why[MF_REASON_MAX]);
/* The shipped model of that name, case apart; or that of its place on the hub ("deepseek-ai/DeepSeek-V3"). -ENOENT. */
int mf_model_find(const char *name, struct mf_model *ret);
/* Reads a config.json; name and source are what the caller calls it. -EBADMSG with the sentence in why, which names the
 * member. A quantisation that is not understood is no failure: see `quant`. */
int mf_model_config_read(const char *text, size_t len, const char *name, struct mf_model *ret,
                         char why[MF_REASON_MAX]);

struct mf_model_split {
    int32_t tp, ep;       /* ranks, 1 for none */
    int32_t fused_shared; /* shared experts that are computed as routed ones */
    const char *gfx;      /* of the rank's device, which says what fp8 is; NULL: e4m3fn */
};
/* The layer of the first rank. -EINVAL with the sentence in why: a division with a rest, more shared experts than the model has. */
int mf_model_layer(const struct mf_model *model, const struct mf_model_split *split, struct mf_shape *ret,
                   char why[MF_REASON_MAX]);
