/* The CPU as a device: one for each host. */
#pragma once

#include "kernels/core/device.h"

/* Opening a device reads MOEFARM_ISA anew. */
void mf_isa_refresh(void);

int mf_device_cpu_open(const struct mf_device_opening *how, struct mf_device **ret);

/* What the machine does at best, measured on every thread of the pool; takes about 0.2 s. */
struct mf_cpu_peaks {
    double bf16_gflops, f32_gflops, mem_read_gbs, gap_us;
};
int mf_cpu_peaks_measure(enum mf_isa isa, uint64_t llc_bytes, struct mf_cpu_peaks *ret);
