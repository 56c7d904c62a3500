#include "kernels/core/philox.h"

#define MULTIPLY_0 0xD2511F53u
#define MULTIPLY_1 0xCD9E8D57u
#define WEYL_0     0x9E3779B9u
#define WEYL_1     0xBB67AE85u
#define N_ROUNDS   10

struct mf_philox4 mf_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)MULTIPLY_0 * c0;
        uint64_t p1 = (uint64_t)MULTIPLY_1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    return (struct mf_philox4){.v = {c0, c1, c2, c3}};
}
