#include "common/moe/layer.h"

#include <math.h>

#include "common/base/text.h"

MF_NAMES_DEFINE(mf_op, MF_OP_, MF_OP_MAP)

mf_ops mf_layer_ops(const struct mf_shape *shape)
{
    mf_ops all = MF_OP_BIT(MF_OP_N_) - 1;
    if (shape->q_dtype_a == shape->dtype)
        all &= ~(MF_OP_BIT(MF_OP_QUANT1) | MF_OP_BIT(MF_OP_QUANT2));
    return all;
}

void mf_ops_print(mf_ops ops, char buf[MF_OPS_TEXT_MAX])
{
    char *at = buf, *end = buf + MF_OPS_TEXT_MAX;
    for (int op = 0; op < MF_OP_N_; op++) {
        if (ops & MF_OP_BIT(op))
            at = mf_append(mf_append(at, end, at > buf ? "+" : ""), end, mf_op_name((enum mf_op)op));
    }
    if (at == buf)
        (void)mf_append(buf, end, "-");
}

int mf_ops_parse(const char *text, mf_ops *ret)
{
    mf_ops ops = 0;
    if (strcmp(text, "-") == 0) {
        *ret = 0;
        return 0;
    }
    for (;;) {
        char name[16];
        enum mf_op op;
        size_t len = strcspn(text, "+");
        if (len >= sizeof(name))
            return -EINVAL;
        memcpy(name, text, len);
        name[len] = '\0';
        if (mf_op_parse(name, &op) < 0 || (ops & MF_OP_BIT(op)))
            return -EINVAL;
        ops |= MF_OP_BIT(op);
        if (text[len] == '\0')
            break;
        text += len + 1;
    }
    *ret = ops;
    return 0;
}

/* Returns the number of rows of one expert in w1. */
static double w1_rows(const struct mf_shape *shape)
{
    return (shape->use_g1u1 ? 2.0 : 1.0) * shape->inter_dim;
}

double mf_layer_expert_elements(const struct mf_shape *shape, mf_ops ops)
{
    double rows = (ops & MF_OP_BIT(MF_OP_GEMM1) ? w1_rows(shape) : 0) +
                  (ops & MF_OP_BIT(MF_OP_GEMM2) ? shape->inter_dim : 0);
    return rows * shape->model_dim;
}

double mf_layer_flops(const struct mf_shape *shape)
{
    double rows = (double)shape->token * shape->topk * mf_shape_local_fraction(shape);
    return 2 * rows * mf_layer_expert_elements(shape, MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2));
}

static double blocks(double n, double size)
{
    return (double)(((int64_t)n + (int64_t)size - 1) / (int64_t)size);
}

/* Returns the size of the scales of one expert's weight matrix of rows x columns, in bytes. */
static double scale_bytes(const struct mf_shape *shape, double rows, double columns)
{
    switch (shape->q_type) {
    case MF_QTYPE_PER_TENSOR:
        return 4;
    case MF_QTYPE_PER_TOKEN:
        return 4 * rows;
    case MF_QTYPE_PER_1X32:
        /* e8m0 scales have one byte; the scales of int4 weights are bf16 and have two */
        return rows * blocks(columns, 32) * (shape->q_dtype_w == MF_DTYPE_INT4 ? 2 : 1);
    case MF_QTYPE_PER_1X16:
        return rows * blocks(columns, 16) + 4; /* one byte per e4m3 scale, and 4 bytes for the global scale */
    case MF_QTYPE_PER_1X128:
        return 4 * blocks(rows, 128) * blocks(columns, 128);
    case MF_QTYPE_NO:
    case MF_QTYPE_N_:
        break;
    }
    return 0;
}

double mf_layer_expected_active(const struct mf_shape *s)
{
    return s->expert * (1.0 - pow(1.0 - (double)s->topk / mf_shape_global_experts(s), (double)s->token));
}

double mf_layer_expected_blocks(const struct mf_shape *s, int32_t block_m)
{
    double p = (double)s->topk / mf_shape_global_experts(s), mean = p * (double)s->token,
           deviation = sqrt(mean * (1.0 - p));
    double blocks = mf_layer_expected_active(s) / s->expert;
    for (int64_t rows = block_m; rows < s->token && (double)rows < mean + 8 * deviation + 1; rows += block_m)
        blocks += 0.5 * erfc(((double)rows + 0.5 - mean) / (deviation * sqrt(2.0)));
    return s->expert * blocks;
}

double mf_layer_min_bytes(const struct mf_shape *shape, int64_t active)
{
    double h = shape->model_dim, i = shape->inter_dim, rows = w1_rows(shape);
    double expert = (rows * h + h * i) * mf_dtype_bits(shape->q_dtype_w) / 8 + scale_bytes(shape, rows, h) +
                    scale_bytes(shape, h, i);
    double hidden = (double)shape->token * h * mf_dtype_bits(shape->dtype) / 8;
    return (double)active * expert + 2 * hidden;
}
