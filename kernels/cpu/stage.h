/* Computes the two GEMM stages of the layer, with rows in sorted order. Each call does one thread's part of a
 * stage. The CPU families launch the stages.
 *
 * The work of a stage is split into units of one expert block and one tile of columns. Units are divided
 * among threads by cost, in order, so that a thread reads long contiguous runs of the weights. Padding rows
 * are neither read nor written. Sums depend only on the shape and the parameters, not on the thread, so
 * results are bitwise equal across runs and thread counts. */
#pragma once

#include "common/moe/shape.h"
#include "kernels/core/tensors.h"
#include "kernels/cpu/ops.h"

enum mf_stage2_out {
    MF_STAGE2_STORE, /* z or zw, one row per slot */
    /* y: a thread owns columns of y and adds all slots of a token in ascending order of experts */
    MF_STAGE2_ADD,
};

/* Prefetch distance of the weights in bytes. The best distance depends on machine, rows and format. On Zen 4,
 * FAR is best for three or more rows and for fp8, and NEAR for two bf16 rows; for one row FAR and NEAR are
 * equally fast. */
#define MF_FETCH_NONE 0 /* hardware prefetching only */
#define MF_FETCH_NEAR 2560
#define MF_FETCH_FAR  6144

#define MF_SPLIT_K 128 /* a multiple of every scale group along K */
/* maximum rows of x with quantise_x, because every thread quantises its own copy of the rows */
#define MF_QUANTISE_X_TOKENS 32

/* Parameters of a stage; constant after a step is opened. */
struct mf_stage_plan {
    struct mf_shape shape;
    const struct mf_cpu_ops *ops;
    struct mf_codecs codecs;
    /* true if the GEMM reads these weights directly; otherwise each piece is decoded before its GEMM */
    bool native;
    int panel; /* panel width of w: 1, 16, 32 */
    /* stage 1: gate rows and up rows alternate in w in groups of this many rows, a divisor of block_n; 0: all
     * gate rows come first */
    int gate_rows;
    int block_m, block_n, block_k; /* block_k 0: K is not split */
    size_t fetch;                  /* MF_FETCH_… */
    int threads;
    /* stage 1: number of parts of K that are summed separately, each a multiple of MF_SPLIT_K; 0 or 1: K is
     * not split */
    int ksplit;
    bool gather; /* stage 1: true: x is in token order; false: x is in sorted order */
    /* stage 1, with gather: x is bf16 with at most MF_QUANTISE_X_TOKENS rows and is quantised with scales per
     * row */
    bool quantise_x;
    bool quantise; /* stage 1: h is quantised to the shape's format */
    bool weighted; /* routing weights are applied; stage 1: before the activation, stage 2: to the output */
    enum mf_stage2_out out;
};

/* Sets the shape and its codecs in the plan, whose ops must be set. Returns -ENOTSUP if there are no codecs
 * for the shape's formats. */
int mf_stage_plan_shape(struct mf_stage_plan *p, const struct mf_shape *shape);
/* True if `fetch` has an effect on blocks of block_m rows. */
bool mf_stage_prefetches(const struct mf_stage_plan *p);

struct mf_sorted_view {
    const int32_t *ids, *experts, *num_valid;
    const float *weights;
};

struct mf_stage1_args {
    struct mf_sorted_view sorted;
    struct mf_tensor_ref x, w; /* parts of their tensor specs */
    uint16_t *h;               /* bf16 [P, I]: the result or, with quantise, an intermediate */
    struct mf_tensor_ref h_q;  /* output with quantise */
    /* global factors of x and h; used with quantise or quantise_x if the codec has a global factor */
    const float *calib;
    float *partial;    /* with ksplit: mf_stage1_partial() bytes, shared by all threads */
    const float *bias; /* b1, if the shape has it */
    void *workspace;   /* mf_stage1_workspace() bytes of this thread */
};

struct mf_stage2_args {
    struct mf_sorted_view sorted;
    struct mf_tensor_ref h, w;
    const float *bias; /* b2, if the shape has it */
    uint16_t *out;     /* z or y */
    void *workspace;   /* mf_stage2_workspace() bytes of this thread */
};

/* Returns the bytes of workspace per thread, a multiple of 64. */
size_t mf_stage1_workspace(const struct mf_stage_plan *p);
size_t mf_stage2_workspace(const struct mf_stage_plan *p);
/* Returns the bytes for the partial sums of all sorted rows, or 0 if K is not split. */
size_t mf_stage1_partial(const struct mf_stage_plan *p);

/* Does the part of thread `thread` of n_threads. With p->quantise or p->ksplit > 1, stage 1 contains a pool
 * barrier. */
void mf_stage1_run(const struct mf_stage_plan *p, const struct mf_stage1_args *a, int thread, int n_threads);
void mf_stage2_run(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread, int n_threads);

/* Applies the activation to n columns of one row of h. `gate_up` holds the sums, which the function modifies.
 * `weight` is the routing weight, or 1. `bias` is NULL or holds the biases of these columns, which are added
 * after the weight is applied. */
void mf_stage_activate(const struct mf_cpu_ops *ops, const struct mf_shape *shape, float *const gate_up[2],
                       const float *const bias[2], float weight, size_t n, uint16_t *h);
/* Quantises a bf16 row of n values and stores it as row `row` of a tensor's parts. The codec must have scales
 * per row. `floats` is scratch for n values. The function uses the global factor but does not store that
 * factor in the tensor. */
void mf_stage_quantise_row(const struct mf_codec *c, const uint16_t *from, size_t n, size_t row, float global,
                           float *floats, const struct mf_tensor_ref *to);

/* Returns the number of rows of the block at row0 that are not padding. Padding rows are at the end of a
 * block. */
int mf_block_rows(const int32_t *ids, int64_t row0, int block_m, int topk);
