/* moefarm tune: runs the steps of the command in order. The steps are implemented in cli/tune. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/support/shape_arg.h"
#include "cli/tables/config_files.h"
#include "cli/tune/tune_input.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/table/table_file.h"

#define SUMMARY_MAX (64u << 20)

struct tune {
    struct mf_tune_options o;
    struct mf_tune_input in;
    struct mf_tune_list lists[MF_TUNE_CLASSES_MAX]; /* one list per device class of the input */
    struct mf_tune_state state;
    struct mf_tune_farm *farm;
    int64_t begun_ms;
};

static void release(struct tune *t)
{
    mf_tune_input_release(&t->in);
    for (size_t i = 0; i < t->in.n_classes; i++)
        mf_tune_list_release(&t->lists[i]);
    t->farm = mf_tune_farm_stop(t->farm);
    mf_tune_state_close(&t->state);
    free(t);
}
MF_DEFINE_CLEANUP(struct tune *, release);

/* ---- shapes to tune ---- */

static void print_skipped(const struct tune *t, const struct mf_tune_list *l)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX];

    mf_device_class_print(&l->class, class);
    printf("%s: %zu shapes to tune", class, l->n);
    if (l->n_tuned > 0)
        printf(", %zu are already tuned", l->n_tuned);
    if (l->n_elsewhere > 0)
        printf(", %zu are in other tables than %s; to tune them again, put their table first in -o",
               l->n_elsewhere, t->in.paths[0]);
    printf("\n");
    for (size_t i = 0; t->o.verbose && i < l->n_tuned; i++) {
        char shape[MF_SHAPE_BRIEF_MAX];
        mf_shape_brief(&l->tuned[i], shape);
        printf("  already tuned: %s\n", shape);
    }
}

static int make_lists(struct tune *t, struct mf_tune_outcomes *outcomes)
{
    struct mf_tune_choice choice = {
        .all = t->o.all, .last = t->o.last, .for_aiter = t->o.for_aiter, .env = t->o.env.env};
    int r = 0;

    for (size_t i = 0; i < t->in.n_classes && r == 0; i++) {
        struct mf_tune_list *l = &t->lists[i];
        r = mf_tune_list_make(t->in.untuned, (const struct mf_table *const *)t->in.tuned, t->in.n_tables,
                              &t->in.classes[i], &choice, l);
        if (r == 0)
            print_skipped(t, l);
        for (size_t k = 0; k < l->n && r == 0; k++)
            r = mf_tune_outcomes_add(outcomes, &l->class, &l->shapes[k]);
    }
    return r < 0 ? mf_cli_out_of_memory() : 0;
}

/* ---- end of the run ---- */

static int sort_rows(struct mf_table *table, void *data, char why[MF_REASON_MAX])
{
    (void)data;
    mf_format(why, MF_REASON_MAX, "out of memory");
    return mf_table_sort(table);
}

