/* Reads ids and weights of routes, and maps global to local experts. With expert parallelism, ids are global
 * indices among the experts of all ranks. The MF_E experts from MF_FIRST on are local. */
#pragma once

#ifdef MF_FIRST
#    define MF_EXPERT_PARALLEL 1
#else
#    define MF_EXPERT_PARALLEL 0
#    define MF_FIRST           0
#endif

/* Returns the local index of an id's expert, or -1 if the expert is not local. */
MF_DEVICE i32 mf_local_expert(i32 id)
{
    const u32 e = (u32)id - (u32)MF_FIRST;
    return e < MF_E ? (i32)e : -1;
}
MF_DEVICE i32 mf_local_expert(i64 id)
{
    return id == (i32)id ? mf_local_expert((i32)id) : -1;
}

/* Returns the local index of the expert of route i, or -1. `types` has the bits MF_HIP_*. */
MF_DEVICE i32 mf_local_expert_of(const void *ids, i32 types, i64 i)
{
    return types & MF_HIP_WIDE_IDS ? mf_local_expert(((const i64 *)ids)[i])
                                   : mf_local_expert(((const i32 *)ids)[i]);
}
MF_DEVICE float mf_float_of(float weight)
{
    return weight;
}
MF_DEVICE float mf_float_of(u16 weight)
{
    return mf_bf16(weight);
}
MF_DEVICE float mf_route_weight(const void *weights, i32 types, i64 i)
{
    return types & MF_HIP_BF16_WEIGHTS ? mf_float_of(((const u16 *)weights)[i]) : ((const float *)weights)[i];
}
