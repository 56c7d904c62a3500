/* Activation: computes h from a GEMM's output in expert order. A row of the input has MF_COLS gate columns
 * and then, with MF_UP, as many up columns. With MF_WEIGHTED the input is multiplied by the routing weight,
 * and with MF_BIAS the bias b1 is added. Each thread processes eight columns. Padding rows are neither read
 * nor written. */
#include "dialect.h"
#include "args.h"
#include "activation.h"
#include "quantise.h"

#define CHUNKS (MF_COLS / 8) /* per row of h */
#define HALVES (MF_UP ? 2 : 1)

/* Loads eight columns of gate or of up, multiplies them by the routing weight and adds the bias. */
MF_DEVICE void finish(const mf_hip_act_args &a, i64 row, i32 half, i32 column, float (&v)[8])
{
    const i64 at = row * HALVES * MF_COLS + half * MF_COLS + column;
    const float weight = MF_WEIGHTED ? a.sorted_weights[row] : 1.0f;
    mf_floats_of_8(mf_load_once((const u16 *)a.g + at), v);
#ifdef MF_BIAS
    const float *bias = a.bias + ((i64)a.experts[row / MF_BLOCK_M] * HALVES + half) * MF_COLS + column;
#endif
    MF_UNROLL
    for (int i = 0; i < 8; i++) {
#ifdef MF_BIAS
        v[i] = weight * v[i] + bias[i];
#else
        v[i] *= weight;
#endif
    }
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_act(const mf_hip_act_args a)
{
    mf_begin();
    const i64 n = (i64)MF_MIN(a.rows, a.num_valid[0]) * CHUNKS;
    for (i64 at = (i64)blockIdx.x * MF_THREADS + threadIdx.x; at < n; at += (i64)gridDim.x * MF_THREADS) {
        const i64 row = at / CHUNKS;
        const i32 column = (i32)(at - row * CHUNKS) * 8;
        float gate[8], up[8];
        if (mf_id_token(a.sorted_ids[row]) >= a.token)
            continue;
        finish(a, row, 0, column, gate);
        if (MF_UP)
            finish(a, row, 1, column, up);
        MF_UNROLL
        for (int i = 0; i < 8; i++)
            gate[i] = MF_UP ? mf_activate(gate[i], up[i]) : mf_activate_gate(gate[i]);
        ((mf_16b *)a.h)[at] = mf_16b{mf_bf16_pair(gate[0], gate[1]), mf_bf16_pair(gate[2], gate[3]),
                                     mf_bf16_pair(gate[4], gate[5]), mf_bf16_pair(gate[6], gate[7])};
    }
}
