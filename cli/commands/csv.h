/* Subcommands of `moefarm csv`. */
#pragma once

#include "cli/support/cli.h"
#include "cli/tables/csv_files.h"

int mf_cmd_csv_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_merge(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_check(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv_coverage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);

/* csv diff for two files of vLLM or SGLang. Exit codes as diff(1). */
int mf_csv_diff_triton(const struct mf_cli *cli, const struct mf_csv_files *files, bool summary);
