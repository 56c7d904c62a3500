/* moefarm csv: dispatches to its subcommands, one file each. They work on local tables without a farm. */
#include <stdio.h>
#include <string.h>

#include "cli/commands/csv.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

/* clang-format off */
static const struct mf_command commands[] = {
    {"csv check", "FILE ...",
     "check tables as one set, or files of vLLM and SGLang; print one line per finding", mf_cmd_csv_check},
    {"csv merge", "INTO FILE ...", "merge the rows of tables into INTO, under its lock", mf_cmd_csv_merge},
    {"csv diff", "OLD NEW",
     "list the rows added, removed, changed or respelled; exit code 0: equal, 1: different, 2: error",
     mf_cmd_csv_diff},
    {"csv coverage", "[TABLE ...]",
     "show which token counts of a model the tables serve: hits, near misses, holes", mf_cmd_csv_coverage},
};
/* clang-format on */

static void print_help(FILE *out, const struct mf_command *self)
{
    fprintf(out,
            "usage: moefarm csv COMMAND …\n\n%s\n\ncommands (moefarm csv COMMAND --help lists the options of "
            "each):\n",
            self->help);
    for (size_t i = 0; i < MF_ARRAY_LEN(commands); i++) {
        char left[64];

        mf_format(left, sizeof(left), "%s %s", commands[i].name, commands[i].arguments);
        fprintf(out, "  %-25s %s\n", left, commands[i].help);
    }
}

int mf_cmd_csv(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout, self);
        return MF_EXIT_OK;
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(commands); i++) {
        if (!strcmp(strchr(commands[i].name, ' ') + 1, name))
            return commands[i].run(cli, &commands[i], argc - 1, argv + 1);
    }
    if (argc > 1)
        return mf_cli_fail(MF_EXIT_USAGE, "csv: unknown command '%s'; moefarm csv --help lists the commands",
                           name);
    print_help(stderr, self);
    return MF_EXIT_USAGE;
}
