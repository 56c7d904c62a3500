/* Orders of weights and scales: the position of element (row, col) of a matrix. Plain C and C++, shared by
 * kernels/ops/shuffle.c, which describes the orders, and ops_shuffle.hip. `rows` and `cols` are the size of
 * the matrix without padding, `padded_cols` its columns with padding. */
#pragma once

enum mf_op_order {
    MF_ORDER_W16X16,
    MF_ORDER_A16W4,
    MF_ORDER_A16W4_GU,
    MF_ORDER_A16W4_SCALE,
    MF_ORDER_E8M0,
    MF_ORDER_E8M0_1250,
    MF_ORDER_NV_32_4_4,
    MF_ORDER_NV_8_4
};

struct mf_op_matrix {
    long long rows, cols, padded_cols;
    int element_bytes;
    int four_bit; /* int4 with 16x16: cols counts values */
};

#ifdef MF_HIP_KERNEL
#    define MF_ORDER_FN MF_DEVICE
#else
#    define MF_ORDER_FN static inline
#endif

/* K is divided into parts of 16 bytes, which have kp elements. */
MF_ORDER_FN long long mf_order_16x16(const struct mf_op_matrix *z, long long n, long long k)
{
    const long long kp = z->four_bit ? 32 : 16 / z->element_bytes, parts = 32 / kp;
    return ((n / 16 * (z->cols / 32) + k / 32) * parts + k % 32 / kp) * 16 * kp + n % 16 * kp + k % kp;
}

/* The matrix, viewed as (N0, 16, K0, 4, 16), is stored as (N0, K0, 4, 16, 16). With gate and up, the view (2,
 * N0, …) is stored as (N0, 2, …). */
MF_ORDER_FN long long mf_order_a16w4(const struct mf_op_matrix *z, int gate_up, long long n, long long k)
{
    const long long half = z->rows / 2, block = gate_up ? n % half / 16 * 2 + n / half : n / 16;
    return (((block * (z->cols / 64) + k / 64) * 4 + k % 64 / 16) * 16 + n % 16) * 16 + k % 16;
}

/* The matrix, viewed as (2, N1, 2, 16, K1, 2, 4), is stored as (N1, K1, 4, 16, 2, 2). The first dimension of
 * the view is gate and up. */
MF_ORDER_FN long long mf_order_a16w4_scale(const struct mf_op_matrix *z, long long n, long long k)
{
    const long long half = z->rows / 2, g = n / half, r = n % half;
    const long long n1 = r / 32, pair = r % 32 / 16, lane = r % 16, k1 = k / 8, kh = k % 8 / 4, k4 = k % 4;
    return ((((n1 * (z->cols / 8) + k1) * 4 + k4) * 16 + lane) * 2 + kh) * 2 + pair + g * (half * z->cols);
}

MF_ORDER_FN long long mf_order_e8m0(long long cols, long long x, long long y)
{
    return x / 32 * 32 * cols + y / 8 * 256 + y % 4 * 64 + x % 16 * 4 + y % 8 / 4 * 2 + x % 32 / 16;
}

MF_ORDER_FN long long mf_order_index(int order, const struct mf_op_matrix *z, long long row, long long col)
{
    const long long cols = z->padded_cols;
    if (order == MF_ORDER_W16X16)
        return mf_order_16x16(z, row, col);
    if (order == MF_ORDER_A16W4 || order == MF_ORDER_A16W4_GU)
        return mf_order_a16w4(z, order == MF_ORDER_A16W4_GU, row, col);
    if (order == MF_ORDER_A16W4_SCALE)
        return mf_order_a16w4_scale(z, row, col);
    if (order == MF_ORDER_E8M0)
        return mf_order_e8m0(cols, row, col);
    if (order == MF_ORDER_E8M0_1250)
        return ((row / 32 * (cols / 4) + col / 4) * 32 + row % 32) * 4 + col % 4;
    if (order == MF_ORDER_NV_32_4_4)
        return row / 128 * (cols / 4) * 512 + col / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col % 4;
    return row / 8 * (cols / 4) * 32 + col / 4 * 32 + row % 8 * 4 + col % 4;
}
