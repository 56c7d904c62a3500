/* Family move's own: a step as family_move.c configures it and family_move_run.c runs it. */
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/families/family_cpu.h"

enum mf_move_kind {
    MF_MOVE_SORT,
    MF_MOVE_ALIGN,       /* the sort as vLLM defines it */
    MF_MOVE_SORT_GATHER, /* with everything up to x in expert order */
    MF_MOVE_FROM_ALIGNED,
    MF_MOVE_QUANT1,
    MF_MOVE_GATHER,
    MF_MOVE_QUANT1_GATHER, /* a row is quantised once and written to all of its places */
    MF_MOVE_ACT,
    MF_MOVE_QUANT2,
    MF_MOVE_COMBINE,
    MF_MOVE_COMBINE_WEIGHTED,
    MF_MOVE_DEQUANT_W1, /* weights of codes as bf16, of experts with a route */
    MF_MOVE_DEQUANT_W2,
    MF_MOVE_DEQUANT_W12, /* both lists in one step */
    MF_MOVE_N_,
};

/* How rows are gathered. */
enum mf_move_way {
    MF_MOVE_ROWS,        /* in expert order, each row fetched */
    MF_MOVE_ROWS_STREAM, /* the same, written around the caches */
    MF_MOVE_ONCE, /* in token order by the inverse map, each token read once; written around the caches */
    MF_MOVE_N_WAYS_,
};

struct mf_kernel {
    enum mf_move_kind kind;
    struct mf_shape shape;
    struct mf_stage_plan plan; /* ops, format and scales */
    int32_t block_m;
    int threads;
    enum mf_sort sort;              /* of kinds that sort */
    enum mf_move_way way;           /* of kinds that gather */
    int panel;                      /* of the codes, of kinds that decode weights: 1 (row), 16, 32 */
    size_t thread_bytes;            /* workspace of one thread, the first of all */
    size_t sort_bytes;              /* then of the sort */
    size_t map_bytes;               /* then int32 [T, k]: row of each route; of kinds that decode weights
                                       int32 [E + 1]: how many experts have a route, and which */
    const struct mf_launch *launch; /* of the running launch */
};

/* A combine that leaves out slots whose expert is not here. */
bool mf_move_skips(const struct mf_kernel *k);
/* The weights that a kind decodes, in the order of what it gives; -> how many. */
int mf_move_decodes(enum mf_move_kind kind, enum mf_tensor ret[2]);
int mf_move_run(struct mf_kernel *k, const struct mf_launch *l);
