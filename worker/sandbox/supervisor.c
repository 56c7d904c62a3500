/* The worker has threads, so its child processes call only functions that are safe after fork, and allocate
 * no memory. */
#include "worker/sandbox/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "worker/sandbox/task_count.h"

#define NOT_STARTED   127  /* exit code if the program or the namespace cannot be started, as in a shell */
#define COUNT_MS      1000 /* interval of counting the tasks */
#define CHILDREN_FILE "/proc/thread-self/children"

/* How each enum mf_isolation is made. */
static const struct {
    unsigned long namespaces; /* flags of clone */
    bool maps_user, mounts_proc;
} isolations[] = {
    [MF_ISOLATION_NONE] = {0, false, false},
    [MF_ISOLATION_PID] = {CLONE_NEWPID | CLONE_NEWNS, false, true},
    [MF_ISOLATION_USER_PID] = {CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS, true, true},
    [MF_ISOLATION_PID_OUTER_PROC] = {CLONE_NEWPID, false, false},
    [MF_ISOLATION_USER_PID_OUTER_PROC] = {CLONE_NEWUSER | CLONE_NEWPID, true, false},
};

/* Forks with additional clone flags. fork() has no flags, and unshare() would move the worker itself. */
static pid_t fork_with(unsigned long flags)
{
    return (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
}

static int write_file(const char *path, const char *text)
{
    _cleanup_(mf_closep) int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -errno;
}

/* Maps the user and group of the worker to themselves in the new user namespace of this process. */
static int map_ids(uid_t user, gid_t group)
{
    char users[32], groups[32];
    mf_format(users, sizeof(users), "%u %u 1", user, user);
    mf_format(groups, sizeof(groups), "%u %u 1", group, group);
    int r = write_file("/proc/self/uid_map", users);
    if (r == 0)
        r = write_file("/proc/self/setgroups", "deny");
    return r < 0 ? r : write_file("/proc/self/gid_map", groups);
}

/* Mounts the /proc of this process's PID namespace, in its own mount namespace. Programs look for their own
 * process in /proc: CUDA fails if it finds another one there. A container may forbid the mount (EPERM). */
static int mount_proc(void)
{
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return -errno;
    return 0;
}

/* Prepares the namespaces of the supervisor, before it starts the program. */
static int enter_namespaces(enum mf_isolation isolation, uid_t user, gid_t group)
{
    int r = isolations[isolation].maps_user ? map_ids(user, group) : 0;
    return r == 0 && isolations[isolation].mounts_proc ? mount_proc() : r;
}

static int try_isolation(enum mf_isolation isolation)
{
    uid_t user = geteuid();
    gid_t group = getegid();
    int status = 0;
    pid_t pid = fork_with(isolations[isolation].namespaces);
    if (pid < 0)
        return -errno;
    if (pid == 0)
        _exit(-enter_namespaces(isolation, user, group));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

enum mf_isolation mf_isolation_probe(bool needs_proc, char *why, size_t why_cap)
{
    int r = 0;
    for (int i = MF_ISOLATION_NONE + 1; i < (int)MF_ARRAY_LEN(isolations); i++) {
        if (needs_proc && !isolations[i].mounts_proc)
            continue;
        r = try_isolation((enum mf_isolation)i);
        if (r == 0)
            return (enum mf_isolation)i;
    }
    mf_format(why, why_cap, "the kernel allows this user no PID namespace%s: %s",
              needs_proc ? " with its own /proc" : "", strerror(-r));
    return MF_ISOLATION_NONE;
}

static void close_all(void)
{
    struct rlimit limit;
    if (syscall(SYS_close_range, 0, ~0u, 0) == 0)
        return;
    /* before Linux 5.9 */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        for (rlim_t fd = 0; fd < limit.rlim_cur; fd++)
            (void)close((int)fd);
    }
}

static _Noreturn void run_program(const struct mf_supervisor *s, pid_t supervisor)
{
    static const char text[] = "cannot execute the runner\n";
    sigset_t none;
    (void)sigemptyset(&none);
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 1; i < NSIG; i++)
        (void)signal(i, SIG_DFL);
    int null = open("/dev/null", O_RDONLY);
    if (getppid() == supervisor && null >= 0 && dup2(null, 0) == 0 && dup2(s->err_fd, 1) == 1 &&
        dup2(s->err_fd, 2) == 2 && dup2(s->socket_fd, MF_SUPERVISED_FD) == MF_SUPERVISED_FD) {
        if (null > 2 && null != MF_SUPERVISED_FD)
            (void)close(null);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)execve(s->argv[0], (char *const *)(uintptr_t)s->argv, s->env);
        (void)!write(2, text, sizeof(text) - 1);
    }
    _exit(NOT_STARTED);
}

