/* moefarm, the command line: a table of commands, one file each, over docs/api.md.
 *
 * A command prints its answer on stdout and, once, whatever went wrong on stderr. Its return value is the
 * program's exit code. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/opts.h"
#include "common/net/http_client.h"

enum mf_exit {
    MF_EXIT_OK = 0,
    MF_EXIT_FAILED = 1,    /* done, but something in it failed: a task, a row */
    MF_EXIT_USAGE = 2,     /* wrong usage, or the coordinator refused the input */
    MF_EXIT_UNREACHED = 3, /* no coordinator there, or it broke off */
};

#define MF_URL_DEFAULT "http://127.0.0.1:8080"

struct mf_cli {
    const char *url;        /* "": none was named; MF_URL_DEFAULT is asked then */
    const char *token_file; /* "": MOEFARM_TOKEN holds the token, or there is none */
    const char *ca;         /* "": the system's */
    bool json;              /* raw answers of the API */
    bool to_terminal;       /* stdout is one: progress bars may be redrawn */
    bool utf8;              /* and shows block characters */
    struct mf_http *http;   /* made by the first request */
};

struct mf_command {
    const char *name, *arguments, *help;
    int (*run)(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
};

int mf_cmd_submit(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_watch(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_batches(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_show(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_cancel(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_rank(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_why(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_report(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_workers(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_drain(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_token(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_tokens(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_revoke_token(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_keys(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_revoke_key(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_export(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_csv(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_tune(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_compare(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_release(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_misses(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_quarantine(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_pull(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_run_config(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);

/* The options that every command has, and that may stand before it. */
#define MF_CLI_COMMON 4
void mf_cli_common(struct mf_cli *cli, struct mf_opt opts[MF_CLI_COMMON]);
/* Parses a command's words: options (its own, and mf_cli_common's, which every command has) may stand before,
 * between and after the other words; argv is reordered. At least min and at most max other words are left from
 * argv[*ret_rest] on; too few or too many is an error that shows the usage.
 * 0: go on; 1: help was printed; -EINVAL after a message. */
int mf_cli_parse(struct mf_cli *cli, const struct mf_command *self, const struct mf_opt *opts, size_t n,
                 int min, int max, int argc, char **argv, int *ret_rest);

/* "moefarm: " and the sentence on stderr; returns code. */
int mf_cli_fail(enum mf_exit code, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct mf_progress;
#define MF_WATCH_PATIENCE_S 60
struct mf_watch_options {
    int64_t patience_s; /* how long a coordinator that went away is waited for */
    /* About once a second, also while there is no connection: not 0 ends the watching with that exit code. With it, signals are
     * the caller's business. */
    int (*turn)(void *context, const struct mf_progress *progress);
    void *context;
};
/* Follows a batch until it ends; what `submit --watch` and `watch` do. Gives an exit code. */
int mf_watch_batch(struct mf_cli *cli, int64_t batch, const struct mf_watch_options *options);
