#include "worker/runner/device_query.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/gpu/host/hip_open.h"

#define TIMEOUT_MS 60000

struct answer {
    int r;
    char text[MF_DEVICE_TEXT_MAX], why[256];
};
typedef void (*query_fn)(const char *target, struct answer *ret);

static void count(const char *vendor, struct answer *a)
{
    a->r = mf_device_hip_count(vendor, a->why, sizeof(a->why));
}

static void identify(const char *device, struct answer *a)
{
    a->r = mf_device_hip_identity(device, a->text, sizeof(a->text), a->why, sizeof(a->why));
}

/* Reads the answer. The child writes it with a single write of less than PIPE_BUF bytes, so it arrives
 * completely or not at all. */
static void read_answer(int fd, struct answer *ret)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int r;
    while ((r = poll(&p, 1, TIMEOUT_MS)) < 0 && errno == EINTR)
        ;
    ssize_t n = r > 0 ? read(fd, ret, sizeof(*ret)) : 0;
    if (n == (ssize_t)sizeof(*ret))
        return;
    *ret = (struct answer){.r = r == 0 ? -ETIMEDOUT : -EIO};
}

static void run_in_child(query_fn fn, const char *target, struct answer *ret)
{
    int pipes[2], status = 0;
    *ret = (struct answer){.r = -EIO};
    pid_t pid = pipe(pipes) < 0 ? -1 : fork();
    if (pid < 0) {
        ret->r = -errno;
        mf_format(ret->why, sizeof(ret->why), "cannot start a child process: %s", strerror(errno));
        return;
    }
    if (pid == 0) {
        (void)close(pipes[0]);
        fn(target, ret);
        _exit(write(pipes[1], ret, sizeof(*ret)) == (ssize_t)sizeof(*ret) ? 0 : 1);
    }
    (void)close(pipes[1]);
    read_answer(pipes[0], ret);
    (void)close(pipes[0]);
    (void)kill(pid, SIGKILL); /* the child has answered or hangs */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (ret->r == -ETIMEDOUT)
        mf_format(ret->why, sizeof(ret->why), "the GPU runtime did not respond within %d s",
                  TIMEOUT_MS / 1000);
    else if (ret->r < 0 && !ret->why[0])
        mf_format(ret->why, sizeof(ret->why), "the GPU runtime crashed: %s %d",
                  WIFSIGNALED(status) ? "signal" : "exit code",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

int mf_device_query_count(const char *vendor, char *why, size_t why_cap)
{
    struct answer a;
    run_in_child(count, vendor, &a);
    mf_format(why, why_cap, "%s", a.why);
    return a.r;
}

int mf_device_query_identity(const char *device, char *ret, size_t cap, char *why, size_t why_cap)
{
    struct answer a;
    run_in_child(identify, device, &a);
    mf_format(why, why_cap, "%s", a.why);
    return a.r < 0 ? a.r : mf_copy(ret, cap, a.text);
}
