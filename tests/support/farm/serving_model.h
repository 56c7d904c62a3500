/* Converts a shape to the layer model of libfmoe. */
#pragma once

#include "common/moe/shape.h"
#include "fmoe/fmoe.h"

static inline struct fmoe_layer_model serving_model(const struct mf_shape *s, int64_t max_tokens)
{
    return (struct fmoe_layer_model){.model_dim = s->model_dim,
                                     .inter_dim = s->inter_dim,
                                     .experts = s->expert,
                                     .topk = s->topk,
                                     .act_type = mf_act_name(s->act_type),
                                     .dtype = mf_dtype_name(s->dtype),
                                     .q_dtype_a = mf_dtype_name(s->q_dtype_a),
                                     .q_dtype_w = mf_dtype_name(s->q_dtype_w),
                                     .q_type = mf_qtype_name(s->q_type),
                                     .use_g1u1 = s->use_g1u1,
                                     .doweight_stage1 = s->doweight_stage1,
                                     .max_tokens = max_tokens};
}
