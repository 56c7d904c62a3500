/* moefarm compare: compares two tuned tables row by row. Runs both with the production operator on one
 * device. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/compare_report.h"
#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"

#define ROUNDS_MAX 100000

struct compare {
    struct mf_cli *cli;
    const char *shape, *min_effect;
    int64_t seed;
    bool is_aa;
    struct mf_compare_plan plan;
    struct mf_shape_pattern pattern; /* parsed from `shape`; valid only if that is not NULL */
    struct mf_bench bench;
    struct mf_bench_rows tables[MF_SIDES]; /* with --aa, the same file is read twice */
    struct mf_compare_sum sum;
    cJSON *rows; /* NULL: print text instead of JSON */
};

/* Parses --min-effect: "3%" or "0.03". */
static int read_min_effect(struct compare *c)
{
    bool percent;
    double value;

    if (mf_parse_percent(c->min_effect, &value, &percent) < 0 || value < 0 ||
        (percent ? value / 100 : value) >= 1)
        return mf_cli_fail(MF_EXIT_USAGE, "--min-effect '%s': expected less than 100%%, as 3%% or 0.03",
                           c->min_effect);
    c->plan.rule.least_effect = percent ? value / 100 : value;
    return 0;
}

static int read_plan(struct compare *c)
{
    char why[MF_REASON_MAX];
    int code = read_min_effect(c);

    if (code != 0)
        return code;
    if (!(c->plan.rule.confidence > 0 && c->plan.rule.confidence < 1))
        return mf_cli_fail(MF_EXIT_USAGE, "--confidence %g: expected a number above 0 and below 1",
                           c->plan.rule.confidence);
    if (!(c->plan.seconds >= 0))
        return mf_cli_fail(MF_EXIT_USAGE, "--seconds %g: expected 0 or more", c->plan.seconds);
    if (c->shape && mf_shape_pattern_parse(c->shape, &c->pattern, why, sizeof(why)) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--shape: %s", why);
    c->plan.seed = c->seed >= 0 ? (uint64_t)c->seed : mf_now_ns() / 1000 % 1000000;
    return 0;
}

static int report(struct compare *c, const struct mf_compared *row)
{
    cJSON *item;

    mf_compare_count(&c->sum, row);
    if (!c->rows) {
        mf_compare_print_row(row);
        return 0;
    }
    item = mf_compare_row_json(row);
    if (!item || !cJSON_AddItemToArray(c->rows, item))
        return mf_cli_out_of_memory();
    return 0;
}

static const struct mf_bench_row *find(const struct mf_bench_rows *rows, const struct mf_shape *shape)
{
    for (size_t i = 0; i < rows->n; i++) {
        if (mf_shape_equal(&rows->items[i].shape, shape))
            return &rows->items[i];
    }
    return NULL;
}

static bool is_selected(const struct compare *c, const struct mf_shape *shape)
{
    return !c->shape || mf_shape_pattern_match(&c->pattern, shape);
}

static int compare_row(struct compare *c, size_t number, const struct mf_bench_row *old)
{
    struct mf_compared row = {.row = {[MF_SIDE_OLD] = old}};
    int code = 0;

    row.row[MF_SIDE_NEW] = find(&c->tables[MF_SIDE_NEW], &old->shape);
    if (!row.row[MF_SIDE_NEW])
        return report(c, &row);
    row.is_same = !c->is_aa && strcmp(old->names, row.row[MF_SIDE_NEW]->names) == 0;
    if (!row.is_same)
        code = mf_compare_rows(&c->bench, &c->plan, number, &row);
    return code != 0 ? code : report(c, &row);
}

static int compare_tables(struct compare *c)
{
    const struct mf_bench_rows *old = &c->tables[MF_SIDE_OLD], *new = &c->tables[MF_SIDE_NEW];
    int code = 0;

    for (size_t i = 0; i < old->n && code == 0; i++) {
        if (is_selected(c, &old->items[i].shape))
            code = compare_row(c, i, &old->items[i]);
    }
    for (size_t i = 0; i < new->n &&code == 0; i++) {
        const struct mf_compared alone = {.row = {[MF_SIDE_NEW] = &new->items[i]}};

        if (is_selected(c, &new->items[i].shape) && !find(old, &new->items[i].shape))
            code = report(c, &alone);
    }
    return code;
}

static int print_json(struct compare *c, const char *device)
{
    cJSON *all = mf_compare_sum_json(&c->sum, &c->plan, device);
    int code;

    if (!all || !cJSON_AddItemToObject(all, "rows", c->rows)) {
        cJSON_Delete(all);
        return mf_cli_out_of_memory();
    }
    c->rows = NULL;
    code = mf_api_print(all);
    cJSON_Delete(all);
    return code;
}

static int run(struct compare *c, const struct mf_bench_options *options, const char *old, const char *new)
{
    int code = mf_bench_open(&c->bench, options, c->cli->operators);

    if (code == 0)
        code = mf_bench_rows_open(&c->tables[MF_SIDE_OLD], &c->bench, old);
    if (code == 0)
        code = mf_bench_rows_open(&c->tables[MF_SIDE_NEW], &c->bench, new);
    if (code != 0)
        return code;
    if (c->cli->json && !(c->rows = cJSON_CreateArray()))
        return mf_cli_out_of_memory();
    if (!c->rows)
        mf_compare_print_header(&c->plan, c->bench.device->info.model);
    code = compare_tables(c);
    if (code == 0 && c->rows)
        code = print_json(c, c->bench.device->info.model);
    else if (code == 0)
        mf_compare_print_sum(&c->sum, c->is_aa);
    if (code != 0)
        return code;
    /* With --aa, a SLOWER verdict is a false positive of this command and does not fail the table. */
    return c->sum.n_wrong > 0 || (c->sum.n[MF_PAIRED_SLOWER] > 0 && !c->is_aa) ? MF_EXIT_FAILED : MF_EXIT_OK;
}

int mf_cmd_compare(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct compare c = {
        .cli = cli,
        .min_effect = "3%",
        .seed = -1,
        .plan = {
            .rule = {.confidence = MF_PAIRED_CONFIDENCE}, .rounds = 12, .max_rounds = 192, .seconds = 20}};
    struct mf_bench_options options = MF_BENCH_DEFAULTS;
    struct mf_opt opts[8 + MF_BENCH_OPTS] = {
        {.name = "shape",
         .type = MF_OPT_TEXT,
         .value = &c.shape,
         .argument = "SHAPE",
         .help = "only rows that match these columns: token=4,model_dim=2048,q_type=No"},
        {.name = "min-effect",
         .type = MF_OPT_TEXT,
         .value = &c.min_effect,
         .argument = "X",
         .help = "minimum change of a FASTER or SLOWER row, relative to the old time"},
        {.name = "confidence",
         .type = MF_OPT_DOUBLE,
         .value = &c.plan.rule.confidence,
         .argument = "X",
         .help = "confidence of each verdict, over all looks at the row"},
        {.name = "rounds",
         .type = MF_OPT_INT,
         .value = &c.plan.rounds,
         .argument = "N",
         .help = "rounds before the first look, one sample per side in each; doubled while AMBIGUOUS",
         .min = 1,
         .max = ROUNDS_MAX},
        {.name = "max-rounds",
         .type = MF_OPT_INT,
         .value = &c.plan.max_rounds,
         .argument = "N",
         .help = "maximum rounds per row",
         .min = 1,
         .max = ROUNDS_MAX},
        {.name = "seconds",
         .type = MF_OPT_DOUBLE,
         .value = &c.plan.seconds,
         .argument = "S",
         .help = "time limit per row in seconds; checked at each look"},
        {.name = "order-seed",
         .type = MF_OPT_INT,
         .value = &c.seed,
         .argument = "N",
         .help = "seed of the order within each round; -1: taken from the clock",
         .min = -1,
         .max = INT64_C(1) << 53},
        {.name = "aa",
         .type = MF_OPT_BOOL,
         .value = &c.is_aa,
         .help = "compare one TABLE with itself to count the false verdicts"},
    };
    int rest, r, code;

    mf_bench_opts(&options, opts + 8);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (c.is_aa != (argc - rest == 1))
        return mf_cli_fail(MF_EXIT_USAGE, "compare: expected OLD and NEW, or --aa and one TABLE");
    code = read_plan(&c);
    if (code == 0 && mf_operators_run(cli, &options.operators, options.device, &code))
        return code;
    if (code == 0)
        code = run(&c, &options, argv[rest], argv[argc - 1]);
    for (enum mf_side i = 0; i < MF_SIDES; i++)
        mf_bench_rows_close(&c.tables[i]);
    mf_bench_close(&c.bench);
    cJSON_Delete(c.rows);
    return code;
}
