#include "server/store/schema.h"
#include "server/store/store_access.h"
#include "server/store/store_family.h"
#include "server/store/store_private.h"
#include "server/store/store_promote.h"
#include "server/store/store_rank.h"
#include "server/store/store_unit.h"
#include "server/store/store_worker.h"

#include "support/mf_check.h"
#include "support/remove_tree.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char folder[64];
static char path[100];
static struct mf_store *store;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_store.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/farm.db", folder);
    ck_assert_int_eq(mf_store_open(path, &store), 0);
}

static void teardown(void)
{
    store = mf_store_free(store);
    ck_assert_int_eq(remove_tree(folder), 0);
}

static int64_t count(struct mf_store *s)
{
    int64_t n = -1;
    ck_assert_int_eq(mf_sql_get_i64(s, "SELECT count(*) FROM device_class", &n, ""), 1);
    return n;
}

static int add_class(const char *gfx)
{
    return mf_sql_run(store, "INSERT INTO device_class (gfx, cu_num) VALUES (?, ?)", "ti", gfx, (int64_t)4);
}

MF_TEST(starts_a_new_database)
{
    int64_t version = 0, epoch = 0;
    ck_assert_int_eq(mf_sql_get_i64(store, "PRAGMA user_version", &version, ""), 1);
    ck_assert_int_eq(version, mf_schema.version);
    ck_assert_int_eq(mf_store_start_epoch(store, 5, &epoch), 0);
    /* the first epoch is not 1, so that a new farm in an emptied folder has another epoch than the old farm
     */
    ck_assert_int_eq(epoch, 5);
    store = mf_store_free(store);
    ck_assert_int_eq(mf_store_open(path, &store), 0);
    ck_assert_int_eq(mf_store_start_epoch(store, 6, &epoch), 0);
    ck_assert_int_eq(epoch, 6);
    /* the epoch increases even if the clock goes back */
    ck_assert_int_eq(mf_store_start_epoch(store, 4, &epoch), 0);
    ck_assert_int_eq(epoch, 7);
}

MF_TEST(refuses_a_newer_database)
{
    ck_assert_int_ge(mf_sql_run(store, "PRAGMA user_version = 99", ""), 0);
    store = mf_store_free(store);
    ck_assert_int_eq(mf_store_open(path, &store), -ENOTSUP);
}

MF_TEST(readers_see_commits)
{
    _cleanup_(mf_store_freep) struct mf_store *reader = NULL;
    ck_assert_int_eq(mf_store_open_reader(path, &reader), 0);
    ck_assert_int_ge(mf_store_begin(store), 0);
    ck_assert_int_eq(add_class("gfx942"), 1);
    ck_assert_int_eq(count(reader), 0);
    ck_assert_int_ge(mf_store_commit(store), 0);
    ck_assert_int_eq(count(reader), 1);
    /* a snapshot lasts for several queries */
    ck_assert_int_ge(mf_store_begin(reader), 0);
    ck_assert_int_eq(count(reader), 1);
    ck_assert_int_eq(add_class("gfx950"), 1);
    ck_assert_int_eq(count(reader), 1);
    ck_assert_int_ge(mf_store_commit(reader), 0);
    ck_assert_int_eq(count(reader), 2);
    ck_assert_int_eq(mf_sql_run(reader, "DELETE FROM device_class", ""), -EROFS);
}

static void copy_file(const char *from, const char *to)
{
    char chunk[65536];
    _cleanup_(mf_fclosep) FILE *in = fopen(from, "re");
    _cleanup_(mf_fclosep) FILE *out = fopen(to, "we");
    ck_assert(in && out);
    for (size_t n; (n = fread(chunk, 1, sizeof(chunk), in)) > 0;)
        ck_assert_uint_eq(fwrite(chunk, 1, n, out), n);
}

/* WAL writes are delayed and combined, but a commit that returned must be in the files. The test copies the
 * files, as they would be after a power cut, and finds the commit in the copy. The first commit fills one
 * page. The second commit fills more pages than one write combines. */
