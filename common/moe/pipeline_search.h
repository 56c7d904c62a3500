/* Ranking: the cheapest legal pipelines of a layer, as a K-best search over a graph of states (design
 * section 3). Pure: arrays in, arrays out; the answer does not depend on the order of the steps given.
 *
 * A pipeline is legal when
 *   - its steps cover every op of the layer exactly once;
 *   - each need of a step is an input of the layer, a weight, or given by a step before it;
 *   - all steps that care agree on block_m, and all that read a weight agree on that weight's layout;
 *   - what a step that covers nothing (a conversion) newly gives is given by no other step, and used later;
 *   - what a step zeroes beside what it covers is used later and was not zeroed before, where another step is the same but for that;
 *   - y is given in token order in the layer's format.
 * Two orders of the same steps are one pipeline. Its cost is the sum of its steps' times and one gap a launch. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/step.h"
#include "common/moe/tensor_spec.h"

#define MF_PATH_STEPS_MAX     16
#define MF_PATH_STRUCTURE_MAX 160
#define MF_PATH_LAYOUT_MAX    (2 * MF_ORDER_MAX + 8)
#define MF_PATH_KEEP_MAX      32

struct mf_path_step {
    const struct mf_step *step;
    double us;
};

struct mf_path_problem {
    mf_ops ops;                       /* of the layer */
    enum mf_format format;            /* of y */
    const struct mf_path_step *steps; /* right and timed ones only; (family, name) is unique */
    size_t n_steps;
    double gap_us; /* of one launch */
    int keep;      /* 1 … MF_PATH_KEEP_MAX, of each (structure, block_m, layouts) */
};

struct mf_path {
    double us;                               /* forecast */
    uint64_t structure;                      /* equal for equal structures; see mf_path_structure */
    int32_t block_m;                         /* 0 when no step cares */
    char w1[MF_ORDER_MAX], w2[MF_ORDER_MAX]; /* layouts; "" when it reads no such weight */
    int32_t n;
    int32_t steps[MF_PATH_STEPS_MAX]; /* indices into the problem's steps, in an order that runs */
};

/* The `keep` cheapest of every (structure, block_m, w1, w2), all sorted by (us, names). *ret_n may be 0. The
 * caller frees *ret. -E2BIG: more distinct tensor specs or states than the ceilings in pipeline_search.c allow. */
int mf_path_find(const struct mf_path_problem *p, struct mf_path **ret, size_t *ret_n);

/* "sort+zero | gather+gemm1+act | gemm2+weight+combine": which ops go together, in the order of the layer, and which step
 * gives a zeroed y beside what it covers: what that costs depends on what else runs then, so by it pipelines take another
 * ratio of the sum of their steps. Conversions do not show. */
void mf_path_structure(uint64_t structure, char buf[MF_PATH_STRUCTURE_MAX]);
/* Whether one step does both GEMMs. */
bool mf_path_in_one(uint64_t structure);
/* Whether a text is a layout as below. */
bool mf_path_is_layout(const char *text);
/* "w1=panel16 w2=panel16" */
void mf_path_layout(const struct mf_path *path, char buf[MF_PATH_LAYOUT_MAX]);

/* The ops that no step covers, given the statuses above; 0 when each is covered by some step. */
mf_ops mf_path_uncovered(const struct mf_path_problem *p);
