/* Faults that faults.hip can plant, shared by the kernel and check_emulator_faults. Each mode removes or adds
 * one operation of an otherwise correct kernel. */
#pragma once

#define FAULT_NONE    0
#define FAULT_BARRIER 1 /* removed: barrier between a write and a read by a lane of another wave */
/* removed: wave synchronisation between a write and a read by lanes of one wave */
#define FAULT_WAVE_SYNC      2
#define FAULT_LAST_BARRIER   3  /* removed: barrier between a read and the next write */
#define FAULT_STATIC_BARRIER 4  /* removed: barrier after writing a __shared__ variable */
#define FAULT_WAIT           5  /* removed: wait for a copy */
#define FAULT_SHALLOW_WAIT   6  /* waits only for the first of two copies */
#define FAULT_EARLY_COPY     7  /* starts a copy to data that other lanes may still read */
#define FAULT_LDS_BEYOND     8  /* write past the launch's LDS */
#define FAULT_UNWRITTEN      9  /* read of uninitialised LDS */
#define FAULT_READ_BEYOND    10 /* read past the end of a buffer */
#define FAULT_READ_BEFORE    11
#define FAULT_WRITE_BEYOND   12
#define FAULT_INPUT          13 /* write to an input */
#define FAULT_COPY_BEYOND    14 /* copy from past the end of a buffer */
#define FAULT_UNALIGNED      15
#define FAULT_DIVERGED       16 /* one lane makes another collective call than the rest of its wave */
#define FAULT_STUCK          17 /* one lane waits at a barrier, the rest of its wave at a shuffle */
#define FAULT_NO_ARRIVAL     18 /* one block does not arrive at the grid barrier */
#define N_FAULTS             19

#define FAULT_LANES     128
#define FAULT_BLOCKS    2
#define FAULT_LDS_WORDS (4 * FAULT_LANES) /* the last quarter is never written */

struct fault_args {
    const unsigned *in; /* [FAULT_LANES] */
    unsigned *out;      /* [FAULT_BLOCKS * FAULT_LANES] */
    int mode, unused;
};
