/* Tests a farm of simulated AITER devices of two classes (--families aiter) over REST, with every untuned
 * table of ROCm/aiter. The farm must enumerate each row, or reject the row with a reason. It then tunes the
 * rows, and the tables exported for consumer aiter must pass AITER's own checks. If a table has many steps,
 * only some of its rows are tuned; with the argument "whole" (the long tests) all rows are tuned. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/moe/production_key.h"
#include "common/table/table.h"
#include "kernels/aiter/aiter_lists.h"
#include "support/farm/farm_harness.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/text_file.h"

#define CLASSES "gfx942/304,gfx950/256"

/* A farm with sanitizers takes six times as long, so the test then covers only one in four tables. */
#ifdef __SANITIZE_ADDRESS__
#    define EVERY 4
#else
#    define EVERY 1
#endif

/* If a table has more steps than STEPS_MAX, only some of its rows are tuned. */
#define STEPS_MAX  4000
#define MODELS_MAX 128

static struct farm farm;
static bool whole;

static void start(void)
{
    static const char *const devices[] = {"sim:gfx942/304:0", "sim:gfx950/256:0"};
    farm_start(&farm, 1000);
    for (int place = 0; place < 2; place++) {
        const char *const args[] = {"--device", devices[place], "--families", "aiter", NULL};
        farm_start_worker(&farm, place, args);
    }
    farm_wait_workers(&farm, 2);
}

static void stop(void)
{
    farm_stop(&farm);
}

static char *read_shipped(const char *file)
{
    char path[512];
    shipped_path(file, path);
    return text_file_read(path);
}

static int submit(const char *file, const char *query)
{
    _cleanup_(mf_freep) char *csv = read_shipped(file);
    return farm_submit(&farm, csv, query);
}

/* --- every row --- */

struct totals {
    long rows, enumerated, rejected, steps;
};

static void check_rejections(int task)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/tasks/%d/rejections?limit=100", task);
    const cJSON *rejection = cJSON_GetArrayItem(mf_json_array(json, "items"), 0);
    ck_assert_msg(rejection, "task %d has no steps and no rejection", task);
    ck_assert_uint_gt(strlen(farm_text(rejection, "reason")), 20);
}

/* Counts the tasks of a batch on both classes. Each task without steps must have a reason. */
static void count_tasks(int batch, struct totals *t)
{
    char next[128] = "";
    do {
        _cleanup_(cJSON_Deletep) cJSON *page =
            farm_get(&farm, "/api/v1/batches/%d/tasks?limit=500%s%s", batch, next[0] ? "&cursor=" : "", next);
        const cJSON *task;
        ck_assert_ptr_nonnull(page);
        cJSON_ArrayForEach (task, mf_json_array(page, "items")) {
            const char *state = farm_text(task, "state");
            int n = farm_number(task, "steps");
            t->rows++;
            t->steps += n;
            if (strcmp(state, "done") == 0)
                t->enumerated++;
            else if (t->rejected++ == 0)
                check_rejections(farm_number(task, "id"));
            ck_assert_msg(n > 0 || farm_text(task, "reason")[0], "task %d is %s without a reason",
                          farm_number(task, "id"), state);
        }
        const char *cursor = "";
        (void)mf_json_text(page, "next", &cursor);
        (void)snprintf(next, sizeof(next), "%s", cursor);
    } while (next[0]);
}

static bool is_untuned(const struct shipped *s)
{
    return !s->tuned && s->op == MF_TABLE_FMOE && s->n_rows > 0;
}

/* Enumerates a table. Each row must have kernels on at least one of the two classes. */
static struct totals enumerate(const struct shipped *s)
{
    struct totals t = {0};
    int batch = submit(s->file, "&classes=" CLASSES "&search=enumerate");
    farm_wait_done(&farm, batch);
    count_tasks(batch, &t);
    printf("%-48s %3ld tasks, %3ld tried, %3ld refused, %6ld steps\n", s->file, t.rows, t.enumerated,
           t.rejected, t.steps);
    ck_assert_int_eq(t.rows, (long)(2 * s->n_rows));
    ck_assert_int_ge(t.enumerated, (long)s->n_rows);
    return t;
}

