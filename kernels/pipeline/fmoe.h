/* Pipelines and tuned tables as libfmoe runs them: opens a table, chooses a row by the lookup rules of
 * production, runs its pipeline. The tuner's race times the same code (mf_pipeline_run). */
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

/* A pipeline for one shape: its opened steps, and one arena for the tensors between steps. */
struct mf_pipeline;

/* Opens a pipeline from its text (common/moe/pipeline_text.h). Families come from `extra` (may be NULL), then
 * from the registry. Returns -EINVAL, with the reason in why, for an unknown family, a step that is not legal
 * for the shape, an input tensor spec that no step gives, or an op that is covered twice or not covered. */
int mf_pipeline_open(struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                     struct mf_pipeline **ret);
/* Opens a pipeline without enumeration, from steps that their families have already offered for this shape.
 */
int mf_pipeline_open_steps(struct mf_device *device, const struct mf_shape *shape,
                           const struct mf_family_set *extra, const struct mf_step *steps, size_t n,
                           char *why, size_t why_cap, struct mf_pipeline **ret);
struct mf_pipeline *mf_pipeline_close(struct mf_pipeline *p);
/* Returns the arena size in bytes: tensors between steps and the largest workspace, each 64-byte aligned. */
size_t mf_pipeline_arena_bytes(const struct mf_pipeline *p);
size_t mf_pipeline_n_steps(const struct mf_pipeline *p);
const struct mf_step *mf_pipeline_step(const struct mf_pipeline *p, size_t i);
/* Returns the tensor spec, with its layout, in which the pipeline reads weight w. */
struct mf_tensor_spec mf_pipeline_weight(const struct mf_pipeline *p, enum mf_tensor w);

/* Sets the token count of the following runs, from 1 to the count at open, because a table row serves every
 * count that pads to the row's count. Call mf_pipeline_bind again afterwards. Does not allocate. Returns
 * -EINVAL if the count is out of range, or -ENOTSUP if a step's family has no mf_family.set_token_count. */
int mf_pipeline_set_token_count(struct mf_pipeline *p, int64_t token);

struct mf_fmoe_args {
    struct mf_tensor_ref x; /* bf16, in token order */
    /* ids number the experts of all ranks; invalid and remote ids contribute nothing. */
    struct mf_tensor_ref topk;
    struct mf_tensor_ref w1, w2; /* local experts, in the tensor specs of mf_pipeline_weight */
    struct mf_tensor_ref y;      /* bf16 [T,H] */
    struct mf_tensor_ref calib;  /* only for formats with a global factor (NVFP4) */
    struct mf_tensor_ref b1, b2; /* only for shapes with this bias: f32 [E,2I], gate first, and [E,H] */
    void *arena;
};
/* Sets every step's buffers from these arguments, which it copies. Does not allocate. */
void mf_pipeline_bind(struct mf_pipeline *p, const struct mf_fmoe_args *args);
/* Prepares all steps with the bound arguments, before a timed run (mf_family.prepare). */
int mf_pipeline_prepare(struct mf_pipeline *p);
/* mf_pipeline_launch launches step i with the bound arguments, mf_pipeline_run all steps. Neither function
 * allocates, locks or makes system calls. */
int mf_pipeline_launch(struct mf_pipeline *p, size_t i);
int mf_pipeline_run(struct mf_pipeline *p);

/* A tuned table in memory: rows of one device class, with production's keys. */
struct mf_fmoe;
/* Reads n tables that were exported with consumer=moefarm. `extra` is as in mf_pipeline_open. Returns
 * -EBADMSG, with file, line and reason in why, if a row is malformed or for another device kind, or if two
 * rows have the same key. */
int mf_fmoe_open(struct mf_device *device, const char *const *paths, size_t n,
                 const struct mf_family_set *extra, char *why, size_t why_cap, struct mf_fmoe **ret);
struct mf_fmoe *mf_fmoe_close(struct mf_fmoe *f);
size_t mf_fmoe_n_rows(const struct mf_fmoe *f);
/* Returns the number of rows of the class that are not served, because a step belongs to a family that this
 * build does not have, for example from a foreign runner or a shared object. Lookups do not find these rows.
 * In the functions below, i < n_foreign. */
