/* Mapping of global to local experts. With expert parallelism, ids are global indices among the experts of
 * all ranks. The MF_E experts from MF_FIRST on are local. */
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
#if MF_EXPERT_PARALLEL
    const u32 e = (u32)(id - MF_FIRST);
    return e < MF_E ? (i32)e : -1;
#else
    return id;
#endif
}