/* A table of another operator of AITER is refused as a whole, with the reason. */
MF_TEST(refuses_other_operators)
{
    int n = 0;
    start();
    for (size_t i = 0; i < sizeof(shipped) / sizeof(shipped[0]); i++) {
        if (shipped[i].tuned || shipped[i].op == MF_TABLE_FMOE)
            continue;
        _cleanup_(mf_freep) char *csv = read_shipped(shipped[i].file);
        struct http_reply r =
            http_call(farm.http, "POST", "/api/v1/batches", "Content-Type: text/csv\r\n", csv, strlen(csv));
        ck_assert_msg(r.status == 422 && r.body && strstr(r.body, "another operator"), "%s: %d %s",
                      shipped[i].file, r.status, r.body ? r.body : "");
        http_reply_free(&r);
        n++;
    }
    ck_assert_int_eq(n, 1);
}

/* --- one layer of a bug report, whose kernels are in two manifests --- */

#define MANIFESTS 2

static const char *const manifests[MANIFESTS] = {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu",
                                                 "fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu"};

/* Tunes the layer on a worker with an additional option, and returns its steps as JSON text. */
static char *tune_layer(const char *option, const char *value, const char *query)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/cases/glm53_untuned.csv", MF_TEST_DATA);
    _cleanup_(mf_freep) char *csv = text_file_read(path);
    const char *const args[] = {"--device", "sim:gfx950/256:0", "--families", "aiter", option, value, NULL};
    farm_start(&farm, 1000);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    int batch = farm_run(&farm, csv, query);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_task_list(&farm, batch, "steps?family=asm&limit=500");
    char *text = cJSON_PrintUnformatted(steps);
    ck_assert_ptr_nonnull(text);
    return text;
}

/* Counts the kernels of the manifests. The layer has those whose tile divides its inter_dim of 256. */
static int count_manifest_kernels(const struct mf_aiter_lists *lists, const char *steps)
{
    struct mf_aiter_entry e;
    int n = 0;
    for (size_t i = 0; i < MANIFESTS; i++) {
        struct mf_aiter_cursor c = mf_aiter_list_find(lists, manifests[i], "gfx950");
        while (mf_aiter_list_next(&c, &e)) {
            bool legal = 256 % e.value[1] == 0 && e.value[2] == 0;
            ck_assert_msg((strstr(steps, e.name) != NULL) == legal, "%s", e.name);
            n += legal;
        }
    }
    return n;
}

static int count_one_stage(const char *steps)
{
    int n = 0;
    for (const char *at = strstr(steps, "fmoe_bf16_blockscale"); at;
         at = strstr(at + 1, "fmoe_bf16_blockscale"))
        n++;
    return n;
}

MF_TEST(tunes_exactly_the_manifests)
{
    _cleanup_(mf_freep) char *steps = tune_layer(NULL, NULL, "&consumer=aiter&search=exhaustive");
    ck_assert_int_eq(count_manifest_kernels(mf_aiter_lists_builtin(), steps), 15);
    ck_assert_int_eq(count_one_stage(steps), 15);
}

MF_TEST(tunes_own_manifests)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    mf_buf_init(&text, MF_AITER_LISTS_MAX);
    ck_assert_msg(mf_aiter_tree_read(MF_TEST_DATA "/aiter_tree", &text, why) == 0, "%s", why);
    _cleanup_(mf_freep) char *steps =
        tune_layer("--aiter-dir", MF_TEST_DATA "/aiter_tree", "&consumer=aiter&search=enumerate");
    ck_assert_int_eq(count_manifest_kernels(&(struct mf_aiter_lists){.text = text.data, .own = true}, steps),
                     3);
    ck_assert_int_eq(count_one_stage(steps), 3);
}

/* --- tuning, export and checks --- */

