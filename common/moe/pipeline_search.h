/* Finds the cheapest legal pipelines of a layer: a K-best search over a graph of states. Pure function; the
 * result does not depend on the order of the input steps.
 *
 * A pipeline is legal if
 *   - its steps cover every op of the layer exactly once;
 *   - each tensor spec that a step reads is an input of the layer, a weight, or written by an earlier step;
 *   - all steps with a block_m agree on it, and all steps that read a weight agree on its layout;
 *   - each new tensor spec that a conversion (a step without ops) writes is used later, and no other step
 *     writes it;
 *   - zeros that a step writes in addition to its ops are used later and were not written before. This
 *     applies only if an otherwise equal step without the zeros exists;
 *   - y is written in token order and in the layer's format.
 * Different orders of the same steps are one pipeline. Its cost is the sum of its step times plus one launch
 * gap per step. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/cleanup.h"
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
    mf_ops ops;                       /* ops of the layer */
    enum mf_format format;            /* format of y */
    const struct mf_path_step *steps; /* only correct, timed steps; (family, name) is unique */
    size_t n_steps;
    double gap_us; /* launch gap of one step */
    /* K, the maximum number of pipelines per (structure, block_m, layouts), from 1 to MF_PATH_KEEP_MAX */
    int keep;
};

struct mf_path {
    double us; /* forecast time */
    /* the fused ops and the step that zeroes y; mf_path_structure() prints it */
    uint64_t structure;
    int32_t block_m;                         /* 0 if no step depends on block_m */
    char w1[MF_ORDER_MAX], w2[MF_ORDER_MAX]; /* layouts; "" if the weight is not read */
    int32_t n;
    int32_t steps[MF_PATH_STEPS_MAX]; /* indices into the problem's steps, in execution order */
};

/* A search in slices. The problem must stay unchanged while the search exists. -E2BIG: there are more
 * distinct tensor specs or weight layouts than the limits in pipeline_search.c. */
struct mf_path_search;
int mf_path_search_new(const struct mf_path_problem *p, struct mf_path_search **ret);
struct mf_path_search *mf_path_search_free(struct mf_path_search *s);
MF_DEFINE_CLEANUP(struct mf_path_search *, mf_path_search_free);
/* Searches until about `work` units of work are done. A unit takes about 20 ns. Returns 1 once the search
 * has ended, else 0. */
int mf_path_search_run(struct mf_path_search *s, uint64_t work);
/* Takes the result of an ended search: the `keep` cheapest paths for each combination of structure, block_m,
 * w1 and w2, sorted by (us, names). *ret_n may be 0. The caller frees *ret. Returns 1 if the search was cut,
 * because it exceeded its budget (some cheaper paths may be missing), else 0. */
int mf_path_search_take(struct mf_path_search *s, struct mf_path **ret, size_t *ret_n);

/* Searches without slices, within the same budget. */
int mf_path_find(const struct mf_path_problem *p, struct mf_path **ret, size_t *ret_n);

/* Prints a structure, for example "sort+zero | gather+gemm1+act | gemm2+weight+combine". It names the ops of
 * each step, in the order of the layer, and marks the step that also zeroes y. Conversions are omitted.
 * Zeroing is part of the structure because its cost depends on the work that runs at the same time, so it
 * changes the ratio of the pipeline's time to the sum of its step times. */
void mf_path_structure(uint64_t structure, char buf[MF_PATH_STRUCTURE_MAX]);
/* True if one step computes both GEMMs. */
bool mf_path_fuses_gemms(uint64_t structure);
/* True if the text has the form that mf_path_layout prints. */
bool mf_path_is_layout(const char *text);
/* Prints "w1=panel16 w2=panel16". */
void mf_path_layout(const struct mf_path *path, char buf[MF_PATH_LAYOUT_MAX]);

/* Returns the ops that no step of the problem covers. */
mf_ops mf_path_uncovered(const struct mf_path_problem *p);
