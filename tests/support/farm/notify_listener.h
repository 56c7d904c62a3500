/* The supervisor's end of common/base/notify.h: a socket in the abstract namespace, so that no file is left
 * behind. */
#pragma once

#include <check.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/* Returns the socket's descriptor. Writes the value for $NOTIFY_SOCKET to `name`. */
static inline int notify_listen(char name[32])
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(sa_family_t); /* an address without a name: the kernel assigns a name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&at, len), 0);
    len = sizeof(at);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    (void)snprintf(name, 32, "@%.*s", (int)(len - offsetof(struct sockaddr_un, sun_path) - 1),
                   at.sun_path + 1);
    return fd;
}

/* Returns the next message, or "" on timeout. The text is valid until the next call. */
static inline const char *notify_receive(int fd, int wait_ms)
{
    static char text[256];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    text[0] = '\0';
    if (poll(&p, 1, wait_ms) == 1) {
        ssize_t n = recv(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
    }
    return text;
}
