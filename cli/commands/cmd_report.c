/* moefarm report: compares the winners of a batch with the lower bound of their device, and prints how
 * workers spent their time, by phase.
 *
 * The lower bound ("floor") is the larger of two times. The first is the layer's minimum memory traffic in
 * bytes, divided by the device's read bandwidth. The second is the layer's FLOPs, divided by the device's
 * peak rate for the format. A worker measured the bandwidth and the peak rate. The bytes include the weights
 * of the experts that the race's routing selected. If the race does not report the number of these experts,
 * the average number under uniform routing is used. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/layer.h"

#define TEXT_MAX    (16u << 20)
#define BATCHES_MAX 64

/* A task of the report. Times are in µs; NAN if unknown. */
struct line {
    int64_t task;
    const char *class, *state; /* point into the task's JSON */
    struct mf_shape shape;
    double floor, us, mad, gemm;
    const char *unstable; /* why no measurement of us was accepted; "": it is accepted */
    struct mf_buf winner; /* "family:step + …", or why there is no winner */
};

/* Returns the device of the newest worker of that class and model, with its measured rates. */
static const cJSON *device_of(const cJSON *workers, const char *class, const char *model)
{
    const cJSON *w, *found = NULL;

    cJSON_ArrayForEach (w, workers) {
        if (strcmp(mf_api_text(w, "class", ""), class) == 0 &&
            (!*model || strcmp(mf_api_text(w, "model", ""), model) == 0))
            found = mf_json_object(w, "device");
    }
    return found;
}

/* Returns the lower bound in µs. `active` is the number of experts whose weights are read; 0: the average
 * number under uniform routing. */
static double floor_us(const struct mf_shape *s, const cJSON *device, int64_t active)
{
    const cJSON *peaks = mf_json_object(device, "peak_gflops");
    double reads = mf_api_double(device, "mem_read_gbs", 0), peak = mf_api_double(peaks, "bf16", 0);
    double fp8 = mf_api_double(peaks, "fp8", 0);

    if (mf_dtype_bits(s->q_dtype_a) <= 8 && fp8 > 0)
        peak = fp8;
    if (!(reads > 0) || !(peak > 0))
        return NAN;
    if (active == 0)
        active = llround(mf_layer_expected_active(s));
    return fmax(mf_layer_min_bytes(s, active) / (reads * 1e3), mf_layer_flops(s) / (peak * 1e3));
}

/* Reads the winner's step names and its GEMM time: the sum of the times of its steps with a GEMM, each step
 * measured alone. */
static int read_winner(struct mf_cli *cli, struct line *l)
{
    _cleanup_(cJSON_Deletep) cJSON *pipelines = NULL;
    char path[MF_API_PATH_MAX];
    const cJSON *p, *op;
    int code;

    mf_api_path(path, "/api/v1/tasks/{}/pipelines?finalists=1", l->task);
    code = mf_api_list(cli, path, &pipelines);
    cJSON_ArrayForEach (p, pipelines) {
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p, "winner")))
            continue;
        l->gemm = 0;
        cJSON_ArrayForEach (op, mf_json_array(p, "ops")) {
            mf_ops ops = 0;

            (void)mf_ops_parse(mf_api_text(op, "covers", ""), &ops);
            if (ops & (MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2)))
                l->gemm += mf_api_double(op, "us", NAN);
            (void)mf_buf_addf(&l->winner, "%s%s", l->winner.len ? " + " : "", mf_api_text(op, "name", "?"));
        }
        break;
    }
    return code;
}

/* Reads the number of experts that the routing of the task's race selected; 0 if unknown. */
static int read_active(struct mf_cli *cli, int64_t task, int64_t *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *detail = NULL;
    char path[MF_API_PATH_MAX];
    mf_api_path(path, "/api/v1/tasks/{}", task);
    int code = mf_api_get(cli, path, &detail);
    *ret = mf_api_i64(mf_json_object(mf_json_object(detail, "config"), "race"), "active_experts", 0);
    return code;
}

static int read_line(struct mf_cli *cli, const cJSON *task, const cJSON *workers, struct line *l)
{
    l->task = mf_api_i64(task, "id", 0);
    l->class = mf_api_text(task, "class", "");
    l->state = mf_api_text(task, "state", "");
    l->floor = l->gemm = NAN;
    l->us = mf_api_double(task, "us", NAN);
    l->mad = mf_api_double(task, "mad", NAN);
    l->unstable = mf_api_text(task, "unstable", "");
    if (mf_api_shape(mf_json_object(task, "shape"), &l->shape) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "task %" PRId64 ": unknown shape format; install a newer moefarm", l->task);
    int64_t active = 0;
    int code = l->us > 0 ? read_active(cli, l->task, &active) : 0;
    if (code != 0)
        return code;
    l->floor = floor_us(&l->shape, device_of(workers, l->class, mf_api_text(task, "model", "")), active);
    if (l->us > 0)
        return read_winner(cli, l);
    (void)mf_buf_addf(&l->winner, "%s%s%s", l->state, *mf_api_text(task, "reason", "") ? ": " : "",
                      mf_api_text(task, "reason", ""));
    return 0;
}

/* ---- text output ---- */

