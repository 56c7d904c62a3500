/* moefarm run-config: runs the rows of a tuned table on this machine with the production operator: libfmoe's,
 * or that of AITER, vLLM or SGLang for their own tables (cli/bench/operators.h). With --shapes, runs a list
 * of shapes with the pipelines that production uses for shapes without a tuned row.
 *
 * Each row's pipeline runs on the data that the row was tuned on. It is verified by all gates of a race
 * (measure/race/entrant.h) and timed as in a race. The routing rotates over the experts, so that weights are
 * read from HBM or DRAM and not from a cache. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_rows.h"
#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/stats.h"
#include "common/base/text.h"
#include "measure/race/entrant.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"

#define ROUNDS_MAX 1001
#define PASSES     4

enum verdict { VERDICT_OK, VERDICT_SLOWER, VERDICT_FASTER, VERDICT_WRONG, VERDICT_REFUSED };
static const char *const verdict_names[] = {[VERDICT_OK] = "OK",
                                            [VERDICT_SLOWER] = "SLOWER",
                                            [VERDICT_FASTER] = "FASTER",
                                            [VERDICT_WRONG] = "WRONG",
                                            [VERDICT_REFUSED] = "REFUSED"};

struct run {
    struct mf_cli *cli;
    const char *shapes; /* list of shapes instead of a table; may be NULL */
    int64_t rounds;
    double slack; /* a row is OK if the ratio of the measured time to its time is 1 / slack to slack */
    struct mf_bench bench;
    struct mf_bench_rows rows;
    bool has_times;  /* true: a row has a time to compare with */
    double *samples; /* samples of one pass, in µs */
    size_t n_bad;
    cJSON *json;
};

/* The result of a row. */
struct outcome {
    const struct mf_bench_row *row;
    enum verdict verdict;
    char reason[MF_REASON_MAX]; /* why the row is wrong or refused */
    double measured_us;         /* lowest median of all passes; NAN if not timed */
    double err, row_err, row_limit;
};

static void report_json(struct run *run, const struct outcome *o)
{
    cJSON *item = cJSON_CreateObject();
    char shape[MF_SHAPE_TEXT_MAX];

    mf_shape_print(&o->row->shape, shape);
    cJSON_AddItemToArray(run->json, item);
    cJSON_AddStringToObject(item, "shape", shape);
    cJSON_AddStringToObject(item, "pipeline", o->row->names);
    cJSON_AddNumberToObject(item, "us", o->row->us); /* null without a table */
    cJSON_AddStringToObject(item, "model", o->row->model);
    cJSON_AddNumberToObject(item, "measured_us", o->measured_us); /* null if not timed */
    cJSON_AddNumberToObject(item, "ratio", o->measured_us / o->row->us);
    cJSON_AddNumberToObject(item, "ok_from", 1 / run->slack);
    cJSON_AddNumberToObject(item, "ok_to", run->slack);
    cJSON_AddNumberToObject(item, "mismatch", o->err);
    cJSON_AddNumberToObject(item, "row_error", o->row_err);
    cJSON_AddNumberToObject(item, "row_limit", o->row_limit);
    cJSON_AddBoolToObject(item, "reachable", o->row->reachable);
    cJSON_AddStringToObject(item, "unstable", o->row->unstable ? o->row->unstable : "");
    cJSON_AddStringToObject(item, "verdict", verdict_names[o->verdict]);
    cJSON_AddStringToObject(item, "reason", o->reason);
}

static void report_header(void)
{
    printf("verdict  %-44s %11s %11s %6s %9s %17s\n", "shape", "now", "table", "ratio", "mismatch",
           "worst row (limit)");
}

/* Prints a time; "-" for NAN. */
static void time_text(double us, char buf[MF_US_MAX])
{
    if (isnan(us))
        mf_format(buf, MF_US_MAX, "-");
    else
        mf_us(us, buf);
}

static bool is_out_of_time(enum verdict v)
{
    return v == VERDICT_SLOWER || v == VERDICT_FASTER;
}

