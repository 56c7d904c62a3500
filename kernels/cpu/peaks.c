#include "kernels/cpu/peaks.h"

const struct mf_cpu_peak_loops *mf_cpu_peak_loops(enum mf_isa isa)
{
    switch (isa) {
#if defined(__x86_64__)
    case MF_ISA_AVX512:
        return &mf_cpu_peak_loops_avx512;
    case MF_ISA_AVX2:
        return &mf_cpu_peak_loops_avx2;
#else
    case MF_ISA_AVX512:
    case MF_ISA_AVX2:
#endif
    case MF_ISA_C:
        break;
    }
    return &mf_cpu_peak_loops_c;
}
