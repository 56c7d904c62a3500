/* Attempts of operations that a sandboxed runner must not perform. Each function returns 0 if the attempt
 * succeeded, else its errno. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* environment variable with the path of a file outside the sandbox, which is the target of the write attempts
 */
#define PRYING_FILE "MOEFARM_PRYING_FILE"

static inline int attempt_result(long r)
{
    return r < 0 ? errno : 0;
}

static inline int attempt_socket(int domain, int type)
{
    int fd = socket(domain, type, 0);
    int r = attempt_result(fd);
    if (fd >= 0)
        (void)close(fd);
    return r;
}

static inline int attempt_tcp(void)
{
    return attempt_socket(AF_INET, SOCK_STREAM);
}

static inline int attempt_udp6(void)
{
    return attempt_socket(AF_INET6, SOCK_DGRAM);
}

static inline int attempt_netlink(void)
{
    return attempt_socket(AF_NETLINK, SOCK_RAW);
}

/* Connects to the socket of a system daemon. */
static inline int attempt_connect(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "/run/docker.sock"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    int r = fd < 0 ? errno : attempt_result(connect(fd, (struct sockaddr *)&to, sizeof(to)));
    if (fd >= 0)
        (void)close(fd);
    return r;
}

static inline int attempt_write(void)
{
    const char *path = getenv(PRYING_FILE);
    int fd = open(path ? path : "/tmp/prying", O_WRONLY | O_CREAT, 0600);
    int r = attempt_result(fd);
    if (fd >= 0)
        (void)close(fd);
    return r;
}

static inline int attempt_read(void)
{
    int fd = open("/etc/shadow", O_RDONLY);
    int r = attempt_result(fd);
    if (fd >= 0)
        (void)close(fd);
    return r;
}

/* Truncates the file through open(). In the sandbox, PRYING_FILE may be readable or hidden. */
static inline int attempt_cut(void)
{
    const char *path = getenv(PRYING_FILE);
    int fd = open(path ? path : "/tmp/prying", O_RDONLY | O_TRUNC);
    int r = attempt_result(fd);
    if (fd >= 0)
        (void)close(fd);
    return r;
}

static inline int attempt_truncate(void)
{
    const char *path = getenv(PRYING_FILE);
    return attempt_result(truncate(path ? path : "/tmp/prying", 0));
}

static inline int attempt_chmod(void)
{
    return attempt_result(chmod("/tmp", 01777));
}

static inline int attempt_shell(void)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        (void)execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
        _exit(errno);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static inline int attempt_ptrace(void)
{
    return attempt_result(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL));
}

static inline int attempt_namespace(void)
{
    return attempt_result(syscall(SYS_unshare, CLONE_NEWNS));
}

/* The mount point does not exist, so the attempt is harmless even if mounts are allowed. */
static inline int attempt_mount(void)
{
    return attempt_result(mount("none", "/nowhere/at-all", "tmpfs", 0, NULL));
}

static inline int attempt_io_uring(void)
{
    char parameters[120] = {0};
    return attempt_result(syscall(SYS_io_uring_setup, 1, parameters));
}

struct sandbox_attempt {
    const char *name;
    int (*try)(void);
    int files; /* 1 if Landlock refuses the operation, 0 if seccomp does */
};
/* clang-format off */
static const struct sandbox_attempt attempts[] = {
    {"tcp",       attempt_tcp,       0},
    {"udp6",      attempt_udp6,      0},
    {"netlink",   attempt_netlink,   0},
    {"connect",   attempt_connect,   0},
    {"write",     attempt_write,     1},
    {"read",      attempt_read,      1},
    {"cut",       attempt_cut,       0},
    {"truncate",  attempt_truncate,  0},
    {"chmod",     attempt_chmod,     0},
    {"shell",     attempt_shell,     0},
#ifndef __SANITIZE_ADDRESS__ /* LeakSanitizer needs ptrace */
    {"ptrace",    attempt_ptrace,    0},
#endif
    {"namespace", attempt_namespace, 0},
    {"mount",     attempt_mount,     0},
    {"io_uring",  attempt_io_uring,  0},
};
/* clang-format on */
#define N_PRYINGS (sizeof(attempts) / sizeof(attempts[0]))
