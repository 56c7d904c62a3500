/* Zeroes y before a stage adds to it (zero.h). */
#include "dialect.h"
#include "args.h"
#include "zero.h"

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_zero(const mf_hip_combine_args a)
{
    mf_begin();
    zero_rows(a.y, a.token, blockIdx.x, gridDim.x);
}
