#include "kernels/ops/align.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/device.h"
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
#define SEED     20251121

/* ---- worked examples ---- */

/* vLLM's documentation uses ids 1 … 4 with 4 experts, where id 4 would be out of range; its result is correct
 * for 5 experts. */
static const int32_t example_ids[12] = {2, 3, 4, 1, 2, 4, 1, 3, 4, 1, 2, 3};

/* clang-format off */
#define SORTED 3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12 /* rows of experts 1 to 4; 12: padding */
#define PADS   12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12
static const struct example {
    const char *what;
    int32_t experts;
    bool whole_blocks, ignore_remote, mapped;
    int32_t map[5];
    int64_t rows;
    int32_t post_pad, sorted[28], blocks[7];
} examples[] = {
    {"five experts", 5, false, false, false, {0}, 27, 16, {SORTED, PADS}, {1, 2, 3, 4, -1, -1, -1}},
    {"the same in whole blocks", 5, true, false, false, {0}, 28, 16, {SORTED, PADS, 12},
     {1, 2, 3, 4, -1, -1, -1}},
    {"with four experts id 4 is dropped", 4, false, false, false, {0}, 24, 12,
     {3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, PADS, 12}, {1, 2, 3, -1, -1, -1}},
    {"remote experts keep their blocks under -1", 5, false, false, true, {-1, 1, -1, 0, -1}, 27, 16,
     {SORTED, PADS}, {1, -1, 0, -1, -1, -1, -1}},
    /* The tail must be -1. A lookup of expert_map[-1] would read 4, the entry of the last expert. */
    {"the tail is not looked up in the map", 5, false, false, true, {0, 1, 2, 3, 4}, 27, 16, {SORTED, PADS},
     {1, 2, 3, 4, -1, -1, -1}},
    {"remote routes dropped, the map in no order", 5, false, true, true, {-1, 1, -1, 0, -1}, 27, 8,
     {1, 7, 11, 12, 3, 6, 9, 12, PADS, 12, 12, 12, 12, 12, 12, 12, 12}, {0, 1, -1, -1, -1, -1, -1}},
};
/* clang-format on */

MF_TEST(worked_example, .rows = MF_ARRAY_LEN(examples) * MF_SORT_N_)
{
    const struct example *x = &examples[_i / MF_SORT_N_];
    enum mf_sort sort = (enum mf_sort)(_i % MF_SORT_N_);
    struct mf_align a = {.ids = example_ids,
                         .tokens = 4,
                         .topk = 3,
                         .experts = x->experts,
                         .block = 4,
                         .expert_map = x->mapped ? x->map : NULL,
                         .ignore_remote = x->ignore_remote,
                         .whole_blocks = x->whole_blocks};
    int32_t sorted[28], experts[7], post_pad;
    _cleanup_(mf_freep) void *room = aligned_alloc(64, mf_align_workspace(sort, &a, 1));
    const char *why;

    ck_assert_int_eq(mf_align_rows(12, x->experts, 4, x->whole_blocks), x->rows);
    ck_assert_int_eq(
        mf_align_blocks(sort, &a, 1, room, &(struct mf_align_out){sorted, experts, &post_pad, NULL}, &why),
        0);
    ck_assert_int_eq(post_pad, x->post_pad);
    for (int64_t i = 0; i < x->rows; i++)
        MUST(sorted[i] == x->sorted[i], "%s: row %d has %d", x->what, (int)i, sorted[i]);
    for (int64_t b = 0; b < (x->rows + 3) / 4; b++)
        ck_assert_msg(experts[b] == x->blocks[b], "%s: block %d has expert %d", x->what, (int)b, experts[b]);
}

