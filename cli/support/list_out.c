#include "cli/support/list_out.h"

#include <stdio.h>
#include <time.h>

#include "cli/support/api.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define TEXT_MAX (16u << 20)

void mf_moment(int64_t ms, char buf[MF_MOMENT_MAX])
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;

    if (ms <= 0 || !localtime_r(&seconds, &tm) || strftime(buf, MF_MOMENT_MAX, "%Y-%m-%d %H:%M", &tm) == 0)
        mf_format(buf, MF_MOMENT_MAX, "-");
}

void mf_list_print(const struct mf_list_table *t, const cJSON *items)
{
    _cleanup_(mf_columns_release) struct mf_columns c;
    _cleanup_(mf_buf_release) struct mf_buf out;
    const cJSON *item;

    mf_columns_init(&c, t->n);
    mf_buf_init(&out, TEXT_MAX);
    for (size_t i = 0; i < t->n; i++)
        mf_columns_add(&c, t->names[i]);
    cJSON_ArrayForEach (item, items)
        t->add(&c, item);
    mf_columns_print(&c, &out);
    (void)fwrite(out.data, 1, out.len, stdout);
}

int mf_list_show(struct mf_cli *cli, const char *path, const struct mf_list_table *t)
{
    _cleanup_(cJSON_Deletep) cJSON *items = NULL;
    int code = mf_api_list(cli, path, &items);

    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(items);
    if (t->none && cJSON_GetArraySize(items) == 0)
        printf("%s\n", t->none);
    else
        mf_list_print(t, items);
    return MF_EXIT_OK;
}

int mf_list_command(struct mf_cli *cli, const struct mf_command *self, const char *path,
                    const struct mf_list_table *t, int argc, char **argv)
{
    int rest, r;

    r = mf_cli_parse(cli, self, NULL, 0, 0, 0, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    return mf_list_show(cli, path, t);
}
