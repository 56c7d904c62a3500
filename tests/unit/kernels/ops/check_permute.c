#include "kernels/ops/permute.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "kernels/core/device.h"
#include "kernels/core/quant.h"
#include "kernels/cpu/device_cpu.h"
#include "kernels/ops/permute_ascend.h"
#include "kernels/ops/permute_megatron.h"
#include "kernels/ops/permute_vllm.h"
#include "support/farm/route_cases.h"
#include "support/mf_check.h"

#define SEED     20251123
#define N_RANDOM 40
#define MUST(condition, ...)           \
    do {                               \
        if (!(condition))              \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* ---- rows whose values identify their token ---- */

/* Returns element i of token t: a small integer, so that fp32 sums and the rounding of short sums are exact.
 */
static uint16_t element(int64_t t, size_t i)
{
    return mf_bf16_from_float((float)((t * 7 + (int64_t)i) % 16 + 1));
}

static uint16_t *make_tokens(int64_t tokens, size_t width)
{
    uint16_t *x = malloc(((size_t)tokens * width + 1) * 2);
    for (int64_t t = 0; t < tokens; t++) {
        for (size_t i = 0; i < width; i++)
            x[(size_t)t * width + i] = element(t, i);
    }
    return x;
}

static uint16_t *make_poison(int64_t rows, size_t width)
{
    size_t n = (size_t)(rows + 1) * width; /* plus a guard row */
    uint16_t *p = malloc(n * 2);
    for (size_t i = 0; i < n; i++)
        p[i] = 0x7fa5; /* NaN */
    return p;
}

static void check_token(const uint16_t *row, size_t width, int64_t t, const char *what, int64_t at)
{
    for (size_t i = 0; i < width; i++)
        MUST(row[i] == element(t, i), "%s: row %lld is not token %lld", what, (long long)at, (long long)t);
}

static void check_poison(const uint16_t *row, size_t width, const char *what, int64_t at)
{
    for (size_t i = 0; i < width; i++)
        MUST(row[i] == 0x7fa5, "%s: row %lld was written", what, (long long)at);
}

/* ---- Ascend ---- */

static const int32_t paper_ids[6] = {3, 1, 4, 2, 5, 3}; /* three tokens a, b, c with two slots each */

/* clang-format off */
static const struct ascend_case {
    const char *what;
    int64_t range[2]; /* {-1}: no range */
    int64_t num_out_tokens;
    int rows, tokens[6]; /* tokens of the output rows */
    bool has_probs;
} ascend_cases[] = {
    {"inner: all rows",                 {-1}, 0,  6, {0, 1, 0, 2, 1, 2}, false},
    {"the first four",                  {-1}, 4,  4, {0, 1, 0, 2},       false},
    {"more than there are",             {-1}, 9,  6, {0, 1, 0, 2, 1, 2}, false},
    {"all but the last two",            {-1}, -2, 4, {0, 1, 0, 2},       false},
    {"all but more than there are",     {-1}, -7, 0, {0},                false},
    {"outer: a range of all",           {0, 6}, 0, 6, {0, 1, 0, 2, 1, 2}, true},
    {"outer: the group in the middle",  {1, 4}, 0, 3, {1, 0, 2},         true},
    {"outer: numOutTokens is not used", {4, 6}, 1, 2, {1, 2},            true},
    {"outer: a rank without rows",      {3, 3}, 0, 0, {0},               true},
};
/* clang-format on */

MF_TEST(ascend_example, .rows = MF_ARRAY_LEN(ascend_cases) * 4)
{
    static const int32_t inverse[6] = {2, 0, 4, 1, 5, 3};
    static const float probs[6] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
    const struct ascend_case *c = &ascend_cases[_i / 4];
    size_t width = _i % 2 ? 37 : 256;
    int threads = 1 + _i / 2 % 2;
    int64_t wide[6];
    for (int i = 0; i < 6; i++)
        wide[i] = paper_ids[i];
    struct mf_ascend a = {.indices = threads == 1 ? (const void *)paper_ids : wide,
                          .wide = threads == 2,
                          .tokens = 3,
                          .topk = 2,
                          .range = c->range[0] < 0 ? NULL : c->range,
                          .num_out_tokens = c->num_out_tokens,
                          .stream = _i % 2};
    const char *why;
    float out_probs[6] = {-1, -1, -1, -1, -1, -1};
    int32_t sorted[6];
    _cleanup_(mf_freep) uint16_t *x = make_tokens(3, width), *out = make_poison(6, width),
                                 *y = make_poison(3, width);
    _cleanup_(mf_freep) void *room = malloc(mf_ascend_workspace(&a));

    ck_assert_int_eq(mf_ascend_rows(&a, &why), c->rows);
    struct mf_ascend_permuted p = {out, sorted, out_probs};
    ck_assert_int_eq(mf_ascend_permute(&a, x, width * 2, probs, threads, room, &p, &why), 0);
    ck_assert_mem_eq(sorted, inverse, sizeof(inverse));
    for (int r = 0; r < c->rows; r++)
        check_token(out + (size_t)r * width, width, c->tokens[r], c->what, r);
    check_poison(out + (size_t)c->rows * width, width, c->what, c->rows);
    for (int i = 0; i < 6; i++) {
        int64_t row = inverse[i] - (c->has_probs ? c->range[0] : 0);
        if (c->has_probs && row >= 0 && row < c->rows)
            ck_assert(out_probs[row] == probs[i]);
    }
    ck_assert(c->has_probs || out_probs[0] == -1);
    struct mf_ascend_unpermute u = {.permuted = out,
                                    .sorted_indices = sorted,
                                    .tokens = 3,
                                    .topk = 2,
                                    .rows = c->rows,
                                    .range = a.range,
                                    .width = width};
    ck_assert_int_eq(mf_ascend_unpermute(&u, threads, NULL, y, &why), 0);
    for (int t = 0; t < 3; t++) {
        int n = 0;
        for (int r = 0; r < c->rows; r++)
            n += c->tokens[r] == t;
        for (size_t i = 0; i < width; i++)
            ck_assert(mf_bf16_to_float(y[(size_t)t * width + i]) ==
                      (float)n * mf_bf16_to_float(element(t, i)));
    }
}

/* In outer mode, the permutations of three ranges are three pieces of the permutation in inner mode. The
 * unpermuted pieces add up to the unpermuted whole. */
MF_TEST(ascend_outer_matches_inner, .rows = N_RANDOM)
{
    uint64_t seed = SEED + (uint64_t)_i;
    int64_t tokens = 1 + route_random(seed, 1, 40), cuts[4] = {0};
    int32_t topk = 1 + (int32_t)route_random(seed, 2, 8);
    size_t width = 16 + route_random(seed, 3, 80);
    int64_t n = tokens * topk;
    _cleanup_(mf_freep) int32_t *ids = malloc((size_t)n * 4), *inner_map = malloc((size_t)n * 4),
                                *map = malloc((size_t)n * 4);
    uint32_t top = _i % 3 == 0 ? 16777215 : _i % 3 == 1 ? 5000 : 16; /* ids with two radix digits or one */
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)route_random(seed, 10 + (uint64_t)i % 29, top);
    cuts[1] = route_random(seed, 4, (uint32_t)n + 1);
    cuts[2] = cuts[1] + route_random(seed, 5, (uint32_t)(n - cuts[1]) + 1);
    cuts[3] = n;
    struct mf_ascend a = {.indices = ids, .tokens = tokens, .topk = topk};
    _cleanup_(mf_freep) void *room = malloc(mf_ascend_workspace(&a));
    _cleanup_(mf_freep) uint16_t *x = make_tokens(tokens, width), *inner = make_poison(n, width),
                                 *outer = make_poison(n, width), *y = make_poison(tokens, width);
    const char *why;
    struct mf_ascend_permuted p = {inner, inner_map, NULL};
    ck_assert_int_eq(mf_ascend_permute(&a, x, width * 2, NULL, 2, room, &p, &why), 0);
    for (int64_t i = 0; i < n; i++) { /* by definition, a route's row is the number of routes before it */
        int64_t before = 0;
        for (int64_t k = 0; k < n; k++)
            before += ids[k] < ids[i] || (ids[k] == ids[i] && k < i);
        MUST(inner_map[i] == before, "seed %llu: route %lld maps to row %d, should be %lld",
             (unsigned long long)seed, (long long)i, inner_map[i], (long long)before);
    }
    for (int piece = 0; piece < 3; piece++) {
        a.range = cuts + piece;
        p = (struct mf_ascend_permuted){outer + (size_t)cuts[piece] * width, map, NULL};
        ck_assert_int_eq(mf_ascend_rows(&a, &why), cuts[piece + 1] - cuts[piece]);
        ck_assert_int_eq(mf_ascend_permute(&a, x, width * 2, NULL, 1, room, &p, &why), 0);
        ck_assert_mem_eq(map, inner_map, (size_t)n * 4);
    }
    ck_assert_mem_eq(outer, inner, (size_t)n * width * 2);
    _cleanup_(mf_freep) float *sum = calloc((size_t)tokens * width, sizeof(*sum));
    for (int piece = 0; piece < 3; piece++) {
        struct mf_ascend_unpermute u = {.permuted = outer + (size_t)cuts[piece] * width,
                                        .sorted_indices = map,
                                        .tokens = tokens,
                                        .topk = topk,
                                        .rows = cuts[piece + 1] - cuts[piece],
                                        .range = cuts + piece,
                                        .width = width};
        ck_assert_int_eq(mf_ascend_unpermute(&u, 2, NULL, y, &why), 0);
        for (size_t i = 0; i < (size_t)tokens * width; i++)
            sum[i] += mf_bf16_to_float(y[i]);
    }
    for (size_t i = 0; i < (size_t)tokens * width; i++)
        MUST(sum[i] == (float)topk * mf_bf16_to_float(x[i]), "seed %llu: element %zu",
             (unsigned long long)seed, i);
}