static void report_text(const struct run *run, const struct outcome *o)
{
    char brief[MF_SHAPE_BRIEF_MAX], was[MF_US_MAX], is[MF_US_MAX], ratio[16] = "-";

    mf_shape_brief(&o->row->shape, brief);
    time_text(o->row->us, was);
    time_text(o->measured_us, is);
    if (!isnan(o->row->us))
        mf_format(ratio, sizeof(ratio), "%.2f", o->measured_us / o->row->us);
    printf("%-7s  %-44s %11s %11s", verdict_names[o->verdict], brief, is, was);
    if (isnan(o->measured_us))
        (void)putchar('\n');
    else
        printf(" %6s %8.2g%% %9.2g (%.2g)\n", ratio, 100 * o->err, o->row_err, o->row_limit);
    if (is_out_of_time(o->verdict))
        printf("         ratio %.3g, OK is %.3g to %.3g\n", o->measured_us / o->row->us, 1 / run->slack,
               run->slack);
    if (o->row->unstable)
        printf("         the table's time is unstable: %s\n", o->row->unstable);
    if (*o->reason)
        printf("         %s\n", o->reason);
    if (o->row->chosen)
        printf("         %s\n", o->row->chosen);
    if (!o->row->reachable)
        printf("         production never looks up this token count, only powers of two\n");
    (void)fflush(stdout);
}

static enum mf_status time_pass(struct run *run, struct mf_entrant *e, double *ret_us,
                                char reason[MF_REASON_MAX])
{
    for (int64_t i = 0; i < run->rounds; i++) {
        enum mf_status status = mf_entrant_sample(e, &run->samples[i], reason);

        if (status != MF_STATUS_OK)
            return status;
    }
    *ret_us = mf_median(run->samples, (size_t)run->rounds);
    return MF_STATUS_OK;
}

/* Times a row. Disturbances make a pass slower, never faster. A row that looks slower is therefore timed
 * again after a pause, and the lowest median of all passes decides. A row that is faster than the table says
 * has a wrong time, too: it was measured during a disturbance, or with other kernels or on another device. */
static enum mf_status time_row(struct run *run, struct mf_entrant *e, struct outcome *o)
{
    for (int pass = 0; pass < PASSES; pass++) {
        double us;
        enum mf_status status;

        if (pass > 0)
            mf_session_cool_down(e->buffers->session);
        status = time_pass(run, e, &us, o->reason);
        if (status != MF_STATUS_OK)
            return status;
        o->measured_us = fmin(o->measured_us, us);
        if (isnan(o->row->us))
            return MF_STATUS_OK;
        if (o->measured_us <= o->row->us * run->slack) {
            if (o->measured_us < o->row->us / run->slack)
                o->verdict = VERDICT_FASTER;
            return MF_STATUS_OK;
        }
    }
    o->verdict = VERDICT_SLOWER;
    return MF_STATUS_OK;
}

static int measure_row(struct run *run, struct outcome *o)
{
    struct mf_session *session = NULL;
    struct mf_race_buffers buffers;
    struct mf_entrant e;
    enum mf_status status;
    int code = mf_bench_session(o->row, &run->bench, &session);

    if (code != 0)
        return code;
    if (mf_race_buffers_init(&buffers, session) < 0) {
        mf_session_free(session);
        return mf_cli_out_of_memory();
    }
    status = mf_entrant_init(&e, &buffers, o->row->pipeline, o->reason);
    if (status == MF_STATUS_OK)
        status = mf_entrant_verify(&e, o->reason);
    if (status == MF_STATUS_OK)
        status = time_row(run, &e, o);
    if (status != MF_STATUS_OK)
        o->verdict = status == MF_STATUS_UNSUPPORTED ? VERDICT_REFUSED : VERDICT_WRONG;
    o->err = e.verdict.err;
    o->row_err = e.verdict.row_err;
    o->row_limit = e.verdict.row_limit;
    mf_session_free(session);
    return 0;
}

static int run_row(struct run *run, const struct mf_bench_row *row, struct outcome *o)
{
    *o = (struct outcome){.row = row, .measured_us = NAN, .err = NAN, .row_err = NAN, .row_limit = NAN};
    if (!row->refused)
        return measure_row(run, o);
    o->verdict = VERDICT_REFUSED;
    (void)mf_copy(o->reason, sizeof(o->reason), row->refused);
    return 0;
}

