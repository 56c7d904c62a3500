/* Kernel argument structs shared by host C and kernel C++: one struct per kernel, copied into the launch.
 * Fixed-width types only, pointers first, no padding.
 *
 * Shapes and formats are those of kernels/core/tensors.h. Everything that does not depend on the token
 * count is a macro of the compiled kernel instead. */
#pragma once

#ifndef MF_HIP_KERNEL
#    include <stdint.h>
typedef int32_t mf_i32;
typedef uint32_t mf_u32;
#else
typedef int mf_i32;
typedef unsigned int mf_u32;
#endif

/* Maximum number of ids for which every block ranks all ids, and for which it only counts other blocks' ids
 * (sort.h). */
#define MF_HIP_SORT_RANKED  2048
#define MF_HIP_SORT_COUNTED 8192

struct mf_hip_sort_args {
    const mf_i32 *ids; /* [T,k] */
    const float *weights;
    mf_i32 *sorted_ids;
    float *sorted_weights;
    mf_i32 *experts;
    mf_i32 *num_valid;
    mf_i32 *counts; /* workspace for the grid barrier method: [blocks, E] */
    mf_i32 token, unused;
};

/* Quantises min(rows, num_valid[0]) rows of bf16; num_valid may be NULL. */
struct mf_hip_quant_args {
    const void *x;
    void *q;
    void *scale;
    const mf_i32 *num_valid;
    const mf_i32 *sorted_ids; /* with one scale for all rows in sorted order; else NULL */
    mf_i32 *largest;          /* workspace for one scale of all rows: amax per block */
    const float *factor;      /* NVFP4: calibrated global factor; factor_kept receives the factor used */
    float *factor_kept;
    mf_i32 rows, token;
};

/* Sorts, zeroes y (unless NULL) and quantises x (formats with group scales) in one launch. */
struct mf_hip_sort_zero_args {
    struct mf_hip_sort_args sort;
    struct mf_hip_quant_args quant;
    void *y;
    mf_i32 sorters, unused; /* blocks that sort */
};

/* Moves rows into expert order, or back. */
struct mf_hip_permute_args {
    const void *from;
    void *to;
    const void *from_scale; /* scales per row or for all rows; NVFP4 also has a global factor */
    void *to_scale;         /* NULL: no scales */
    const float *from_factor;
    float *to_factor;
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *num_valid;
    mf_i32 *row_of; /* workspace [T,k] */
    /* workspace for one scale of all rows, when rows are quantised on the way: amax per block */
    mf_i32 *largest;
    /* for kernels that also sort: [T,k] ids, their weights, and the sorted order to write */
    const mf_i32 *ids;
    const float *weights;
    mf_i32 *made_ids;
    float *made_weights;
    mf_i32 *made_experts;
    mf_i32 *made_valid;
    mf_i32 rows, token;
    mf_i32 parts, unused; /* threads that split the slots of a chunk, a power of two */
};

/* moe_align_block_size, the order of vLLM's kernels. */
struct mf_hip_align_args {
    const mf_i32 *ids; /* [T,k] */
    mf_i32 *sorted_ids;
    mf_i32 *experts;
    mf_i32 *num_post_pad;
    mf_i32 rows, token;
};

/* Converts that order to AITER's. */
struct mf_hip_aligned_args {
    const mf_i32 *flat;
    const mf_i32 *aligned_experts;
    const mf_i32 *num_post_pad;
    const float *weights; /* [T,k] */
    mf_i32 *sorted_ids;
    float *sorted_weights;
    mf_i32 *experts;
    mf_i32 *num_valid;
    mf_i32 token, unused;
};

struct mf_hip_act_args {
    const void *g;     /* bf16 [P, gate and up, or gate] */
    const float *bias; /* b1, if the layer has it */
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *experts;
    const mf_i32 *num_valid;
    void *h; /* bf16 [P,I] */
    mf_i32 rows, token;
};

/* plain.hip: n elements, or n rows of `chunks` 16-byte chunks. */
struct mf_hip_plain_args {
    const void *from;
    void *to;
    mf_i32 *index;
    const float *weights;
    long long n;
    mf_i32 k, chunks;
};

