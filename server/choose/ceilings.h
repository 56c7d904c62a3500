/* Performance limits of a device. */
#pragma once

#include "common/moe/shape.h"

/* Limits that a device reports and against which results are checked; 0: not reported. */
struct mf_ceilings {
    double peak_gflops; /* peak of the fastest data type */
    /* the most that the device can compute with activations of a type; it reports only some peaks */
    double dtype_gflops[MF_DTYPE_N_];
    double mem_read_gbs;
    double llc_bytes;
    double gap_us;   /* launch overhead */
    int cpu_threads; /* threads of a CPU; 0: the device is a GPU */
};
