/* Submits batches of shapes, follows them, and merges each finished row into the table. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/tune/tune.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/batch_options.h"
#include "common/table/table_file.h"
#include "common/table/table_merge.h"

#define BODY_MAX (16u << 20) /* maximum request body of moefarmd */

struct batch {
    struct mf_tune_run *run;
    struct mf_tune_pending pending;
    int64_t id;
    /* true: the farm rejected the content, so that no batch exists and a retry cannot succeed */
    bool refused;
    size_t merged; /* number of done tasks when the table was last written */
    int failed;    /* exit code of the first on_tick call that failed; 0 if none */
};

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal)
{
    interrupted = signal;
}

/* The first signal ends the run cleanly: finished rows are merged and the farm is stopped. A second signal
 * kills the process. */
static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

    for (size_t i = 0; i < MF_ARRAY_LEN(signals); i++) {
        struct sigaction before;
        /* Keep ignored signals ignored, as under nohup. */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(signals[i],
                            &(struct sigaction){.sa_handler = note_interrupt, .sa_flags = (int)SA_RESETHAND},
                            NULL);
    }
}

/* ---- submitting ---- */

/* Adds an option. If the text is a number, adds it as a JSON number. Skips NULL. */
static void add_option(cJSON *options, const char *name, const char *text)
{
    double number;

    if (text && mf_parse_double(text, &number) == 0)
        cJSON_AddNumberToObject(options, name, number);
    else if (text)
        cJSON_AddStringToObject(options, name, text);
}

static void add_count(cJSON *options, const char *name, int64_t number, bool given)
{
    if (given)
        (void)mf_json_add_i64(options, name, number);
}

/* Adds AITER's environment variables that differ from their initial values. */
static void add_env(cJSON *options, const struct mf_production_env *env)
{
    const struct mf_production_env initial = MF_PRODUCTION_ENV_INITIAL;

    add_count(options, "aiter_bf16_fp8_moe_bound", env->bf16_fp8_bound,
              env->bf16_fp8_bound != initial.bf16_fp8_bound);
    add_count(options, "aiter_situv2_a8w4", 1, env->situv2_a8w4);
    add_count(options, "aiter_situv2_a4w4", 1, env->situv2_a4w4);
}

static cJSON *make_options(const struct mf_tune_options *o, const struct mf_device_class *class)
{
    char text[MF_DEVICE_CLASS_TEXT_MAX];
    cJSON *options = cJSON_CreateObject();
    const int64_t timeout_max_ms = (int64_t)mf_batch_option_find("time_cap_ms")->max;

    mf_device_class_print(class, text);
    add_option(options, "classes", text);
    cJSON_AddNumberToObject(options, "err_ratio", o->err_ratio);
    add_count(options, "topk", o->topk, true);
    add_count(options, "time_budget", o->time_budget_s, o->time_budget_s > 0);
    add_count(options, "time_cap_ms", MF_MIN(o->timeout_s * 1000, timeout_max_ms), o->timeout_s > 0);
    add_count(options, "warmup", o->warmup, o->warmup >= 0);
    add_count(options, "iters", o->iters, o->iters >= 0);
    add_count(options, "split_k", 0, !o->split_k);
    add_count(options, "shape_grouped", 1, o->shape_grouped);
    add_option(options, "routing", o->routing);
    add_option(options, "consumer",
               o->consumers == MF_CONSUMER_BIT(MF_CONSUMER_MOEFARM) ? NULL : o->consumer);
    add_env(options, &o->env.env);
    add_option(options, "promote", o->compare ? "improved" : NULL);
    if (o->compare)
        cJSON_AddNumberToObject(options, "min_effect", o->min_improvement_pct / 100);
    return options;
}

/* Returns the options as a text that identifies the batches of this run, or NULL if out of memory. */
static char *print_options(const struct mf_tune_options *o, const struct mf_device_class *class)
{
    _cleanup_(cJSON_Deletep) cJSON *options = make_options(o, class);

    return mf_json_print(options);
}

