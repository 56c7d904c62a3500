/* permute and unpermute by a routing map, as defined by Megatron-Core
 * (megatron/core/transformer/moe/moe_utils.py) and TransformerEngine
 * (transformer_engine/pytorch/permutation.py).
 *
 * Rows are grouped by expert; within an expert, tokens are in ascending order. The number of rows depends on:
 *   num_out_tokens   maximum number of rows before padding; -1: no limit
 *   drop_and_pad     each expert has num_out_tokens / experts rows: its first routed tokens and,
 *                    if these are too few, the first tokens not routed to it, with probability 0
 *   align            rows of zeros are added until each expert's number of rows is a multiple of align;
 *                    pad_offsets is the resulting shift of each expert's rows
 * mf_megatron_pad_map is an alternative to `align`. It is called before the permutation and routes more
 * tokens to an expert until its number of rows is a multiple of a given number.
 *
 *   row_of       int32 [tokens, experts]  row of each token; -1 if not routed, dropped or padding
 *   token_of     int32 [rows]             token of each row; -1 for rows of zeros ("sorted_indices")
 *   probs        float [rows]             probability of each row; 0 in padding
 *   per_expert   int64 [experts]          number of rows, including padding
 *   pad_offsets  int64 [experts]
 *
 * To unpermute, call mf_unpermute_rows() with row_of and topk = experts. It adds in fp32, in ascending order
 * of the experts. row_of contains no padding rows, so the contents of padding rows do not matter. */
#pragma once

#include "kernels/ops/permute.h"

struct mf_megatron {
    const uint8_t *routing_map; /* [tokens, experts]; nonzero if the token is routed to the expert */
    const float *probs;         /* [tokens, experts] or NULL */
    int64_t tokens;
    int32_t experts;
    int64_t num_out_tokens;
    bool drop_and_pad;
    int32_t align; /* 1: no alignment */
};

struct mf_megatron_map {
    int32_t *row_of, *token_of;
    float *probs; /* may be NULL */
    int64_t *per_expert, *pad_offsets;
};

/* Returns the number of output rows, or -EINVAL with the reason in *ret_why (static text). */
int64_t mf_megatron_rows(const struct mf_megatron *m, const char **ret_why);
/* Fills the map and returns the number of rows, or an error as mf_megatron_rows does. */
int64_t mf_megatron_map(const struct mf_megatron *m, const struct mf_megatron_map *out, const char **ret_why);
/* Permutes the rows of one tensor by a map that has `rows` rows. Rows with token_of -1 become zeros. */
void mf_megatron_permute(const struct mf_megatron *m, const struct mf_megatron_map *map, int64_t rows,
                         const struct mf_row_copy *copy, bool stream, int threads);
/* Adds routes to the map until each expert's number of routes is a multiple of `multiple`, or until all
 * tokens are routed to the expert. Adds the first tokens that are not routed to the expert. */
void mf_megatron_pad_map(uint8_t *routing_map, int64_t tokens, int32_t experts, int32_t multiple);

/* Computes TransformerEngine's slot-major index map. map[j·tokens + t] is the row of slot j of token t, or -1
 * if the row is num_out_tokens or above; num_out_tokens -1: no limit. row_of is an inverse map, [tokens,
 * topk]. */
void mf_te_index_map(const int32_t *row_of, int64_t tokens, int32_t topk, int64_t num_out_tokens,
                     int32_t *map);
