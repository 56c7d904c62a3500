#include "worker/agent/device_lock.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "worker/agent/lock.h"

const char *mf_device_lock_folder(void)
{
    return access("/run/lock", W_OK) == 0 ? "/run/lock" : "/tmp";
}

static long read_holder(int fd)
{
    char text[24] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    int64_t pid = 0;
    return mf_parse_i64(text, 1, INT32_MAX, &pid) < 0 ? 0 : (long)pid;
}

/* Opens the lock file. Services and users use a device in turn, so the file is writable by all. The file is
 * first opened without O_CREAT, because in a sticky folder such as /run/lock Linux refuses O_CREAT on another
 * user's file (fs.protected_regular). O_NOFOLLOW is set because other users may have planted a link there. */
static int open_lock(const char *path)
{
    for (int tries = 0;; tries++) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 || errno != ENOENT)
            return fd >= 0 ? fd : -errno;
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            (void)fchmod(fd, 0666); /* set the mode independently of the umask */
            return fd;
        }
        if (errno != EEXIST || tries > 0)
            return -errno;
    }
}

int mf_device_lock(const char *folder, const char *device, const char *identity, char *why, size_t why_cap,
                   int *ret_fd)
{
    char name[128];
    bool known = identity && *identity;
    /* A simulated device is identified by class and ordinal. The spec file that follows them only sets its
     * behaviour. */
    size_t len = strlen(device);
    const char *end = strncmp(device, "sim:", 4) == 0 ? strchr(device + 4, ':') : NULL;
    if (end && (end = strchr(end + 1, ':')))
        len = (size_t)(end - device);
    int r = len < sizeof(name) ? 0 : -ENAMETOOLONG;
    if (r == 0 && known)
        mf_format(name, sizeof(name), "hip-%s", identity);
    else if (r == 0)
        mf_format(name, sizeof(name), "%.*s", (int)len, device);
    if (r < 0) {
        mf_format(why, why_cap, "device name %.40s… is too long", device);
        return r;
    }
    for (char *p = name; *p; p++) {
        if (!isalnum((unsigned char)*p) && !strchr("_.-", *p))
            *p = '-';
    }
    _cleanup_(mf_freep) char *path = NULL;
    if (asprintf(&path, "%s/moefarm-%s.lock", folder, name) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    _cleanup_(mf_closep) int fd = open_lock(path);
    if (fd < 0) {
        r = fd;
        mf_format(why, why_cap, "cannot open lock file %s: %s; choose another folder with --lock-dir", path,
                  strerror(-r));
        return r;
    }
    r = mf_lock_file(fd);
    if (r < 0) {
        mf_format(why, why_cap,
                  "device %s%s%s is in use by the worker with pid %ld (lock %s); run one worker per device",
                  device, known ? " with identity " : "", known ? identity : "", read_holder(fd), path);
        return r;
    }
    char pid[24];
    mf_format(pid, sizeof(pid), "%ld\n", (long)getpid());
    /* If the disk is full, the lock still holds but the file lacks the pid */
    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, pid, strlen(pid), 0);
    *ret_fd = fd;
    fd = -1;
    return 0;
}
