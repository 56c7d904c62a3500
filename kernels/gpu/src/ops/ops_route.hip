/* Routers: selects the topk experts of each token and their weights, by the rules of kernels/core/router.h,
 * in fp32. One warp per token; the scores of the experts are in shared memory. Among equal values the lower
 * expert is selected. */
#include "dialect.h"
#include "ops_args.h"

#define WAVES      (MF_THREADS / MF_WAVE)
#define LOWEST     (-__uint_as_float(0x7f800000u))
#define LARGEST    __uint_as_float(0x7f7fffffu)
#define GROUPS_MAX 64

MF_DEVICE float logit_of(const mf_op_route_args &a, i64 at)
{
    return a.half ? mf_bf16(((const u16 *)a.logits)[at]) : ((const float *)a.logits)[at];
}
MF_DEVICE float softplus(float x)
{
    if (x > 20.0f)
        return x;
    /* log(1 + e) = 2 * artanh(z); the terms of the series fall by at least a factor of 9 */
    const float e = __expf(-fabsf(x)), z = e / (2.0f + e), square = z * z;
    float sum = 0;
    MF_UNROLL
    for (int i = 15; i > 0; i -= 2)
        sum = sum * square + 1.0f / (float)i;
    return fmaxf(x, 0.0f) + 2.0f * z * sum;
}
MF_DEVICE float score_of(const mf_op_route_args &a, float logit)
{
    const float x = fminf(fmaxf(logit, -LARGEST), LARGEST);
    if (logit != logit)
        return LOWEST;
    if (a.score == 1)
        return 1.0f / (1.0f + __expf(-x));
    return a.score == 2 ? sqrtf(softplus(x)) : x;
}

/* Replaces the logits in s by the softmax. */
MF_DEVICE void softmax(const mf_op_route_args &a, float *s)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    float top = LOWEST, sum = 0;
    for (i32 e = lane; e < a.experts; e += MF_WAVE)
        top = fmaxf(top, s[e]);
    top = mf_wave_max(top);
    for (i32 e = lane; e < a.experts; e += MF_WAVE) {
        if (s[e] > LOWEST) {
            s[e] = __expf(s[e] - top);
            sum += s[e];
        }
    }
    sum = mf_wave_sum(sum);
    for (i32 e = lane; e < a.experts; e += MF_WAVE) {
        if (s[e] > LOWEST)
            s[e] /= sum;
    }
}

/* A group's score is the sum of its two largest values. Experts of all but the best groups lose. */
MF_DEVICE void mask_groups(const mf_op_route_args &a, float *c, float *scores)
{
    const i32 lane = threadIdx.x % MF_WAVE, n = a.experts / a.groups;
    for (i32 g = lane; g < a.groups; g += MF_WAVE) {
        float first = LOWEST, second = LOWEST;
        for (i32 i = 0; i < n; i++) {
            second = fmaxf(second, fminf(first, c[g * n + i]));
            first = fmaxf(first, c[g * n + i]);
        }
        scores[g] = first + second;
    }
    mf_wave_sync();
    for (i32 e = lane; e < a.experts; e += MF_WAVE) {
        const i32 g = e / n;
        i32 better = 0;
        for (i32 o = 0; o < a.groups; o++)
            better += scores[o] > scores[g] || (o < g && !(scores[g] > scores[o]));
        if (better >= a.groups_kept)
            c[e] = a.masked_to_zero ? 0.0f : LOWEST;
    }
    mf_wave_sync();
}

/* Returns the expert with the largest remaining value and removes it; all lanes get the same result. A
 * removed expert has a NaN. */
MF_DEVICE i32 take_best(const mf_op_route_args &a, float *c)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    float best = LOWEST;
    i32 at = a.experts;
    for (i32 e = lane; e < a.experts; e += MF_WAVE) {
        if (c[e] > best || (c[e] == best && e < at)) {
            best = c[e];
            at = e;
        }
    }
    MF_UNROLL
    for (int d = MF_WAVE / 2; d > 0; d /= 2) {
        const float other = mf_shuffle_xor(best, d);
        const i32 other_at = mf_shuffle_xor(at, d);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
    mf_wave_sync(); /* all lanes have read the values */
    if (lane == 0 && at < a.experts)
        c[at] = __uint_as_float(0x7fc00000u);
    mf_wave_sync();
    return at;
}

MF_DEVICE void write_id(const mf_op_route_args &a, i64 at, i32 expert)
{
    if (a.wide)
        ((i64 *)a.ids)[at] = expert;
    else
        ((i32 *)a.ids)[at] = expert;
}
/* Lane 0 normalises the weights, which the lanes have written. The sum is in slot order. */
MF_DEVICE void scale_weights(const mf_op_route_args &a, const float *picked, i64 first)
{
    float sum = a.sum_floor;
    for (i32 j = 0; j < a.topk; j++)
        sum += picked[j];
    for (i32 j = threadIdx.x % MF_WAVE; j < a.topk; j += MF_WAVE)
        a.weights[first + j] = picked[j] * a.scale / (a.renormalised && sum > 0 ? sum : 1.0f);
}

/* shared memory: per warp s[experts] | c[experts] | picked[topk] | scores[GROUPS_MAX] */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_op_route(const mf_op_route_args a)
{
    extern __shared__ i32 lds[];
    const i32 lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    float *s = (float *)lds + wave * (2 * a.experts + a.topk + GROUPS_MAX), *c = s + a.experts,
          *picked = c + a.experts, *scores = picked + a.topk;
    mf_begin();
    for (i64 t = (i64)blockIdx.x * WAVES + wave; t < a.token; t += (i64)gridDim.x * WAVES) {
        for (i32 e = lane; e < a.experts; e += MF_WAVE)
            s[e] = score_of(a, logit_of(a, t * a.experts + e));
        if (a.score == 0)
            softmax(a, s);
        for (i32 e = lane; e < a.experts; e += MF_WAVE)
            c[e] = s[e] + (a.bias ? a.bias[e] : 0.0f);
        mf_wave_sync();
        if (a.groups > 0)
            mask_groups(a, c, scores);
        for (i32 j = 0; j < a.topk; j++) {
            const i32 e = a.hash ? a.hash[t * a.topk + j] : take_best(a, c);
            if (lane == 0) {
                picked[j] = e >= 0 && e < a.experts ? fmaxf(s[e], 0.0f) : 0.0f;
                write_id(a, t * a.topk + j, e);
            }
        }
        mf_wave_sync();
        scale_weights(a, picked, t * a.topk);
        mf_wave_sync();
    }
}
