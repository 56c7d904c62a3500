/* Combine: y[t] is the sum of z[t·k + j] over the slots j. With MF_WEIGHTED, each z is first multiplied by
 * its routing weight. A thread processes eight columns of one token and loads all slots at once. Slots are
 * added in order, so results are reproducible. Slots of non-local experts (local_experts.h) are undefined in
 * z and not added. With expert parallelism they are many and are not read. Without, such ids are rare, and a
 * load that waits for the id would only add latency. */
#include "dialect.h"
#include "args.h"
#include "local_experts.h"

MF_DEVICE void add(float (&sum)[8], mf_16b v, float w)
{
    const u32 two[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += w * mf_bf16_low(two[i]);
        sum[2 * i + 1] += w * mf_bf16_high(two[i]);
    }
}

/* Finds which of a token's slots have a local expert. */
template <class ID> MF_DEVICE void find_local(const ID *ids, bool (&ret)[MF_K])
{
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        ret[j] = mf_local_expert(ids[j]) >= 0;
}
template <class WEIGHT> MF_DEVICE void load_weights(const WEIGHT *weights, float (&ret)[MF_K])
{
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        ret[j] = mf_float_of(weights[j]);
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_combine(const mf_hip_combine_args a)
{
    const i64 n = (i64)a.token * (MF_COLS / 8);
    mf_begin();
    for (i64 at = (i64)blockIdx.x * MF_THREADS + threadIdx.x; at < n; at += (i64)gridDim.x * MF_THREADS) {
        i64 token = at / (MF_COLS / 8);
        i32 col = (i32)(at % (MF_COLS / 8)) * 8;
        const u16 *z = (const u16 *)a.z + token * MF_K * MF_COLS + col;
        float sum[8] = {0};
        mf_16b v[MF_K];
        bool is_local[MF_K];
        float weight[MF_K];
        if (a.types & MF_HIP_WIDE_IDS)
            find_local((const i64 *)a.ids + token * MF_K, is_local);
        else
            find_local((const i32 *)a.ids + token * MF_K, is_local);
        if (MF_WEIGHTED && a.types & MF_HIP_BF16_WEIGHTS)
            load_weights((const u16 *)a.weights + token * MF_K, weight);
        else if (MF_WEIGHTED)
            load_weights((const float *)a.weights + token * MF_K, weight);
        MF_UNROLL
        for (int j = 0; j < MF_K; j++)
            v[j] = MF_EXPERT_PARALLEL && !is_local[j] ? mf_16b{0, 0, 0, 0}
                                                      : mf_load_once(z + (i64)j * MF_COLS);
        MF_UNROLL
        for (int j = 0; j < MF_K; j++)
            add(sum, is_local[j] ? v[j] : mf_16b{0, 0, 0, 0}, MF_WEIGHTED ? weight[j] : 1.0f);
        *(mf_16b *)((u16 *)a.y + token * MF_COLS + col) =
            mf_16b{mf_bf16_pair(sum[0], sum[1]), mf_bf16_pair(sum[2], sum[3]), mf_bf16_pair(sum[4], sum[5]),
                   mf_bf16_pair(sum[6], sum[7])};
    }
}
