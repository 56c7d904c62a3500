/* What the host hands to the kernels of this folder: one structure a kernel, copied into the launch as it is. Read by
 * the host's C and by the kernels' C++, so fixed-width words only, pointers first, no padding between them.
 *
 * Shapes and formats are of kernels/core/tensors.h; everything that does not change with the token count is a macro of the
 * compiled kernel instead. */
#pragma once

#ifndef MF_HIP_KERNEL
#    include <stdint.h>
typedef int32_t mf_i32;
typedef uint32_t mf_u32;
#else
typedef int mf_i32;
typedef unsigned int mf_u32;
#endif

/* Ids of a sort, at most, of which every block counts all, and of which it counts others' but by expert (sort.h). */
#define MF_HIP_SORT_RANKED  2048
#define MF_HIP_SORT_COUNTED 8192

struct mf_hip_sort_args {
    const mf_i32 *ids; /* [T,k] */
    const float *weights;
    mf_i32 *sorted_ids;
    float *sorted_weights;
    mf_i32 *experts;
    mf_i32 *num_valid;
    mf_i32 *counts; /* workspace of blocks that meet: [blocks, E] */
    mf_i32 token, unused;
};

/* Rows of bf16 with what scales them; rows is the least of `rows` and, where given, num_valid[0]. */
struct mf_hip_quant_args {
    const void *x;
    void *q;
    void *scale;
    const mf_i32 *num_valid;
    const mf_i32 *sorted_ids; /* of one scale for all rows in sorted order; or NULL */
    mf_i32 *largest;          /* workspace of one scale for all rows: of each block */
    const float *factor;      /* of NVFP4: calibrated, and where what was used is noted */
    float *factor_kept;
    mf_i32 rows, token;
};

/* Sorting, and beside it the zeroing of y (not of NULL), and the quantising of x where groups have scales. */
struct mf_hip_sort_zero_args {
    struct mf_hip_sort_args sort;
    struct mf_hip_quant_args quant;
    void *y;
    mf_i32 sorters, unused; /* blocks */
};

/* Rows into expert order, or back. */
struct mf_hip_permute_args {
    const void *from;
    void *to;
    const void *from_scale; /* of rows, or of all; and of NVFP4 a factor for all */
    void *to_scale;         /* NULL: rows have none */
    const float *from_factor;
    float *to_factor;
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *num_valid;
    mf_i32 *row_of;    /* workspace [T,k] */
    mf_i32 *largest;   /* of one scale for all rows that are quantised on the way: of each block */
    const mf_i32 *ids; /* of what sorts, too: [T,k], their weights, and the sorted order to be made */
    const float *weights;
    mf_i32 *made_ids;
    float *made_weights;
    mf_i32 *made_experts;
    mf_i32 *made_valid;
    mf_i32 rows, token;
    mf_i32 parts, unused; /* threads that share out the slots of a chunk, a power of two */
};

/* The sort by which vLLM's kernels go. */
struct mf_hip_align_args {
    const mf_i32 *ids; /* [T,k] */
    mf_i32 *sorted_ids;
    mf_i32 *experts;
    mf_i32 *num_post_pad;
    mf_i32 rows, token;
};

/* That order into ours. */
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
    const float *bias; /* b1 of layers that have it */
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *experts;
    const mf_i32 *num_valid;
    void *h; /* bf16 [P,I] */
    mf_i32 rows, token;
};

/* Of plain.hip: n elements, or rows of so many chunks of 16 bytes. */
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
    const float *weights; /* [T,k]; not read when z is weighted */
    const mf_i32 *ids;    /* [T,k]; read of a rank's share of the experts only */
    void *y;              /* bf16 [T,H] */
    mf_i32 token, unused;
};

struct mf_hip_tile_args {
    const void *x;        /* stage 1: x [T,H]; stage 2: h [P,I] */
    const float *x_scale; /* by row of x */
    const void *w;
    const float *w_scale;
    const float *x_global, *w_global; /* NVFP4's factors of x, and by expert */
    const float *bias; /* of stage 1 b1 [E, rows of w1], of stage 2 b2 [E,H]; of layers that have it */
    const mf_i32 *sorted_ids;
    const float *sorted_weights;
    const mf_i32 *experts;
    const mf_i32 *num_valid;
    void *out; /* h [P,I], or z [T*k,H] */
    float *out_scale;
    mf_i32 token;
    mf_i32 columns; /* hopper_core.inc.h: tile columns that are made of every block before the next ones */
    mf_u32 near;    /* the device's units that are of the first half, in parts of 2^32; 0: all of them */
    mf_u32 unused;
};

/* Of mx.hip: where the scales of groups end. */
struct mf_hip_mx_args {
    struct mf_hip_tile_args tile;
    const void *x_scale_end, *w_scale_end;
};

/* A tensor as bulk copies see it: made by the device's bulk_map, opaque. */
struct __attribute__((aligned(128))) mf_hip_map {
    unsigned long long opaque[16];
};

/* Weights as bulk copies bring them, and where the box of a slice of a tile's begins: {slice * slice_0; 0; 0; slice * slice_3 + groups of 8
 * columns in their panel; expert * panels + panel}. A panel is 2^log_panel columns, or all. */
struct mf_hip_weights {
    struct mf_hip_map map;
    mf_i32 slice_0, slice_3;
    mf_i32 panels; /* of an expert */
    mf_i32 log_panel;
};

struct mf_hip_bulk_args {
    struct mf_hip_weights w;
    struct mf_hip_map x_map; /* stage 2: h as {K; row} */
    struct mf_hip_tile_args tile;
    const void *w_scale_end; /* of groups of narrow weights */
    void *y;                 /* zeroed by stage 1; NULL: by somebody before */
    mf_i32 likely_blocks;    /* stage 1: of rows, that there are likely to be before that is known */
    mf_i32 n_experts;        /* that have weights here */
    mf_u32 far[8];           /* a bit for each unit: is it of the second half? */
};

