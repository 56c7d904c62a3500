/* Kernel argument structs shared by host C and kernel C++. There is one struct per kernel, and it is copied
 * into the launch. The members of a struct have fixed-width types, pointers come first, and there is no
 * padding.
 *
 * Shapes and formats are those of kernels/core/tensors.h. Everything that does not depend on the token count
 * is a macro of the compiled kernel instead. */
#pragma once

#ifndef MF_HIP_KERNEL
#    include <stdint.h>
typedef int32_t mf_i32;
typedef uint32_t mf_u32;
#else
typedef int mf_i32;
typedef unsigned int mf_u32;
#endif

/* With at most MF_HIP_SORT_RANKED ids, every block ranks all ids. With more ids, but at most
 * MF_HIP_SORT_COUNTED, every block ranks its own ids and only counts the ids of other blocks (sort.h). */
#define MF_HIP_SORT_RANKED  2048
#define MF_HIP_SORT_COUNTED 8192

/* Bits of `types`, the element types of ids and weights [T,k] (struct mf_route_types in
 * kernels/core/tensors.h). Without the bits, ids are int32 and weights are float. */
#define MF_HIP_WIDE_IDS     1 /* ids are int64 */
#define MF_HIP_BF16_WEIGHTS 2

struct mf_hip_sort_args {
    const void *ids; /* [T,k] */
    const void *weights;
    mf_i32 *sorted_ids;
    float *sorted_weights;
    mf_i32 *experts;
    mf_i32 *num_valid;
    mf_i32 *counts; /* workspace for the grid barrier method: [blocks, E] */
    mf_i32 token, types;
};

/* Quantises min(rows, num_valid[0]) rows of bf16, or `rows` rows if num_valid is NULL. */
struct mf_hip_quant_args {
    const void *x;
    void *q;
    void *scale;
    const mf_i32 *num_valid;
    const mf_i32 *sorted_ids; /* used if all rows in sorted order share one scale; otherwise NULL */
    mf_i32 *largest;          /* workspace for the amax of each block, if all rows share one scale */
    /* for NVFP4: calibrated global factor; factor_kept receives the factor that was used */
    const float *factor;
    float *factor_kept;
    mf_i32 rows, token;
};

/* Sorts, zeroes y (if it is not NULL) and quantises x (formats with group scales) in one launch. */
struct mf_hip_sort_zero_args {
    struct mf_hip_sort_args sort;
    struct mf_hip_quant_args quant;
    void *y;
    mf_i32 sorters, unused; /* number of blocks that take part in the sort */
};

/* Moves rows into expert order, or from expert order back to token order. */
struct mf_hip_permute_args {
    const void *from;
    void *to;
    const void *from_scale; /* scales per row, or one scale for all rows; NVFP4 also has a global factor */
    void *to_scale;         /* scales to write; NULL if the step writes no scales */
    const float *from_factor;
    float *to_factor;
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *num_valid;
    mf_i32 *row_of; /* workspace [T,k] */
    /* workspace for the amax of each block, in kernels that quantise with one scale for all rows */
    mf_i32 *largest;
    /* for kernels that also sort: [T,k] ids, their weights, and the sorted order to write */
    const void *ids;
    const void *weights;
    mf_i32 *made_ids;
    float *made_weights;
    mf_i32 *made_experts;
    mf_i32 *made_valid;
    mf_i32 rows, token;
    /* number of threads that split the slots of a chunk among themselves, a power of two */
    mf_i32 parts, types;
};

/* Sorts as moe_align_block_size does, which gives the order of vLLM's kernels. */
struct mf_hip_align_args {
    const void *ids; /* [T,k] */
    mf_i32 *sorted_ids;
    mf_i32 *experts;
    mf_i32 *num_post_pad;
    mf_i32 rows, token;
    mf_i32 types, unused;
};

/* Converts the sorted order of vLLM's kernels to AITER's. */
struct mf_hip_aligned_args {
    const mf_i32 *flat;
    const mf_i32 *aligned_experts;
    const mf_i32 *num_post_pad;
    const void *weights; /* [T,k] */
    mf_i32 *sorted_ids;
    float *sorted_weights;
    mf_i32 *experts;
    mf_i32 *num_valid;
    mf_i32 token, types;
};

struct mf_hip_act_args {
    const void *g;     /* bf16 [P, gate and up columns], or [P, gate columns] without up */
    const float *bias; /* b1, if the layer has it */
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *experts;
    const mf_i32 *num_valid;
    void *h; /* bf16 [P,I] */
    mf_i32 rows, token;
};

/* Arguments of the kernels of plain.hip. A kernel processes n elements, or n rows of `chunks` chunks of 16
 * bytes. */