static int exit_code(int status)
{
    return WIFSIGNALED(status) ? MF_SUPERVISED_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Reaps one child; options as for waitpid. Returns its pid, 0 if no child has ended, or -1 if there is no
 * child. */
static pid_t reap(int options, pid_t program, int *code)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, options)) < 0 && errno == EINTR)
        ;
    if (pid == program)
        *code = exit_code(status);
    return pid;
}

static void kill_children(void)
{
    char text[4096];
    _cleanup_(mf_closep) int fd = open(CHILDREN_FILE, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    pid_t pid = 0;
    /* If the list does not fit, the last number may be cut. It is not followed by a space. */
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] >= '0' && text[i] <= '9') {
            pid = pid * 10 + (text[i] - '0');
            continue;
        }
        if (pid > 1)
            (void)kill(pid, SIGKILL);
        pid = 0;
    }
}

/* Waits until the program has ended, and kills it on SIGTERM. Returns its exit code, or MF_SUPERVISED_TASKS
 * if it has too many tasks. */
static int wait_for(pid_t program, int tasks_max)
{
    int code = -1;
    int64_t due = mf_now_ms() + COUNT_MS;
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGCHLD);
    while (code < 0) {
        int64_t left = MF_MAX(due - mf_now_ms(), 0);
        const struct timespec wait = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
        if (sigtimedwait(&set, NULL, &wait) == SIGTERM)
            (void)kill(program, SIGKILL);
        if (mf_now_ms() >= due) {
            if (mf_task_count(tasks_max) > tasks_max)
                return MF_SUPERVISED_TASKS;
            due = mf_now_ms() + COUNT_MS;
        }
        while (reap(WNOHANG, program, &code) > 0)
            ;
    }
    return code;
}

/* Kills all descendants. An orphan becomes a child of this process when its parent dies. */
static void kill_descendants(void)
{
    int unused;
    do
        kill_children();
    while (reap(0, -1, &unused) > 0);
}

/* Returns the pid of this process in the PID namespace that /proc shows; 0 if unknown. */
static pid_t pid_in_proc(void)
{
    char text[24] = "";
    ssize_t n = readlink("/proc/self", text, sizeof(text) - 1);
    return n > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
}

/* In a namespace, gives the program the pid that the supervisor has outside (wanted). Otherwise all runners
 * would have pid 2, and files that GPU runtimes name after their pid would collide. */
static pid_t fork_program(bool namespace, pid_t wanted)
{
    struct clone_args args = {
        .exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&wanted, .set_tid_size = 1};
    long pid = namespace && wanted > 2 ? syscall(SYS_clone3, &args, sizeof(args)) : -1;
    return pid < 0 ? fork_with(0) : (pid_t)pid;
}

static _Noreturn void supervise(const struct mf_supervisor *s, pid_t worker, uid_t user, gid_t group)
{
    bool namespace = s->isolation != MF_ISOLATION_NONE;
    (void)prctl(PR_SET_NAME, "moefarm-superv"); /* ps would show the name of the worker */
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, namespace ? SIGKILL : SIGTERM);
    if (!namespace && getppid() != worker)
        _exit(NOT_STARTED);
    pid_t outside = pid_in_proc();
    if (enter_namespaces(s->isolation, user, group) < 0)
        _exit(NOT_STARTED);
    /* This process has a copy of the worker's memory, including its key, which the runner must not read. */
    (void)prctl(PR_SET_DUMPABLE, 0);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t self = getpid(), program = fork_program(namespace, outside);
    if (program == 0)
        run_program(s, self);
    close_all();
    if (program < 0)
        _exit(NOT_STARTED);
    int code = wait_for(program, s->tasks_max);
    if (!namespace) /* the kernel kills all processes of a namespace with its init process */
        kill_descendants();
    _exit(code);
}

int mf_supervisor_start(const struct mf_supervisor *s, pid_t *ret_pid)
{
    sigset_t all, before;
    pid_t worker = getpid();
    uid_t user = geteuid();
    gid_t group = getegid();
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    pid_t pid = fork_with(isolations[s->isolation].namespaces);
    int r = pid < 0 ? -errno : 0;
    if (pid == 0)
        supervise(s, worker, user, group);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (r == 0)
        *ret_pid = pid;
    return r;
}

void mf_supervisor_kill(pid_t pid)
{
    (void)kill(pid, SIGTERM);
}
