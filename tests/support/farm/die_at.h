/* A child that is killed at a named place of common/base/fault.h. */
#pragma once

#include <check.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fault.h"

/* Forks; in the child the place is armed for its first visit, and true is returned: the child does its work and must not
 * come out of it. In the parent, which has waited for that death, false. */
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
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "it did not die at %s",
                  mf_fault_name(place));
    return false;
}