/* A rank's range of experts gives the same result as ids that are shifted so that the range begins at 0. */
MF_TEST(range_with_offset, .rows = MF_SORT_N_)
{
    enum mf_sort sort = (enum mf_sort)_i;
    int32_t moved[12], sorted[2][16], experts[2][4], post_pad[2];
    const char *why;
    for (int i = 0; i < 12; i++)
        moved[i] = example_ids[i] - 2;
    for (int by_range = 0; by_range < 2; by_range++) {
        struct mf_align a = {.ids = by_range ? example_ids : moved,
                             .tokens = 4,
                             .topk = 3,
                             .experts = 2,
                             .first = by_range ? 2 : 0,
                             .block = 4,
                             .whole_blocks = true};
        _cleanup_(mf_freep) void *room = aligned_alloc(64, mf_align_workspace(sort, &a, 1));
        memset(sorted[by_range], 0x7f, sizeof(sorted[0]));
        memset(experts[by_range], 0x7f, sizeof(experts[0]));
        ck_assert_int_le(mf_align_rows(12, 2, 4, true), 20);
        int32_t ids[20], blocks[5];
        ck_assert_int_eq(mf_align_blocks(sort, &a, 1, room,
                                         &(struct mf_align_out){ids, blocks, &post_pad[by_range], NULL},
                                         &why),
                         0);
        memcpy(sorted[by_range], ids, sizeof(sorted[0]));
        memcpy(experts[by_range], blocks, sizeof(experts[0]));
    }
    ck_assert_int_eq(post_pad[1], 8); /* experts 2 and 3 have three tokens each, padded to 4 */
    ck_assert_int_eq(post_pad[0], post_pad[1]);
    ck_assert_mem_eq(sorted[0], sorted[1], sizeof(sorted[0]));
    ck_assert_mem_eq(experts[0], experts[1], sizeof(experts[0]));
}

/* For this input, vLLM's documentation of the batched form gives the wrong expert ids 0 1 3 3 4 5 5, but
 * correct rows. */
MF_TEST(batched_example)
{
    static const int32_t counts[5] = {2, 3, 0, 6, 8}, want[10] = {0, 1, 3, 3, 4, 4, -1, -1, -1, -1};
    static const int32_t rows[24] = {0,  1,  40, 40, 8,  9,  10, 40, 24, 25, 26, 27,
                                     28, 29, 40, 40, 32, 33, 34, 35, 36, 37, 38, 39};
    int32_t sorted[40], experts[10], post_pad;
    const char *why;

    ck_assert_int_eq(mf_align_batched_rows(5, 8, 4), 40);
    ck_assert_int_eq(
        mf_align_batched(counts, 5, 8, 4, &(struct mf_align_out){sorted, experts, &post_pad, NULL}, &why), 0);
    ck_assert_int_eq(post_pad, 24);
    ck_assert_mem_eq(experts, want, sizeof(want));
    ck_assert_mem_eq(sorted, rows, sizeof(rows));
    for (int i = 24; i < 40; i++)
        ck_assert_int_eq(sorted[i], 40);
}

/* clang-format off */
static const struct {
    int64_t routes;
    int32_t experts, block;
    bool whole;
    int64_t rows;
} sizes[] = {
    {12, 5, 4, false, 27}, {12, 5, 4, true, 28},
    {8, 256, 64, false, 512},           /* T·k < E: one block per route suffices */
    {255, 256, 2, false, 510}, {255, 256, 1, false, 255}, {256, 256, 64, false, 256 + 256 * 63},
    {0, 8, 16, true, 0},
};
/* clang-format on */

MF_TEST(size_of_buffer, .rows = MF_ARRAY_LEN(sizes))
{
    ck_assert_int_eq(mf_align_rows(sizes[_i].routes, sizes[_i].experts, sizes[_i].block, sizes[_i].whole),
                     sizes[_i].rows);
}

/* ---- against a reference implementation ---- */

enum mode { GLOBAL, KEEP_REMOTE, DROP_REMOTE, NO_LOCAL, N_MODES };

struct wanted {
    int32_t *sorted, *experts, *scatter, post_pad;
    int64_t rows;
};

