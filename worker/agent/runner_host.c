#include "worker/agent/runner_host.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define SOCKET_BUFFER (1 << 20)
#define TASKS_MAX     512
#define TASKS_PER_CPU 16

struct mf_runner_host {
    pid_t pid; /* the runner's supervisor; 0 after it was reaped */
    int pidfd, err_fd;
    struct mf_channel channel;
    char tail[MF_RUNNER_STDERR_MAX];
    size_t n_tail;
    int64_t limit_ms, deadline_ms; /* 0 and INT64_MAX: no limit */
    bool hung, exited, death_reported;
    int announced_signal; /* signal that `dying` announced before the process exited; 0: none */
    int protocol_error;   /* error of the runner protocol for which the runner was killed; 0: none */
    int exit_code;        /* as mf_supervisor_start describes it */
    int64_t died_ms;
};

extern char **environ;

/* Returns the worker's environment plus `variable`. Leaves out MOEFARM_TOKEN, because runners must not see
 * it. */
static char **make_environment(char *variable)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **env = calloc(n + 2, sizeof(*env));
    if (!env)
        return NULL;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(environ[i], MF_RUNNER_FD_ENV "=", strlen(MF_RUNNER_FD_ENV) + 1) != 0 &&
            strncmp(environ[i], "MOEFARM_TOKEN=", strlen("MOEFARM_TOKEN=")) != 0)
            env[k++] = environ[i];
    }
    env[k] = variable;
    return env;
}

/* A runner has a thread for each CPU, and so have the libraries that it loads and its own children. */
static int tasks_max(void)
{
    return TASKS_MAX + TASKS_PER_CPU * mf_cpus_allowed();
}

static int spawn(const char *const *argv, enum mf_isolation isolation, int socket_fd, int err_fd, pid_t *ret)
{
    char variable[64];
    mf_format(variable, sizeof(variable), "%s=%d", MF_RUNNER_FD_ENV, MF_SUPERVISED_FD);
    _cleanup_(mf_freep) char **env = make_environment(variable);
    if (!env)
        return -ENOMEM;
    return mf_supervisor_start(&(struct mf_supervisor){.isolation = isolation,
                                                       .argv = argv,
                                                       .env = env,
                                                       .socket_fd = socket_fd,
                                                       .err_fd = err_fd,
                                                       .tasks_max = tasks_max()},
                               ret);
}

/* Moves *fd above MF_SUPERVISED_FD, because dup2 onto the same number would keep the close-on-exec flag. */
static int move_above_child_fd(int *fd)
{
    if (*fd > MF_SUPERVISED_FD)
        return 0;
    int higher = fcntl(*fd, F_DUPFD_CLOEXEC, MF_SUPERVISED_FD + 1);
    if (higher < 0)
        return -errno;
    (void)close(*fd);
    *fd = higher;
    return 0;
}

