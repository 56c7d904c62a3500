/* Searches cost surfaces over the 1,920 configurations of a Triton layer, and compares the result with that
 * of measuring all of them. Prints how often the search missed on each surface and how much it measured. */
#include "server/choose/halving.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_DIMENSIONS 6
#define N_POINTS     1920
#define N_SEEDS      40
#define NEAR_BEST    1.01
#define NOISE        0.004

static const struct {
    const char *letters;
    int n, values[5];
} space[N_DIMENSIONS] = {
    {"m", 5, {16, 32, 64, 128, 256}},
    {"n", 4, {32, 64, 128, 256}},
    {"k", 3, {64, 128, 256}},
    {"g", 4, {1, 16, 32, 64}},
    {"w", 2, {4, 8}},
    {"s", 4, {2, 3, 4, 5}},
};
enum { M, N, K, G, W, S };

static int levels[N_POINTS][N_DIMENSIONS];
static char names[N_POINTS][96];
static const char *name_list[N_POINTS];
static struct mf_points *points;

static int value(const int *p, int dimension)
{
    return space[dimension].values[p[dimension]];
}

static void print_parameters(const int *p, char **at, char *end)
{
    for (int d = 0; d < N_DIMENSIONS; d++) {
        char part[16];
        mf_format(part, sizeof(part), "_%s%d", space[d].letters, value(p, d));
        *at = mf_append(*at, end, part);
    }
}

/* twice: the names have each parameter twice, as those of SGLang's configurations with TMA */
static void make_space(bool twice)
{
    for (int i = 0; i < N_POINTS; i++) {
        int left = i;
        char *at = names[i], *end = at + sizeof(names[i]) - 1;
        for (int d = 0; d < N_DIMENSIONS; d++) {
            levels[i][d] = left % space[d].n;
            left /= space[d].n;
        }
        at = mf_append(at, end, "triton");
        print_parameters(levels[i], &at, end);
        at = mf_append(at, end, twice ? "-down" : "");
        if (twice)
            print_parameters(levels[i], &at, end);
        name_list[i] = names[i];
    }
    ck_assert_int_eq(mf_points_new(name_list, N_POINTS, &points), 0);
    ck_assert_int_eq(points->n_dimensions, (1 + twice) * N_DIMENSIONS);
}

/* ---- surfaces: the true time of a configuration; INFINITY: it fails ---- */

/* A number in [0, 1) that depends on seed, salt and point. */
static double drawn(uint64_t seed, int salt, const int *p)
{
    const uint64_t key[2] = {seed, (uint64_t)salt};
    uint64_t h = mf_hash64(key, sizeof(key), MF_HASH_SEED);
    if (p)
        h = mf_hash64(p, N_DIMENSIONS * sizeof(*p), h);
    return (double)(h >> 11) / (double)(1ULL << 53);
}

static int centre(uint64_t seed, int d)
{
    return (int)(drawn(seed, d, NULL) * space[d].n);
}

/* Each parameter costs on its own. */
static double bowl(const int *p, uint64_t seed)
{
    static const double slope[N_DIMENSIONS] = {0.15, 0.2, 0.12, 0.05, 0.1, 0.04};
    double sum = 0;
    for (int d = 0; d < N_DIMENSIONS; d++)
        sum += slope[d] * abs(p[d] - centre(seed, d));
    return exp(sum);
}

static double rough(const int *p, uint64_t seed)
{
    return bowl(p, seed) * (1 + 0.06 * drawn(seed, 100, p));
}

static double rougher(const int *p, uint64_t seed)
{
    return bowl(p, seed) * (1 + 0.15 * drawn(seed, 100, p));
}

/* The optimum lies on a diagonal: one parameter alone makes it worse. */
static double diagonal(const int *p, uint64_t seed)
{
    int m = p[M] - centre(seed, M), n = p[N] - centre(seed, N);
    int k = p[K] - centre(seed, K), s = p[S] - centre(seed, S);
    return exp(0.25 * abs(m + n) + 0.04 * abs(m - n) + 0.2 * abs(k + s) + 0.03 * abs(k - s) +
               0.05 * abs(p[G] - centre(seed, G)) + 0.08 * abs(p[W] - centre(seed, W)));
}

/* Misleading: a wide valley leads to a local optimum that is 15 % slower than the narrow global one, which
 * lies on the other side of the space. */
static double misleading(const int *p, uint64_t seed)
{
    int steps = 0;
    for (int d = 0; d < N_DIMENSIONS; d++)
        steps += abs(p[d] - (centre(seed, d) + (space[d].n + 1) / 2) % space[d].n);
    return fmin(1.15 * sqrt(bowl(p, seed)), 1 + 0.12 * steps);
}

/* Two valleys, of which one is 2 % deeper. */
static double two_valleys(const int *p, uint64_t seed)
{
    return fmin(bowl(p, seed), 1.02 * bowl(p, seed + 7777));
}

/* The number of warps decides where all other parameters are best. */
static double switched(const int *p, uint64_t seed)
{
    return bowl(p, seed + 31 * (uint64_t)p[W]) * (p[W] == centre(seed, W) ? 1 : 1.06);
}