static int make_csv(const struct mf_shape *shapes, size_t n, struct mf_buf *csv)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX] = "out of memory";
    int r = mf_table_new("shapes", false, &t);

    for (size_t i = 0; i < n && r == 0; i++)
        r = mf_table_add(t, &(struct mf_table_row){.shape = shapes[i]});
    if (r == 0)
        r = mf_table_write(t, MF_TABLE_ALL, csv, why);
    return r < 0 ? mf_cli_fail(MF_EXIT_FAILED, "%s", why) : 0;
}

/* Returns true if the farm rejected the content of the request. Returns false for authentication, timeout and
 * rate limit errors, because the same request may succeed later. */
static bool is_refusal(long status)
{
    static const long others[] = {401, 403, 408, 429};

    for (size_t i = 0; i < MF_ARRAY_LEN(others); i++) {
        if (status == others[i])
            return false;
    }
    return status >= 400 && status < 500;
}

/* Submits the recorded batch. A second submission returns the same batch, because the record stores the
 * idempotency key. If the farm rejects the batch, deletes the record, because the record would make every
 * later run fail. */
static int submit(struct batch *b)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    _cleanup_(cJSON_Deletep) cJSON *receipt = NULL;
    const struct mf_tune_pending *p = &b->pending;

    mf_http_reply_init(&reply);
    int code = mf_api_send(b->run->cli,
                           &(struct mf_http_request){.method = "POST",
                                                     .path = "/api/v1/batches",
                                                     .idempotency_key = p->key,
                                                     .content_type = "application/json",
                                                     .body = p->body,
                                                     .body_len = strlen(p->body)},
                           &reply);
    b->refused = is_refusal(reply.status);
    if (b->refused)
        mf_tune_pending_done(p);
    if (code != 0)
        return code;
    receipt = mf_api_parse(reply.body.data, reply.body.len);
    b->id = mf_api_i64(receipt, "batch", 0);
    return b->id > 0
               ? 0
               : mf_cli_fail(MF_EXIT_UNREACHED, "the reply has no batch; check that the URL is moefarmd's");
}

/* ---- merging ---- */

static const char *consumer_of(const struct batch *b)
{
    return b->run->options->for_aiter ? "aiter" : "moefarm";
}

/* Fetches the batch's rows. The rows have moefarm's columns after AITER's columns, so that a later run
 * recognises the rows as moefarm's. */
static int fetch_rows(struct batch *b, struct mf_table **ret)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    char path[MF_API_PATH_MAX], why[MF_REASON_MAX] = "out of memory";

    mf_format(path, sizeof(path),
              "/api/v1/export/tuned_fmoe.csv?batch=%" PRId64 "&consumer=%s&provenance=1%s", b->id,
              consumer_of(b), b->run->options->simulated ? "&simulated=1" : "");
    mf_http_reply_init(&reply);
    int code = mf_api_table(b->run->cli, path, NULL, &reply);
    if (code != 0)
        return code;
    return mf_table_read("export", reply.body.data, reply.body.len, ret, why) < 0
               ? mf_cli_fail(MF_EXIT_UNREACHED, "the export is not a table: %s", why)
               : 0;
}

