/* Kills a child process at a named crash point of common/base/fault.h. */
#pragma once

#include <check.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fault.h"

/* Forks. In the child process, arms the crash point for its first visit and returns true; the child then does
 * its work, during which it must die. In the parent process, waits until the child has died and returns
 * false. */
static inline bool die_at(enum mf_fault place)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        char file[] = "/tmp/moefarm-fault.XXXXXX", value[96];
        int fd = mkstemp(file);
        (void)snprintf(value, sizeof(value), "%s:1:%s", mf_fault_name(place), file);
        (void)setenv("MOEFARM_FAULT", value, 1);
        if (fd < 0 || mf_fault_init() < 0)
            _exit(1);
        (void)unlink(file);
        return true;
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child survived crash point %s",
                  mf_fault_name(place));
    return false;
}