MF_TEST(ascend_padded)
{
    static const int32_t rows[6] = {2, 0, 2, 1, 1, 2}; /* three experts with capacity two */
    _cleanup_(mf_freep) uint16_t *x = make_tokens(3, 64), *out = make_poison(6, 64), *y = make_poison(3, 64);
    int32_t sorted[6];
    float room[3 * 64];
    const char *why;
    struct mf_ascend a = {.indices = rows, .tokens = 3, .topk = 1, .padded_mode = true, .padded_rows = 6};
    struct mf_ascend_permuted p = {out, sorted, NULL};
    ck_assert_int_eq(mf_ascend_rows(&a, &why), 6);
    ck_assert_int_eq(mf_ascend_permute(&a, x, 128, NULL, 1, NULL, &p, &why), 0);
    ck_assert_mem_eq(sorted, rows, sizeof(rows));
    for (int r = 0; r < 6; r++)
        check_token(out + r * 64, 64, rows[r], "padded", r);
    struct mf_ascend_unpermute u = {.permuted = out,
                                    .sorted_indices = sorted,
                                    .tokens = 3,
                                    .topk = 1,
                                    .rows = 6,
                                    .width = 64,
                                    .padded_mode = true};
    ck_assert_int_eq(mf_ascend_unpermute(&u, 1, room, y, &why), 0);
    for (int t = 0; t < 3; t++) {
        for (size_t i = 0; i < 64; i++)
            ck_assert(mf_bf16_to_float(y[t * 64 + (int)i]) ==
                      (float)(t + 1) * mf_bf16_to_float(element(t, i)));
    }
}

