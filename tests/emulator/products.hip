/* One matrix product, d[16, MF_MMA_COLS] = a · transposed b, with operands loaded through LDS as in tile.hip.
 * Rows of a and b have MF_MMA_BYTES bytes along K. MF_FORMAT 0: bf16, 1: f16, 2: e4m3 converted to f16, 3:
 * e4m3 passed to the instruction, 4: int8. */
#include "dialect.h"

struct product_args {
    const void *a; /* [16] rows */
    const void *b; /* [MF_MMA_COLS] rows */
    float *d;
};

MF_DEVICE void load(u8 *lds, const void *from, i32 rows)
{
    for (i32 i = threadIdx.x; i < rows * MF_MMA_BYTES / 4; i += MF_WAVE)
        ((u32 *)lds)[i] = ((const u32 *)from)[i];
}

extern "C" __global__ void MF_BOUNDS(MF_WAVE, 1) mf_product_of(const product_args args)
{
    __shared__ __align__(16) u8 a[16 * MF_MMA_BYTES], b[MF_MMA_COLS * MF_MMA_BYTES];
    const i32 lane = threadIdx.x;
    u32 w[MF_MMA_A], x[MF_MMA_B];
    float d[4] = {0, 0, 0, 0};

    load(a, args.a, 16);
    load(b, args.b, MF_MMA_COLS);
    __syncthreads();
    mf_load_matrix_4(w, a + (lane & 15) * MF_MMA_BYTES + (lane >> 4) * 16);
#if MF_MMA_COLS == 16
    mf_load_matrix_4(x, b + (lane & 15) * MF_MMA_BYTES + (lane >> 4) * 16);
#else
    mf_load_matrix_2(x, b + (lane & 7) * MF_MMA_BYTES + ((lane >> 3) & 1) * 16);
#endif
#if MF_FORMAT == 0
    mf_mma_bf16(d, w, x);
#elif MF_FORMAT == 1
    mf_mma_f16(d, w, x);
#elif MF_FORMAT == 3
    mf_mma_fp8(d, w, x);
#elif MF_FORMAT == 4
    i32 sums[4] = {0, 0, 0, 0};
    mf_mma_s8(sums, w, x);
    for (int i = 0; i < 4; i++)
        d[i] = (float)sums[i];
#else
    for (int half = 0; half < 2; half++) {
        u32 wf[MF_MMA_A], xf[MF_MMA_B];
        mf_fp8_half_a(w, half, wf);
        mf_fp8_half_b(x, half, xf);
        mf_mma_f16(d, wf, xf);
    }
#endif
    for (int i = 0; i < 4; i++) {
        const i32 row = mf_mma_row(lane) + i % 2 * MF_MMA_ROW_STEP + i / 2 * MF_MMA_APART;
        args.d[row * MF_MMA_COLS + mf_mma_col(lane) + i % 2 * MF_MMA_COL_STEP] = d[i];
    }
}