/* What pair.hip counts of h: tiles of all, and from there on of each block of rows. */
#define MF_HIP_MADE_TILES    0
#define MF_HIP_MADE_OF_BLOCK 1

struct mf_hip_pair_args {
    struct mf_hip_bulk_args up, down;
    mf_u32 *made;
    mf_i32 n_made, unused;
};

/* Of layer.hip, which makes the sorted order, and tokens that are quantised: up, down have no sorted_*, experts, num_valid. */
struct mf_hip_layer_args {
    struct mf_hip_weights w1, w2;
    struct mf_hip_map h_map;
    struct mf_hip_tile_args up, down;
    const mf_i32 *ids; /* [T,k] */
    const float *weights;
    const void *x;      /* bf16 [T,H]; up.x is the same, or what is made of it */
    mf_i32 *sorted_ids; /* [rows] */
    float *sorted_weights;
    unsigned int *done;  /* of each expert block: tiles of h that are written */
    unsigned int *taken; /* [2], tiles of each stage that blocks have taken beyond their first */
    mf_i32 rows, token;  /* rows: at most, in sorted order */
};

struct mf_hip_one_args {
    const void *x;
    const mf_i32 *ids;
    const float *weights;
    const void *w1;
    const float *w1_scale;
    const void *w2;
    const float *w2_scale;
    const float *b1, *b2; /* [E, rows of w1] and [E,H], of layers that have them */
    void *h;              /* workspace: bf16 [T*k,I] */
    void *y;
    mf_i32 token, unused;
};

/* What mf_data leaves of its groups: codes in a layout, the floats that they decode to in rows, or their largest magnitudes. */
#define MF_DATA_CODES  0
#define MF_DATA_FLOATS 1
#define MF_DATA_AMAX   2

/* Matrices of [rows, cols], group by group. scale and global are not wanted where they are NULL. amax is of each group: written
 * for MF_DATA_AMAX, else what all of a matrix share; NULL: each its own. */
struct mf_hip_data_args {
    void *out;
    void *scale;
    float *global; /* of a matrix, of codecs that have such a factor */
    float *amax;
    const mf_i32 *matrices; /* which of the tensor's they are; NULL: the first ones */
    unsigned long long key;
    long long groups; /* of all matrices */
    float factor;
    mf_i32 rows, cols;
    mf_i32 group_rows, group_cols;        /* columns in multiples of 32, or all */
    mf_i32 panel, group_words, gate_rows; /* of the layout (kernels/core/layout.h); words of four bytes */
    mf_i32 what;
};

#define MF_DOTS_TILE 32 /* rows of a that a block multiplies at once */

/* Up to MF_DOTS_TILE slots of one expert. */
struct mf_hip_dots_tile {
    mf_i32 matrix, expert; /* of w, and by the layer's count */
    mf_i32 first, n;       /* of slots */
};

/* out[slot] = a[slot / slots_of_row] · w[matrix]^T + bias[expert] for the slots of the tiles: [.., k] by [n, k] floats. */
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

/* What became of a row of bf16: elements that hold the poison, and the first; those that are not finite, and the first; those that are
 * off; squares of the difference, of what it should be, of what it is. */
struct mf_hip_row {
    double difference, norm, size;
    mf_u32 unwritten, unwritten_at, bad, bad_at, mismatches, unused;
};

struct mf_hip_rows_args {
    const void *values; /* bf16 [rows, cols] */
    const void *other;  /* floats [.., cols], NULL: zeros; or another run's bf16 [rows, cols] */
    const long long
        *source;          /* of a row, its row of the floats; < 0: it is not looked at. NULL: each its own */
    const float *factors; /* of the floats' rows; NULL: 1 */
    struct mf_hip_row *out; /* [rows], written of those that are looked at */
    long long rows;
    mf_i32 cols;     /* a multiple of 8 */
    mf_u32 poison;   /* beyond 16 bits: none is looked for */
    float tolerance; /* off: by more than it and as much of the value */
    mf_i32 unused;
};

/* Of each unit so many adds to each line, one after the other. */
struct mf_hip_add_cycles_args {
    void *lines;
    unsigned long long stride; /* bytes from line to line */
    mf_u32 *cycles; /* [unit, line], the fewest that one took; of a unit that ran nothing not written */
    mf_u32 n_lines, turns;
};

/* What takes the last cache's place while it is washed; bytes is a multiple of 128. */
struct mf_hip_wash_args {
    void *at;
    unsigned long long bytes;
};

/* Rows of floats, times their factors, as bf16. */
struct mf_hip_round_args {
    const float *from;    /* [rows, cols] */
    const float *factors; /* [rows]; NULL: 1 */
    void *to;
    long long rows;
    mf_i32 cols; /* a multiple of 8 */
    mf_i32 unused;
};

/* Rows in sorted order of rows in token or slot order, whatever they hold. */
struct mf_hip_gather_args {
    const void *from;        /* [n_from, row_bytes] */
    void *to;                /* [rows, row_bytes], at a multiple of 16 as from is */
    const mf_i32 *ids;       /* of sorted order; NULL: row p is row p */
    const mf_i32 *num_valid; /* with ids */
    long long rows, n_from, row_bytes;
    mf_i32 topk;   /* rows of a token; 1 where from is in token order */
    mf_u32 poison; /* four bytes, of rows that are nobody's */
};

struct mf_hip_fill_args {
    void *to;
    long long bytes;
    unsigned int pattern;
    mf_i32 unused;
};