/* clang-format off */
static const struct {
    struct mf_ascend a;
    const char *word;
} ascend_refused[] = {
    {{.indices = (int32_t[]){-1}, .tokens = 1, .topk = 1}, "indices"},
    {{.indices = (int32_t[]){16777215}, .tokens = 1, .topk = 1}, "16777214"},
    {{.tokens = 16777215, .topk = 1}, "16777215"},
    {{.tokens = 1, .topk = 513}, "512"},
    {{.indices = (int32_t[]){0}, .tokens = 1, .topk = 1, .range = (int64_t[]){0, 2}}, "range"},
    {{.indices = (int32_t[]){0}, .tokens = 1, .topk = 1, .range = (int64_t[]){1, 0}}, "range"},
    {{.indices = (int32_t[]){1}, .tokens = 1, .topk = 1, .padded_mode = true, .padded_rows = 1},
     "paddedMode"},
    {{.tokens = 1, .topk = 1, .padded_mode = true, .range = (int64_t[]){0, 0}}, "paddedMode"},
};
/* clang-format on */

MF_TEST(ascend_rejections, .rows = MF_ARRAY_LEN(ascend_refused))
{
    const char *why;
    ck_assert_int_lt(mf_ascend_rows(&ascend_refused[_i].a, &why), 0);
    ck_assert_msg(strstr(why, ascend_refused[_i].word) != NULL, "\"%s\"", why);
}