struct mf_hip_combine_args {
    const void *z;        /* bf16 [T*k,H] */
    const float *weights; /* [T,k]; not read if z is already weighted */
    const mf_i32 *ids;    /* [T,k]; read only with expert parallelism */
    void *y;              /* bf16 [T,H] */
    mf_i32 token, unused;
};

struct mf_hip_tile_args {
    const void *x;        /* stage 1: x [T,H]; stage 2: h [P,I] */
    const float *x_scale; /* one per row of x */
    const void *w;
    const float *w_scale;
    const float *x_global, *w_global; /* NVFP4 global factors of x, and per expert */
    const float *bias; /* stage 1: b1 [E, rows of w1]; stage 2: b2 [E,H]; if the layer has them */
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *experts;
    const mf_i32 *num_valid;
    void *out; /* h [P,I], or z [T*k,H] */
    float *out_scale;
    mf_i32 token;
    mf_i32 columns; /* hopper_core.inc.h: tile columns computed for every block before the next ones */
    mf_u32 near;    /* fraction of SMs in L2 partition 0, times 2^32; 0: one partition */
    mf_u32 unused;
};

/* mx.hip: with the ends of the group scales. */
struct mf_hip_mx_args {
    struct mf_hip_tile_args tile;
    const void *x_scale_end, *w_scale_end;
};

/* TMA tensor map, created by the device's tensor_map; opaque. */
struct __attribute__((aligned(128))) mf_hip_map {
    unsigned long long opaque[16];
};

/* Weights for TMA loads. The box of a K tile starts at {k_tile * slice_0; 0; 0; k_tile * slice_3 + index of
 * the group of 8 columns in its panel; expert * panels + panel}. A panel has 2^log_panel columns, or all. */
struct mf_hip_weights {
    struct mf_hip_map map;
    mf_i32 slice_0, slice_3;
    mf_i32 panels; /* per expert */
    mf_i32 log_panel;
};

struct mf_hip_bulk_args {
    struct mf_hip_weights w;
    struct mf_hip_map x_map; /* stage 2: h as {K; row} */
    struct mf_hip_tile_args tile;
    const void *w_scale_end; /* end of the group scales of narrow weights */
    void *y;                 /* zeroed by stage 1; NULL: already zero */
    mf_i32 likely_blocks;    /* stage 1: expected number of expert blocks, before the sort knows it */
    mf_i32 n_experts;        /* local experts */
    mf_u32 far[8];           /* one bit per SM: set if the SM is in L2 partition 1 */
};

/* Layout of pair.hip's counts: all finished tiles of h, then those of each expert block. */
#define MF_HIP_MADE_TILES    0
#define MF_HIP_MADE_OF_BLOCK 1

struct mf_hip_pair_args {
    struct mf_hip_bulk_args up, down;
    mf_u32 *made;
    mf_i32 n_made, unused;
};

/* layer.hip sorts and quantises tokens itself, so sorted_*, experts and num_valid of up and down are
 * unused. */
struct mf_hip_layer_args {
    struct mf_hip_weights w1, w2;
    struct mf_hip_map h_map;
    struct mf_hip_tile_args up, down;
    const mf_i32 *ids; /* [T,k] */
    const float *weights;
    const void *x;      /* bf16 [T,H]; up.x is the same, or its quantised copy */
    mf_i32 *sorted_ids; /* [rows] */
    float *sorted_weights;
    unsigned int *done;  /* per expert block: finished tiles of h */
    unsigned int *taken; /* [2], per stage: tiles claimed beyond each block's first */
    mf_i32 rows, token;  /* rows: maximum number in sorted order */
};

struct mf_hip_one_args {
    const void *x;
    const mf_i32 *ids;
    const float *weights;
    const void *w1;
    const float *w1_scale;
    const void *w2;
    const float *w2_scale;
    const float *b1, *b2; /* [E, rows of w1] and [E,H], if the layer has them */
    void *h;              /* workspace: bf16 [T*k,I] */
    void *y;
    mf_i32 token, unused;
};

/* Output of mf_data: encoded values in a layout, the decoded floats in rows, or amax per group. */
#define MF_DATA_CODES  0
#define MF_DATA_FLOATS 1
#define MF_DATA_AMAX   2

/* Generates matrices [rows, cols], group by group. scale and global may be NULL. amax is per group: output
 * of MF_DATA_AMAX, otherwise the input for one scale per matrix; NULL: one scale per group. */
