/* What a runner, and whatever it starts, may still do once it has begun: the kernels that it runs come from many hands.
 *
 *   no new privileges   set, and every capability dropped
 *   files (Landlock)    reads what programs and drivers are made of, writes its scratch folder, the code cache and, for a GPU,
 *                       that GPU's devices; starts the compile helper only. Signals and abstract sockets stay within
 *   calls (seccomp)     no sockets, no program at all where the device needs none, nothing that changes the machine, looks
 *                       into other processes or goes round these rules
 *
 * Where the kernel lacks one, the rest holds and the text says what is missing. A foreign runner (--runner) is a program of
 * the operator's: it may read and start everything, and has the other limits. Inherited by children; there is no way back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define MF_SANDBOX_TEXT_MAX 160

struct mf_sandbox {
    bool off; /* --no-sandbox */
    const char
        *device; /* its name: the kind decides, and a simulated one's spec file lies in a folder of its own */
    const char *scratch; /* its own folder, TMPDIR from here on; "": it has none */
    const char *const
        *files; /* further ones that it reads: shared objects, prebuilt kernels; n_files of them */
    size_t n_files;
    bool foreign;
};
/* Before any thread. ret_text: what holds, for people: "landlock 7, seccomp", or what is missing. -errno: a limit that the
 * kernel has could not be set, and why says which. */
int mf_sandbox_enter(const struct mf_sandbox *s, char ret_text[MF_SANDBOX_TEXT_MAX], char *why,
                     size_t why_cap);

/* Makes the folder that runners write to, without what runners of before left in it. */
int mf_sandbox_scratch(const char *path);

/* worker/sandbox/sandbox_calls.c: the seccomp filter alone. 0: it holds; -ENOSYS: the kernel, or this architecture, has none. */
int mf_sandbox_calls(bool gpu, bool foreign);
