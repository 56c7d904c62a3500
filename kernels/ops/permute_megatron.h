/* permute and unpermute by a routing map, as Megatron-Core (megatron/core/transformer/moe/moe_utils.py) and
 * TransformerEngine (transformer_engine/pytorch/permutation.py) define them.
 *
 * Rows are grouped by expert, tokens ascending within one. What becomes of the number of rows:
 *   num_out_tokens   at most so many, counted before any padding; -1: all that are routed
 *   drop_and_pad     each expert has capacity = num_out_tokens / experts rows: its first routed tokens; where those are
 *                    fewer, the first tokens that are not routed to it follow, with probability 0
 *   align            each expert's rows are rounded up; rows of padding are zeros, and pad_offsets says by how much the
 *                    rows of an expert moved
 * pad_routing_map does the rounding before, with tokens that are not routed in place of zeros.
 *
 *   row_of       int32 [tokens, experts]  row of each routed token; -1 for all others, for drops, and for padding
 *   token_of     int32 [rows]             token of each row; -1 for rows of zeros ("sorted_indices")
 *   probs        float [rows]             its probability; 0 in padding
 *   per_expert   int64 [experts]          rows, padding included
 *   pad_offsets  int64 [experts]
 * Unpermute is mf_unpermute_rows() by row_of with topk = experts: experts ascending in fp32, one order always. Padding is
 * not in row_of, so that it adds exactly 0 whatever it holds. */
#pragma once

#include "kernels/ops/permute.h"

struct mf_megatron {
    const uint8_t *routing_map; /* [tokens, experts], 0 or not */
    const float *probs;         /* [tokens, experts] or NULL */
    int64_t tokens;
    int32_t experts;
    int64_t num_out_tokens;
    bool drop_and_pad;
    int32_t align; /* 1: none */
};

struct mf_megatron_map {
    int32_t *row_of, *token_of;
    float *probs; /* NULL: not asked for */
    int64_t *per_expert, *pad_offsets;
};

/* Rows that leave; -EINVAL with the sentence in *ret_why (static text). */
int64_t mf_megatron_rows(const struct mf_megatron *m, const char **ret_why);
/* -> rows, or as above. */
int64_t mf_megatron_map(const struct mf_megatron *m, const struct mf_megatron_map *out, const char **ret_why);
/* Rows of `bytes` each by a map of so many rows, zeros where token_of says so. */
void mf_megatron_permute(const struct mf_megatron *m, const struct mf_megatron_map *map, int64_t rows,
                         const struct mf_row_copy *copy, bool stream, int threads);
/* Adds routes to the map until every expert has a multiple of them: the first tokens that it lacks, as far
 * as there are any. */
void mf_megatron_pad_map(uint8_t *routing_map, int64_t tokens, int32_t experts, int32_t multiple);

/* TransformerEngine's index map, slot by slot: map[j·tokens + t] = row of route (t, j), -1 from num_out_tokens on
 * (which may be -1: none is dropped). row_of is an inverse map, [tokens, topk]. */
void mf_te_index_map(const int32_t *row_of, int64_t tokens, int32_t topk, int64_t num_out_tokens,
                     int32_t *map);
