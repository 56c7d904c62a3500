/* Moves a tile's weights from global memory to MMA operands; included by tile.hip.
 *
 * Normally weights pass through the ring buffer: all threads copy a K tile, eight threads per row, and each
 * warp loads its operands from shared memory. With MF_DIRECT, for GPUs that stage copies in registers, each
 * lane loads the 16 bytes that it multiplies directly from global memory. Shared memory then holds tokens
 * only, and no warp waits for another warp's weights. */
#pragma once

#ifdef MF_DIRECT
#    define W_STEP        16
#    define W_PASSES      QN
#    define W_PARTS       (K_TILE_BYTES / MF_MMA_BYTES)
#    define W_STAGE_BYTES 0
#else
#    define W_STEP        STEP /* stride between the rows that a thread copies */
#    define W_PASSES      (MF_BN / STEP)
#    define W_PARTS       1
#    define W_STAGE_BYTES (MF_BN * K_TILE_BYTES) /* bytes of a K tile */
#endif

typedef u32 rows_of_w[QN][MF_MMA_A];

/* first_row_of_w() and first_chunk_of_w() return the first row and the first chunk that this thread copies in
 * each K tile of weights. */
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

struct weight_copies {
    mf_copy_16 part[W_PARTS][W_PASSES];
};
/* Weight operands in registers, if weights bypass the ring buffer. */
struct held_weights {
#ifdef MF_DIRECT
    rows_of_w part[W_PARTS];
#endif
};

/* Starts the copies of a K tile of the tile at column `col`. `w` points to the thread's first chunk of its
 * first row. */
MF_DEVICE void copy_weights(const u8 *w, i32 col, i32 k_tile, u8 *ring, struct weight_copies *copies)
{
    const i32 row = first_row_of_w(), chunk = first_chunk_of_w();
    const i64 along = (i64)k_tile * K_TILE_BYTES;
    MF_UNROLL
    for (int part = 0; part < W_PARTS; part++) {
        const i32 c = chunk + part * (MF_MMA_BYTES / 16);
        const bool within = k_tile * K_TILE_BYTES + c * 16 < MF_D * BYTES;
        MF_UNROLL
        for (int p = 0; p < W_PASSES; p++) {
            const i32 r = row + p * W_STEP;
            const i64 further = (i64)(weight_row(0, r) - weight_row(0, row)) * MF_D * BYTES;
            mf_copy_start_16(copies->part[part][p], chunk_of(ring, r, c),
                             w + further + along + part * MF_MMA_BYTES, within && is_column(col, r));
        }
    }
}

/* Completes the copies of the K tile that is multiplied next. */
MF_DEVICE void finish_weights(const struct weight_copies *copies, u8 *ring, struct held_weights *held)
{
    MF_UNROLL
    for (int i = 0; i < W_PARTS * W_PASSES; i++) {
#ifdef MF_DIRECT
        mf_copy_get_16(copies->part[i / W_PASSES][i % W_PASSES], held->part[i / W_PASSES][i % W_PASSES]);
#else
        mf_copy_finish_16(copies->part[0][i],
                          chunk_of(ring, first_row_of_w() + i * W_STEP, first_chunk_of_w()));
#endif
    }
    (void)ring, (void)held;
}

/* Loads the weight operands of step s along K. */
MF_DEVICE void load_weights(const struct held_weights &held, u8 *ring, i32 first_row, int s, rows_of_w &w)
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
