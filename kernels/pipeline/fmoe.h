/* Pipelines and tuned tables of libfmoe: opens a table, chooses a row by the lookup rules of production, and
 * runs the row's pipeline. The tuner's races time this same code (mf_pipeline_run). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/pipeline_text.h"
#include "common/moe/production_lookup.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "kernels/core/tensors.h"

/* A pipeline for one shape: its opened steps, and one arena for the tensors between steps. */
struct mf_pipeline;

/* Opens a pipeline from its text (common/moe/pipeline_text.h). Searches each step's family in `extra` (may be
 * NULL), then in the registry. Returns -EINVAL, with the reason in why, for an unknown family, a step that is
 * not legal for the shape, an input tensor spec that no earlier step writes, or an op that no step or more
 * than one step covers. */
int mf_pipeline_open(struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                     struct mf_pipeline **ret);
/* Opens a pipeline from steps that their families have already offered for this shape, and therefore does not
 * enumerate. */
int mf_pipeline_open_steps(struct mf_device *device, const struct mf_shape *shape,
                           const struct mf_family_set *extra, const struct mf_step *steps, size_t n,
                           char *why, size_t why_cap, struct mf_pipeline **ret);
struct mf_pipeline *mf_pipeline_close(struct mf_pipeline *p);
/* Returns the arena size in bytes: the tensors between steps and the largest workspace of a step, each
 * 64-byte aligned. */
size_t mf_pipeline_arena_bytes(const struct mf_pipeline *p);
size_t mf_pipeline_n_steps(const struct mf_pipeline *p);
const struct mf_step *mf_pipeline_step(const struct mf_pipeline *p, size_t i);
/* Returns the tensor spec, including the layout, in which weight w must be passed to the pipeline. */
struct mf_tensor_spec mf_pipeline_weight(const struct mf_pipeline *p, enum mf_tensor w);

struct mf_fmoe_args {
    struct mf_tensor_ref x; /* bf16, in token order */
    /* An id is the number of an expert among the experts of all ranks. Invalid ids and those of remote
     * experts contribute nothing to y. */
    struct mf_tensor_ref topk;
    struct mf_route_types routes; /* element types of topk */
    struct mf_tensor_ref w1, w2;  /* local experts, in the tensor specs of mf_pipeline_weight */
    struct mf_tensor_ref y;       /* bf16 [T,H] */
    struct mf_tensor_ref calib;   /* only for formats with a global factor (NVFP4) */
    /* only for shapes with these biases: b1 f32 [E,2I] with gate first, b2 f32 [E,H] */
    struct mf_tensor_ref b1, b2;
    void *arena;
};
/* Returns where a pipeline stores a tensor between two steps for these arguments, its number of rows, and the
 * step that writes it. The contents are valid at least until the last step that reads them has run. Returns
 * NULL parts if the pipeline does not store the tensor in this format. */
struct mf_tensor_ref mf_pipeline_between(const struct mf_pipeline *p, enum mf_tensor tensor,
                                         enum mf_format format, const struct mf_fmoe_args *args,
                                         int64_t *ret_rows, size_t *ret_step);
/* Copies these arguments and sets the buffers of every step from them. Does not allocate. */
void mf_pipeline_bind(struct mf_pipeline *p, const struct mf_fmoe_args *args);
/* Prepares all steps for a timed run with the bound arguments (mf_family.prepare). */
int mf_pipeline_prepare(struct mf_pipeline *p);
/* True if a step replays captured launches (mf_family.captures). mf_pipeline_warm_up then prepares and
 * launches the steps one after the other with the bound arguments, so that each finds valid inputs when it
 * captures its launches. Call it once before the first run with new arguments. */
bool mf_pipeline_captures(const struct mf_pipeline *p);
int mf_pipeline_warm_up(struct mf_pipeline *p);
/* Finishes all steps after a timed run (mf_family.finish). */
int mf_pipeline_finish(struct mf_pipeline *p);
/* Returns why a step of a prepared pipeline cannot be captured (mf_family.eager), and the step in *ret_step;
 * NULL if all steps can be captured. */
const char *mf_pipeline_eager(const struct mf_pipeline *p, const struct mf_step **ret_step);
/* mf_pipeline_launch launches step i with the bound arguments, and mf_pipeline_run launches all steps.
 * Neither function allocates, locks or makes system calls. */
int mf_pipeline_launch(struct mf_pipeline *p, size_t i);
int mf_pipeline_run(struct mf_pipeline *p);
/* Launches all steps once with these arguments, in a stream, for a token count from 1 to the count at which
 * the pipeline was opened, because a table row serves every count that is padded to the row's count. The
 * bound arguments are neither used nor changed. If the families of all steps have mf_family.copy, as on a
 * GPU, several threads may call one pipeline at once, each with its own arena and output. Does not allocate,
 * lock or make system calls. Returns -EINVAL if the count is out of range, -ENOTSUP if a step's family has no
 * mf_family.set_token_count, or the error of a launch. */
int mf_pipeline_call(const struct mf_pipeline *p, int64_t token, const struct mf_fmoe_args *args,
                     void *stream);

/* A tuned table in memory: rows of one device class, with the keys by which production looks rows up. */
struct mf_fmoe;
/* Reads n tables that were exported with consumer=moefarm. `extra` is as in mf_pipeline_open. Returns
 * -EBADMSG, with file, line and reason in why, if a row is malformed or for another device kind, or if two
 * rows of one class have the same key. */
