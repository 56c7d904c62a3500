#include "support/kernels/family_pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/codec.h"
#include "support/kernels/covering.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* Token counts near block sizes. A layer with 0 tokens is invalid: mf_shape_check() rejects it
 * (test_no_tokens). */
static const int tokens[] = {1, 3, 4, 63, 64, 65, 257};
/* Hidden and intermediate sizes that are not powers of two, and whose quotients under tensor parallelism are
 * odd. */
static const int widths[] = {64, 96, 256, 352, 704, 1408, 2880};
static const int experts[] = {1, 8, 33, 128, 257, 384, 512};
static const int topks[] = {1, 2, 6, 8, 9};
static const float limits[] = {0, 1.5f};
/* Expert parallelism. The layer has `all` times the number of local experts, plus 1 expert. If `all` is 0,
 * there is no expert parallelism. The local experts are the last experts if `last` is true; otherwise they
 * begin at expert 1. If `all` is 64, most tokens (often every token) have no local expert. */
static const struct {
    int all;
    bool last;
} shares[] = {{0, false}, {1, true}, {2, false}, {64, true}};
static const char *const isas[] = {NULL, "avx2", "c"};

enum factor { TOKEN, MODEL, INTER, EXPERT, TOPK, ACT, LIMIT, WEIGHT, BIAS, SHARE, FORMAT, ISA, N_FACTORS };

#define CASES_MAX      600
#define IMPOSSIBLE_MAX 300

static bool is_legal(const int *row);

static const struct covering covering = {
    .n_factors = N_FACTORS,
    .n_values = {MF_ARRAY_LEN(tokens), MF_ARRAY_LEN(widths), MF_ARRAY_LEN(widths), MF_ARRAY_LEN(experts),
                 MF_ARRAY_LEN(topks), MF_ACT_N_, MF_ARRAY_LEN(limits), 2, 4, MF_ARRAY_LEN(shares),
                 CONTRACT_N_FORMATS, MF_ARRAY_LEN(isas)},
    .legal = is_legal,
};

static struct pairs {
    struct pairs_plan plan;
    struct pairs_budget budget; /* budget for which rows are generated at the moment */
    int rows[CASES_MAX][COVERING_FACTORS];
    struct covering_pair impossible[IMPOSSIBLE_MAX];
    struct covering_set set;
    int part, n_parts;
} pairs; /* global, because libcheck passes only an index to loop tests */

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

/* Gives each factor that is not chosen yet its cheapest and most permissive value. */
static void choose_rest(const int *row, int *full)
{
    for (int f = 0; f < N_FACTORS; f++)
        full[f] = row[f] >= 0 ? row[f] : 0;
    if (row[LIMIT] < 0)
        full[LIMIT] = row[ACT] == MF_ACT_SILU_STEP; /* SILU_STEP requires a limit */
    if (row[ACT] < 0)
        full[ACT] = row[LIMIT] > 0 ? MF_ACT_SILU : MF_ACT_NO;
    if (row[SHARE] < 0)
        /* the most experts, so that topk does not exceed their number */
        full[SHARE] = MF_ARRAY_LEN(shares) - 1;
    if (row[FORMAT] < 0)
        full[FORMAT] = CONTRACT_N_FORMATS - 1; /* a 4-bit format, which has the smallest weights */
    struct mf_shape s = shape_of(full);
    for (int v = 0; row[INTER] < 0 && mf_shape_splits_blocks(&s) && v < (int)MF_ARRAY_LEN(widths); v++) {
        full[INTER] = v;
        s = shape_of(full);
    }
}

static bool is_legal(const int *row)
{
    int full[COVERING_FACTORS];
    const char *column, *why;

    choose_rest(row, full);
    struct mf_shape s = shape_of(full), most = s;
    double products = 3.0 * (double)s.token * s.topk * s.model_dim * s.inter_dim;
    double weights = 3.0 * s.expert * s.model_dim * s.inter_dim * mf_dtype_bits(s.q_dtype_w) / 8;
    bool vectors = row[ISA] != (int)MF_ARRAY_LEN(isas) - 1;
    if (row[EXPERT] < 0 && s.ep_experts == 0)
        most.expert = experts[MF_ARRAY_LEN(experts) - 1];
    return mf_shape_check(&most, &column, &why) == 0 && weights <= (double)pairs.budget.weight_bytes &&
           products <= pairs.budget.products * (vectors ? 1 : 0.1);
}

