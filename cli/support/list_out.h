/* Lists of the API for people: one line an item. */
#pragma once

#include <cjson/cJSON.h>
#include <stdint.h>

#include "cli/support/cli.h"
#include "cli/support/text_out.h"

#define MF_MOMENT_MAX 24
/* "2026-11-20 23:01" in local time; "-" for 0. */
void mf_moment(int64_t ms, char buf[MF_MOMENT_MAX]);

/* What a list shows: its columns, and what an item puts in each. */
struct mf_list_table {
    const char *const *names;
    size_t n;
    void (*add)(struct mf_columns *c, const cJSON *item);
    const char *none; /* what is said of an empty list, a sentence; NULL: the names alone */
};
void mf_list_print(const struct mf_list_table *t, const cJSON *items);
/* A list of the API, as a table or as the JSON that was asked for: its exit code. */
int mf_list_show(struct mf_cli *cli, const char *path, const struct mf_list_table *t);
/* A command that has no words and shows a list of the API: its exit code. */
int mf_list_command(struct mf_cli *cli, const struct mf_command *self, const char *path,
                    const struct mf_list_table *t, int argc, char **argv);
