#include "common/table/table.h"

#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"

#include "common/table/table_check.h"
#include "common/table/table_diff.h"
#include "common/table/table_fix.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The linker redirects allocations to the wrappers. If fail_at is N > 0, the N-th allocation from now on
 * fails; if it is 0, no allocation fails. */
static long fail_at;

static bool should_fail(void)
{
    return fail_at > 0 && --fail_at == 0;
}

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__real_reallocarray(void *memory, size_t n, size_t size);
void *__wrap_reallocarray(void *memory, size_t n, size_t size);

void *__wrap_malloc(size_t size)
{
    return should_fail() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return should_fail() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return should_fail() ? NULL : __real_realloc(memory, size);
}

void *__wrap_reallocarray(void *memory, size_t n, size_t size)
{
    return should_fail() ? NULL : __real_reallocarray(memory, n, size);
}

static struct mf_table_row example_row(int64_t token, const char *gfx, int cu_num)
{
    struct mf_table_row row = {
        .block_m = 32, .us1 = 1, .us2 = 2, .us = 3, .kernel1 = "k1", .kernel2 = "k2", .class.cu_num = cu_num};
    snprintf(row.class.gfx, sizeof(row.class.gfx), "%s", gfx);
    ck_assert_int_eq(mf_shape_parse("1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,"
                                    "torch.float8_e4m3fn,QuantType.per_1x128,1,0",
                                    &row.shape),
                     0);
    row.shape.token = token;
    return row;
}

static struct mf_table *new_table(const char *name)
{
    struct mf_table *t = NULL;
    ck_assert_int_eq(mf_table_new(name, true, &t), 0);
    return t;
}

MF_TEST(test_key)
{
    char key[MF_TABLE_KEY_MAX];
    struct mf_table_row row = example_row(64, "gfx942", 304);
    mf_table_key(&row, key);
    ck_assert_str_eq(key,
                     "gfx942,304,64,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,"
                     "torch.float8_e4m3fn,QuantType.per_1x128,1,0");
}

/* Each of the fourteen key values is part of the key. Results are not part of the key. */
MF_TEST(test_key_equal)
{
    struct mf_table_row a = example_row(64, "gfx942", 304), others[14];
    for (size_t i = 0; i < MF_ARRAY_LEN(others); i++)
        others[i] = a;
    snprintf(others[0].class.gfx, MF_GFX_MAX, "gfx950");
    others[1].class.cu_num = 80;
    others[2].shape.token = 65;
    others[3].shape.model_dim++;
    others[4].shape.inter_dim += 128;
    others[5].shape.expert++;
    others[6].shape.topk++;
    others[7].shape.act_type = MF_ACT_GELU;
    others[8].shape.dtype = MF_DTYPE_FP16;
    others[9].shape.q_dtype_a = MF_DTYPE_INT8;
    others[10].shape.q_dtype_w = MF_DTYPE_INT8;
    others[11].shape.q_type = MF_QTYPE_PER_TOKEN;
    others[12].shape.use_g1u1 = false;
    others[13].shape.doweight_stage1 = true;
    _cleanup_(mf_table_freep) struct mf_table *t = new_table("t");
    ck_assert_int_eq(mf_table_add(t, &a), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(others); i++) {
        ck_assert(!mf_table_key_equal(&a, &others[i]));
        ck_assert_ptr_null(mf_table_find(t, &others[i].class, &others[i].shape));
        ck_assert_int_eq(mf_table_add(t, &others[i]), 0);
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(others); i++)
        ck_assert_ptr_eq(mf_table_find(t, &others[i].class, &others[i].shape), &t->rows[i + 1]);
    struct mf_table_row b = a;
    b.us = 99;
    b.block_m = 16;
    ck_assert(mf_table_key_equal(&a, &b));
}

/* mf_table_add copies the strings of the row. */
MF_TEST(test_add_copies)
{
    _cleanup_(mf_table_freep) struct mf_table *t = new_table("t");
    char kernel[] = "kernel", provenance[] = "moefarm:race", tag[] = "tag";
    struct mf_table_row row = example_row(1, "gfx942", 304);
    row.kernel1 = kernel;
    row.own[MF_OWN_PROVENANCE] = provenance;
    row.tag = tag;
    row.line = 77;
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    memset(kernel, 'x', 3);
    memset(provenance, 'x', 3);
    memset(tag, 'x', 3);
    ck_assert_str_eq(t->rows[0].kernel1, "kernel");
    ck_assert_str_eq(t->rows[0].own[MF_OWN_PROVENANCE], "moefarm:race");
    ck_assert_str_eq(t->rows[0].tag, "tag");
    ck_assert_int_eq(t->rows[0].line, 0);
    ck_assert_ptr_null(t->rows[0].own[MF_OWN_MODEL]);
}

enum defect {
    COMMA,
    NEWLINE,
    OWN_QUOTE,
    NO_CLASS,
    NO_CU,
    BAD_GFX,
    BAD_SHAPE,
    NAN_US,
    INF_ERR,
    HUGE_BW,
    N_DEFECTS
};

