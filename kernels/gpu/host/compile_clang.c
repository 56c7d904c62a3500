#include "kernels/gpu/host/compile_clang.h"

#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/durable_file.h"
#include "common/base/text.h"
#include "kernels/core/code.h"

#define ARGS_MAX 64

extern char **environ;

/* clang supports gfx942 from version 17 on, and gfx950 from version 20 on. The lld of the same version is a
 * separate package. */
static const char *const programs[] = {"clang-22", "clang-21", "clang-20",
                                       "clang-19", "clang-18", "clang-17"};

static int run(const char *program, const char **argv)
{
    pid_t pid;
    int status = 0;
    int r = -posix_spawnp(&pid, program, NULL, NULL, (char *const *)(uintptr_t)argv, environ);
    if (r < 0)
        return r;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ENOEXEC;
}

static bool is_installed(const char *program)
{
    const char *path = getenv("PATH");
    for (const char *at = path ? path : ""; *at; at += strcspn(at, ":"), at += *at == ':') {
        char file[PATH_MAX];
        mf_format(file, sizeof(file), "%.*s/%s", (int)strcspn(at, ":"), at, program);
        if (access(file, X_OK) == 0)
            return true;
    }
    return false;
}

static const char *find(void)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(programs); i++) {
        if (is_installed(programs[i]))
            return programs[i];
    }
    (void)fprintf(
        stderr,
        "no clang found: install a versioned clang from 17 on, such as clang-19 and lld-19 on Debian\n");
    return NULL;
}

int mf_clang_version(void)
{
    const char *program = find(), *argv[] = {program, "-dumpversion", NULL};
    if (!program)
        return -ENOENT;
    (void)fputs("clang ", stdout);
    (void)fflush(stdout);
    return run(program, argv);
}

/* Writes all sources into a folder, because a source may include any other source. */
static int write_sources(const char *folder)
{
    const char *name;
    for (size_t i = 0; (name = mf_code_source_name(i)); i++) {
        char path[PATH_MAX];
        mf_format(path, sizeof(path), "%s/%s", folder, name);
        FILE *f = fopen(path, "we");
        if (!f)
            return -errno;
        bool whole = fputs(mf_code_source(name), f) >= 0;
        if (fclose(f) != 0 || !whole)
            return -EIO;
    }
    return 0;
}

static void remove_sources(const char *folder)
{
    const char *name;
    for (size_t i = 0; (name = mf_code_source_name(i)); i++) {
        char path[PATH_MAX];
        mf_format(path, sizeof(path), "%s/%s", folder, name);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

static int compile(const char *program, const char *arch, const char *from, const char *to, char **defines,
                   int n_defines)
{
    char arch_option[64];
    const char *argv[ARGS_MAX + 1] = {program,
                                      "-x",
                                      "hip",
                                      arch_option,
                                      "--cuda-device-only",
                                      "--no-gpu-bundle-output",
                                      "-nogpulib",
                                      "-nogpuinc",
                                      "-std=c++17",
                                      "-O3",
                                      "-o",
                                      to,
                                      from};
    int n = 13;
    mf_format(arch_option, sizeof(arch_option), "--offload-arch=%s", arch);
    for (int i = 0; i < n_defines && n < ARGS_MAX; i++)
        argv[n++] = defines[i];
    return run(program, argv);
}

int mf_clang_compile(const char *arch, const char *source, const char *out, char **defines, int n_defines)
{
    const char *program = find(), *tmp = getenv("TMPDIR");
    char folder[PATH_MAX], from[PATH_MAX + 64], part[PATH_MAX];
    if (!program)
        return -ENOENT;
    mf_format(folder, sizeof(folder), "%s/moefarm-clang.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        (void)fprintf(stderr, "cannot create folder %s: %s\n", folder, strerror(errno));
        return -EIO;
    }
    mf_format(from, sizeof(from), "%s/%s", folder, source);
    mf_code_part_path(out, part);
    int r = write_sources(folder);
    if (r < 0)
        (void)fprintf(stderr, "cannot write sources to %s: %s\n", folder, strerror(-r));
    else
        r = compile(program, arch, from, part, defines, n_defines);
    remove_sources(folder);
    if (r < 0) {
        (void)unlink(part);
        (void)fprintf(stderr, "%s does not compile for %s\n", source, arch);
        return r;
    }
    r = mf_replace_file(part, out);
    if (r < 0)
        (void)fprintf(stderr, "cannot write %s: %s\n", out, strerror(-r));
    return r;
}
