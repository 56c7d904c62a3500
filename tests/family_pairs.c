#include "family_pairs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "covering.h"
#include "family_contract.h"
#include "kernels/codec.h"
#include "mf_check.h"

#include "common/cleanup.h"

/* Token counts around what blocks hold. 0 is no layer: mf_shape_check() refuses it (test_no_tokens). */
static const int tokens[] = {1, 3, 4, 63, 64, 65, 257};
/* Widths of models that are no power of two, at ranks of tensor parallelism that make them odd. */
static const int widths[] = {64, 96, 352, 704, 1408, 2880};
static const int experts[] = {1, 8, 33, 128, 257, 384, 512};
static const int topks[] = {1, 2, 6, 8, 9};
static const float limits[] = {0, 1.5f};
/* All ranks' experts, in times of those that are here and one more; a rank at the end, or from expert 1 on. Of 64 times most
 * tokens have no route that is here, and often none has. */
static const struct {
    int all;
    bool last;
} shares[] = {{0, false}, {1, true}, {2, false}, {64, true}};
static const char *const isas[] = {NULL, "avx2", "c"};

enum factor { TOKEN, MODEL, INTER, EXPERT, TOPK, ACT, LIMIT, WEIGHT, BIAS, SHARE, FORMAT, ISA, N_FACTORS };

#define CASES_MAX 600
#define SEED      20

static struct pairs {
    struct pairs_budget budget;
    int rows[CASES_MAX][COVERING_FACTORS];
    int n;
} pairs; /* check's loop tests take an index only */

static struct mf_shape shape_of(const int *row)
{
    struct contract_case c = {.token = tokens[row[TOKEN]],
                              .model_dim = widths[row[MODEL]],
                              .inter_dim = widths[row[INTER]],
                              .expert = experts[row[EXPERT]],
                              .topk = topks[row[TOPK]],
                              .act = (enum mf_act)row[ACT],
                              .doweight = row[WEIGHT] == 1};
    struct mf_shape s = contract_shape(&c, &contract_formats[row[FORMAT]]);

    s.act_limit = limits[row[LIMIT]];
    s.has_b1 = row[BIAS] & 1;
    s.has_b2 = row[BIAS] & 2;
    if (shares[row[SHARE]].all > 0) {
        s.ep_experts = s.expert * shares[row[SHARE]].all + 1;
        s.ep_first = shares[row[SHARE]].last ? s.ep_experts - s.expert : 1;
    }
    return s;
}

static int64_t weight_bytes(const struct mf_shape *s)
{
    return 3LL * s->expert * s->model_dim * s->inter_dim * mf_dtype_bits(s->q_dtype_w) / 8;
}

/* What is not chosen yet counts as the least there is. */
static bool is_legal(const int *row)
{
    int full[COVERING_FACTORS], cheap_format = CONTRACT_N_FORMATS - 1;
    const char *column, *why;

    for (int f = 0; f < N_FACTORS; f++)
        full[f] = row[f] >= 0 ? row[f] : f == FORMAT ? cheap_format : 0;
    struct mf_shape s = shape_of(full);
    double products = 3.0 * (double)s.token * s.topk * s.model_dim * s.inter_dim;
    bool vectors = row[ISA] != (int)MF_ARRAY_LEN(isas) - 1;
    if (row[EXPERT] < 0)
        s.expert = s.topk;
    return mf_shape_check(&s, &column, &why) == 0 && weight_bytes(&s) <= pairs.budget.weight_bytes &&
           products <= pairs.budget.products * (vectors ? 1 : 0.2);
}

static const char *isa_name(const int *row)
{
    return isas[row[ISA]] ? isas[row[ISA]] : "best";
}

static void check_shape(const struct mf_shape *s, const char *isa, const char *two_stage, int most, int first)
{
    const char *const families[] = {two_stage, "one", "move", "lib"};
    struct mf_device *d = contract_device(isa);

    if (!d)
        return;
    const struct contract_run run = {.device = d,
                                     .families = families,
                                     .n_families = MF_ARRAY_LEN(families),
                                     .shape = s,
                                     .most = most,
                                     .first = first};
    (void)contract_check_some(&run);
    (void)mf_device_close(d);
}

