/* What the CPU families share: which shapes they know, tensor specs of a shape, and counts for a step's cost. */
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
    const char *rule; /* NULL: none */
    char reason[MF_REASON_MAX];
};

__attribute__((format(printf, 3, 4))) void mf_refuse(struct mf_refusal *r, const char *rule,
                                                     const char *format, ...);

/* Whether the CPU kernels know the shape's formats, activation and form. */
bool mf_cpu_shape_known(const struct mf_shape *shape, struct mf_refusal *ret);
/* Whether the two-stage family of that name takes the shape's weights: tile has 16- and 8-bit ones, mx the microscaled
 * ones, wint4 int4. */
bool mf_cpu_family_takes(const char *family, const struct mf_shape *shape, struct mf_refusal *ret);

/* The two-stage family that takes a known shape's weights. */
const char *mf_cpu_family_of(const struct mf_shape *shape);

/* Do the rules of fusion let one kernel of these capabilities cover the ops? The rule that objects is the refusal's. */
bool mf_cpu_may_cover(const struct mf_shape *shape, mf_ops ops, int32_t block_m,
                      const struct mf_fusion_caps *caps, struct mf_refusal *ret);

/* "bf16", "fp8fn_token", "mxfp8_mxfp4" (activations, weights, where they differ) and "silu", "gelu", …: parts of step
 * names. The shape is known. */
#define MF_FORMAT_WORD_MAX 32
void mf_cpu_format_word(const struct mf_shape *shape, char buf[MF_FORMAT_WORD_MAX]);
const char *mf_cpu_act_word(const struct mf_shape *shape);
/* Bits of a weight's element. */
int mf_cpu_weight_bits(const struct mf_shape *shape);
/* Are activations quantised? */
bool mf_cpu_quantises(const struct mf_shape *shape);
/* The layout with panels of so many rows, 1 for row; alternating: the one of w1 in which gate and up do. */
const struct mf_layout *mf_cpu_layout(int panel, bool alternating);
/* May w1 be wanted in the alternating layout of that panel? */
bool mf_cpu_may_alternate(const struct mf_shape *shape, int panel, struct mf_refusal *ret);
/* A sentence for each panel that may not. `prefix` goes before the layout's word in the rejection's kernel. */
int mf_cpu_reject_alternating(const struct mf_family *f, const char *prefix, const struct mf_shape *shape,
                              struct mf_offer *offer);

/* Routes that go to experts of this rank, on average. */
double mf_cpu_slots(const struct mf_shape *shape);
/* The sort of the shape's routes; topk NULL: to ask for its workspace. */
struct mf_moe_sort mf_cpu_sort(const struct mf_shape *shape, const struct mf_tensor_ref *topk,
                               int32_t block_m);
struct mf_tensor_spec mf_cpu_topk(void);
struct mf_tensor_spec mf_cpu_calib(void);
struct mf_tensor_spec mf_cpu_sorted(int32_t block_m);
struct mf_tensor_spec mf_cpu_aligned(int32_t block_m);
struct mf_tensor_spec mf_cpu_bf16(enum mf_tensor tensor, const char *order, int32_t block_m);
/* A weight as a step of family move decodes it: bf16 in panels of 32. */
struct mf_tensor_spec mf_cpu_decoded(enum mf_tensor w);
struct mf_tensor_spec mf_cpu_x_sorted(const struct mf_shape *shape, int32_t block_m);

void mf_step_need(struct mf_step *s, struct mf_tensor_spec a);
void mf_step_give(struct mf_step *s, struct mf_tensor_spec a);

/* Rows and columns of one expert's weight. */
void mf_cpu_weight_sizes(const struct mf_shape *shape, enum mf_tensor w, size_t *ret_n, size_t *ret_k);
/* Bytes of so many experts' weights as bf16; which: bits of the nodes that decode them (kernels/fusion/fusion.h). */
double mf_cpu_decoded_bytes(const struct mf_shape *shape, mf_ops which, double experts);
/* Is decoding these weights in a step of its own worth trying, for family lib to multiply? legal: is it possible, whether it
 * pays or not. */
bool mf_cpu_may_decode(const struct mf_shape *shape, mf_ops which, bool legal, struct mf_refusal *ret);
/* Is the i-th of these block_m, smallest first, worth trying beside the one before it? Not where that one holds what the busiest
 * expert may be expected to have, and never where it holds all tokens: an expert has a token once. */
bool mf_cpu_block_pays(const struct mf_shape *shape, const int32_t *block_ms, size_t i,
                       struct mf_refusal *ret);
/* Bytes of one expert's weight with its scales. */
double mf_cpu_expert_bytes(const struct mf_shape *shape, enum mf_tensor w);
/* Bytes of one row of cols elements as activations enter a GEMM, with its scales. */
double mf_cpu_row_bytes(const struct mf_shape *shape, int64_t cols);

struct mf_sorted_view mf_cpu_sorted_view(const struct mf_tensor_ref *sorted);