MF_TEST(commit_is_in_the_files)
{
    static const int kilobytes[] = {1, 400};
    char from[120], to[120], copy[110];
    for (size_t i = 0; i < MF_ARRAY_LEN(kilobytes); i++) {
        _cleanup_(mf_store_freep) struct mf_store *reopened = NULL;
        ck_assert_int_ge(mf_store_begin(store), 0);
        ck_assert_int_eq(
            mf_sql_run(store, "INSERT INTO device_class (gfx, cu_num) VALUES (hex(randomblob(? * 512)), 4)",
                       "i", (int64_t)kilobytes[i]),
            1);
        ck_assert_int_ge(mf_store_commit(store), 0);
        (void)snprintf(copy, sizeof(copy), "%s/copy%zu", folder, i);
        copy_file(path, copy);
        (void)snprintf(from, sizeof(from), "%s-wal", path);
        (void)snprintf(to, sizeof(to), "%s-wal", copy);
        copy_file(from, to);
        ck_assert_int_eq(mf_store_open(copy, &reopened), 0);
        ck_assert_int_eq(count(reopened), (int64_t)i + 1);
        reopened = mf_store_free(reopened);
        (void)unlink(copy);
    }
}

/* The commit reports that a WAL write failed. Rows that were committed before and after the failure are kept.
 */
MF_TEST(full_disk_fails_the_commit)
{
    struct rlimit old, limit;
    ck_assert_int_eq(add_class("a"), 1);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    limit = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_ge(mf_store_begin(store), 0);
    ck_assert_int_eq(add_class("b"), 1);
    ck_assert_int_lt(mf_store_commit(store), 0);
    mf_store_rollback(store);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(count(store), 1);
    ck_assert_int_eq(add_class("c"), 1);
    store = mf_store_free(store);
    ck_assert_int_eq(mf_store_open(path, &store), 0);
    ck_assert_int_eq(count(store), 2);
}

MF_TEST(savepoint_rollback_keeps_the_transaction)
{
    ck_assert_int_ge(mf_store_begin(store), 0);
    ck_assert_int_eq(add_class("a"), 1);
    ck_assert_int_ge(mf_store_savepoint(store, MF_SAVEPOINT_MESSAGE), 0);
    ck_assert_int_eq(add_class("b"), 1);
    ck_assert_int_eq(mf_store_savepoint_rollback(store, MF_SAVEPOINT_MESSAGE), 0);
    ck_assert_int_ge(mf_store_savepoint(store, MF_SAVEPOINT_MESSAGE), 0);
    ck_assert_int_eq(add_class("c"), 1);
    ck_assert_int_ge(mf_store_savepoint_release(store, MF_SAVEPOINT_MESSAGE), 0);
    ck_assert_int_ge(mf_store_commit(store), 0);
    ck_assert_int_eq(count(store), 2);
    ck_assert_int_ge(mf_store_begin(store), 0);
    ck_assert_int_eq(add_class("d"), 1);
    mf_store_rollback(store);
    mf_store_rollback(store);
    ck_assert_int_eq(count(store), 2);
}

MF_TEST(failures_have_messages)
{
    ck_assert_int_eq(add_class("x"), 1);
    ck_assert_int_eq(add_class("x"), -EEXIST);
    ck_assert_ptr_nonnull(strstr(mf_store_error(store), "device_class"));
    /* the statement is usable again */
    ck_assert_int_eq(add_class("y"), 1);
    struct mf_store *none = NULL;
    ck_assert_int_eq(mf_store_open_reader("/nonexistent/farm.db", &none), -ENOENT);
}

MF_TEST(binds_every_kind)
{
    struct mf_sql *q = NULL, *second = NULL;
    size_t len = 0;
    static const char sql[] = "SELECT ?, ?, ?, ?, ?, ?";
    ck_assert_int_eq(
        mf_sql(store, sql, &q, "iIddtb", (int64_t)-5, (int64_t)0, 1.5, (double)NAN, "é", "\0x", (size_t)2),
        0);
    ck_assert_int_eq(mf_sql_next(q), 1);
    ck_assert_int_eq(mf_sql_i64(q, 0), -5);
    ck_assert(mf_sql_null(q, 1));
    ck_assert_double_eq(mf_sql_double(q, 2), 1.5);
    ck_assert_double_nan(mf_sql_double(q, 3));
    ck_assert_str_eq(mf_sql_text(q, 4), "é");
    ck_assert_mem_eq(mf_sql_blob(q, 5, &len), "\0x", 2);
    ck_assert_uint_eq(len, 2);
    /* a cached statement can have only one user at a time */
    ck_assert_int_eq(
        mf_sql(store, sql, &second, "iIddtb", (int64_t)1, (int64_t)0, 0.0, 0.0, "", "", (size_t)0), -EBUSY);
    mf_sql_done(q);
    mf_sql_done(NULL);
}

/* ---- leases and results ---- */

