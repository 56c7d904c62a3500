#include "kernels/core/sibling_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* enough for a test in a build tree, for example in tests/bench, two directories below the root */
#define FOLDERS_UP 3

/* `owner` is the owner of the object. Its code already runs in this process, so its files add no risk. This
 * allows a shared Python environment, and a user's environment in a process of root. */
static bool is_trusted_file(char path[PATH_MAX], const char *at, const char *folder, const char *file,
                            uid_t owner)
{
    struct stat st;
    if (snprintf(path, PATH_MAX, "%s/%s/%s", at, folder, file) >= PATH_MAX || access(path, R_OK) < 0 ||
        stat(path, &st) < 0)
        return false;
    return (st.st_uid == 0 || st.st_uid == geteuid() || st.st_uid == owner) && !(st.st_mode & S_IWOTH);
}

/* Searches for `file` near `object`, the path of the executable or library. Modifies `object`. */
static bool find_near(char object[PATH_MAX], const char *file, const char *folder, char path[PATH_MAX])
{
    struct stat st;
    const uid_t owner = stat(object, &st) == 0 && !(st.st_mode & S_IWOTH) ? st.st_uid : 0;
    for (int up = 0; up <= FOLDERS_UP; up++) {
        char *slash = strrchr(object, '/');
        if (!slash)
            break;
        *slash = '\0';
        if (up > 0 ? is_trusted_file(path, object, folder, file, owner)
                   : is_trusted_file(path, object, ".", file, owner) ||
                         is_trusted_file(path, object, MF_FROM_BIN, file, owner) ||
                         is_trusted_file(path, object, MF_FROM_LIB, file, owner))
            return true;
    }
    return false;
}

int mf_sibling_file(const char *file, const char *folder, char path[PATH_MAX])
{
    char at[PATH_MAX], program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    Dl_info own;
    if (n < 0)
        return -errno;
    program[n] = '\0';
    /* If this code is in a library, the host program may have an older version of the file next to it.
     * Therefore the library's location is searched first. */
    if (dladdr((void *)(uintptr_t)mf_sibling_file, &own) && own.dli_fname[0] == '/' &&
        realpath(own.dli_fname, at) && find_near(at, file, folder, path))
        return 0;
    return find_near(program, file, folder, path) ? 0 : -ENOENT;
}
