/* Routings for which an incorrect sort gives a wrong result, and a function that generates their ids. Each
 * row is named after the defect that it reveals. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "kernels/core/philox.h"

enum route_load {
    SPREAD,     /* random experts, distinct within a token */
    FIRST,      /* all routes go to expert 0 and the experts that follow it */
    LAST,       /* all routes go to the last experts */
    HOT_TWO,    /* most routes go to two experts */
    SKEWED,     /* the experts have a Zipf distribution */
    TWICE,      /* a token may have an expert twice */
    REMOTE,     /* some ids are of no local expert: -1, E, and far beyond */
    ALL_REMOTE, /* all ids are of no local expert */
    EXACT,      /* each expert gets B - 1, B, B + 1 or 0 routes; the remaining ids are -1 */
};

struct route_case {
    const char *trap;
    int64_t tokens;
    int32_t topk, experts, block;
    enum route_load load;
};

/* clang-format off */
static const struct route_case route_cases[] = {
    {"1: zero tokens",                               0,    8, 64,  16, SPREAD},
    {"1: one token",                              1,    8, 256, 32, SPREAD},
    {"1: three tokens, a bucket of four",         3,    8, 256, 32, SPREAD},
    {"1: four tokens",                            4,    8, 256, 32, SPREAD},
    {"1: 2^n - 1 tokens",                         127,  2, 8,   16, SPREAD},
    {"1: 2^n tokens",                             128,  2, 8,   16, SPREAD},
    {"1: 2^n + 1 tokens",                         129,  2, 8,   16, SPREAD},
    {"2: empty experts, only the last is used",   40,   1, 33,  16, LAST},
    {"2: all to expert 0",                        100,  1, 8,   32, FIRST},
    {"2: all to expert E - 1",                    100,  1, 8,   32, LAST},
    {"2: shared expert, one gets every token",    65,   9, 257, 16, LAST},
    {"2: two hot experts",                        300,  2, 16,  64, HOT_TWO},
    {"2: Zipf",                                   500,  4, 64,  32, SKEWED},
    {"3: an expert twice in one token",           70,   4, 8,   16, TWICE},
    {"3: -1 and ids beyond E",                    70,   4, 16,  16, REMOTE},
    {"3: only -1 and ids beyond E",                   33,   4, 16,  16, ALL_REMOTE},
    {"4: counts B - 1, B, B + 1, 0",              90,   8, 32,  16, EXACT},
    {"4: fewer routes than experts (small P)",    2,    8, 128, 64, SPREAD},
    {"4: E = 1",                                  70,   1, 1,   16, SPREAD},
    {"4: E = 257",                                33,   9, 257, 32, SPREAD},
    {"4: E = 385",                                33,   6, 385, 32, SPREAD},
    {"4: E = 513",                                33,   8, 513, 32, SPREAD},
    {"4: E = 896",                                70,   16, 896, 16, SPREAD},
    {"4: k = E",                                  17,   8, 8,   16, SPREAD},
    {"4: k = 65",                                 9,    65, 128, 8, SPREAD},
    {"4: blocks of one row",                      31,   4, 16,  1,  SPREAD},
    {"4: block size not a power of two",        31,   4, 16,  7,  SPREAD},
    {"6: 1023 routes",                            1023, 1, 64,  16, SPREAD},
    {"6: 1024 routes, E = 64",                    128,  8, 64,  16, SPREAD},
    {"6: 1025 routes, E = 65",                    205,  5, 65,  16, SPREAD},
    {"6: T·E = 2560",                             20,   4, 128, 16, SPREAD},
    {"6: 24 tokens, E = 256",                     24,   8, 256, 32, SPREAD},
    {"6: 25 tokens, E = 256",                     25,   8, 256, 32, SPREAD},
    {"6: 511 tokens",                             511,  8, 64,  32, SKEWED},
    {"6: 512 tokens",                             512,  8, 64,  32, SKEWED},
    {"6: 2047 tokens",                            2047, 2, 64,  32, SPREAD},
    {"6: 2048 tokens",                            2048, 2, 64,  32, SPREAD},
};
/* clang-format on */
#define ROUTE_N_CASES ((int)(sizeof(route_cases) / sizeof(route_cases[0])))

static inline uint32_t route_random(uint64_t seed, uint64_t i, uint32_t below)
{
    return (uint32_t)(((uint64_t)mf_philox(seed, i, 0).v[0] * below) >> 32);
}

static inline int64_t exact_id(const struct route_case *c, int64_t i)
{
    for (int32_t e = 0; e < c->experts; e++) {
        int64_t n = e % 4 == 3 ? 0 : c->block - 1 + e % 4;
        if (i < n)
            return e;
        i -= n;
    }
    return -1;
}

static inline int64_t route_id(const struct route_case *c, uint64_t seed, int64_t t, int32_t j)
{
    uint64_t i = (uint64_t)(t * c->topk + j);
    uint32_t E = (uint32_t)c->experts, start = route_random(seed, (uint64_t)t, E);
    int64_t spread = (start + (uint64_t)j) % E; /* distinct within a token, because k is at most E */
    static const int64_t nowhere[] = {-1, -7, 0, 1000000, INT32_MIN, INT32_MAX};
    switch (c->load) {
    case SPREAD:
        return spread;
    case FIRST:
        return j;
    case LAST:
        return c->experts - 1 - j;
    case HOT_TWO:
        return route_random(seed, i, 10) > 0 ? j % 2 : spread;
    case SKEWED: {
        uint32_t at = route_random(seed, i, E);
        return at / (1 + route_random(~seed, i, 8));
    }
    case TWICE:
        return j % 2 ? spread : (int64_t)start;
    case REMOTE:
    case ALL_REMOTE:
        if (c->load == REMOTE && i % 3)
            return spread;
        return i % 6 == 2 ? c->experts : nowhere[i % 6];
    case EXACT:
        return exact_id(c, (int64_t)i);
    }
    return 0;
}

/* Returns the ids [tokens, topk] of a case as int32, and in *ret_wide as int64. The caller frees both. */
static inline int32_t *route_ids(const struct route_case *c, uint64_t seed, int64_t **ret_wide)
{
    size_t n = (size_t)(c->tokens * c->topk);
    int32_t *ids = calloc(n + 1, sizeof(*ids));
    int64_t *wide = calloc(n + 1, sizeof(*wide));
    for (size_t i = 0; ids && wide && i < n; i++) {
        wide[i] = route_id(c, seed, (int64_t)i / c->topk, (int32_t)((int64_t)i % c->topk));
        ids[i] = (int32_t)wide[i];
    }
    *ret_wide = wide;
    return ids;
}

/* Returns a random case for property tests. Its sizes are on both sides of every threshold. */
static inline struct route_case route_case_at_random(uint64_t seed)
{
    static const int32_t experts[] = {1, 2, 8, 33, 64, 65, 128, 257, 384, 512},
                         blocks[] = {1, 8, 16, 32, 64, 128};
    struct route_case c = {.trap = "random"};
    c.experts = experts[route_random(seed, 1, 10)];
    c.block = blocks[route_random(seed, 2, 6)];
    c.topk = 1 + (int32_t)route_random(seed, 3, c.experts < 9 ? (uint32_t)c.experts : 9);
    c.tokens = route_random(seed, 4, route_random(seed, 5, 2) ? 20 : 700);
    c.load = (enum route_load)route_random(seed, 6, EXACT + 1);
    if (c.load == FIRST || c.load == LAST)
        c.topk = c.topk > c.experts ? c.experts : c.topk;
    return c;
}
