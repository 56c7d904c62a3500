/* moefarm why: explains why a kernel was not chosen: rejected by a rule, failed, slow, or lost the race. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "cli/support/task_arg.h"
#include "cli/support/text_out.h"
#include "cli/support/why.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define SENTENCES_MAX 2000

/* A task and its lists. */
struct task_data {
    cJSON *task, *rejections, *steps, *pipelines;
};

static void release(struct task_data *c)
{
    cJSON_Delete(c->task);
    cJSON_Delete(c->rejections);
    cJSON_Delete(c->steps);
    cJSON_Delete(c->pipelines);
}

static int read_task_data(struct mf_cli *cli, int64_t task, struct task_data *c)
{
    const struct {
        const char *path;
        cJSON **items;
    } lists[] = {
        {"/api/v1/tasks/{}/rejections", &c->rejections},
        {"/api/v1/tasks/{}/steps", &c->steps},
        {"/api/v1/tasks/{}/pipelines", &c->pipelines},
    };
    char path[MF_API_PATH_MAX];
    int code;

    mf_api_path(path, "/api/v1/tasks/{}", task);
    code = mf_api_get(cli, path, &c->task);
    for (size_t i = 0; i < MF_ARRAY_LEN(lists) && code == 0; i++) {
        mf_api_path(path, lists[i].path, task);
        code = mf_api_list(cli, path, lists[i].items);
    }
    return code;
}

/* Returns the fastest correct step that covers the same ops. */
static const cJSON *best_rival(const cJSON *steps, const cJSON *step)
{
    const char *covers = mf_api_text(step, "covers", "");
    const cJSON *other, *best = NULL;

    cJSON_ArrayForEach (other, steps) {
        double us = mf_api_double(other, "us", NAN);

        if (other == step || strcmp(mf_api_text(other, "status", ""), "ok") != 0 || !(us > 0) ||
            strcmp(mf_api_text(other, "covers", ""), covers) != 0)
            continue;
        if (!best || us < mf_api_double(best, "us", NAN))
            best = other;
    }
    return best;
}

static bool has_step(const cJSON *pipeline, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, mf_json_array(pipeline, "names"))
        if (cJSON_IsString(item) && !strcmp(item->valuestring, name))
            return true;
    return false;
}

static const cJSON *winner_of(const cJSON *pipelines)
{
    const cJSON *p;

    cJSON_ArrayForEach (p, pipelines)
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p, "winner")))
            return p;
    return NULL;
}

/* Returns the best pipeline with that step. The race's winner comes first, then pipelines in the winner's
 * layout, then other pipelines. Within each group, the fastest raced pipeline comes first, then the pipeline
 * with the lowest forecast. */
static const cJSON *best_pipeline(const cJSON *pipelines, const char *name)
{
    const cJSON *p, *best = NULL, *winner = winner_of(pipelines);
    const char *layout = mf_api_text(winner, "layout", "");

    cJSON_ArrayForEach (p, pipelines) {
        double us = mf_api_double(p, "us", HUGE_VAL);
        double best_us = best ? mf_api_double(best, "us", HUGE_VAL) : HUGE_VAL;

        if (!has_step(p, name))
            continue;
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p, "winner")))
            return p;
        bool in = !winner || strcmp(mf_api_text(p, "layout", ""), layout) == 0;
        bool best_in = best && (!winner || strcmp(mf_api_text(best, "layout", ""), layout) == 0);

        if (best && in != best_in) {
            best = in ? p : best;
            continue;
        }
        if (!best || us < best_us ||
            (!isfinite(best_us) &&
             mf_api_double(p, "forecast_us", HUGE_VAL) < mf_api_double(best, "forecast_us", HUGE_VAL)))
            best = p;
    }
    return best;
}

/* Returns the winner of the race if the task kept the known row instead. Returns NULL if `winner` won the
 * race. */
static const cJSON *not_promoted(const struct task_data *c, const cJSON *winner)
{
    const cJSON *p, *promotion = mf_json_object(c->task, "promotion");
    int64_t id = mf_api_i64(promotion, "new", 0);

    if (strcmp(mf_api_text(promotion, "decision", ""), "kept") != 0 || mf_api_i64(winner, "id", 0) == id)
        return NULL;
    cJSON_ArrayForEach (p, c->pipelines)
        if (mf_api_i64(p, "id", 0) == id)
            return p;
    return NULL;
}

