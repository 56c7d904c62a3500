/* Kernel argument structs of the stand-alone operators (fmoe/fmoe_ops.h), shared by host C and kernel C++.
 * Unlike the kernels of layers, these kernels take every size at run time, so that one code object serves all
 * shapes. Members have fixed-width types, and pointers come first. */
#pragma once

#ifdef MF_HIP_KERNEL
#    include "args.h"
#else
#    include "kernels/gpu/src/args.h"
#endif

#define MF_OP_BINS_MAX   1024  /* maximum number of experts of a sort */
#define MF_OP_SLICE_IDS  2048  /* ids that one block sorts; with more ids, several blocks share a sort */
#define MF_OP_SLICES_MAX 128   /* maximum blocks of a sort; with more ids, each block sorts more of them */
#define MF_OP_SORTERS    16    /* blocks that share the writing of a sort of one slice */
#define MF_OP_ZERO_BYTES 65536 /* bytes that one block zeroes */

/* A stable counting sort of routes into bins (experts, or their local numbers). Output pointers may be NULL.
 * With several slices, mf_op_sort_count writes `counts` and mf_op_sort reads them. */
struct mf_op_sort_args {
    const void *ids;       /* [token, topk], int32 or int64 */
    const mf_i32 *map;     /* [experts]: bin of each expert, or -1; NULL: the bin is the expert's number */
    const mf_i32 *mask;    /* [experts]: experts with a nonzero value have bins, in order; NULL: see map */
    const mf_i32 *names;   /* [bins]: value of block_experts for each bin; NULL: the bin */
    const float *weights;  /* [token, topk] */
    const mf_i32 *n_local; /* [1]: number of rows of ids in use; NULL: all */
    mf_i32 *counts;        /* [slices, bins] */
    mf_i32 *sorted_ids;    /* flat index of each row's route, or slot << 24 | token; `pad` in padding */
    float *sorted_weights;
    mf_i32 *block_experts; /* name of each block's bin; -1 in the tail, unless `packed` */
    mf_i32 *num_rows;      /* [1]: rows in use; [2] if `packed`: and the tokens in use */
    mf_i32 *row_of;        /* [token, topk]: row of each route, or `none` */
    mf_i32 *valid;         /* [token, topk]: flat index of each route that has a row, else -1 */
    long long *first_row;  /* [bins + 1]: first row of each bin, then the rows in use */
    void *zeroed;          /* memory to zero in the same launch; multiple of 16 bytes */
    long long zeroed_bytes;
    long long rows; /* size of sorted_ids: the tail is filled unless `packed` */
    mf_i32 token, topk;
    mf_i32 first, experts, bins; /* valid ids are in [first, first + experts) */
    mf_i32 block, pad, none;
    mf_i32 slices, wide, packed; /* wide: ids are int64; packed: AITER's format of sorted_ids */
    mf_i32 sorters;              /* blocks that sort: `slices`, or several that share the writing */
};

/* Rows to copy: `bytes` per row, moved in units of `unit` bytes (16, 4 or 1). */
struct mf_op_rows {
    const void *from;
    void *to;
    mf_i32 bytes, unit;
};

/* Copies each token's rows to their places in [first, last) of expert order. Row `first` is row 0 of `to`. */
struct mf_op_permute_args {
    struct mf_op_sort_args sort; /* mf_op_sort_permute sorts first and then uses its own result */
    const mf_i32 *row_of;        /* [token, topk] */
    struct mf_op_rows rows[2];
    const float *probs;         /* [token, topk] */
    float *out_probs;           /* [last - first] */
    mf_i32 token, topk, n_rows; /* n_rows: number of members of `rows` in use */
    mf_i32 first, last, unused;
};

/* to[i] = from[index[i]] for i < n, or zeros if index[i] is negative. With only_zeros, rows that have a
 * source are left alone. The first n_copied members of `index` are copied to `copy`. */
struct mf_op_gather_args {
    struct mf_op_rows rows;
    const void *index; /* int32, or int64 if `wide` */
    mf_i32 *copy;
    long long n, n_copied;
    mf_i32 wide, only_zeros;
};

/* to[t] = sum over j of probs[t, j] * from[row_of[t, j] - first], for the rows in [first, last). With
 * `starts`, the rows of token t are row_of[starts[t]] to row_of[starts[t + 1] - 1]; then no probs are given.
 */
struct mf_op_unpermute_args {
    const void *from; /* bf16 [last - first, width] */
    void *to;         /* bf16 [token, width] */
    const mf_i32 *row_of;
    const float *probs; /* [token, topk]; NULL: 1 */
    const long long *starts;
    mf_i32 token, topk, first, last;
    mf_i32 width, by_eight; /* by_eight: width is a multiple of 8, and rows are 16-byte aligned */
};

/* Rows of a routing map (Megatron): row_of and token_of as in kernels/ops/permute_megatron.h. */
struct mf_op_map_args {
    const void *routing_map; /* [token, experts] bytes */
    const float *probs;      /* [token, experts] */
    mf_i32 *counts;          /* [slices, experts] */
    mf_i32 *row_of;          /* [token, experts] */
    mf_i32 *token_of;        /* [rows] */
    float *out_probs;        /* [rows] */
    long long *per_expert;   /* [experts] */
    long long *pad_offsets;  /* [experts] */
    long long rows;
    mf_i32 token, experts, align, capacity; /* capacity: rows per expert with drop_and_pad, else 0 */
    mf_i32 limit;                           /* maximum rows before padding; -1: none */
    mf_i32 slices;
};

/* Selects topk experts per token by a rule of kernels/core/router.h. */
struct mf_op_route_args {
    const void *logits; /* [token, experts], f32 or bf16 */
    const float *bias;  /* [experts] */
    const mf_i32 *hash; /* [token, topk] */
    float *weights;     /* [token, topk] */
    void *ids;          /* [token, topk], int32 or int64 */
    float scale, sum_floor;
    mf_i32 token, experts, topk;
    mf_i32 score; /* 0 softmax, 1 sigmoid, 2 sqrt of softplus */
    mf_i32 renormalised, groups, groups_kept, masked_to_zero;
    mf_i32 half, wide; /* half: logits are bf16; wide: ids are int64 */
};

/* Quantises matrices of bf16, [matrices, rows, cols], in groups of group_rows by group_cols. */
struct mf_op_quantise_args {
    const void *x;
    void *q;
    void *scale;
    const float *factor; /* [matrices]: NVFP4's global factor */
    mf_u32 *amax;        /* workspace of one scale per matrix: [matrices, parts] */
    long long rows;
    mf_i32 matrices, cols;
    mf_i32 group_rows, group_cols;
    mf_i32 parts, unused;
};

/* Reorders matrices (kernels/gpu/src/ops/ops_order.h) in units of `unit` bytes. */
struct mf_op_shuffle_args {
    const void *from;
    void *to;
    long long matrices, rows, cols;
    long long padded_rows, padded_cols;
    mf_i32 order, element_bytes, four_bit, undo;
    mf_i32 unit; /* adjacent elements in both orders */
    mf_u32 fill; /* the byte in padding, four times */
};
