#include "cli/list_out.h"

#include <stdio.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/text.h"

#define TEXT_MAX (16u << 20)

void mf_moment(int64_t ms, char buf[MF_MOMENT_MAX])
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;

    if (ms <= 0 || !localtime_r(&seconds, &tm) || strftime(buf, MF_MOMENT_MAX, "%Y-%m-%d %H:%M", &tm) == 0)
        mf_say(buf, MF_MOMENT_MAX, "-");
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
