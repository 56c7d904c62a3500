/* Kernels of libfmoe for data that a model prepares on the device: weights in a kernel's layout
 * (kernels/core/layout.h), and expert ids of a rank whose experts are not a contiguous range. */
#include "dialect.h"
#include "args.h"

#define THREADS 256

MF_DEVICE i64 global_thread()
{
    return (i64)blockIdx.x * THREADS + threadIdx.x;
}
MF_DEVICE i64 global_threads()
{
    return (i64)gridDim.x * THREADS;
}

/* Returns the row, counted as in layout `row`, that the layout stores at position `at`. */
MF_DEVICE i64 row_at(const mf_hip_pack_args &a, i64 at)
{
    if (a.gate_rows == 0)
        return at;
    const i64 group = at / (2 * a.gate_rows), within = at - group * 2 * a.gate_rows;
    const i64 up = within >= a.gate_rows;
    return up * (a.rows / 2) + group * a.gate_rows + within - up * a.gate_rows;
}

/* Returns the offset in layout `row` of byte `to` of a matrix in the layout. */
MF_DEVICE i64 source_of(const mf_hip_pack_args &a, i64 to)
{
    const i64 panel_bytes = a.panel * a.row_bytes, panel = to / panel_bytes;
    const i64 within = to - panel * panel_bytes;
    if (a.panel == 1)
        return row_at(a, panel) * a.row_bytes + within;
    const i64 groups = (i64)a.panel * a.group_bytes, group = within / groups;
    const i32 piece = (i32)(within - group * groups), row = piece / a.group_bytes;
    return row_at(a, panel * a.panel + row) * a.row_bytes + group * a.group_bytes +
           (piece - row * a.group_bytes);
}

/* Moves units of adjacent bytes. Writes are contiguous; rows of a panel are read by neighbouring threads. */
template <class UNIT> MF_DEVICE void pack(const mf_hip_pack_args &a)
{
    const i64 matrix_bytes = a.rows * a.row_bytes, units = a.matrices * matrix_bytes / (i64)sizeof(UNIT);
    for (i64 i = global_thread(); i < units; i += global_threads()) {
        const i64 byte = i * (i64)sizeof(UNIT), matrix = byte / matrix_bytes;
        const i64 from = matrix * matrix_bytes + source_of(a, byte - matrix * matrix_bytes);
        ((UNIT *)a.to)[i] = *(const UNIT *)((const u8 *)a.from + from);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) mf_pack(const mf_hip_pack_args a)
{
    mf_begin();
    if (a.unit == 16)
        pack<mf_16b>(a);
    else if (a.unit == 4)
        pack<u32>(a);
    else
        pack<u8>(a);
}

/* Replaces an id by the id of its position among the local experts, or by -1. */
template <class ID> MF_DEVICE void remap(const mf_hip_remap_args &a)
{
    for (i64 i = global_thread(); i < a.routes; i += global_threads()) {
        const ID id = ((const ID *)a.ids)[i];
        const i32 local = id >= 0 && id < a.all ? a.expert_map[id] : -1;
        ((ID *)a.to)[i] = local >= 0 && local < a.experts ? (ID)(a.first + local) : (ID)-1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) mf_remap_ids(const mf_hip_remap_args a)
{
    mf_begin();
    if (a.types & MF_HIP_WIDE_IDS)
        remap<i64>(a);
    else
        remap<i32>(a);
}
