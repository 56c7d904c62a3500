/* moefarm rank: prints the pipelines of a task, best first, with their cost per op as bars. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "cli/support/task_arg.h"
#include "cli/support/text_out.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/consumer.h"

#define TEXT_MAX  (16u << 20)
#define BAR_WIDTH 32

/* Maxima over all printed ops, which align the output. */
struct widest {
    double us;     /* longest time, which is the common scale of all bars */
    size_t covers; /* longest list of covered ops, in bytes */
};

static const char *covers_of(const cJSON *op)
{
    const char *covers = mf_api_text(op, "covers", "-");

    return !*covers || !strcmp(covers, "-") ? "(converts)" : covers;
}

static struct widest find_widest(const cJSON *pipelines, int64_t top)
{
    struct widest w = {0};
    const cJSON *p, *op;

    cJSON_ArrayForEach (p, pipelines) {
        if (top-- <= 0)
            break;
        cJSON_ArrayForEach (op, mf_json_array(p, "ops")) {
            w.us = fmax(w.us, mf_api_double(op, "us", 0));
            w.covers = MF_MAX(w.covers, strlen(covers_of(op)));
        }
    }
    return w;
}

/* Prints members us and mad: "1519 µs ±0.3%". */
static void add_spread(struct mf_buf *out, const cJSON *o, bool utf8)
{
    double us = mf_api_double(o, "us", NAN), mad = mf_api_double(o, "mad", NAN);
    char text[MF_US_MAX];

    mf_us(us, text);
    (void)mf_buf_addf(out, "%s", text);
    if (isfinite(mad))
        (void)mf_buf_addf(out, " %s%.2g%%", utf8 ? "±" : "+-", 100 * mad / us);
}

/* Prints the time in the race, which can be compared among the pipelines of a task. */
static void add_time(struct mf_buf *out, const cJSON *p, bool utf8)
{
    char text[MF_US_MAX];

    if (mf_api_double(p, "us", 0) > 0) {
        add_spread(out, p, utf8);
        (void)mf_buf_addf(out, " raced (n %" PRId64 ")", mf_api_i64(p, "samples_n", 0));
    } else {
        (void)mf_buf_adds(out, "not raced");
    }
    mf_us(mf_api_double(p, "forecast_us", NAN), text);
    (void)mf_buf_addf(out, ", forecast %s", text);
}

static void add_pipeline(struct mf_buf *out, const cJSON *p, int64_t place, const struct widest *w, bool utf8)
{
    bool winner = false, tie = false, other_layout = false;
    const cJSON *op;
    int64_t dropped = mf_api_i64(p, "dropped_at", 0);

    (void)mf_json_bool(p, "winner", &winner);
    (void)mf_json_bool(p, "tie", &tie);
    (void)mf_json_bool(p, "other_layout", &other_layout);
    (void)mf_buf_addf(out, "%3" PRId64 "  pipeline %" PRId64 "  ", place, mf_api_i64(p, "id", 0));
    add_time(out, p, utf8);
    if (winner)
        (void)mf_buf_adds(out, "  winner");
    else if (tie)
        (void)mf_buf_adds(out, "  tie");
    else if (other_layout)
        (void)mf_buf_adds(out, "  other weight layout");
    else if (dropped > 0)
        (void)mf_buf_addf(out, "  dropped in round %" PRId64, dropped);
    (void)mf_buf_addf(out, "\n     %s  block_m %" PRId64 "  %s\n", mf_api_text(p, "structure", ""),
                      mf_api_i64(p, "block_m", 0), mf_api_text(p, "layout", ""));
    cJSON_ArrayForEach (op, mf_json_array(p, "ops")) {
        double us = mf_api_double(op, "us", 0);
        char text[MF_US_MAX];

        mf_us(us, text);
        (void)mf_buf_addf(out, "       %-*s ", (int)w->covers, covers_of(op));
        mf_bar_plain(out, w->us > 0 ? us / w->us : 0, BAR_WIDTH, utf8);
        (void)mf_buf_addf(out, " %10s  %s\n", text, mf_api_text(op, "name", ""));
    }
}

/* Prints the weight layout and the reason for it. */
static void add_layout(struct mf_buf *out, const cJSON *task)
{
    const cJSON *choice = mf_json_object(task, "layout"), *item;
    bool pending = false;

    (void)mf_json_bool(choice, "pending", &pending);
    if (pending)
        (void)mf_buf_adds(out, "  weights: several layouts are being raced over the token counts\n");
    cJSON_ArrayForEach (item, mf_json_array(choice, "layouts"))
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "chosen")))
            (void)mf_buf_addf(out, "  weights as %s, which %s\n", mf_api_text(item, "layout", "?"),
                              mf_api_text(item, "reason", ""));
}

