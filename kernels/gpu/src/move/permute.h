/* Helpers for moving rows into expert order and back. A row is MF_ROW bytes, and a thread moves MF_CHUNK
 * bytes at a time. K is MF_K. Padding rows are neither read nor written. */
#pragma once

#define CHUNKS (MF_ROW / MF_CHUNK) /* chunks per row */

#if MF_CHUNK == 16
typedef mf_16b chunk;
MF_DEVICE chunk load(const void *p)
{
    return mf_load_once(p);
}
#else
typedef mf_8b chunk;
MF_DEVICE chunk load(const void *p)
{
    return *(const mf_8b *)p;
}
#endif

MF_DEVICE i32 used_rows(const mf_hip_permute_args &a)
{
    return MF_MIN(a.rows, a.num_valid[0]);
}
MF_DEVICE i64 global_thread()
{
    return (i64)blockIdx.x * MF_THREADS + threadIdx.x;
}
MF_DEVICE i64 global_threads()
{
    return (i64)gridDim.x * MF_THREADS;
}

#if defined(MF_SCALES) && MF_SCALES % 4 == 0
typedef u32 scale_part;
#else
typedef u8 scale_part;
#endif
/* Copies the scale and the global factor if all rows share them. */
MF_DEVICE void copy_shared_scales(const mf_hip_permute_args &a)
{
#ifndef MF_SCALES
    if (a.to_scale && global_thread() == 0)
        *(u32 *)a.to_scale = *(const u32 *)a.from_scale;
#endif
    if (a.to_factor && global_thread() == 0)
        *a.to_factor = *a.from_factor;
}
/* Gathers the MF_SCALES bytes of scales of each row, and copies the scales that all rows share. */
MF_DEVICE void gather_scales(const mf_hip_permute_args &a)
{
#ifdef MF_SCALES
    const i32 parts = MF_SCALES / sizeof(scale_part);
    const i64 n = (i64)used_rows(a) * parts;
    for (i64 at = global_thread(); at < n; at += global_threads()) {
        const i64 row = at / parts, token = mf_id_token(a.sorted_ids[row]);
        if (token < a.token)
            ((scale_part *)a.to_scale)[at] =
                ((const scale_part *)a.from_scale)[token * parts + (at - row * parts)];
    }
#endif
    copy_shared_scales(a);
}
