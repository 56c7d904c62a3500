/* The planted faults of faults.hip, for the kernel and for the test that looks for them. A mode leaves out or adds one thing
 * of a kernel that is right otherwise. */
#pragma once

#define FAULT_NONE         0
#define FAULT_BARRIER      1  /* left out: between a write and a read of another wave's lane */
#define FAULT_WAVE_SYNC    2  /* left out: between a write and a read of the same wave's lane */
#define FAULT_LAST_BARRIER 3  /* left out: between a read and the write that follows */
#define FAULT_OWN_BARRIER  4  /* left out: around a __shared__ variable */
#define FAULT_WAIT         5  /* left out: for a copy */
#define FAULT_SHALLOW_WAIT 6  /* for the first of two copies only */
#define FAULT_EARLY_COPY   7  /* asked for over what others may still read */
#define FAULT_LDS_BEYOND   8  /* written past the launch's LDS */
#define FAULT_UNWRITTEN    9  /* LDS read that nobody wrote */
#define FAULT_READ_BEYOND  10 /* a buffer read past its end */
#define FAULT_READ_BEFORE  11
#define FAULT_WRITE_BEYOND 12
#define FAULT_INPUT        13 /* an input written */
#define FAULT_COPY_BEYOND  14 /* a copy of what lies past a buffer's end */
#define FAULT_UNALIGNED    15
#define FAULT_DIVERGED     16 /* one lane at another call than its wave */
#define FAULT_STUCK        17 /* one lane at a barrier, its wave at a shuffle */
#define FAULT_NO_ARRIVAL   18 /* a block does not come to where the grid meets */
#define N_FAULTS           19

#define FAULT_LANES     128
#define FAULT_BLOCKS    2
#define FAULT_LDS_WORDS (4 * FAULT_LANES) /* the last quarter stays unwritten */

struct fault_args {
    const unsigned *in; /* [FAULT_LANES] */
    unsigned *out;      /* [FAULT_BLOCKS * FAULT_LANES] */
    int mode, unused;
};
