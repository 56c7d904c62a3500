#include "common/base/notify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/farm/notify_listener.h"
#include "support/mf_check.h"

static void set(const char *socket_text, const char *us, const char *pid)
{
    const char *const rows[][2] = {
        {"NOTIFY_SOCKET", socket_text}, {"WATCHDOG_USEC", us}, {"WATCHDOG_PID", pid}};
    for (size_t i = 0; i < 3; i++) {
        (void)unsetenv(rows[i][0]);
        if (rows[i][1])
            ck_assert_int_eq(setenv(rows[i][0], rows[i][1], 1), 0);
    }
}

MF_TEST(silent_without_socket)
{
    struct mf_notify n;
    set(NULL, "1000000", NULL);
    ck_assert_int_eq(mf_notify_init(&n), 0);
    ck_assert_int_eq(n.fd, -1);
    ck_assert_int_eq(mf_notify_due_ms(&n), INT64_MAX);
    mf_notify_send(&n, "READY=1");
    mf_notify_watchdog(&n, 5);
    mf_notify_release(&n);
}

/* WATCHDOG=1 is sent at intervals of half the watchdog timeout. mf_notify_init removes the variables from the
 * environment. */
MF_TEST(watchdog_interval)
{
    struct mf_notify n;
    char name[32], pid[16];
    _cleanup_(mf_closep) int fd = notify_listen(name);
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    set(name, "3000000", pid);
    ck_assert_int_eq(mf_notify_init(&n), 0);
    ck_assert_ptr_null(getenv("NOTIFY_SOCKET"));
    ck_assert_ptr_null(getenv("WATCHDOG_USEC"));
    ck_assert_ptr_null(getenv("WATCHDOG_PID"));
    mf_notify_send(&n, "READY=1\nSTATUS=there");
    ck_assert_str_eq(notify_receive(fd, 0), "READY=1\nSTATUS=there");
    for (int64_t now = 1000; now < 1000 + 3 * 1500; now++) {
        mf_notify_watchdog(&n, now);
        ck_assert_str_eq(notify_receive(fd, 0), (now - 1000) % 1500 == 0 ? "WATCHDOG=1" : "");
    }
    ck_assert_int_eq(mf_notify_due_ms(&n), 1000 + 3 * 1500);
    mf_notify_release(&n);
}

/* The socket may be a path. If the socket is full or deleted, sending neither blocks nor fails the service.
 */
MF_TEST(path_socket_full_and_deleted)
{
    struct mf_notify n;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)snprintf(at.sun_path, sizeof(at.sun_path), "/tmp/moefarm-notify.%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    set(at.sun_path, NULL, NULL);
    ck_assert_int_eq(mf_notify_init(&n), 0);
    for (int i = 0; i < 10000; i++)
        mf_notify_send(&n, "STATUS=busy");
    ck_assert_str_eq(notify_receive(fd, 0), "STATUS=busy");
    (void)close(fd);
    (void)unlink(at.sun_path);
    mf_notify_send(&n, "STOPPING=1");
    ck_assert_int_eq(mf_notify_due_ms(&n), INT64_MAX);
    mf_notify_release(&n);
}

/* No WATCHDOG=1 is sent if the watchdog is for another process, or if the timeout is invalid. */
static const char *const invalid_watchdogs[][2] = {
    {"1000000", "1"}, {"0", NULL}, {"-5", NULL}, {"soon", NULL}, {"1000000", ""}};

MF_TEST(foreign_and_invalid_watchdogs, .rows = MF_ARRAY_LEN(invalid_watchdogs))
{
    struct mf_notify n;
    char name[32];
    _cleanup_(mf_closep) int fd = notify_listen(name);
    set(name, invalid_watchdogs[_i][0], invalid_watchdogs[_i][1]);
    ck_assert_int_eq(mf_notify_init(&n), 0);
    mf_notify_watchdog(&n, 1000);
    ck_assert_str_eq(notify_receive(fd, 0), "");
    mf_notify_release(&n);
}

static char long_path[200];
static const char *const invalid_addresses[] = {"", "@", "/", "relative", "vsock:2:1234", long_path};

MF_TEST(invalid_address, .rows = MF_ARRAY_LEN(invalid_addresses))
{
    struct mf_notify n;
    memset(long_path, '/', sizeof(long_path) - 1);
    set(invalid_addresses[_i], NULL, NULL);
    ck_assert_int_eq(mf_notify_init(&n), -EINVAL);
}

int main(void)
{
    return mf_check_main(NULL);
}
