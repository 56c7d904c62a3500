#include "worker/sandbox/compilers.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* Finds an executable file in the folders of PATH. */
static bool find_in_path(const char *name, char ret[PATH_MAX])
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        bool fits = *path == '/' && n + strlen(name) + 2 <= PATH_MAX;
        if (fits)
            mf_format(ret, PATH_MAX, "%.*s/%s", (int)n, path, name);
        if (fits && access(ret, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

/* Adds the program and, if it is a link, its target. */
static size_t add(const char *program, size_t n, char ret[MF_COMPILERS_MAX][PATH_MAX])
{
    char target[PATH_MAX];
    if (*program != '/' || n == MF_COMPILERS_MAX || mf_copy(ret[n], PATH_MAX, program) < 0)
        return n;
    n++;
    if (n < MF_COMPILERS_MAX && realpath(program, target) && strcmp(target, program) != 0)
        (void)mf_copy(ret[n++], PATH_MAX, target);
    return n;
}

size_t mf_compilers_find(char ret[MF_COMPILERS_MAX][PATH_MAX])
{
    static const char *const names[] = {"gcc", "g++", "cc", "clang", "nvcc"};
    static const char *const variables[] = {"CC", "CXX"};
    char path[PATH_MAX];
    size_t n = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(variables); i++) {
        const char *program = getenv(variables[i]);
        if (program)
            n = add(find_in_path(program, path) ? path : program, n, ret);
    }
    const char *cuda = getenv("CUDA_HOME");
    mf_format(path, sizeof(path), "%s/bin/nvcc", cuda ? cuda : "");
    if (cuda && access(path, X_OK) == 0)
        n = add(path, n, ret);
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        if (find_in_path(names[i], path))
            n = add(path, n, ret);
    }
    return n;
}

int mf_compiler_prefix(const char *program, char ret[PATH_MAX])
{
    const char *name = strrchr(program, '/');
    static const char bin[] = "/bin";
    size_t n = name ? (size_t)(name - program) : 0, n_bin = sizeof(bin) - 1;
    if (n <= n_bin || n >= PATH_MAX || memcmp(program + n - n_bin, bin, n_bin) != 0)
        return -ENOENT;
    mf_format(ret, PATH_MAX, "%.*s", (int)(n - n_bin), program);
    return 0;
}
