/* Philox4x32-10 (Salmon et al., SC'11), a counter-based random number generator. Equal keys and counters give
 * equal bits on every device. The tests compare the output with known answers from the paper's reference
 * code. */
#pragma once

#include <stdint.h>

struct mf_philox4 {
    uint32_t v[4];
};
struct mf_philox4 mf_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);