static void note_merged(struct batch *b, const struct mf_table_row *row, const struct mf_merge_item *item)
{
    struct mf_tune_outcome *o = mf_tune_outcomes_find(&b->run->outcomes, &row->class, &row->shape);

    if (!o || o->end == MF_TUNE_TUNED)
        return;
    /* With --compare, a foreign row that stays in the table counts as tuned, because it was compared with the
     * new row. */
    bool kept = item->what == MF_MERGED_FOREIGN && b->run->options->compare;
    o->end = item->what == MF_MERGED_FOREIGN && !kept ? MF_TUNE_REMAINING : MF_TUNE_TUNED;
    o->us = row->us;
    o->tflops = row->tflops;
    o->bw = row->bw;
    mf_format(o->merge_status, sizeof(o->merge_status), "%s",
              mf_merged_name(kept ? MF_MERGED_KEPT : item->what));
    mf_format(o->reason, sizeof(o->reason), "%s", item->what == MF_MERGED_ADDED ? "" : item->reason);
    mf_format(o->kernels, sizeof(o->kernels), "%s%s%s", row->kernel1 ? row->kernel1 : "",
              mf_table_no_kernel(row->kernel2) ? "" : " | ",
              mf_table_no_kernel(row->kernel2) ? "" : row->kernel2);
}

/* Merges all finished rows of the batch into the table. Rows that an earlier call merged stay unchanged. */
static int merge(struct batch *b)
{
    _cleanup_(mf_table_freep) struct mf_table *fresh = NULL;
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX] = "";
    int code = fetch_rows(b, &fresh);

    if (code != 0 || fresh->n_rows == 0)
        return code;
    if (mf_table_file_merge(
            b->run->table, -1, fresh,
            &(struct mf_merge_options){.replace = b->run->options->all && !b->run->options->update_improved},
            &result, why) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s; the file is unchanged", b->run->table, why);
    for (size_t i = 0; i < result.n_items; i++)
        note_merged(b, &fresh->rows[i], &result.items[i]);
    return 0;
}

static int on_tick(void *context, const struct mf_progress *progress)
{
    struct batch *b = context;
    size_t done = mf_progress_count(progress, MF_TASK_DONE);
    int code = 0;

    if (interrupted) {
        b->run->interrupted = true;
        return MF_EXIT_FAILED;
    }
    if (b->run->farm)
        code = mf_tune_farm_check(b->run->farm);
    if (code == 0 && done > b->merged) {
        code = merge(b);
        if (code == 0)
            b->merged = done;
    }
    if (b->failed == 0)
        b->failed = code;
    return b->failed;
}

/* ---- outcomes ---- */

static void note_task(struct batch *b, const cJSON *task)
{
    struct mf_device_class class;
    struct mf_shape shape;
    struct mf_tune_outcome *o;
    const char *state = mf_api_text(task, "state", "");

    if (mf_api_shape(mf_json_object(task, "shape"), &shape) < 0 ||
        mf_device_class_parse(mf_api_text(task, "class", ""), &class) < 0)
        return;
    o = mf_tune_outcomes_find(&b->run->outcomes, &class, &shape);
    if (o)
        mf_format(o->unstable, sizeof(o->unstable), "%s", mf_api_text(task, "unstable", ""));
    if (!o || o->end == MF_TUNE_TUNED)
        return;
    if (strcmp(state, "failed") == 0)
        o->end = MF_TUNE_FAILED;
    if (!o->reason[0])
        mf_format(o->reason, sizeof(o->reason), "%s", mf_api_text(task, "reason", ""));
    if (!o->reason[0] && strcmp(state, "done") != 0)
        mf_format(o->reason, sizeof(o->reason), "%s", state);
}

/* Records why the export omits a finished row. */
static void note_left_out(struct batch *b, const cJSON *item)
{
    struct mf_device_class class;
    struct mf_shape shape;
    struct mf_tune_outcome *o;

    if (mf_shape_parse(mf_api_text(item, "shape", ""), &shape) < 0 ||
        mf_device_class_parse(mf_api_text(item, "class", ""), &class) < 0)
        return;
    o = mf_tune_outcomes_find(&b->run->outcomes, &class, &shape);
    if (o && o->end == MF_TUNE_REMAINING)
        mf_format(o->reason, sizeof(o->reason), "%s", mf_api_text(item, "reason", ""));
}

