#include "kernels/beside.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDERS_UP 3 /* tests/bench/x of a build tree is two folders down */

static bool is_there(char path[PATH_MAX], const char *at, const char *folder, const char *file)
{
    return snprintf(path, PATH_MAX, "%s/%s/%s", at, folder, file) < PATH_MAX && access(path, R_OK) == 0;
}

int mf_beside(const char *file, const char *folder, char path[PATH_MAX])
{
    char at[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", at, sizeof(at) - 1);
    if (n < 0)
        return -errno;
    at[n] = '\0';
    for (int up = 0; up <= FOLDERS_UP; up++) {
        char *slash = strrchr(at, '/');
        if (!slash)
            break;
        *slash = '\0';
        if (up > 0 ? is_there(path, at, folder, file)
                   : is_there(path, at, ".", file) || is_there(path, at, MF_INSTALLED, file))
            return 0;
    }
    return -ENOENT;
}
