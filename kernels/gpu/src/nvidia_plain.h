/* What NVIDIA's dialect says without an instruction of its own: how matrices lie in lanes, and words made of other words. The
 * emulator of the tests has its own instructions below the same words. */
#pragma once

#define MF_WAVE 32

MF_DEVICE void mf_copy_async_16(void *lds, const void *global, bool valid);
MF_DEVICE void mf_copy_async_4(void *lds, const void *global, bool valid);
MF_DEVICE void mf_copy_async_up_to_4(void *lds, const void *global, i32 bytes);
MF_DEVICE u32 mf_fp8_to_f16_pair(u32 four, int half);

/* Copies as words that know of a time in between: `way` is what a thread holds of a copy from asking until landing, here
 * nothing, since the copy lands by itself by the wait for its group. */
struct mf_copy_16 {
};
struct mf_copy_4 {
};
MF_DEVICE void mf_copy_ask_16(mf_copy_16 &way, void *lds, const void *global, bool valid)
{
    (void)way;
    mf_copy_async_16(lds, global, valid);
}
MF_DEVICE void mf_copy_ask_4(mf_copy_4 &way, void *lds, const void *global, bool valid)
{
    (void)way;
    mf_copy_async_4(lds, global, valid);
}
/* The first bytes of a word; zeros after them, and where there are none nothing is read. */
MF_DEVICE void mf_copy_ask_up_to_4(mf_copy_4 &way, void *lds, const void *global, i32 bytes)
{
    (void)way;
    mf_copy_async_up_to_4(lds, global, bytes);
}
MF_DEVICE void mf_copy_land_16(const mf_copy_16 &way, void *lds)
{
    (void)way, (void)lds;
}
MF_DEVICE void mf_copy_land_4(const mf_copy_4 &way, void *lds)
{
    (void)way, (void)lds;
}

/* What mf_mma_bf16 and mf_mma_f16 multiply, and where their sums are. */
#define MF_MMA_COLS  8  /* of d */
#define MF_MMA_BYTES 32 /* of K that one load of operands takes, and the products of it multiply */
#define MF_MMA_A     4  /* registers of a lane */
#define MF_MMA_B     2
/* Sum i of a lane is of row mf_mma_row + i % 2 · ROW_STEP + i / 2 · APART and column mf_mma_col + i % 2 · COL_STEP. */
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

/* A 16-bit load of 8-bit elements gives a lane four neighbours along K. As f16 they are two steps of the instruction, by
 * halves; which K goes where is the same for both operands, so the product is the same. */
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
