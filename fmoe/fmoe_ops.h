/* Stand-alone operators of mixture-of-experts layers, part of libfmoe: sorting, permuting, routing,
 * quantising and reordering, each with the contract of the project that defined it. None of them needs a
 * tuned table.
 *
 *   fmoe_ops_open     opens a device; on a GPU, compiles and loads all operators
 *   fmoe_op_…         one operator: synchronous on the CPU, asynchronous in `stream` on a GPU
 *
 * A call on a GPU allocates nothing, does not wait, and can be captured in a graph. All pointers are device
 * pointers. The workspace belongs to the call until it has ended. On the CPU, calls of a process run one at a
 * time; a concurrent call fails with -EBUSY. On a GPU several threads may use a handle at once.
 *
 * Ids are int32 or int64 (`ids_type`). On a GPU at most 1,024 experts can be sorted or routed to, and values
 * in device memory are not checked: a route whose id is out of range gets no row, as on the CPU. Functions
 * return 0 or a negative errno and write a message to `error`, which may be NULL: -EINVAL for arguments that
 * no device supports, -ENOTSUP for arguments that this device does not support. 0 tokens are valid. Functions
 * that return a number of bytes or rows return 0 for sizes that are out of range. */
#ifndef FMOE_OPS_H
#define FMOE_OPS_H

#include "fmoe.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct fmoe_ops;

/* device: as in fmoe_open. -ENOTSUP: an operator fails to compile or to load. */
int fmoe_ops_open(const char *device, struct fmoe_error *error, struct fmoe_ops **ret);
/* Waits for the device. o may be NULL. */
void fmoe_ops_close(struct fmoe_ops *o);

struct fmoe_op_routes {
    const void *ids;        /* [tokens, topk] */
    int32_t ids_type, topk; /* ids_type: FMOE_INT32 or FMOE_INT64 */
    int64_t tokens;
    int32_t experts; /* number of experts of all ranks: valid ids are in [0, experts) */
    int32_t unused;
};
/* Bytes of workspace for an operator that sorts these routes. A multiple of 64; 64-byte aligned memory. */
size_t fmoe_op_sort_workspace(const struct fmoe_ops *o, const struct fmoe_op_routes *routes);

/* ---- sorting ---- */

/* moe_align_block_size (vllm-project/vllm, vllm/model_executor/layers/fused_moe/moe_align_block_size.py).
 * Sorts routes into blocks of one expert. Within an expert, routes stay in their original order. */
struct fmoe_op_align {
    struct fmoe_op_routes routes;
    int32_t block, ignore_remote;
    /* [experts]: local number of each expert or -1; NULL: all experts are local. With ignore_remote, routes
     * of remote experts are dropped; without it, they get rows in blocks of expert -1. */
    const int32_t *expert_map;
    int32_t *sorted_ids; /* [rows]: flat index of a route; tokens * topk in padding and tail */
    int64_t rows;        /* at least fmoe_op_align_rows() */
    int32_t *expert_ids; /* [ceil(rows / block)]: expert of each block; -1 in the tail */
    int32_t *num_post_pad;
    int32_t *scatter_idx; /* [tokens, topk] or NULL: flat index of each route that has a row, else -1 */
    void *workspace, *stream;
};
/* vLLM's number of rows; whole_blocks (pad_sorted_ids) rounds it up to whole blocks. */
int64_t fmoe_op_align_rows(int64_t routes, int32_t experts, int32_t block, int whole_blocks);
int fmoe_op_align(struct fmoe_ops *o, const struct fmoe_op_align *a, struct fmoe_error *error);

/* moe_sorting (ROCm/aiter, aiter/fused_moe.py). Packed ids slot << 24 | token, with the routes' weights.
 * topk is at most 255 and tokens below 2^24. */
struct fmoe_op_moe_sort {
    struct fmoe_op_routes routes;
    const float *weights; /* [tokens, topk] */
    int32_t block, unused;
    const int32_t *expert_mask;  /* [experts]: 1 local, 0 remote; NULL: all local */
    const int32_t *local_tokens; /* [1]: rows of ids in use; NULL: all */
    int32_t *sorted_ids;         /* [rows]; topk << 24 | tokens in padding */
    float *sorted_weights;       /* [rows]; 0 in padding */
    int32_t *expert_ids;         /* [ceil(rows / block)]: local number of each block's expert */
    int32_t *num_valid;          /* [2]: rows in use; tokens in use */
    void *moe_buf;               /* optional: memory that the call zeroes, a multiple of 16 bytes */
    size_t moe_buf_bytes;
    void *workspace, *stream;
};
/* tokens * topk + experts * block - topk, which must be below 2^31. Only rows in use are written. */
int64_t fmoe_op_moe_sort_rows(const struct fmoe_op_routes *routes, int32_t block);
int fmoe_op_moe_sort(struct fmoe_ops *o, const struct fmoe_op_moe_sort *s, struct fmoe_error *error);

