/* libfmoe looks up rows in an index; `moefarm csv coverage` scans tables row by row. For the same tables and
 * calls, both must find the same row. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/production_lookup.h"
#include "common/table/table_file.h"
#include "kernels/pipeline/fmoe.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#define N_ROWS  240
#define N_CALLS 4000
#define TABLES  3

static const struct mf_device_ops ops = {.kind = "sim"};
static struct mf_device device = {.ops = &ops, .info.class = {"sim-x", 2}};
static uint64_t state;

static uint32_t draw(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

/* Draws a layer. Layers differ in the properties that a lookup ignores or matches: rank, activation function
 * and activation type. */
static struct mf_shape draw_layer(void)
{
    static const enum mf_dtype types[] = {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_DTYPE_FP8_E4M3FN};
    struct mf_shape s = {.token = 1,
                         .model_dim = 64,
                         .inter_dim = 32,
                         .expert = 8,
                         .topk = 2,
                         .act_type = draw(2) ? MF_ACT_SWIGLU : MF_ACT_SILU,
                         .q_type = MF_QTYPE_PER_1X32,
                         .q_dtype_a = types[draw(3)],
                         .q_dtype_w = MF_DTYPE_FP4X2,
                         .use_g1u1 = true};
    if (draw(2)) {
        s.expert = 4;
        s.ep_experts = 8;
        s.ep_first = 4 * (int32_t)draw(2);
    }
    return s;
}

/* Draws token counts mostly at the ends of buckets and around 256, where the choice of the activation type
 * changes. */
static int64_t draw_token(void)
{
    int64_t bucket = INT64_C(1) << draw(18), token = bucket + (int64_t)draw(3) - 1;

    return draw(4) == 0 ? 200 + draw(100) : token < 1 ? 1 : token;
}

#define HEADER TUNED_COLUMNS ",_tag,pipeline,form\n"

/* Writes rows with distinct keys to a set of tables; some rows have another class or a tag. */
static void write_tables(char paths[TABLES][64], struct mf_shape *keys)
{
    struct mf_buf text[TABLES];
    size_t n = 0;

    for (int i = 0; i < TABLES; i++) {
        mf_buf_init(&text[i], 1u << 20);
        ck_assert_int_eq(mf_buf_adds(&text[i], HEADER), 0);
    }
    while (n < N_ROWS) {
        struct mf_shape s = draw_layer();
        char row[MF_SHAPE_TEXT_MAX], form[MF_SHAPE_FORM_MAX];
        const char *unused;
        bool known = false;

        s.token = INT64_C(1) << draw(16);
        s.token = draw(12) == 0 ? 131072 : s.token;
        for (size_t i = 0; i < n && !known; i++)
            known = mf_shape_equal(&keys[i], &s);
        if (known)
            continue;
        keys[n++] = s;
        (void)mf_shape_get(&s, MF_SHAPE_FORM, form, sizeof(form));
        (void)mf_shape_set(&s, MF_SHAPE_FORM, "", &unused);
        mf_shape_print(&s, row);
        ck_assert_int_eq(
            mf_buf_addf(&text[draw(TABLES)],
                        "sim-%s,2,%s,16,0,1.0,a,0.0%%,1.0,b,0.0%%,2.0,0,0,0,1.0,1.0,%s,sim:a|sim:b,%s\n",
                        draw(10) ? "x" : "y", row, draw(10) ? "" : "slow", form),
            0);
    }
    for (int i = 0; i < TABLES; i++) {
        mf_format(paths[i], 64, "/tmp/check_lookup_agrees.XXXXXX");
        int fd = mkstemp(paths[i]);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, text[i].data, text[i].len), (ssize_t)text[i].len);
        ck_assert_int_eq(close(fd), 0);
        mf_buf_release(&text[i]);
    }
}

MF_TEST(same_row, .rows = 4)
{
    static const enum mf_lookup rules[] = {MF_LOOKUP_MOEFARM, MF_LOOKUP_DROP_IN};
    static struct mf_shape keys[N_ROWS];
    struct mf_table *tables[TABLES] = {NULL};
    const char *names[TABLES];
    char paths[TABLES][64], why[MF_REASON_MAX] = "";
    struct mf_fmoe *f = NULL;
    size_t n_served = 0, n_later = 0;

    state = (uint64_t)time(NULL) * 1000 + (uint64_t)_i;
    printf("seed %" PRIu64 "\n", state);
    write_tables(paths, keys);
    for (int i = 0; i < TABLES; i++) {
        names[i] = paths[i];
        ck_assert_msg(mf_table_file_read(paths[i], &tables[i], why) == 0, "%s", why);
    }
    ck_assert_msg(mf_fmoe_open(&device, names, TABLES, NULL, why, sizeof(why), &f) == 0, "%s", why);
    for (int i = 0; i < N_CALLS; i++) {
        struct mf_shape call = draw_layer(), shape;
        enum mf_lookup by = rules[i % 2];
        struct mf_lookup_found found = {0};
        char text[MF_SHAPE_TEXT_MAX];
        const char *pipeline;
        size_t row = 0;
        double us;
        bool is, has;

        call.token = draw_token();
        mf_shape_print(&call, text);
        is = mf_lookup_find((const struct mf_table *const *)tables, TABLES, &device.info.class, &call, by,
                            NULL, &found);
        has = mf_fmoe_lookup(f, &call, by, &row) == 0;
        ck_assert_msg(is == has, "%s by %s: %s by coverage, %s by libfmoe", text, mf_lookup_name(by),
                      is ? "served" : "not", has ? "served" : "not");
        if (!has)
            continue;
        ck_assert_int_eq(mf_fmoe_row(f, row, &shape, &us, &pipeline), 0);
        int64_t line;
        const char *file = mf_fmoe_row_location(f, row, &line);
        ck_assert_msg(mf_shape_equal(&shape, &found.row->shape) && line == found.row->line &&
                          strcmp(file, found.table->name) == 0,
                      "%s by %s: %s:%lld by coverage, %s:%lld by libfmoe", text, mf_lookup_name(by),
                      found.table->name, (long long)found.row->line, file, (long long)line);
        n_served++;
        n_later += found.attempt > 0;
    }
    printf("%zu of %d calls served, %zu by a later try\n", n_served, N_CALLS, n_later);
    ck_assert_uint_gt(n_served, N_CALLS / 10);
    ck_assert_uint_gt(n_later, 0);
    (void)mf_fmoe_close(f);
    for (int i = 0; i < TABLES; i++) {
        (void)mf_table_free(tables[i]);
        (void)unlink(paths[i]);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
