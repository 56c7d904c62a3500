/* A keeper in memory, of tests: what it was given is found again, and how often. */
#pragma once

#include <check.h>
#include <string.h>

#include "common/base/text.h"
#include "measure/session/kept.h"

struct test_keeper {
    struct mf_keeper keeper; /* first */
    char keys[16][256];
    int fds[16];
    uint64_t bytes[16];
    int n, n_found;
};

static inline int keeper_find(struct mf_keeper *keeper, const char *key, uint64_t *ret_bytes)
{
    struct test_keeper *k = (struct test_keeper *)keeper;
    for (int i = 0; i < k->n; i++) {
        if (strcmp(k->keys[i], key) == 0) {
            k->n_found++;
            *ret_bytes = k->bytes[i];
            return k->fds[i];
        }
    }
    return -1;
}

static inline int keeper_keep(struct mf_keeper *keeper, const char *key, int fd, uint64_t bytes)
{
    struct test_keeper *k = (struct test_keeper *)keeper;
    ck_assert_int_lt(k->n, 16);
    ck_assert_int_eq(mf_copy(k->keys[k->n], sizeof(k->keys[0]), key), 0);
    k->fds[k->n] = fd;
    k->bytes[k->n++] = bytes;
    return 0;
}

static inline void keeper_drop(struct mf_keeper *keeper, const char *key)
{
    (void)keeper;
    (void)key;
}

static inline void keeper_init(struct test_keeper *k)
{
    *k = (struct test_keeper){.keeper = {keeper_find, keeper_keep, keeper_drop}};
}
