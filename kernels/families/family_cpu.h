/* Helpers shared by the CPU families: supported shapes, tensor specs of a shape, and costs of a step. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/moe/status.h"
#include "kernels/core/family.h"
#include "kernels/core/layout.h"
#include "kernels/cpu/stage.h"
#include "kernels/fusion/fusion.h"
#include "kernels/ops/moe_sort.h"

extern const int32_t mf_cpu_block_ms[4]; /* 8, 16, 32, 64 */
#define MF_CPU_N_BLOCK_MS 4

struct mf_refusal {
    const char *rule; /* NULL: not refused */
    char reason[MF_REASON_MAX];
};

__attribute__((format(printf, 3, 4))) void mf_refuse(struct mf_refusal *r, const char *rule,
                                                     const char *format, ...);

/* True if the CPU kernels support the shape's formats, activation and form. */
bool mf_cpu_shape_known(const struct mf_shape *shape, struct mf_refusal *ret);
/* True if the two-stage family of that name supports the shape's weights. Family two_stage supports 16- and
 * 8-bit weights, two_stage_mx microscaled weights, two_stage_int4 int4 weights. */
bool mf_cpu_family_takes(const char *family, const struct mf_shape *shape, struct mf_refusal *ret);

/* Returns the two-stage family for a supported shape's weights. */
const char *mf_cpu_family_of(const struct mf_shape *shape);

/* True if the fusion rules let one kernel with these capabilities cover the ops; otherwise *ret holds the
 * rule. */
bool mf_cpu_may_cover(const struct mf_shape *shape, mf_ops ops, int32_t block_m,
                      const struct mf_fusion_caps *caps, struct mf_refusal *ret);

/* Parts of step names: "bf16", "fp8fn_token", "mxfp8_mxfp4" (activations_weights if they differ); "silu",
 * "gelu", … The shape must be supported. */
#define MF_FORMAT_WORD_MAX 32
void mf_cpu_format_word(const struct mf_shape *shape, char buf[MF_FORMAT_WORD_MAX]);
const char *mf_cpu_act_word(const struct mf_shape *shape);
/* Returns the bits per weight element. */
int mf_cpu_weight_bits(const struct mf_shape *shape);
/* True if activations are quantised. */
bool mf_cpu_quantises(const struct mf_shape *shape);
/* Returns the layout with panels of `panel` rows (1: row layout). alternating: true selects the layout of w1
 * that interleaves gate and up. */
const struct mf_layout *mf_cpu_layout(int panel, bool alternating);
/* True if a step may require w1 in the alternating layout with that panel. */
bool mf_cpu_may_alternate(const struct mf_shape *shape, int panel, struct mf_refusal *ret);
/* Rejects each alternating layout that the shape does not allow. The kernel name in a rejection is `prefix`
 * followed by the layout's word. */
int mf_cpu_reject_alternating(const struct mf_family *f, const char *prefix, const struct mf_shape *shape,
                              struct mf_offer *offer);

/* Returns the expected number of routes to the experts of this rank. */
double mf_cpu_slots(const struct mf_shape *shape);
/* Returns the arguments for sorting the shape's routes. topk may be NULL if only the workspace size is
 * queried. */
struct mf_moe_sort mf_cpu_sort(const struct mf_shape *shape, const struct mf_tensor_ref *topk,
                               struct mf_route_types types, int32_t block_m);
struct mf_tensor_spec mf_cpu_topk(void);
struct mf_tensor_spec mf_cpu_calib(void);
struct mf_tensor_spec mf_cpu_sorted(int32_t block_m);
struct mf_tensor_spec mf_cpu_aligned(int32_t block_m);
struct mf_tensor_spec mf_cpu_bf16(enum mf_tensor tensor, const char *order, int32_t block_m);
/* Returns the tensor spec of a weight that a step of family move dequantised: bf16 in panels of 32. */
struct mf_tensor_spec mf_cpu_dequantised(enum mf_tensor w);
struct mf_tensor_spec mf_cpu_x_sorted(const struct mf_shape *shape, int32_t block_m);

void mf_step_need(struct mf_step *s, struct mf_tensor_spec a);
void mf_step_give(struct mf_step *s, struct mf_tensor_spec a);

/* Stores the rows (N) and columns (K) of one expert's weight. */
void mf_cpu_weight_sizes(const struct mf_shape *shape, enum mf_tensor w, size_t *ret_n, size_t *ret_k);
/* Returns the bytes of the weights of `experts` experts as bf16. `which` selects the weights by their
 * dequantisation nodes (kernels/fusion/fusion.h). */
double mf_cpu_dequantised_bytes(const struct mf_shape *shape, mf_ops which, double experts);
/* True if dequantising these weights in a separate step, for a GEMM of family onednn, is worth trying. legal:
 * true ignores the cost and tests only whether such a step is possible. */
bool mf_cpu_may_dequantise(const struct mf_shape *shape, mf_ops which, bool legal, struct mf_refusal *ret);
/* True if block_ms[i] is worth trying in addition to the next smaller size; block_ms is ascending. The size
 * is not worth trying if the smaller size holds the expected rows of the busiest expert, or all tokens,
 * because an expert receives a token at most once. */
bool mf_cpu_block_pays(const struct mf_shape *shape, const int32_t *block_ms, size_t i,
                       struct mf_refusal *ret);
/* Returns the bytes of one expert's weight with its scales. */
double mf_cpu_expert_bytes(const struct mf_shape *shape, enum mf_tensor w);
/* Returns the bytes of one row of `cols` activations as a GEMM reads them, with its scales. */
double mf_cpu_row_bytes(const struct mf_shape *shape, int64_t cols);

struct mf_sorted_view mf_cpu_sorted_view(const struct mf_tensor_ref *sorted);
