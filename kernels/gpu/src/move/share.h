/* Which experts are here. The ids of a rank's share count all ranks' experts: MF_E of them are here, from MF_FIRST on. */
#pragma once

#ifdef MF_FIRST
#    define MF_SHARE 1
#else
#    define MF_SHARE 0
#    define MF_FIRST 0
#endif

/* Number of an id's expert here; -1: it is not here. */
MF_DEVICE i32 mf_local(i32 id)
{
#if MF_SHARE
    const u32 e = (u32)(id - MF_FIRST);
    return e < MF_E ? (i32)e : -1;
#else
    return id;
#endif
}