/* ---- vLLM ---- */

static void vllm_case(const struct route_case *c, uint64_t seed, int32_t align, bool mapped)
{
    _cleanup_(mf_freep) int64_t *wide = NULL;
    _cleanup_(mf_freep) int32_t *ids = route_ids(c, seed, &wide), *map = calloc((size_t)c->experts, 4);
    int64_t n = c->tokens * c->topk, at = 0;
    int32_t local = 0;
    size_t width = 24;
    for (int32_t e = 0; e < c->experts; e++)
        map[e] = e % 3 != 1 ? local++ : -1;
    for (int32_t e = 0; e < c->experts; e++) /* local ids in descending order */
        map[e] = map[e] < 0 ? -1 : local - 1 - map[e];
    float *scale = calloc((size_t)c->tokens + 1, 4);
    struct mf_vllm_permute p = {.ids = wide,
                                .wide = true,
                                .tokens = c->tokens,
                                .topk = c->topk,
                                .experts = c->experts,
                                .n_local = mapped ? local : c->experts,
                                .expert_map = mapped ? map : NULL,
                                .align = align,
                                .n_copies = 2};
    size_t rows = (size_t)mf_vllm_rows(&p);
    _cleanup_(mf_freep) uint16_t *x = make_tokens(c->tokens, width), *out = make_poison((int64_t)rows, width),
                                 *y = make_poison(c->tokens, width);
    float *scales = calloc(rows + 1, 4);
    _cleanup_(mf_freep) int32_t *inverse = malloc((size_t)n * 4 + 4), *m = malloc((rows + 1) * 4);
    _cleanup_(mf_freep) int64_t *first = malloc(((size_t)p.n_local + 1) * 8);
    _cleanup_(mf_freep) void *room = aligned_alloc(64, mf_vllm_workspace(MF_SORT_STABLE, &p, 2));
    const char *why;
    for (int64_t t = 0; t < c->tokens; t++)
        scale[t] = (float)t;
    p.copies[0] = (struct mf_row_copy){x, out, width * 2};
    p.copies[1] = (struct mf_row_copy){scale, scales, 4};
    ck_assert_int_eq(
        mf_vllm_permute(MF_SORT_STABLE, &p, 2, room, &(struct mf_vllm_permuted){first, inverse, m}, &why), 0);
    for (int32_t l = 0; l < p.n_local; l++) {
        MUST(first[l] == at, "%s: expert %d begins at %lld", c->trap, l, (long long)first[l]);
        for (int64_t i = 0; i < n; i++) {
            bool known = wide[i] >= 0 && wide[i] < c->experts;
            if (!known || (mapped ? map[wide[i]] : wide[i]) != l)
                continue;
            MUST(inverse[i] == at && m[at] == l, "%s: route %lld", c->trap, (long long)i);
            MUST(scales[at] == (float)(i / c->topk), "%s: scale of row %lld", c->trap, (long long)at);
            check_token(out + (size_t)at * width, width, i / c->topk, c->trap, at);
            at++;
        }
        for (; at % align; at++) {
            MUST(m[at] == -1, "%s: padding has expert %d", c->trap, m[at]);
            check_poison(out + (size_t)at * width, width, c->trap, at);
        }
    }
    MUST(first[p.n_local] == at, "%s: %lld rows in use", c->trap, (long long)first[p.n_local]);
    for (size_t r = (size_t)at; r < rows; r++)
        MUST(m[r] == -1, "%s: the tail has expert %d", c->trap, m[r]);
    /* Padding and tail hold NaN, because no token may read them. A token without local routes must be exactly
     * 0. */
    struct mf_unpermute u = {.row_of = inverse,
                             .tokens = c->tokens,
                             .topk = c->topk,
                             .last = at,
                             .from = out,
                             .width = width,
                             .to = y};
    mf_unpermute_rows(&u, 2);
    for (int64_t t = 0; t < c->tokens; t++) {
        int k = 0;
        for (int32_t j = 0; j < c->topk; j++)
            k += inverse[t * c->topk + j] >= 0;
        for (size_t i = 0; i < width; i++) {
            float want = mf_bf16_to_float(mf_bf16_from_float((float)k * mf_bf16_to_float(element(t, i))));
            MUST(mf_bf16_to_float(y[(size_t)t * width + i]) == want, "%s: token %lld is %g, should be %g",
                 c->trap, (long long)t, (double)mf_bf16_to_float(y[(size_t)t * width + i]), (double)want);
        }
    }
    free(scale);
    free(scales);
}