START_TEST(test_pairs)
{
    const int *row = pairs.rows[_i];
    struct mf_shape s = shape_of(row);

    check_shape(&s, isas[row[ISA]], contract_formats[row[FORMAT]].family, pairs.budget.steps, _i);
}
END_TEST

/* What the widths of the grid cannot hold at once. */
/* clang-format off */
static const struct contract_case corners[] = {
    /* T     H     I    E    k  */
    {  1, 2880,  352,   8,   8, MF_ACT_SWIGLU, false},  /* every expert has one row */
    {  4,   64,   64, 512, 127, MF_ACT_SILU,   false},  /* the most slots of a packed id */
    {257,   64,   32,   1,   1, MF_ACT_SILU,   true},   /* one expert has all rows, the last block one */
    {  3,   96, 2880,   8,   9 - 1, MF_ACT_GELU, true},
    { 64,  200,  136,  33,  33, MF_ACT_SILU,   false},  /* only row layouts; topk is all experts */
    {  4, 1408,   40, 128,   6, MF_ACT_SILU,   false},  /* scales of 32 end in a short group */
};
/* clang-format on */

START_TEST(test_corners)
{
    const struct contract_format *f = &contract_formats[_i % CONTRACT_N_FORMATS];
    int at = _i / CONTRACT_N_FORMATS;
    struct mf_shape s = contract_shape(&corners[at], f);

    check_shape(&s, isas[(at + _i) % 2], f->family, pairs.budget.steps, _i);
}
END_TEST

START_TEST(test_no_tokens)
{
    struct mf_shape s = shape_of(pairs.rows[0]);
    const char *column, *why;

    s.token = 0;
    ck_assert_int_lt(mf_shape_check(&s, &column, &why), 0);
    ck_assert_str_eq(column, "token");
}
END_TEST

static void make_rows(void)
{
    struct covering c = {.n_factors = N_FACTORS,
                         .n_values = {MF_ARRAY_LEN(tokens), MF_ARRAY_LEN(widths), MF_ARRAY_LEN(widths),
                                      MF_ARRAY_LEN(experts), MF_ARRAY_LEN(topks), MF_ACT_N_,
                                      MF_ARRAY_LEN(limits), 2, 4, MF_ARRAY_LEN(shares), CONTRACT_N_FORMATS,
                                      MF_ARRAY_LEN(isas)},
                         .legal = is_legal};
    const char *asked = getenv("MOEFARM_TEST_SEED");
    uint64_t seed = asked ? strtoull(asked, NULL, 10) : SEED;
    int dropped;

    pairs.n = covering_make(&c, seed, pairs.rows, CASES_MAX, &dropped);
    printf("seed %llu (MOEFARM_TEST_SEED): %d cases, %d pairs in no case of that budget\n",
           (unsigned long long)seed, pairs.n, dropped);
    for (int i = 0; i < pairs.n; i++) {
        char text[MF_SHAPE_TEXT_MAX];
        struct mf_shape s = shape_of(pairs.rows[i]);
        mf_shape_print(&s, text);
        printf("%d: %s on %s\n", i, text, isa_name(pairs.rows[i]));
    }
    (void)fflush(stdout);
}

int pairs_main(const char *name, const struct pairs_budget *budget)
{
    Suite *suite = suite_create(name);
    TCase *grid = tcase_create("pairs"), *named = tcase_create("corners");

    pairs.budget = *budget;
    make_rows();
    tcase_set_timeout(grid, 300);
    tcase_set_timeout(named, 300);
    tcase_add_loop_test(grid, test_pairs, 0, pairs.n);
    tcase_add_loop_test(named, test_corners, 0, (int)MF_ARRAY_LEN(corners) * CONTRACT_N_FORMATS);
    tcase_add_test(named, test_no_tokens);
    suite_add_tcase(suite, grid);
    suite_add_tcase(suite, named);
    return mf_check_main(suite);
}