static struct mf_slot slot;

/* Creates a class, a model, a worker and a batch with n tasks. Each task has an enumeration and two units. */
static void make_units(int n)
{
    struct mf_device_class class = {"gfx942", 304};
    struct mf_worker_row worker = {.name = "w",
                                   .instance = "i",
                                   .host = "h",
                                   .version = "0",
                                   .revision = "r",
                                   .families = "{\"f\":\"r\"}",
                                   .refused_families = "[]",
                                   .sandbox = "",
                                   .device = "{}"};
    slot = (struct mf_slot){.name = "w"};
    ck_assert_int_eq(mf_store_class(store, &class, &slot.class_id), 0);
    ck_assert_int_eq(mf_store_model(store, slot.class_id, "m", true, "{}", &slot.model_id), 0);
    worker.model = slot.model_id;
    ck_assert_int_eq(mf_store_worker_hello(store, &worker, 1, &slot), 0);
    struct mf_batch_row batch = {.name = "b", .options = "{}", .body_hash = "", .created_ms = 1};
    int64_t batch_id, shape_id, enumeration, unit, set;
    bool complete;
    char families[40];
    ck_assert_int_eq(mf_store_batch_add(store, &batch, &batch_id), 0);
    ck_assert_uint_eq(slot.n_families, 1);
    ck_assert_int_eq(mf_store_batch_add_family(store, batch_id, slot.class_id, slot.families[0]), 0);
    mf_format(families, sizeof(families), "[%d]", (int)slot.families[0]);
    ck_assert_int_eq(mf_store_family_set(store, families, &set), 0);
    for (int i = 0; i < n; i++) {
        struct mf_shape shape = {.token = i + 1, .model_dim = 128, .inter_dim = 128, .expert = 8, .topk = 2};
        ck_assert_int_eq(mf_store_shape(store, &shape, &shape_id), 0);
        ck_assert_int_eq(mf_store_task_add(store, batch_id, shape_id, slot.class_id,
                                           MF_CONSUMER_BIT(MF_CONSUMER_MOEFARM), ""),
                         0);
        int64_t task = mf_store_last_id(store);
        ck_assert_int_eq(
            mf_store_enumeration(store, slot.class_id, shape_id, slot.families[0], &enumeration, &complete),
            0);
        ck_assert(!complete);
        ck_assert_int_eq(mf_store_task_add_enumeration(store, task, enumeration), 0);
        ck_assert_int_eq(mf_store_task_set_state(store, task, MF_TASK_ENUMERATING, "", 1), 0);
        for (int k = 0; k < 2; k++) {
            char body[] = "{\"steps\":[1]}";
            struct mf_unit_row row = {
                .task = task, .class = slot.class_id, .kind = MF_UNIT_PROBE, .priority = 10, .body = body};
            ck_assert_int_eq(mf_store_unit_add(store, &row, 1, &unit), 0);
        }
    }
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET families = ?", "i", set), 2 * n);
}

static int64_t lease(enum mf_affinity affinity, bool alone, int64_t *ret_attempt)
{
    struct mf_unit_row row = {0};
    int r = mf_store_unit_lease(store, &slot, affinity, alone, 7, 1000, &row);
    ck_assert_int_ge(r, 0);
    free(row.body);
    if (ret_attempt)
        *ret_attempt = row.attempt;
    return r ? row.id : 0;
}

/* ---- enumerations of untrusted workers ---- */

static int64_t first_enumeration(bool *ret_complete)
{
    struct mf_shape shape = {.token = 1, .model_dim = 128, .inter_dim = 128, .expert = 8, .topk = 2};
    int64_t shape_id, enumeration;
    ck_assert_int_eq(mf_store_shape(store, &shape, &shape_id), 0);
    ck_assert_int_eq(
        mf_store_enumeration(store, slot.class_id, shape_id, slot.families[0], &enumeration, ret_complete),
        0);
    return enumeration;
}

static void add_listed_step(int64_t enumeration, const char *name)
{
    struct mf_step step = {.family = "f", .covers = MF_OP_BIT(MF_OP_SORT)};
    mf_format(step.name, sizeof(step.name), "%s", name);
    ck_assert_int_ge(mf_store_step_add(store, enumeration, &step, "{}"), 0);
}

static int64_t count_listed_steps(int64_t enumeration)
{
    int64_t n_steps, n_rejections;
    ck_assert_int_eq(mf_store_enumeration_counts(store, enumeration, &n_steps, &n_rejections), 0);
    return n_steps;
}