/* ---- permuting ---- */

/* Rows of a tensor; on a GPU `from` and `to` are 16-byte aligned if bytes is a multiple of 16, 4-byte aligned
 * if it is a multiple of 4. */
struct fmoe_op_rows {
    const void *from;
    void *to;
    size_t bytes; /* per row */
};

/* moe_permute (vllm-project/vllm, csrc/moe/moe_permute_unpermute_op.cu): copies tokens into the order of
 * their local experts, with the scales of quantised tokens as second rows. */
struct fmoe_op_permute {
    struct fmoe_op_routes routes;
    const int32_t
        *expert_map; /* [experts]: position of each local expert, -1 for remote ones; NULL: all local */
    int32_t n_local, n_rows;     /* local experts; members of `rows` in use */
    struct fmoe_op_rows rows[2]; /* `to` has tokens * topk rows */
    int64_t *first_token_offset; /* [n_local + 1]: first row of each expert; last: rows in use */
    int32_t *inv_permuted_idx;   /* [tokens, topk]: row of each route; tokens * topk without a row */
    int32_t *permuted_idx; /* [tokens * topk]: flat index of each row's route; tokens * topk in the tail */
    void *workspace, *stream;
};
int fmoe_op_permute(struct fmoe_ops *o, const struct fmoe_op_permute *p, struct fmoe_error *error);

/* MoeTokenPermuteWithEP (CANN, aclnnMoeTokenPermuteWithEp). sorted_indices is the inverse of the stable sort
 * of all ids. Rows [first, last) of the sorted order are written; row `first` is row 0 of rows.to. With
 * padded_mode, ids are the token of each row ([topk = 1]), tokens is their number, and experts the number of
 * input rows, which has no limit; on a GPU, all ids must be below it. Without probs, out_probs is not
 * written. */
struct fmoe_op_permute_ep {
    struct fmoe_op_routes routes;
    int64_t first, last;
    int32_t padded_mode, unused;
    struct fmoe_op_rows rows;
    const float *probs; /* [tokens, topk] or NULL */
    float *out_probs;   /* [last - first] */
    int32_t *sorted_indices;
    void *workspace, *stream;
};
int fmoe_op_permute_ep(struct fmoe_ops *o, const struct fmoe_op_permute_ep *p, struct fmoe_error *error);

/* permute by a routing map (Megatron-Core, megatron/core/transformer/moe/moe_utils.py). Rows are grouped by
 * expert. num_out_tokens: maximum number of rows before padding, -1: no limit. drop_and_pad: each expert has
 * num_out_tokens / experts rows, its first routed tokens and then tokens that are not routed to it. align:
 * rows of zeros are added until each expert's number of rows is a multiple of it. */
struct fmoe_op_permute_map {
    const void *routing_map; /* [tokens, experts], one byte each */
    const float *probs;      /* [tokens, experts] or NULL */
    int64_t tokens;
    int32_t experts, align, drop_and_pad, unused;
    int64_t num_out_tokens;
    struct fmoe_op_rows rows; /* `to` has max_rows rows */
    int64_t max_rows;         /* the caller's bound; the map must not have more rows */
    int32_t *row_of;          /* [tokens, experts]: row of each route, -1 without a row */
    int32_t *token_of; /* [max_rows]: token of each row, -1 for zeros; rows beyond the map: unchanged */
    float *out_probs;  /* [max_rows] or NULL */
    int64_t *per_expert, *pad_offsets; /* [experts]: number of rows; shift that padding caused */
    void *workspace, *stream;
};
size_t fmoe_op_map_workspace(const struct fmoe_ops *o, int64_t tokens, int32_t experts);
int fmoe_op_permute_map(struct fmoe_ops *o, const struct fmoe_op_permute_map *p, struct fmoe_error *error);

/* Adds the rows of each token: to[t] = sum over j of probs[t, j] * from[row_of[t, j] - first], for the rows
 * in [first, last), in fp32 and in the order of j, rounded once to bf16. The inverse of every permutation
 * above: row_of is inv_permuted_idx, sorted_indices, or row_of of a routing map (topk: experts). */
struct fmoe_op_unpermute {
    const int32_t *row_of; /* [tokens, topk] */
    const float *probs;    /* [tokens, topk]; NULL: all 1 */
    int64_t tokens, first, last;
    int32_t topk, width;
    const void *from; /* bf16 [last - first, width] */
    void *to;         /* bf16 [tokens, width] */
    void *stream;
};
int fmoe_op_unpermute(struct fmoe_ops *o, const struct fmoe_op_unpermute *u, struct fmoe_error *error);

/* MoeTokenUnpermuteWithEP in padded mode: row i of `from` is added to token indices[i], in ascending order of
 * i. On a GPU, rows of a token outside [0, tokens) are ignored. */