/* Prints text as rows finish, and JSON in table order. Rows that look slower run again after all other rows,
 * because a disturbance has usually ended by then. Their text is printed after the second run. */
static int run_rows(struct run *run)
{
    size_t n = run->rows.n;
    _cleanup_(mf_freep) struct outcome *all = calloc(n + 1, sizeof(*all));
    int code = 0;

    if (!all)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < n && code == 0; i++) {
        code = run_row(run, &run->rows.items[i], &all[i]);
        if (code == 0 && !run->json && all[i].verdict != VERDICT_SLOWER)
            report_text(run, &all[i]);
    }
    for (size_t i = 0; i < n && code == 0; i++) {
        bool again = all[i].verdict == VERDICT_SLOWER;
        if (again)
            code = run_row(run, &run->rows.items[i], &all[i]);
        if (code == 0 && run->json)
            report_json(run, &all[i]);
        else if (code == 0 && again)
            report_text(run, &all[i]);
        run->n_bad += all[i].verdict != VERDICT_OK;
        run->has_times |= !isnan(run->rows.items[i].us);
    }
    return code;
}

static void report_sum(const struct run *run)
{
    size_t n_foreign = run->rows.fmoe ? mf_fmoe_n_foreign(run->rows.fmoe) : 0;

    printf("%zu rows: %zu OK, %zu not OK", run->rows.n, run->rows.n - run->n_bad, run->n_bad);
    if (run->has_times)
        printf("; OK is a ratio of %.3g to %.3g", 1 / run->slack, run->slack);
    if (n_foreign > 0)
        printf("; %zu skipped", n_foreign);
    (void)putchar('\n');
}

static int run_table(struct run *run, const struct mf_bench_options *options, const char *path)
{
    int code = mf_bench_open(&run->bench, options, run->cli->operators);

    if (code == 0 && run->shapes)
        code = mf_bench_rows_choose(&run->rows, &run->bench, run->shapes);
    else if (code == 0)
        code = mf_bench_rows_open(&run->rows, &run->bench, path);
    if (code != 0)
        return code;
    run->samples = calloc((size_t)run->rounds, sizeof(*run->samples));
    run->json = run->cli->json ? cJSON_CreateArray() : NULL;
    if (!run->samples || (run->cli->json && !run->json))
        return mf_cli_out_of_memory();
    if (!run->json)
        report_header();
    code = run_rows(run);
    if (code != 0)
        return code;
    if (run->json)
        code = mf_api_print(run->json);
    else
        report_sum(run);
    return run->n_bad > 0 ? MF_EXIT_FAILED : code;
}

int mf_cmd_run_config(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct run run = {.cli = cli, .rounds = 11, .slack = 1.5};
    struct mf_bench_options options = MF_BENCH_DEFAULTS;
    struct mf_opt opts[3 + MF_BENCH_OPTS] = {
        {.name = "shapes",
         .type = MF_OPT_TEXT,
         .value = &run.shapes,
         .argument = "FILE",
         .help =
             "untuned list instead of TABLE; runs the pipelines that production uses without a tuned row"},
        {.name = "rounds",
         .type = MF_OPT_INT,
         .value = &run.rounds,
         .argument = "N",
         .help = "samples per row; more if the row looks slower",
         .min = 1,
         .max = ROUNDS_MAX},
        {.name = "slack",
         .type = MF_OPT_DOUBLE,
         .value = &run.slack,
         .argument = "X",
         .help = "maximum ratio of the measured time to the row's time, and of the row's to the measured"},
    };
    int rest, r, code;

    mf_bench_opts(&options, opts + 3);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if ((run.shapes != NULL) == (rest < argc))
        return mf_cli_fail(MF_EXIT_USAGE, "run-config: expected either TABLE or --shapes FILE");
    if (mf_operators_run(cli, &options.operators, options.device, &code))
        return code;
    code = run_table(&run, &options, argv[rest]);
    mf_bench_rows_close(&run.rows);
    mf_bench_close(&run.bench);
    free(run.samples);
    cJSON_Delete(run.json);
    return code;
}
