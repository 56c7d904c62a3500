/* moefarm quarantine: lists the quarantined kernels with their strikes, and revives a kernel. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/list_out.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define LIST        "/api/v1/quarantine"
#define CLASSES_MAX 4096 /* bytes of the list of classes on which one kernel is quarantined */

static const char *const names[] = {"kernel", "class", "name", "when", "reason"};

static void add_moment_and_reason(struct mf_columns *c, const cJSON *item)
{
    char at[MF_MOMENT_MAX];

    mf_moment(mf_api_i64(item, "at_ms", 0), at);
    mf_columns_add(c, at);
    mf_columns_add(c, mf_api_text(item, "reason", ""));
}

/* Adds a line for the kernel and a line for each of its strikes. */
static void add_kernel(struct mf_columns *c, const cJSON *k)
{
    const cJSON *strike;

    mf_columns_addf(c, "%" PRId64, mf_api_i64(k, "kernel", 0));
    mf_columns_add(c, mf_api_text(k, "class", ""));
    mf_columns_addf(c, "%s:%s", mf_api_text(k, "family", ""), mf_api_text(k, "name", ""));
    add_moment_and_reason(c, k);
    cJSON_ArrayForEach (strike, mf_json_array(k, "strikes")) {
        mf_columns_add(c, "");
        mf_columns_add(c, "");
        mf_columns_addf(c, "%s on %s, task %" PRId64, mf_api_text(strike, "status", ""),
                        mf_api_text(strike, "worker", ""), mf_api_i64(strike, "task", 0));
        add_moment_and_reason(c, strike);
    }
}

static int show(struct mf_cli *cli)
{
    const struct mf_list_table t = {names, MF_ARRAY_LEN(names), add_kernel, "no kernel is quarantined"};

    return mf_list_show(cli, LIST, &t);
}

/* Finds the kernel's quarantine on a class. If class is NULL, the kernel must be quarantined on exactly one
 * class. */
static int choose(const cJSON *items, int64_t kernel, const char *class, const cJSON **ret)
{
    _cleanup_(mf_buf_release) struct mf_buf classes;
    const cJSON *item, *found = NULL;
    int n = 0;

    mf_buf_init(&classes, CLASSES_MAX);
    cJSON_ArrayForEach (item, items) {
        const char *on = mf_api_text(item, "class", "");

        if (mf_api_i64(item, "kernel", 0) != kernel)
            continue;
        (void)mf_buf_addf(&classes, "%s%s", n++ ? ", " : "", on);
        if (!class || strcmp(on, class) == 0)
            found = item;
    }
    if (n == 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "kernel %" PRId64
                           " is not quarantined; moefarm quarantine lists the quarantined kernels",
                           kernel);
    if (!found)
        return mf_cli_fail(MF_EXIT_USAGE, "kernel %" PRId64 " is not quarantined on '%s', but on %s", kernel,
                           class, classes.data);
    if (!class && n > 1)
        return mf_cli_fail(MF_EXIT_USAGE, "kernel %" PRId64 " is quarantined on %s: give --class", kernel,
                           classes.data);
    *ret = found;
    return 0;
}

static int revive(struct mf_cli *cli, int64_t kernel, const char *class)
{
    _cleanup_(cJSON_Deletep) cJSON *items = NULL;
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    _cleanup_(mf_buf_release) struct mf_buf path;
    char of_kernel[MF_API_PATH_MAX];
    const cJSON *item = NULL;
    int code = mf_api_list(cli, LIST, &items);

    mf_buf_init(&path, 4096);
    if (code == 0)
        code = choose(items, kernel, class, &item);
    if (code != 0)
        return code;
    class = mf_api_text(item, "class", "");
    mf_api_path(of_kernel, LIST "/{}/revive", kernel);
    (void)mf_buf_adds(&path, of_kernel);
    mf_http_add_query(&path, "class", class);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    code = mf_api_post(cli, path.data, &answer);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(answer);
    printf("kernel %" PRId64 " %s:%s is no longer quarantined on %s; submit its shapes again\n", kernel,
           mf_api_text(item, "family", ""), mf_api_text(item, "name", ""), class);
    return MF_EXIT_OK;
}

int mf_cmd_quarantine(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const char *class = NULL;
    const struct mf_opt opts[] = {
        {.name = "class",
         .type = MF_OPT_TEXT,
         .value = &class,
         .argument = "GFX/CU",
         .help = "with revive: device class; required if the kernel is quarantined on several"},
    };
    int64_t kernel;
    int rest, r;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (rest == argc)
        return class ? mf_cli_fail(MF_EXIT_USAGE, "quarantine: --class requires revive") : show(cli);
    if (strcmp(argv[rest], "revive") != 0)
        return mf_cli_fail(MF_EXIT_USAGE, "quarantine: unknown action '%s'; the only action is revive",
                           argv[rest]);
    if (argc - rest < 2)
        return mf_cli_fail(MF_EXIT_USAGE, "quarantine: missing argument; usage: moefarm %s [options] %s",
                           self->name, self->arguments);
    if (mf_parse_i64(argv[rest + 1], 1, INT64_MAX, &kernel) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "quarantine: '%s' is not the number of a kernel", argv[rest + 1]);
    return revive(cli, kernel, class);
}