struct fmoe_op_unpermute_padded {
    const int32_t *indices; /* [rows] */
    int64_t rows, tokens;
    int32_t width, unused;
    const void *from; /* bf16 [rows, width] */
    void *to;         /* bf16 [tokens, width] */
    void *workspace;  /* fmoe_op_padded_workspace() bytes */
    void *stream;
};
size_t fmoe_op_padded_workspace(const struct fmoe_ops *o, int64_t rows, int64_t tokens, int32_t width);
int fmoe_op_unpermute_padded(struct fmoe_ops *o, const struct fmoe_op_unpermute_padded *u,
                             struct fmoe_error *error);

/* ---- routing ---- */

enum fmoe_score { FMOE_SOFTMAX = 0, FMOE_SIGMOID, FMOE_SQRT_SOFTPLUS };

/* Selects the topk experts with the largest score + bias; the bias affects only the selection. Among equal
 * values the lower expert is selected; ids are in order of falling score. With groups, only the experts of
 * the groups_kept best groups compete; a group's score is the sum of its two largest values. With
 * masked_to_zero the others compete with value 0. renormalised: weights are divided by their sum + sum_floor.
 * All weights are multiplied by `scale`. */
struct fmoe_op_route {
    const void *logits;  /* [tokens, experts] */
    int32_t logits_type; /* FMOE_FLOAT32 or FMOE_BFLOAT16 */
    int32_t ids_type;
    int64_t tokens;
    int32_t experts, topk;
    int32_t score; /* enum fmoe_score */
    int32_t renormalised, groups, groups_kept, masked_to_zero;
    float scale, sum_floor;
    const float *bias; /* [experts] or NULL */
    /* [tokens, topk]: given experts, instead of a selection; or NULL. For an expert outside 0 to experts - 1,
     * the call fails with -EINVAL on the CPU; on a GPU the route gets weight 0. */
    const int32_t *hash;
    void *ids;      /* [tokens, topk] */
    float *weights; /* [tokens, topk] */
    void *stream;
};
int fmoe_op_route(struct fmoe_ops *o, const struct fmoe_op_route *r, struct fmoe_error *error);

/* ---- formats ---- */

/* Sizes of a quantised matrix [rows, cols]. format: "fp8fn_tensor", "fp8fn_token", "fp8fn_128" (1x128),
 * "fp8fn_128x128", the same with fp8fnuz and int8, "mxfp8", "mxfp4", "nvfp4", "int4_32", "int4_channel". */
struct fmoe_op_quantised {
    int64_t row_bytes, scale_rows, scale_cols;
    int32_t scale_bytes; /* 4: float; 2: bf16; 1: e8m0, or e4m3 with nvfp4 */
    int32_t has_factor;  /* 1: needs one factor per matrix (nvfp4) */
    float factor_max;    /* the factor of a matrix is factor_max / amax, or 1 if amax is 0 */
    int32_t unused;
};
int fmoe_op_quantised_sizes(const char *format, int64_t rows, int64_t cols, struct fmoe_op_quantised *ret,
                            struct fmoe_error *error);
struct fmoe_op_quantise {
    const char *format;
    const void *x; /* bf16 [matrices, rows, cols]; cols is a multiple of 8 */
    int64_t matrices, rows;
    int32_t cols, unused;
    const float *factor; /* [matrices], if the format has one */
    void *q;             /* [matrices, rows, row_bytes] */
    void *scale;         /* [matrices, scale_rows, scale_cols] */
    void *workspace;     /* FMOE_OP_AMAX_BYTES per matrix, for formats with one scale per matrix */
    void *stream;
};
#define FMOE_OP_AMAX_BYTES 512
int fmoe_op_quantise(struct fmoe_ops *o, const struct fmoe_op_quantise *q, struct fmoe_error *error);

/* Reorders weights or scales. order: "16x16", "a16w4", "a16w4_gu", "a16w4_scale", "e8m0", "e8m0_1250",
 * "32_4_4", "8_4" (kernels/ops/shuffle.h describes them). */
struct fmoe_op_shuffle {
    const char *order;
    const void *from;
    void *to;
    int64_t matrices, rows, cols; /* at most 2^20 matrices; cols counts elements of one or two bytes */
    int32_t element_bytes, undo;  /* undo: from the order back to row-major */
    void *stream;
};
/* Sets ret_elements to the number of elements of one reordered matrix. -EINVAL: the order does not support
 * the size. */
int fmoe_op_shuffled_elements(const char *order, int64_t rows, int64_t cols, int32_t element_bytes,
                              int64_t *ret_elements, struct fmoe_error *error);
int fmoe_op_shuffle(struct fmoe_ops *o, const struct fmoe_op_shuffle *s, struct fmoe_error *error);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