/* Sorts by the definition: experts in ascending order, and the routes of an expert in ascending order. */
static void reference_sort(const struct mf_align *a, const int64_t *ids, struct wanted *w)
{
    int64_t n = a->tokens * a->topk, at = 0;
    bool drop = a->expert_map && a->ignore_remote;
    for (int64_t i = 0; i < w->rows; i++)
        w->sorted[i] = (int32_t)n;
    for (int64_t b = 0; b < (w->rows + a->block - 1) / a->block; b++)
        w->experts[b] = -1;
    for (int64_t i = 0; i < n; i++)
        w->scatter[i] = -1;
    for (int32_t e = 0; e < a->experts; e++) {
        int64_t first = at;
        for (int64_t i = 0; i < n; i++) {
            bool known = ids[i] >= 0 && ids[i] < a->experts;
            if (!known || (drop ? a->expert_map[ids[i]] : ids[i]) != e)
                continue;
            w->sorted[at++] = (int32_t)i;
            w->scatter[i] = (int32_t)i;
        }
        while ((at - first) % a->block)
            at++;
        for (int64_t b = first / a->block; b < at / a->block; b++)
            w->experts[b] = a->expert_map && !drop ? a->expert_map[e] : e;
    }
    w->post_pad = (int32_t)at;
}

