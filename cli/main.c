/* moefarm: hands shapes to the farm and gets tables back. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/support/cli.h"
#include "common/base/cleanup.h"
#include "common/base/fault.h"
#include "common/base/text.h"

/* clang-format off */
static const struct mf_command commands[] = {
    {"submit",     "FILE",                   "hand in shapes: an untuned_fmoe.csv or JSON; '-' reads standard input", mf_cmd_submit},
    {"watch",      "BATCH",                  "follow a batch with progress bars until it ends",                      mf_cmd_watch},
    {"batches",    "",                       "the batches, newest first",                                            mf_cmd_batches},
    {"show",       "BATCH",                  "a batch, its tasks and what they wait for",                            mf_cmd_show},
    {"cancel",     "BATCH",                  "stop what is not done of a batch",                                     mf_cmd_cancel},
    {"rank",       "[TASK]",                 "the ranked pipelines of a task, with their cost by op",                mf_cmd_rank},
    {"why",        "TASK|SHAPE [KERNEL]",    "why not this kernel: rejected, failed, slow, or lost the race",        mf_cmd_why},
    {"report",     "BATCH ...",              "winners beside the floor of their device, and the workers' time",      mf_cmd_report},
    {"workers",    "",                       "the workers and what they are doing",                                  mf_cmd_workers},
    {"drain",      "WORKER",                 "have a worker, by number or name, finish its unit and take no more",                       mf_cmd_drain},
    {"token",      "ROLE NAME",              "make an access token (read, submit, admin) or a worker's way in (worker)", mf_cmd_token},
    {"tokens",     "",                       "the tokens, never their text",                                         mf_cmd_tokens},
    {"revoke-token", "TOKEN",                "end a token",                                                          mf_cmd_revoke_token},
    {"keys",       "",                       "the workers' keys",                                                    mf_cmd_keys},
    {"revoke-key", "KEY",                    "end a worker's key: nothing more of it is taken",                      mf_cmd_revoke_key},
    {"export",     "",                       "the tuned table, printed, written, or merged into a file",             mf_cmd_export},
    {"csv",        "COMMAND FILE ...",       "check, compare and cover a model with tables where they lie: moefarm csv --help", mf_cmd_csv},
    {"tune",       "",                       "what gemm_moe_tune.py does, with its options, on a farm of its own or a named one", mf_cmd_tune},
    {"release",    "ACTION ...",             "freeze exports, look at them, stage, approve and roll them back",      mf_cmd_release},
    {"pull",       "CHANNEL",                "bring a file up to date with a channel's approved release",            mf_cmd_pull},
    {"misses",     "",                       "what production looked up and did not find; --submit tunes it",        mf_cmd_misses},
    {"quarantine", "[revive KERNEL]",        "the kernels that are not run any more, and why; revive (role admin) lifts it", mf_cmd_quarantine},
    {"run-config", "[TABLE]",                "run a tuned table's rows here: right, and as fast as it says?",        mf_cmd_run_config},
    {"compare",    "OLD NEW",                "two tuned tables run against each other here: faster, slower, the same?", mf_cmd_compare},
};
/* clang-format on */

static void print_help(FILE *out, const struct mf_opt *opts, size_t n)
{
    mf_opts_help(out, "moefarm [options] COMMAND …", opts, n);
    fprintf(out, "\ncommands (moefarm COMMAND --help has each one's options):\n");
    for (size_t i = 0; i < MF_ARRAY_LEN(commands); i++) {
        char left[64];

        mf_format(left, sizeof(left), "%s %s", commands[i].name, commands[i].arguments);
        fprintf(out, "  %-26s %s\n", left, commands[i].help);
    }
    fprintf(out,
            "\nexit codes:\n"
            "  0  fine\n"
            "  1  done, but something in it failed: a refused row, a failed task, a wrong or slower config\n"
            "  2  wrong usage, or the coordinator refused the input\n"
            "  3  no coordinator answered, or it broke off\n");
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
    for (size_t i = 0; i < MF_ARRAY_LEN(commands); i++) {
        if (!strcmp(commands[i].name, name))
            return commands[i].run(cli, &commands[i], argc, argv);
    }
    return mf_cli_fail(MF_EXIT_USAGE, "there is no command '%s'; moefarm --help lists them", name);
}

static const char *from_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);

    return value && *value ? value : otherwise;
}

int main(int argc, char **argv)
{
    struct mf_cli cli = {.url = from_environment("MOEFARM_URL", ""),
                         .token_file = from_environment("MOEFARM_TOKEN_FILE", ""),
                         .ca = from_environment("MOEFARM_CA", "")};
    struct mf_opt opts[MF_CLI_COMMON];
    int rest, code;

    mf_cli_common(&cli, opts);
    cli.to_terminal = isatty(STDOUT_FILENO);
    cli.utf8 = locale_is_utf8();
    /* A closed pipe behind us is a write error, not a death in the middle of a merge */
    (void)signal(SIGPIPE, SIG_IGN);

    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))) {
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
        return mf_cli_fail(MF_EXIT_USAGE, "MOEFARM_FAULT: give NAME:N:FILE");
    code = run_command(&cli, argv[rest], argc - rest, argv + rest);
    cli.http = mf_http_free(cli.http);
    if (fflush(stdout) != 0 && code == MF_EXIT_OK)
        code = mf_cli_fail(MF_EXIT_FAILED, "standard output: %m");
    return code;
}
