/* The two GEMM stages of the layer on one thread of several, in sorted order: what families tile and one launch.
 *
 * Work is cut into (expert block, tile of columns) and shared out by cost, in order, so that a thread reads long
 * runs of the weights. Rows of padding are neither read nor written. Sums depend on the shape and the parameters
 * only, never on the thread that makes them: runs agree bitwise, and so do numbers of threads. */
#pragma once

#include "common/moe/shape.h"
#include "kernels/core/tensors.h"
#include "kernels/cpu/ops.h"

enum mf_stage2_out {
    MF_STAGE2_STORE, /* z or zw, a row for each slot */
    MF_STAGE2_ADD,   /* y: a thread owns columns and adds all slots of a token, experts ascending */
};

/* How many bytes ahead of the loads weights are fetched. Which is best depends on the machine, on rows and format: by
 * measurements on a Zen 4, far for three rows or more and for fp8, near for bf16 of two rows; of one they are level. */
#define MF_FETCH_NONE 0 /* left to the machine's own prefetching */
#define MF_FETCH_NEAR 2560
#define MF_FETCH_FAR  6144

#define MF_SPLIT_K           128 /* a multiple of every group along K */
#define MF_QUANTISE_X_TOKENS 32  /* rows of x that a thread quantises for itself and keeps */

/* Parameters of a stage; fixed when a step is opened. */
struct mf_stage_plan {
    struct mf_shape shape;
    const struct mf_cpu_ops *ops;
    struct mf_codecs codecs;
    bool native; /* the GEMM reads these weights itself; others are decoded piece by piece on the way to it */
    int panel;   /* 1, 16, 32 */
    int gate_rows; /* stage 1: gate and up alternate in w by so many rows, which divide block_n; 0: all of gate first */
    int block_m, block_n, block_k; /* block_k 0: not cut */
    size_t fetch;                  /* MF_FETCH_… */
    int threads;
    int ksplit; /* stage 1: so many parts of K, each a multiple of MF_SPLIT_K, are summed apart; 0, 1: not cut */
    bool gather; /* stage 1: x is in token order */
    bool
        quantise_x; /* stage 1, with gather: x is bf16, of up to MF_QUANTISE_X_TOKENS rows with scales of their own */
    bool quantise; /* stage 1: h leaves in the format of the shape */
    bool weighted; /* stage 1: before the activation; stage 2: on what leaves */
    enum mf_stage2_out out;
};

/* Reads the shape's codecs into the plan, whose ops are set; -ENOTSUP when its formats make no pair. */
int mf_stage_plan_shape(struct mf_stage_plan *p, const struct mf_shape *shape);
/* Is the plan's fetch heeded, in blocks of so few rows that memory decides? */
bool mf_stage_fetches(const struct mf_stage_plan *p);

struct mf_sorted_view {
    const int32_t *ids, *experts, *num_valid;
    const float *weights;
};

struct mf_stage1_args {
    struct mf_sorted_view sorted;
    struct mf_tensor_ref x, w; /* their tensor specs' parts */
    uint16_t *h;               /* bf16 [P, I]: the result, or on the way to h_q */
    struct mf_tensor_ref h_q;  /* with quantise */
    const float *calib;        /* with quantise or quantise_x and a global factor: x's, h's */
    float *partial;            /* with ksplit, of all threads: mf_stage1_partial() bytes */
    const float *bias;         /* b1 of shapes that have it */
    void *workspace;           /* of this thread, mf_stage1_workspace() */
};

struct mf_stage2_args {
    struct mf_sorted_view sorted;
    struct mf_tensor_ref h, w;
    const float *bias; /* b2 of shapes that have it */
    uint16_t *out;     /* z or y */
    void *workspace;   /* of this thread, mf_stage2_workspace() */
};

/* Bytes for one thread, a multiple of 64. */
size_t mf_stage1_workspace(const struct mf_stage_plan *p);
size_t mf_stage2_workspace(const struct mf_stage_plan *p);
/* Sums of the parts of K, for every row of sorted order: 0 where K is not cut. */
size_t mf_stage1_partial(const struct mf_stage_plan *p);

/* One thread's part of n. With p->quantise or p->ksplit, stage1 has a barrier of the pool inside. */
void mf_stage1_run(const struct mf_stage_plan *p, const struct mf_stage1_args *a, int thread, int n_threads);
void mf_stage2_run(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread, int n_threads);

/* One row of h: the activation of n columns of sums g and u, which are changed, with their routing weight, or 1, and
 * the biases of these columns behind it, or NULL. */
void mf_stage_activate(const struct mf_cpu_ops *ops, const struct mf_shape *shape, float *const gate_up[2],
                       const float *const bias[2], float weight, size_t n, uint16_t *h);
/* Quantises a bf16 row of n values into row `row` of an tensor spec's parts, by way of `floats` (n values of room). The
 * codec has scales of its own for each row; its global factor is given, and written by whoever writes row 0. */
void mf_stage_quantise_row(const struct mf_codec *c, const uint16_t *from, size_t n, size_t row, float global,
                           float *floats, const struct mf_tensor_ref *to);

/* Rows of the block at row0 that are no padding: they come first. */
int mf_block_rows(const int32_t *ids, int64_t row0, int block_m, int topk);
