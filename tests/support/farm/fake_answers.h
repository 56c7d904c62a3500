/* Parts of the API's replies for fake HTTP servers. T: token count. */
#pragma once

#define SHAPE(T)                                                                                           \
    "{\"token\":" T                                                                                        \
    ",\"model_dim\":2048,\"inter_dim\":96,\"expert\":128,\"topk\":8,\"act_type\":\"ActivationType.Silu\"," \
    "\"dtype\":\"torch.bfloat16\",\"q_dtype_a\":\"torch.bfloat16\",\"q_dtype_w\":\"torch.bfloat16\",\"q_"  \
    "type\":\"QuantType.No\","                                                                             \
    "\"use_g1u1\":1,\"doweight_stage1\":0}"
#define TASK(id, T, state, more)                                                                     \
    "{\"id\":" id ",\"class\":\"cpu-x/2\",\"steps\":10,\"measured\":5,\"state\":\"" state "\"," more \
    "\"shape\":" SHAPE(T) "}"
