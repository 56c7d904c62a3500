/* Assigns SMs to L2 partitions by the latency of their atomic adds, on simulated GPUs. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/l2_partitions.h"
#include "support/mf_check.h"

#define LINES 64

/* Returns the pseudorandom L2 partition of an SM or a cache line. */
static int partition_of(uint64_t key, int i)
{
    uint64_t v = (key + (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15);
    v ^= v >> 29;
    v *= UINT64_C(0xbf58476d1ce4e5b9);
    return (int)(v >> 40 & 1);
}

static const struct {
    const char *name;
    int units, halves;
    int near, far, spread; /* cycles; spread: variation between SMs and lines */
    int idle;              /* index of an SM that was not measured; -1: all were measured */
    bool known;
} rows[] = {
    {"an H200", 132, 2, 340, 530, 40, -1, true},
    {"as many units as there can be", 256, 2, 300, 420, 20, -1, true},
    {"one cache", 132, 1, 300, 300, 40, -1, false},
    {"no difference", 132, 2, 300, 304, 60, -1, false},
    {"a unit that ran nothing", 132, 2, 340, 530, 40, 77, false},
    {"the first unit ran nothing", 132, 2, 340, 530, 40, 0, false},
    {"more units than there can be", 257, 2, 340, 530, 40, -1, false},
    {"one unit", 1, 2, 340, 530, 40, -1, false},
};

MF_TEST(sms_assigned, .rows = MF_ARRAY_LEN(rows))
{
    const int n = rows[_i].units;
    uint32_t *cycles = calloc((size_t)n * LINES, sizeof(*cycles));
    ck_assert_ptr_nonnull(cycles);
    for (int u = 0; u < n; u++) {
        for (int l = 0; l < LINES; l++) {
            bool is_near = rows[_i].halves == 1 || partition_of(1, u) == partition_of(1000, l);
            int noise = (u * 31 + l * 17 + u * l * 7) % rows[_i].spread;
            cycles[u * LINES + l] =
                u == rows[_i].idle ? 0 : (uint32_t)((is_near ? rows[_i].near : rows[_i].far) + noise);
        }
    }
    struct mf_l2_halves h = mf_l2_halves_of(cycles, n, LINES);
    free(cycles);
    if (!rows[_i].known) {
        ck_assert_msg(h.near == 0, "%s: %d SMs are near", rows[_i].name, h.near);
        for (int i = 0; i < MF_SMS_MAX / 32; i++)
            ck_assert_uint_eq(h.far[i], 0);
        return;
    }
    int near = 0;
    for (int u = 0; u < MF_SMS_MAX; u++) {
        int far = (int)(h.far[u / 32] >> u % 32 & 1);
        ck_assert_msg(far == (u < n && partition_of(1, u) != partition_of(1, 0)), "%s: SM %d", rows[_i].name,
                      u);
        near += u < n && !far;
    }
    ck_assert_int_eq(h.near, near);
}

int main(void)
{
    return mf_check_main(NULL);
}
