/* How the rows of gate and of up of w1 lie: all of gate first, or MF_GATE_ROWS rows of each in turn (kernels/core/layout.h). */
#pragma once

/* The row of gate of a column, and how many rows behind it that of up is. */
MF_DEVICE i32 mf_gate_row(i32 column)
{
#ifdef MF_GATE_ROWS
    return column / MF_GATE_ROWS * (2 * MF_GATE_ROWS) + column % MF_GATE_ROWS;
#else
    return column;
#endif
}
#ifdef MF_GATE_ROWS
#    define MF_UP_AT(columns) MF_GATE_ROWS
#else
#    define MF_UP_AT(columns) (columns)
#endif
