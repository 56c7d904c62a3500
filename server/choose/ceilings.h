/* Performance limits of a device. */
#pragma once

/* Limits that a device reports and against which results are checked; 0: not reported. */
struct mf_ceilings {
    double peak_gflops; /* peak of the fastest data type */
    double mem_read_gbs;
    double llc_bytes;
    double gap_us;   /* launch overhead */
    int cpu_threads; /* threads of a CPU; 0: the device is a GPU */
};
