/* permute and unpermute by a routing map, as defined by Megatron-Core
 * (megatron/core/transformer/moe/moe_utils.py) and TransformerEngine
 * (transformer_engine/pytorch/permutation.py).
 *
 * Rows are grouped by expert, tokens ascending within an expert. The number of rows depends on:
 *   num_out_tokens   maximum number of rows before padding; -1: no limit
 *   drop_and_pad     each expert has capacity = num_out_tokens / experts rows: its first routed tokens,
 *                    and if there are fewer, the first tokens not routed to it, with probability 0
 *   align            each expert's rows are rounded up with rows of zeros; pad_offsets is the resulting
 *                    shift of each expert's rows
 * mf_megatron_pad_map is the alternative to align: before the permutation it adds routes of tokens that are
 * not routed to the expert.
 *
 *   row_of       int32 [tokens, experts]  row of each routed token; -1 if not routed, dropped or padding
 *   token_of     int32 [rows]             token of each row; -1 for rows of zeros ("sorted_indices")
 *   probs        float [rows]             probability of each row; 0 in padding
 *   per_expert   int64 [experts]          rows, padding included
 *   pad_offsets  int64 [experts]
 *
 * Unpermute is mf_unpermute_rows() with row_of and topk = experts: it adds in fp32, experts ascending, in a
 * fixed order. row_of excludes padding, so the contents of padding rows do not matter. */
#pragma once

#include "kernels/ops/permute.h"

struct mf_megatron {
    const uint8_t *routing_map; /* [tokens, experts]; nonzero: routed */
    const float *probs;         /* [tokens, experts] or NULL */
    int64_t tokens;
    int32_t experts;
    int64_t num_out_tokens;
    bool drop_and_pad;
    int32_t align; /* 1: no rounding */
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
/* Permutes rows of one tensor by a map of `rows` rows; rows with token_of -1 become zeros. */
void mf_megatron_permute(const struct mf_megatron *m, const struct mf_megatron_map *map, int64_t rows,
                         const struct mf_row_copy *copy, bool stream, int threads);
/* Adds routes to the map until each expert's number of routes is a multiple of `multiple`. Adds the first
 * tokens that are not routed to the expert, as long as there are any. */
void mf_megatron_pad_map(uint8_t *routing_map, int64_t tokens, int32_t experts, int32_t multiple);

/* TransformerEngine's slot-major index map: map[j·tokens + t] = row of route (t, j), or -1 if the row is
 * num_out_tokens or above (-1: no limit). row_of is an inverse map, [tokens, topk]. */
void mf_te_index_map(const int32_t *row_of, int64_t tokens, int32_t topk, int64_t num_out_tokens,
                     int32_t *map);