/* If the pipeline needs a weight layout other than the chosen one, prints this reason and returns true. */
static bool print_layout_reason(const struct task_data *c, const cJSON *p, const cJSON *winner)
{
    const cJSON *choice = mf_json_object(c->task, "layout"), *item;
    const char *layout = mf_api_text(p, "layout", "");
    char mine[MF_US_MAX];

    if (!winner || strcmp(mf_api_text(choice, "by", "free"), "free") == 0 ||
        strcmp(layout, mf_api_text(winner, "layout", "")) == 0)
        return false;
    printf(" Its best pipeline %" PRId64, mf_api_i64(p, "id", 0));
    if (mf_api_double(p, "us", 0) > 0) {
        mf_us(mf_api_double(p, "us", NAN), mine);
        printf(", raced at %s,", mine);
    }
    printf(" needs the weights as %s", layout);
    cJSON_ArrayForEach (item, mf_json_array(choice, "layouts"))
        if (strcmp(mf_api_text(item, "layout", ""), layout) == 0 && *mf_api_text(item, "reason", ""))
            printf(": that layout %s", mf_api_text(item, "reason", ""));
    printf(".\n");
    return true;
}

/* Prints the race result of the step's best pipeline. */
static void print_race(const struct task_data *c, const cJSON *p)
{
    const cJSON *stands = winner_of(c->pipelines), *raced = not_promoted(c, stands);
    const cJSON *winner = raced ? raced : stands;
    double us = mf_api_double(p, "us", NAN), winner_us = mf_api_double(winner, "us", NAN);
    int64_t dropped = mf_api_i64(p, "dropped_at", 0);
    char mine[MF_US_MAX], theirs[MF_US_MAX];

    if (raced && p == raced) {
        printf(" Its best pipeline %" PRId64 " won the race but was not promoted: pipeline %" PRId64
               ", the known row, was kept.\n",
               mf_api_i64(p, "id", 0), mf_api_i64(stands, "id", 0));
        return;
    }
    if (raced && p == stands) {
        printf(" It is in pipeline %" PRId64 ", the known row, which was kept.\n", mf_api_i64(p, "id", 0));
        return;
    }
    if (p == winner) {
        printf(" It is in the winning pipeline %" PRId64 ".\n", mf_api_i64(p, "id", 0));
        return;
    }
    if (print_layout_reason(c, p, winner))
        return;
    mf_us(us, mine);
    mf_us(winner_us, theirs);
    if (us > 0 && winner)
        printf(" Its best pipeline %" PRId64 " lost the race: %s against %s of pipeline %" PRId64,
               mf_api_i64(p, "id", 0), mine, theirs, mf_api_i64(winner, "id", 0));
    else if (us > 0)
        printf(" Its best pipeline %" PRId64 " raced at %s", mf_api_i64(p, "id", 0), mine);
    else {
        mf_us(mf_api_double(p, "forecast_us", NAN), mine);
        printf(" Its best pipeline %" PRId64 " was not raced: place %" PRId64 " by its forecast of %s",
               mf_api_i64(p, "id", 0), mf_api_i64(p, "place", 0), mine);
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p, "tie")))
        printf(", statistically tied; a stable rule picks among ties");
    else if (dropped > 0)
        printf(", dropped in round %" PRId64, dropped);
    printf(".\n");
}

/* Prints the step's registers, shared memory and occupancy, if known. */
static void print_resources(const cJSON *step)
{
    int64_t registers = mf_api_i64(step, "registers", 0), spills = mf_api_i64(step, "spills", 0);

    if (registers <= 0)
        return;
    printf(" It uses %" PRId64 " registers per thread and %.1f KiB of shared memory per block, ", registers,
           (double)mf_api_i64(step, "lds", 0) / 1024);
    if (spills > 0)
        printf("spills %" PRId64 " bytes per thread, ", spills);
    printf("%" PRId64 " blocks per SM or CU.", mf_api_i64(step, "occupancy", 0));
}

/* Explains a correct step: its time, the fastest step of its kind, and its race. */
static void print_correct_step(const struct task_data *c, const cJSON *step, const char *name)
{
    const cJSON *rival = best_rival(c->steps, step), *p = best_pipeline(c->pipelines, name);
    double us = mf_api_double(step, "us", NAN);
    char mine[MF_US_MAX], theirs[MF_US_MAX];

    mf_us(us, mine);
    printf("%s covers %s in %s", name, mf_api_text(step, "covers", "-"), mine);
    if (rival && mf_api_double(rival, "us", NAN) < us) {
        mf_us(mf_api_double(rival, "us", NAN), theirs);
        printf("; %s:%s takes %s", mf_api_text(rival, "family", "?"), mf_api_text(rival, "name", "?"),
               theirs);
    } else {
        printf(", the fastest of its kind");
    }
    printf(".");
    print_resources(step);
    if (p)
        print_race(c, p);
    else
        printf(" No stored pipeline contains it.\n");
}

