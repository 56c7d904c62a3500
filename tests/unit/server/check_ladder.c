/* The races of a layer model start a few tasks at a time, so that no transaction of the writer takes long. */
#include "server/farm/farm_private.h"

#include "support/farm/bare_farm.h"
#include "support/mf_check.h"

#include "common/base/clock.h"
#include "server/store/store_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TASKS   30
#define N_PATHS   200
#define SLICE_MAX 4 /* tasks whose races start in one transaction */

#define LAYER \
    "2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static struct mf_farm farm;

static void setup(void)
{
    bare_farm_open(&farm);
    farm.options.race_s = 10;
}

static void teardown(void)
{
    bare_farm_close(&farm);
}

/* Submits a batch with one layer model for two consumers, and returns its id. */
static int64_t submit(void)
{
    static struct mf_shape shapes[N_TASKS];
    struct mf_submission s = {.name = "ladder",
                              .body_hash = "0",
                              .options = mf_batch_options_default(),
                              .shapes = shapes,
                              .n_shapes = N_TASKS};
    s.options.n_classes = 1;
    s.options.n_consumers = 2;
    s.options.consumers[1] = MF_CONSUMER_ANY;
    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &s.options.classes[0]), 0);
    for (int i = 0; i < N_TASKS; i++) {
        char row[MF_SHAPE_TEXT_MAX];
        (void)snprintf(row, sizeof(row), "%d,%s", i + 1, LAYER);
        ck_assert_int_eq(mf_shape_parse(row, &shapes[i]), 0);
    }
    cJSON *receipt = NULL;
    ck_assert_int_eq(mf_farm_submit(&farm, &s, &receipt), 0);
    int64_t batch = (int64_t)cJSON_GetObjectItemCaseSensitive(receipt, "batch")->valuedouble;
    cJSON_Delete(receipt);
    ck_assert_int_ge(mf_sql_run(farm.store, "UPDATE task SET state = 'ranking'", ""), 0);
    return batch;
}

/* Returns a forecast with pipelines in two layouts, of which `fast` is faster. */
static struct mf_forecast *make_forecast(const char *fast)
{
    struct mf_forecast *fc = NULL;
    struct mf_path *paths = calloc(N_PATHS, sizeof(*paths));
    int64_t *ids = calloc(N_PATHS, sizeof(*ids));
    ck_assert(paths && ids);
    for (int i = 0; i < N_PATHS; i++) {
        const char *layout = i % 2 ? "row" : "panel16";
        ids[i] = i + 1;
        paths[i] = (struct mf_path){
            .us = (strcmp(layout, fast) == 0 ? 100 : 300) + i, .block_m = 32, .n = 1, .steps = {i}};
        (void)snprintf(paths[i].w1, sizeof(paths[i].w1), "%s", layout);
        (void)snprintf(paths[i].w2, sizeof(paths[i].w2), "%s", layout);
    }
    ck_assert_int_eq(mf_forecast_new(paths, N_PATHS, ids, &fc), 0);
    for (int i = 0; i < N_PATHS; i++)
        fc->corrected_us[i] = paths[i].us;
    ck_assert_int_eq(mf_forecast_group_layouts(fc), 0);
    return fc;
}

/* Ranks the tasks in state `ranking`, as rank.c does. */
static struct mf_task *rank_all(int64_t batch, const char *fast)
{
    struct mf_ids ids = {0};
    struct mf_task *g = NULL;
    ck_assert_int_eq(mf_store_tasks_of_batch(farm.store, batch, &ids), 0);
    for (size_t i = 0; i < ids.n; i++) {
        ck_assert_int_eq(mf_task_get(&farm, ids.all[i], &g), 0);
        for (enum mf_consumer c = 0; c < MF_CONSUMER_N_ && g->state == MF_TASK_RANKING; c++) {
            if (mf_task_live_consumers(g) & MF_CONSUMER_BIT(c))
                g->forecasts[c] = make_forecast(fast);
        }
    }
    mf_ids_release(&ids);
    return g;
}

