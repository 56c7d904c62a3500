/* Attempts of operations that a sandboxed runner must not perform. Each function returns 0 if the attempt
 * succeeded, else its errno. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* environment variable with the path of a file outside the sandbox, which is the target of the write attempts
 */
#define PRYING_FILE "MOEFARM_PRYING_FILE"
/* environment variable with the path of a datagram socket of another process */
#define PRYING_SOCKET "MOEFARM_PRYING_SOCKET"
/* environment variable with the pid of another process of the same user */
#define PRYING_PID "MOEFARM_PRYING_PID"

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

/* Calls that Landlock does not cover. A filter may also let such a call succeed without an effect, so the
 * attempts check the effect. */

static inline const char *prying_file(struct stat *ret_before)
{
    const char *path = getenv(PRYING_FILE);
    if (stat(path ? path : "/tmp", ret_before) < 0)
        memset(ret_before, 0, sizeof(*ret_before));
    return path ? path : "/tmp";
}

static inline int mode_result(long r, const char *path, const struct stat *before)
{
    struct stat now;
    int error = errno;
    if (r < 0)
        return error;
    return stat(path, &now) == 0 && now.st_mode == before->st_mode ? EPERM : 0;
}

static inline mode_t other_mode(const struct stat *before)
{
    return (before->st_mode & 07777) ^ 0044;
}

static inline int attempt_chmod(void)
{
    struct stat before;
    const char *path = prying_file(&before);
    return mode_result(chmod(path, other_mode(&before)), path, &before);
}

#ifndef SYS_fchmodat2
#    define SYS_fchmodat2 452
#endif
static inline int attempt_fchmodat2(void)
{
    struct stat before;
    const char *path = prying_file(&before);
    long r = syscall(SYS_fchmodat2, AT_FDCWD, path, other_mode(&before), AT_SYMLINK_NOFOLLOW);
    return r < 0 && errno == ENOSYS ? EPERM : mode_result(r, path, &before);
}

static inline int attempt_utimens(void)
{
    struct stat before, now;
    const char *path = prying_file(&before);
    const struct timespec times[2] = {{before.st_mtime - 1000, 0}, {before.st_mtime - 1000, 0}};
    if (utimensat(AT_FDCWD, path, times, 0) < 0)
        return errno;
    return stat(path, &now) == 0 && now.st_mtime == before.st_mtime ? EPERM : 0;
}

static inline int attempt_lease(void)
{
    struct stat before;
    int fd = open(prying_file(&before), O_RDONLY);
    int r = attempt_result(fd < 0 ? -1 : fcntl(fd, F_SETLEASE, F_RDLCK));
    if (fd >= 0)
        (void)close(fd);
    return r;
}

/* Sends a descriptor to a process that it is not connected to. */
static inline int attempt_datagram(void)
{
    const char *path = getenv(PRYING_SOCKET);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {
        .head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char byte = 'x';
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_name = &to,
                             .msg_namelen = sizeof(to),
                             .msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    int pair[2];
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", path ? path : "/nowhere");
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0)
        return errno;
    memcpy(CMSG_DATA(&control.head), &pair[1], sizeof(int));
    int r = attempt_result(sendmsg(pair[0], &message, 0));
    (void)close(pair[0]);
    (void)close(pair[1]);
    return r;
}

/* System V IPC objects and message queues belong to no folder. */

static inline int attempt_shm(void)
{
    int id = shmget(IPC_PRIVATE, 4096, 0600);
    return id < 0 ? errno : attempt_result(shmctl(id, IPC_RMID, NULL));
}

static inline int attempt_sem(void)
{
    int id = semget(IPC_PRIVATE, 1, 0600);
    return id < 0 ? errno : attempt_result(semctl(id, 0, IPC_RMID));
}

static inline int attempt_msg(void)
{
    int id = msgget(IPC_PRIVATE, 0600);
    return id < 0 ? errno : attempt_result(msgctl(id, IPC_RMID, NULL));
}

static inline int attempt_mq(void)
{
    mqd_t queue = mq_open("/moefarm-prying", O_RDWR | O_CREAT, 0600, NULL);
    if (queue == (mqd_t)-1)
        return errno;
    (void)mq_close(queue);
    return attempt_result(mq_unlink("/moefarm-prying"));
}

/* Attempts on another process. */

static inline pid_t prying_pid(void)
{
    const char *text = getenv(PRYING_PID);
    return text ? (pid_t)strtol(text, NULL, 10) : getppid();
}

static inline int attempt_kill(void)
{
    return attempt_result(kill(prying_pid(), 0));
}

static inline int attempt_tgkill(void)
{
    return attempt_result(syscall(SYS_tgkill, prying_pid(), prying_pid(), 0));
}

static inline int attempt_tkill(void)
{
    return attempt_result(syscall(SYS_tkill, prying_pid(), 0));
}

static inline int attempt_sigqueue(void)
{
    siginfo_t info = {.si_code = SI_QUEUE};
    return attempt_result(syscall(SYS_rt_sigqueueinfo, prying_pid(), 0, &info));
}

