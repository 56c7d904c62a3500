#include "cli/program.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/bench/operators.h"
#include "cli/support/cli.h"
#include "cli/support/plain_output.h"
#include "common/base/cleanup.h"
#include "common/base/fault.h"
#include "common/base/text.h"

/* clang-format off */
static const struct mf_command commands[] = {
    {"submit", MF_FARM, "FILE",
     "submit shapes from an untuned_fmoe.csv or JSON ('-': standard input)", mf_cmd_submit},
    {"watch", MF_FARM, "BATCH", "follow a batch with progress bars until it ends", mf_cmd_watch},
    {"batches", MF_FARM, "", "list the batches, newest first", mf_cmd_batches},
    {"show", MF_FARM, "BATCH", "show a batch, its tasks and why they wait", mf_cmd_show},
    {"cancel", MF_FARM, "BATCH", "cancel the unfinished tasks of a batch", mf_cmd_cancel},
    {"rank", MF_FARM, "[TASK]", "rank the pipelines of a task and show their cost per op", mf_cmd_rank},
    {"why", MF_FARM, "TASK|SHAPE [KERNEL]",
     "explain why a kernel was not chosen: rejected, failed, slow, or lost the race", mf_cmd_why},
    {"report", MF_FARM, "BATCH ...",
     "compare winners with the lower bound of their device; show the workers' time by phase", mf_cmd_report},
    {"workers", MF_FARM, "", "list the workers and their current steps", mf_cmd_workers},
    {"revive-worker", MF_FARM, "WORKER",
     "end the quarantine of a worker (number or name)", mf_cmd_revive_worker},
    {"drain", MF_FARM, "WORKER", "drain a worker (number or name) after its current unit", mf_cmd_drain},
    {"token", MF_FARM, "ROLE NAME",
     "create an access token (read, submit, admin) or an enrolment token (worker)", mf_cmd_token},
    {"tokens", MF_FARM, "", "list the tokens, without their text", mf_cmd_tokens},
    {"revoke-token", MF_FARM, "TOKEN", "revoke a token", mf_cmd_revoke_token},
    {"keys", MF_FARM, "", "list the workers' keys", mf_cmd_keys},
    {"revoke-key", MF_FARM, "KEY", "revoke a worker's key and reject its messages", mf_cmd_revoke_key},
    {"export", MF_FARM, "", "print the tuned table, or write or merge it into a file", mf_cmd_export},
    {"csv", MF_LOCAL, "COMMAND FILE ...",
     "check, merge and compare local tables; show which token counts they serve", mf_cmd_csv},
    {"tune", MF_FARM, "",
     "tune shapes as gemm_moe_tune.py does, with its options, on a private farm or at --url", mf_cmd_tune},
    {"release", MF_FARM, "COMMAND ...",
     "freeze, list, stage, approve and roll back releases of the table", mf_cmd_release},
    {"pull", MF_FARM, "CHANNEL", "update a file to the approved release of a channel", mf_cmd_pull},
    {"misses", MF_FARM, "",
     "list the shapes that production looked up and did not find; --submit tunes them", mf_cmd_misses},
    {"quarantine", MF_FARM, "[revive KERNEL]",
     "list the quarantined kernels and the reasons; revive one (role admin)", mf_cmd_quarantine},
    {"run-config", MF_LOCAL, "[TABLE]",
     "run the rows of a tuned table on this machine and check their results and times", mf_cmd_run_config},
    {"compare", MF_LOCAL, "OLD NEW",
     "run two tuned tables on this machine and compare them", mf_cmd_compare},
};
/* clang-format on */

static void print_help(FILE *out, const struct mf_opt *opts, size_t n)
{
    mf_opts_help(out, "moefarm [options] COMMAND …", opts, n);
    fprintf(out, "\ncommands (moefarm COMMAND --help lists the options of each):\n");
    mf_cli_print_commands(out, commands, MF_ARRAY_LEN(commands));
    fprintf(out, "\nexit codes:\n"
                 "  0  success\n"
                 "  1  completed with failures: a refused row, a failed task, a wrong or slower config\n"
                 "  2  wrong usage, or the coordinator refused the input\n"
                 "  3  no coordinator answered, or the connection broke\n");
}

static bool locale_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);

        if (value && *value)
            return strcasestr(value, "UTF-8") || strcasestr(value, "UTF8");
    }
    return false;
}

static int run_command(struct mf_cli *cli, const char *name, int argc, char **argv)
{
    const struct mf_command *command = mf_cli_find(commands, MF_ARRAY_LEN(commands), name);

    return command ? command->run(cli, command, argc, argv) : MF_EXIT_USAGE;
}

static const char *from_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);

    return value && *value ? value : otherwise;
}

static int run(struct mf_cli *cli, int argc, char **argv)
{
    struct mf_opt opts[MF_CLI_COMMON];
    int rest, code;

    mf_cli_common(cli, opts);
    if (argc > 1 && mf_cli_is_help(argv[1])) {
        print_help(stdout, opts, MF_ARRAY_LEN(opts));
        return MF_EXIT_OK;
    }
    code = mf_opts_parse("moefarm [options] COMMAND …", opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    if (code != 0)
        return code < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (rest >= argc) {
        print_help(stderr, opts, MF_ARRAY_LEN(opts));
        return MF_EXIT_USAGE;
    }
    if (mf_fault_init() < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "MOEFARM_FAULT: expected NAME:N:FILE");
    return run_command(cli, argv[rest], argc - rest, argv + rest);
}

int mf_program_run(int argc, char **argv, const struct mf_operators *operators)
{
    /* parsing reorders argv, and a command may start the program again with the same arguments */
    _cleanup_(mf_freep) char **given = calloc((size_t)argc + 1, sizeof(*given));
    struct mf_cli cli = {.url = from_environment("MOEFARM_URL", ""),
                         .token_file = from_environment("MOEFARM_TOKEN_FILE", ""),
                         .ca = from_environment("MOEFARM_CA", ""),
                         .argv = given,
                         .argc = argc,
                         .operators = operators};
    int code;

    if (!given)
        return mf_cli_out_of_memory();
    memcpy(given, argv, (size_t)argc * sizeof(*given));
    cli.to_terminal = isatty(STDOUT_FILENO);
    cli.utf8 = locale_is_utf8();
    if (mf_plain_output_start() < 0)
        return MF_EXIT_FAILED;
    /* Ignore SIGPIPE, so that writing to a closed pipe returns an error. The signal could otherwise kill the
     * program during a merge. */
    (void)signal(SIGPIPE, SIG_IGN);

    code = run(&cli, argc, argv);
    cli.http = mf_http_free(cli.http);
    if (fflush(stdout) != 0 && code == MF_EXIT_OK)
        code = mf_cli_fail(MF_EXIT_FAILED, "standard output: %m");
    return code;
}
