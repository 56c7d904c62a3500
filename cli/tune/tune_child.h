/* Manages the child processes of `moefarm tune`. If `moefarm tune` dies, Linux kills the child processes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/tune/tune.h"

struct mf_tune_child {
    pid_t pid; /* 0: not running */
    char log[MF_TUNE_PATH_MAX + 160];
    int64_t ended_ms; /* mf_now_ms when the child was reaped */
};

/* Finds a program next to this executable (in the installed or the build layout), or else in PATH. */
void mf_tune_find_program(const char *name, const char *build_folder, char path[MF_TUNE_PATH_MAX]);
/* Starts argv with its output on the descriptors `out` and `err`. Returns -1 with errno on failure. */
pid_t mf_tune_spawn(char *const *argv, int out, int err);
/* Starts argv with its output appended to c->log. Returns the exit code. */
int mf_tune_child_start(struct mf_tune_child *c, char *const *argv);
/* Reaps the child if it has exited. Returns true if the child is not running. */
bool mf_tune_child_reap(struct mf_tune_child *c);
/* Sends SIGTERM if the child is running. */
void mf_tune_child_terminate(const struct mf_tune_child *c);
/* Waits until a child that got SIGTERM has exited. After a timeout, kills the child. */
void mf_tune_child_end(struct mf_tune_child *c);

#define MF_TUNE_LINE_MAX 300
/* Reads the last line of a log. */
void mf_tune_last_line(const char *path, char line[MF_TUNE_LINE_MAX]);
