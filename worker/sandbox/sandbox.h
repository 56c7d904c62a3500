/* Sandbox of a runner and its children: limits what untrusted kernels can do.
 *
 *   no new privileges   set; all capabilities dropped
 *   files (Landlock)    read access to system libraries and drivers; write access to the scratch folder, the
 *                       code cache and, for a GPU, its device files; executes only the compile helper.
 *                       No signals to and no abstract sockets of other processes
 *   calls (seccomp)     no network, no execve if the device does not need it, no calls that change the
 *                       machine, inspect other processes or bypass these rules
 *
 * If the kernel lacks a mechanism, the others still apply, and the text names the missing one. A foreign
 * runner (--runner) is a program chosen by the operator: it may read and execute all files, with the other
 * limits. Children inherit the sandbox; a process cannot leave it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define MF_SANDBOX_TEXT_MAX 160

struct mf_sandbox {
    bool off;                 /* --no-sandbox */
    const char *device;       /* device name; sets the kind, and for sim: the folder of the spec file */
    const char *scratch;      /* folder the runner may write to, also its TMPDIR; "": none */
    const char *const *files; /* n_files more paths it may read: shared objects, prebuilt kernels */
    size_t n_files;
    bool foreign;
};
/* Call before starting threads. ret_text: the active mechanisms ("landlock 7, seccomp") and the missing ones,
 * for messages. -errno: a mechanism of the kernel failed; why names it. */
int mf_sandbox_enter(const struct mf_sandbox *s, char ret_text[MF_SANDBOX_TEXT_MAX], char *why,
                     size_t why_cap);

/* Creates the scratch folder, or deletes its contents. */
int mf_sandbox_scratch(const char *path);

/* Installs only the seccomp filter (sandbox_calls.c). 0 on success; -ENOSYS: no seccomp in this kernel or for
 * this architecture. */
int mf_sandbox_calls(bool gpu, bool foreign);