static int64_t count(const char *sql)
{
    int64_t n = 0;
    ck_assert_int_eq(mf_sql_get_i64(farm.store, sql, &n, ""), 1);
    return n;
}

static int64_t count_racing(void)
{
    return count("SELECT count(*) FROM task WHERE state = 'racing'");
}

/* Returns the duration of a transaction that starts races, in ms. */
static double run_transaction(void)
{
    uint64_t start_ns = mf_now_ns();
    ck_assert_int_ge(mf_store_begin(farm.store), 0);
    ck_assert_int_eq(mf_ladder_continue(&farm), 0);
    ck_assert_int_ge(mf_store_commit(farm.store), 0);
    return (double)(mf_now_ns() - start_ns) * 1e-6;
}

/* Starts races for n transactions, or until all tasks race. */
static void run(int n)
{
    int64_t before = count_racing();
    double longest_ms = 0;
    for (; n > 0 && before < N_TASKS; n--) {
        longest_ms = fmax(longest_ms, run_transaction());
        int64_t now = count_racing();
        ck_assert_int_gt(now, before);
        ck_assert_int_le(now - before, SLICE_MAX);
        ck_assert_int_eq(count("SELECT count(*) FROM unit WHERE kind = 'race'"), 2 * now);
        before = now;
    }
    printf("longest transaction: %.1f ms\n", longest_ms);
    (void)fflush(stdout);
}

MF_TEST(races_start_in_slices)
{
    int64_t batch = submit();
    struct mf_task *g = rank_all(batch, "row");
    ck_assert_int_eq(mf_ladder_rank(&farm, g->batch, g->class_id, g->layer_model), 0);
    ck_assert_int_eq(count_racing(), 0);
    ck_assert_int_eq(count("SELECT count(*) FROM layout_choice"), 2);
    run(N_TASKS);
    ck_assert_int_eq(count_racing(), N_TASKS);
    ck_assert_uint_eq(farm.to_race.n, 0);
    /* the task with the most tokens races first */
    ck_assert_int_eq(count("SELECT s.token FROM unit u JOIN task g ON g.id = u.task JOIN shape s ON s.id ="
                           " g.shape WHERE u.kind = 'race' ORDER BY u.id LIMIT 1"),
                     N_TASKS);
}

/* After a restart between two slices, the other tasks race in the layout that was chosen for all, although
 * their own forecasts favour another one. */
MF_TEST(choice_survives_restart)
{
    int64_t batch = submit();
    struct mf_task *g = rank_all(batch, "row");
    ck_assert_int_eq(mf_ladder_rank(&farm, g->batch, g->class_id, g->layer_model), 0);
    run(2);
    int64_t before = count_racing();
    mf_farm_reset_state(&farm);
    g = rank_all(batch, "panel16");
    ck_assert_int_eq(mf_ladder_rank(&farm, g->batch, g->class_id, g->layer_model), 0);
    ck_assert_int_eq(count_racing(), before);
    run(N_TASKS);
    ck_assert_int_eq(count_racing(), N_TASKS);
    ck_assert_int_eq(count("SELECT count(*) FROM layout_choice WHERE layout = 'w1=row w2=row'"), 2);
    ck_assert_int_eq(count("SELECT count(*) FROM pipeline WHERE finalist = 1 AND layout <> 'w1=row w2=row'"),
                     0);
}

/* A task that fails between two slices does not keep the others from racing. */
MF_TEST(failed_task_is_left_out)
{
    int64_t batch = submit();
    struct mf_task *g = rank_all(batch, "row"), *other;
    ck_assert_int_eq(mf_ladder_rank(&farm, g->batch, g->class_id, g->layer_model), 0);
    run(1);
    ck_assert_int_eq(mf_task_get(&farm, 1, &other), 0);
    ck_assert_int_eq(mf_task_fail(&farm, other, "planted"), 0);
    while (farm.to_race.n > 0)
        (void)run_transaction();
    ck_assert_int_eq(count_racing(), N_TASKS - 1);
    ck_assert_int_eq(count("SELECT count(*) FROM unit WHERE kind = 'race'"), 2 * (N_TASKS - 1));
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
