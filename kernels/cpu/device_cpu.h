/* The CPU as a device; one device per host. */
#pragma once

#include "kernels/core/device.h"

int mf_device_cpu_open(const struct mf_device_open_options *how, struct mf_device **ret);

/* Ceilings of the machine, measured on all threads of the pool in about 0.2 s. */
struct mf_cpu_peaks {
    double bf16_gflops, f32_gflops, mem_read_gbs, gap_us;
};
int mf_cpu_peaks_measure(enum mf_isa isa, uint64_t llc_bytes, struct mf_cpu_peaks *ret);