static int quarantine(void)
{
    return mf_store_worker_quarantine(store, slot.id, "it lies");
}

static int end_quarantine(void)
{
    return mf_store_worker_quarantine(store, slot.id, "");
}

static int revoke_key(void)
{
    uint8_t key[MF_KEY_SIZE];
    ck_assert_int_ge(mf_sql_run(store,
                                "INSERT INTO token (id, role, name, hash, created_ms, expires_ms)"
                                " VALUES (1, 'worker', 'w', zeroblob(32), 1, 0)",
                                ""),
                     0);
    ck_assert_int_ge(mf_sql_run(store,
                                "INSERT INTO worker_key (id, worker, public_key, token, enrolled_ms)"
                                " VALUES (1, 'w', zeroblob(32), 1, 1)",
                                ""),
                     0);
    return mf_store_key_revoke(store, 1, 2, key);
}

static const struct {
    int (*act)(void);
    bool kept;
} distrusts[] = {{quarantine, false}, {end_quarantine, true}, {revoke_key, false}};

/* Later tasks enumerate again; tasks that have begun keep the steps that their results refer to. */
MF_TEST(enumeration_ends_with_the_trust_in_its_worker, .rows = MF_ARRAY_LEN(distrusts))
{
    bool complete;
    make_units(1);
    int64_t first = first_enumeration(&complete);
    ck_assert_int_eq(mf_store_enumeration_begin(store, first, slot.id), 0);
    add_listed_step(first, "a");
    ck_assert_int_eq(mf_store_enumeration_complete(store, first), 0);
    ck_assert_int_eq(first_enumeration(&complete), first);
    ck_assert(complete);
    ck_assert_int_eq(distrusts[_i].act(), 0);
    int64_t next = first_enumeration(&complete);
    ck_assert_int_eq(next == first, distrusts[_i].kept);
    ck_assert_int_eq(complete, distrusts[_i].kept);
    ck_assert_int_eq(first_enumeration(&complete), next);
    ck_assert_int_eq(count_listed_steps(first), 1);
}

/* A worker that listed a part and left must not leave steps to the list of the next worker. */
MF_TEST(another_worker_enumerates_from_the_start)
{
    bool complete;
    make_units(1);
    struct mf_slot other = {.name = "other"};
    struct mf_worker_row row = {.name = "other",
                                .instance = "i",
                                .host = "h",
                                .version = "0",
                                .revision = "r",
                                .families = "{\"f\":\"r\"}",
                                .refused_families = "[]",
                                .sandbox = "",
                                .device = "{}",
                                .model = slot.model_id};
    ck_assert_int_eq(mf_store_worker_hello(store, &row, 1, &other), 0);
    int64_t enumeration = first_enumeration(&complete);
    for (int part = 0; part < 2; part++) {
        ck_assert_int_eq(mf_store_enumeration_begin(store, enumeration, slot.id), 0);
        add_listed_step(enumeration, part ? "b" : "a");
    }
    ck_assert_int_eq(count_listed_steps(enumeration), 2);
    ck_assert_int_eq(mf_store_enumeration_begin(store, enumeration, other.id), 0);
    ck_assert_int_eq(count_listed_steps(enumeration), 0);
    add_listed_step(enumeration, "a");
    ck_assert_int_eq(mf_store_enumeration_complete(store, enumeration), 0);
    ck_assert_int_eq(mf_store_enumeration_begin(store, enumeration, slot.id), 0);
    ck_assert_int_eq(count_listed_steps(enumeration), 1);
}

MF_TEST(leases_follow_affinity)
{
    make_units(3);
    slot.last_task = 2;
    ck_assert_int_eq(lease(MF_AFFINITY_LAST_TASK, true, NULL), 3);
    /* task 2 is in progress, task 1 is not */
    ck_assert_int_eq(lease(MF_AFFINITY_IDLE_TASK, true, NULL), 1);
    ck_assert_int_eq(lease(MF_AFFINITY_IDLE_TASK, true, NULL), 5);
    ck_assert_int_eq(lease(MF_AFFINITY_IDLE_TASK, true, NULL), 0);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 2);
    /* a more urgent unit of another task goes first */
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET priority = 99 WHERE id = 6", ""), 1);
    ck_assert_int_eq(lease(MF_AFFINITY_LAST_TASK, true, NULL), 0);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 6);
    ck_assert_int_eq(lease(MF_AFFINITY_LAST_TASK, true, NULL), 4);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 0);
}

