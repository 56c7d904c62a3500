/* moefarm csv: dispatches to its subcommands, one file each. They work on local tables without a farm. */
#include "cli/commands/csv.h"
#include "common/base/cleanup.h"

/* clang-format off */
static const struct mf_command commands[] = {
    {"csv check", MF_LOCAL, "FILE ...",
     "check tables as one set, or files of vLLM and SGLang; print one line per finding", mf_cmd_csv_check},
    {"csv merge", MF_LOCAL, "INTO FILE ...",
     "merge the rows of tables into INTO, under its lock", mf_cmd_csv_merge},
    {"csv diff", MF_LOCAL, "OLD NEW",
     "list the rows added, removed, changed or respelled; exit code 0: equal, 1: different, 2: error",
     mf_cmd_csv_diff},
    {"csv coverage", MF_LOCAL, "[TABLE ...]",
     "show which token counts of a model the tables serve: hits, near misses, holes", mf_cmd_csv_coverage},
};
/* clang-format on */

int mf_cmd_csv(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    return mf_cli_run_group(cli, self, commands, MF_ARRAY_LEN(commands), argc, argv);
}