size_t mf_fmoe_n_foreign(const struct mf_fmoe *f);
int64_t mf_fmoe_foreign_line(const struct mf_fmoe *f, size_t i);
const char *mf_fmoe_foreign_path(const struct mf_fmoe *f, size_t i);
/* Returns the number of rows of all device classes. */
size_t mf_fmoe_n_read(const struct mf_fmoe *f);
#define MF_FMOE_FOREIGN_REASON "column pipeline names a family that this build does not have"
/* Returns shape, time and pipeline text of row i, with current family names. The text lives as long as f.
 * Returns -ENOENT if there is no row i. */
int mf_fmoe_row(const struct mf_fmoe *f, size_t i, struct mf_shape *ret_shape, double *ret_us,
                const char **ret_pipeline);
/* Returns the file of row i and its line. */
const char *mf_fmoe_row_location(const struct mf_fmoe *f, size_t i, int64_t *ret_line);
/* Returns the device model on which row i was tuned, or "" if the table does not name it. */
const char *mf_fmoe_row_model(const struct mf_fmoe *f, size_t i);
/* Returns the number of rows that were tuned on a device model of the class other than `here`: H100 and H200
 * are one class, but their HBM differs in bandwidth. *ret_there is the model of the first such row, or "" if
 * there is none. */
size_t mf_fmoe_n_other_model(const struct mf_fmoe *f, const char *here, const char **ret_there);
/* Finds the row that production would use for this shape, by the rules of common/moe/production_lookup.h
 * (MF_LOOKUP_MOEFARM or MF_LOOKUP_DROP_IN). A row that was tuned for another rank of the same layer model
 * serves this shape too. Returns -ENOENT if there is no such row. */
int mf_fmoe_lookup(const struct mf_fmoe *f, const struct mf_shape *shape, enum mf_lookup rules,
                   size_t *ret_row);

/* Choice of a pipeline for a call without a row, in this order:
 *
 *   1. the row of the same layer model with the smallest larger token count; if there is none, the row with
 *      the largest smaller count
 *   2. the row nearest in size among rows with the same formats, activation and form: the one with the least
 *      sum of |log2| of the ratios of tokens, model_dim, inter_dim, expert and topk
 *   3. the cheapest pipeline by a roofline estimate from each step's FLOPs and bytes. Larger expert blocks
 *      add the cost of padding rows, smaller blocks the cost of reading weights again.
 *
 * A row is usable if this build offers all its steps for the shape and the weight layouts. Nothing is
 * compiled or opened. */
struct mf_fmoe_choice {
    char names[MF_PIPELINE_TEXT_MAX];
    size_t row; /* SIZE_MAX if rule 3 chose the pipeline */
};
/* `f` is NULL if there is no table. `w1` and `w2` are the layouts in which the weights are stored; NULL
 * allows any layout. The token count of `shape` is a padded count. Returns -ENOENT, with the reason in why,
 * if no pipeline covers the layer. */
int mf_fmoe_fallback(const struct mf_fmoe *f, const struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *w1, const char *w2, char *why,
                     size_t why_cap, struct mf_fmoe_choice *ret);

/* Translates expert ids for a rank whose experts are not a contiguous range (round robin, balanced by load, a
 * mask). The shape then has the form ep:0/ALL, because kernel speed does not depend on which experts are
 * local, and each call supplies expert_map. For each expert of all ranks, expert_map has the index in w1 and
 * w2, or -1 if the expert is remote (vLLM's expert_map; for AITER's binary expert_mask, the running count of
 * ones). Indices are distinct, from 0 on, in any order.
 *
 * Rewrites ids [T, k] of all ranks into ids of the shape's range, or -1 for remote or invalid ids. `to` may
 * be `ids`. Returns -EINVAL with a static reason in *ret_why if the shape has no expert parallelism, or if an
 * index is out of range or used twice. Returns -ENOMEM if out of memory. After an error, nothing was written.
 */
int mf_fmoe_remap_ids(const struct mf_shape *shape, const int32_t *expert_map, const int32_t *ids,
                      int32_t *to, const char **ret_why);
