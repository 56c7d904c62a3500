/* Subcommands of `moefarm csv` and their shared code. */
#pragma once

#include <stddef.h>

#include "cli/support/cli.h"
#include "common/table/table.h"

int mf_cmd_csv_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_merge(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_check(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_coverage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);

/* The tables named on the command line. */
struct mf_csv_files {
    struct mf_table **tables;
    size_t n;
};
void mf_csv_files_release(struct mf_csv_files *f);
/* Reads the files in order. A file that is not a table becomes an empty table with an error on its first
 * line. A file that cannot be opened is an error. Prints its own error message and returns the exit code, or
 * 0. */
int mf_csv_files_read(char *const *paths, size_t n, struct mf_csv_files *ret);
/* Like mf_csv_files_read, but a file that is not a table is an error. */
int mf_csv_files_read_tables(char *const *paths, size_t n, struct mf_csv_files *ret);
/* Reads one table. Prints its own error message and returns the exit code, or 0. */
int mf_csv_read(const char *path, struct mf_table **ret);
