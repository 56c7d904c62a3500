#include "worker/agent/lock.h"

#include <errno.h>
#include <stdint.h>
#include <sys/file.h>

#include "common/base/clock.h"

#define WAIT_MS  500
#define RETRY_MS 5

int mf_lock_file(int fd)
{
    int64_t until = mf_now_ms() + WAIT_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (mf_now_ms() >= until)
            return -EBUSY;
        mf_sleep_ms(RETRY_MS);
    }
    return 0;
}