static int note_tasks(struct batch *b)
{
    _cleanup_(cJSON_Deletep) cJSON *tasks = NULL;
    const cJSON *task;
    char path[MF_API_PATH_MAX];

    mf_api_path(path, "/api/v1/batches/{}/tasks", b->id);
    int code = mf_api_list(b->run->cli, path, &tasks);
    cJSON_ArrayForEach (task, tasks)
        note_task(b, task);
    if (code == 0 && b->run->options->compare)
        code = mf_tune_compared(b->run->cli, tasks, b->run->compared);
    if (code == 0 && (b->run->options->compat || *b->run->options->profile_file))
        code = mf_tune_compat(b->run, tasks);
    return code;
}

static int note_outcomes(struct batch *b)
{
    _cleanup_(cJSON_Deletep) cJSON *items = NULL;
    const cJSON *item;
    char path[MF_API_PATH_MAX];

    int code = note_tasks(b);
    mf_format(path, sizeof(path), "/api/v1/export/left_out?batch=%" PRId64 "&consumer=%s%s", b->id,
              consumer_of(b), b->run->options->simulated ? "&simulated=1" : "");
    if (code == 0)
        code = mf_api_list(b->run->cli, path, &items);
    cJSON_ArrayForEach (item, items)
        note_left_out(b, item);
    return code;
}

/* ---- one batch ---- */

/* Follows the batch to its end. Deletes its record when all its results are saved. */
static int follow(struct batch *b)
{
    struct mf_watch_options watch = {
        .reconnect_timeout_s = MF_WATCH_TIMEOUT_S, .on_tick = on_tick, .context = b};
    int code = mf_watch_batch(b->run->cli, b->id, &watch);

    if (b->run->interrupted) /* merge the rows that finished after the last on_tick call */
        return merge(b);
    /* Failed tasks do not end the run. A failed on_tick call ends the run, even though the batch may still be
     * running. */
    if (b->failed != 0 || (code != MF_EXIT_OK && code != MF_EXIT_FAILED))
        return b->failed != 0 ? b->failed : code;
    code = merge(b);
    if (code == 0)
        code = note_outcomes(b);
    if (code == 0)
        mf_tune_pending_done(&b->pending);
    return code;
}

static char *make_body(const struct mf_tune_run *run, const struct mf_tune_list *list, const char *csv,
                       const char *baseline)
{
    const char *file = run->options->untune_file, *slash = strrchr(file, '/');
    _cleanup_(cJSON_Deletep) cJSON *body = cJSON_CreateObject();

    cJSON_AddStringToObject(body, "name", slash ? slash + 1 : file);
    cJSON_AddStringToObject(body, "csv", csv);
    cJSON_AddItemToObject(body, "options", make_options(run->options, &list->class));
    if (run->options->compare)
        cJSON_AddStringToObject(body, "baseline", baseline);
    return mf_json_print(body);
}

static int submit_new(struct batch *b, const struct mf_tune_list *list, size_t first, size_t n)
{
    _cleanup_(mf_buf_release) struct mf_buf csv, baseline;
    _cleanup_(mf_freep) char *options = print_options(b->run->options, &list->class);
    _cleanup_(mf_freep) char *body = NULL;

    mf_buf_init(&csv, BODY_MAX);
    mf_buf_init(&baseline, BODY_MAX);
    int code = make_csv(list->shapes + first, n, &csv);
    if (code == 0 && b->run->options->compare)
        code = mf_tune_baseline(b->run->known, &list->class, list->shapes + first, n, &baseline);
    if (code != 0)
        return code;
    body = make_body(b->run, list, csv.data, baseline.data);
    if (!options || !body)
        return mf_cli_out_of_memory();
    code = mf_tune_pending_add(b->run->state, b->run->farm_name, options, body, &b->pending);
    return code != 0 ? code : submit(b);
}

/* ---- batches of an earlier run ---- */

/* Removes the batch's shapes from this run's lists. Returns false if the batch does not belong to this run.
 */