struct mf_hip_plain_args {
    const void *from;
    void *to;
    mf_i32 *index;
    const float *weights;
    long long n;
    mf_i32 k, chunks;
};

struct mf_hip_combine_args {
    const void *z;       /* bf16 [T*k,H] */
    const void *weights; /* [T,k]; not read if z is already weighted */
    const void *ids;     /* [T,k] */
    void *y;             /* bf16 [T,H] */
    mf_i32 token, types;
};

struct mf_hip_tile_args {
    const void *x;        /* stage 1: x [T,H]; stage 2: h [P,I] */
    const float *x_scale; /* one scale per row of x */
    const void *w;
    const float *w_scale;
    const float *x_global, *w_global; /* NVFP4 global factors: one for x, one per expert for w */
    const float *bias; /* biases, if the layer has them: b1 [E, rows of w1] in stage 1, b2 [E,H] in stage 2 */
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *experts;
    const mf_i32 *num_valid;
    void *out; /* h [P,I], or z [T*k,H] */
    float *out_scale;
    mf_i32 token;
    /* hopper_core.inc.h: number of tile columns that are computed for all expert blocks before the next
     * columns */
    mf_i32 columns;
    mf_u32 near; /* fraction of SMs in L2 partition 0, times 2^32; 0: L2 has one partition */
    mf_u32 unused;
};

/* Arguments of mx.hip: the arguments of a tile, and pointers to the ends of the group scales. */
struct mf_hip_mx_args {
    struct mf_hip_tile_args tile;
    const void *x_scale_end, *w_scale_end;
};

/* TMA tensor map, created by the device's tensor_map; opaque. */
struct __attribute__((aligned(128))) mf_hip_map {
    unsigned long long opaque[16];
};

/* Weights for TMA loads. The box of a K tile starts at {k_tile * slice_0; 0; 0; k_tile * slice_3 + index of
 * the group of 8 columns in its panel; expert * panels + panel}. A panel has 2^log_panel columns, or all
 * columns if there is only one panel per expert. */
struct mf_hip_weights {
    struct mf_hip_map map;
    mf_i32 slice_0, slice_3;
    mf_i32 panels; /* panels per expert */
    mf_i32 log_panel;
};

struct mf_hip_bulk_args {
    struct mf_hip_weights w;
    struct mf_hip_map x_map; /* stage 2: h as {K; row} */
    struct mf_hip_tile_args tile;
    const void *w_scale_end; /* end of the group scales of narrow weights */
    void *y;                 /* zeroed by stage 1; NULL: already zero */
    /* stage 1: expected number of expert blocks, which is used until the sort has computed the exact number
     */
    mf_i32 likely_blocks;
    mf_i32 n_experts; /* local experts */
    mf_u32 far[8];    /* one bit per SM: set if the SM is in L2 partition 1 */
};

/* Layout of the array of counts in pair.hip: first the number of finished tiles of h in all expert blocks
 * together, then the number of finished tiles of h in each expert block. */
#define MF_HIP_MADE_TILES    0
#define MF_HIP_MADE_OF_BLOCK 1

struct mf_hip_pair_args {
    struct mf_hip_bulk_args up, down;
    mf_u32 *made;
    mf_i32 n_made, unused;
};

/* layer.hip sorts and quantises tokens itself, so sorted_*, experts and num_valid of `up` and `down` are
 * unused. */
struct mf_hip_layer_args {
    struct mf_hip_weights w1, w2;
    struct mf_hip_map h_map;
    struct mf_hip_tile_args up, down;
    const void *ids; /* [T,k] */
    const void *weights;
    const void *x;      /* bf16 [T,H]; up.x equals this pointer, or points to a quantised copy of x */
    mf_i32 *sorted_ids; /* [rows] */
    float *sorted_weights;
    unsigned int *done; /* for each expert block, the number of its tiles of h that are finished */
    /* [2], for each stage: number of claimed tiles, not counting the first tile of each thread block */
    unsigned int *taken;
    mf_i32 rows, token; /* rows: maximum number of rows in sorted order */
    mf_i32 types, unused;
};

struct mf_hip_one_args {
    const void *x;
    const void *ids;
    const void *weights;
    const void *w1;
    const float *w1_scale;
    const void *w2;
    const float *w2_scale;
    const float *b1, *b2; /* biases [E, rows of w1] and [E,H], if the layer has them */
    void *h;              /* workspace: bf16 [T*k,I] */
    void *y;
    mf_i32 token, types;
};

/* Output of mf_data: encoded values in a layout, decoded floats in row order, or the amax of each group. */
#define MF_DATA_CODES  0
#define MF_DATA_FLOATS 1
#define MF_DATA_AMAX   2

