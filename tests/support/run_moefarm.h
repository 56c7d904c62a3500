/* Runs the program moefarm in a temporary folder and captures its output. */
#pragma once

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/text.h"
#include "support/text_file.h"

#define MOEFARM MF_BINARY_DIR "/cli/moefarm"

extern char **environ;

static char folder[64];

static inline void make_folder(void)
{
    mf_format(folder, sizeof(folder), "/tmp/check_cli.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline const char *in_folder(const char *name)
{
    static char path[4][160];
    static unsigned next;
    char *p = path[next++ % 4];

    mf_format(p, sizeof(path[0]), "%s/%s", folder, name);
    return p;
}

static inline char *read_file(const char *path)
{
    static char text[4][65536];
    static unsigned next;
    char *t = text[next++ % 4];
    FILE *f = fopen(path, "re");

    ck_assert_ptr_nonnull(f);
    t[fread(t, 1, sizeof(text[0]) - 1, f)] = '\0';
    (void)fclose(f);
    return t;
}

static inline void remove_folder(void)
{
    for (const char *const *name =
             (const char *const[]){"out", "err", "shapes.csv", "shapes.json", "table.csv", "table.csv.lock",
                                   "other.csv", "other.csv.lock", NULL};
         *name; name++)
        (void)unlink(in_folder(*name));
    ck_assert_int_eq(rmdir(folder), 0);
}

struct ran {
    int code;
    const char *out, *err;
};

static inline pid_t start_moefarm(const char *url, va_list words)
{
    char *argv[24] = {(char *)MOEFARM}, variable[96], isa[32];
    /* inherited, because the test may simulate a CPU with fewer instructions */
    const char *own = getenv("MOEFARM_ISA");
    char *env[12] = {variable, (char *)"LC_ALL=C", (char *)"TZ=UTC", (char *)"http_proxy=http://127.0.0.1:9"};
    posix_spawn_file_actions_t actions;
    int argc = 1, n = 4;
    pid_t pid;

    if (own)
        env[n++] = isa;
    for (char **e = environ; *e && n < 11; e++)
        if (strncmp(*e, "AITER_", 6) == 0)
            env[n++] = *e; /* set by the test */
    for (char *word; argc < 23 && (word = va_arg(words, char *));)
        argv[argc++] = word;
    mf_format(variable, sizeof(variable), "MOEFARM_URL=%s", url);
    mf_format(isa, sizeof(isa), "MOEFARM_ISA=%s", own ? own : "");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, in_folder("out"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, in_folder("err"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(posix_spawn(&pid, MOEFARM, &actions, NULL, argv, env), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

/* Runs moefarm with the given words, the last of which is NULL. Sets MOEFARM_URL to url. */
static inline struct ran moefarm(const char *url, ...)
{
    va_list words;
    int status;

    va_start(words, url);
    pid_t pid = start_moefarm(url, words);
    va_end(words);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "moefarm died of signal %d: %s", WTERMSIG(status),
                  read_file(in_folder("err")));
    return (struct ran){WEXITSTATUS(status), read_file(in_folder("out")), read_file(in_folder("err"))};
}

/* Like moefarm(), but sends SIGINT once moefarm has connected to `listening`, the socket that listens at url.
 * Member `code` of the result is the signal that ended moefarm, or 0 if no signal did. */
static inline struct ran moefarm_interrupted(int listening, const char *url, ...)
{
    va_list words;
    int status, connection;

    va_start(words, url);
    pid_t pid = start_moefarm(url, words);
    va_end(words);
    connection = accept(listening, NULL, NULL);
    ck_assert_int_ge(connection, 0);
    ck_assert_int_eq(kill(pid, SIGINT), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    (void)close(connection);
    return (struct ran){WIFSIGNALED(status) ? WTERMSIG(status) : 0, read_file(in_folder("out")),
                        read_file(in_folder("err"))};
}

#define assert_code(r, want) \
    ck_assert_msg((r).code == (want), "exit code %d, expected %d: %s%s", (r).code, want, (r).out, (r).err)
#define assert_says(text, part) ck_assert_msg(strstr(text, part) != NULL, "no '%s' in:\n%s", part, text)
