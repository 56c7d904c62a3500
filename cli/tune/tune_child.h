/* Programs that moefarm tune starts, which die with it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/tune/tune.h"

struct mf_tune_child {
    pid_t pid; /* 0: not running */
    char log[MF_TUNE_PATH_MAX + 160];
    int64_t ended_ms; /* of mf_now_ms, once it has been reaped */
};

/* Beside this one, as they are installed and as they are built; else wherever the shell would find them. */
void mf_tune_find_program(const char *name, const char *folder_built, char path[MF_TUNE_PATH_MAX]);
/* argv with its output to those descriptors. -1 with errno. */
pid_t mf_tune_spawn(char *const *argv, int out, int err);
/* argv with its output appended to c->log. Exit code. */
int mf_tune_child_start(struct mf_tune_child *c, char *const *argv);
/* Has it ended? */
bool mf_tune_child_reap(struct mf_tune_child *c);
/* By SIGTERM, where it still runs. */
void mf_tune_child_ask_to_end(const struct mf_tune_child *c);
/* Waits for one that was asked to end, and kills it when it does not. */
void mf_tune_child_end(struct mf_tune_child *c);

#define MF_TUNE_LINE_MAX 300
/* The last line of a log, for people. */
void mf_tune_last_line(const char *path, char line[MF_TUNE_LINE_MAX]);
