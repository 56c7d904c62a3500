#include "cli/support/task_arg.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define LISTED_MAX 20

/* Counts the matching tasks of a batch, stores the id of the first match, and appends the first LISTED_MAX
 * matches to the list. */
static int find_in_batch(struct mf_cli *cli, int64_t batch, const struct mf_shape_pattern *pattern,
                         size_t *ret_n, int64_t *ret_task, struct mf_buf *list)
{
    _cleanup_(cJSON_Deletep) cJSON *tasks = NULL;
    char path[MF_API_PATH_MAX];
    const cJSON *task;
    int code;

    *ret_n = 0;
    mf_api_path(path, "/api/v1/batches/{}/tasks", batch);
    code = mf_api_list(cli, path, &tasks);
    if (code != 0)
        return code;
    cJSON_ArrayForEach (task, tasks) {
        char brief[MF_SHAPE_BRIEF_MAX];
        struct mf_shape shape;

        if (mf_api_shape(mf_json_object(task, "shape"), &shape) < 0 ||
            !mf_shape_pattern_match(pattern, &shape))
            continue;
        if ((*ret_n)++ == 0)
            *ret_task = mf_api_i64(task, "id", 0);
        if (*ret_n > LISTED_MAX)
            continue;
        mf_shape_brief(&shape, brief);
        (void)mf_buf_addf(list, "  task %" PRId64 "  %s  %s\n", mf_api_i64(task, "id", 0),
                          mf_api_text(task, "class", ""), brief);
    }
    return 0;
}

static int find(struct mf_cli *cli, const char *word, int64_t batch, const struct mf_shape_pattern *pattern,
                int64_t *ret_task)
{
    _cleanup_(cJSON_Deletep) cJSON *batches = NULL;
    _cleanup_(mf_buf_release) struct mf_buf list;
    const cJSON *item;
    size_t n = 0;
    int code;

    mf_buf_init(&list, 1u << 20);
    if (batch > 0) {
        code = find_in_batch(cli, batch, pattern, &n, ret_task, &list);
        if (code != 0)
            return code;
    } else {
        code = mf_api_list(cli, "/api/v1/batches", &batches);
        if (code != 0)
            return code;
        cJSON_ArrayForEach (item, batches) {
            batch = mf_api_i64(item, "id", 0);
            code = find_in_batch(cli, batch, pattern, &n, ret_task, &list);
            if (code != 0)
                return code;
            if (n > 0)
                break;
        }
    }
    if (n == 1)
        return 0;
    if (n == 0)
        return mf_cli_fail(MF_EXIT_USAGE, "no task %shas the shape '%s'",
                           batch > 0 && !batches ? "of that batch " : "", word);
    code = mf_cli_fail(MF_EXIT_USAGE,
                       "%zu tasks of batch %" PRId64 " have the shape '%s'; give the number of one:", n,
                       batch, word);
    fprintf(stderr, "%s%s", list.data, n > LISTED_MAX ? "  …\n" : "");
    return code;
}

int mf_task_arg(struct mf_cli *cli, const char *word, int64_t batch, int64_t *ret_task)
{
    struct mf_shape_pattern pattern;
    char why[320];

    if (mf_parse_i64(word, 1, INT64_MAX, ret_task) == 0)
        return 0;
    if (mf_shape_pattern_parse(word, &pattern, why, sizeof(why)) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "'%s': neither a task number nor a shape: %s", word, why);
    return find(cli, word, batch, &pattern, ret_task);
}
