/* Shapes as people name them on the command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/moe/shape.h"

/* A pattern: either a whole row of twelve values, "4,2048,96,128,8,ActivationType.Silu,…,1,0", with the form as a
 * thirteenth where the shape has one, or the columns that matter, "token=4,inter_dim=96,q_type=per_Token,form=b1+b2";
 * values in any accepted spelling. */
struct mf_shape_pattern {
    struct mf_shape shape;
    bool set[MF_SHAPE_N_COLUMNS + 1]; /* the last: of the form */
};

/* -EINVAL with the sentence in why. */
int mf_shape_pattern_parse(const char *text, struct mf_shape_pattern *ret, char *why, size_t why_cap);
bool mf_shape_pattern_match(const struct mf_shape_pattern *p, const struct mf_shape *shape);

#define MF_SHAPE_BRIEF_MAX 256
/* The layer model for people, leaving out what nearly all have: "H2048 I96 E128 k8 bf16",
 * "H4096 I192 E128 k8 fp8_e4m3fn per_Token Gelu g1u0 dw1", a form at the end: "H2880 I2880 E32 k4 bf16 Swiglu b1+b2". */
void mf_shape_brief_layer_model(const struct mf_shape *shape, char buf[MF_SHAPE_BRIEF_MAX]);
/* The same with the token count in front: "T4 H2048 …". */
void mf_shape_brief(const struct mf_shape *shape, char buf[MF_SHAPE_BRIEF_MAX]);
