/* When a batch ends: with the last of its tasks, and without looking through all of them at each. */
#include "server/farm/farm_private.h"

#include "support/mf_check.h"

#include "common/base/json.h"
#include "server/choose/promote.h"
#include "server/store/store_private.h"
#include "server/store/store_promote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_TASKS  200
#define N_SPARED 3

static char folder[64], path[100];
static struct mf_farm farm;
static int n_counts; /* how often a batch's tasks were gone through */

int __real_mf_store_tasks_open(struct mf_store *s, int64_t batch, int64_t *ret);
int __wrap_mf_store_tasks_open(struct mf_store *s, int64_t batch, int64_t *ret);
int __wrap_mf_store_tasks_open(struct mf_store *s, int64_t batch, int64_t *ret)
{
    n_counts++;
    return __real_mf_store_tasks_open(s, batch, ret);
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_batch_end.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/farm.db", folder);
    farm = (struct mf_farm){.wall_ms = 1000};
    ck_assert_int_eq(mf_store_open(path, &farm.store), 0);
    n_counts = 0;
}

static void teardown(void)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    mf_farm_forget(&farm);
    free(farm.touched);
    free(farm.told);
    farm.store = mf_store_free(farm.store);
    for (size_t i = 0; i < MF_ARRAY_LEN(ends); i++) {
        char file[120];
        (void)snprintf(file, sizeof(file), "%s%s", path, ends[i]);
        (void)unlink(file);
    }
    (void)rmdir(folder);
}

/* A batch of n shapes of a class that has no worker; the first n_spared of them are known by rows that name no pipeline. */
static int64_t submit(int n, int n_spared)
{
    static const char model[] = "2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                "torch.bfloat16,QuantType.No,1,0";
    static struct mf_shape shapes[N_TASKS];
    struct mf_known_row known[N_SPARED];
    struct mf_submission s = {.name = "many",
                              .body_hash = "0",
                              .options = MF_BATCH_OPTIONS_INIT,
                              .shapes = shapes,
                              .n_shapes = (size_t)n,
                              .known = known,
                              .n_known = (size_t)n_spared};
    s.options.n_classes = 1;
    s.options.has_baseline = n_spared > 0;
    s.options.promote = n_spared > 0 ? MF_PROMOTE_IMPROVED : MF_PROMOTE_ALWAYS;
    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &s.options.classes[0]), 0);
    for (int i = 0; i < n; i++) {
        char row[MF_SHAPE_TEXT_MAX];
        (void)snprintf(row, sizeof(row), "%d,%s", i + 1, model);
        ck_assert_int_eq(mf_shape_parse(row, &shapes[i]), 0);
    }
    for (int i = 0; i < n_spared; i++)
        known[i] = (struct mf_known_row){
            .class = s.options.classes[0], .shape = &shapes[i], .pipeline = "", .us = 5, .line = i + 2};
    _cleanup_(cJSON_Deletep) cJSON *unknown = cJSON_CreateStringArray((const char *const[]){"act_limt"}, 1);
    s.unknown_columns = unknown;
    cJSON *receipt = NULL;
    ck_assert_int_eq(mf_farm_submit(&farm, &s, &receipt), 0);
    int64_t batch = (int64_t)cJSON_GetObjectItemCaseSensitive(receipt, "batch")->valuedouble;
    ck_assert_int_eq(cJSON_GetObjectItemCaseSensitive(receipt, "undecided")->valueint, n_spared);
    ck_assert(cJSON_Compare(mf_json_array(receipt, "unknown_columns"), unknown, true));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(receipt, "errors")), 0);
    cJSON_Delete(receipt);
    return batch;
}

static bool is_done(int64_t batch)
{
    int64_t n = 0;
    ck_assert_int_eq(
        mf_sql_get_i64(farm.store, "SELECT state = 'done' FROM batch WHERE id = ?", &n, "i", batch), 1);
    return n == 1;
}

/* One open task after the other fails. */
static void fail_all(int64_t batch)
{
    struct mf_ids ids = {0};
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, batch, &ids), 0);
    for (size_t i = 0; i < ids.n; i++) {
        struct mf_task *g;
        ck_assert_msg(!is_done(batch), "done with %zu of %zu tasks", i, ids.n);
        ck_assert_int_eq(mf_task_get(&farm, ids.all[i], &g), 0);
        ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
        ck_assert_int_eq(mf_tasks_flush(&farm), 0);
    }
    ck_assert(is_done(batch));
    ck_assert_uint_eq(farm.batches.n, 0); /* what has ended is not kept in memory */
    mf_ids_release(&ids);
}