/* Among the tasks of one layer, the tasks with more tokens go first. So the longest task is not the last to
 * end, and the code of other tasks is compiled while it runs. */
MF_TEST(long_tasks_go_first)
{
    static const struct {
        int64_t token;
        int model_dim;
    } shapes[] = {{1, 128}, {64, 128}, {16384, 128}, {4, 256}, {512, 256}};
    struct mf_batch_row batch = {.name = "b", .options = "{}", .body_hash = "", .created_ms = 1};
    struct mf_ids ids = {0};
    int64_t batch_id, shape_id;

    make_units(0);
    for (int b = 0; b < 2; b++) {
        ck_assert_int_eq(mf_store_batch_add(store, &batch, &batch_id), 0);
        for (size_t i = 0; i < MF_ARRAY_LEN(shapes); i++) {
            struct mf_shape shape = {.token = shapes[i].token,
                                     .model_dim = shapes[i].model_dim,
                                     .inter_dim = 128,
                                     .expert = 8,
                                     .topk = 2};
            ck_assert_int_eq(mf_store_shape(store, &shape, &shape_id), 0);
            ck_assert_int_eq(mf_store_task_add(store, batch_id, shape_id, slot.class_id,
                                               MF_CONSUMER_BIT(MF_CONSUMER_MOEFARM), ""),
                             0);
        }
    }
    ck_assert_int_eq(mf_store_tasks_waiting(store, slot.class_id, &ids), 0);
    static const int64_t order[] = {3, 2, 1, 5, 4, 8, 7, 6, 10, 9};
    ck_assert_uint_eq(ids.n, MF_ARRAY_LEN(order));
    ck_assert_mem_eq(ids.all, order, sizeof(order));
    mf_ids_release(&ids);
}

/* Returns the number of ready units with a wrong busy flag. The flag must be set if another unit of the task
 * is leased. */
static int64_t count_wrong_busy_flags(void)
{
    int64_t n = -1;
    ck_assert_int_eq(
        mf_sql_get_i64(store,
                       "SELECT count(*) FROM unit u WHERE u.state = 'ready' AND u.busy <>"
                       " EXISTS (SELECT 1 FROM unit o WHERE o.task = u.task AND o.state = 'leased')",
                       &n, ""),
        1);
    return n;
}

/* Triggers keep the busy flag correct for every order in which leases begin and end. */
MF_TEST(busy_flag_is_correct)
{
    static const char some[] = "SELECT id FROM unit WHERE state = 'leased' ORDER BY (id * ?) % 101 LIMIT 1";
    unsigned seed = (unsigned)mf_now_ns();
    int64_t unit;
    char body[] = "{}";
    make_units(5);
    (void)printf("seed %u\n", seed);
    for (int i = 0; i < 400; i++) {
        int what = rand_r(&seed) % 8;
        int64_t task = 1 + rand_r(&seed) % 5;
        struct mf_unit_row row = {
            .task = task, .class = slot.class_id, .kind = MF_UNIT_PROBE, .priority = 10, .body = body};
        slot.last_task = task;
        if (what < 3)
            (void)lease((enum mf_affinity)what, true, NULL);
        else if (what == 3)
            ck_assert_int_eq(mf_store_unit_add(store, &row, 1, &unit), 0);
        else if (what == 4 && rand_r(&seed) % 8 == 0)
            ck_assert_int_ge(mf_store_units_cancel(store, task), 0);
        else if (mf_sql_get_i64(store, some, &unit, "i", (int64_t)(1 + rand_r(&seed) % 100)) > 0)
            ck_assert_int_eq(
                what < 6 ? mf_store_unit_release(store, unit, 0) : mf_store_unit_end(store, unit, "done"), 0);
        ck_assert_int_eq(count_wrong_busy_flags(), 0);
    }
}

static int take_row(void *context, const char *row)
{
    struct mf_buf *rows = context;
    return mf_buf_addf(rows, "%.1s ", row);
}

/* Lists the shapes of ready enumeration units, the most urgent first. Batches that never measure are
 * excluded. */
