/* Converts vLLM's order of experts to AITER's (common/moe/tensor_spec.h). Flat ids become packed ids. vLLM's
 * kernels look up weights by flat id; here the weights are written in sorted order. */
#include "dialect.h"
#include "args.h"
#include "local_experts.h"

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_from_aligned(const mf_hip_aligned_args a)
{
    const i32 routes = a.token * MF_K, global_thread = (i32)(blockIdx.x * MF_THREADS + threadIdx.x);
    mf_begin();
    const i32 end = *a.num_post_pad;
    if (global_thread == 0) {
        a.num_valid[0] = end;
        a.num_valid[1] = a.token;
    }
    for (i32 i = global_thread; i < end; i += (i32)gridDim.x * MF_THREADS) {
        const i32 flat = a.flat[i];
        const bool pads = flat >= routes;
        a.sorted_ids[i] = pads ? MF_K << 24 | a.token : flat % MF_K << 24 | flat / MF_K;
        a.sorted_weights[i] = pads ? 0.0f : mf_route_weight(a.weights, a.types, flat);
        if (i % MF_BLOCK_M == 0)
            a.experts[i / MF_BLOCK_M] = a.aligned_experts[i / MF_BLOCK_M];
    }
}
