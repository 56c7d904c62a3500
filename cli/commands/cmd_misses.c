/* moefarm misses: lists or submits the shapes that production looked up and did not find. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/support/api.h"
#include "cli/support/list_out.h"
#include "cli/support/shape_arg.h"
#include "common/base/json.h"
#include "common/base/text.h"

static const char *const miss_names[] = {"missed", "class", "shape", "state", "task", "sources", "last"};

static void add_miss(struct mf_columns *c, const cJSON *m)
{
    char brief[MF_SHAPE_BRIEF_MAX] = "?", last[MF_MOMENT_MAX];
    struct mf_shape shape;

    if (mf_api_shape(mf_json_object(m, "shape"), &shape) == 0)
        mf_shape_brief(&shape, brief);
    mf_moment(mf_api_i64(m, "last_ms", 0), last);
    mf_columns_addf(c, "%" PRId64, mf_api_i64(m, "count", 0));
    mf_columns_add(c, mf_api_text(m, "class", ""));
    mf_columns_add(c, brief);
    mf_columns_add(c, mf_api_text(m, "state", ""));
    mf_columns_add_id(c, mf_api_i64(m, "task", 0));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(m, "sources", 0));
    mf_columns_add(c, last);
}

static int submit(struct mf_cli *cli, const char *path)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    const cJSON *batch;
    int code = mf_api_post(cli, path, &answer);

    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(answer);
    cJSON_ArrayForEach (batch, mf_json_array(answer, "batches"))
        printf("batch %" PRId64 ": %" PRId64 " shapes on %s\n", mf_api_i64(batch, "batch", 0),
               mf_api_i64(batch, "shapes", 0), mf_api_text(batch, "class", ""));
    if (cJSON_GetArraySize(mf_json_array(answer, "batches")) == 0)
        printf("no misses are left to tune\n");
    return MF_EXIT_OK;
}

static int show(struct mf_cli *cli, const char *path)
{
    const struct mf_list_table t = {miss_names, MF_ARRAY_LEN(miss_names), add_miss, NULL};

    return mf_list_show(cli, path, &t);
}

int mf_cmd_misses(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(mf_buf_release) struct mf_buf path;
    const char *class = NULL, *state = NULL;
    bool tune = false, failed = false;
    int64_t min_count = 0;
    char number[24];
    const struct mf_opt opts[] = {
        {.name = "class",
         .type = MF_OPT_TEXT,
         .value = &class,
         .argument = "GFX/CU",
         .help = "device class of the misses"},
        {.name = "state",
         .type = MF_OPT_TEXT,
         .value = &state,
         .argument = "STATE",
         .help = "state of the misses: open, tuning, tuned, or failed (the task failed or was cancelled)"},
        {.name = "submit", .type = MF_OPT_BOOL, .value = &tune, .help = "submit the open misses"},
        {.name = "failed",
         .type = MF_OPT_BOOL,
         .value = &failed,
         .help = "with --submit: include failed misses"},
        {.name = "min-count",
         .type = MF_OPT_INT,
         .value = &min_count,
         .argument = "N",
         .help = "with --submit: minimum number of misses of a shape",
         .min = 1,
         .max = INT64_C(1) << 53},
    };
    int rest, r;

    mf_buf_init(&path, 4096);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 0, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (tune ? state != NULL : failed || min_count > 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           tune ? "misses: --state filters the list; --submit always takes open misses"
                                : "misses: --failed and --min-count require --submit");
    mf_format(number, sizeof(number), "%" PRId64, min_count);
    (void)mf_buf_adds(&path, tune ? "/api/v1/misses/submit" : "/api/v1/misses");
    mf_http_add_query(&path, "class", class);
    mf_http_add_query(&path, "state", state);
    mf_http_add_query(&path, "failed", failed ? "1" : NULL);
    mf_http_add_query(&path, "min_count", min_count > 0 ? number : NULL);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "misses: the option values are too long; shorten them");
    return tune ? submit(cli, path.data) : show(cli, path.data);
}
