/* Bodies of the peak loops over a vector type VEC that the including file defines. The loops keep 12
 * independent sums, which is more than the FMA latency times the FMA throughput of current cores. */
#define SUMS 12

/* Prefetches as the kernels do, because without prefetching a core stalls at each page boundary. */
static void read_all(const char *p, size_t bytes)
{
    typedef long long quads __attribute__((vector_size(sizeof(VEC)), aligned(16)));
    quads s[8] = {0};

    for (size_t i = 0; i < bytes; i += 8 * sizeof(VEC)) {
        _Pragma("GCC unroll 8") for (size_t j = 0; j < 8 * sizeof(VEC); j += 64)
            __builtin_prefetch(p + i + 2048 + j);
        _Pragma("GCC unroll 8") for (size_t j = 0; j < 8; j++) s[j] ^=
            *(const quads *)(const void *)(p + i + j * sizeof(VEC));
    }
    for (int j = 0; j < 8; j++)
        __asm__ volatile("" : : "x"(s[j]));
}

static void f32_all(long rounds)
{
    VEC s[SUMS], a, b;

    for (int i = 0; i < SUMS; i++)
        s[i] = (VEC){0};
    a = b = (VEC){0} + 0.5f;
    for (long r = 0; r < rounds; r++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) s[i] = s[i] * a + b;
        __asm__ volatile("" : "+x"(a));
    }
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "x"(s[i]));
}
