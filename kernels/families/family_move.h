/* Family move on CPUs: interface between family_move.c (steps and names) and family_move_run.c
 * (execution). */
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/families/family_cpu.h"

enum mf_move_kind {
    MF_MOVE_SORT,
    MF_MOVE_ALIGN,       /* vLLM's sort */
    MF_MOVE_SORT_GATHER, /* sort and gather x into expert order */
    MF_MOVE_FROM_ALIGNED,
    MF_MOVE_QUANT1,
    MF_MOVE_GATHER,
    /* quantises a row of x once and writes the result to all its places in expert order */
    MF_MOVE_QUANT1_GATHER,
    MF_MOVE_ACT,
    MF_MOVE_QUANT2,
    MF_MOVE_COMBINE,
    MF_MOVE_COMBINE_WEIGHTED,
    MF_MOVE_DEQUANT_W1, /* dequantises the weights of active experts to bf16 */
    MF_MOVE_DEQUANT_W2,
    MF_MOVE_DEQUANT_W12, /* w1 and w2 in one step */
    MF_MOVE_N_,
};

/* Method of gathering rows. */
enum mf_move_way {
    MF_MOVE_ROWS,        /* in expert order, one read per row */
    MF_MOVE_ROWS_STREAM, /* in expert order, one read per row; non-temporal stores */
    MF_MOVE_ONCE,        /* in token order by the inverse map, one read per token; non-temporal stores */
    MF_MOVE_N_WAYS_,
};

struct mf_kernel {
    enum mf_move_kind kind;
    struct mf_shape shape;
    struct mf_stage_plan plan; /* ops, format and scales */
    int32_t block_m;
    int threads;
    enum mf_sort sort;              /* kinds that sort */
    enum mf_move_way way;           /* kinds that gather */
    int panel;                      /* kinds that dequantise weights: panel of the input, 1 (row), 16 or 32 */
    size_t thread_bytes;            /* workspace per thread; the threads' areas come first */
    size_t sort_bytes;              /* then the sort's workspace */
    size_t map_bytes;               /* then int32 [T, k]: row of each route; for a combine also float [T, k]:
                                       bf16 weights as float; for kinds that dequantise weights
                                       int32 [E + 1]: number of active experts and their indices */
    const struct mf_launch *launch; /* the running launch */
};

bool mf_move_combines(enum mf_move_kind kind);
/* Writes the weights that a kind dequantises, in the order of the kind's outputs. Returns the number of
 * weights. */
int mf_move_decodes(enum mf_move_kind kind, enum mf_tensor ret[2]);
int mf_move_run(struct mf_kernel *k, const struct mf_launch *l);
