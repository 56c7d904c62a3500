/* Minimal replacement for HIP's headers and AMD's device library, for a clang installed without them. It
 * serves to check that kernels compile for an architecture that the installed hipRTC does not support. Code
 * built with this file never runs. */
#pragma once

#define __global__      __attribute__((global))
#define __device__      __attribute__((device))
#define __shared__      __attribute__((shared))
#define __align__(n)    __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
/* Launch bounds: threads per block. The second argument, which is blocks per SM on NVIDIA, is ignored. */
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))

struct mf_index {
    u32 x, y;
};
#define threadIdx (mf_index{__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y()})
#define blockIdx  (mf_index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y()})
#define blockDim  (mf_index{__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y()})
#define gridDim                                                                     \
    (mf_index{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), \
              __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y()})

MF_DEVICE void __syncthreads()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

#define fabsf     __builtin_fabsf
#define fmaxf     __builtin_fmaxf
#define fminf     __builtin_fminf
#define fmaf      __builtin_fmaf
#define sqrtf     __builtin_sqrtf
#define copysignf __builtin_copysignf

MF_DEVICE float __uint_as_float(u32 v)
{
    return __builtin_bit_cast(float, v);
}
MF_DEVICE u32 __float_as_uint(float v)
{
    return __builtin_bit_cast(u32, v);
}
MF_DEVICE float __expf(float x)
{
    return __builtin_amdgcn_exp2f(x * 1.44269504f);
}
/* Computes tanh from exp. For small x it uses the Taylor series instead, because the difference of two
 * numbers close to 1 loses digits. */
MF_DEVICE float tanhf(float x)
{
    const float a = fabsf(x), e = __expf(-2 * a), square = x * x;
    return a < 0.1f ? x - x * square * (0.33333333f - 0.13333333f * square)
                    : __builtin_copysignf((1 - e) / (1 + e), x);
}
/* Approximates erf by formula 7.1.26 of Abramowitz and Stegun; the error is at most 1.5e-7. */
MF_DEVICE float erff(float x)
{
    const float a = fabsf(x), t = 1 / (1 + 0.3275911f * a);
    const float sum = t * (0.254829592f +
                           t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    return __builtin_copysignf(1 - sum * __expf(-a * a), x);
}
