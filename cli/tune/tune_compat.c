/* Applies AITER's additive rule to a farm's measurements, for the profile table of -o2 and for --compat. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/support/api.h"
#include "cli/support/compat_table.h"
#include "cli/support/file.h"
#include "cli/support/shape_arg.h"
#include "cli/tune/tune.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "common/table/table_file.h"
#include "common/table/table_merge.h"

#define PROVENANCE     "moefarm:compat"
#define CANDIDATES_MAX (256u << 20)

/* ---- a farm's steps as candidates ---- */

/* Sets stage and flat of a kernel that computes the whole layer, with the same meaning as in
 * server/api/export.c. */
static void set_one_stage(mf_ops covers, int32_t block_m, struct mf_compat_candidate *c)
{
    c->stage = covers & MF_OP_BIT(MF_OP_QUANT1) ? MF_COMPAT_ONE_XBF16 : MF_COMPAT_ONE;
    if (covers & MF_OP_BIT(MF_OP_SORT))
        c->flat = block_m > 1 ? 2 : 1;
}

/* Sets the stage of a candidate. Returns false if AITER's rule has no stage for such a step. */
static bool set_stage(mf_ops covers, int32_t block_m, struct mf_compat_candidate *c)
{
    bool one = covers & MF_OP_BIT(MF_OP_GEMM1), two = covers & MF_OP_BIT(MF_OP_GEMM2);

    c->block_m = block_m;
    c->fused = one && !two && (covers & MF_OP_BIT(MF_OP_QUANT2));
    if (one && two)
        set_one_stage(covers, block_m, c);
    else if (one || two)
        c->stage = one ? MF_COMPAT_STAGE1 : MF_COMPAT_STAGE2;
    else if (covers == MF_OP_BIT(MF_OP_SORT))
        c->stage = MF_COMPAT_SORT;
    else if (covers == MF_OP_BIT(MF_OP_QUANT1))
        c->stage = MF_COMPAT_QUANT1;
    else if (covers == MF_OP_BIT(MF_OP_QUANT2))
        c->stage = MF_COMPAT_QUANT2;
    else
        return false;
    return true;
}

static int add_step(struct mf_compat_table *t, const struct mf_device_class *class,
                    const struct mf_shape *shape, const cJSON *step)
{
    struct mf_compat_candidate c = {.us = mf_api_double(step, "us", 0), .err = mf_api_double(step, "err", 0)};
    mf_ops covers;

    mf_format(c.name, sizeof(c.name), "%s", mf_api_text(step, "name", ""));
    if (mf_ops_parse(mf_api_text(step, "covers", ""), &covers) < 0 ||
        !set_stage(covers, (int32_t)mf_api_i64(step, "block_m", 0), &c))
        return 0;
    return mf_compat_table_add(t, class, shape, &c);
}

/* Adds the task's candidates that passed every gate to `t`. If no candidate passed, `t` stays empty. Returns
 * the exit code. */
static int fetch_steps(struct mf_cli *cli, const cJSON *task, struct mf_compat_table *t)
{
    _cleanup_(cJSON_Deletep) cJSON *steps = NULL;
    const cJSON *step;
    struct mf_device_class class;
    struct mf_shape shape;
    char path[MF_API_PATH_MAX];
    int r = 0;

    if (strcmp(mf_api_text(task, "state", ""), "done") != 0 ||
        mf_api_shape(mf_json_object(task, "shape"), &shape) < 0 ||
        mf_device_class_parse(mf_api_text(task, "class", ""), &class) < 0)
        return 0;
    mf_api_path(path, "/api/v1/tasks/{}/steps?status=ok", mf_api_i64(task, "id", 0));
    int code = mf_api_list(cli, path, &steps);
    cJSON_ArrayForEach (step, steps) {
        if (code == 0 && r == 0)
            r = add_step(t, &class, &shape, step);
    }
    return r < 0 ? mf_cli_out_of_memory() : code;
}

/* ---- files ---- */

static int append_rows(struct mf_table *table, void *data, char why[MF_REASON_MAX])
{
    const struct mf_table *fresh = data;
    int r = 0;

    mf_format(why, MF_REASON_MAX, "out of memory");
    for (size_t i = 0; i < fresh->n_rows && r == 0; i++)
        r = mf_table_add(table, &fresh->rows[i]);
    return r;
}