MF_TEST(next_shapes)
{
    struct mf_buf rows;
    mf_buf_init(&rows, 256);
    make_units(5);
    ck_assert_int_eq(mf_store_next_shapes(store, slot.class_id, 8, take_row, &rows), 0);
    ck_assert_uint_eq(rows.len, 0);
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET kind = 'enumerate' WHERE id IN (1, 3, 5, 7)", ""), 4);
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET priority = 20 WHERE id = 7", ""), 1);
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET state = 'done' WHERE id = 3", ""), 1);
    ck_assert_int_eq(mf_store_next_shapes(store, slot.class_id, 8, take_row, &rows), 0);
    ck_assert_str_eq(rows.data, "4 1 3 ");
    mf_buf_release(&rows);
    mf_buf_init(&rows, 256);
    ck_assert_int_eq(mf_store_next_shapes(store, slot.class_id, 2, take_row, &rows), 0);
    ck_assert_str_eq(rows.data, "4 1 ");
    ck_assert_int_ge(mf_sql_run(store, "UPDATE batch SET options = '{\"search\":\"enumerate\"}'", ""), 1);
    ck_assert_int_eq(mf_store_next_shapes(store, slot.class_id, 8, take_row, &rows), 0);
    ck_assert_str_eq(rows.data, "4 1 ");
    mf_buf_release(&rows);
}

/* Among units of equal priority, the unit with the lowest start tag goes first. This holds for every task
 * that the worker had before. */
MF_TEST(leases_go_by_start_tags)
{
    make_units(3);
    slot.last_task = 3;
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET start_tag = 10 - id", ""), 6);
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET priority = 9 WHERE id = 6", ""), 1);
    ck_assert_int_eq(lease(MF_AFFINITY_IDLE_TASK, true, NULL), 5);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 4);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 3);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 2);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 1);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 6);
}

MF_TEST(lease_restrictions)
{
    int64_t attempt = 0;
    make_units(1);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, &attempt), 1);
    ck_assert_int_eq(attempt, 1);
    ck_assert_int_eq(mf_store_unit_release(store, 1, 0), 0);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, &attempt), 1);
    ck_assert_int_eq(attempt, 2);
    /* As long as another worker exists, the unit is not leased to the worker in avoid_worker. The unit is
     * also not leased to a worker with another model, without its family, or with another revision of it. */
    ck_assert_int_ge(mf_sql_run(store, "UPDATE unit SET avoid_worker = ? WHERE id = 2", "i", slot.id), 1);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, false, NULL), 0);
    static const char *const others[] = {"{\"f\":\"s\"}", "{\"g\":\"r\"}", "{}"};
    for (size_t i = 0; i < MF_ARRAY_LEN(others); i++) {
        ck_assert_int_eq(mf_store_worker_set_families(store, others[i], &slot), 0);
        for (int affinity = 0; affinity < MF_AFFINITY_N_; affinity++)
            ck_assert_int_eq(lease((enum mf_affinity)affinity, true, NULL), 0);
    }
    ck_assert_int_eq(mf_store_worker_set_families(store, "{\"g\":\"r\",\"f\":\"r\"}", &slot), 0);
    int64_t other = 0;
    ck_assert_int_eq(mf_store_model(store, slot.class_id, "n", true, "{}", &other), 0);
    ck_assert_int_eq(mf_store_task_set_model(store, 1, other), 0);
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 0);
    slot.model_id = other;
    ck_assert_int_eq(lease(MF_AFFINITY_ANY, true, NULL), 2);
}

/* The known row and the enumeration may come from versions of moefarm that use different names for one
 * family. */
MF_TEST(known_steps_are_found_by_old_and_current_family, .rows = 2)
{
    static const char *const stored[] = {"tile", "two_stage"};
    struct mf_step step = {.name = "k", .covers = MF_OP_BIT(MF_OP_GEMM1)};
    char reason[MF_REASON_MAX] = "";
    int64_t id;
    make_units(1);
    mf_format(step.family, sizeof(step.family), "%s", stored[_i]);
    ck_assert_int_eq(mf_store_step_add(store, 1, &step, "{}"), 1);
    ck_assert_int_ge(mf_store_rejection_add(store, 1, 0, step.family, "gone", "lds", "too large"), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(stored); i++) {
        ck_assert_int_eq(mf_store_step_find(store, 1, stored[i], "k", &id), 1);
        ck_assert_int_eq(mf_store_step_rejection(store, 1, stored[i], "gone", reason), 1);
        ck_assert_str_eq(reason, "too large");
    }
    ck_assert_int_eq(mf_store_step_find(store, 1, "one_stage", "k", &id), 0);
    ck_assert_int_eq(mf_store_step_find(store, 1, "move", "k", &id), 0);
}

