/* Tests moefarmd and moefarm-worker as services of a supervisor. They report READY and STOPPING, their event
 * loops send watchdog messages, and an event loop that hangs sends no watchdog message. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "server/store/store.h"
#include "support/farm/farm_harness.h"
#include "support/farm/notify_listener.h"
#include "support/mf_check.h"

#define WATCHDOG_US "400000" /* watchdog interval: a process sends a message every 200 ms */
#define HANG_MS     800      /* a process hangs if it sends no message for twice the watchdog interval */

static struct farm farm;
static int listener = -1;

/* Processes that are started from now on notify this test. */
static void enable_notify(void)
{
    char name[32];
    listener = notify_listen(name);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
    ck_assert_int_eq(setenv("WATCHDOG_USEC", WATCHDOG_US, 1), 0);
}

static void disable_notify(void)
{
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
}

static void await(const char *message)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    while (strcmp(notify_receive(listener, 100), message) != 0)
        ck_assert_msg(mf_now_ms() < until, "no %s", message);
}

/* Skips the watchdog messages that were sent before the hang, then waits until no message comes for HANG_MS.
 */
static void await_hang(void)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    while (notify_receive(listener, HANG_MS)[0])
        ck_assert_msg(mf_now_ms() < until, "watchdog messages continue");
}

static void stop(void)
{
    farm_stop(&farm);
    (void)close(listener);
}

/* The writer thread waits for a database lock and so sends no watchdog message; the other threads continue.
 * The test holds the lock for less than the writer's timeout of two seconds. */
MF_TEST(coordinator)
{
    char path[128];
    struct mf_store *other = NULL;
    enable_notify();
    farm_start(&farm, 300);
    disable_notify();
    await("READY=1");
    await("WATCHDOG=1");
    await("WATCHDOG=1");
    (void)snprintf(path, sizeof(path), "%s/state/farm.db", farm.folder);
    ck_assert_int_eq(mf_store_open(path, &other), 0);
    ck_assert_int_ge(mf_store_begin(other), 0);
    await_hang();
    mf_store_rollback(other);
    (void)mf_store_free(other);
    await("WATCHDOG=1");
    ck_assert_int_eq(kill(farm.daemon, SIGTERM), 0);
    await("STOPPING=1");
}

/* The worker sends READY once it has opened its device, even without a coordinator. */
MF_TEST(worker)
{
    const char *const args[] = {"--device", "sim:gfx942/304:0", NULL};
    farm_start(&farm, 300);
    farm_kill_daemon(&farm);
    enable_notify();
    farm_start_worker(&farm, 0, args);
    disable_notify();
    await("READY=1");
    await("WATCHDOG=1");
    await("WATCHDOG=1");
    ck_assert_int_eq(kill(farm.workers[0], SIGSTOP), 0);
    await_hang();
    ck_assert_int_eq(kill(farm.workers[0], SIGCONT), 0);
    await("WATCHDOG=1");
    ck_assert_int_eq(kill(farm.workers[0], SIGTERM), 0);
    await("STOPPING=1");
    ck_assert_int_eq(farm_end(&farm.workers[0]), 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
