/* Consumers: the programs that dispatch kernels from a tuned table. A consumer decides which steps can be in
 * its pipelines. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/layer.h"
#include "common/moe/shape.h"
#include "common/moe/step.h"

/* clang-format off */
#define MF_CONSUMER_MAP(X, P)                                                   \
    X(P, MOEFARM, "moefarm") /* libfmoe */                                      \
    X(P, AITER, "aiter")                                                        \
    X(P, VLLM, "vllm")                                                          \
    X(P, SGLANG, "sglang")                                                      \
    X(P, ANY, "any")         /* every pipeline, for display; never exported */
/* clang-format on */
MF_NAMES_DECLARE(mf_consumer, MF_CONSUMER_, MF_CONSUMER_MAP);

/* A set of consumers. */
typedef uint32_t mf_consumers;
#define MF_CONSUMER_BIT(c) (1u << (c))

#define MF_CONSUMER_WHY_MAX 512

/* The facts about a step on which a consumer decides. */
struct mf_consumer_step {
    const char *family, *name;
    mf_ops covers;
    bool aiter, foreign; /* as in struct mf_step */
};
struct mf_consumer_step mf_consumer_step(const struct mf_step *step);

/* Each call returns true if the consumer can dispatch it. Otherwise the call writes the reason, a sentence
 * without a full stop, into why. */
bool mf_consumer_takes_shape(enum mf_consumer c, const struct mf_shape *shape, char why[MF_CONSUMER_WHY_MAX]);
bool mf_consumer_takes_step(enum mf_consumer c, const struct mf_consumer_step *step,
                            char why[MF_CONSUMER_WHY_MAX]);
bool mf_consumer_takes_pipeline(enum mf_consumer c, const struct mf_consumer_step *steps, size_t n,
                                char why[MF_CONSUMER_WHY_MAX]);
/* err: mismatch ratio of a step that contains a GEMM. */
bool mf_consumer_takes_error(enum mf_consumer c, double err, char why[MF_CONSUMER_WHY_MAX]);
/* True for the step that the consumer runs if its table has no row for a shape. A row must beat it. */
#define MF_CONSUMER_DEFAULT_STEP "default"
bool mf_consumer_default(enum mf_consumer c, const struct mf_consumer_step *step);
/* The same for any consumer. */
bool mf_consumer_any_default(const struct mf_consumer_step *step);
/* True if a table can be exported for the consumer. */
bool mf_consumer_has_table(enum mf_consumer c);