static int ascending(const void *a, const void *b)
{
    return (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

/* Sorts the routes of each expert, because an unstable sort may return them in any order. Padding is the
 * largest id, so it comes last. */
static void sort_within_experts(const struct mf_align *a, const int32_t *experts, int32_t post_pad,
                                int32_t *sorted)
{
    (void)experts;
    int64_t n = a->tokens * a->topk;
    for (int64_t from = 0; from < post_pad;) {
        int64_t to = from + a->block;
        while (to < post_pad && sorted[to - 1] != n && experts[to / a->block] == experts[from / a->block])
            to += a->block;
        qsort(sorted + from, (size_t)(to - from), sizeof(*sorted), ascending);
        from = to;
    }
}

static void make_map(enum mode mode, int32_t experts, uint64_t seed, int32_t *map)
{
    int32_t n = 0;
    for (int32_t e = 0; e < experts; e++) /* local ids with holes; the next loop reverses their order */
        map[e] = mode != NO_LOCAL && route_random(seed, (uint64_t)e, 3) ? n++ : -1;
    for (int32_t e = 0; e < experts; e++)
        map[e] = map[e] < 0 ? -1 : n - 1 - map[e];
}

static void check(const struct route_case *c, enum mf_sort sort, enum mode mode, int threads, bool wide,
                  uint64_t seed)
{
    _cleanup_(mf_freep) int64_t *ids64 = NULL;
    _cleanup_(mf_freep) int32_t *ids32 = route_ids(c, seed, &ids64), *map = calloc((size_t)c->experts, 4);
    struct mf_align a = {.ids = wide ? (void *)ids64 : (void *)ids32,
                         .wide = wide,
                         .tokens = c->tokens,
                         .topk = c->topk,
                         .experts = c->experts,
                         .block = c->block,
                         .expert_map = mode == GLOBAL ? NULL : map,
                         .ignore_remote = mode >= DROP_REMOTE,
                         .whole_blocks = seed % 2};
    const char *why;
    int64_t n = c->tokens * c->topk, rows = mf_align_rows(n, c->experts, c->block, a.whole_blocks);
    if (!mf_sort_supports(sort, n, c->experts, threads, &why))
        return;
    make_map(mode, c->experts, seed, map);
    size_t blocks = (size_t)((rows + c->block - 1) / c->block), room = mf_align_workspace(sort, &a, threads);
    _cleanup_(mf_freep) int32_t *memory = calloc(2 * ((size_t)rows + blocks + (size_t)n) + 8, 4);
    _cleanup_(mf_freep) char *workspace = aligned_alloc(64, room + 64);
    struct wanted w = {.sorted = memory, .rows = rows};
    w.experts = w.sorted + rows;
    w.scatter = w.experts + blocks;
    int32_t *sorted = w.scatter + n, *experts = sorted + rows + 1, *scatter = experts + blocks + 1,
            post_pad = -9;
    memset(sorted, 0x7f, ((size_t)rows + blocks + (size_t)n + 3) * 4);
    memset(workspace, 0x5a, room + 64);
    reference_sort(&a, ids64, &w);
    ck_assert_int_eq(mf_align_blocks(sort, &a, threads, workspace,
                                     &(struct mf_align_out){sorted, experts, &post_pad, scatter}, &why),
                     0);
    for (int i = 0; i < 64; i++)
        MUST(workspace[room + (size_t)i] == 0x5a, "workspace overrun");
    ck_assert_int_eq(sorted[rows], 0x7f7f7f7f);
    ck_assert_int_eq(experts[blocks], 0x7f7f7f7f);
    ck_assert_int_eq(post_pad, w.post_pad);
    ck_assert_mem_eq(experts, w.experts, blocks * 4);
    ck_assert_mem_eq(scatter, w.scatter, (size_t)n * 4);
    if (sort == MF_SORT_SCATTER) {
        sort_within_experts(&a, experts, post_pad, sorted);
        sort_within_experts(&a, w.experts, w.post_pad, w.sorted);
    }
    for (int64_t i = 0; i < rows; i++)
        MUST(sorted[i] == w.sorted[i],
             "%s: %s, mode %d, %d threads, seed %llu: row %lld has %d, should be %d", c->trap,
             mf_sort_name(sort), mode, threads, (unsigned long long)seed, (long long)i, sorted[i],
             w.sorted[i]);
}

static void check_all(const struct route_case *c, uint64_t seed)
{
    for (int sort = 0; sort < MF_SORT_N_; sort++) {
        for (int mode = 0; mode < N_MODES; mode++) {
            for (int threads = 1; threads <= 2; threads++)
                check(c, (enum mf_sort)sort, (enum mode)mode, threads, (mode + threads) % 2, seed);
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

/* A sort with a nondeterministic order must be correct in each of many runs (vllm-project/vllm#52532). */
MF_TEST(unstable_sort_is_correct)
{
    static const struct route_case c = {"7: atomic order", 300, 8, 16, 16, SKEWED};
    for (int i = 0; i < 100; i++)
        check(&c, MF_SORT_SCATTER, GLOBAL, 2, false, SEED);
}

/* clang-format off */
static const struct {
    struct mf_align a;
    enum mf_sort sort;
    const char *word;
} refused[] = {
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 0}, MF_SORT_SERIAL, "block_size"},
    {{.tokens = 1, .topk = 1, .experts = 0, .block = 4}, MF_SORT_SERIAL, "num_experts"},
    {{.tokens = -1, .topk = 1, .experts = 2, .block = 4}, MF_SORT_SERIAL, "topk_ids"},
    {{.tokens = 1, .topk = 0, .experts = 2, .block = 4}, MF_SORT_SERIAL, "topk_ids"},
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 4, .expert_map = (const int32_t[]){0, 2}},
     MF_SORT_SERIAL, "expert_map"},
    {{.tokens = 1, .topk = 1, .experts = 2, .block = 4, .expert_map = (const int32_t[]){0, -2}},
     MF_SORT_SERIAL, "expert_map"},
    {{.tokens = 1025, .topk = 1, .experts = 2, .block = 4}, MF_SORT_ONE, "1024 routes"},
    {{.tokens = 1, .topk = 1, .experts = 1025, .block = 4}, MF_SORT_STAGES, "1024 experts"},
    {{.tokens = (int64_t)1 << 31, .topk = 1, .experts = 2, .block = 4}, MF_SORT_SERIAL, "int32"},
};
/* clang-format on */

MF_TEST(rejection_reasons, .rows = MF_ARRAY_LEN(refused))
{
    const char *why;
    int r = mf_align_blocks(refused[_i].sort, &refused[_i].a, 1, NULL, &(struct mf_align_out){NULL}, &why);
    ck_assert_int_lt(r, 0);
    ck_assert_msg(strstr(why, refused[_i].word) != NULL, "\"%s\" does not contain %s", why, refused[_i].word);
}

int main(void)
{
    printf("seed %d\n", SEED);
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
