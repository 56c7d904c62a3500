#include "kernels/cpu/peaks.h"

typedef float VEC __attribute__((vector_size(32)));
#include "kernels/cpu/peaks.inc.h"

/* bf16 is widened and multiplied as float, so the bf16 loop is the float loop. */
const struct mf_cpu_peak_loops mf_cpu_peak_loops_avx2 = {read_all, f32_all, f32_all, 2.0 * 8 * SUMS,
                                                         2.0 * 8 * SUMS};