static int merge(const char *path, const struct mf_table *rows, bool replace, struct mf_merge_result *result)
{
    char why[MF_REASON_MAX] = "";

    if (mf_table_file_merge(path, -1, rows, &(struct mf_merge_options){.replace = replace}, result, why) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s; the file is unchanged", path, why);
    return 0;
}

static void print_kernels(const struct mf_compat_row *row, struct mf_buf *out)
{
    (void)mf_buf_addf(out, "%s%s%s, %.4f us", row->kernel1, *row->kernel2 ? " | " : "", row->kernel2,
                      row->us);
    if (row->added > 0)
        (void)mf_buf_addf(out, ", including %.4f us added by the rule", row->added);
}

/* Prints the additive rule's winner and the race's winner of a shape. */
static void print_comparison(const struct mf_compat_shape *s, const struct mf_compat_row *best,
                             const struct mf_tune_outcome *raced, struct mf_buf *out)
{
    char brief[MF_SHAPE_BRIEF_MAX], class[MF_DEVICE_CLASS_TEXT_MAX], kernels[2 * MF_COMPAT_NAME_MAX + 8];

    mf_shape_brief(&s->shape, brief);
    mf_device_class_print(&s->class, class);
    mf_format(kernels, sizeof(kernels), "%s%s%s", best->kernel1, *best->kernel2 ? " | " : "", best->kernel2);
    (void)mf_buf_addf(out, "%s  %s\n  sum   ", class, brief);
    print_kernels(best, out);
    if (raced && raced->end == MF_TUNE_TUNED)
        (void)mf_buf_addf(out, "\n  race  %s, %.4f us end to end%s\n", raced->kernels, raced->us,
                          strcmp(kernels, raced->kernels) == 0 ? ": the same" : "");
    else
        (void)mf_buf_adds(out, "\n  race  no row\n");
}

/* ---- a batch ---- */

struct ranked {
    /* all: the merged tables of all shapes; best: only the winner of each shape */
    struct mf_table *all, *best;
    struct mf_buf candidates; /* every candidate, in the format of a recorded table */
};

static void release_ranked(struct ranked *r)
{
    mf_table_free(r->all);
    mf_table_free(r->best);
    mf_buf_release(&r->candidates);
}

static int rank_task(struct mf_tune_run *run, const cJSON *task, struct ranked *ret)
{
    _cleanup_(mf_compat_table_release) struct mf_compat_table t = {.n = 0};
    _cleanup_(mf_freep) struct mf_compat_row *rows = NULL;
    size_t n, best;
    int code = fetch_steps(run->cli, task, &t);

    if (code != 0 || t.n == 0)
        return code;
    const struct mf_compat_shape *s = &t.shapes[0];
    mf_compat_table_print(&t, false, &ret->candidates);
    int r = mf_compat_rank(&s->shape, s->candidates, s->n, run->options->err_ratio, &rows, &n, &best);
    if (r == -ENOENT)
        return 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = mf_compat_add_row(ret->all, s, &rows[i], NULL);
    if (r == 0)
        r = mf_compat_add_row(ret->best, s, &rows[best], PROVENANCE);
    if (r == 0 && run->options->compat)
        print_comparison(s, &rows[best], mf_tune_outcomes_find(&run->outcomes, &s->class, &s->shape),
                         run->compat);
    return r < 0 ? mf_cli_fail(MF_EXIT_FAILED, "cannot build the additive rule's table: %s",
                               strerrordesc_np(-r))
                 : 0;
}

/* Appends the candidates of a batch to the run's file, for a later --candidates. Replaces the file
 * atomically. */
static int keep_candidates(const struct mf_tune_run *run, const struct mf_buf *fresh)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char path[MF_TUNE_PATH_MAX + 32];

    mf_buf_init(&text, CANDIDATES_MAX);
    mf_format(path, sizeof(path), "%s/" MF_TUNE_CANDIDATES_FILE, run->state->folder);
    int code = access(path, F_OK) == 0 ? mf_file_read(path, &text) : 0;
    if (text.len == 0)
        mf_compat_table_print(&(struct mf_compat_table){.n = 0}, true, &text);
    if (mf_buf_add(&text, fresh->data, fresh->len) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: larger than %u MiB; remove it", path, CANDIDATES_MAX >> 20);
    return code != 0 ? code : mf_file_write(path, text.data, text.len);
}

int mf_tune_compat(struct mf_tune_run *run, const cJSON *tasks)
{
    _cleanup_(release_ranked) struct ranked ranked = {.all = NULL};
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    const struct mf_tune_options *o = run->options;
    char path[MF_TUNE_PATH_MAX + 32], why[MF_REASON_MAX] = "";
    const cJSON *task;
    int code = 0;

    mf_buf_init(&ranked.candidates, CANDIDATES_MAX);
    if (mf_table_new("profile", true, &ranked.all) < 0 || mf_table_new("compat", true, &ranked.best) < 0)
        return mf_cli_out_of_memory();
    cJSON_ArrayForEach (task, tasks) {
        if (code == 0)
            code = rank_task(run, task, &ranked);
    }
    if (code == 0 && *o->profile_file && ranked.all->n_rows > 0 &&
        mf_table_file_update(o->profile_file, -1, append_rows, ranked.all, why) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "-o2: %s: %s", o->profile_file, why);
    mf_format(path, sizeof(path), "%s/" MF_TUNE_COMPAT_FILE, run->state->folder);
    if (code == 0 && ranked.candidates.len > 0)
        code = keep_candidates(run, &ranked.candidates);
    if (code == 0 && o->compat && ranked.best->n_rows > 0)
        code = merge(path, ranked.best, true, &result);
    return code;
}

/* ---- a recorded table ---- */

static int replay_shape(const struct mf_compat_shape *s, double err_ratio, struct mf_table *rows,
                        struct mf_tune_outcomes *outcomes)
{
    _cleanup_(mf_freep) struct mf_compat_row *ranked = NULL;
    size_t n, best;
    int r = mf_tune_outcomes_add(outcomes, &s->class, &s->shape);

    if (r < 0)
        return r;
    struct mf_tune_outcome *o = &outcomes->items[outcomes->n - 1];
    r = mf_compat_rank(&s->shape, s->candidates, s->n, err_ratio, &ranked, &n, &best);
    if (r == -ENOENT) {
        o->end = MF_TUNE_FAILED;
        mf_format(o->reason, sizeof(o->reason),
                  "no usable kernels: each of the %zu candidates lacks a time, has an error above %g or has "
                  "no counterpart in the other stage",
                  s->n, err_ratio);
        return 0;
    }
    if (r == 0)
        r = mf_compat_add_row(rows, s, &ranked[best], PROVENANCE);
    if (r == 0)
        mf_format(o->kernels, sizeof(o->kernels), "%s%s%s", ranked[best].kernel1,
                  *ranked[best].kernel2 ? " | " : "", ranked[best].kernel2);
    return r;
}

static void note_rows(const struct mf_table *rows, const struct mf_merge_result *result,
                      struct mf_tune_outcomes *outcomes)
{
    for (size_t i = 0; i < rows->n_rows; i++) {
        const struct mf_table_row *row = &rows->rows[i];
        struct mf_tune_outcome *o = mf_tune_outcomes_find(outcomes, &row->class, &row->shape);
        o->end = MF_TUNE_TUNED;
        o->us = row->us;
        o->tflops = row->tflops;
        o->bw = row->bw;
        mf_format(o->merge_status, sizeof(o->merge_status), "%s", mf_merged_name(result->items[i].what));
    }
}

int mf_tune_replay(const struct mf_tune_options *o, const char *table, const struct mf_table *tuned,
                   struct mf_tune_outcomes *outcomes)
{
    _cleanup_(mf_compat_table_release) struct mf_compat_table t = {.n = 0};
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    _cleanup_(mf_table_freep) struct mf_table *rows = NULL;
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    size_t n_tuned = 0;

    mf_buf_init(&text, CANDIDATES_MAX);
    int code = mf_file_read(o->candidates, &text), r = 0;
    if (code != 0)
        return code;
    if (mf_compat_table_read(text.data, text.len, &t, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--candidates: %s: %s", o->candidates, why);
    r = mf_table_new("compat", true, &rows);
    for (size_t i = 0; i < t.n && r == 0; i++) {
        if (!o->all && mf_table_find(tuned, &t.shapes[i].class, &t.shapes[i].shape))
            n_tuned++;
        else
            r = replay_shape(&t.shapes[i], o->err_ratio, rows, outcomes);
    }
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "--candidates: %s", strerrordesc_np(-r));
    printf("%s: %zu shapes, %zu are tuned already\n", o->candidates, t.n, n_tuned);
    code = rows->n_rows > 0 ? merge(table, rows, o->all, &result) : 0;
    if (code == 0)
        note_rows(rows, &result, outcomes);
    return code;
}