/* Two of five configurations do not compile. */
static double failing(const int *p, uint64_t seed)
{
    return drawn(seed, 101, p) < 0.4 ? (double)INFINITY : rough(p, seed);
}

/* A GPU: tiles, waves of blocks, shared memory and registers. */
static double gpu(const int *p, uint64_t seed)
{
    static const int rows_of[] = {8, 40, 100, 300, 900}, experts_of[] = {8, 64, 128};
    const double rows = rows_of[(int)(drawn(seed, 1, NULL) * 5)], hidden = 4096, inter = 2048;
    const double experts = experts_of[(int)(drawn(seed, 2, NULL) * 3)];
    const double m = value(p, M), n = value(p, N), k = value(p, K), w = value(p, W), s = value(p, S);
    const double shared = s * (m + n) * k * 2, accumulators = m * n / (32 * w);
    if (shared > 228000 || accumulators > 255)
        return (double)INFINITY;
    double tiles = experts * ceil(rows / m) * ceil(inter * 2 / n);
    double blocks = fmax(1, fmin(floor(228000 / shared), floor(65536 / (32 * w * (accumulators + 40)))));
    double waves = ceil(tiles / (132 * blocks));
    double rate = fmin(1, sqrt(m / 64)) * fmin(1, pow(n / 128, 0.4)) * fmin(1, 0.6 + 0.1 * s + 0.1 * k / 64) *
                  ((w > 4) == (m * n >= 128 * 128) ? 1 : 0.85);
    double compute = waves * blocks * m * n * hidden * 2 / (6e6 * rate);
    double memory = experts * pow(ceil(rows / m), value(p, G) > 1 ? 0.3 : 0.5) * inter * 2 * hidden * 2 /
                    3.3e6 * (1 + 0.025 * fabs(log2(value(p, G) + 1) - 4));
    return (fmax(compute, memory) + 0.3 * fmin(compute, memory) + 3) * (1 + 0.03 * drawn(seed, 102, p));
}

/* One configuration is 10 % faster than its neighbours let expect. */
static double needle(const int *p, uint64_t seed)
{
    const int *at = levels[(int)(drawn(seed, 103, NULL) * N_POINTS)];
    return memcmp(p, at, N_DIMENSIONS * sizeof(*p)) == 0 ? 0.9 : bowl(p, seed);
}

static const struct surface {
    const char *name;
    double (*us)(const int *p, uint64_t seed);
    int misses_max[2]; /* of N_SEEDS searches: with each parameter once and twice in the names */
} surfaces[] = {
    {"bowl", bowl, {0, 0}},
    {"rough", rough, {0, 0}},
    {"rougher", rougher, {0, 1}},
    {"diagonal", diagonal, {1, 1}},
    {"misleading", misleading, {0, 1}},
    {"two_valleys", two_valleys, {2, 0}},
    {"switched", switched, {0, 0}},
    {"failing", failing, {0, 0}},
    {"gpu", gpu, {0, 2}},
    {"needle", needle, {N_SEEDS, N_SEEDS}}, /* nothing leads to it */
};

/* ---- searches ---- */

struct outcome {
    size_t n_measured, rounds;
    double us; /* true time of the fastest candidate by its measured time */
};

static void measure(const struct surface *f, uint64_t seed, size_t i, double *us, struct outcome *o)
{
    ck_assert_double_eq(us[i], 0);
    us[i] = f->us(levels[i], seed) * (1 + NOISE * (2 * drawn(seed, 104, levels[i]) - 1));
    o->n_measured++;
}

static struct outcome search(const struct surface *f, uint64_t seed, const bool *hinted)
{
    static double us[N_POINTS];
    static size_t selected[N_POINTS];
    struct outcome o = {.us = INFINITY};
    size_t n, best = 0;
    memset(us, 0, sizeof(us));
    do {
        const struct mf_halving h = {.points = points, .us = us, .hinted = hinted, .seed = seed};
        ck_assert_int_eq(mf_halving_next(&h, N_POINTS, selected, &n), 0);
        for (size_t i = 0; i < n; i++)
            measure(f, seed, selected[i], us, &o);
        o.rounds += n > 0;
    } while (n > 0);
    for (size_t i = 0; i < N_POINTS; i++) {
        if (us[i] > 0 && (us[best] <= 0 || us[i] < us[best]))
            best = i;
    }
    o.us = f->us(levels[best], seed);
    return o;
}

static double exhaustive(const struct surface *f, uint64_t seed)
{
    double best = INFINITY;
    for (size_t i = 0; i < N_POINTS; i++)
        best = fmin(best, f->us(levels[i], seed));
    return best;
}

