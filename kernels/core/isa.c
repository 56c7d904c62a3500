#include "kernels/core/isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct isa {
    const char *name, *short_name;
} isas[] = {
    [MF_ISA_C] = {"c", "c"},
    [MF_ISA_AVX2] = {"avx2", "avx2"},
    [MF_ISA_AVX512] = {"avx512_bf16+vnni", "avx512"},
};

static enum mf_isa machine_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
        return MF_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return MF_ISA_AVX2;
#endif
    return MF_ISA_C;
}

static enum mf_isa selected_isa(void)
{
    enum mf_isa best = machine_isa();
    const char *wanted = getenv("MOEFARM_ISA");

    for (enum mf_isa i = MF_ISA_C; wanted && i < best; i++) {
        if (strcmp(wanted, isas[i].short_name) == 0)
            return i;
    }
    return best;
}

/* The selected instruction set plus 1; 0 before the first call. It is cached because quantisers read it once
 * per row. */
static atomic_int cached_isa;

void mf_isa_refresh(void)
{
    atomic_store_explicit(&cached_isa, (int)selected_isa() + 1, memory_order_relaxed);
}

enum mf_isa mf_isa_best(void)
{
    int isa = atomic_load_explicit(&cached_isa, memory_order_relaxed);

    if (isa == 0) {
        mf_isa_refresh();
        isa = atomic_load_explicit(&cached_isa, memory_order_relaxed);
    }
    return (enum mf_isa)(isa - 1);
}

const char *mf_isa_name(enum mf_isa isa)
{
    return isas[isa].name;
}
