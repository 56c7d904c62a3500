#include "cli/tune/tune_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/support/cli.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"

#define STOP_TIMEOUT_MS 10000 /* maximum time from SIGTERM to exit */
#define POLL_MS         10

void mf_tune_find_program(const char *name, const char *build_folder, char path[MF_TUNE_PATH_MAX])
{
    char self[MF_TUNE_PATH_MAX / 2];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash) {
        *slash = '\0';
        mf_format(path, MF_TUNE_PATH_MAX, "%s/%s", self, name);
        if (access(path, X_OK) == 0)
            return;
        mf_format(path, MF_TUNE_PATH_MAX, "%s/../%s/%s", self, build_folder, name);
        if (access(path, X_OK) == 0)
            return;
    }
    mf_format(path, MF_TUNE_PATH_MAX, "%s", name);
}

/* Runs in the child, between fork and exec. */
static void exec_child(char *const *argv, int out, int err, pid_t parent)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    /* Stop this process when the parent exits or dies. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    /* Leave the terminal's process group, because the parent handles Ctrl-C and stops its children in order.
     */
    (void)setpgid(0, 0);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(127);
    (void)execvp(argv[0], argv);
    (void)dprintf(2, "%s: %s\n", argv[0], strerrordesc_np(errno));
    _exit(127);
}

/* Uses fork because posix_spawn cannot set PR_SET_PDEATHSIG. */
pid_t mf_tune_spawn(char *const *argv, int out, int err)
{
    pid_t parent = getpid(), pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0)
        exec_child(argv, out, err, parent);
    return pid;
}

int mf_tune_child_start(struct mf_tune_child *c, char *const *argv)
{
    _cleanup_(mf_closep) int log = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (log < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", c->log, strerrordesc_np(errno));
    c->pid = mf_tune_spawn(argv, log, log);
    if (c->pid < 0) {
        c->pid = 0;
        return mf_cli_fail(MF_EXIT_FAILED, "cannot start %s: %s", argv[0], strerrordesc_np(errno));
    }
    return 0;
}

bool mf_tune_child_reap(struct mf_tune_child *c)
{
    if (c->pid > 0 && waitpid(c->pid, NULL, WNOHANG) == c->pid) {
        c->pid = 0;
        c->ended_ms = mf_now_ms();
    }
    return c->pid == 0;
}

void mf_tune_last_line(const char *path, char line[MF_TUNE_LINE_MAX])
{
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[4096];
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, MF_MAX(end - (off_t)sizeof(text) + 1, 0));

    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    text[MF_MAX(n, 0)] = '\0';
    const char *newline = strrchr(text, '\n');
    mf_format(line, MF_TUNE_LINE_MAX, "%s", newline ? newline + 1 : text);
}

void mf_tune_child_terminate(const struct mf_tune_child *c)
{
    if (c->pid > 0)
        (void)kill(c->pid, SIGTERM);
}

void mf_tune_child_end(struct mf_tune_child *c)
{
    int64_t until = mf_now_ms() + STOP_TIMEOUT_MS;

    while (!mf_tune_child_reap(c) && mf_now_ms() < until)
        mf_sleep_ms(POLL_MS);
    if (c->pid > 0) {
        (void)kill(c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
        c->pid = 0;
    }
}
