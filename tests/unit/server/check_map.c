#include "server/link/map.h"

#include "support/mf_check.h"

#include "common/base/clock.h"

#include <stdio.h>

#define KEYS 512

/* Compares the map with a plain array over many insertions and removals. These include probe chains that wrap
 * round and holes that move back. */
MF_TEST(equals_an_array)
{
    static int values[KEYS];
    static void *model[KEYS];
    struct mf_map m = {0};
    uint64_t state = mf_now_ns();
    size_t n = 0;
    printf("seed %llu\n", (unsigned long long)state);
    for (int i = 0; i < 200000; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        /* in some stretches removals are more frequent than insertions, so that the map fills and empties */
        size_t k = (state >> 33) % KEYS;
        if ((state >> 60) < (i / 10000 % 2 ? 6u : 10u)) {
            n += !model[k];
            model[k] = &values[k];
            ck_assert_int_eq(mf_map_put(&m, (k + 1) * 4096, model[k]), 0);
        } else {
            n -= model[k] != NULL;
            ck_assert_ptr_eq(mf_map_remove(&m, (k + 1) * 4096), model[k]);
            model[k] = NULL;
        }
        ck_assert_uint_eq(m.n, n);
        size_t other = (state >> 20) % KEYS;
        ck_assert_ptr_eq(mf_map_get(&m, (other + 1) * 4096), model[other]);
    }
    size_t seen = 0;
    MF_MAP_EACH(&m, e)
    {
        ck_assert_ptr_eq(model[e->key / 4096 - 1], e->value);
        seen++;
    }
    ck_assert_uint_eq(seen, n);
    mf_map_release(&m);
    ck_assert_ptr_null(mf_map_get(&m, 4096));
    ck_assert_ptr_null(mf_map_remove(&m, 4096));
}

int main(void)
{
    return mf_check_main(NULL);
}
