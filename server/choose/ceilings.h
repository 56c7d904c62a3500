/* Limits of a device. */
#pragma once

/* Limits that a device reports and results are checked against; 0: not reported. */
struct mf_ceilings {
    double peak_gflops; /* the largest of its data types */
    double mem_read_gbs;
    double llc_bytes;
    double gap_us; /* launch overhead */
};
