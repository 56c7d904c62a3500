/* Tests that tasks follow workers that become available or stop being available. Uses a real moefarmd with
 * fake workers. */
#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/fake_farm.h"

#include <signal.h>
#include <stdlib.h>

static struct fake_farm farm;

static void post(const char *path)
{
    int status = 0;
    free(farm_process_http(&farm.process, "POST", path, "", "", &status));
    ck_assert_int_eq(status, 200);
}

/* With shape_grouped, a task is pinned to the worker that measured its first steps. This worker then drains
 * (_i 0) or is quarantined (_i 1), and stays connected. Another worker measures the other steps. */
MF_TEST(grouped_task_leaves_its_worker, .rows = 2)
{
    struct fake_worker pinned, other, third;
    fake_farm_start(&farm);
    ck_assert_int_eq(fake_worker_open(&pinned, farm.zmq, farm.process.hub, "pinned"), 0);
    pinned.gap_us = 1e5;
    ck_assert_int_eq(fake_worker_greet(&pinned, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_join(&farm, &other, "other");
    (void)fake_farm_submit(&farm, 1, "&shape_grouped=1");
    _cleanup_(cJSON_Deletep) cJSON *first = fake_worker_work_until(&pinned, "probe", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(first);
    ck_assert_double_eq(fake_farm_number(&farm, "SELECT worker FROM task"), 1);
    if (_i) {
        fake_farm_join(&farm, &third, "third");
        fake_farm_expect_quarantine(&farm, "pinned", "its launch gap is 1e+05 us");
        fake_worker_close(&third);
    } else {
        post("/api/v1/workers/1/drain");
    }
    ck_assert_int_eq(fake_worker_ready(&other), 0);
    _cleanup_(cJSON_Deletep) cJSON *next = fake_worker_await(&other, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(next);
    fake_worker_close(&pinned);
    fake_worker_close(&other);
    fake_farm_stop(&farm);
}

/* The only worker connects while it is quarantined, so a batch without classes still waits for a worker. It
 * starts when an admin revives the worker. */
MF_TEST(revived_worker_starts_waiting_tasks)
{
    struct fake_worker w;
    fake_farm_start(&farm);
    fake_farm_join(&farm, &w, "w");
    ck_assert_int_eq(farm_process_kill(&farm.process, SIGTERM), 0);
    fake_farm_sql(&farm, "UPDATE worker SET quarantined = 'planted'");
    farm_process_start(&farm.process, FAKE_FARM_BEAT_MS);
    int64_t batch = fake_farm_submit(&farm, 1, "");
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_expect_quarantine(&farm, "w", "planted");
    post("/api/v1/workers/1/revive");
    fake_farm_finish(&farm, &w, batch);
    ck_assert_double_eq(fake_farm_number(&farm, "SELECT count(*) FROM config"), 1);
    fake_worker_close(&w);
    fake_farm_stop(&farm);
}

int main(void)
{
    return mf_check_main(NULL);
}
