/* Parses command lines in which options and positional arguments may be mixed. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/cli.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

#define OPTS_MAX 64

int mf_cli_fail(enum mf_exit code, const char *format, ...)
{
    va_list args;

    (void)fflush(stdout);
    va_start(args, format);
    (void)fputs("moefarm: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    return (int)code;
}

int mf_cli_out_of_memory(void)
{
    return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
}

/* Moves options before positional arguments and keeps the order of both. "--" ends the options. */
static int reorder(const struct mf_opt *opts, size_t n, int argc, char **argv)
{
    _cleanup_(mf_freep) char **options = calloc((size_t)argc + 1, sizeof(*options));
    _cleanup_(mf_freep) char **positionals = calloc((size_t)argc + 1, sizeof(*positionals));
    int n_options = 0, n_positionals = 0, i;

    if (!options || !positionals)
        return -ENOMEM;
    for (i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (argv[i][0] != '-' || !argv[i][1]) {
            positionals[n_positionals++] = argv[i];
            continue;
        }
        options[n_options++] = argv[i];
        if (i + 1 < argc && mf_opts_words(opts, n, argv[i], argv[i + 1]) == 2)
            options[n_options++] = argv[++i];
    }
    if (i < argc)
        options[n_options++] = argv[i++];
    while (i < argc)
        positionals[n_positionals++] = argv[i++];
    memcpy(argv + 1, options, (size_t)n_options * sizeof(*argv));
    memcpy(argv + 1 + n_options, positionals, (size_t)n_positionals * sizeof(*argv));
    return 0;
}

bool mf_cli_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

/* Returns the length of the group in a command's name, with the space: 4 for "csv check", 0 for "show". */
static int group_len(const struct mf_command *command)
{
    const char *space = strrchr(command->name, ' ');

    return space ? (int)(space + 1 - command->name) : 0;
}

const struct mf_command *mf_cli_find(const struct mf_command *commands, size_t n, const char *name)
{
    size_t best_distance = MF_MIN(strlen(name) / 2 + 1, 4); /* only smaller distances count */
    const struct mf_command *best = NULL;

    for (size_t i = 0; i < n; i++) {
        const char *last = commands[i].name + group_len(&commands[i]);
        size_t d = mf_edit_distance(name, strlen(name), last, strlen(last));

        if (strcmp(last, name) == 0)
            return &commands[i];
        if (d < best_distance) {
            best_distance = d;
            best = &commands[i];
        }
    }
    if (best)
        (void)mf_cli_fail(MF_EXIT_USAGE, "unknown command '%s'; did you mean %s?", name, best->name);
    else
        (void)mf_cli_fail(MF_EXIT_USAGE, "unknown command '%s'; moefarm %.*s--help lists the commands", name,
                          group_len(commands), commands->name);
    return NULL;
}

void mf_cli_print_commands(FILE *out, const struct mf_command *commands, size_t n)
{
    char left[64];

    for (size_t i = 0; i < n; i++) {
        mf_format(left, sizeof(left), "%s %s", commands[i].name, commands[i].arguments);
        fprintf(out, "  %-26s %s\n", left, commands[i].help);
    }
}

int mf_cli_run_group(struct mf_cli *cli, const struct mf_command *self, const struct mf_command *commands,
                     size_t n, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    bool help = mf_cli_is_help(name);

    if (argc > 1 && !help) {
        const struct mf_command *command = mf_cli_find(commands, n, name);
        return command ? command->run(cli, command, argc - 1, argv + 1) : MF_EXIT_USAGE;
    }
    FILE *out = help ? stdout : stderr;
    fprintf(out, "usage: moefarm %s COMMAND …\n\n%s\n\n", self->name, self->help);
    fprintf(out, "commands (moefarm %s COMMAND --help lists the options of each):\n", self->name);
    mf_cli_print_commands(out, commands, n);
    return help ? MF_EXIT_OK : MF_EXIT_USAGE;
}

void mf_cli_common(struct mf_cli *cli, struct mf_opt opts[MF_CLI_COMMON])
{
    opts[0] = (struct mf_opt){.name = "url",
                              .type = MF_OPT_TEXT,
                              .value = &cli->url,
                              .argument = "URL",
                              .help = "URL of moefarmd (MOEFARM_URL; default: " MF_URL_DEFAULT ")"};
    opts[1] = (struct mf_opt){
        .name = "token-file",
        .type = MF_OPT_TEXT,
        .value = &cli->token_file,
        .argument = "FILE",
        .help = "file with an access token (MOEFARM_TOKEN_FILE; MOEFARM_TOKEN holds the token)"};
    opts[2] = (struct mf_opt){.name = "ca",
                              .type = MF_OPT_TEXT,
                              .value = &cli->ca,
                              .argument = "FILE",
                              .help = "CA certificate of moefarmd, PEM (MOEFARM_CA; default: the system's)"};
    opts[3] = (struct mf_opt){
        .name = "json", .type = MF_OPT_BOOL, .value = &cli->json, .help = "print the API's JSON reply"};
}

int mf_cli_parse(struct mf_cli *cli, const struct mf_command *self, const struct mf_opt *opts, size_t n,
                 int min, int max, int argc, char **argv, int *ret_rest)
{
    struct mf_opt all[OPTS_MAX], common[MF_CLI_COMMON];
    char usage[512];
    int r;

    assert(n + MF_CLI_COMMON <= OPTS_MAX);
    for (size_t i = 0; i < n; i++)
        all[i] = opts[i];
    mf_cli_common(cli, common);
    if (self->kind == MF_LOCAL) {
        all[n] = common[MF_CLI_COMMON - 1];
        all[n++].help = "print JSON";
    } else {
        memcpy(all + n, common, sizeof(common));
        n += MF_CLI_COMMON;
    }
    mf_format(usage, sizeof(usage), "moefarm %s [options] %s\n\n%s", self->name, self->arguments, self->help);
    r = reorder(all, n, argc, argv);
    if (r < 0)
        return r;
    r = mf_opts_parse(usage, all, n, argc, argv, ret_rest);
    if (r != 0)
        return r;
    if (argc - *ret_rest < min || argc - *ret_rest > max) {
        (void)mf_cli_fail(MF_EXIT_USAGE, "%s: %s; usage: moefarm %s [options] %s", self->name,
                          argc - *ret_rest < min ? "missing argument" : "too many arguments", self->name,
                          self->arguments);
        return -EINVAL;
    }
    return 0;
}