/* Prints the winner's regret under other routing profiles. */
static void add_regret(struct mf_buf *out, const cJSON *config)
{
    const cJSON *r;

    cJSON_ArrayForEach (r, mf_json_array(config, "regret")) {
        char us[MF_US_MAX], best[MF_US_MAX];
        bool tie = false;

        (void)mf_json_bool(r, "tie", &tie);
        mf_us(mf_api_double(r, "us", NAN), us);
        mf_us(mf_api_double(r, "best_us", NAN), best);
        (void)mf_buf_addf(out, "  under %s: ", mf_api_text(r, "routing", ""));
        if (*mf_api_text(r, "reason", ""))
            (void)mf_buf_addf(out, "%s\n", mf_api_text(r, "reason", ""));
        else if (tie)
            (void)mf_buf_addf(out, "%s, no regret\n", us);
        else
            (void)mf_buf_addf(out, "%s, %.1f%% slower than pipeline %" PRId64 " (%s)\n", us,
                              100 * mf_api_double(r, "regret", NAN), mf_api_i64(r, "best", 0), best);
    }
}

/* Prints the reported time, which is the rerun's. */
static void add_config(struct mf_buf *out, const cJSON *config, bool utf8)
{
    int ties = cJSON_GetArraySize(mf_json_array(config, "ties"));
    const char *unstable = mf_api_text(config, "unstable", "");

    (void)mf_buf_adds(out, ": ");
    add_spread(out, config, utf8);
    (void)mf_buf_addf(out, " (n %" PRId64 ") by pipeline %" PRId64, mf_api_i64(config, "n", 0),
                      mf_api_i64(config, "pipeline", 0));
    if (ties > 0)
        (void)mf_buf_addf(out, ", statistically tied with %d other%s", ties, ties == 1 ? "" : "s");
    if (*unstable)
        (void)mf_buf_addf(out, "\n  UNSTABLE: %s", unstable);
}

/* Prints which share of the candidates was measured, if a search selected a part (time_budget). */
static void add_share(struct mf_buf *out, const cJSON *task)
{
    int64_t n = mf_api_i64(task, "candidates", 0), measured = mf_api_i64(task, "measured", 0);

    if (n > mf_api_i64(task, "steps", 0))
        (void)mf_buf_addf(out, "  measured %" PRId64 " of %" PRId64 " candidates (%.1f%%)\n", measured, n,
                          100 * (double)measured / (double)n);
}

/* Prints the winners of all consumers side by side: what changing the kernels would gain. */
static void add_consumers(struct mf_buf *out, const cJSON *task)
{
    const cJSON *list = mf_json_array(task, "consumers"), *c, *name;

    if (cJSON_GetArraySize(list) < 2)
        return;
    cJSON_ArrayForEach (c, list) {
        char us[MF_US_MAX];

        mf_us(mf_api_double(c, "us", NAN), us);
        (void)mf_buf_addf(out, "  %-8s", mf_api_text(c, "consumer", ""));
        if (*mf_api_text(c, "reason", "")) {
            (void)mf_buf_addf(out, " no config: %s\n", mf_api_text(c, "reason", ""));
            continue;
        }
        if (!(mf_api_double(c, "us", NAN) > 0)) {
            (void)mf_buf_adds(out, " not decided yet\n");
            continue;
        }
        (void)mf_buf_addf(out, " %10s  %.2fx ", us, mf_api_double(c, "ratio", NAN));
        cJSON_ArrayForEach (name, mf_json_array(c, "winner"))
            (void)mf_buf_addf(out, " %s", cJSON_GetStringValue(name));
        (void)mf_buf_adds(out, "\n");
    }
}

