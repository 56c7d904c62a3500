#include "common/base/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_fault, MF_FAULT_, MF_FAULT_MAP)

enum mf_fault mf_fault_armed = MF_FAULT_NONE;

/* Set once by mf_fault_init(). */
static int64_t kill_at_hit;
static int64_t *hit_count; /* counter in FILE, mapped */

int mf_fault_init(void)
{
    const char *text = getenv("MOEFARM_FAULT");
    char name[32], number[24];
    enum mf_fault armed;
    if (!text)
        return 0;
    const char *n = strchr(text, ':'), *path = n ? strchr(n + 1, ':') : NULL;
    if (!path || (size_t)(n - text) >= sizeof(name) || (size_t)(path - n) > sizeof(number))
        return -EINVAL;
    mf_format(name, sizeof(name), "%.*s", (int)(n - text), text);
    mf_format(number, sizeof(number), "%.*s", (int)(path - n - 1), n + 1);
    if (mf_fault_parse(name, &armed) < 0 || mf_parse_i64(number, 1, INT64_MAX, &kill_at_hit) < 0)
        return -EINVAL;
    _cleanup_(mf_closep) int fd = open(path + 1, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*hit_count)) < 0)
        return -errno;
    hit_count = mmap(NULL, sizeof(*hit_count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (hit_count == MAP_FAILED)
        return -errno;
    mf_fault_armed = armed;
    return 0;
}

void mf_fault_hit(void)
{
    if (__atomic_add_fetch(hit_count, 1, __ATOMIC_SEQ_CST) != kill_at_hit)
        return;
    (void)kill(getpid(), SIGKILL);
    for (;;)
        (void)pause(); /* wait until SIGKILL is delivered to some thread */
}