MF_TEST(test_add_rejects, .rows = N_DEFECTS)
{
    _cleanup_(mf_table_freep) struct mf_table *t = new_table("t");
    struct mf_table_row row = example_row(1, "gfx942", 304);
    switch ((enum defect)_i) {
    case COMMA:
        row.kernel1 = "a,b";
        break;
    case NEWLINE:
        row.kernel2 = "a\n";
        break;
    case OWN_QUOTE:
        row.own[MF_OWN_MODEL] = "\"";
        break;
    case NO_CLASS:
        row.class = (struct mf_device_class){0};
        break;
    case NO_CU:
        row.class.cu_num = 0;
        break;
    case BAD_GFX:
        row.class.gfx[0] = ',';
        break;
    case BAD_SHAPE:
        row.shape.topk = row.shape.expert + 1;
        break;
    case NAN_US:
        row.us = NAN;
        break;
    case INF_ERR:
        row.err2 = INFINITY;
        break;
    case HUGE_BW:
        row.bw = 1e300;
        break;
    case N_DEFECTS:
        break;
    }
    ck_assert_int_eq(mf_table_add(t, &row), -EINVAL);
    ck_assert_uint_eq(t->n_rows, 0);
}

/* mf_table_find returns the first row of a key, even among many rows. Rows with a tag are skipped. */
MF_TEST(test_find)
{
    enum { N = 5000 };
    _cleanup_(mf_table_freep) struct mf_table *t = new_table("t");
    struct mf_table_row row = example_row(1, "gfx942", 304);
    row.tag = "old";
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    ck_assert_ptr_null(mf_table_find(t, &row.class, &row.shape));
    row.tag = "";
    for (int i = 1; i <= N; i++) {
        row.shape.token = i;
        ck_assert_int_eq(mf_table_add(t, &row), 0);
    }
    row.shape.token = 1;
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    for (int i = 1; i <= N; i++) {
        row.shape.token = i;
        ck_assert_ptr_eq(mf_table_find(t, &row.class, &row.shape), &t->rows[i]);
    }
    row.shape.token = N + 1;
    ck_assert_ptr_null(mf_table_find(t, &row.class, &row.shape));
}

MF_TEST(test_replace)
{
    _cleanup_(mf_table_freep) struct mf_table *t = new_table("t");
    struct mf_table_row row = example_row(1, "gfx942", 304);
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    row.us = 2.5;
    row.kernel1 = "other";
    ck_assert_int_eq(mf_table_replace(t, 0, &row), 0);
    ck_assert_str_eq(t->rows[0].kernel1, "other");
    ck_assert_double_eq(mf_table_find(t, &row.class, &row.shape)->us, 2.5);
    ck_assert_int_eq(mf_table_replace(t, 1, &row), -EINVAL);
    row.us = NAN;
    ck_assert_int_eq(mf_table_replace(t, 0, &row), -EINVAL);
    row.us = 1;
    row.shape.token = 2;
    ck_assert_int_eq(mf_table_replace(t, 0, &row), -EINVAL);
    ck_assert_double_eq(t->rows[0].us, 2.5);
}

MF_TEST(test_no_kernel)
{
    static const char *const none[] = {NULL, "", "None", "Null", "nan"};
    for (size_t i = 0; i < MF_ARRAY_LEN(none); i++)
        ck_assert(mf_table_no_kernel(none[i]));
    ck_assert(!mf_table_no_kernel("none_of_these"));
}

/* Every shipped row is found under its own key. */
MF_TEST(test_find_shipped)
{
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read("tuned_fmoe.csv");
    for (size_t i = 0; i < t->n_rows; i++)
        ck_assert_ptr_eq(mf_table_find(t, &t->rows[i].class, &t->rows[i].shape), &t->rows[i]);
}

/* AITER's tuned tables have no duplicate keys, because rows with a tag have different tags. */
MF_TEST(test_shipped_set_is_clean)
{
    const struct mf_table *tables[MF_ARRAY_LEN(shipped)];
    struct mf_table *owned[MF_ARRAY_LEN(shipped)];
    size_t n = 0, n_rows = 0, n_clashes = 99;
    for (size_t i = 0; i < MF_ARRAY_LEN(shipped); i++) {
        if (!shipped[i].tuned || shipped[i].op != MF_TABLE_FMOE)
            continue;
        tables[n] = owned[n] = shipped_read(shipped[i].file);
        n_rows += owned[n++]->n_rows;
    }
    ck_assert_uint_eq(n_rows, 2038);
    struct mf_table_clash *clashes = NULL;
    ck_assert_int_eq(mf_table_clashes(tables, n, &clashes, &n_clashes), 0);
    ck_assert_uint_eq(n_clashes, 0);
    ck_assert_ptr_null(clashes);
    /* if a table occurs twice in the set, each of its rows clashes with itself */
    const struct mf_table *twice[] = {tables[0], tables[1], tables[0]};
    ck_assert_int_eq(mf_table_clashes(twice, 3, &clashes, &n_clashes), 0);
    ck_assert_uint_eq(n_clashes, tables[0]->n_rows);
    for (size_t i = 0; i < n_clashes; i++) {
        ck_assert_ptr_eq(clashes[i].a, &tables[0]->rows[i]);
        ck_assert_ptr_eq(clashes[i].b, &tables[0]->rows[i]);
    }
    free(clashes);
    for (size_t i = 0; i < n; i++)
        mf_table_free(owned[i]);
}