static struct mf_table *export_for_aiter(const char *query)
{
    char path[256], why[MF_REASON_MAX] = "";
    struct mf_table *t = NULL;
    (void)snprintf(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv?consumer=aiter%s", query);
    struct http_reply r = http_get(farm.http, path);
    ck_assert_msg(r.status == 200, "%s", r.body);
    ck_assert_msg(mf_table_read("exported.csv", r.body, r.len, &t, why) == 0, "%s", why);
    http_reply_free(&r);
    return t;
}

/* Checks a row as AITER does, to find errors that the table reader does not report. Production would read and
 * match a row with such an error. */
static void check_row(const struct mf_table_row *row)
{
    ck_assert_double_gt(row->us, 0);
    ck_assert_double_le(row->err1, 0.2);
    ck_assert_double_le(row->err2, 0.2);
    ck_assert(row->us1 + row->us2 - row->us < 0.001 && row->us - row->us1 - row->us2 < 0.001);
    ck_assert_int_eq(row->run_1stage, mf_table_no_kernel(row->kernel2));
    ck_assert(!mf_table_no_kernel(row->kernel1));
    ck_assert(!row->flat || row->run_1stage);
    ck_assert(!row->xbf16 || row->run_1stage);
    ck_assert_int_ge(row->block_m, 1);
    struct mf_shape key;
    char why[MF_REASON_MAX] = "";
    ck_assert_msg(mf_production_shape(&row->shape, NULL, &key, why, sizeof(why)) == 0, "%s", why);
    if (!row->run_1stage) {
        bool one = strstr(row->kernel1, "flydsl_moe1") || strstr(row->kernel1, "gemm1") ||
                   strstr(row->kernel1, "stage1") || strstr(row->kernel1, "opus_moe1") ||
                   strstr(row->kernel1, "mxmoe_g1") || strstr(row->kernel1, "cktile");
        bool two = strstr(row->kernel2, "flydsl_moe2") || strstr(row->kernel2, "gemm2") ||
                   strstr(row->kernel2, "opus_moe2") || strstr(row->kernel2, "mxmoe_g2") ||
                   strstr(row->kernel2, "cktile");
        ck_assert_msg(one && two, "%s, %s", row->kernel1, row->kernel2);
    }
}

/* Makes the checks of test_csv_validation on each table, and those of test_config_shape_collision on all
 * tables combined (ROCm/aiter, op_tests). */
static void check_set(struct mf_table *const *tables, size_t n)
{
    _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
    size_t n_clashes = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t p = 0; p < tables[i]->n_problems; p++)
            printf("line %lld: %s\n", (long long)tables[i]->problems[p].line, tables[i]->problems[p].reason);
        ck_assert_uint_eq(tables[i]->n_problems, 0);
        for (size_t k = 0; k < tables[i]->n_rows; k++)
            check_row(&tables[i]->rows[k]);
    }
    ck_assert_int_eq(mf_table_clashes((const struct mf_table *const *)tables, n, &clashes, &n_clashes), 0);
    for (size_t i = 0; i < n_clashes; i++) {
        char key[MF_SHAPE_TEXT_MAX];
        mf_shape_print(&clashes[i].a->shape, key);
        printf("duplicate key: %s, %f and %f us\n", key, clashes[i].a->us, clashes[i].b->us);
    }
    ck_assert_uint_eq(n_clashes, 0);
}

/* Returns the header and every n-th row of a table, beginning with the first row. The caller frees the text.
 */
static char *every_nth_row(const char *csv, long n)
{
    char *out = calloc(1, strlen(csv) + 1), *to = out;
    ck_assert_ptr_nonnull(out);
    for (long row = -1; *csv; row++) {
        size_t len = strcspn(csv, "\n") + (strchr(csv, '\n') != NULL);
        if (row < 0 || row % n == 0)
            to = mempcpy(to, csv, len);
        csv += len;
    }
    return out;
}

static int n_left_out(const char *query)
{
    _cleanup_(cJSON_Deletep) cJSON *json =
        farm_get(&farm, "/api/v1/export/left_out?consumer=aiter&limit=1000%s", query);
    return cJSON_GetArraySize(mf_json_array(json, "items"));
}

/* Tunes a table. Every task of the batch must have a row in the export or be left out with a reason. */
static void tune(const struct shipped *s, long stride)
{
    char query[64];
    struct totals t = {0};
    int64_t began = mf_now_ms();
    _cleanup_(mf_freep) char *csv = read_shipped(s->file), *rows = every_nth_row(csv, stride);
    int batch = farm_run(&farm, rows, "&classes=" CLASSES "&topk=2&consumer=aiter");
    count_tasks(batch, &t);
    (void)snprintf(query, sizeof(query), "&batch=%d", batch);
    struct mf_table *none = export_for_aiter(query);
    ck_assert_uint_eq(none->n_rows, 0); /* simulated rows are not exported by default */
    mf_table_free(none);
    (void)snprintf(query, sizeof(query), "&batch=%d&simulated=1", batch);
    _cleanup_(mf_table_freep) struct mf_table *table = export_for_aiter(query);
    int out = n_left_out(query);
    printf("%-48s %3ld tasks, %3zu exported, %3d left out, %6ld steps in %.1f s\n", s->file, t.rows,
           table->n_rows, out, t.steps, (double)(mf_now_ms() - began) / 1e3);
    ck_assert_int_eq((long)table->n_rows + out, t.rows);
    ck_assert_uint_gt(table->n_rows, 0);
    check_set(&table, 1);
}

