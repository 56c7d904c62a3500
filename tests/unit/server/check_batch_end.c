/* A batch ends with its last task. The server must not count all tasks of the batch each time a task ends. */
#include "server/farm/farm_private.h"

#include "support/farm/bare_farm.h"
#include "support/mf_check.h"

#include "common/base/json.h"
#include "server/farm/promote.h"
#include "server/store/store_private.h"
#include "server/store/store_promote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TASKS   200
#define N_SKIPPED 3

static struct mf_farm farm;
static int count_calls; /* number of calls that counted the open tasks of a batch */

int __real_mf_store_open_tasks_count(struct mf_store *s, int64_t batch, int64_t *ret);
int __wrap_mf_store_open_tasks_count(struct mf_store *s, int64_t batch, int64_t *ret);
int __wrap_mf_store_open_tasks_count(struct mf_store *s, int64_t batch, int64_t *ret)
{
    count_calls++;
    return __real_mf_store_open_tasks_count(s, batch, ret);
}

static void setup(void)
{
    bare_farm_open(&farm);
    count_calls = 0;
}

static void teardown(void)
{
    bare_farm_close(&farm);
}

/* Submits a batch of n shapes for a class without workers. The first n_skipped shapes have baseline rows
 * without a pipeline, so their tasks are skipped. */
static int64_t submit(int n, int n_skipped)
{
    static const char model[] = "2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                "torch.bfloat16,QuantType.No,1,0";
    static struct mf_shape shapes[N_TASKS];
    struct mf_known_row known[N_SKIPPED];
    struct mf_submission s = {.name = "many",
                              .body_hash = "0",
                              .options = mf_batch_options_default(),
                              .shapes = shapes,
                              .n_shapes = (size_t)n,
                              .known = known,
                              .n_known = (size_t)n_skipped};
    s.options.n_classes = 1;
    s.options.has_baseline = n_skipped > 0;
    s.options.promote = n_skipped > 0 ? MF_PROMOTE_IMPROVED : MF_PROMOTE_ALWAYS;
    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &s.options.classes[0]), 0);
    for (int i = 0; i < n; i++) {
        char row[MF_SHAPE_TEXT_MAX];
        (void)snprintf(row, sizeof(row), "%d,%s", i + 1, model);
        ck_assert_int_eq(mf_shape_parse(row, &shapes[i]), 0);
    }
    for (int i = 0; i < n_skipped; i++)
        known[i] = (struct mf_known_row){
            .class = s.options.classes[0], .shape = &shapes[i], .pipeline = "", .us = 5, .line = i + 2};
    _cleanup_(cJSON_Deletep) cJSON *unknown = cJSON_CreateStringArray((const char *const[]){"act_limt"}, 1);
    s.unknown_columns = unknown;
    cJSON *receipt = NULL;
    ck_assert_int_eq(mf_farm_submit(&farm, &s, &receipt), 0);
    int64_t batch = (int64_t)cJSON_GetObjectItemCaseSensitive(receipt, "batch")->valuedouble;
    ck_assert_int_eq(cJSON_GetObjectItemCaseSensitive(receipt, "undecided")->valueint, n_skipped);
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

/* Makes the open tasks of the batch fail, one after another. */
static void fail_all(int64_t batch)
{
    struct mf_ids ids = {0};
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, batch, &ids), 0);
    for (size_t i = 0; i < ids.n; i++) {
        struct mf_task *g;
        ck_assert_msg(!is_done(batch), "the batch ended after %zu of %zu tasks", i, ids.n);
        ck_assert_int_eq(mf_task_get(&farm, ids.all[i], &g), 0);
        ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
        ck_assert_int_eq(mf_tasks_flush(&farm), 0);
    }
    ck_assert(is_done(batch));
    ck_assert_uint_eq(farm.batches.n, 0); /* ended batches are removed from memory */
    mf_ids_release(&ids);
}

/* The open tasks of a batch are counted when its first task ends and when no task is open: twice per batch,
 * not once per task. */
MF_TEST(open_tasks_are_counted_twice)
{
    int64_t batch = submit(N_TASKS, 0);
    fail_all(batch);
    ck_assert_int_eq(count_calls, 2);
}

/* Skipped tasks end in the database, all at the same time. The batch must not end before its other tasks, and
 * must not stay open after them. */
MF_TEST(skipped_tasks_have_ended)
{
    int64_t batch = submit(N_TASKS, N_SKIPPED);
    ck_assert_int_eq(count_calls, 1);
    fail_all(batch);
    ck_assert_int_eq(count_calls, 2);

    batch = submit(N_SKIPPED, N_SKIPPED);
    ck_assert(is_done(batch));
    ck_assert_uint_eq(farm.batches.n, 0);
}

/* A cancelled batch is removed from memory after its tasks. A batch stays in memory as long as one of its
 * tasks is in memory. */
MF_TEST(ended_batches_leave_memory)
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
    ck_assert_uint_eq(farm.batches.n, 1); /* the second batch is still open */
    ck_assert_int_eq(mf_task_get(&farm, ids.all[1], &other), 0);
    ck_assert_int_eq(mf_task_fail(&farm, other, "no reason"), 0);
    ck_assert_uint_eq(farm.batches.n, 1);
    ck_assert_int_eq(mf_tasks_flush(&farm), 0);
    ck_assert_uint_eq(farm.batches.n, 0);
    /* a later access loads the batch again */
    ck_assert_int_eq(mf_task_get(&farm, ids.all[1], &other), 0);
    ck_assert_int_eq(other->batch->id, second);
    mf_ids_release(&ids);
}

/* If baseline rows take effect after some tasks have ended, the earlier count of open tasks is stale. */
MF_TEST(tasks_are_skipped_later)
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
        ck_assert_int_eq(mf_store_baseline_row_add(farm.store, batch, shape, class, "", 5, i), 0);
    }
    ck_assert(!is_done(batch));
    ck_assert_int_eq(mf_promote_skip_for_class(&farm, class), 0);
    ck_assert(is_done(batch));
    mf_ids_release(&ids);
}

/* After a restart, the open tasks are counted in the database again. */
MF_TEST(restart_counts_open_tasks)
{
    int64_t batch = submit(2, 0);
    struct mf_ids ids = {0};
    struct mf_task *g;
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, batch, &ids), 0);
    ck_assert_int_eq(mf_task_get(&farm, ids.all[0], &g), 0);
    ck_assert_int_eq(mf_task_fail(&farm, g, "no reason"), 0);
    mf_ids_release(&ids);
    mf_farm_reset_state(&farm);
    fail_all(batch);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
