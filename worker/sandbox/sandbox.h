/* Sandbox of a runner and its children: limits what untrusted kernels can do.
 *
 *   privileges          no new privileges; all capabilities dropped
 *   processes           a PID namespace (supervisor.h), or else mf_sandbox_pids
 *   files (Landlock)    read access to system libraries and drivers; write access to the scratch folder, the
 *                       code cache and, for a GPU, its device files. A runner may execute only the compile
 *                       helper; with Python, also the interpreter, and compilers and linkers (compilers.h).
 *                       It may not send signals to other processes or use their abstract sockets
 *   calls (seccomp)     no network, no execve if the device does not need it, no calls that change the
 *                       machine, inspect other processes or bypass these rules
 *
 * If the kernel lacks a mechanism, the others still apply, and the text of mf_sandbox_enter names the missing
 * mechanism. Children inherit the sandbox. A process cannot leave it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define MF_SANDBOX_TEXT_MAX 160

struct mf_sandbox {
    bool off;           /* --no-sandbox */
    bool pid_namespace; /* the process is in a PID namespace of its own (supervisor.h) */
    /* device name; selects the rules for its kind. For sim, also has the folder of the spec file */
    const char *device;
    const char *scratch;      /* folder that the runner may write to, and its TMPDIR; "": no such folder */
    const char *const *files; /* further paths that the runner may read: shared objects, prebuilt kernels */
    size_t n_files;
    /* Folders of the Python interpreter that runs the runner; none: no Python. Such a runner may also read
     * these folders, execute the interpreter, compilers and linkers, and use /dev/shm. */
    const char *const *prefixes;
    size_t n_prefixes;
};
/* Enters the sandbox. Call before starting threads. ret_text lists the active mechanisms ("pid namespace,
 * landlock 7, seccomp") and the missing ones, for messages. If a mechanism of the kernel fails, returns
 * -errno and names the mechanism in why. */
int mf_sandbox_enter(const struct mf_sandbox *s, char ret_text[MF_SANDBOX_TEXT_MAX], char *why,
                     size_t why_cap);

/* Without a PID namespace, refuses calls that name another process: signals, limits, priority, CPU affinity
 * and memory. Call before running untrusted code. Does nothing in a PID namespace. Returns 0 or -errno. */
int mf_sandbox_pids(const struct mf_sandbox *s);

/* Installs only the seccomp filter (sandbox_calls.c). compiles: the process may start the programs that
 * Landlock allows, and changes of file modes and times succeed without an effect. Returns 0, or -ENOSYS if
 * the kernel or this architecture has no seccomp support. */
int mf_sandbox_calls(bool compiles);
