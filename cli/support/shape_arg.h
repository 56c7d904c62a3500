/* Parses shapes named on the command line and prints short forms. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/moe/shape.h"

/* A pattern, in one of two forms. Values may have any accepted spelling.
 *
 *   whole row     twelve values and an optional form: "4,2048,96,128,8,ActivationType.Silu,…,1,0"
 *   some columns  "token=4,inter_dim=96,q_type=per_Token,form=b1+b2" */
struct mf_shape_pattern {
    struct mf_shape shape;
    bool set[MF_SHAPE_N_COLUMNS + 1]; /* which columns the pattern sets; the last entry is for the form */
};

/* Returns -EINVAL with a message in why. */
int mf_shape_pattern_parse(const char *text, struct mf_shape_pattern *ret, char *why, size_t why_cap);
bool mf_shape_pattern_match(const struct mf_shape_pattern *p, const struct mf_shape *shape);

#define MF_SHAPE_BRIEF_MAX 256
/* Prints the layer model without columns that have their usual value: "H2048 I96 E128 k8 bf16" or "H4096 I192
 * E128 k8 fp8_e4m3fn per_Token Gelu g1u0 dw1". If there is a form, it comes last: "H2880 I2880 E32 k4 bf16
 * Swiglu b1+b2". */
void mf_shape_brief_layer_model(const struct mf_shape *shape, char buf[MF_SHAPE_BRIEF_MAX]);
/* Prints the same short form with the token count in front: "T4 H2048 …". */
void mf_shape_brief(const struct mf_shape *shape, char buf[MF_SHAPE_BRIEF_MAX]);