struct mf_hip_data_args {
    void *out;
    void *scale;
    float *global; /* per matrix, for codecs with a global factor */
    float *amax;
    const mf_i32 *matrices; /* indices of the tensor's matrices; NULL: the first ones */
    unsigned long long key;
    long long groups; /* total of all matrices */
    float factor;
    mf_i32 rows, cols;
    mf_i32 group_rows, group_cols; /* group_cols: a multiple of 32, or all columns */
    /* of the layout (kernels/core/layout.h); group_words in words of four bytes */
    mf_i32 panel, group_words, gate_rows;
    mf_i32 what;
};

#define MF_DOTS_TILE 32 /* rows of `a` per block */

/* Up to MF_DOTS_TILE slots of one expert. */
struct mf_hip_dots_tile {
    mf_i32 matrix, expert; /* index in w; index among the layer's experts */
    mf_i32 first, n;       /* range of slots */
};

/* out[slot] = a[slot / slots_of_row] · w[matrix]^T + bias[expert] for the slots of the tiles; floats [..,
 * k] by [n, k]. */
struct mf_hip_dots_args {
    const float *a, *w;
    const float *bias; /* NULL: none */
    const mf_i32 *slots;
    const struct mf_hip_dots_tile *tiles;
    float *out;
    mf_i32 n_tiles, n, k;
    mf_i32 slots_of_row;
};

struct mf_hip_slots_args {
    const float *z;       /* [T*k,H] */
    const float *weights; /* [T,k]; NULL: all 1 */
    float *y;             /* [T,H] */
    mf_i32 token, topk, cols, unused;
};

struct mf_hip_difference_args {
    const float *a, *b;
    double *out; /* [rows, 2] */
    long long rows;
    mf_i32 cols, unused;
};

/* Statistics of a row of bf16: elements equal to the poison pattern, and the first one; non-finite
 * elements, and the first one; mismatches; squared norms of the difference, of the expected row, and of the
 * row. */
struct mf_hip_row {
    double difference, norm, size;
    mf_u32 unwritten, unwritten_at, bad, bad_at, mismatches, unused;
};

struct mf_hip_rows_args {
    const void *values;      /* bf16 [rows, cols] */
    const void *other;       /* floats [.., cols], NULL: zeros; or another run's bf16 [rows, cols] */
    const long long *source; /* row of the floats for each row; < 0: skip the row. NULL: the same index */
    const float *factors;    /* per row of floats; NULL: 1 */
    struct mf_hip_row *out;  /* [rows], written for rows that are not skipped */
    long long rows;
    mf_i32 cols;     /* a multiple of 8 */
    mf_u32 poison;   /* above 16 bits: disabled */
    float tolerance; /* mismatch: |difference| > tolerance + tolerance * |value| */
    mf_i32 unused;
};

/* Each SM adds to each line a number of times, one add after the other. */
struct mf_hip_add_cycles_args {
    void *lines;
    unsigned long long stride; /* bytes between lines */
    mf_u32 *cycles; /* [SM, line], minimum cycles of one add; not written for SMs without a block */
    mf_u32 n_lines, turns;
};

/* Buffer that evicts the L2 cache; bytes is a multiple of 128. */
struct mf_hip_evict_args {
    void *at;
    unsigned long long bytes;
};

/* Rounds rows of floats, times their factors, to bf16. */
struct mf_hip_round_args {
    const float *from;    /* [rows, cols] */
    const float *factors; /* [rows]; NULL: 1 */
    void *to;
    long long rows;
    mf_i32 cols; /* a multiple of 8 */
    mf_i32 unused;
};

/* Gathers rows in token or slot order into sorted order, for any element type. */
struct mf_hip_gather_args {
    const void *from;        /* [n_from, row_bytes] */
    void *to;                /* [rows, row_bytes], aligned to 16 like `from` */
    const mf_i32 *ids;       /* sorted ids; NULL: identity */
    const mf_i32 *num_valid; /* required with ids */
    long long rows, n_from, row_bytes;
    mf_i32 topk;   /* source rows per token; 1 if `from` is in token order */
    mf_u32 poison; /* four-byte pattern for rows without a source */
};

struct mf_hip_fill_args {
    void *to;
    long long bytes;
    unsigned int pattern;
    mf_i32 unused;
};
