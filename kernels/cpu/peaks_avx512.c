#include "kernels/cpu/peaks.h"

typedef float VEC __attribute__((vector_size(64)));
#include "kernels/cpu/peaks.inc.h"

#include <immintrin.h>

static void bf16_all(long rounds)
{
    __m512 s[SUMS];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f003f00);

    for (int i = 0; i < SUMS; i++)
        s[i] = _mm512_setzero_ps();
    for (long r = 0; r < rounds; r++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) s[i] = _mm512_dpbf16_ps(s[i], a, a);
        __asm__ volatile("" : "+v"(a));
    }
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "v"(s[i]));
}

const struct mf_cpu_peak_loops mf_cpu_peak_loops_avx512 = {read_all, bf16_all, f32_all, 2.0 * 32 * SUMS,
                                                           2.0 * 16 * SUMS};