static void add_task(struct mf_buf *out, const cJSON *task, bool utf8)
{
    const cJSON *config = mf_json_object(task, "config");
    char brief[MF_SHAPE_BRIEF_MAX] = "?";
    struct mf_shape shape;

    if (mf_api_shape(mf_json_object(task, "shape"), &shape) == 0)
        mf_shape_brief(&shape, brief);
    (void)mf_buf_addf(out, "task %" PRId64 "  %s  %s  %s", mf_api_i64(task, "id", 0),
                      mf_api_text(task, "class", ""), brief, mf_api_text(task, "state", ""));
    if (config)
        add_config(out, config, utf8);
    else if (*mf_api_text(task, "reason", ""))
        (void)mf_buf_addf(out, ": %s", mf_api_text(task, "reason", ""));
    (void)mf_buf_adds(out, "\n");
    add_share(out, task);
    add_consumers(out, task);
    add_layout(out, task);
    mf_api_promotion(task, out);
    add_regret(out, config);
}

static int print_ranking(struct mf_cli *cli, const cJSON *task, const cJSON *pipelines, int64_t top)
{
    _cleanup_(mf_buf_release) struct mf_buf out;
    struct widest widest = find_widest(pipelines, top);
    int n = cJSON_GetArraySize(pipelines);
    int64_t place = 0;
    const cJSON *p;

    mf_buf_init(&out, TEXT_MAX);
    add_task(&out, task, cli->utf8);
    cJSON_ArrayForEach (p, pipelines) {
        if (++place > top)
            break;
        add_pipeline(&out, p, place, &widest, cli->utf8);
    }
    if (n > top)
        (void)mf_buf_addf(&out, "… and %" PRId64 " more (--top)\n", n - top);
    if (n == 0)
        (void)mf_buf_adds(&out, "no pipelines yet\n");
    (void)fwrite(out.data, 1, out.len, stdout);
    return MF_EXIT_OK;
}

/* Appends the consumer as a query parameter. consumer NULL: none. */
static void add_query(char path[MF_API_PATH_MAX], const char *consumer)
{
    size_t len = strlen(path);

    if (consumer)
        mf_format(path + len, MF_API_PATH_MAX - len, "%cconsumer=%s", strchr(path, '?') ? '&' : '?',
                  consumer);
}

int mf_cmd_rank(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    int64_t batch = 0, top = 5, id;
    const char *shape = NULL, *consumer = NULL;
    bool finalists = false;
    const struct mf_opt opts[] = {
        {.name = "batch",
         .type = MF_OPT_INT,
         .value = &batch,
         .argument = "B",
         .help = "batch in which to find --shape; 0: the newest batch with that shape",
         .min = 0,
         .max = INT64_MAX},
        {.name = "shape",
         .type = MF_OPT_TEXT,
         .value = &shape,
         .argument = "SHAPE",
         .help = "shape of the task: a row of twelve values, or columns as in \"token=4,q_type=per_Token\""},
        {.name = "top",
         .type = MF_OPT_INT,
         .value = &top,
         .argument = "N",
         .help = "maximum pipelines to print",
         .min = 1,
         .max = 100000},
        {.name = "consumer",
         .type = MF_OPT_TEXT,
         .value = &consumer,
         .argument = "NAME",
         .help =
             "consumer whose pipelines are printed: moefarm, aiter, vllm, sglang or any (default: the first "
             "one that has a config)"},
        {.name = "finalists", .type = MF_OPT_BOOL, .value = &finalists, .help = "print only raced pipelines"},
    };
    _cleanup_(cJSON_Deletep) cJSON *task = NULL;
    _cleanup_(cJSON_Deletep) cJSON *pipelines = NULL;
    char path[MF_API_PATH_MAX];
    enum mf_consumer known;
    int rest, r, code;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if ((rest < argc) == (shape != NULL))
        return mf_cli_fail(MF_EXIT_USAGE, "rank: expected either the number of a task or --shape");
    code = mf_task_arg(cli, shape ? shape : argv[rest], batch, &id);
    if (code != 0)
        return code;
    if (consumer && mf_consumer_parse(consumer, &known) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--consumer '%s': expected moefarm, aiter, vllm, sglang or any",
                           consumer);
    mf_api_path(path, "/api/v1/tasks/{}", id);
    add_query(path, consumer);
    code = mf_api_get(cli, path, &task);
    if (code != 0)
        return code;
    mf_api_path(path, finalists ? "/api/v1/tasks/{}/pipelines?finalists=1" : "/api/v1/tasks/{}/pipelines",
                id);
    add_query(path, consumer);
    code = mf_api_list(cli, path, &pipelines);
    if (code != 0)
        return code;
    if (cli->json) {
        cJSON_AddItemToObject(task, "pipelines", MF_TAKE(pipelines));
        return mf_api_print(task);
    }
    return print_ranking(cli, task, pipelines, top);
}
