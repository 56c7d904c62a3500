/* libfmoe: the production operator. Opens a tuned table, picks a row by production's look-up, runs its
 * pipeline. What is tuned and what is served are one code: the tuner's race times mf_fmoe_pipeline_run too. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/pipeline_text.h"
#include "common/moe/production_lookup.h"
#include "common/moe/shape.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "kernels/core/tensors.h"

/* A pipeline bound to a shape: its steps opened, the tensor specs between them laid out in one arena. */
struct mf_pipeline;

/* text: its steps (common/moe/pipeline_text.h), of extra's families (NULL: none) or the registry's. -EINVAL with the sentence in why: a
 * name of no family, a step that is not legal for the shape, an tensor spec that nothing gives, an op covered twice or not at
 * all. */
int mf_pipeline_open(struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                     struct mf_pipeline **ret);
/* The same of steps as their families have offered them for the shape, which are not asked for them once more. */
int mf_pipeline_open_steps(struct mf_device *device, const struct mf_shape *shape,
                           const struct mf_family_set *extra, const struct mf_step *steps, size_t n,
                           char *why, size_t why_cap, struct mf_pipeline **ret);
struct mf_pipeline *mf_pipeline_close(struct mf_pipeline *p);
/* Bytes of arena a run needs: tensor specs between steps and the largest workspace, 64-byte aligned. */
size_t mf_pipeline_arena_bytes(const struct mf_pipeline *p);
size_t mf_pipeline_n_steps(const struct mf_pipeline *p);
const struct mf_step *mf_pipeline_step(const struct mf_pipeline *p, size_t i);
/* The weight tensor specs it wants, layout included. */
struct mf_tensor_spec mf_pipeline_weight(const struct mf_pipeline *p, enum mf_tensor w);

/* From here on a run is of so many tokens, 1 to those that it was opened for: a table's row serves every count that pads to
 * its own. Bind again behind it. Allocates nothing. -EINVAL: other counts; -ENOTSUP: a step is of a family that serves the
 * count only that it was opened for (mf_family.set_token_count). */
int mf_pipeline_retoken(struct mf_pipeline *p, int64_t token);

struct mf_fmoe_args {
    struct mf_tensor_ref x; /* bf16, in token order */
    struct mf_tensor_ref
        topk; /* ids of all ranks' experts: those that are none, or not here, contribute nothing */
    struct mf_tensor_ref w1, w2; /* of the experts that are here, as mf_pipeline_weight says */
    struct mf_tensor_ref y;      /* bf16 [T,H] */
    struct mf_tensor_ref calib;  /* of formats with a global factor (NVFP4); else unused */
    struct mf_tensor_ref b1, b2; /* of shapes that have such a bias: float [E,2I], gate first, and [E,H] */
    void *arena;
};
/* Resolves every step's buffers for these arguments; args is copied. Allocates nothing. */
void mf_pipeline_bind(struct mf_pipeline *p, const struct mf_fmoe_args *args);
/* Prepares all steps for what was bound, before a run that is timed (mf_family.prepare). */
int mf_pipeline_prepare(struct mf_pipeline *p);
/* Launches step i, or all of them, on what was bound. No allocation, lock or syscall. */
int mf_pipeline_launch(struct mf_pipeline *p, size_t i);
int mf_pipeline_run(struct mf_pipeline *p);

/* A tuned table in memory: rows of one device class, keyed as production does. */
struct mf_fmoe;
/* Reads a set of tables, paths[n], that were written for consumer moefarm; extra as in mf_pipeline_open. A row that is malformed or
 * of another kind of device is refused at load, and so is a key that two rows of the set have: -EBADMSG with file, line and
 * reason in why. */
int mf_fmoe_open(struct mf_device *device, const char *const *paths, size_t n,
                 const struct mf_family_set *extra, char *why, size_t why_cap, struct mf_fmoe **ret);
