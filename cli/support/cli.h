/* Shared definitions of the moefarm command line, which is a table of commands on top of the REST API. Each
 * command has its own source file.
 *
 * A command prints its result on stdout and each error once on stderr. It returns the program's exit code. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/opts.h"
#include "common/net/http_client.h"

enum mf_exit {
    MF_EXIT_OK = 0,
    MF_EXIT_FAILED = 1,    /* completed, but a task or row failed */
    MF_EXIT_USAGE = 2,     /* wrong usage, or the coordinator refused the input */
    MF_EXIT_UNREACHED = 3, /* no coordinator answered, or the connection broke */
};

#define MF_URL_DEFAULT "http://127.0.0.1:8080"

struct mf_operators;

struct mf_cli {
    const char *url;        /* "": use MF_URL_DEFAULT */
    const char *token_file; /* "": use the environment variable MOEFARM_TOKEN, if set */
    const char *ca;         /* CA certificate file; "": use the system's CA certificates */
    bool json;              /* true: print the API's JSON replies */
    bool to_terminal;       /* true: stdout is a terminal, so progress bars may be redrawn */
    bool utf8;              /* true: the terminal can show block characters */
    struct mf_http *http;   /* created by the first request */
    char *const *argv;      /* arguments of the program, in the order in which they were given */
    int argc;
    /* operators of the Python interpreter that this process is in; NULL: it is in none */
    const struct mf_operators *operators;
};

enum mf_command_kind {
    MF_FARM,  /* needs a coordinator, so it has the options --url, --token-file and --ca */
    MF_LOCAL, /* works without a coordinator */
};

struct mf_command {
    const char *name;
    enum mf_command_kind kind;
    const char *arguments, *help;
    int (*run)(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
};

/* True if the word asks for help in place of a command's name. */
bool mf_cli_is_help(const char *word);
/* Prints one line per command. */
void mf_cli_print_commands(FILE *out, const struct mf_command *commands, size_t n);
/* Returns the command with this name, or NULL after a message that suggests a similar name. In the tables of
 * `csv` and `release`, `name` is the last word of a command's name ("csv check"). */
const struct mf_command *mf_cli_find(const struct mf_command *commands, size_t n, const char *name);
/* Runs a command that consists of other commands: argv[1] is the name of one of them. */
int mf_cli_run_group(struct mf_cli *cli, const struct mf_command *self, const struct mf_command *commands,
                     size_t n, int argc, char **argv);

int mf_cmd_submit(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_watch(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_batches(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_show(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_cancel(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_rank(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_why(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_report(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_workers(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
int mf_cmd_revive_worker(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv);
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

/* Number of options that every command accepts, except that a local command has only the last one, --json.
 * Users may also write these options before the command's name. */
#define MF_CLI_COMMON 4
void mf_cli_common(struct mf_cli *cli, struct mf_opt opts[MF_CLI_COMMON]);
/* Parses a command's arguments. Options of the command and common options may stand anywhere; argv is
 * reordered. The positional arguments then begin at argv[*ret_rest]. If there are fewer than min or more than
 * max, prints the usage. Returns 0 to continue, 1 if help was printed, or -EINVAL after a message. */
int mf_cli_parse(struct mf_cli *cli, const struct mf_command *self, const struct mf_opt *opts, size_t n,
                 int min, int max, int argc, char **argv, int *ret_rest);

/* Prints "moefarm: " and the message on stderr. Returns code. */
int mf_cli_fail(enum mf_exit code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int mf_cli_out_of_memory(void);

struct mf_progress;
#define MF_WATCH_TIMEOUT_S 60
struct mf_watch_options {
    int64_t reconnect_timeout_s; /* maximum time without a connection to the coordinator */
    /* Called about once a second, even while disconnected. A non-zero result ends the watch with that exit
     * code. If on_tick is set, the caller must handle signals. */
    int (*on_tick)(void *context, const struct mf_progress *progress);
    void *context;
};
/* Follows a batch until it ends, for `submit --watch` and `watch`. Returns the exit code. */
int mf_watch_batch(struct mf_cli *cli, int64_t batch, const struct mf_watch_options *options);
