/* A kernel that kills its runner, in many tasks of a batch that several workers measure at the same time. */
#include "support/farm/farm_audit.h"
#include "support/mf_check.h"

#include <stdio.h>
#include <string.h>

#define BEAT_MS   2000
#define N_WORKERS 5

static struct farm farm;

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(1) FARM_CSV_ROW(2) FARM_CSV_ROW(4) FARM_CSV_ROW(8)
    FARM_CSV_ROW(16) FARM_CSV_ROW(24) FARM_CSV_ROW(32) FARM_CSV_ROW(48) FARM_CSV_ROW(64) FARM_CSV_ROW(96);

static const char spec[] = "{\"step_ms\":5,\"faults\":["
                           "{\"match\":\"sim_s2_m16_n32_*\",\"fault\":\"crash\"},"
                           "{\"match\":\"sim_s1_m16_n32_row_*\",\"fault\":\"crash\"}]}";

static void stop(void)
{
    farm_stop(&farm);
}

/* Two strikes decide for all tasks, in the running batch too. */
MF_TEST(two_strikes_per_kernel)
{
    char device[256], file[128];
    farm_start(&farm, BEAT_MS);
    (void)snprintf(file, sizeof(file), "%s", farm_file(&farm, "spec.json", spec));
    for (int i = 0; i < N_WORKERS; i++) {
        (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d:%s", i, file);
        const char *const args[] = {"--device", device, NULL};
        farm_start_worker(&farm, i, args);
    }
    farm_wait_workers(&farm, N_WORKERS);
    int batch = farm_run(&farm, csv, "&classes=gfx942/304");
    farm_audit(&farm, batch, &(struct farm_keys){0});
    printf("%d strikes\n", (int)farm_query_number(&farm, "SELECT count(*) FROM strike"));
    ck_assert_int_gt(farm_query_number(&farm, "SELECT count(*) FROM quarantine"), 3);
    ck_assert_int_eq(farm_query_number(&farm, "SELECT max(n) FROM (SELECT count(*) n FROM strike"
                                              " GROUP BY kernel, class)"),
                     2);
    /* every task that offers a quarantined kernel has a result that says so */
    ck_assert_int_eq(
        farm_query_number(
            &farm,
            "SELECT count(*) FROM task g JOIN task_enumeration e ON e.task ="
            " g.id JOIN step s ON s.enumeration = e.enumeration JOIN quarantine q ON q.kernel = s.kernel"
            " LEFT JOIN result r ON r.task = g.id AND r.step = s.id AND"
            " r.final = 1 WHERE r.status IS NOT 'quarantined'"),
        0);
    ck_assert_int_eq(farm_query_number(&farm, "SELECT count(*) FROM task WHERE state <> 'done'"), 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