/* Once when the first ends, and once when none is left: of a batch of 20,000 tasks that is what its end takes, not 20,000 walks
 * over 20,000 rows. */
START_TEST(tasks_are_counted_twice)
{
    int64_t batch = submit(N_TASKS, 0);
    fail_all(batch);
    ck_assert_int_eq(n_counts, 2);
}
END_TEST

/* Tasks that were spared ended in the store, all at once: the batch is not done without the others, nor stays open for them. */
START_TEST(spared_tasks_have_ended)
{
    int64_t batch = submit(N_TASKS, N_SPARED);
    ck_assert_int_eq(n_counts, 1);
    fail_all(batch);
    ck_assert_int_eq(n_counts, 2);

    batch = submit(N_SPARED, N_SPARED);
    ck_assert(is_done(batch));
    ck_assert_uint_eq(farm.batches.n, 0);
}
END_TEST

/* Nor is one that is cancelled, once its tasks are; while one of them is in memory, it is there for it. */
START_TEST(ended_batches_are_let_go)
{
    int64_t first = submit(N_TASKS, 0), second = submit(2, 0);
    struct mf_ids ids = {0};
    struct mf_task *g, *other;
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, second, &ids), 0);
    ck_assert_int_eq(mf_task_get(&farm, ids.all[0], &g), 0);
    ck_assert_int_eq(mf_farm_cancel(&farm, first), 0);
    ck_assert_int_eq(mf_tasks_flush(&farm), 0);
    ck_assert_uint_eq(farm.batches.n, 1);
    ck_assert_int_eq(g->batch->id, second);
    ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
    ck_assert_int_eq(mf_tasks_flush(&farm), 0);
    ck_assert_uint_eq(farm.batches.n, 1); /* it is open still */
    ck_assert_int_eq(mf_task_get(&farm, ids.all[1], &other), 0);
    ck_assert_int_eq(mf_task_fail(&farm, other, "no reason"), 0);
    ck_assert_uint_eq(farm.batches.n, 1);
    ck_assert_int_eq(mf_tasks_flush(&farm), 0);
    ck_assert_uint_eq(farm.batches.n, 0);
    /* Whoever looks at it later finds it */
    ck_assert_int_eq(mf_task_get(&farm, ids.all[1], &other), 0);
    ck_assert_int_eq(other->batch->id, second);
    mf_ids_release(&ids);
}
END_TEST

/* Rows that came into force when some tasks had ended already: what was counted before does not hold any more. */
START_TEST(tasks_are_spared_later)
{
    int64_t batch = submit(4, 0), class = 0, shape;
    struct mf_ids ids = {0};
    struct mf_task *g;
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, batch, &ids), 0);
    ck_assert_int_eq(mf_task_get(&farm, ids.all[0], &g), 0);
    ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
    class = g->class_id;
    ck_assert_int_eq(mf_task_get(&farm, ids.all[1], &g), 0);
    shape = g->shape_id;
    ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
    for (int i = 2; i < 4; i++) {
        ck_assert_int_eq(
            mf_sql_get_i64(farm.store, "SELECT shape FROM task WHERE id = ?", &shape, "i", ids.all[i]), 1);
        ck_assert_int_eq(mf_store_known_add(farm.store, batch, shape, class, "", 5, i), 0);
    }
    ck_assert(!is_done(batch));
    ck_assert_int_eq(mf_promote_adopted(&farm, class), 0);
    ck_assert(is_done(batch));
    mf_ids_release(&ids);
}
END_TEST

/* A start knows the rest from the store. */
START_TEST(a_start_counts_again)
{
    int64_t batch = submit(2, 0);
    struct mf_ids ids = {0};
    struct mf_task *g;
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, batch, &ids), 0);
    ck_assert_int_eq(mf_task_get(&farm, ids.all[0], &g), 0);
    ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
    mf_ids_release(&ids);
    mf_farm_forget(&farm);
    fail_all(batch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("batch_end");
    TCase *c = tcase_create("batch_end");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, tasks_are_counted_twice);
    tcase_add_test(c, spared_tasks_have_ended);
    tcase_add_test(c, tasks_are_spared_later);
    tcase_add_test(c, ended_batches_are_let_go);
    tcase_add_test(c, a_start_counts_again);
    suite_add_tcase(suite, c);
    return mf_check_main(suite);
}