static const char *isa_name(const int *row)
{
    return isas[row[ISA]] ? isas[row[ISA]] : "best";
}

/* Checks case number `at` if this part of the test contains it. */
static void check_shape(int at, const struct mf_shape *s, const char *isa, const char *two_stage)
{
    const char *const families[] = {two_stage, "one_stage", "move", "onednn"};

    if (at % pairs.n_parts != pairs.part || !mf_draw(at, pairs.plan.drawn_every))
        return;
    if (at / pairs.n_parts % pairs.plan.all_cores_every != 0)
        contract_pin_core(pairs.part);
    struct mf_device *d = contract_device(isa);
    if (!d)
        return;
    const struct contract_run run = {.device = d,
                                     .families = families,
                                     .n_families = MF_ARRAY_LEN(families),
                                     .shape = s,
                                     .most = pairs.plan.steps,
                                     .first = at};
    (void)contract_check_some(&run);
    (void)mf_device_close(d);
}

static int n_pairs(void)
{
    return pairs.set.n;
}

MF_TEST(test_pairs, .count_rows = n_pairs)
{
    const int *row = pairs.rows[_i];
    struct mf_shape s = shape_of(row);

    check_shape(_i, &s, isas[row[ISA]], contract_formats[row[FORMAT]].family);
}

/* Cases with combinations of sizes that the grid does not contain. */
/* clang-format off */
static const struct contract_case corners[] = {
    /* T     H     I    E    k  */
    {  1, 2880,  352,   8,   8, MF_ACT_SWIGLU, false},  /* every expert has one row */
    {  4,   64,   64, 512, 127, MF_ACT_SILU,   false},  /* maximum number of slots in a packed id */
    /* one expert has all rows, and its last block has one row */
    {257,   64,   32,   1,   1, MF_ACT_SILU,   true},
    {  3,   96, 2880,   8,   9 - 1, MF_ACT_GELU, true},
    /* only row layouts are possible; topk equals the number of experts */
    { 64,  200,  136,  33,  33, MF_ACT_SILU,   false},
    /* the last group of 32 values with a common scale is short */
    {  4, 1408,   40, 128,   6, MF_ACT_SILU,   false},
};
/* clang-format on */

MF_TEST(test_corners, .rows = MF_ARRAY_LEN(corners) * CONTRACT_N_FORMATS)
{
    const struct contract_format *f = &contract_formats[_i % CONTRACT_N_FORMATS];
    int at = _i / CONTRACT_N_FORMATS;
    struct mf_shape s = contract_shape(&corners[at], f);

    check_shape(_i, &s, isas[(at + _i) % 2], f->family);
}

MF_TEST(test_no_tokens)
{
    struct mf_shape s = shape_of(pairs.rows[0]);
    const char *column, *why;

    s.token = 0;
    ck_assert_int_lt(mf_shape_check(&s, &column, &why), 0);
    ck_assert_str_eq(column, "token");
}

static const char *const factors[N_FACTORS] = {"token", "model_dim", "inter_dim", "expert", "topk",   "act",
                                               "limit", "doweight",  "biases",    "share",  "format", "isa"};

static void print_value(int f, int v, char text[64])
{
    const int *const numbers[N_FACTORS] = {
        [TOKEN] = tokens, [MODEL] = widths, [INTER] = widths, [EXPERT] = experts, [TOPK] = topks};
    const struct contract_format *format = &contract_formats[v];

    if (numbers[f])
        mf_format(text, 64, "%s %d", factors[f], numbers[f][v]);
    else if (f == FORMAT)
        mf_format(text, 64, "%s, %s, %s", mf_qtype_name(format->q_type), mf_dtype_name(format->a),
                  mf_dtype_name(format->w));
    else if (f == ISA)
        mf_format(text, 64, "isa %s", isas[v] ? isas[v] : "best");
    else if (f == ACT)
        mf_format(text, 64, "%s", mf_act_name((enum mf_act)v));
    else if (f == LIMIT)
        mf_format(text, 64, "limit %g", (double)limits[v]);
    else
        mf_format(text, 64, "%s %d", factors[f], v);
}