struct mf_fmoe *mf_fmoe_close(struct mf_fmoe *f);
size_t mf_fmoe_n_rows(const struct mf_fmoe *f);
/* Rows of the class that are not served, for a step of theirs is of a family that this build does not have: one that
 * somebody brought to the farm in a foreign runner or a shared object. Calls for them find no row. i < n_foreign. */
size_t mf_fmoe_n_foreign(const struct mf_fmoe *f);
int64_t mf_fmoe_foreign_line(const struct mf_fmoe *f, size_t i);
const char *mf_fmoe_foreign_path(const struct mf_fmoe *f, size_t i);
/* Rows of any class. */
size_t mf_fmoe_n_read(const struct mf_fmoe *f);
#define MF_FMOE_FOREIGN_WHY "column pipeline names a family that this build does not have"
/* Row i: its shape, its time, its pipeline's text, which lives as long as f. */
int mf_fmoe_row(const struct mf_fmoe *f, size_t i, struct mf_shape *ret_shape, double *ret_us,
                const char **ret_pipeline);
/* The file of row i, and its line there. */
const char *mf_fmoe_row_place(const struct mf_fmoe *f, size_t i, int64_t *ret_line);
/* The device model that row i was tuned on; "" where the table does not say. */
const char *mf_fmoe_row_model(const struct mf_fmoe *f, size_t i);
/* Rows that were tuned on another device model of the class than that one: an H100 and an H200 are one class, and their memory is
 * not equally fast. *ret_there: the first such row's; "" for none. */
size_t mf_fmoe_n_elsewhere(const struct mf_fmoe *f, const char *here, const char **ret_there);
/* The row that production would use for a call of that many tokens, by common/moe/production_lookup.h: MF_LOOKUP_MOEFARM or
 * MF_LOOKUP_DROP_IN. Another rank's row opens for this shape as for its own. -ENOENT: none. */
int mf_fmoe_lookup(const struct mf_fmoe *f, const struct mf_shape *shape, enum mf_lookup rules,
                   size_t *ret_row);

/* What serves a call for which there is no row, in this order:
 *
 *   1. the row of the same layer model with the least larger token count, or else the greatest smaller one
 *   2. of rows of the same formats, activation and form, that of the layer nearest in size: the sum of |log2| of the ratios of
 *      tokens, model_dim, inter_dim, expert and topk is least
 *   3. the pipeline that is cheapest by each step's FLOPs and bytes at a nominal balance of the device's kind; larger expert
 *      blocks pay for rows that only pad, smaller ones for weights that are read again
 *
 * A row is taken where this build offers every step of it for the shape, with the weights where they lie. Nothing is compiled
 * or opened. Its sentence in why on -ENOENT: no pipeline covers the layer. */
struct mf_fmoe_choice {
    char names[MF_PIPELINE_TEXT_MAX];
    size_t row; /* SIZE_MAX: by the third rule */
};
/* f: NULL for no table. w1, w2: the layouts that the weights lie in; NULL for any. shape: its token count is a bucket. */
int mf_fmoe_fallback(const struct mf_fmoe *f, const struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *w1, const char *w2, char *why,
                     size_t why_cap, struct mf_fmoe_choice *ret);

/* Experts of a rank that are no range (round robin, balanced by load, a mask): a shape says how many of ALL are here, as ep:0/ALL,
 * since no kernel is faster for which they are, and a call says which. expert_map has each expert's place in w1 and w2, from 0
 * on and in any order, or -1 (vLLM's expert_map; of AITER's binary expert_mask the places are its running count). Rewrites
 * ids [T, k] of all ranks' experts into ids of the shape's range, -1 for what is not here or no expert; in place where to is
 * ids. -EINVAL with the sentence in *ret_why (static text) for a shape that is no rank's, or a place beyond its experts, or
 * one that two experts have; nothing is written then. */
int mf_fmoe_place(const struct mf_shape *shape, const int32_t *expert_map, const int32_t *ids, int32_t *to,
                  const char **ret_why);