/* A duplicate within a table or in another table is reported together with the first row of its key. */
MF_TEST(test_clashes)
{
    _cleanup_(mf_table_freep) struct mf_table *t = new_table("t");
    _cleanup_(mf_table_freep) struct mf_table *u = new_table("u");
    struct mf_table_row row = example_row(1, "gfx942", 304), other = example_row(2, "gfx942", 304);
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    ck_assert_int_eq(mf_table_add(t, &other), 0);
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    ck_assert_int_eq(mf_table_add(u, &row), 0);
    other.tag = "old";
    ck_assert_int_eq(mf_table_add(u, &other), 0);
    const struct mf_table *const tables[] = {t, u};
    struct mf_table_clash *clashes = NULL;
    size_t n = 0;
    ck_assert_int_eq(mf_table_clashes(tables, 2, &clashes, &n), 0);
    ck_assert_uint_eq(n, 2);
    ck_assert(clashes[0].table_a == t && clashes[0].table_b == t);
    ck_assert(clashes[0].a == &t->rows[0] && clashes[0].b == &t->rows[2]);
    ck_assert(clashes[1].table_a == t && clashes[1].table_b == u);
    ck_assert(clashes[1].a == &t->rows[0] && clashes[1].b == &u->rows[0]);
    free(clashes);
}

static void ignore_fix(void *data, int64_t line, enum mf_problem_code code, const char *what)
{
    (void)data, (void)line, (void)code, (void)what;
}

/* Merges, compares, checks and repairs two tables. */
static int run_tools(const char *text, struct mf_table *t)
{
    _cleanup_(mf_table_freep) struct mf_table *other = NULL;
    _cleanup_(mf_table_freep) struct mf_table *all = NULL;
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    _cleanup_(mf_diff_release) struct mf_diff diff = MF_DIFF_INIT;
    char why[MF_REASON_MAX] = "";
    size_t n = 0;
    /* omit the last row, because mf_table_merge rejects tables with unreadable rows */
    int r = mf_table_read("other.csv", text, strlen(text) - strlen("gfx942,304,dirty\n"), &other, why);
    if (r == 0)
        r = mf_table_new("all.csv", true, &all);
    if (r == 0)
        r = mf_table_merge(all, other, &(struct mf_merge_options){.accept_foreign = true}, &result, why);
    if (r == 0)
        r = mf_table_diff(t, other, &diff, why);
    if (r == 0)
        r = mf_tables_check((struct mf_table *const[]){t, other}, 2,
                            &(struct mf_check_options){.err_ratio = 0.2});
    return r < 0 ? r : mf_table_fix(other, ignore_fix, NULL, &n);
}

/* Calls every table function once. It uses no assertions, because assertions allocate memory too. */
static int run_all(const char *text, const struct mf_table_row *row)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    _cleanup_(mf_table_freep) struct mf_table *fresh = NULL;
    _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    _cleanup_(mf_buf_release) struct mf_buf out;
    char why[MF_REASON_MAX] = "";
    size_t n = 0;
    mf_buf_init(&out, 1 << 20);
    int r = mf_table_read("t.csv", text, strlen(text), &t, why);
    if (r == 0)
        r = mf_table_new("fresh", true, &fresh);
    if (r == 0)
        r = mf_table_add(fresh, row);
    if (r == 0)
        r = mf_table_merge(t, fresh, NULL, &result, why);
    if (r == 0)
        r = mf_table_write(t, MF_TABLE_ALL, &out, why);
    const struct mf_table *const twice[] = {t, t};
    if (r == 0)
        r = mf_table_clashes(twice, 2, &clashes, &n);
    if (r == 0)
        r = run_tools(text, t);
    return r == 0 && n != t->n_rows ? 1 : r;
}

/* Makes each allocation fail once. The result must be -ENOMEM, and nothing may leak (ASan checks this). */
MF_TEST(test_no_memory)
{
    static const char text[] =
        TUNED_COLUMNS ",note\ngfx942,304,3,7168,256,257,9,Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                      "QuantType.No,1,0,32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,1.0,2.0,a note\ngfx942,304,dirty\n";
    struct mf_table_row row = example_row(1, "gfx942", 304);
    row.own[MF_OWN_PROVENANCE] = "moefarm:race";
    ck_assert_int_eq(run_all(text, &row), 0);
    long n = 1;
    for (int r = -ENOMEM; r < 0; n++) {
        fail_at = n;
        r = run_all(text, &row);
        bool reached = fail_at == 0;
        fail_at = 0;
        ck_assert_int_eq(r, reached ? -ENOMEM : 0);
    }
    ck_assert_int_gt(n, 15);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
