#include "kernels/beside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDERS_UP 3 /* tests/bench/x of a build tree is two folders down */

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
        int printed = up == 0 ? snprintf(path, PATH_MAX, "%s/%s", at, file)
                              : snprintf(path, PATH_MAX, "%s/%s/%s", at, folder, file);
        if (printed < PATH_MAX && access(path, R_OK) == 0)
            return 0;
    }
    return -ENOENT;
}
