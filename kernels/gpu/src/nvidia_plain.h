/* NVIDIA primitives that need no PTX: operand layouts, and functions built from other primitives. The tests'
 * emulator shares this file and has versions of its own of the primitives that use PTX. */
#pragma once

#define MF_WAVE 32

MF_DEVICE void mf_copy_async_16(void *lds, const void *global, bool valid);
MF_DEVICE void mf_copy_async_4(void *lds, const void *global, bool valid);
MF_DEVICE void mf_copy_async_up_to_4(void *lds, const void *global, i32 bytes);
MF_DEVICE u32 mf_fp8_to_f16_pair(u32 four, int half);

/* Two-phase copies: `copy` holds a thread's data between start and finish. On NVIDIA `copy` is empty, because
 * cp.async completes by itself when a thread waits for its group. */
struct mf_copy_16 {
};
struct mf_copy_4 {
};
MF_DEVICE void mf_copy_start_16(mf_copy_16 &copy, void *lds, const void *global, bool valid)
{
    (void)copy;
    mf_copy_async_16(lds, global, valid);
}
MF_DEVICE void mf_copy_start_4(mf_copy_4 &copy, void *lds, const void *global, bool valid)
{
    (void)copy;
    mf_copy_async_4(lds, global, valid);
}
/* Copies the first `bytes` bytes of a word and fills the rest with zeros. If `bytes` is 0, does not read
 * global memory. */
MF_DEVICE void mf_copy_start_up_to_4(mf_copy_4 &copy, void *lds, const void *global, i32 bytes)
{
    (void)copy;
    mf_copy_async_up_to_4(lds, global, bytes);
}
MF_DEVICE void mf_copy_finish_16(const mf_copy_16 &copy, void *lds)
{
    (void)copy, (void)lds;
}
MF_DEVICE void mf_copy_finish_4(const mf_copy_4 &copy, void *lds)
{
    (void)copy, (void)lds;
}

/* Operand and accumulator layout of mf_mma_bf16 and mf_mma_f16. */
#define MF_MMA_COLS  8  /* columns of d */
#define MF_MMA_BYTES 32 /* bytes along K that one operand load covers and that are then multiplied */
#define MF_MMA_A     4  /* registers per lane */
#define MF_MMA_B     2
/* Accumulator i of a lane is in row mf_mma_row() + i % 2 · MF_MMA_ROW_STEP + i / 2 · MF_MMA_APART and in
 * column mf_mma_col() + i % 2 · MF_MMA_COL_STEP. */
#define MF_MMA_ROW_STEP 0
#define MF_MMA_COL_STEP 1
#define MF_MMA_APART    8
MF_DEVICE int mf_mma_row(int lane)
{
    return lane >> 2;
}
MF_DEVICE int mf_mma_col(int lane)
{
    return (lane & 3) * 2;
}

/* If a matrix load for 16-bit elements loads 8-bit elements, each register of a lane holds four adjacent
 * elements along K. After conversion to f16 they are operands of two instructions, one per half. The order
 * along K is permuted in the same way for both operands, so the product is the same. */
MF_DEVICE void mf_fp8_half_a(const u32 (&q)[MF_MMA_A], int half, u32 (&f)[MF_MMA_A])
{
    f[0] = mf_fp8_to_f16_pair(q[2 * half], 0);
    f[1] = mf_fp8_to_f16_pair(q[2 * half + 1], 0);
    f[2] = mf_fp8_to_f16_pair(q[2 * half], 1);
    f[3] = mf_fp8_to_f16_pair(q[2 * half + 1], 1);
}
MF_DEVICE void mf_fp8_half_b(const u32 (&q)[MF_MMA_B], int half, u32 (&f)[MF_MMA_B])
{
    f[0] = mf_fp8_to_f16_pair(q[half], 0);
    f[1] = mf_fp8_to_f16_pair(q[half], 1);
}
