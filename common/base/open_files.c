#include "common/base/open_files.h"

#include <errno.h>
#include <sys/resource.h>

#include "common/base/cleanup.h"

int mf_open_files_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    if (limit.rlim_cur >= MF_DESCRIPTORS)
        return 0;
    limit.rlim_cur = MF_MIN(limit.rlim_max, MF_DESCRIPTORS);
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}
