/* Runs a program and captures its standard output and standard error. */
#pragma once

#include <check.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM_WORDS 24 /* size of argv, including the terminating NULL */

extern char **environ;

struct ran {
    int code;
    char text[32768]; /* standard output and standard error together */
};

/* Runs a program with the words of `program` followed by those of `more`; a NULL ends each array. The program
 * is searched in PATH if its first word contains no slash. */
static inline struct ran run_program(const char *const *program, const char *const *more)
{
    struct ran r = {0};
    const char *argv[PROGRAM_WORDS] = {NULL};
    posix_spawn_file_actions_t actions;
    int pipes[2], n = 0, status;
    size_t len = 0;
    pid_t pid;

    while (*program || *more) {
        ck_assert_int_lt(n, PROGRAM_WORDS - 1);
        argv[n++] = *program ? *program++ : *more++;
    }
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipes[1], 1);
    posix_spawn_file_actions_adddup2(&actions, pipes[1], 2);
    ck_assert_int_eq(posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    (void)close(pipes[1]);
    for (ssize_t got; (got = read(pipes[0], r.text + len, sizeof(r.text) - 1 - len)) > 0;)
        len += (size_t)got;
    (void)close(pipes[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "%s died of signal %d: %s", argv[0], WTERMSIG(status), r.text);
    r.code = WEXITSTATUS(status);
    return r;
}

#define assert_says(r, part) ck_assert_msg(strstr((r).text, part) != NULL, "no '%s' in:\n%s", part, (r).text)
