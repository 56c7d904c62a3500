/* The fastest loops of each instruction set, for measuring a machine's ceilings. */
#pragma once

#include <stddef.h>

#include "kernels/core/device.h"

struct mf_cpu_peak_loops {
    void (*read)(const char *p, size_t bytes); /* bytes is a multiple of 4096 */
    void (*bf16)(long rounds);
    void (*f32)(long rounds);
    double bf16_flops, f32_flops; /* per round */
};

const struct mf_cpu_peak_loops *mf_cpu_peak_loops(enum mf_isa isa);
extern const struct mf_cpu_peak_loops mf_cpu_peak_loops_c, mf_cpu_peak_loops_avx2, mf_cpu_peak_loops_avx512;
