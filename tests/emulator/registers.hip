/* The registers of NVIDIA's matrix instructions as they are, lane by lane: what ldmatrix leaves of rows in memory, and what
 * mma.m16n8k16 leaves of registers from memory. */
#include "dialect.h"

struct register_args {
    const u32 *in; /* load: four matrices of 8 rows of 8 elements; multiply: a and b, [32][6] */
    u32 *out;      /* load: [32][4 of four matrices, 2 of the first two]; multiply: float [32][4] */
    i32 multiply, unused;
};

MF_DEVICE void load(const register_args &args)
{
    __shared__ __align__(16) u32 rows[4 * 8 * 4];
    const i32 lane = threadIdx.x;
    u32 four[4], two[2];

    for (i32 i = lane; i < 4 * 8 * 4; i += MF_WAVE)
        rows[i] = args.in[i];
    __syncthreads();
    mf_load_matrix_4(four, rows + lane * 4);
    mf_load_matrix_2(two, rows + lane % 16 * 4);
    for (int i = 0; i < 6; i++)
        args.out[lane * 6 + i] = i < 4 ? four[i] : two[i - 4];
}

extern "C" __global__ void MF_BOUNDS(MF_WAVE, 1) mf_registers(const register_args args)
{
    const u32 *in = args.in + threadIdx.x * 6;
    if (!args.multiply) {
        load(args);
        return;
    }
    const u32 a[4] = {in[0], in[1], in[2], in[3]}, b[2] = {in[4], in[5]};
    float d[4] = {0, 0, 0, 0};
    mf_mma_bf16(d, a, b);
    for (int i = 0; i < 4; i++)
        ((float *)args.out)[threadIdx.x * 4 + i] = d[i];
}