static bool covers(struct mf_tune_run *run, const struct mf_tune_pending *p)
{
    _cleanup_(cJSON_Deletep) cJSON *body = mf_json_parse(p->body, strlen(p->body), BODY_MAX);
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    const char *csv = mf_api_text(body, "csv", "");
    char why[MF_REASON_MAX];
    bool any = false;

    if (mf_table_read("shapes", csv, strlen(csv), &t, why) < 0)
        return false;
    for (size_t i = 0; i < run->n_lists; i++) {
        _cleanup_(mf_freep) char *options = print_options(run->options, &run->lists[i].class);
        if (!options || strcmp(options, p->options) != 0)
            continue;
        any = true;
        for (size_t k = 0; k < t->n_rows; k++)
            (void)mf_tune_list_drop(&run->lists[i], &t->rows[k].shape);
    }
    return any;
}

/* Cancels a batch of an earlier run with other options, because the batch would occupy the devices that this
 * run needs. */
static int abandon(struct batch *b)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    char path[MF_API_PATH_MAX];

    mf_http_reply_init(&reply);
    int code = submit(b);
    if (b->refused) {
        printf("deleted the record of an earlier run with other options: the farm rejects its batch\n");
        return 0;
    }
    if (code != 0)
        return code;
    mf_api_path(path, "/api/v1/batches/{}/cancel", b->id);
    printf("cancelling batch %" PRId64 " of an earlier run, which had other options\n", b->id);
    if (mf_http_send(b->run->cli->http, &(struct mf_http_request){.method = "POST", .path = path}, &reply) <
        0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "%s", mf_http_error(b->run->cli->http));
    mf_tune_pending_done(&b->pending);
    return code;
}

static int resume(struct mf_tune_run *run, struct mf_tune_pending *p)
{
    struct batch b = {.run = run, .pending = *p};

    if (!covers(run, p))
        return abandon(&b);
    int code = submit(&b);
    if (code == 0) {
        printf("resuming batch %" PRId64 " of an earlier run\n", b.id);
        code = follow(&b);
    }
    return code;
}

static int resume_all(struct mf_tune_run *run)
{
    struct mf_tune_pending *list = NULL;
    size_t n = 0;
    int code = mf_tune_pending_list(run->state, run->farm_name, &list, &n);

    for (size_t i = 0; i < n; i++) {
        if (code == 0 && !run->interrupted)
            code = resume(run, &list[i]);
        mf_tune_pending_release(&list[i]);
    }
    free(list);
    return code;
}

/* ---- all batches ---- */

/* Submits one batch per class at the same time, because the classes use different devices. Each batch has the
 * shapes of the class's list from index `first` on. */
static int tune_part(struct mf_tune_run *run, size_t first)
{
    _cleanup_(mf_freep) struct batch *batches = calloc(run->n_lists, sizeof(*batches));
    size_t max_shapes = (size_t)run->options->batch;
    int code = batches ? 0 : mf_cli_out_of_memory();

    for (size_t i = 0; i < run->n_lists && code == 0; i++) {
        const struct mf_tune_list *l = &run->lists[i];
        batches[i].run = run;
        if (l->n > first)
            code = submit_new(&batches[i], l, first, MF_MIN(l->n - first, max_shapes));
    }
    for (size_t i = 0; batches && i < run->n_lists; i++) {
        if (batches[i].id > 0 && code == 0 && !run->interrupted)
            code = follow(&batches[i]);
        mf_tune_pending_release(&batches[i].pending);
    }
    return code;
}

int mf_tune_run(struct mf_tune_run *run)
{
    size_t max_shapes = 0, step = (size_t)run->options->batch;

    catch_signals();
    int code = resume_all(run);
    for (size_t i = 0; i < run->n_lists; i++)
        max_shapes = MF_MAX(max_shapes, run->lists[i].n);
    for (size_t first = 0; first < max_shapes && code == 0 && !run->interrupted; first += step)
        code = tune_part(run, first);
    return code;
}
