/* Sums eight columns of a token over the rows of the token's slots, with the loads of all slots in flight at
 * once. */
#pragma once

struct slots {
    mf_16b v[MF_K];
    float weight[MF_K];
};
MF_DEVICE void fetch(const mf_hip_permute_args &a, const i32 (&rows)[MF_K], i64 column, slots &ret)
{
    MF_UNROLL
    for (int j = 0; j < MF_K; j++) {
        ret.v[j] = mf_16b{0, 0, 0, 0};
        ret.weight[j] = 0.0f;
        if (rows[j] >= 0) {
            ret.v[j] = load((const u8 *)a.from + ((i64)rows[j] * CHUNKS + column) * MF_CHUNK);
            ret.weight[j] = MF_WEIGHTED ? a.sorted_weights[rows[j]] : 1.0f;
        }
    }
}
MF_DEVICE void add(float (&sum)[8], const mf_16b &v, float w)
{
    const u32 two[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += w * mf_bf16_low(two[i]);
        sum[2 * i + 1] += w * mf_bf16_high(two[i]);
    }
}
MF_DEVICE mf_16b sum_of(const slots &s)
{
    float sum[8] = {0};
    MF_UNROLL
    for (int j = 0; j < MF_K; j++)
        add(sum, s.v[j], s.weight[j]);
    return mf_16b{mf_bf16_pair(sum[0], sum[1]), mf_bf16_pair(sum[2], sum[3]), mf_bf16_pair(sum[4], sum[5]),
                  mf_bf16_pair(sum[6], sum[7])};
}