/* Exports one file per layer model. Returns the number of files; each row is in exactly one of them. */
static size_t by_model(const struct mf_table *all, struct mf_table **ret)
{
    size_t n = 0;
    for (size_t i = 0; i < all->n_rows; i++) {
        char model[MF_SHAPE_TEXT_MAX], query[MF_SHAPE_TEXT_MAX + 64], other[MF_SHAPE_TEXT_MAX];
        bool seen = false;
        mf_shape_print_layer_model(&all->rows[i].shape, model);
        for (size_t k = 0; k < i && !seen; k++) {
            mf_shape_print_layer_model(&all->rows[k].shape, other);
            seen = strcmp(model, other) == 0;
        }
        if (seen)
            continue;
        ck_assert_uint_lt(n, MODELS_MAX);
        (void)snprintf(query, sizeof(query), "&simulated=1&layer_model=%s", model);
        ret[n++] = export_for_aiter(query);
    }
    return n;
}

/* Enumerates each table to learn its number of steps, then tunes it. */
MF_TEST(tunes_every_table)
{
    struct mf_table *models[MODELS_MAX];
    size_t n_tables = 0, n_rows = 0, n_exported = 0;
    int64_t began = mf_now_ms();
    struct totals all = {0};
    start();
    for (size_t i = 0; i < MF_ARRAY_LEN(shipped); i += EVERY) {
        if (!is_untuned(&shipped[i]))
            continue;
        struct totals t = enumerate(&shipped[i]);
        all.rows += t.rows;
        all.steps += t.steps;
        n_rows += shipped[i].n_rows;
        tune(&shipped[i], whole ? 1 : 1 + t.steps / STEPS_MAX);
        n_tables++;
    }
    /* Production uses bf16 activations for several values of q_dtype_a, so rows of two tables may have the
     * same key. The farm's table must contain such a key only once. */
    _cleanup_(mf_table_freep) struct mf_table *combined = export_for_aiter("&simulated=1");
    check_set(&combined, 1);
    size_t n = by_model(combined, models);
    check_set(models, n);
    for (size_t i = 0; i < n; i++)
        n_exported += models[i]->n_rows;
    ck_assert_uint_eq(n_exported, combined->n_rows);
    printf("%zu rows of %zu tables on two classes: %ld tasks, %ld steps; %zu rows of %zu layer models "
           "exported, in "
           "%.1f s\n",
           n_rows, n_tables, all.rows, all.steps, n_exported, n, (double)(mf_now_ms() - began) / 1e3);
    while (n > 0)
        mf_table_free(models[--n]);
}

/* A batch that tunes for moefarm only tunes the submitted keys and has no row for AITER. */
MF_TEST(other_consumers_have_no_rows)
{
    start();
    int batch = submit("untuned_fmoe.csv", "&classes=" CLASSES "&topk=2");
    farm_wait_done(&farm, batch);
    _cleanup_(mf_table_freep) struct mf_table *t = export_for_aiter("&simulated=1");
    ck_assert_uint_eq(t->n_rows, 0);
    _cleanup_(cJSON_Deletep) cJSON *json =
        farm_get(&farm, "/api/v1/export/left_out?consumer=aiter&simulated=1&limit=1000");
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach (item, mf_json_array(json, "items"))
        n += strstr(farm_text(item, "reason"), "does not tune for aiter; submit a batch with") != NULL;
    ck_assert_int_gt(n, 0);
    _cleanup_(mf_freep) char *own = farm_export(&farm, batch);
    ck_assert_ptr_nonnull(strstr(own, ",56,6144,4096,"));
}

int main(int argc, char **argv)
{
    whole = argc > 1 && strcmp(argv[1], "whole") == 0;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    return mf_check_main(&(struct mf_test_group){.timeout_s = whole ? 3000 : 240, .teardown = stop});
}
