#include "kernels/ops/moe_sort.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/tensors.h"
#include "support/farm/route_cases.h"
#include "support/mf_check.h"

/* Check's assertions send a message to the parent process on success, and this file makes millions of
 * assertions. */
#define MUST(condition, ...)           \
    do {                               \
        if (!(condition))              \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

#define N_RANDOM 60
#define SEED     20251122
#define TAIL     0x7fffffff /* initial contents of buffers */

/* ---- the worked example ---- */

#define P 0x03000005
static const int32_t example_ids[15] = {0, 3, 5, 2, 3, 5, 1, 3, 5, 1, 2, 3, 1, 3, 5};

/* The example of AITER's header, corrected: the header prints tokens 6 and 5 in places where it means 4 and
 * 3. */
static const struct example {
    const char *what;
    int32_t mask[6], local_tokens;
    int32_t num_valid[2], ids[24], experts[6];
} examples[] = {
    {"all experts",
     {1, 1, 1, 1, 1, 1},
     5,
     {24, 5},
     {0,          P,          P, P, 2,          3,          4,          P,
      1,          0x01000003, P, P, 0x01000000, 0x01000001, 0x01000002, 0x02000003,
      0x01000004, P,          P, P, 0x02000000, 0x02000001, 0x02000002, 0x02000004},
     {0, 1, 2, 3, 3, 5}},
    {"four local experts",
     {1, 0, 1, 1, 0, 1},
     5,
     {20, 5},
     {0,          P,          P,          P, 1, 0x01000003, P,          P,          0x01000000, 0x01000001,
      0x01000002, 0x02000003, 0x01000004, P, P, P,          0x02000000, 0x02000001, 0x02000002, 0x02000004},
     {0, 1, 2, 2, 3}},
    {"two tokens in use",
     {1, 1, 1, 1, 1, 1},
     2,
     {16, 2},
     {0, P, P, P, 1, P, P, P, 0x01000000, 0x01000001, P, P, 0x02000000, 0x02000001, P, P},
     {0, 2, 3, 5}},
    {"no local expert", {0, 0, 0, 0, 0, 0}, 5, {0, 5}, {0}, {0}},
    {"no token in use", {1, 1, 1, 1, 1, 1}, 0, {0, 0}, {0}, {0}},
};

MF_TEST(worked_example, .rows = MF_ARRAY_LEN(examples) * MF_SORT_N_)
{
    const struct example *x = &examples[_i / MF_SORT_N_];
    enum mf_sort sort = (enum mf_sort)(_i % MF_SORT_N_);
    float weights[15], sorted_weights[40];
    int32_t ids[40], experts[10], num_valid[2];
    const char *why;
    struct mf_moe_sort s = {.ids = example_ids,
                            .weights = weights,
                            .tokens = 5,
                            .topk = 3,
                            .experts = 6,
                            .block = 4,
                            .mask = x->mask,
                            .local_tokens = &x->local_tokens};
    _cleanup_(mf_freep) void *room = aligned_alloc(64, mf_moe_sort_workspace(sort, &s, 1));

    for (int i = 0; i < 15; i++)
        weights[i] = 0.5f + (float)i;
    ck_assert_int_eq(mf_moe_sort_rows(&s), 5 * 3 + 6 * 4 - 3);
    struct mf_moe_sort_out out = {
        .sorted_ids = ids, .expert_ids = experts, .num_valid = num_valid, .sorted_weights = sorted_weights};
    ck_assert_int_eq(mf_moe_sort(sort, &s, 1, room, &out, &why), 0);
    ck_assert_mem_eq(num_valid, x->num_valid, sizeof(num_valid));
    for (int i = 0; i < num_valid[0]; i++) {
        ck_assert_msg(ids[i] == x->ids[i], "%s: row %d has %08x", x->what, i, (unsigned)ids[i]);
        float want = ids[i] == P ? 0 : weights[mf_id_token(ids[i]) * 3 + mf_id_slot(ids[i])];
        ck_assert(sorted_weights[i] == want);
    }
    for (int b = 0; b < num_valid[0] / 4; b++)
        ck_assert_int_eq(experts[b], x->experts[b]);
}

/* ---- against a reference implementation ---- */

struct arrays {
    int32_t *ids, *experts, *reverse, num_valid[2];
    float *weights;
    int64_t rows;
};

/* Allocates all arrays of a result in one buffer. Ids and weights have an element per row, experts one per
 * block, and the reverse index one per route. */
static void arrays_make(struct arrays *a, const struct mf_moe_sort *s)
{
    a->rows = mf_moe_sort_rows(s);
    size_t n = (size_t)a->rows, blocks = (n + (size_t)s->block - 1) / (size_t)s->block;
    a->ids = malloc((2 * n + blocks + (size_t)(s->tokens * s->topk) + 4) * 4);
    ck_assert_ptr_nonnull(a->ids);
    a->experts = a->ids + n + 1;
    a->reverse = a->experts + blocks + 1;
    a->weights = (float *)(void *)(a->reverse + s->tokens * s->topk + 1);
    for (size_t i = 0; i < 2 * n + blocks + (size_t)(s->tokens * s->topk) + 4; i++)
        a->ids[i] = TAIL;
}

static void reference_sort(const struct mf_moe_sort *s, const int64_t *ids, int64_t tokens, struct arrays *w)
{
    int64_t at = 0;
    int32_t local = 0;
    for (int64_t i = 0; i < s->tokens * s->topk; i++)
        w->reverse[i] = -1;
    for (int32_t e = 0; e < s->experts; e++) {
        int64_t first = at;
        if (s->mask && !s->mask[e])
            continue;
        for (int64_t i = 0; i < tokens * s->topk; i++) {
            if (ids[i] != e)
                continue;
            w->ids[at] = (int32_t)(i % s->topk << 24 | i / s->topk);
            w->weights[at] = ((const float *)s->weights)[i];
            w->reverse[i] = (int32_t)at++;
        }
        for (; (at - first) % s->block; at++) {
            w->ids[at] = (int32_t)((int64_t)s->topk << 24 | s->tokens);
            w->weights[at] = 0;
        }
        for (int64_t b = first / s->block; b < at / s->block; b++)
            w->experts[b] = local;
        local++;
    }
    w->num_valid[0] = (int32_t)at;
    w->num_valid[1] = (int32_t)tokens;
}

/* Reorders a result of an unstable sort to the reference order, using each route's own row index, and checks
 * that every row belongs to its route and to the right expert. */
static void restore_order(struct arrays *got, const struct arrays *want, const struct mf_moe_sort *s)
{
    int64_t n = s->tokens * s->topk;
    _cleanup_(mf_freep) int32_t *ids = calloc((size_t)got->rows + 1, 4);
    _cleanup_(mf_freep) float *weights = calloc((size_t)got->rows + 1, 4);
    memcpy(ids, got->ids, (size_t)got->rows * 4);
    memcpy(weights, got->weights, (size_t)got->rows * 4);
    for (int64_t i = 0; i < n; i++) {
        int32_t from = got->reverse[i], to = want->reverse[i];
        MUST((from < 0) == (to < 0), "route %lld has row %d, should be %d", (long long)i, from, to);
        if (from < 0)
            continue;
        MUST(want->experts[from / s->block] == want->experts[to / s->block],
             "route %lld is in a block of another expert", (long long)i);
        got->ids[to] = ids[from];
        got->weights[to] = weights[from];
        got->reverse[i] = to;
    }
}

static void check_equal(const struct arrays *got, const struct arrays *want, const struct mf_moe_sort *s,
                        const char *name)
{
    MUST(got->num_valid[0] == want->num_valid[0], "%s: %d rows in use, should be %d", name, got->num_valid[0],
         want->num_valid[0]);
    ck_assert_int_eq(got->num_valid[1], want->num_valid[1]);
    size_t blocks = (size_t)((got->rows + s->block - 1) / s->block);
    for (int64_t i = 0; i < got->rows + 1; i++) {
        MUST(got->ids[i] == want->ids[i], "%s: row %lld has %08x, should be %08x", name, (long long)i,
             (unsigned)got->ids[i], (unsigned)want->ids[i]);
        MUST(memcmp(&got->weights[i], &want->weights[i], 4) == 0, "%s: weight of row %lld", name,
             (long long)i);
    }
    MUST(memcmp(got->experts, want->experts, (blocks + 1) * 4) == 0, "%s: experts", name);
    MUST(memcmp(got->reverse, want->reverse, (size_t)(s->tokens * s->topk + 1) * 4) == 0,
         "%s: reverse_sorted", name);
}

struct setting {
    enum mf_sort sort;
    int threads;
    bool masked, wide, short_of_tokens;
    size_t zeroed; /* bytes of moe_buf, which the sort zeroes */
};

static void check(const struct route_case *c, const struct setting *o, uint64_t seed)
{
    _cleanup_(mf_freep) int64_t *ids64 = NULL;
    _cleanup_(mf_freep) int32_t *ids32 = route_ids(c, seed, &ids64), *mask = calloc((size_t)c->experts, 4);
    int64_t n = c->tokens * c->topk;
    _cleanup_(mf_freep) float *weights = calloc((size_t)n + 1, sizeof(*weights));
    _cleanup_(mf_freep) unsigned char *buf = malloc(o->zeroed + 1);
    int32_t local_tokens = (int32_t)(o->short_of_tokens ? c->tokens / 2 : c->tokens);
    struct mf_moe_sort s = {.ids = o->wide ? (void *)ids64 : (void *)ids32,
                            .wide = o->wide,
                            .weights = weights,
                            .tokens = c->tokens,
                            .topk = c->topk,
                            .experts = c->experts,
                            .block = c->block,
                            .mask = o->masked ? mask : NULL,
                            .local_tokens = &local_tokens};
    const char *why;
    char name[200];
    if (!mf_sort_supports(o->sort, n, c->experts, o->threads, &why))
        return;
    for (int32_t e = 0; e < c->experts; e++)
        mask[e] = route_random(seed, (uint64_t)e, 3) > 0;
    for (int64_t i = 0; i < n; i++) /* unused rows are NaN: they must not be read */
        weights[i] = i < local_tokens * c->topk ? (float)(i + 1) : (float)NAN;
    for (int64_t i = local_tokens * c->topk; i < n; i++)
        ids64[i] = ids32[i] = 0;
    size_t room = mf_moe_sort_workspace(o->sort, &s, o->threads);
    _cleanup_(mf_freep) char *workspace = aligned_alloc(64, room + 64);
    memset(workspace, 0x5a, room + 64);
    memset(buf, 0xff, o->zeroed + 1);
    struct arrays got, want;
    arrays_make(&got, &s);
    arrays_make(&want, &s);
    reference_sort(&s, ids64, local_tokens, &want);
    struct mf_moe_sort_out out = {got.ids,     got.experts, got.num_valid, got.weights,
                                  got.reverse, buf,         o->zeroed};
    ck_assert_int_eq(mf_moe_sort(o->sort, &s, o->threads, workspace, &out, &why), 0);
    (void)snprintf(name, sizeof(name), "%s: %s, %d threads, %s, seed %llu", c->trap, mf_sort_name(o->sort),
                   o->threads, o->masked ? "masked" : "all local", (unsigned long long)seed);
    if (o->sort == MF_SORT_SCATTER)
        restore_order(&got, &want, &s);
    check_equal(&got, &want, &s, name);
    for (size_t i = 0; i < o->zeroed; i++)
        MUST(buf[i] == 0, "%s: byte %zu of moe_buf", name, i);
    ck_assert_int_eq(buf[o->zeroed], 0xff);
    for (int i = 0; i < 64; i++)
        MUST(workspace[room + (size_t)i] == 0x5a, "workspace overrun");
    free(got.ids);
    free(want.ids);
}

static void check_all(const struct route_case *c, uint64_t seed)
{
    if (c->topk > c->experts)
        return;
    for (int sort = 0; sort < MF_SORT_N_; sort++) {
        for (int o = 0; o < 8; o++) {
            struct setting setting = {(enum mf_sort)sort, 1 + o % 2,        o & 2, o & 4,
                                      o == 3 || o == 6,   (size_t)(o * 977)};
            check(c, &setting, seed);
        }
    }
}

MF_TEST(trap, .rows = ROUTE_N_CASES)
{
    check_all(&route_cases[_i], SEED);
}

MF_TEST(random_routing, .rows = N_RANDOM)
{
    uint64_t seed = SEED + 1000 + (uint64_t)_i;
    struct route_case c = route_case_at_random(seed);
    check_all(&c, seed);
}

MF_TEST(unstable_sort_is_correct)
{
    static const struct route_case c = {"7: atomic order", 300, 8, 16, 16, SKEWED};
    struct setting o = {MF_SORT_SCATTER, 2, false, false, false, 64};
    for (int i = 0; i < 100; i++)
        check(&c, &o, SEED);
}

/* A range of experts gives the same result as the equivalent mask, for every sort and both id types. */
MF_TEST(range_equals_mask, .rows = ROUTE_N_CASES)
{
    const struct route_case *c = &route_cases[_i];
    const int32_t ranges[][2] = {
        {0, (c->experts + 1) / 2}, {c->experts / 2, c->experts - c->experts / 2}, {c->experts / 3, 1}};
    _cleanup_(mf_freep) int64_t *ids64 = NULL;
    _cleanup_(mf_freep) int32_t *ids32 = route_ids(c, SEED, &ids64), *mask = calloc((size_t)c->experts, 4);
    _cleanup_(mf_freep) float *weights = calloc((size_t)(c->tokens * c->topk) + 1, 4);
    for (int64_t i = 0; i < c->tokens * c->topk; i++)
        weights[i] = (float)i;
    for (size_t n = 0; n < MF_ARRAY_LEN(ranges) * MF_SORT_SCATTER * 2; n++) {
        /* not scatter, because its order is nondeterministic */
        enum mf_sort sort = (enum mf_sort)(n / 2 % MF_SORT_SCATTER);
        const int32_t *range = ranges[n / 2 / MF_SORT_SCATTER];
        bool wide = n % 2;
        struct mf_moe_sort s = {.ids = wide ? (void *)ids64 : (void *)ids32,
                                .wide = wide,
                                .weights = weights,
                                .tokens = c->tokens,
                                .topk = c->topk,
                                .experts = c->experts,
                                .block = c->block};
        const char *why;
        if (s.experts < s.topk || !mf_sort_supports(sort, s.tokens * s.topk, s.experts, 2, &why))
            continue;
        for (int32_t e = 0; e < c->experts; e++)
            mask[e] = e >= range[0] && e < range[0] + range[1];
        s.mask = mask;
        size_t rows = (size_t)mf_moe_sort_rows(&s) + 1;
        _cleanup_(mf_freep) void *room = aligned_alloc(64, mf_moe_sort_workspace(sort, &s, 2) + 64);
        _cleanup_(mf_freep) int32_t *memory = calloc(rows, 6 * sizeof(*memory));
        int32_t num_valid[2][2];
        for (int by_range = 0; by_range < 2; by_range++) {
            int32_t *at = memory + (size_t)by_range * 3 * rows;
            s.mask = by_range ? NULL : mask;
            s.first = by_range ? range[0] : 0;
            s.n_local = by_range ? range[1] : 0;
            struct mf_moe_sort_out out = {
                at, at + rows, num_valid[by_range], (float *)(void *)(at + 2 * rows), NULL, NULL, 0};
            MUST(mf_moe_sort(sort, &s, 2, room, &out, &why) == 0, "%s: %s", c->trap, why);
        }
        MUST(memcmp(num_valid[0], num_valid[1], sizeof(num_valid[0])) == 0 &&
                 memcmp(memory, memory + 3 * rows, 3 * rows * sizeof(*memory)) == 0,
             "%s: %s, %d experts from %d on", c->trap, mf_sort_name(sort), range[1], range[0]);
    }
}

/* Trap 8: the largest token and slot that fit into a packed id. */
MF_TEST(largest_token_and_slot)
{
    int64_t tokens = (1 << 24) - 1;
    _cleanup_(mf_freep) int32_t *ids = calloc((size_t)tokens, 4), *sorted = calloc((size_t)tokens + 64, 4),
                                *experts = calloc((size_t)tokens / 32 + 4, 4);
    _cleanup_(mf_freep) float *weights = calloc((size_t)tokens, 4),
                              *sorted_weights = calloc((size_t)tokens + 64, 4);
    int32_t num_valid[2], room[16];
    const char *why;
    struct mf_moe_sort s = {
        .ids = ids, .weights = weights, .tokens = tokens, .topk = 1, .experts = 1, .block = 32};
    struct mf_moe_sort_out out = {sorted, experts, num_valid, sorted_weights, NULL, NULL, 0};

    ck_assert_int_eq(mf_moe_sort(MF_SORT_SERIAL, &s, 1, room, &out, &why), 0);
    ck_assert_int_eq(num_valid[0], 1 << 24);
    ck_assert_int_eq(sorted[tokens - 1], (1 << 24) - 2);
    ck_assert_int_eq(sorted[tokens], 0x01ffffff); /* padding: slot 1, token 2^24 - 1 */

    int32_t few[255], few_sorted[255 * 8 + 255], few_experts[300], few_room[300];
    float few_weights[255] = {0}, few_sorted_weights[255 * 8 + 255];
    for (int i = 0; i < 255; i++)
        few[i] = i;
    s = (struct mf_moe_sort){
        .ids = few, .weights = few_weights, .tokens = 1, .topk = 255, .experts = 255, .block = 8};
    out = (struct mf_moe_sort_out){few_sorted, few_experts, num_valid, few_sorted_weights, NULL, NULL, 0};
    ck_assert_int_eq(mf_moe_sort(MF_SORT_SERIAL, &s, 1, few_room, &out, &why), 0);
    ck_assert_uint_eq((uint32_t)few_sorted[254 * 8], 0xfe000000);
    ck_assert_uint_eq((uint32_t)few_sorted[1], 0xff000001);
}

/* clang-format off */
static const struct {
    struct mf_moe_sort s;
    const char *word;
} refused[] = {
    {{.tokens = 1 << 24, .topk = 1, .experts = 2, .block = 4}, "16777215 tokens"},
    {{.tokens = 1, .topk = 256, .experts = 300, .block = 4}, "255 slots"},
    {{.tokens = 1, .topk = 3, .experts = 2, .block = 4}, "num_experts"},
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 0}, "unit_size"},
    /* vllm-project/vllm#29773: a map with -1 passed as 0/1 mask */
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 4, .mask = (const int32_t[]){0, -1}}, "expert_mask"},
    {{.tokens = 1, .topk = 1, .experts = 3, .block = 4, .mask = (const int32_t[]){0, 1, 2}}, "expert_mask"},
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 4, .first = 1, .n_local = 2},
     "a range within num_experts"},
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 4, .mask = (const int32_t[]){0, 1}, .n_local = 1},
     "not both"},
    {{.tokens = 4, .topk = 1, .experts = 2, .block = 4, .local_tokens = (const int32_t[]){5}},
     "num_local_tokens"},
    {{.tokens = (1 << 24) - 1, .topk = 130, .experts = 300, .block = 4}, "int32"},
};
/* clang-format on */

MF_TEST(rejection_reasons, .rows = MF_ARRAY_LEN(refused))
{
    int32_t map[300];
    const char *why;
    int r = mf_moe_sort(MF_SORT_SERIAL, &refused[_i].s, 1, map, &(struct mf_moe_sort_out){NULL}, &why);
    ck_assert_int_lt(r, 0);
    ck_assert_msg(strstr(why, refused[_i].word) != NULL, "\"%s\" does not contain %s", why, refused[_i].word);
}

int main(void)
{
    printf("seed %d\n", SEED);
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
