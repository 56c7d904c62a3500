/* The clock on the wall jumps, by days and both ways, at the coordinator and at a worker, while a batch runs and over restarts:
 * leases are ruled by the other clock, so that none ends and nothing is measured twice; and what was tuned last is what is
 * exported, whatever its date says. On tests/support/farm/machine_shim.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_audit.h"
#include "support/farm/machine.h"
#include "support/mf_check.h"

#define BEAT_MS 3000 /* its lease outlasts a start of the coordinator on a busy machine */
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
    machine_plug(true);
    farm_start_daemon(&farm, BEAT_MS);
    start_worker(spec);
}

/* No unit is granted again but one whose grant died with a coordinator: committed, and not sent when it was killed. */
static void check_attempts(void)
{
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "its lease ended"));
    ck_assert_int_eq(farm_ask(&farm, "SELECT sum(attempt - 1) FROM unit"),
                     farm_log_count(&farm, "moefarmd.log", "free again: its worker came back without it"));
}

static const int64_t jumps_ms[] = {DAY_MS, -3 * DAY_MS, 0, -400 * DAY_MS};

START_TEST(leases_stand)
{
    start("{\"step_ms\":15,\"pipeline_ms\":2}"); /* slow enough for the last jump to come before the end */
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    for (size_t i = 0; i < MF_ARRAY_LEN(jumps_ms); i++) {
        ck_assert_msg(farm_wait_batch(&farm, batch, "measured", 10 + 30 * (int)i), "done before the jump");
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
    ck_assert_int_eq(farm_ask(&farm, "SELECT count(*) FROM result WHERE late"), 0);
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "is lost"));
    ck_assert(!farm_log_has(&farm, "worker0.log", "nothing heard"));
}
END_TEST

/* What the farm would write into a table now, of all that it has tuned. */
static char *export_all(void)
{
    return farm_export_query(&farm, "");
}

/* Kernels of the first winner are wrong on the second day, which the clock takes for the day before. */
START_TEST(what_was_tuned_last_counts)
{
    start("{}");
    int first = farm_submit(&farm, csv, "&classes=gfx942/304");
    farm_wait_done(&farm, first);
    _cleanup_(mf_freep) char *before = export_all();
    machine->wall_ms = -DAY_MS;
    ck_assert_int_eq(farm_end(&farm.workers[0]), 0);
    start_worker("{\"faults\":[{\"match\":\"sim_s1_m16_*\",\"fault\":\"wrong\"},"
                 "{\"match\":\"sim_s1_m32_*\",\"fault\":\"wrong\"}]}");
    int second = farm_submit(&farm, csv, "&classes=gfx942/304&seed=2");
    farm_wait_done(&farm, second);
    _cleanup_(mf_freep) char *of_second = farm_export(&farm, second);
    _cleanup_(mf_freep) char *after = export_all();
    ck_assert_str_ne(before, of_second);
    ck_assert_str_eq(after, of_second);
}
END_TEST

static void stop(void)
{
    farm_stop(&farm);
    machine_free(machine);
}

int main(void)
{
#ifdef __SANITIZE_ADDRESS__
    (void)printf("skipped: a program under AddressSanitizer takes no preloaded library\n");
    return 77;
#endif
    Suite *suite = suite_create("clock");
    TCase *tc = tcase_create("clock");
    tcase_add_checked_fixture(tc, NULL, stop);
    tcase_add_test(tc, leases_stand);
    tcase_add_test(tc, what_was_tuned_last_counts);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