static bool some_row_has(const struct covering_pair *p)
{
    for (int i = 0; i < pairs.set.n; i++) {
        if (pairs.rows[i][p->f] == p->v && pairs.rows[i][p->g] == p->u)
            return true;
    }
    return false;
}

static bool is_impossible(const struct covering_pair *p)
{
    for (int i = 0; i < pairs.set.n_impossible; i++) {
        const struct covering_pair *q = &pairs.impossible[i];
        if (q->f == p->f && q->v == p->v && q->g == p->g && q->u == p->u)
            return true;
    }
    return false;
}

/* Checks the generated rows: each value of each factor is in at least one row, and so is each pair that fits
 * the budget. */
MF_TEST(test_all_pairs)
{
    int n_held = 0, n_values = 0;

    ck_assert_int_lt(pairs.set.n, CASES_MAX);
    ck_assert_int_le(pairs.set.n_impossible, IMPOSSIBLE_MAX);
    for (int f = 0; f < N_FACTORS; f++) {
        for (int v = 0; v < covering.n_values[f]; v++) {
            ck_assert(some_row_has(&(struct covering_pair){f, v, f, v}));
            n_values++;
            for (int g = f + 1; g < N_FACTORS; g++) {
                for (int u = 0; u < covering.n_values[g]; u++) {
                    struct covering_pair p = {f, v, g, u};
                    bool held = some_row_has(&p);
                    ck_assert(held != is_impossible(&p));
                    n_held += held;
                }
            }
        }
    }
    printf("%d values of %d factors and %d pairs of them are covered; %d pairs exceed the budget\n", n_values,
           N_FACTORS, n_held, pairs.set.n_impossible);
}

static void make_rows(void)
{
    uint64_t seed = mf_draw_state.seed;
    char text[MF_SHAPE_TEXT_MAX], a[64], b[64];

    pairs.set = (struct covering_set){.rows = pairs.rows,
                                      .cap = CASES_MAX,
                                      .impossible = pairs.impossible,
                                      .cap_impossible = IMPOSSIBLE_MAX};
    for (int i = 0; i < PAIRS_BUDGETS && pairs.plan.budgets[i].weight_bytes > 0; i++) {
        pairs.budget = pairs.plan.budgets[i];
        covering_add(&covering, seed, &pairs.set);
        printf("weights of at most %lld MiB: %d cases\n", (long long)(pairs.budget.weight_bytes >> 20),
               pairs.set.n);
    }
    for (int i = 0; i < pairs.set.n; i++) {
        struct mf_shape s = shape_of(pairs.rows[i]);
        mf_shape_print(&s, text);
        printf("%d: %s on %s\n", i, text, isa_name(pairs.rows[i]));
    }
    for (int i = 0; i < MF_MIN(pairs.set.n_impossible, IMPOSSIBLE_MAX); i++) {
        const struct covering_pair *p = &pairs.impossible[i];
        print_value(p->f, p->v, a);
        print_value(p->g, p->u, b);
        printf("over budget: %s with %s\n", a, b);
    }
    (void)fflush(stdout);
}

static bool parse_part(const char *text)
{
    return sscanf(text, "%d/%d", &pairs.part, &pairs.n_parts) == 2 && pairs.part-- >= 1 &&
           pairs.part < pairs.n_parts;
}

int pairs_main(const struct pairs_plan *plan, int argc, char **argv)
{
    pairs.plan = *plan;
    pairs.n_parts = 1;
    if (argc > 1 && !parse_part(argv[1])) {
        (void)fprintf(stderr, "%s: '%s': expected a part such as 1/2\n", argv[0], argv[1]);
        return EXIT_FAILURE;
    }
    mf_draw_start();
    make_rows();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300});
}