static void add_line(struct mf_columns *c, const struct line *l)
{
    char brief[MF_SHAPE_BRIEF_MAX];

    mf_shape_brief_layer_model(&l->shape, brief);
    mf_columns_add(c, brief);
    mf_columns_add(c, l->class);
    mf_columns_addf(c, "%" PRId64, l->shape.token);
    mf_columns_add_us(c, l->floor);
    mf_columns_add_us(c, l->us);
    if (isfinite(l->mad) && l->us > 0)
        mf_columns_addf(c, "%.2g%%", 100 * l->mad / l->us);
    else
        mf_columns_add(c, "-");
    mf_columns_add_us(c, l->us / l->floor);
    mf_columns_add_us(c, l->gemm);
    mf_columns_addf(c, "%s%s%s%s", *l->unstable ? "UNSTABLE (" : "", l->unstable, *l->unstable ? ") " : "",
                    l->winner.len ? l->winner.data : "");
}

static void print_worker(const cJSON *w)
{
    static const char *const phases[] = {"timing", "verify", "data", "load", "wait"};
    const cJSON *busy = mf_json_object(w, "busy"), *device = mf_json_object(w, "device");
    const cJSON *peaks = mf_json_object(device, "peak_gflops");

    printf("%s, %s (%s): %.0f%% of its time timing and verifying (", mf_api_text(w, "name", "?"),
           mf_api_text(w, "class", "?"), mf_api_text(w, "model", "?"),
           100 * (mf_api_double(busy, "timing", 0) + mf_api_double(busy, "verify", 0)));
    for (size_t i = 0; i < MF_ARRAY_LEN(phases); i++)
        printf("%s%s %.0f%%", i ? ", " : "", phases[i], 100 * mf_api_double(busy, phases[i], 0));
    printf("); reads %.0f GB/s, %.0f GFLOP/s in bf16", mf_api_double(device, "mem_read_gbs", 0),
           mf_api_double(peaks, "bf16", 0));
    if (mf_api_double(peaks, "fp8", 0) > 0)
        printf(", %.0f in fp8", mf_api_double(peaks, "fp8", 0));
    printf("\n");
}

/* ---- JSON output ---- */

static void add_number(cJSON *o, const char *key, double value)
{
    (void)(isfinite(value) ? cJSON_AddNumberToObject(o, key, value) : cJSON_AddNullToObject(o, key));
}

static void add_item(cJSON *list, const struct line *l)
{
    char text[MF_SHAPE_TEXT_MAX];
    cJSON *o = cJSON_CreateObject();

    mf_shape_print(&l->shape, text);
    (void)mf_json_add_i64(o, "task", l->task);
    cJSON_AddStringToObject(o, "class", l->class);
    cJSON_AddStringToObject(o, "shape", text);
    cJSON_AddStringToObject(o, "state", l->state);
    add_number(o, "floor_us", l->floor);
    add_number(o, "us", l->us);
    add_number(o, "mad", l->mad);
    cJSON_AddStringToObject(o, "unstable", l->unstable);
    add_number(o, "gemm_us", l->gemm);
    cJSON_AddStringToObject(o, "winner", l->us > 0 && l->winner.len ? l->winner.data : "");
    cJSON_AddItemToArray(list, o);
}

/* ---- the command ---- */

static int report_batch(struct mf_cli *cli, const char *word, const cJSON *workers, struct mf_columns *c,
                        cJSON *list)
{
    _cleanup_(cJSON_Deletep) cJSON *tasks = NULL;
    char path[MF_API_PATH_MAX];
    const cJSON *task;
    int64_t id;
    int code;

    if (mf_parse_i64(word, 1, INT64_MAX, &id) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "report: '%s' is not the number of a batch", word);
    mf_api_path(path, "/api/v1/batches/{}/tasks", id);
    code = mf_api_list(cli, path, &tasks);
    cJSON_ArrayForEach (task, tasks) {
        struct line l = {0};

        mf_buf_init(&l.winner, TEXT_MAX);
        code = read_line(cli, task, workers, &l);
        if (code == 0) {
            add_line(c, &l);
            add_item(list, &l);
        }
        mf_buf_release(&l.winner);
        if (code != 0)
            break;
    }
    return code;
}

static const char *const names[] = {"layer", "class",     "T",        "floor us", "e2e us",
                                    "+-",    "e2e/floor", "GEMMs us", "winner"};

int mf_cmd_report(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *workers = NULL;
    _cleanup_(cJSON_Deletep) cJSON *all = cJSON_CreateObject();
    _cleanup_(mf_columns_release) struct mf_columns c;
    _cleanup_(mf_buf_release) struct mf_buf out;
    cJSON *list = cJSON_AddArrayToObject(all, "tasks");
    const cJSON *w;
    int rest, r, code;

    mf_columns_init(&c, MF_ARRAY_LEN(names));
    mf_buf_init(&out, TEXT_MAX);
    r = mf_cli_parse(cli, self, NULL, 0, 1, BATCHES_MAX, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = mf_api_list(cli, "/api/v1/workers", &workers);
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++)
        mf_columns_add(&c, names[i]);
    for (int i = rest; i < argc && code == 0; i++)
        code = report_batch(cli, argv[i], workers, &c, list);
    if (code != 0)
        return code;
    if (cli->json) {
        cJSON_AddItemToObject(all, "workers", MF_TAKE(workers));
        return mf_api_print(all);
    }
    mf_columns_print(&c, &out);
    (void)fwrite(out.data, 1, out.len, stdout);
    cJSON_ArrayForEach (w, workers)
        print_worker(w);
    return MF_EXIT_OK;
}
