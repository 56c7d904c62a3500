/* Service notifications in systemd's protocol (sd_notify(3)), without its library. Each message is one
 * datagram to $NOTIFY_SOCKET. The main loop sends READY=1 when it starts to serve and STOPPING=1 when it
 * shuts down. It calls mf_notify_watchdog() in each iteration, so that the watchdog expires if the loop
 * hangs. If $NOTIFY_SOCKET is not set, nothing is sent. Not thread-safe. */
#pragma once

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct mf_notify {
    int fd; /* -1: notifications are disabled */
    struct sockaddr_un to;
    socklen_t to_len;
    int64_t watchdog_interval_ms; /* half of the watchdog timeout; 0: no watchdog */
    int64_t due_ms;
};

/* Reads the environment variables and removes them, so that child processes do not notify. Call it before
 * threads start. -EINVAL: $NOTIFY_SOCKET is not a valid address. */
int mf_notify_init(struct mf_notify *n);
void mf_notify_release(struct mf_notify *n);

/* Sends NAME=VALUE lines. Ignores send errors. */
void mf_notify_send(struct mf_notify *n, const char *lines);
/* Sends WATCHDOG=1 if it is due. now_ms: the current time from mf_now_ms(). */
void mf_notify_watchdog(struct mf_notify *n, int64_t now_ms);
/* Returns the time (clock of mf_now_ms()) by which the loop must call mf_notify_watchdog() again; INT64_MAX
 * without a watchdog. */
int64_t mf_notify_due_ms(const struct mf_notify *n);