static int start(struct mf_runner_host *h, const char *const *argv, enum mf_isolation isolation)
{
    int pair[2], err[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    h->channel.fd = pair[0];
    _cleanup_(mf_closep) int child_fd = pair[1];
    const int size = SOCKET_BUFFER;
    (void)setsockopt(child_fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    if (pipe2(err, O_CLOEXEC) < 0)
        return -errno;
    h->err_fd = err[0];
    _cleanup_(mf_closep) int err_write = err[1];
    if (fcntl(h->err_fd, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    int r = move_above_child_fd(&child_fd);
    if (r == 0)
        r = move_above_child_fd(&err_write);
    if (r == 0)
        r = spawn(argv, isolation, child_fd, err_write, &h->pid);
    if (r < 0)
        return r;
    h->pidfd = (int)syscall(SYS_pidfd_open, h->pid, 0);
    if (h->pidfd < 0)
        return -errno;
    return 0;
}

int mf_runner_host_start(const char *const *argv, enum mf_isolation isolation, struct mf_runner_host **ret)
{
    struct mf_runner_host *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->pidfd = h->err_fd = -1;
    h->deadline_ms = INT64_MAX;
    mf_channel_init(&h->channel, -1);
    int r = start(h, argv, isolation);
    if (r < 0) {
        mf_runner_host_free(h);
        return r;
    }
    *ret = h;
    return 0;
}

struct mf_runner_host *mf_runner_host_free(struct mf_runner_host *h)
{
    if (!h)
        return NULL;
    if (h->pid > 0) {
        mf_supervisor_kill(h->pid);
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (h->pidfd >= 0)
        (void)close(h->pidfd);
    if (h->err_fd >= 0)
        (void)close(h->err_fd);
    mf_channel_release(&h->channel);
    free(h);
    return NULL;
}

pid_t mf_runner_host_pid(const struct mf_runner_host *h)
{
    return h->pid;
}

void mf_runner_host_pollfds(const struct mf_runner_host *h, struct pollfd fds[MF_RUNNER_POLLFDS])
{
    short events = (short)(POLLIN | (mf_channel_wants_write(&h->channel) ? POLLOUT : 0));
    fds[0] = (struct pollfd){.fd = h->channel.eof ? -1 : h->channel.fd, .events = events};
    fds[1] = (struct pollfd){.fd = h->err_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = h->exited ? -1 : h->pidfd, .events = POLLIN};
}

static void restart_limit(struct mf_runner_host *h)
{
    h->deadline_ms = h->limit_ms > 0 ? mf_now_ms() + h->limit_ms : INT64_MAX;
}

void mf_runner_host_limit(struct mf_runner_host *h, int64_t limit_ms)
{
    h->limit_ms = limit_ms;
    restart_limit(h);
}

int64_t mf_runner_host_deadline_ms(const struct mf_runner_host *h)
{
    return h->exited || h->hung ? INT64_MAX : h->deadline_ms;
}

int mf_runner_host_send(struct mf_runner_host *h, const cJSON *message, int fd)
{
    return mf_channel_send(&h->channel, message, fd);
}

void mf_runner_host_kill(struct mf_runner_host *h)
{
    if (h->pid > 0 && !h->exited)
        mf_supervisor_kill(h->pid);
}

static void keep_tail(struct mf_runner_host *h, const char *data, size_t len)
{
    if (len > sizeof(h->tail)) {
        data += len - sizeof(h->tail);
        len = sizeof(h->tail);
    }
    size_t over = h->n_tail + len > sizeof(h->tail) ? h->n_tail + len - sizeof(h->tail) : 0;
    memmove(h->tail, h->tail + over, h->n_tail - over);
    h->n_tail -= over;
    memcpy(h->tail + h->n_tail, data, len);
    h->n_tail += len;
}

/* Reads a limited amount of stderr, so that a runner that prints without end does not block the worker. */
static void read_stderr(struct mf_runner_host *h)
{
    char data[4096];
    for (int i = 0; i < 64 && h->err_fd >= 0; i++) {
        ssize_t n = read(h->err_fd, data, sizeof(data));
        if (n > 0) {
            keep_tail(h, data, (size_t)n);
        } else if (n == 0) {
            (void)close(h->err_fd);
            h->err_fd = -1;
        } else if (errno != EINTR) {
            return;
        }
    }
}

static void check_exit(struct mf_runner_host *h)
{
    siginfo_t info = {0};
    if (h->exited || waitid(P_PID, (id_t)h->pid, &info, WEXITED | WNOHANG) < 0 || info.si_pid == 0)
        return;
    h->exited = true;
    h->exit_code = info.si_code == CLD_EXITED ? info.si_status : MF_SUPERVISED_SIGNAL + info.si_status;
    if (h->died_ms == 0)
        h->died_ms = mf_now_ms();
    h->pid = 0;
}

void mf_runner_host_run_once(struct mf_runner_host *h)
{
    /* Check for exit before reading, because everything the runner wrote is readable once its exit is
     * visible. */
    check_exit(h);
    if (mf_channel_flush(&h->channel) < 0)
        mf_buf_clear(&h->channel.out);
    int r = mf_channel_fill(&h->channel);
    if (r < 0 && h->protocol_error == 0) {
        h->protocol_error = r;
        mf_runner_host_kill(h);
    }
    read_stderr(h);
    /* A runner that closed its socket cannot be used any more */
    if (h->channel.eof)
        mf_runner_host_kill(h);
}

/* Returns the next message. After the exit of the runner, also reads the rest of the data, which did not fit
 * into the buffer before. */
static int take_message(struct mf_runner_host *h, cJSON **ret)
{
    int r = mf_channel_next(&h->channel, ret);
    if (r != 0 || !h->exited)
        return r;
    r = mf_channel_fill(&h->channel);
    return r < 0 ? r : mf_channel_next(&h->channel, ret);
}

static enum mf_runner_event take_dying(struct mf_runner_host *h, cJSON **message)
{
    int64_t number = 0;
    (void)mf_json_i64(*message, "signal", 1, 64, &number);
    cJSON_Delete(*message);
    *message = NULL;
    h->announced_signal = (int)number;
    h->deadline_ms = INT64_MAX;
    if (h->died_ms == 0)
        h->died_ms = mf_now_ms();
    h->death_reported = true;
    return MF_RUNNER_DIED;
}

enum mf_runner_event mf_runner_host_next(struct mf_runner_host *h, cJSON **ret)
{
    if (h->death_reported)
        return MF_RUNNER_NOTHING;
    int r = h->protocol_error ? 0 : take_message(h, ret);
    if (r == 1 && strcmp(mf_channel_op(*ret), "dying") == 0)
        return take_dying(h, ret);
    if (r == 1) {
        restart_limit(h);
        return MF_RUNNER_MESSAGE;
    }
    if (r < 0) {
        h->protocol_error = r;
        mf_runner_host_kill(h);
    }
    /* Check the deadline after handling the messages, because a busy worker may read a message late although
     * the message arrived in time. */
    if (mf_now_ms() >= mf_runner_host_deadline_ms(h)) {
        h->hung = true;
        mf_runner_host_kill(h);
    }
    if (!h->exited)
        return MF_RUNNER_NOTHING;
    h->death_reported = true;
    return MF_RUNNER_DIED;
}

int mf_runner_host_take_fd(struct mf_runner_host *h)
{
    return mf_channel_take_fd(&h->channel);
}

bool mf_runner_host_exited(const struct mf_runner_host *h)
{
    return h->exited;
}

bool mf_runner_host_hung(const struct mf_runner_host *h)
{
    return h->hung;
}

/* Appends the last part of stderr, in printable ASCII on one line, so that the text fits into JSON. */
static void add_tail(const struct mf_runner_host *h, char *buf, size_t cap)
{
    size_t at = strlen(buf);
    size_t n = h->n_tail;
    while (n > 0 && isspace((unsigned char)h->tail[n - 1]))
        n--;
    if (n == 0 || at + 16 >= cap)
        return;
    mf_format(buf + at, cap - at, "; stderr: ");
    at += strlen(buf + at);
    size_t room = cap - at - 1;
    for (size_t i = n > room ? n - room : 0; i < n; i++) {
        unsigned char c = (unsigned char)h->tail[i];
        buf[at++] = c == '\n' ? '|' : c < 0x20 ? ' ' : c >= 0x7f ? '?' : (char)c;
    }
    buf[at] = '\0';
}

void mf_runner_host_why(const struct mf_runner_host *h, char *buf, size_t cap)
{
    assert(h->death_reported);
    if (h->announced_signal)
        mf_format(buf, cap, "signal %d (%s)", h->announced_signal, strsignal(h->announced_signal));
    else if (h->protocol_error)
        mf_format(buf, cap, "broke the runner protocol (%s)", strerror(-h->protocol_error));
    else if (h->hung)
        mf_format(buf, cap, "silent for more than %lld ms", (long long)h->limit_ms);
    else if (h->exit_code == MF_SUPERVISED_TASKS)
        mf_format(buf, cap, "more than %d processes and threads", tasks_max());
    else if (h->exit_code <= MF_SUPERVISED_SIGNAL)
        mf_format(buf, cap, "exit code %d", h->exit_code);
    else
        mf_format(buf, cap, "signal %d (%s)", h->exit_code - MF_SUPERVISED_SIGNAL,
                  strsignal(h->exit_code - MF_SUPERVISED_SIGNAL));
    add_tail(h, buf, cap);
}

int64_t mf_runner_host_died_ms(const struct mf_runner_host *h)
{
    return h->died_ms;
}
