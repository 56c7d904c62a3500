/* Supervisor: the parent process of a runner, which ends all of the runner's processes with the runner.
 *
 *   worker ─► supervisor ─► runner ─► its children
 *
 * If the kernel allows it, the supervisor is the init process of a PID namespace of its own. The runner then
 * can affect no process outside the namespace, and the kernel kills all processes of the namespace with the
 * supervisor. Without a namespace, orphans of the runner become children of the
 * supervisor, which kills them. The supervisor has its own session, so that signals to process group 0 do
 * not reach the worker. It dies with the thread that started it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum mf_isolation {
    MF_ISOLATION_NONE,     /* no namespace: mf_sandbox_pids refuses calls that affect other processes */
    MF_ISOLATION_PID,      /* PID namespace; needs CAP_SYS_ADMIN */
    MF_ISOLATION_USER_PID, /* PID namespace in a user namespace that maps only the worker's user */
    /* as the two above, but /proc shows the worker's PID namespace */
    MF_ISOLATION_PID_OUTER_PROC,
    MF_ISOLATION_USER_PID_OUTER_PROC,
};

/* Returns the strongest isolation that the kernel allows this process. For MF_ISOLATION_NONE, writes the
 * reason to why. needs_proc: the runner needs the /proc of its namespace, as drivers of GPUs do; containers
 * and systemd units often forbid to mount it. */
enum mf_isolation mf_isolation_probe(bool needs_proc, char *why, size_t why_cap);

#define MF_SUPERVISED_FD 3 /* descriptor of the socket in the runner */

struct mf_supervisor {
    enum mf_isolation isolation;
    const char *const *argv; /* argv[0] is the path of the program */
    char *const *env;
    /* The program gets socket_fd as MF_SUPERVISED_FD and err_fd as stdout and stderr. Both are greater than
     * MF_SUPERVISED_FD. Its stdin is /dev/null. */
    int socket_fd, err_fd;
    int tasks_max; /* maximum number of processes and threads of the runner, counted each second */
};
/* Starts a supervisor and its runner. *ret_pid is the supervisor. Its exit code is the runner's, or
 * MF_SUPERVISED_SIGNAL plus the signal that killed the runner. */
int mf_supervisor_start(const struct mf_supervisor *s, pid_t *ret_pid);
#define MF_SUPERVISED_SIGNAL 128
#define MF_SUPERVISED_TASKS  125 /* exit code of the supervisor if the runner had more than tasks_max */

/* Kills the runner and all of its processes. They have ended when the supervisor has exited. */
void mf_supervisor_kill(pid_t pid);
