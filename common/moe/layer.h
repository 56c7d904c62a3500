/* The ops of a layer. A shape has a set of ops; a pipeline covers each op of the set exactly once.
 *
 *   topk ids, weights ─► sort ────────────┐
 *   hidden states ─► quant1 ─► gather ─► gemm1 ─► act ─► quant2 ─► gemm2 ─► weight ─► combine ─► output
 *
 * With doweight_stage1 the op `weight` runs between gemm1 and act; the set of ops does not change. */
#pragma once

#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"

/* clang-format off */
#define MF_OP_MAP(X, P)                                                          \
    X(P, SORT, "sort")       /* align tokens to expert blocks of block_m rows */ \
    X(P, QUANT1, "quant1")   /* quantise the hidden states */                    \
    X(P, GATHER, "gather")   /* copy token rows into expert order */             \
    X(P, GEMM1, "gemm1")     /* gate and up projection */                        \
    X(P, ACT, "act")                                                             \
    X(P, QUANT2, "quant2")   /* quantise the intermediate */                     \
    X(P, GEMM2, "gemm2")     /* down projection */                               \
    X(P, WEIGHT, "weight")   /* multiply by the routing weight */                \
    X(P, COMBINE, "combine") /* sum over topk */
/* clang-format on */
MF_NAMES_DECLARE(mf_op, MF_OP_, MF_OP_MAP);

typedef uint32_t mf_ops;
#define MF_OP_BIT(op) (1u << (op))

/* Returns the ops of a shape: all nine, or only seven (without quant1 and quant2) if the activations have the
 * dtype of the hidden states. */
mf_ops mf_layer_ops(const struct mf_shape *shape);

#define MF_OPS_TEXT_MAX 80
/* Prints a set of ops, such as "gather+gemm1+act", in the order of the layer; "-" for an empty set. */
void mf_ops_print(mf_ops ops, char buf[MF_OPS_TEXT_MAX]);
/* -EINVAL for an unknown or repeated op. */
int mf_ops_parse(const char *text, mf_ops *ret);

/* Returns the number of elements of one expert's weights that the GEMMs in `ops` read. */
double mf_layer_expert_elements(const struct mf_shape *shape, mf_ops ops);
/* Returns the FLOPs of the whole layer by AITER's formula: 2·T·k·H·N + 2·T·k·H·I, where N is 2I with use_g1u1
 * and I without. With expert parallelism, the sum is multiplied by the fraction of local experts. */
double mf_layer_flops(const struct mf_shape *shape);
/* Returns the expected number of local experts with at least one token if all experts of all ranks are
 * equally likely. */
double mf_layer_expected_active(const struct mf_shape *shape);
/* Returns the expected number of blocks of block_m rows that the local experts fill; the last block of each
 * expert is padded. The row count of an expert is binomial; a normal distribution approximates the
 * probability that the row count exceeds each multiple of block_m. */
double mf_layer_expected_blocks(const struct mf_shape *shape, int32_t block_m);
/* Returns the minimum memory traffic of the layer in bytes if `active` experts get tokens: the weights and
 * scales of these experts are read once, the hidden states are read, and the output is written. */
double mf_layer_min_bytes(const struct mf_shape *shape, int64_t active);