static int sort_table(const struct tune *t)
{
    char why[MF_REASON_MAX] = "";

    if (t->o.sorted && mf_table_file_update(t->in.paths[0], -1, sort_rows, NULL, why) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s; the file is unchanged", t->in.paths[0], why);
    return 0;
}

static int summarise(const struct tune *t, const struct mf_tune_run *run, int code)
{
    _cleanup_(mf_buf_release) struct mf_buf out;
    struct mf_tune_totals totals = {.status = run->interrupted ? "Interrupted"
                                              : code != 0      ? "Error"
                                                               : "Finished",
                                    .seconds = (double)(mf_now_ms() - t->begun_ms) / 1000,
                                    .n_unreadable = t->in.untuned ? t->in.untuned->n_strays : 0,
                                    .verbose = t->o.verbose};

    mf_buf_init(&out, SUMMARY_MAX);
    mf_tune_summary(&run->outcomes, &totals, &out);
    (void)fwrite(out.data, 1, out.len, stdout);
    if (run->interrupted)
        printf("run the same command again to continue%s\n",
               run->farm ? "" : "; the batch continues on the farm (moefarm batches, moefarm cancel)");
    if (code != 0)
        return code;
    return mf_tune_outcomes_count(&run->outcomes, MF_TUNE_TUNED) == run->outcomes.n &&
                   totals.n_unreadable == 0
               ? MF_EXIT_OK
               : MF_EXIT_FAILED;
}

static int start_farm(struct tune *t, struct mf_cli *cli)
{
    printf("starting a farm of %zu device%s, state and logs in %s:", t->in.n_devices,
           t->in.n_devices == 1 ? "" : "s", t->state.folder);
    for (size_t i = 0; i < t->in.n_devices; i++)
        printf(" %s", t->in.devices[i].name);
    printf("\n");
    int code = mf_tune_farm_start(&(struct mf_tune_farm_options){.folder = t->state.folder,
                                                                 .devices = t->in.devices,
                                                                 .n = t->in.n_devices,
                                                                 .families = t->o.families,
                                                                 .python = t->o.python,
                                                                 .modules = &t->o.modules,
                                                                 .aiter_dir = t->o.aiter_dir},
                                  &t->farm);
    if (code != 0)
        return code;
    cli->url = mf_tune_farm_url(t->farm);
    printf("status page: %s/\n", cli->url);
    (void)fflush(stdout);
    return 0;
}

/* Checks that the table is a regular file. Called before the table is read, because reading a FIFO would not
 * end, and before the state folder is created next to the table. */
static int check_table(const struct tune *t)
{
    char why[MF_REASON_MAX];

    return mf_table_file_check_path(t->in.paths[0], why) < 0 ? mf_cli_fail(MF_EXIT_USAGE, "-o: %s", why) : 0;
}

/* Checks that the output files are writable, before hours of tuning. */
static int check_outputs(const struct tune *t)
{
    char why[MF_REASON_MAX];
    bool written = !t->o.compare || t->o.update_improved || t->o.sorted;

    if (written && mf_table_file_check(t->in.paths[0], -1, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "-o: %s", why);
    if (*t->o.profile_file && mf_table_file_check(t->o.profile_file, -1, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "-o2: %s", why);
    return 0;
}

/* Counts the batches that earlier runs submitted and did not finish. Even if no shape is left to tune, the
 * last rows of these batches may be missing from the table. */
static int count_pending(const struct tune *t, const char *farm_name, size_t *ret)
{
    struct mf_tune_pending *list = NULL;
    int code = mf_tune_pending_list(&t->state, farm_name, &list, ret);

    for (size_t i = 0; i < *ret; i++)
        mf_tune_pending_release(&list[i]);
    free(list);
    return code;
}

/* ---- --compare ---- */

/* Reports the known rows that cannot be compared, because they are unreadable or because this build cannot
 * run them. */
static int check_known(const struct tune *t)
{
    const struct mf_table *known = t->in.tuned[0];
    _cleanup_(mf_buf_release) struct mf_buf out;

    mf_buf_init(&out, SUMMARY_MAX);
    if (known->op != MF_TABLE_FMOE || !known->tuned)
        return mf_cli_fail(MF_EXIT_USAGE, "-o: %s: --compare expects a tuned_fmoe.csv", t->in.paths[0]);
    mf_tune_print_unreadable(t->in.paths[0], known);
    mf_tune_print_foreign(known, t->lists, t->in.n_classes, t->o.verbose, &out);
    (void)fwrite(out.data, 1, out.len, stdout);
    (void)fflush(stdout);
    return 0;
}

/* Returns the file for the new rows. Used without --update_improved, when the table stays unchanged. The name
 * is chosen so that production, which searches for tables, does not find the file. */
static const char *candidate_file(const struct tune *t, char path[MF_TUNE_PATH_MAX + 32])
{
    mf_format(path, MF_TUNE_PATH_MAX + 32, "%s/compare.candidate.csv", t->state.folder);
    return path;
}

static void print_compared(const struct tune *t, const struct mf_tune_run *run)
{
    if (!t->o.compare)
        return;
    printf("============= Compare Report =============\n"
           "Threshold: >= %.1f%% improvement to update %s\n",
           t->o.min_improvement_pct, t->in.paths[0]);
    (void)fwrite(run->compared->data, 1, run->compared->len, stdout);
    if (!t->o.update_improved)
        printf("Compare candidate CSV written to %s\n"
               "Final tuned CSV was not updated. Re-run with --update_improved to apply improved shapes.\n",
               run->table);
}

/* ---- --compat ---- */

static void print_compat(const struct tune *t, const struct mf_tune_run *run)
{
    if (!t->o.compat)
        return;
    printf("============= Additive rule compared with the race =============\n");
    (void)fwrite(run->compat->data, 1, run->compat->len, stdout);
    printf("rows by the additive rule: %s/" MF_TUNE_COMPAT_FILE "\n", t->state.folder);
}

/* Ranks a recorded table instead of running a farm. */
static int replay(struct tune *t)
{
    struct mf_tune_run run = {.options = &t->o, .table = t->in.paths[0]};

    t->begun_ms = mf_now_ms();
    int code = mf_tune_replay(&t->o, t->in.paths[0], t->in.tuned[0], &run.outcomes);
    if (code == 0)
        code = sort_table(t);
    code = summarise(t, &run, code);
    mf_tune_outcomes_release(&run.outcomes);
    return code;
}

/* ---- files of vLLM and SGLang ---- */

/* Writes the farm's configurations for the consumers that read a folder of files. */
static int export_configs(const struct tune *t, struct mf_cli *cli, const struct mf_command *self)
{
    int first = 0;

    for (enum mf_consumer c = 0; c < MF_CONSUMER_N_; c++) {
        char folder[MF_TUNE_PATH_MAX + 32];
        const char *name = mf_consumer_name(c);
        if (!(t->o.consumers & MF_CONSUMER_BIT(c)) || !mf_has_config_files(name))
            continue;
        mf_format(folder, sizeof(folder), "%s.%s", t->in.paths[0], name);
        const char *words[8] = {"export", "--consumer", name,
                                "-o",     folder,       t->o.simulated ? "--simulated" : NULL};
        int code = mf_cmd_export(cli, self, t->o.simulated ? 6 : 5, (char **)words);
        first = first != 0 ? first : code;
    }
    return first;
}

/* ---- the command ---- */

static int tune(struct tune *t, struct mf_cli *cli, const struct mf_command *self)
{
    _cleanup_(mf_tune_outcomes_release) struct mf_tune_outcomes outcomes = {.n = 0};
    _cleanup_(mf_buf_release) struct mf_buf compared, compat;
    char candidates[MF_TUNE_PATH_MAX + 32], old_candidates[MF_TUNE_PATH_MAX + 32];
    const char *farm_name = *cli->url ? cli->url : "own";
    size_t n_pending = 0;
    int code = make_lists(t, &outcomes), sorted;

    mf_buf_init(&compared, SUMMARY_MAX);
    mf_buf_init(&compat, SUMMARY_MAX);
    if (code == 0 && t->o.compare)
        code = check_known(t);
    if (code == 0)
        code = count_pending(t, farm_name, &n_pending);
    if (code != 0)
        return code;
    if (outcomes.n == 0 && n_pending == 0) {
        code = sort_table(t);
        printf("no shapes to be tuned, skip tuning, tuned file is %s\n", t->o.tune_file);
        return code != 0 ? code : t->in.untuned->n_strays > 0 ? MF_EXIT_FAILED : MF_EXIT_OK;
    }
    code = check_outputs(t);
    if (code != 0)
        return code;
    struct mf_tune_run run = {.cli = cli,
                              .options = &t->o,
                              .table = t->in.paths[0],
                              .known = t->in.tuned[0],
                              .compared = &compared,
                              .compat = &compat,
                              .farm_name = farm_name,
                              .state = &t->state,
                              .lists = t->lists,
                              .n_lists = t->in.n_classes,
                              .outcomes = outcomes};
    if (t->o.compare && !t->o.update_improved) {
        run.table = candidate_file(t, candidates);
        (void)unlink(run.table);
    }
    mf_format(old_candidates, sizeof(old_candidates), "%s/" MF_TUNE_CANDIDATES_FILE, t->state.folder);
    if (t->o.compat || *t->o.profile_file)
        (void)unlink(old_candidates);
    t->begun_ms = mf_now_ms();
    if (!*cli->url)
        code = start_farm(t, cli);
    run.farm = t->farm;
    if (code == 0)
        code = mf_tune_run(&run);
    if (code == 0 && !run.interrupted)
        code = export_configs(t, cli, self);
    sorted = sort_table(t);
    print_compared(t, &run);
    print_compat(t, &run);
    return summarise(t, &run, code != 0 ? code : sorted);
}

/* Runs --run_config like AITER's tuner. If it names a table, runs the rows of the table. Otherwise runs the
 * shapes of -i with the pipelines that production uses for shapes without a tuned row. */
static int run_config(struct mf_cli *cli, const struct mf_command *self, const struct mf_tune_options *o)
{
    char rounds[32], err_ratio[32];
    const char *words[16 + 2 * MF_OPERATORS_MAX] = {"run-config"};
    int n = 1;

    if (!*o->run_config)
        words[n++] = "--shapes";
    words[n++] = *o->run_config ? o->run_config : o->untune_file;
    mf_format(err_ratio, sizeof(err_ratio), "%g", o->err_ratio);
    words[n++] = "--err-ratio";
    words[n++] = err_ratio;
    mf_format(rounds, sizeof(rounds), "%" PRId64, o->iters);
    if (o->iters > 0) {
        words[n++] = "--rounds";
        words[n++] = rounds;
    }
    if (o->devices) {
        words[n++] = "--device";
        words[n++] = o->devices;
    }
    if (o->python) {
        words[n++] = "--python";
        words[n++] = o->python;
    }
    for (int i = 0; i < o->modules.n; i++) {
        words[n++] = "--family-py";
        words[n++] = o->modules.names[i];
    }
    return mf_cmd_run_config(cli, self, n, (char **)words);
}

int mf_cmd_tune(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(releasep) struct tune *t = calloc(1, sizeof(*t));
    struct mf_opt opts[MF_TUNE_N_OPTIONS];
    size_t n_opts;
    int rest, r, code;

    if (!t)
        return mf_cli_out_of_memory();
    t->state.lock = -1;
    mf_tune_defaults(&t->o);
    mf_tune_options(&t->o, opts, &n_opts);
    r = mf_cli_parse(cli, self, opts, n_opts, 0, 0, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = mf_tune_check(&t->o);
    if (code == 0)
        code = mf_tune_input_name(&t->in, t->o.tune_file);
    if (code != 0)
        return code;
    if (t->o.run_config)
        return run_config(cli, self, &t->o);
    code = check_table(t);
    if (code != 0)
        return code;
    if (t->o.candidates) {
        code = mf_tune_input_tables(&t->in);
        return code != 0 ? code : replay(t);
    }
    code = mf_tune_input_untuned(&t->in, t->o.untune_file);
    if (code == 0)
        code = mf_tune_state_open(t->o.state, t->in.paths[0], &t->state);
    if (code == 0)
        code = mf_tune_input_tables(&t->in);
    if (code == 0)
        code = mf_tune_input_classes(&t->in, &t->o, cli);
    if (code == 0)
        code = tune(t, cli, self);
    if (t->farm) /* the farm owns the URL and is freed on return */
        cli->url = "";
    return code;
}