int mf_fmoe_open(struct mf_device *device, const char *const *paths, size_t n,
                 const struct mf_family_set *extra, char *why, size_t why_cap, struct mf_fmoe **ret);
/* Like mf_fmoe_open with one table that may also have AITER's own rows, which have no pipeline. Leaves these
 * rows out. */
int mf_fmoe_open_mixed(struct mf_device *device, const char *path, const struct mf_family_set *extra,
                       char *why, size_t why_cap, struct mf_fmoe **ret);
struct mf_fmoe *mf_fmoe_close(struct mf_fmoe *f);
size_t mf_fmoe_n_rows(const struct mf_fmoe *f);
/* Returns the number of rows of the class that are not served, because the family of a step is not in this
 * build, for example because a Python module or a shared object provides it. Lookups do not find these rows.
 * mf_fmoe_foreign_line and mf_fmoe_foreign_path return the line and file of the i-th of these rows. */
size_t mf_fmoe_n_foreign(const struct mf_fmoe *f);
int64_t mf_fmoe_foreign_line(const struct mf_fmoe *f, size_t i);
const char *mf_fmoe_foreign_path(const struct mf_fmoe *f, size_t i);
/* Returns the number of rows that were read, of all device classes. */
size_t mf_fmoe_n_read(const struct mf_fmoe *f);
#define MF_FMOE_FOREIGN_REASON "column pipeline names a family that this build does not have"
/* Returns shape, time and pipeline text of row i, with current family names. The text is valid until f is
 * closed. Returns -ENOENT if there is no row i. */
int mf_fmoe_row(const struct mf_fmoe *f, size_t i, struct mf_shape *ret_shape, double *ret_us,
                const char **ret_pipeline);
/* Returns the name of the file that contains row i; *ret_line is the line of the row. */
const char *mf_fmoe_row_location(const struct mf_fmoe *f, size_t i, int64_t *ret_line);
/* Returns the device model on which row i was tuned, or "" if the table does not name it. */
const char *mf_fmoe_row_model(const struct mf_fmoe *f, size_t i);
/* Returns the number of rows that were tuned on another device model of the class than `here`. This matters
 * because H100 and H200 are one class, but their HBM differs in bandwidth. *ret_there is the model of the
 * first such row, or "" without such a row. */
size_t mf_fmoe_n_other_model(const struct mf_fmoe *f, const char *here, const char **ret_there);
/* Finds the row that production would use for this shape, by the rules of common/moe/production_lookup.h
 * (MF_LOOKUP_MOEFARM or MF_LOOKUP_DROP_IN). A row that was tuned for another rank of the same layer model
 * serves this shape too. Returns -ENOENT if there is no such row. */
int mf_fmoe_lookup(const struct mf_fmoe *f, const struct mf_shape *shape, enum mf_lookup rules,
                   size_t *ret_row);

/* The pipeline chosen for a call that has no table row: the one with the least modelled time
 * (kernels/pipeline/cost.h) among
 *
 *   - the pipelines of the nearest rows with the same formats, activation and form: rows of the same layer
 *     model for other token counts, and rows of other layer models
 *   - the pipeline with the least estimate
 *
 * A row is usable if this build offers all its steps for the shape and the weight layouts. Choosing a
 * pipeline compiles and opens nothing. */
struct mf_fmoe_choice {
    char names[MF_PIPELINE_TEXT_MAX];
    size_t row;                 /* SIZE_MAX: the pipeline is not that of a row */
    double us;                  /* modelled time; 0: there was no row to compare with */
    char reason[MF_REASON_MAX]; /* why this pipeline was chosen */
};
/* Chooses a pipeline as described above. `f` is NULL if there is no table. `w1` and `w2` are the layouts in
 * which the weights are stored; NULL allows any layout. The token count of `shape` is already padded. Returns
 * -ENOENT, with the reason in why, if no pipeline covers the layer. */
int mf_fmoe_fallback(const struct mf_fmoe *f, const struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *w1, const char *w2, char *why,
                     size_t why_cap, struct mf_fmoe_choice *ret);

/* Chooses the pipeline with the least estimated time of those that store h in bf16 before they quantise it.
 * Calibration reads this h (mf_pipeline_between). Returns the errors of mf_fmoe_fallback. */
int mf_fmoe_observing_h(const struct mf_device *device, const struct mf_shape *shape, const char *w1,
                        const char *w2, char *why, size_t why_cap, struct mf_fmoe_choice *ret);

/* Translates expert ids for a rank whose experts are not a contiguous range, for example because they were
 * assigned round robin, by load or by a mask. The shape then has the form ep:0/ALL, because kernel speed does
 * not depend on which experts are local, and each call supplies expert_map. For each expert of all ranks,
 * expert_map has its index in w1 and w2, or -1 if the expert is remote. This is vLLM's expert_map; from
 * AITER's binary expert_mask, the indices are computed by counting the ones before each one. The indices are
 * 0, 1, 2, … in any order, without duplicates.
 *
 * Rewrites ids [T, k] of all ranks into ids of the shape's range, or -1 for remote or invalid ids. `to` may
 * be `ids`. Returns -EINVAL with a static reason in *ret_why if the shape has no expert parallelism, or if an
 * index is out of range or used twice. Returns -ENOMEM if out of memory. After an error, nothing was written.
 */
int mf_fmoe_remap_ids(const struct mf_shape *shape, const int32_t *expert_map, const int32_t *ids,
                      int32_t *to, const char **ret_why);