MF_TEST(vllm_trap, .rows = ROUTE_N_CASES * 4)
{
    const struct route_case *c = &route_cases[_i / 4];
    vllm_case(c, SEED, _i % 2 ? c->block : 1, c->experts > 1 && _i % 4 > 1);
}

MF_TEST(vllm_random, .rows = N_RANDOM)
{
    struct route_case c = route_case_at_random(SEED + 77 + (uint64_t)_i);
    vllm_case(&c, SEED + 77 + (uint64_t)_i, _i % 2 ? c.block : 1, c.experts > 1 && _i % 3 == 0);
}

/* ---- Megatron ---- */

/* Five tokens and three experts: expert 0 has tokens 0, 2 and 4, expert 1 has token 1, and expert 2 has no
 * tokens. */
static const uint8_t mega_map[15] = {1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0};

/* clang-format off */
static const struct mega_case {
    const char *what;
    int64_t num_out_tokens;
    bool drop_and_pad;
    int32_t align;
    int rows, tokens[9];
    int64_t per_expert[3], pad_offsets[3];
} mega_cases[] = {
    {"all routes",               -1, false, 1, 4, {0, 2, 4, 1},          {3, 1, 0}, {0, 0, 0}},
    {"the first three",           3, false, 1, 3, {0, 2, 4},             {3, 0, 0}, {0, 0, 0}},
    {"none",                      0, false, 1, 0, {0},                   {0, 0, 0}, {0, 0, 0}},
    {"aligned to four",          -1, false, 4, 8, {0, 2, 4, -1, 1, -1, -1, -1}, {4, 4, 0}, {0, 1, 4}},
    {"aligned, and the first three", 3, false, 2, 4, {0, 2, 4, -1},      {4, 0, 0}, {0, 1, 1}},
    /* Expert 0 drops token 4, expert 1 is padded with token 0, and expert 2 is padded with tokens 0 and 1. */
    {"capacity two",              6, true,  1, 6, {0, 2, 1, 0, 0, 1},    {2, 2, 2}, {0, 0, 1}},
    {"capacity three",            9, true,  1, 9, {0, 2, 4, 1, 0, 2, 0, 1, 2}, {3, 3, 3}, {0, 0, 2}},
};
/* clang-format on */