MF_TEST(search_is_near_exhaustive, .rows = 2 * MF_ARRAY_LEN(surfaces))
{
    const struct surface *f = &surfaces[_i / 2];
    int misses = 0;
    double worst = 1, n_measured = 0, rounds = 0;
    make_space(_i % 2);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct outcome o = search(f, seed, NULL);
        double ratio = o.us / exhaustive(f, seed);
        ck_assert_uint_le(o.n_measured, N_POINTS / 10);
        worst = fmax(worst, ratio);
        misses += ratio > NEAR_BEST;
        n_measured += (double)o.n_measured / N_SEEDS;
        rounds += (double)o.rounds / N_SEEDS;
        if (ratio > NEAR_BEST)
            printf("%s: seed %" PRIu64 " is %.1f %% slower than the best\n", f->name, seed,
                   100 * (ratio - 1));
    }
    printf("%-12s%s seeds 1 to %d: %d misses, worst %.1f %%, measured %.0f of %d in %.1f rounds\n", f->name,
           _i % 2 ? " twice" : "", N_SEEDS, misses, 100 * (worst - 1), n_measured, N_POINTS, rounds);
    free(points);
    (void)fflush(stdout);
    ck_assert_int_le(misses, f->misses_max[_i % 2]);
}

/* With the fastest candidate of a similar shape, the search measures fewer candidates and never misses on a
 * surface whose optimum has moved by one step. */
MF_TEST(search_starts_from_hints)
{
    const struct surface *f = &surfaces[5];
    static bool hinted[N_POINTS];
    make_space(false);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        size_t best = 0, next = 0;
        memset(hinted, 0, sizeof(hinted));
        for (size_t i = 0; i < N_POINTS; i++) {
            if (f->us(levels[i], seed) < f->us(levels[best], seed))
                best = i;
        }
        while (mf_points_steps(points, best, next) != 1)
            next++;
        hinted[next] = true;
        ck_assert_double_le(search(f, seed, hinted).us / f->us(levels[best], seed), NEAR_BEST);
    }
    free(points);
}

MF_TEST(seed_decides_the_first_round)
{
    static double us[N_POINTS];
    static size_t a[N_POINTS], b[N_POINTS];
    struct mf_halving h = {.us = us, .seed = 1};
    size_t n_a, n_b;
    make_space(false);
    h.points = points;
    ck_assert_int_eq(mf_halving_next(&h, N_POINTS, a, &n_a), 0);
    ck_assert_int_eq(mf_halving_next(&h, N_POINTS, b, &n_b), 0);
    ck_assert_uint_eq(n_a, N_POINTS / 40);
    ck_assert_uint_eq(n_a, n_b);
    ck_assert_mem_eq(a, b, n_a * sizeof(*a));
    h.seed = 2;
    ck_assert_int_eq(mf_halving_next(&h, N_POINTS, b, &n_b), 0);
    ck_assert_mem_ne(a, b, n_a * sizeof(*a));
    ck_assert_int_eq(mf_halving_next(&h, 5, b, &n_b), 0);
    ck_assert_uint_eq(n_b, 5);
    free(points);
}

/* The framework's own choice, which has no parameters, is always measured: exports compare with it. */
MF_TEST(odd_name_is_in_the_first_round)
{
    static double us[N_POINTS];
    static size_t selected[N_POINTS];
    make_space(false);
    name_list[777] = "default";
    _cleanup_(mf_freep) struct mf_points *p = NULL;
    ck_assert_int_eq(mf_points_new(name_list, N_POINTS, &p), 0);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        const struct mf_halving h = {.points = p, .us = us, .seed = seed};
        size_t n, i = 0;
        ck_assert_int_eq(mf_halving_next(&h, N_POINTS, selected, &n), 0);
        while (i < n && selected[i] != 777)
            i++;
        ck_assert_uint_lt(i, n);
    }
    free(points);
}

/* Small spaces are measured as a whole; names without parameters do not keep a search from ending. */
MF_TEST(spaces_of_all_sizes_end)
{
    static const size_t sizes[] = {0, 1, 2, MF_HALVING_LEAST - 1, MF_HALVING_LEAST, 500};
    static const char *same[500];
    static double us[500];
    static size_t selected[500];
    make_space(false);
    for (size_t k = 0; k < 2 * MF_ARRAY_LEN(sizes); k++) {
        size_t size = sizes[k / 2], n, n_measured = 0;
        _cleanup_(mf_freep) struct mf_points *p = NULL;
        for (size_t i = 0; i < size; i++)
            same[i] = "kernel";
        ck_assert_int_eq(mf_points_new(k % 2 ? same : name_list, size, &p), 0);
        memset(us, 0, sizeof(us));
        do {
            const struct mf_halving h = {.points = p, .us = us};
            ck_assert_int_eq(mf_halving_next(&h, size, selected, &n), 0);
            for (size_t i = 0; i < n; i++) {
                ck_assert_double_eq(us[selected[i]], 0);
                us[selected[i]] = (double)(1 + selected[i]);
            }
            n_measured += n;
        } while (n > 0);
        ck_assert_uint_le(n_measured, mf_halving_max(size));
        if (size < MF_HALVING_LEAST)
            ck_assert_uint_eq(n_measured, size);
    }
    free(points);
}

int main(void)
{
    return mf_check_main(NULL);
}