/* Returns the i-th result of task 1. The result belongs to a new step. */
static struct mf_result_row row_of_new_step(int i)
{
    struct mf_step step = {.family = "f", .covers = MF_OP_BIT(MF_OP_GEMM1)};
    mf_format(step.name, sizeof(step.name), "k%d", i);
    ck_assert_int_eq(mf_store_step_add(store, 1, &step, "{}"), 1);
    return (struct mf_result_row){.unit = 1,
                                  .attempt = 1,
                                  .seq = i + 1,
                                  .step = i + 1,
                                  .task = 1,
                                  .worker = slot.id,
                                  .reason = "",
                                  .us = 5,
                                  .final = true};
}

MF_TEST(results_are_counted_once)
{
    struct mf_step step = {.name = "k0", .family = "f", .covers = MF_OP_BIT(MF_OP_GEMM1)};
    enum mf_status status;
    double us = 0;
    make_units(1);
    struct mf_result_row row = row_of_new_step(0);
    ck_assert_int_eq(mf_store_step_add(store, 1, &step, "{}"), 0);
    row.mad = row.err = row.row_err = (double)NAN;
    ck_assert_int_eq(mf_store_step_decided(store, 1, 1, 1, &status, &us), 0);
    ck_assert_int_eq(mf_store_result_add(store, &row), 1);
    ck_assert_int_eq(mf_store_result_add(store, &row), 0);
    ck_assert_int_eq(mf_store_step_decided(store, 1, 1, 1, &status, &us), 1);
    ck_assert_double_eq(us, 5);
    /* A constraint of the database prevents a second decision */
    row.attempt = 2;
    ck_assert_int_eq(mf_store_result_add(store, &row), -EEXIST);
    row.late = true;
    row.final = false;
    ck_assert_int_eq(mf_store_result_add(store, &row), 1);
}

static void take_time(void *context, mf_ops covers, int64_t worker, double us)
{
    (void)covers, (void)worker;
    *(double *)context = us;
}

static int take_mode(void *context, const struct mf_measured_row *row)
{
    *(bool *)context = row->is_eager;
    return 0;
}

static const struct {
    const char *extra;
    bool is_eager;
} modes[] = {{NULL, false}, {"{\"mode\":\"cold\"}", false}, {"{\"mode\":\"eager\"}", true}};

/* An eager time is not a best time of its kind. */
MF_TEST(eager_results_are_marked, .rows = MF_ARRAY_LEN(modes))
{
    double best_us = 0;
    bool is_eager = !modes[_i].is_eager;
    make_units(1);
    struct mf_result_row row = row_of_new_step(0);
    row.extra = modes[_i].extra;
    ck_assert_int_eq(mf_store_result_add(store, &row), 1);
    ck_assert_int_eq(mf_store_measured_each(store, row.task, take_mode, &is_eager), 0);
    ck_assert_int_eq(is_eager, modes[_i].is_eager);
    ck_assert_int_eq(mf_store_best_times(store, row.task, take_time, &best_us), 0);
    ck_assert_double_eq(best_us, modes[_i].is_eager ? 0 : 5);
}

/* A worker must not drop our steps because of the times of steps that libfmoe does not dispatch. */
MF_TEST(times_of_foreign_steps_are_no_best_times)
{
    double best_us = 0;
    struct mf_step_row got;
    struct mf_step step = {.name = "triton", .family = "vllm", .covers = MF_OP_BIT(MF_OP_GEMM1)};
    make_units(1);
    struct mf_result_row row = row_of_new_step(0);
    ck_assert_int_eq(mf_store_step_add(store, 1, &step, "{\"foreign\":true}"), 1);
    ck_assert_int_eq(mf_store_step_get(store, 1, &got, NULL), 0);
    ck_assert(!got.foreign);
    ck_assert_int_eq(mf_store_step_get(store, 2, &got, NULL), 0);
    ck_assert(got.foreign);
    row.step = 2;
    ck_assert_int_eq(mf_store_result_add(store, &row), 1);
    ck_assert_int_eq(mf_store_best_times(store, row.task, take_time, &best_us), 0);
    ck_assert_double_eq(best_us, 0);
}

static int64_t n_with_samples(void)
{
    int64_t n = -1;
    ck_assert_int_eq(
        mf_sql_get_i64(store, "SELECT count(*) FROM result WHERE samples IS NOT NULL AND us = 5", &n, ""), 1);
    return n;
}

/* Samples of old results are dropped in slices, but times computed from the samples stay. A result that is
 * dated in the future does not stop the dropping. */
