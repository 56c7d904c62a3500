/* Tests real workers of one class that offer different families: they share a batch, which ends with one
 * table. tests/farm/check_families.c tests more cases with fake workers. */
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"

#define CLASS "gfx942/304"

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64);

static struct farm farm;

static void stop(void)
{
    farm_stop(&farm);
}

/* Counts the results of the batch that the worker measured. */
static int64_t results_of(const char *worker)
{
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/workers");
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
        if (strcmp(farm_text(item, "name"), worker) == 0)
            return farm_number(item, "n_results");
    }
    return 0;
}

MF_TEST(workers_with_different_families_share_a_batch)
{
    static const char *const families[] = {"sim", "sim,aiter"};
    farm_start(&farm, 300);
    for (int i = 0; i < 2; i++) {
        const char *const args[] = {"--device", i ? "sim:" CLASS ":1" : "sim:" CLASS ":0", "--families",
                                    families[i], NULL};
        farm_start_worker(&farm, i, args);
    }
    farm_wait_workers(&farm, 2);
    int batch = farm_run(&farm, csv, "&classes=" CLASS);
    ck_assert_int_gt(results_of("w0"), 0);
    ck_assert_int_gt(results_of("w1"), 0);
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_ptr_nonnull(strstr(table, "gfx942,"));
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, "/api/v1/batches/%d/tasks", batch);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(tasks, "items")), 2);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