/* Generates matrices [rows, cols], group by group. scale and global may be NULL. amax has one value per
 * group. With MF_DATA_AMAX, amax is the output. Otherwise amax is an input, from which one scale per matrix
 * is computed; if amax is NULL, each group has its own scale. */
struct mf_hip_data_args {
    void *out;
    void *scale;
    float *global; /* one factor per matrix, for codecs with a global factor */
    float *amax;
    const mf_i32 *matrices; /* indices of the tensor's matrices; NULL: the first matrices of the tensor */
    unsigned long long key;
    long long groups; /* number of groups of all matrices together */
    float factor;
    mf_i32 rows, cols;
    mf_i32 group_rows, group_cols; /* group_cols is a multiple of 32, or all columns */
    /* properties of the layout (kernels/core/layout.h); group_words counts words of four bytes */
    mf_i32 panel, group_words, gate_rows;
    mf_i32 what;
};

#define MF_DOTS_TILE 32 /* rows of `a` per block */

/* Part of a matrix product: up to MF_DOTS_TILE slots of one expert. */
struct mf_hip_dots_tile {
    mf_i32 matrix, expert; /* index of the matrix in w; index of the expert among the layer's experts */
    mf_i32 first, n;       /* range of slots */
};

/* Computes out[slot] = a[slot / slots_of_row] · w[matrix]^T + bias[expert] for the slots of the tiles. `a`
 * has floats [.., k], and each matrix of w has floats [n, k]. */
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
    double *out; /* [rows, 2]: squared norms of a - b and of b */
    long long rows;
    mf_i32 cols, unused;
};

/* Statistics of a row of bf16.
 *
 *   unwritten, bad          number of elements that equal the poison pattern; number that are not finite
 *   unwritten_at, bad_at    index of the first such element
 *   difference, norm, size  squared norms: of the difference to the expected row, of the expected row, and of
 *                           this row */
struct mf_hip_row {
    double difference, norm, size;
    mf_u32 unwritten, unwritten_at, bad, bad_at, mismatches, unused;
};

struct mf_hip_rows_args {
    const void *values; /* bf16 [rows, cols] */
    /* expected floats [.., cols], or NULL for zeros; when two runs are compared: bf16 [rows, cols] of the
     * other run */
    const void *other;
    /* for each row, the index of its expected row; < 0: the row is skipped. NULL: each row has the index of
     * its expected row */
    const long long *source;
    const float *factors;   /* one factor per row of floats; NULL: 1 */
    struct mf_hip_row *out; /* [rows], written for rows that are not skipped */
    long long rows;
    mf_i32 cols;     /* a multiple of 8 */
    mf_u32 poison;   /* poison pattern of an element; a value above 16 bits disables the check */
    float tolerance; /* an element is a mismatch if |difference| > tolerance + tolerance * |value| */
    mf_i32 unused;
};

/* Each SM executes `turns` atomic adds to each line, one after the other. */
struct mf_hip_add_cycles_args {
    void *lines;
    unsigned long long stride; /* distance between lines in bytes */
    mf_u32 *cycles; /* [SM, line]: minimum cycles of one add; not written for SMs without a block */
    mf_u32 n_lines, turns;
};

/* Buffer that a kernel writes to evict other data from the L2 cache. `bytes` is a multiple of 128. */
struct mf_hip_evict_args {
    void *at;
    unsigned long long bytes;
};

/* Multiplies rows of floats by their factors and rounds them to bf16. */
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
    void *to;                /* [rows, row_bytes], aligned to 16 bytes like `from` */
    const mf_i32 *ids;       /* sorted ids; NULL: row i comes from row i */
    const mf_i32 *num_valid; /* number of valid rows; must not be NULL if `ids` is not NULL */
    long long rows, n_from, row_bytes;
    mf_i32 topk;   /* source rows per token; 1 if `from` is in token order */
    mf_u32 poison; /* four-byte pattern for rows without a source */
};

/* Converts matrices from layout `row` (kernels/core/layout.h). A thread moves `unit` bytes: 16, 4 or 1. */
struct mf_hip_pack_args {
    const void *from;
    void *to;
    long long matrices, rows, row_bytes;
    mf_i32 panel, group_bytes, gate_rows;
    mf_i32 unit;
};

/* Maps ids of all ranks by expert_map, which has the position of each of `all` experts, to ids of the local
 * `experts` from `first` on. */
struct mf_hip_remap_args {
    const mf_i32 *expert_map;
    const void *ids; /* [routes], of the type in `types`, like `to` */
    void *to;
    long long routes;
    mf_i32 all, experts, first;
    mf_i32 types;
};

struct mf_hip_fill_args {
    void *to;
    long long bytes;
    unsigned int pattern;
    mf_i32 unused;
};
