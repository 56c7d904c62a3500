/* Simulates power failures while the coordinator writes. The disk keeps all synced data and an arbitrary
 * subset of the other sectors. Afterwards the database must pass integrity_check and hold every acknowledged
 * result and every accepted batch, and the farm must continue. Uses a real coordinator with
 * tests/support/farm/machine_shim.c, and a fake worker that records acknowledgements. The test prints its
 * seed; set MOEFARM_SEED to that seed to reproduce a run.
 *
 *     check_power          12 failures
 *     check_power 60       60 failures, some of them later in a run */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_audit.h"
#include "support/farm/machine.h"
#include "support/mf_check.h"

#define BEAT_MS      2000
#define START_WRITES 520

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64);

static struct farm farm;
static struct machine *machine;
static struct fake_worker worker;
static struct farm_keys acked;
static void *zmq;
static unsigned seed;
static int n_cuts = 12, writes_max = 400, n_batches;

static void take_acks(const cJSON *message)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(message, "acks")) {
        struct mf_spool_key key = {cJSON_GetArrayItem(item, 0)->valueint,
                                   cJSON_GetArrayItem(item, 1)->valueint,
                                   cJSON_GetArrayItem(item, 2)->valueint};
        farm_keys_add(&acked, key);
    }
}

static void take_unit(const cJSON *unit)
{
    for (int i = 0; i < fake_unit_results(unit); i++)
        (void)fake_worker_result(&worker, unit, i);
    (void)fake_worker_ready(&worker);
}

static void greet(void)
{
    ck_assert_int_eq(fake_worker_open(&worker, zmq, farm.hub, "fake"), 0);
    (void)fake_worker_hello(&worker, "[]");
}

/* Waits at most timeout_ms for a message and handles it. Returns false if no message came. */
static bool handle_message(int timeout_ms)
{
    enum mf_message type;
    _cleanup_(cJSON_Deletep) cJSON *m = NULL;
    if (fake_worker_recv(&worker, timeout_ms, &type, &m) != 1)
        return false;
    if (type == MF_MESSAGE_UNIT)
        take_unit(m);
    else if (type == MF_MESSAGE_ACK)
        take_acks(m);
    else if (type == MF_MESSAGE_WELCOME)
        (void)fake_worker_ready(&worker);
    return true;
}

static bool is_done(int batch)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/batches/%d", batch);
    return json && strcmp(farm_text(json, "state"), "done") == 0;
}

static int submit(void)
{
    char query[64];
    (void)snprintf(query, sizeof(query), "&topk=4&seed=%d", ++n_batches);
    return farm_try_submit(&farm, csv, query, "");
}

/* Submits one batch after another until the power fails. Returns the id of the last accepted batch. */
static int work_until_it_fails(void)
{
    int last = 0, batch = 0;
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    while (!machine->has_cut) {
        ck_assert_msg(mf_now_ms() < until,
                      "the power failure did not happen: %ld writes so far, planned at write %ld",
                      (long)machine->writes, (long)machine->cut_at);
        if (batch == 0 || is_done(batch))
            batch = submit();
        last = MF_MAX(last, batch);
        while (handle_message(1))
            ;
        (void)fake_worker_send(&worker, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}");
    }
    while (handle_message(20)) /* messages that were still on their way */
        ;
    return last;
}

/* Reconnects the worker without a running unit, and works until all batches up to `last` are done. The
 * batches share the worker, so they may end in any order. */
static void work_until_done(int last)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    fake_worker_close(&worker);
    greet();
    for (int batch = 1; batch <= last; batch += is_done(batch)) {
        ck_assert_msg(mf_now_ms() < until, "batch %d is not done in time", batch);
        while (handle_message(1))
            ;
        (void)fake_worker_send(&worker, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}");
    }
}

/* Checks that the database is intact and holds all acknowledged results and accepted batches. */
static void check_files(int last)
{
    char sql[96];
    farm_check_results(&farm, &acked);
    (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM batch WHERE id <= %d", last);
    ck_assert_int_eq(farm_query_number(&farm, sql), last);
}

static int all_cuts(void)
{
    return n_cuts;
}

MF_TEST(survives_power_failure, .count_rows = all_cuts)
{
    (void)printf("power %d: seed %u\n", _i, seed += (unsigned)_i * 7919);
    (void)fflush(stdout);
    unsigned random = seed;
    zmq = zmq_ctx_new();
    machine = machine_new("/tmp/moefarm-test.");
    machine->seed = seed;
    /* The first START_WRITES writes belong to the start: they make the database and preallocate the WAL. */
    machine->cut_at =
        _i % 4 == 0 ? 1 + rand_r(&random) % START_WRITES : START_WRITES + rand_r(&random) % writes_max;
    machine_preload(true);
    farm_start(&farm, BEAT_MS);
    greet();
    int last = work_until_it_fails();
    size_t n_before = acked.n;
    machine_preload(false);
    farm_kill_daemon(&farm);
    farm_start_daemon(&farm, BEAT_MS);
    check_files(last);
    last = MF_MAX(last, submit());
    work_until_done(last);
    for (int batch = 1; batch <= last; batch++)
        farm_audit(&farm, batch, &acked);
    (void)printf("power %d: at write %ld, %zu results acknowledged by then, %d batches\n", _i,
                 (long)machine->cut_at, n_before, last);
    fake_worker_close(&worker);
    farm_keys_release(&acked);
}

static void wait_for_cut(void)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (int batch = 0; !machine->has_cut; (void)poll(NULL, 0, 2)) {
        ck_assert_msg(mf_now_ms() < until, "the power failure did not happen");
        if (batch == 0 || is_done(batch))
            batch = submit();
    }
}

/* Simulates power failures of a worker, which syncs its spool at intervals. The worker restarts with the
 * results that are left in its spool and sends them. The lost results were not acknowledged, so they are
 * measured again. */
static int half_of_cuts(void)
{
    return n_cuts / 2;
}

MF_TEST(worker_survives_power_failure, .count_rows = half_of_cuts)
{
    static const char *const args[] = {"--device", "sim:gfx942/304:0", NULL};
    unsigned random = seed + (unsigned)_i * 104729;
    farm_start(&farm, 300);
    machine = machine_new(farm.folder);
    machine->seed = random;
    machine->cut_at = 1 + rand_r(&random) % 1500;
    machine_preload(true);
    farm_start_worker(&farm, 0, args);
    machine_preload(false);
    wait_for_cut();
    farm_kill_worker(&farm, 0);
    farm_read_spool(&farm, 0, &acked);
    farm_start_worker(&farm, 0, args);
    for (int batch = 1; batch <= n_batches; batch++)
        farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    for (int batch = 1; batch <= n_batches; batch++)
        farm_audit(&farm, batch, &acked);
    (void)printf("power at a worker %d: at write %ld, %zu results left in its spool, %d batches\n", _i,
                 (long)machine->cut_at, acked.n, n_batches);
    farm_keys_release(&acked);
}

static void stop(void)
{
    farm_stop(&farm);
    machine_free(machine);
}

int main(int argc, char **argv)
{
    const char *text = getenv("MOEFARM_SEED");
    seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)mf_now_ns();
    if (argc > 1) {
        n_cuts = (int)strtol(argv[1], NULL, 10);
        writes_max = 3000;
    }
    if (!machine_is_available())
        return MF_CHECK_SKIPPED;
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
