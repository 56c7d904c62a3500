/* Sends SIGKILL at every crash point of common/base/fault.h: at its first visit, its second visit, and so on.
 * The test restarts killed processes. The batch must complete, no result may be lost or counted twice, and
 * the table must equal that of an undisturbed run.
 *
 *   check_farm_points              the first visits of every crash point
 *   check_farm_points all          every visit of every crash point
 *   check_farm_points all NAME     every visit of this crash point */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "support/farm/farm_audit.h"
#include "support/mf_check.h"

#define BEAT_MS 150
#define SHORT_N 2 /* visits of a crash point in the short test */

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16);

static struct farm farm;
static char *undisturbed;
static bool every_visit;
static enum mf_fault only = MF_FAULT_NONE;

static void start_worker(void)
{
    static const char *const args[] = {"--device", "sim:gfx942/304:0", NULL};
    farm_start_worker(&farm, 0, args);
}

/* Restarts dead processes. */
static void keep_alive(void)
{
    int status;
    if (waitpid(farm.daemon, &status, WNOHANG) == farm.daemon)
        farm_start_daemon(&farm, BEAT_MS);
    if (waitpid(farm.workers[0], &status, WNOHANG) == farm.workers[0])
        start_worker();
}

/* Submits the batch. The coordinator may die during the submission; with an idempotency key it is safe to
 * repeat. */
static int submit(void)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        int batch = farm_try_submit(&farm, csv, "&classes=gfx942/304", "Idempotency-Key: one\r\n");
        if (batch > 0)
            return batch;
        ck_assert_int_lt(mf_now_ms(), until);
        keep_alive();
    }
}

/* Waits until the batch is done and all results are acknowledged. Restarts processes that die meanwhile. */
static void wait_done(int batch)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/batches/%d", batch);
        if (json && strcmp(farm_text(json, "state"), "done") == 0 && farm_spools_empty(&farm))
            return;
        ck_assert_msg(mf_now_ms() < until, "the batch is not done in time");
        keep_alive();
        (void)poll(NULL, 0, 2);
    }
}

/* Returns the number of visits of the crash point, which the processes count in `file`. */
static int64_t visits(const char *file)
{
    int64_t n = 0;
    _cleanup_(mf_closep) int fd = open(file, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(read(fd, &n, sizeof(n)), sizeof(n));
    return n;
}

/* Runs one batch on a new farm and checks its table. Returns false if the batch ended before the n-th visit
 * of the crash point. */
static bool one_batch(enum mf_fault place, int n)
{
    char file[] = "/tmp/moefarm-fault.XXXXXX", value[96];
    _cleanup_(mf_closep) int fd = mkstemp(file);
    ck_assert_int_ge(fd, 0);
    (void)snprintf(value, sizeof(value), "%s:%d:%s", mf_fault_name(place), n, file);
    (void)setenv("MOEFARM_FAULT", value, 1);
    farm_start(&farm, BEAT_MS);
    start_worker();
    int batch = submit();
    wait_done(batch);
    int64_t n_visits = visits(file);
    (void)unlink(file);
    farm_audit(&farm, batch, &(struct farm_keys){0});
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    if (undisturbed)
        ck_assert_str_eq(table, undisturbed);
    else
        undisturbed = MF_TAKE(table);
    farm_stop(&farm);
    return n_visits >= n;
}

/* True if the processes of this test visit the crash point. */
static bool is_visited(enum mf_fault place)
{
    if (only != MF_FAULT_NONE && place != only)
        return false;
    return place >= MF_FAULT_SCHEMA_WRITTEN && place <= MF_FAULT_WORK_ENDED &&
           place != MF_FAULT_SPOOL_WRITTEN && place != MF_FAULT_SPOOL_RENAMED &&
           place != MF_FAULT_CHANNEL_MOVED; /* tested by check_farm_release */
}

static void make_undisturbed(void)
{
    (void)one_batch(MF_FAULT_NONE, 1);
}

MF_TEST(survives_kills, .rows = MF_FAULT_N_)
{
    if (!is_visited((enum mf_fault)_i))
        return;
    int n = 1;
    while ((every_visit || n <= SHORT_N) && one_batch((enum mf_fault)_i, n))
        n++;
    (void)fprintf(stderr, "%s: killed %d times\n", mf_fault_name((enum mf_fault)_i), n - 1);
    ck_assert_msg(n > 1, "%s was never visited", mf_fault_name((enum mf_fault)_i));
}

static void stop_farm(void)
{
    farm_stop(&farm);
    free(undisturbed);
}

int main(int argc, char **argv)
{
    every_visit = argc > 1 && strcmp(argv[1], "all") == 0;
    if (argc > 2 && mf_fault_parse(argv[2], &only) < 0)
        return EXIT_FAILURE;
    return mf_check_main(&(struct mf_test_group){
        .timeout_s = every_visit ? 7200 : 120, .teardown = stop_farm, .setup_all = make_undisturbed});
}
