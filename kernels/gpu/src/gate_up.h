/* Row order of gate and up in w1: all gate rows first, or alternating blocks of MF_GATE_ROWS rows
 * (kernels/core/layout.h). */
#pragma once

/* mf_gate_row() returns the gate row of a column. MF_UP_AT is the distance from a gate row to its up row. */
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