MF_TEST(megatron_example, .rows = MF_ARRAY_LEN(mega_cases) * 2)
{
    const struct mega_case *c = &mega_cases[_i / 2];
    float probs[15], out_probs[9];
    int32_t row_of[15], token_of[9];
    int64_t per_expert[3], pad_offsets[3];
    const char *why;
    _cleanup_(mf_freep) uint16_t *x = make_tokens(5, 72), *out = make_poison(9, 72), *y = make_poison(5, 72);
    for (int i = 0; i < 15; i++)
        probs[i] = mega_map[i] ? (float)(1 << i % 4) : (float)NAN;
    struct mf_megatron m = {mega_map, probs, 5, 3, c->num_out_tokens, c->drop_and_pad, c->align};
    struct mf_megatron_map map = {row_of, token_of, out_probs, per_expert, pad_offsets};
    ck_assert_int_eq(mf_megatron_rows(&m, &why), c->rows);
    ck_assert_int_eq(mf_megatron_map(&m, &map, &why), c->rows);
    ck_assert_mem_eq(per_expert, c->per_expert, sizeof(per_expert));
    ck_assert_mem_eq(pad_offsets, c->pad_offsets, sizeof(pad_offsets));
    struct mf_row_copy copy = {x, out, 144};
    mf_megatron_permute(&m, &map, c->rows, &copy, _i % 2, 1 + _i % 2);
    int64_t row = 0;
    for (int e = 0; e < 3; e++) {
        for (int64_t end = row + per_expert[e]; row < end; row++) {
            int t = c->tokens[row];
            ck_assert_int_eq(token_of[row], t);
            bool routed = t >= 0 && mega_map[t * 3 + e];
            ck_assert(out_probs[row] == (routed ? probs[t * 3 + e] : 0));
            if (t >= 0)
                check_token(out + row * 72, 72, t, c->what, row);
            for (size_t i = 0; t < 0 && i < 72; i++)
                ck_assert_uint_eq(out[(size_t)row * 72 + i], 0);
            for (size_t i = 0; !routed && i < 72; i++) /* results for padding must not be used */
                out[(size_t)row * 72 + i] = 0x7fc0;
        }
    }
    check_poison(out + c->rows * 72, 72, c->what, c->rows);
    struct mf_unpermute u = {.row_of = row_of,
                             .tokens = 5,
                             .topk = 3,
                             .last = c->rows,
                             .from = out,
                             .width = 72,
                             .probs = probs,
                             .to = y};
    mf_unpermute_rows(&u, 1 + _i % 2);
    for (int t = 0; t < 5; t++) {
        float weight = 0;
        for (int e = 0; e < 3; e++)
            weight += row_of[t * 3 + e] >= 0 ? probs[t * 3 + e] : 0;
        for (size_t i = 0; i < 72; i++)
            ck_assert(mf_bf16_to_float(y[t * 72 + (int)i]) == weight * mf_bf16_to_float(element(t, i)));
    }
}

