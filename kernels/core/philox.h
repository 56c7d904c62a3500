/* Philox4x32-10 (Salmon et al., SC'11): a counter-based generator. The same (key, counter) gives the same
 * bits on every device and node; known answers of the paper's reference code are in the tests. */
#pragma once

#include <stdint.h>

struct mf_philox4 {
    uint32_t v[4];
};
struct mf_philox4 mf_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);
