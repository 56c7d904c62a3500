/* What a supervisor is told that speaks systemd's protocol (sd_notify(3)), without its library: each message is one datagram
 * to $NOTIFY_SOCKET. Whoever owns the main loop says READY=1 once it serves, gives notify_turn() its turn in every pass of
 * that loop, so that a loop that hangs misses its watchdog, and says STOPPING=1. Without the variable nothing is sent.
 * Not for two threads at once. */
#pragma once

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct mf_notify {
    int fd; /* -1: nobody listens */
    struct sockaddr_un to;
    socklen_t to_len;
    int64_t every_ms; /* between signs of life, half of the watchdog's; 0: none is wanted */
    int64_t due_ms;
};

/* Reads the variables and takes them out of the environment, for children are not this service. Before threads start.
 * -EINVAL: $NOTIFY_SOCKET is no address. */
int mf_notify_init(struct mf_notify *n);
void mf_notify_release(struct mf_notify *n);

/* Sends lines of NAME=VALUE. A supervisor that does not take them is none of the service's business. */
void mf_notify_say(struct mf_notify *n, const char *lines);
/* WATCHDOG=1 when it is due, by mf_now_ms. */
void mf_notify_turn(struct mf_notify *n, int64_t now_ms);
/* When the loop has to come round at the latest; INT64_MAX: whenever it likes. */
int64_t mf_notify_due_ms(const struct mf_notify *n);