static inline int attempt_pidfd(void)
{
    int fd = (int)syscall(SYS_pidfd_open, prying_pid(), 0);
    int r = fd < 0 ? errno : attempt_result(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
    if (fd >= 0)
        (void)close(fd);
    return r;
}

/* The kernel would send the process a signal for each event of the pipe. */
static inline int attempt_owner(void)
{
    int ends[2];
    if (pipe(ends) < 0)
        return errno;
    int r = attempt_result(fcntl(ends[0], F_SETOWN, prying_pid()));
    (void)close(ends[0]);
    (void)close(ends[1]);
    return r;
}

static inline int attempt_prlimit(void)
{
    const struct rlimit none = {0, 0};
    return attempt_result(prlimit(prying_pid(), RLIMIT_CORE, &none, NULL));
}

static inline int attempt_affinity(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return errno;
    return attempt_result(sched_setaffinity(prying_pid(), sizeof(set), &set));
}

static inline int attempt_scheduler(void)
{
    const struct sched_param parameter = {0};
    return attempt_result(sched_setscheduler(prying_pid(), SCHED_BATCH, &parameter));
}

static inline int attempt_nice(void)
{
    return attempt_result(setpriority(PRIO_PROCESS, (id_t)prying_pid(), 5));
}

/* Changes the priority of all processes of a user, one that has no processes. */
static inline int attempt_nice_of_user(void)
{
    return attempt_result(setpriority(PRIO_USER, INT32_MAX - 1, 5));
}

static inline int attempt_ioprio(void)
{
    return attempt_result(syscall(SYS_ioprio_set, 1, prying_pid(), 2 << 13 | 7));
}

static inline int attempt_vm_read(void)
{
    char here[8];
    struct iovec local = {here, sizeof(here)}, remote = {here, sizeof(here)};
    return attempt_result(process_vm_readv(prying_pid(), &local, 1, &remote, 1, 0));
}

static inline int attempt_move_pages(void)
{
    return attempt_result(syscall(SYS_move_pages, prying_pid(), 0, NULL, NULL, NULL, 0));
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

enum sandbox_part {
    BY_CALLS, /* seccomp refuses the operation */
    BY_FILES, /* Landlock refuses the operation */
    BY_PIDS,  /* the PID namespace refuses the operation, or else seccomp */
};
struct sandbox_attempt {
    const char *name;
    int (*try)(void);
    enum sandbox_part part;
};
/* clang-format off */
static const struct sandbox_attempt attempts[] = {
    {"tcp",        attempt_tcp,          BY_CALLS},
    {"udp6",       attempt_udp6,         BY_CALLS},
    {"netlink",    attempt_netlink,      BY_CALLS},
    {"connect",    attempt_connect,      BY_CALLS},
    {"write",      attempt_write,        BY_FILES},
    {"read",       attempt_read,         BY_FILES},
    {"cut",        attempt_cut,          BY_CALLS},
    {"truncate",   attempt_truncate,     BY_CALLS},
    {"chmod",      attempt_chmod,        BY_CALLS},
    {"fchmodat2",  attempt_fchmodat2,    BY_CALLS},
    {"utimens",    attempt_utimens,      BY_CALLS},
    {"lease",      attempt_lease,        BY_CALLS},
    {"datagram",   attempt_datagram,     BY_CALLS},
    {"shm",        attempt_shm,          BY_CALLS},
    {"sem",        attempt_sem,          BY_CALLS},
    {"msg",        attempt_msg,          BY_CALLS},
    {"mq",         attempt_mq,           BY_CALLS},
    {"shell",      attempt_shell,        BY_CALLS},
#ifndef __SANITIZE_ADDRESS__ /* LeakSanitizer needs ptrace */
    {"ptrace",     attempt_ptrace,       BY_CALLS},
#endif
    {"namespace",  attempt_namespace,    BY_CALLS},
    {"mount",      attempt_mount,        BY_CALLS},
    {"io_uring",   attempt_io_uring,     BY_CALLS},
    {"kill",       attempt_kill,         BY_PIDS},
    {"tgkill",     attempt_tgkill,       BY_PIDS},
    {"tkill",      attempt_tkill,        BY_PIDS},
    {"sigqueue",   attempt_sigqueue,     BY_PIDS},
    {"pidfd",      attempt_pidfd,        BY_PIDS},
    {"owner",      attempt_owner,        BY_PIDS},
    {"prlimit",    attempt_prlimit,      BY_PIDS},
    {"affinity",   attempt_affinity,     BY_PIDS},
    {"scheduler",  attempt_scheduler,    BY_PIDS},
    {"priority",   attempt_nice,         BY_PIDS},
    {"priorities", attempt_nice_of_user, BY_PIDS},
    {"ioprio",     attempt_ioprio,       BY_PIDS},
#ifndef __SANITIZE_ADDRESS__ /* LeakSanitizer reads the memory of its own process */
    {"vm_read",    attempt_vm_read,      BY_PIDS},
#endif
    {"move_pages", attempt_move_pages,   BY_PIDS},
};
/* clang-format on */
#define N_ATTEMPTS (sizeof(attempts) / sizeof(attempts[0]))
