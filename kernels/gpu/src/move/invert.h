/* Inverts the sorted ids: a.row_of[token * K + slot] becomes the row of the route of this token and slot. All
 * blocks write a.row_of together and then pass a grid barrier. */
#pragma once

__device__ u32 mf_barrier[2];

/* Writes a.row_of. To save latency, ids are loaded at the same time as num_valid; ids beyond num_valid are
 * then ignored. */
MF_DEVICE void invert(const mf_hip_permute_args &a)
{
    u32 generation = 0;
    const i32 used = a.num_valid[0];
    for (i64 row = global_thread(); row < a.rows; row += global_threads()) {
        const i32 id = a.sorted_ids[row];
        if (row < used && mf_id_token(id) < a.token)
            a.row_of[(i64)mf_id_token(id) * MF_K + mf_id_slot(id)] = (i32)row;
    }
    mf_grid_arrive(mf_barrier, &generation);
    mf_grid_wait(mf_barrier, generation);
}

/* Returns the row of a route, or -1 if the route has no row because its expert is not local. Then a.row_of
 * holds stale data, so a row is valid only if it has the id of the route. */
MF_DEVICE i32 row_or_none(const mf_hip_permute_args &a, i32 row, i64 token, int slot)
{
    if ((u32)row >= (u32)used_rows(a))
        return -1;
    return a.sorted_ids[row] == (slot << 24 | (i32)token) ? row : -1;
}
/* Loads the rows of a token's routes. A route without a row gets -1. */
MF_DEVICE void rows_of(const mf_hip_permute_args &a, i64 token, i32 (&rows)[MF_K])
{
    const i32 *from = a.row_of + token * MF_K;
#if MF_K % 4 == 0
    MF_UNROLL
    for (int j = 0; j < MF_K; j += 4) {
        const mf_16b v = mf_load_shared_by_grid(from + j);
        rows[j] = (i32)v.x;
        rows[j + 1] = (i32)v.y;
        rows[j + 2] = (i32)v.z;
        rows[j + 3] = (i32)v.w;
    }
#else
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        rows[j] = mf_load_shared_by_grid_4(from + j);
#endif
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        rows[j] = row_or_none(a, rows[j], token, j);
}
