/* Prints lists from the API, one line per item. */
#pragma once

#include <cjson/cJSON.h>
#include <stdint.h>

#include "cli/support/cli.h"
#include "cli/support/text_out.h"

#define MF_MOMENT_MAX 24
/* Prints a time, such as "2026-11-20 23:01", in local time; "-" for 0. */
void mf_moment(int64_t ms, char buf[MF_MOMENT_MAX]);

/* How to print a list. */
struct mf_list_table {
    const char *const *names;
    size_t n;
    void (*add)(struct mf_columns *c, const cJSON *item);
    const char *none; /* message for an empty list; NULL: print only the header */
};
void mf_list_print(const struct mf_list_table *t, const cJSON *items);
/* Fetches a list and prints it as a table, or as JSON with --json. Returns the exit code. */
int mf_list_show(struct mf_cli *cli, const char *path, const struct mf_list_table *t);
/* Runs a command without arguments that prints a list. Returns the exit code. */
int mf_list_command(struct mf_cli *cli, const struct mf_command *self, const char *path,
                    const struct mf_list_table *t, int argc, char **argv);
