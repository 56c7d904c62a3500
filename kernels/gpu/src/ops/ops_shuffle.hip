/* Reorders weights and scales (ops_order.h). A thread moves a unit of adjacent elements. The forward
 * direction goes through the padded matrix, so that padding is filled in the same pass. */
#include "dialect.h"
#include "ops_args.h"
#include "ops_order.h"

MF_DEVICE void fill(u8 *to, u32 word)
{
    *to = (u8)word;
}
MF_DEVICE void fill(u16 *to, u32 word)
{
    *to = (u16)word;
}
MF_DEVICE void fill(u32 *to, u32 word)
{
    *to = word;
}
MF_DEVICE void fill(mf_16b *to, u32 word)
{
    *to = mf_16b{word, word, word, word};
}

template <class UNIT> MF_DEVICE void shuffle(const mf_op_shuffle_args &a)
{
    const i64 in_unit = sizeof(UNIT) / a.element_bytes, rows = a.undo ? a.rows : a.padded_rows;
    const i64 across = (a.undo ? a.cols : a.padded_cols) / in_unit, n = a.matrices * rows * across;
    const i64 plain = a.rows * a.cols, padded = a.padded_rows * a.padded_cols;
    const mf_op_matrix z = {a.rows, a.cols, a.padded_cols, a.element_bytes, a.four_bit};
    for (i64 i = (i64)blockIdx.x * MF_THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * MF_THREADS) {
        const i64 line = i / across, matrix = line / rows, row = line % rows,
                  col = (i - line * across) * in_unit;
        const i64 here = (matrix * plain + row * a.cols + col) / in_unit;
        const i64 there = (matrix * padded + mf_order_index(a.order, &z, row, col)) / in_unit;
        if (a.undo)
            ((UNIT *)a.to)[here] = ((const UNIT *)a.from)[there];
        else if (row < a.rows && col < a.cols)
            ((UNIT *)a.to)[there] = ((const UNIT *)a.from)[here];
        else
            fill((UNIT *)a.to + there, a.fill);
    }
}
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_op_shuffle(const mf_op_shuffle_args a)
{
    mf_begin();
    if (a.unit == 16)
        shuffle<mf_16b>(a);
    else if (a.unit == 4)
        shuffle<u32>(a);
    else if (a.unit == 2)
        shuffle<u16>(a);
    else
        shuffle<u8>(a);
}
