/* The subcommands of moefarm csv, and what they share. */
#pragma once

#include <stddef.h>

#include "cli/support/cli.h"
#include "common/table/table.h"

int mf_cmd_csv_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_merge(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_check(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_coverage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);

/* The tables that a command's words name. */
struct mf_csv_files {
    struct mf_table **tables;
    size_t n;
};
void mf_csv_files_release(struct mf_csv_files *f);
/* Reads them in their order. A file that is no table is an empty one with an error at its first line, which says why; one that
 * cannot be opened is told of and ends it. Gives the exit code, or 0. */
int mf_csv_files_read(char *const *paths, size_t n, struct mf_csv_files *ret);
/* The same, but a file that is no table ends it too. */
int mf_csv_files_read_tables(char *const *paths, size_t n, struct mf_csv_files *ret);
/* Reads one, which has to be a table. Gives the exit code, or 0. */
int mf_csv_read(const char *path, struct mf_table **ret);
