/* How a tile's weights come from memory to the lanes that multiply them; included by tile.hip.
 *
 * Through the ring: all threads copy a slice, eight threads a row, and each wave loads the operands that it wants. Or
 * (MF_DIRECT, where copies are held in registers) each wave asks memory for its own operands, a lane for the 16 bytes that it
 * will multiply: LDS then holds tokens only, and no wave waits for another's weights. */
#pragma once

#ifdef MF_DIRECT
#    define W_STEP    16
#    define W_PASSES  QN
#    define W_PARTS   (SLICE / MF_MMA_BYTES)
#    define RING_OF_W 0
#else
#    define W_STEP    STEP /* rows between two that a thread copies */
#    define W_PASSES  (MF_BN / STEP)
#    define W_PARTS   1
#    define RING_OF_W (MF_BN * SLICE) /* bytes of a slice */
#endif

typedef u32 rows_of_w[QN][MF_MMA_A];

/* The first row and chunk of a slice that a thread copies. */
MF_DEVICE i32 first_row_of_w()
{
#ifdef MF_DIRECT
    return (i32)(threadIdx.x / MF_WAVE) % MF_WARPS_N * WN + (threadIdx.x & 15);
#else
    return threadIdx.x / 8;
#endif
}
MF_DEVICE i32 first_chunk_of_w()
{
#ifdef MF_DIRECT
    return threadIdx.x % MF_WAVE >> 4;
#else
    return threadIdx.x % 8;
#endif
}

struct way_of_w {
    mf_copy_16 part[W_PARTS][W_PASSES];
};
/* Operands that have come and are being multiplied, where they have not gone through the ring. */
struct held_w {
#ifdef MF_DIRECT
    rows_of_w part[W_PARTS];
#endif
};

/* Asks for a slice of the tile at column col; w is the thread's first chunk of its first row. */
MF_DEVICE void copy_weights(const u8 *w, i32 col, i32 slice, u8 *ring, struct way_of_w *way)
{
    const i32 row = first_row_of_w(), chunk = first_chunk_of_w();
    const i64 along = (i64)slice * SLICE;
    MF_UNROLL
    for (int part = 0; part < W_PARTS; part++) {
        const i32 c = chunk + part * (MF_MMA_BYTES / 16);
        const bool within = slice * SLICE + c * 16 < MF_D * BYTES;
        MF_UNROLL
        for (int p = 0; p < W_PASSES; p++) {
            const i32 r = row + p * W_STEP;
            const i64 further = (i64)(weight_row(0, r) - weight_row(0, row)) * MF_D * BYTES;
            mf_copy_ask_16(way->part[part][p], chunk_of(ring, r, c),
                           w + further + along + part * MF_MMA_BYTES, within && is_column(col, r));
        }
    }
}

/* The slice that came is multiplied next. */
MF_DEVICE void land_weights(const struct way_of_w *way, u8 *ring, struct held_w *held)
{
    MF_UNROLL
    for (int i = 0; i < W_PARTS * W_PASSES; i++) {
#ifdef MF_DIRECT
        mf_copy_take_16(way->part[i / W_PASSES][i % W_PASSES], held->part[i / W_PASSES][i % W_PASSES]);
#else
        mf_copy_land_16(way->part[0][i], chunk_of(ring, first_row_of_w() + i * W_STEP, first_chunk_of_w()));
#endif
    }
    (void)ring, (void)held;
}

/* The operands of step s along K. */
MF_DEVICE void load_weights(const struct held_w &held, u8 *ring, i32 first_row, int s, rows_of_w &w)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int i = 0; i < QN; i++) {
#ifdef MF_DIRECT
        MF_UNROLL
        for (int j = 0; j < MF_MMA_A; j++)
            w[i][j] = held.part[s][i][j];
#else
        mf_load_matrix_4(
            w[i], chunk_of(ring, first_row + i * 16 + (lane & 15), s * (MF_MMA_BYTES / 16) + (lane >> 4)));
#endif
    }
    (void)held, (void)ring, (void)first_row, (void)lane;
}
