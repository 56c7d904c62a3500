/* The wall clock of the coordinator and of a worker jumps by days, forwards and backwards, while a batch runs
 * and while the coordinator restarts. Leases use the monotonic clock, so no lease expires and nothing is
 * measured twice. An export contains the config that was tuned last, whatever its date. Uses
 * tests/support/farm/machine_shim.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_audit.h"
#include "support/farm/machine.h"
#include "support/mf_check.h"

#define BEAT_MS 3000 /* a lease is longer than a restart of the coordinator on a busy machine */
#define DAY_MS  INT64_C(86400000)

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64);

static struct farm farm;
static struct machine *machine;

static void start_worker(const char *spec)
{
    char device[160];
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:0:%s", farm_file(&farm, "spec.json", spec));
    const char *const args[] = {"--device", device, NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
}

static void start(const char *spec)
{
    farm_make(&farm);
    machine = machine_new(farm.folder);
    machine_preload(true);
    farm_start_daemon(&farm, BEAT_MS);
    start_worker(spec);
}

/* A unit may be granted a second time only if the coordinator was killed after it committed the first grant
 * and before it sent the unit. */
static void check_attempts(void)
{
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "its lease expired"));
    ck_assert_int_eq(farm_query_number(&farm, "SELECT sum(attempt - 1) FROM unit"),
                     farm_log_count(&farm, "moefarmd.log", "released: its worker reconnected without it"));
}

static const int64_t jumps_ms[] = {DAY_MS, -3 * DAY_MS, 0, -400 * DAY_MS};

MF_TEST(leases_ignore_clock_jumps)
{
    /* slow enough that the clock makes its last jump before the batch ends */
    start("{\"step_ms\":15,\"pipeline_ms\":2}");
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    for (size_t i = 0; i < MF_ARRAY_LEN(jumps_ms); i++) {
        ck_assert_msg(farm_wait_batch(&farm, batch, "measured", 10 + 30 * (int)i),
                      "the batch ended before the clock jumped");
        machine->wall_ms = jumps_ms[i];
        if (i % 2) {
            farm_kill_daemon(&farm);
            farm_start_daemon(&farm, BEAT_MS);
        }
    }
    farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    farm_audit(&farm, batch, &(struct farm_keys){0});
    check_attempts();
    ck_assert_int_eq(farm_query_number(&farm, "SELECT count(*) FROM result WHERE late"), 0);
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "is lost"));
    ck_assert(!farm_log_has(&farm, "worker0.log", "no message from the coordinator"));
}

/* Exports the table of all tuned configs. The caller frees it. */
static char *export_all(void)
{
    return farm_export_query(&farm, "");
}

/* The kernels of the first winner fail in the second batch. The clock has gone back a day, so the second
 * config has an earlier date than the first. */
MF_TEST(exports_the_latest_config)
{
    start("{}");
    (void)farm_run(&farm, csv, "&classes=gfx942/304");
    _cleanup_(mf_freep) char *before = export_all();
    machine->wall_ms = -DAY_MS;
    ck_assert_int_eq(farm_end(&farm.workers[0]), 0);
    start_worker("{\"faults\":[{\"match\":\"sim_s1_m16_*\",\"fault\":\"wrong\"},"
                 "{\"match\":\"sim_s1_m32_*\",\"fault\":\"wrong\"}]}");
    int second = farm_run(&farm, csv, "&classes=gfx942/304&seed=2");
    _cleanup_(mf_freep) char *of_second = farm_export(&farm, second);
    _cleanup_(mf_freep) char *after = export_all();
    ck_assert_str_ne(before, of_second);
    ck_assert_str_eq(after, of_second);
}

static void stop(void)
{
    farm_stop(&farm);
    machine_free(machine);
}

int main(void)
{
    if (!machine_is_available())
        return MF_CHECK_SKIPPED;
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