static void print_rejections(const struct task_data *c, const char *pattern, size_t *n)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, c->rejections) {
        const char *family = mf_api_text(item, "family", "?"), *kernel = mf_api_text(item, "kernel", "*");

        if (mf_why_match(pattern, family, kernel) && (*n)++ < SENTENCES_MAX)
            printf("%s:%s: %s (%s)\n", family, kernel, mf_api_text(item, "reason", ""),
                   mf_api_text(item, "rule", ""));
    }
}

/* Prints the correct steps. Without a pattern, prints only the steps of raced pipelines. */
static void print_correct_steps(const struct task_data *c, const char *kernel, size_t *n)
{
    const cJSON *step;

    cJSON_ArrayForEach (step, c->steps) {
        char name[256];
        const cJSON *p;

        mf_format(name, sizeof(name), "%s:%s", mf_api_text(step, "family", "?"),
                  mf_api_text(step, "name", "?"));
        if (strcmp(mf_api_text(step, "status", ""), "ok") != 0)
            continue;
        if (!mf_why_match(kernel, mf_api_text(step, "family", "?"), mf_api_text(step, "name", "")))
            continue;
        p = best_pipeline(c->pipelines, name);
        if (!kernel && !(p && mf_api_double(p, "us", 0) > 0))
            continue;
        if ((*n)++ < SENTENCES_MAX)
            print_correct_step(c, step, name);
    }
}

static int report_no_match(const struct task_data *c, const char *kernel)
{
    struct mf_why_similar similar = {0};
    const cJSON *item;

    cJSON_ArrayForEach (item, c->rejections)
        mf_why_compare(&similar, kernel, mf_api_text(item, "family", ""), mf_api_text(item, "kernel", ""));
    cJSON_ArrayForEach (item, c->steps)
        mf_why_compare(&similar, kernel, mf_api_text(item, "family", ""), mf_api_text(item, "name", ""));
    return mf_why_no_match(&similar, kernel);
}

int mf_cmd_why(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct mf_why_local here = {.device = "cpu:0"};
    bool local = false;
    int64_t batch = 0, task;
    _cleanup_(mf_buf_release) struct mf_buf promotion;
    const struct mf_opt opts[] = {
        {.name = "batch",
         .type = MF_OPT_INT,
         .value = &batch,
         .argument = "B",
         .help = "batch in which to find SHAPE; 0: the newest batch with that shape",
         .min = 0,
         .max = INT64_MAX},
        {.name = "local",
         .type = MF_OPT_BOOL,
         .value = &local,
         .help = "query the kernel families of this machine about SHAPE, without a farm"},
        {.name = "device",
         .type = MF_OPT_TEXT,
         .value = &here.device,
         .argument = "NAME",
         .help = "with --local: device"},
        {.name = "families",
         .type = MF_OPT_TEXT,
         .value = &here.families,
         .argument = "LIST",
         .help = "with --local: families to query, comma-separated (default: all enabled by default)"}};
    _cleanup_(release) struct task_data c = {0};
    char brief[MF_SHAPE_BRIEF_MAX] = "?";
    const char *kernel;
    struct mf_shape shape;
    size_t n = 0;
    int rest, r, code;

    mf_buf_init(&promotion, 4096);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    kernel = rest + 1 < argc ? argv[rest + 1] : NULL;
    if (local)
        return mf_why_local(cli, &here, argv[rest], kernel);
    code = mf_task_arg(cli, argv[rest], batch, &task);
    if (code != 0)
        return code;
    code = read_task_data(cli, task, &c);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(c.rejections);
    if (mf_api_shape(mf_json_object(c.task, "shape"), &shape) == 0)
        mf_shape_brief(&shape, brief);
    printf("task %" PRId64 "  %s  %s\n", task, mf_api_text(c.task, "class", ""), brief);
    mf_api_promotion(c.task, &promotion);
    (void)fwrite(promotion.data, 1, promotion.len, stdout);
    print_rejections(&c, kernel, &n);
    print_correct_steps(&c, kernel, &n);
    if (n > SENTENCES_MAX)
        printf("… and %zu more; narrow the list with a pattern such as 'tile_s1_*'\n", n - SENTENCES_MAX);
    if (n == 0 && kernel)
        return report_no_match(&c, kernel);
    if (n == 0)
        printf("nothing was rejected, failed or measured yet\n");
    return MF_EXIT_OK;
}