MF_TEST(old_samples_are_dropped)
{
    static const int64_t at_ms[] = {1000, 2000, 90000, 2500, 4000, 1500};
    const float samples[] = {1, 2, 3};
    int64_t epoch;
    make_units(1);
    ck_assert_int_eq(mf_store_start_epoch(store, 5, &epoch), 0);
    for (int i = 0; i < 6; i++) {
        struct mf_result_row row = row_of_new_step(i);
        row.samples = samples;
        row.n_samples = 3;
        row.at_ms = at_ms[i];
        ck_assert_int_eq(mf_store_result_add(store, &row), 1);
    }
    ck_assert_int_eq(mf_store_samples_drop(store, 500, 5000, 100), 0);
    ck_assert_int_eq(n_with_samples(), 6);
    ck_assert_int_eq(mf_store_samples_drop(store, 3000, 5000, 1), 1);
    ck_assert_int_eq(n_with_samples(), 5);
    /* the third result is dated in the future; the fifth is too young, and the sixth was committed after the
     * fifth */
    ck_assert_int_eq(mf_store_samples_drop(store, 3000, 5000, 100), 3);
    ck_assert_int_eq(n_with_samples(), 2);
    ck_assert_int_eq(mf_store_samples_drop(store, 3000, 5000, 100), 0);
    ck_assert_int_eq(mf_store_samples_drop(store, 4500, 5000, 100), 2);
    ck_assert_int_eq(n_with_samples(), 0);
    ck_assert_int_eq(mf_store_samples_drop(store, 4500, 5000, 100), 0);
}

static void check_pace(int64_t measured, int64_t refused, int64_t raced)
{
    static const char *const sums[] = {"SELECT sum(measured) FROM pace WHERE batch = 1 AND at_s = 3",
                                       "SELECT sum(refused) FROM pace WHERE batch = 1 AND at_s = 3",
                                       "SELECT sum(raced) FROM pace WHERE batch = 1 AND at_s = 3"};
    const int64_t want[] = {measured, refused, raced};
    for (int i = 0; i < 3; i++) {
        int64_t n = -1;
        ck_assert_int_eq(mf_sql_get_i64(store, sums[i], &n, ""), 1);
        ck_assert_int_eq(n, want[i]);
    }
}

/* The number of results per second of a batch includes each result that decides a step. */
MF_TEST(pace_follows_results)
{
    static const enum mf_status statuses[] = {MF_STATUS_OK, MF_STATUS_SLOW, MF_STATUS_WRONG, MF_STATUS_CRASH};
    make_units(1);
    for (int i = 0; i < 4; i++) {
        struct mf_result_row row = row_of_new_step(i);
        row.status = statuses[i];
        row.final = i < 3; /* the last result is a crash, and the step is repeated */
        row.at_ms = 3000 + i * 300;
        ck_assert_int_eq(mf_store_result_add(store, &row), 1);
        ck_assert_int_eq(mf_store_result_add(store, &row), 0);
    }
    check_pace(3, 1, 0);
    ck_assert_int_eq(mf_store_results_clear_final(store, 1), 0);
    check_pace(0, 0, 0);
}

MF_TEST(crash_is_repeated_in_another_unit)
{
    enum mf_status status;
    int64_t n = 0;
    double us;
    make_units(1);
    struct mf_result_row row = row_of_new_step(0);
    row.reason = "x";
    row.status = MF_STATUS_CRASH;
    row.us = (double)NAN;
    row.final = false;
    ck_assert_int_eq(mf_store_result_add(store, &row), 1);
    /* the step is decided for unit 1, but not for unit 2 */
    ck_assert_int_eq(mf_store_step_decided(store, 1, 1, 1, &status, &us), 1);
    ck_assert_int_eq(mf_store_step_decided(store, 1, 2, 1, &status, &us), 0);
    ck_assert_int_eq(mf_store_strike(store, 1, slot.class_id, slot.id, 1, MF_STATUS_CRASH, "x", 1, &n), 0);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(mf_store_strike(store, 1, slot.class_id, slot.id, 1, MF_STATUS_HANG, "x", 1, &n), 0);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(mf_store_quarantine(store, 1, slot.class_id, "x", 1), 0);
    ck_assert_int_eq(mf_store_quarantine_lift(store, 1, slot.class_id), 1);
    ck_assert_int_eq(mf_store_quarantine_lift(store, 1, slot.class_id), 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
