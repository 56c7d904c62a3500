/* The words of a command line, in any order. */
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

/* Brings options before the other words, both in their order; "--" ends the options. */
static int reorder(const struct mf_opt *opts, size_t n, int argc, char **argv)
{
    _cleanup_(mf_freep) char **options = calloc((size_t)argc + 1, sizeof(*options));
    _cleanup_(mf_freep) char **others = calloc((size_t)argc + 1, sizeof(*others));
    int n_options = 0, n_others = 0, i;

    if (!options || !others)
        return -ENOMEM;
    for (i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (argv[i][0] != '-' || !argv[i][1]) {
            others[n_others++] = argv[i];
            continue;
        }
        options[n_options++] = argv[i];
        if (i + 1 < argc && mf_opts_words(opts, n, argv[i], argv[i + 1]) == 2)
            options[n_options++] = argv[++i];
    }
    if (i < argc)
        options[n_options++] = argv[i++];
    while (i < argc)
        others[n_others++] = argv[i++];
    memcpy(argv + 1, options, (size_t)n_options * sizeof(*argv));
    memcpy(argv + 1 + n_options, others, (size_t)n_others * sizeof(*argv));
    return 0;
}

void mf_cli_common(struct mf_cli *cli, struct mf_opt opts[MF_CLI_COMMON])
{
    opts[0] = (struct mf_opt){.name = "url",
                              .type = MF_OPT_TEXT,
                              .value = &cli->url,
                              .argument = "URL",
                              .help = "of moefarmd (MOEFARM_URL; " MF_URL_DEFAULT " otherwise)"};
    opts[1] =
        (struct mf_opt){.name = "token-file",
                        .type = MF_OPT_TEXT,
                        .value = &cli->token_file,
                        .argument = "FILE",
                        .help = "that holds an access token (MOEFARM_TOKEN_FILE; MOEFARM_TOKEN is one)"};
    opts[2] = (struct mf_opt){.name = "ca",
                              .type = MF_OPT_TEXT,
                              .value = &cli->ca,
                              .argument = "FILE",
                              .help = "PEM of who vouches for moefarmd's certificate (MOEFARM_CA)"};
    opts[3] = (struct mf_opt){
        .name = "json", .type = MF_OPT_BOOL, .value = &cli->json, .help = "print the API's answer as it is"};
}

int mf_cli_parse(struct mf_cli *cli, const struct mf_command *self, const struct mf_opt *opts, size_t n,
                 int min, int max, int argc, char **argv, int *ret_rest)
{
    struct mf_opt all[OPTS_MAX];
    char usage[512];
    int r;

    assert(n + MF_CLI_COMMON <= OPTS_MAX);
    for (size_t i = 0; i < n; i++)
        all[i] = opts[i];
    mf_cli_common(cli, all + n);
    n += MF_CLI_COMMON;
    mf_format(usage, sizeof(usage), "moefarm %s [options] %s\n\n%s", self->name, self->arguments, self->help);
    r = reorder(all, n, argc, argv);
    if (r < 0)
        return r;
    r = mf_opts_parse(usage, all, n, argc, argv, ret_rest);
    if (r != 0)
        return r;
    if (argc - *ret_rest < min || argc - *ret_rest > max) {
        (void)mf_cli_fail(MF_EXIT_USAGE, "%s: %s; the usage is: moefarm %s [options] %s", self->name,
                          argc - *ret_rest < min ? "an argument is missing" : "too many arguments",
                          self->name, self->arguments);
        return -EINVAL;
    }
    return 0;
}
