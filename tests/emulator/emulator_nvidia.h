/* NVIDIA's matrix instructions by the lane maps of the PTX ISA (ldmatrix; mma.m16n8k16). Each lane brings its registers,
 * the last of the wave multiplies. Sums of a step are made in double and rounded once. */
#pragma once

/* ---- ldmatrix ---- */

struct mf_matrix_rows {
    const void *row; /* of the matrix that the lane names */
    int n;           /* matrices */
    u32 r[4];
};

MF_HIDDEN void mf_load_matrix_all(void **lanes)
{
    for (int l = 0; l < MF_WAVE; l++) {
        mf_matrix_rows *mine = (mf_matrix_rows *)lanes[l];
        for (int m = 0; m < mine->n; m++) {
            const mf_matrix_rows *named = (const mf_matrix_rows *)lanes[m * 8 + l / 4];
            memcpy(&mine->r[m], (const u8 *)named->row + l % 4 * 4, 4);
        }
    }
}
MF_WORD void mf_load_matrix_4(u32 (&r)[4], const void *lds)
{
    mf_matrix_rows rows = {lds, 4, {}};
    mf_emulator->access(mf_emulator, lds, 16, MF_ACCESS_READ, MF_PC);
    mf_emulator->meet(mf_emulator, "mf_load_matrix_4", &rows, mf_load_matrix_all, MF_PC);
    memcpy(r, rows.r, sizeof(r));
}
/* The addresses of the upper half of the wave are not used. */
MF_WORD void mf_load_matrix_2(u32 (&r)[2], const void *lds)
{
    mf_matrix_rows rows = {lds, 2, {}};
    if (mf_now_thread().x % MF_WAVE < 16)
        mf_emulator->access(mf_emulator, lds, 16, MF_ACCESS_READ, MF_PC);
    mf_emulator->meet(mf_emulator, "mf_load_matrix_2", &rows, mf_load_matrix_all, MF_PC);
    memcpy(r, rows.r, sizeof(r));
}

/* ---- mma.m16n8k16 ---- */

struct mf_product {
    float *d;
    u32 a[4], b[2];
    bool bf16;
};

MF_HIDDEN float mf_product_element(u32 two, int high, bool bf16)
{
    const u32 bits = high ? two >> 16 : two & 0xffff;
    return bf16 ? __uint_as_float(bits << 16) : mf_f16(bits);
}

/* Lane 4·g + t has of row g or g + 8 and column 2·t + i, or that + 8, the registers below; of b with rows and columns
 * exchanged. */
MF_HIDDEN void mf_product_all(void **lanes)
{
    float a[16][16], b[16][8];
    for (int l = 0; l < MF_WAVE; l++) {
        const mf_product *p = (const mf_product *)lanes[l];
        const int g = l / 4, t = l % 4;
        for (int i = 0; i < 8; i++) /* register i / 2, its low or high half */
            a[g + (i / 2 % 2) * 8][2 * t + i % 2 + i / 4 * 8] =
                mf_product_element(p->a[i / 2], i % 2, p->bf16);
        for (int i = 0; i < 4; i++)
            b[2 * t + i % 2 + i / 2 * 8][g] = mf_product_element(p->b[i / 2], i % 2, p->bf16);
    }
    for (int l = 0; l < MF_WAVE; l++) {
        const mf_product *p = (const mf_product *)lanes[l];
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, col = 2 * (l % 4) + i % 2;
            double sum = p->d[i];
            for (int k = 0; k < 16; k++)
                sum += (double)a[row][k] * b[k][col];
            p->d[i] = (float)sum;
        }
    }
}
#define MF_MMA_COLS     8
#define MF_MMA_BYTES    32
#define MF_MMA_A        4
#define MF_MMA_B        2
#define MF_MMA_ROW_STEP 0
#define MF_MMA_COL_STEP 1
#define MF_MMA_APART    8
MF_DEVICE int mf_mma_row(int lane)
{
    return lane / 4;
}
MF_DEVICE int mf_mma_col(int lane)
{
    return lane % 4 * 2;
}
MF_WORD void mf_mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    mf_product p = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, true};
    mf_emulator->meet(mf_emulator, "mf_mma_bf16", &p, mf_product_all, MF_PC);
}
MF_WORD void mf_mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    mf_product p = {d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, false};
    mf_emulator->meet(mf_emulator, "mf_mma_f16", &p, mf_product_all, MF_PC);
}
MF_DEVICE void mf_fp8_half_a(const u32 (&q)[4], int half, u32 (&f)[4])
{
    f[0] = mf_fp8_to_f16_pair(q[2 * half], 0);
    f[1] = mf_fp8_to_f16_pair(q[2 * half + 1], 0);
    f[2] = mf_fp8_to_f16_pair(q[2 * half], 1);
    f[3] = mf_fp8_to_f16_pair(q[2 * half + 1], 1);
}
MF_DEVICE void mf_fp8_half_b(const u32 (&q)[2], int half, u32 (&f)[2])
{
    f[0] = mf_fp8_to_f16_pair(q[half], 0);
    f[1] = mf_fp8_to_f16_pair(q[half], 1);
}