MF_TEST(megatron_pads_the_map)
{
    static const uint8_t want[15] = {1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
    uint8_t map[15];
    memcpy(map, mega_map, sizeof(map));
    mf_megatron_pad_map(map, 5, 3, 4); /* 3 and 1 routes become 4; an expert without routes gets none */
    ck_assert_mem_eq(map, want, sizeof(map));
    mf_megatron_pad_map(map, 5, 3, 16); /* more than the number of tokens, so all tokens are used */
    for (int i = 0; i < 15; i++)
        ck_assert_uint_eq(map[i], i % 3 != 2);
}

MF_TEST(te_index_map)
{
    static const int32_t inverse[6] = {2, 0, 4, 1, 5, 3}, all[6] = {2, 4, 5, 0, 1, 3},
                         four[6] = {2, -1, -1, 0, 1, 3};
    int32_t map[6];
    mf_te_index_map(inverse, 3, 2, -1, map);
    ck_assert_mem_eq(map, all, sizeof(map));
    mf_te_index_map(inverse, 3, 2, 4, map);
    ck_assert_mem_eq(map, four, sizeof(map));
}

/* clang-format off */
static const struct {
    struct mf_megatron m;
    const char *word;
} mega_refused[] = {
    {{mega_map, NULL, 5, 0, -1, false, 1}, "routing_map"},
    {{mega_map, NULL, 5, 3, -2, false, 1}, "num_out_tokens"},
    {{mega_map, NULL, 5, 3, 7, true, 1}, "multiple"},
    {{mega_map, NULL, 5, 3, 18, true, 1}, "capacity"},
    {{mega_map, NULL, 5, 3, 6, true, 8}, "align_size"},
    {{mega_map, NULL, 5, 3, -1, false, 0}, "align_size"},
};
/* clang-format on */

MF_TEST(megatron_rejections, .rows = MF_ARRAY_LEN(mega_refused))
{
    const char *why;
    ck_assert_int_lt(mf_megatron_rows(&mega_refused[_i].m, &why), 0);
    ck_assert_msg(strstr(why, mega_refused[_i].word) != NULL, "\"%s\"", why);
}

/* ---- sum loops ---- */

/* The summation order is fixed: the sum has the same bits for any number of threads and any instruction set,
 * and also for more slots than one loop iteration handles. */
MF_TEST(fixed_summation_order, .rows = 5)
{
    static const char *const isas[] = {NULL, "avx2", "c"};
    static const int32_t topks[] = {1, 8, 32, 33, 70};
    int32_t k = topks[_i];
    int64_t tokens = 20;
    size_t width = 4096 + 200 + (size_t)_i;
    int64_t rows = tokens * k;
    _cleanup_(mf_freep) uint16_t *from = make_poison(rows, width), *y = make_poison(tokens, width);
    _cleanup_(mf_freep) int32_t *row_of = malloc((size_t)rows * 4);
    _cleanup_(mf_freep) float *probs = malloc((size_t)rows * 4);
    for (size_t i = 0; i < (size_t)rows * width; i++)
        from[i] = mf_bf16_from_float((float)route_random(SEED, i, 1000) * 0.01f - 5);
    for (int64_t i = 0; i < rows; i++) {
        row_of[i] = i % 11 == 3 ? -1 : (int32_t)(rows - 1 - i);
        probs[i] = (float)route_random(SEED + 1, (uint64_t)i, 1000) * 0.001f;
    }
    struct mf_unpermute u = {.row_of = row_of,
                             .tokens = tokens,
                             .topk = k,
                             .last = rows,
                             .from = from,
                             .width = width,
                             .probs = probs,
                             .to = y};
    for (int way = 0; way < 12; way++) {
        const char *isa = isas[way / 4];
        ck_assert_int_eq(isa ? setenv("MOEFARM_ISA", isa, 1) : unsetenv("MOEFARM_ISA"), 0);
        mf_isa_refresh();
        u.stream = way & 1;
        u.tokens = way == 1 ? 3 : tokens; /* with few tokens, threads share the columns */
        memset(y, 0xff, (size_t)tokens * width * 2);
        mf_unpermute_rows(&u, 1 + way / 2 % 2);
        for (int64_t t = 0; t < u.tokens; t++) {
            for (size_t i = 0; i < width; i++) {
                float sum = 0;
                for (int32_t j = 0; j < k; j++) {
                    int64_t r = row_of[t * k + j];
                    if (r >= 0)
                        sum += probs[t * k + j] * mf_bf16_to_float(from[(size_t)r * width + i]);
                }
                MUST(y[(size_t)t * width + i] == mf_bf16_from_float(sum),
                     "k %d, way %d, token %lld, element %zu", k, way, (long long)t, i);
            }
        }
    }
}

/* Trap 20: rows beyond 2^32 bytes and 2^31 elements. They lie in virtual memory, of which only the pages of
 * these rows are touched. */
MF_TEST(far_rows)
{
    size_t width = 4096, rows = 600001, bytes = rows * width * 2;
    uint16_t *far =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(far, MAP_FAILED);
    int32_t row_of[2] = {600000, 599999};
    _cleanup_(mf_freep) uint16_t *x = make_tokens(1, width), *y = make_poison(1, width);
    struct mf_permute p = {.row_of = row_of,
                           .tokens = 1,
                           .topk = 2,
                           .last = (int64_t)rows,
                           .copies = {{x, far, width * 2}},
                           .n_copies = 1,
                           .stream = true};
    mf_permute_rows(&p, 2);
    check_token(far + 600000 * width, width, 0, "far", 600000);
    check_token(far + 599999 * width, width, 0, "far", 599999);
    struct mf_unpermute u = {.row_of = row_of,
                             .tokens = 1,
                             .topk = 2,
                             .last = (int64_t)rows,
                             .from = far,
                             .width = width,
                             .to = y};
    mf_unpermute_rows(&u, 2);
    for (size_t i = 0; i < width; i++)
        MUST(mf_bf16_to_float(y[i]) == 2 * mf_bf16_to_float(x[i]), "element %zu", i);
    (void)munmap(far, bytes);
}

int main(void)
{
    printf("seed %d\n", SEED);
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
