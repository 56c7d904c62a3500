#include "common/base/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/text.h"

/* Accepts a path, or '@' and a name in the abstract namespace. In the socket address, a zero byte replaces
 * the '@'. */
static int parse_address(const char *text, struct mf_notify *n)
{
    size_t len = strlen(text);
    if (len < 2 || len >= sizeof(n->to.sun_path) || (text[0] != '/' && text[0] != '@'))
        return -EINVAL;
    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, text, len);
    if (text[0] == '@')
        n->to.sun_path[0] = '\0';
    n->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return 0;
}

/* Returns half of the watchdog timeout in ms; 0 if there is no watchdog, or if $WATCHDOG_PID names another
 * process. */
static int64_t read_watchdog(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    int64_t interval, owner;
    if (!us || mf_parse_i64(us, 1, INT64_MAX / 2, &interval) < 0)
        return 0;
    if (pid && (mf_parse_i64(pid, 1, INT32_MAX, &owner) < 0 || owner != getpid()))
        return 0;
    return interval / 2000 > 0 ? interval / 2000 : 1;
}

int mf_notify_init(struct mf_notify *n)
{
    const char *socket_text = getenv("NOTIFY_SOCKET");
    *n = (struct mf_notify){.fd = -1};
    if (!socket_text)
        return 0;
    int r = parse_address(socket_text, n);
    if (r < 0)
        return r;
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->fd < 0)
        return -errno;
    n->watchdog_interval_ms = read_watchdog();
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
    return 0;
}

void mf_notify_release(struct mf_notify *n)
{
    if (n->fd >= 0)
        (void)close(n->fd);
    n->fd = -1;
}

void mf_notify_send(struct mf_notify *n, const char *lines)
{
    if (n->fd >= 0)
        (void)sendto(n->fd, lines, strlen(lines), MSG_NOSIGNAL, (const struct sockaddr *)&n->to, n->to_len);
}

void mf_notify_watchdog(struct mf_notify *n, int64_t now_ms)
{
    if (now_ms < mf_notify_due_ms(n))
        return;
    mf_notify_send(n, "WATCHDOG=1");
    n->due_ms = now_ms + n->watchdog_interval_ms;
}

int64_t mf_notify_due_ms(const struct mf_notify *n)
{
    return n->fd >= 0 && n->watchdog_interval_ms > 0 ? n->due_ms : INT64_MAX;
}
