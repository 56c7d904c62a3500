#include "common/table/table_merge.h"

#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"
#include "support/table_text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define KEY(token)       \
    "gfx942,304," #token \
    ",7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define RESULT(us) ",32,0,1,k1,0.0%,1,k2,0.0%," us ",0,0,0,1.0,2.0"

static char *print(const struct mf_table *t)
{
    struct mf_buf out;
    char why[MF_REASON_MAX];
    mf_buf_init(&out, 1 << 20);
    ck_assert_msg(mf_table_write(t, MF_TABLE_ALL, &out, why) == 0, "%s", why);
    char *text = mf_buf_take(&out);
    mf_buf_release(&out);
    return text;
}

static struct mf_table_row moefarm_row(int64_t token, double us)
{
    struct mf_table_row row = {.class = {"gfx942", 304},
                               .block_m = 16,
                               .us1 = us / 2,
                               .us2 = us / 2,
                               .us = us,
                               .kernel1 = "new1",
                               .kernel2 = "new2"};
    ck_assert_int_eq(mf_shape_parse("1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                    "torch.bfloat16,QuantType.No,1,0",
                                    &row.shape),
                     0);
    row.shape.token = token;
    row.own[MF_OWN_MODEL] = "MI300X";
    row.own[MF_OWN_ROUTING] = "uniform";
    row.own[MF_OWN_PROVENANCE] = "moefarm:race";
    return row;
}

static struct mf_table *fresh_of(const struct mf_table_row *row)
{
    struct mf_table *t = NULL;
    ck_assert_int_eq(mf_table_new("fresh", true, &t), 0);
    ck_assert_int_eq(mf_table_add(t, row), 0);
    return t;
}

/* A new row of 10 us is merged into a table with one row. Each case gives the column `us` and moefarm's own
 * columns of the old row, and the outcomes expected without and with `replace`. */
/* clang-format off */
static const struct verdict {
    const char *us, *model, *routing, *provenance;
    enum mf_merged what, what_with_replace;
    const char *reason_part;
} verdicts[] = {
    {"20.0", "MI300X", "uniform",  "moefarm:race", MF_MERGED_REPLACED, MF_MERGED_REPLACED,
     "faster than the row"},
    {"5.0",  "MI300X", "uniform",  "moefarm:race", MF_MERGED_KEPT,     MF_MERGED_KEPT,
     "is faster: 5.0000"},
    {"10.0", "MI300X", "uniform",  "moefarm:race", MF_MERGED_KEPT,     MF_MERGED_KEPT,     "is as fast"},
    /* A row of moefarm without a time is always replaced. */
    {"0.0",  "MI300X", "uniform",  "moefarm:race", MF_MERGED_REPLACED, MF_MERGED_REPLACED, "against 0.0000"},
    /* Rows of another device model, routing profile or method are not comparable, whatever their times are.
     */
    {"20.0", "MI325X", "uniform",  "moefarm:race", MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "has model 'MI325X'"},
    {"5.0",  "MI325X", "uniform",  "moefarm:race", MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "has model 'MI325X'"},
    {"20.0", "MI300X", "zipf:1.2", "moefarm:race", MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "has routing 'zipf:1.2'"},
    {"20.0", "MI300X", "",         "moefarm:race", MF_MERGED_FOREIGN,  MF_MERGED_REPLACED, "has routing ''"},
    {"20.0", "MI300X", "uniform",  "moefarm:sum",  MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "provenance 'moefarm:sum'"},
    /* The old row is from another tool. */
    {"20.0", "",       "",         "",             MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "is not moefarm's"},
    {"5.0",  "",       "",         "",             MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "is not moefarm's"},
    {"0.0",  "",       "",         "",             MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "is not moefarm's"},
    {"20.0", "MI300X", "uniform",  "moefarmer",    MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "is not moefarm's"},
};
/* clang-format on */

static void check_verdict(const struct verdict *v, bool replace)
{
    char text[1024], why[MF_REASON_MAX];
    snprintf(text, sizeof(text),
             TUNED_COLUMNS OWN_COLUMNS
             "\n" KEY(1) ",32,0,1,k1,0.0%%,1,k2,0.0%%,%s,0,0,0,1.0,2.0,,,%s,,,%s,,,,%s\n",
             v->us, v->model, v->routing, v->provenance);
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("table", text);
    struct mf_table_row row = moefarm_row(1, 10);
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    const struct mf_merge_options options = {.replace = replace};
    enum mf_merged expected = replace ? v->what_with_replace : v->what;
    ck_assert_int_eq(mf_table_merge(t, fresh, &options, &result, why), 0);
    ck_assert_uint_eq(result.n_items, 1);
    ck_assert_int_eq(result.items[0].what, expected);
    for (enum mf_merged i = 0; i < MF_MERGED_N_; i++)
        ck_assert_uint_eq(result.n[i], i == expected ? 1 : 0);
    ck_assert_str_eq(result.items[0].key, KEY(1));
    ck_assert_double_eq(result.items[0].old_us, strtod(v->us, NULL));
    ck_assert_double_eq(result.items[0].new_us, 10);
    ck_assert_msg(strstr(result.items[0].reason, v->reason_part) != NULL, "%s", result.items[0].reason);
    ck_assert_uint_eq(t->n_rows, 1);
    ck_assert_str_eq(t->rows[0].kernel1, expected == MF_MERGED_REPLACED ? "new1" : "k1");
    ck_assert_double_eq(t->rows[0].us, expected == MF_MERGED_REPLACED ? 10 : strtod(v->us, NULL));
}

MF_TEST(test_verdict, .rows = MF_ARRAY_LEN(verdicts))
{
    check_verdict(&verdicts[_i], false);
    check_verdict(&verdicts[_i], true);
}

/* A new row of 10 us. A time that the farm has not accepted never replaces an accepted one. */
static const struct {
    const char *us, *unstable, *new_unstable;
    enum mf_merged what;
    const char *reason_part;
} unstable_rows[] = {
    {"20.0", "", "after 3 reruns: it scatters", MF_MERGED_KEPT,
     "the new time is unstable (after 3 reruns: it scatters)"},
    {"5.0", "after 3 reruns: it scatters", "", MF_MERGED_REPLACED,
     "the time of the row in the table is unstable (after 3 reruns: it scatters)"},
    {"5.0", "it scatters", "it scatters", MF_MERGED_KEPT, "is faster: 5.0000"},
    {"0.0", "", "it scatters", MF_MERGED_REPLACED, "against 0.0000"},
};

MF_TEST(unstable_times_do_not_win, .rows = MF_ARRAY_LEN(unstable_rows))
{
    char text[1024], why[MF_REASON_MAX];
    snprintf(text, sizeof(text),
             TUNED_COLUMNS OWN_COLUMNS ",unstable"
                                       "\n" KEY(1) ",32,0,1,k1,0.0%%,1,k2,0.0%%,%s,0,0,0,1.0,2.0,,,MI300X,,,"
                                                   "uniform,,,,moefarm:race,%s\n",
             unstable_rows[_i].us, unstable_rows[_i].unstable);
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("table", text);
    struct mf_table_row row = moefarm_row(1, 10);
    row.own[MF_OWN_UNSTABLE] = unstable_rows[_i].new_unstable;
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    ck_assert_int_eq(mf_table_merge(t, fresh, NULL, &result, why), 0);
    ck_assert_int_eq(result.items[0].what, unstable_rows[_i].what);
    ck_assert_msg(strstr(result.items[0].reason, unstable_rows[_i].reason_part), "%s",
                  result.items[0].reason);
}

/* A new row of 10 us, in most cases a promoted one. A promoted row replaces a comparable row with another
 * pipeline, even if the old row is faster. A later row of a race is comparable with a promoted row. */
MF_TEST(test_promoted)
{
    static const struct {
        const char *us, *pipeline, *provenance, *model, *own;
        enum mf_merged what;
        const char *reason_part;
    } cases[] = {
        {"5.0", "f:a|f:b", "moefarm:race", "MI300X", "moefarm:promoted", MF_MERGED_REPLACED,
         "promoted over the known row"},
        {"5.0", "f:a|f:b", "moefarm:promoted", "MI300X", "moefarm:promoted", MF_MERGED_REPLACED,
         "promoted over"},
        {"5.0", "tile:new", "moefarm:race", "MI300X", "moefarm:promoted", MF_MERGED_KEPT, "is faster"},
        {"5.0", "f:a|f:b", "moefarm:race", "MI325X", "moefarm:promoted", MF_MERGED_FOREIGN, "has model"},
        {"5.0", "", "", "", "moefarm:promoted", MF_MERGED_FOREIGN, "is not moefarm's"},
        {"5.0", "f:a|f:b", "moefarm:promoted", "MI300X", "moefarm:race", MF_MERGED_KEPT, "is faster"},
        {"20.0", "f:a|f:b", "moefarm:promoted", "MI300X", "moefarm:race", MF_MERGED_REPLACED, "faster than"},
        {"20.0", "f:a|f:b", "moefarm:promoted", "MI300X", "moefarm:exhaustive", MF_MERGED_FOREIGN,
         "has provenance"},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(cases); i++) {
        char text[1024], why[MF_REASON_MAX];
        snprintf(text, sizeof(text),
                 TUNED_COLUMNS OWN_COLUMNS
                 "\n" KEY(1) ",32,0,1,k1,0.0%%,1,k2,0.0%%,%s,0,0,0,1.0,2.0,%s,,%s,,,uniform,,,,%s\n",
                 cases[i].us, cases[i].pipeline, cases[i].model, cases[i].provenance);
        _cleanup_(mf_table_freep) struct mf_table *t = read_text("table", text);
        struct mf_table_row row = moefarm_row(1, 10);
        row.own[MF_OWN_PROVENANCE] = cases[i].own;
        row.own[MF_OWN_PIPELINE] = "two_stage:new"; /* "tile" is the old name of the family "two_stage" */
        _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
        _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
        ck_assert_int_eq(mf_table_merge(t, fresh, NULL, &result, why), 0);
        ck_assert_msg(result.items[0].what == cases[i].what, "%zu: %s", i, result.items[0].reason);
        ck_assert_msg(strstr(result.items[0].reason, cases[i].reason_part) != NULL, "%s",
                      result.items[0].reason);
        ck_assert_double_eq(t->rows[0].us,
                            cases[i].what == MF_MERGED_REPLACED ? 10 : strtod(cases[i].us, NULL));
    }
}

/* A merge keeps rows of other tools, unknown columns, tags, unreadable rows and the order of rows. A new row
 * is added at the end. A replaced row keeps its position. Its cell of the unknown column becomes empty,
 * because the value belongs to the old row. */
MF_TEST(test_other_rows_are_kept)
{
    static const char before[] =
        TUNED_COLUMNS ",_tag,note" OWN_COLUMNS "\n" KEY(1) RESULT("3.00") ",,first,,,,,,,,,,\n" KEY(2)
            RESULT("20.0") ",,second,,,MI300X,,,uniform,,,,moefarm:race\n" KEY(2)
                RESULT("1.0") ",fallback,tagged,,,,,,,,,,\n"
                              "gfx942,304,oops,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n" KEY(4)
                                  RESULT("7.125") ",,last,,,,,,,,,,\n";
    static const char after[] =
        TUNED_COLUMNS ",_tag" OWN_COLUMNS ",note\n" KEY(1) RESULT("3.00") ",,,,,,,,,,,,first\n" KEY(
            2) ",16,0,5.0,new1,0.0%,5.0,new2,0.0%,10.0,0,0,0,0.0,0.0,,,,MI300X,,,uniform,,,,moefarm:race,"
               "\n" KEY(2) RESULT("1.0") ",fallback,,,,,,,,,,,tagged\n"
                                         "gfx942,304,oops,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n" KEY(4)
                                             RESULT("7.125") ",,,,,,,,,,,,last\n" KEY(
                                                 3) ",16,0,6.0,new1,0.0%,6.0,new2,0.0%,12.0,0,0,0,0.0,"
                                                    "0.0,,,,MI300X,,,uniform,,,,moefarm:race,\n";
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("table", before);
    struct mf_table_row rows[] = {moefarm_row(3, 12), moefarm_row(2, 10), moefarm_row(1, 1)};
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&rows[0]);
    ck_assert_int_eq(mf_table_add(fresh, &rows[1]), 0);
    ck_assert_int_eq(mf_table_add(fresh, &rows[2]), 0);
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_merge(t, fresh, NULL, &result, why), 0);
    ck_assert_int_eq(result.items[0].what, MF_MERGED_ADDED);
    ck_assert_int_eq(result.items[1].what, MF_MERGED_REPLACED);
    ck_assert_int_eq(result.items[2].what, MF_MERGED_FOREIGN);
    char *text = print(t);
    ck_assert_str_eq(text, after);
    free(text);
}

/* Merging a new row into a shipped table changes no other row. Merging the row again changes nothing. */
MF_TEST(test_shipped, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *s = &shipped[_i];
    if (!s->tuned || s->op != MF_TABLE_FMOE)
        return;
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(s->file);
    char *before = print(t);
    struct mf_table_row row = moefarm_row(9999, 10);
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    for (int pass = 0; pass < 2; pass++) {
        _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
        char why[MF_REASON_MAX];
        ck_assert_int_eq(mf_table_merge(t, fresh, NULL, &result, why), 0);
        ck_assert_uint_eq(result.n[pass == 0 ? MF_MERGED_ADDED : MF_MERGED_KEPT], 1);
    }
    ck_assert_uint_eq(t->n_rows, s->n_rows + 1);
    t->n_rows--;
    char *after = print(t);
    ck_assert_str_eq(before, after);
    t->n_rows++;
    free(before);
    free(after);
}

static void check_rejected(struct mf_table *t, const struct mf_table *fresh,
                           const struct mf_merge_options *options, int r, const char *const reason_part[3])
{
    struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX] = "";
    size_t n_rows = t->n_rows;
    ck_assert_int_eq(mf_table_merge(t, fresh, options, &result, why), r);
    for (int i = 0; i < 3 && reason_part[i]; i++)
        ck_assert_msg(strstr(why, reason_part[i]) != NULL, "'%s' is not in '%s'", reason_part[i], why);
    ck_assert_ptr_null(result.items);
    ck_assert_uint_eq(t->n_rows, n_rows);
}

MF_TEST(test_duplicates)
{
    static const char one[] = TUNED_COLUMNS "\n" KEY(1) RESULT("3.0") "\n",
                      two[] = TUNED_COLUMNS "\n" KEY(2) RESULT("3.0") "\n";
    static const char twice[] =
        TUNED_COLUMNS "\n" KEY(1) RESULT("3.0") "\n" KEY(2) RESULT("3.0") "\n" KEY(1) RESULT("3.0") "\n";
    struct mf_table_row row = moefarm_row(2, 10);
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    _cleanup_(mf_table_freep) struct mf_table *a = read_text("a.csv", one);
    _cleanup_(mf_table_freep) struct mf_table *b = read_text("b.csv", two);
    _cleanup_(mf_table_freep) struct mf_table *c = read_text("c.csv", twice);
    const struct mf_table *const only_a[] = {a}, *const only_b[] = {b}, *const a_and_c[] = {a, c};
    const struct mf_merge_options with_a = {.set = only_a, .n_set = 1}, with_b = {.set = only_b, .n_set = 1},
                                  with_a_and_c = {.set = a_and_c, .n_set = 2};
    /* duplicate rows within the table */
    check_rejected(c, fresh, NULL, -EEXIST, (const char *const[]){"c.csv line 2", "c.csv line 4", KEY(1)});
    /* another file of the set has a row with the key of the new row */
    check_rejected(a, fresh, &with_b, -EEXIST, (const char *const[]){"fresh row 1", "b.csv line 2", KEY(2)});
    /* duplicate rows within the set */
    check_rejected(b, fresh, &with_a_and_c, -EEXIST, (const char *const[]){" line 2", "c.csv line ", NULL});
    /* duplicate rows among the new rows */
    ck_assert_int_eq(mf_table_add(fresh, &row), 0);
    check_rejected(a, fresh, NULL, -EEXIST, (const char *const[]){"fresh row 1 and fresh row 2", NULL, NULL});
    /* a set without duplicates is accepted */
    _cleanup_(mf_table_freep) struct mf_table *clean = fresh_of(&row);
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_merge(b, clean, &with_a, &result, why), 0);
    ck_assert_int_eq(result.items[0].what, MF_MERGED_FOREIGN);
}

/* New rows that the merge rejects. */
static const struct {
    double us;
    const char *provenance, *tag, *reason_part;
} bad_rows[] = {
    {0, "moefarm:race", NULL, "us is not above 0"},
    {-1, "moefarm:race", NULL, "us is not above 0"},
    {10, NULL, NULL, "provenance is not moefarm's"},
    {10, "", NULL, "provenance is not moefarm's"},
    {10, "aiter", NULL, "provenance"},
    {10, "moefarm", "tag", "it has a tag"},
};

MF_TEST(test_bad_row, .rows = MF_ARRAY_LEN(bad_rows))
{
    struct mf_table_row row = moefarm_row(1, bad_rows[_i].us);
    row.own[MF_OWN_PROVENANCE] = bad_rows[_i].provenance;
    row.tag = bad_rows[_i].tag;
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("t", TUNED_COLUMNS "\n");
    check_rejected(t, fresh, NULL, -EINVAL, (const char *const[]){bad_rows[_i].reason_part, KEY(1), NULL});
}

MF_TEST(test_wrong_table)
{
    struct mf_table_row row = moefarm_row(1, 10);
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    _cleanup_(mf_table_freep) struct mf_table *untuned = shipped_read("untuned_fmoe.csv");
    _cleanup_(mf_table_freep) struct mf_table *fhmoe = shipped_read("tuned_fhmoe.csv");
    check_rejected(untuned, fresh, NULL, -ENOTSUP,
                   (const char *const[]){"untuned_fmoe.csv is an untuned", NULL, NULL});
    check_rejected(fhmoe, fresh, NULL, -ENOTSUP, (const char *const[]){"another operator", NULL, NULL});
    check_rejected(fresh, untuned, NULL, -ENOTSUP, (const char *const[]){"an untuned", NULL, NULL});
    _cleanup_(mf_table_freep) struct mf_table *dirty = read_text("dirty.csv", TUNED_COLUMNS "\nrubbish\n");
    check_rejected(fresh, dirty, NULL, -EINVAL,
                   (const char *const[]){"dirty.csv has 1 row that cannot be read", NULL, NULL});
}

/* Merges random rows and compares each outcome with a simple model of the rules. */
MF_TEST(test_history)
{
    enum { KEYS = 40, STEPS = 2000 };
    static const char *const models[] = {"MI300X", "MI325X"};
    unsigned seed = 20261120;
    printf("table_merge history: seed %u\n", seed);
    double us[KEYS] = {0};
    int model[KEYS] = {0};
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("t", TUNED_COLUMNS "\n");
    for (int step = 0; step < STEPS; step++) {
        int key = rand_r(&seed) % KEYS, m = rand_r(&seed) % 2;
        bool replace = rand_r(&seed) % 4 == 0;
        struct mf_table_row row = moefarm_row(key + 1, 1 + rand_r(&seed) % 100);
        row.own[MF_OWN_MODEL] = models[m];
        _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
        _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
        char why[MF_REASON_MAX];
        ck_assert_int_eq(
            mf_table_merge(t, fresh, &(struct mf_merge_options){.replace = replace}, &result, why), 0);
        enum mf_merged expected = us[key] == 0       ? MF_MERGED_ADDED
                                  : model[key] != m  ? (replace ? MF_MERGED_REPLACED : MF_MERGED_FOREIGN)
                                  : row.us < us[key] ? MF_MERGED_REPLACED
                                                     : MF_MERGED_KEPT;
        ck_assert_int_eq(result.items[0].what, expected);
        if (expected == MF_MERGED_ADDED || expected == MF_MERGED_REPLACED) {
            us[key] = row.us;
            model[key] = m;
        }
        const struct mf_table_row *now = mf_table_find(t, &row.class, &row.shape);
        ck_assert_double_eq(now->us, us[key]);
        ck_assert_str_eq(now->own[MF_OWN_MODEL], models[model[key]]);
    }
    ck_assert_uint_eq(t->n_rows, KEYS);
}

/* A row of AITER is merged into a table with one row. The row with the lower time stays, except that a row of
 * moefarm is never replaced. */
/* clang-format off */
static const struct {
    const char *old_us, *new_us, *old_provenance;
    enum mf_merged what, what_with_replace;
    const char *reason_part;
} foreign[] = {
    {"20.0", "10.0", "",             MF_MERGED_REPLACED, MF_MERGED_REPLACED, "the lower time of two rows"},
    {"10.0", "20.0", "",             MF_MERGED_KEPT,     MF_MERGED_KEPT,
     "as fast or faster: 10.0000 against 20.0000"},
    {"10.0", "10.0", "",             MF_MERGED_KEPT,     MF_MERGED_KEPT,     "as fast or faster"},
    /* AITER's own merge would choose the time 0 */
    {"10.0", "0.0",  "",             MF_MERGED_KEPT,     MF_MERGED_KEPT,     "the new row has no time"},
    {"0.0",  "10.0", "",             MF_MERGED_REPLACED, MF_MERGED_REPLACED,
     "the row in the table has no time"},
    {"0.0",  "0.0",  "",             MF_MERGED_KEPT,     MF_MERGED_KEPT,     "the new row has no time"},
    {"20.0", "10.0", "moefarm:race", MF_MERGED_FOREIGN,  MF_MERGED_REPLACED,
     "is moefarm's and the new one is not"},
};
/* clang-format on */

MF_TEST(test_foreign, .rows = MF_ARRAY_LEN(foreign))
{
    char before[1024], fresh_text[1024], why[MF_REASON_MAX];
    snprintf(before, sizeof(before),
             TUNED_COLUMNS OWN_COLUMNS
             "\n" KEY(1) ",32,0,1,k1,0.0%%,1,k2,0.0%%,%s,0,0,0,1.0,2.0,,,,,,,,,,%s\n",
             foreign[_i].old_us, foreign[_i].old_provenance);
    snprintf(fresh_text, sizeof(fresh_text),
             TUNED_COLUMNS "\n" KEY(1) ",32,0,1,n1,0.00%%,1,n2,0.0%%,%s,0,0,0,1.0,2.0\n", foreign[_i].new_us);
    for (int replace = 0; replace < 2; replace++) {
        _cleanup_(mf_table_freep) struct mf_table *t = read_text("table", before);
        _cleanup_(mf_table_freep) struct mf_table *fresh = read_text("fresh", fresh_text);
        _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
        const struct mf_merge_options options = {.replace = replace, .accept_foreign = true};
        enum mf_merged expected = replace ? foreign[_i].what_with_replace : foreign[_i].what;
        ck_assert_int_eq(mf_table_merge(t, fresh, &options, &result, why), 0);
        ck_assert_int_eq(result.items[0].what, expected);
        ck_assert_msg(strstr(result.items[0].reason, foreign[_i].reason_part) != NULL, "%s",
                      result.items[0].reason);
        ck_assert_uint_eq(t->n_rows, 1);
        ck_assert_str_eq(t->rows[0].kernel1, expected == MF_MERGED_REPLACED ? "n1" : "k1");
    }
}

/* A row of another tool is copied completely. This includes the texts of its numbers, its tag, and its cells
 * of columns that the table lacks. */
MF_TEST(test_foreign_row_is_copied)
{
    static const char before[] =
        TUNED_COLUMNS ",note\n" KEY(1) RESULT("3.00") ",first\n" KEY(2) RESULT("9.0") ",second\n";
    static const char fresh_text[] = TUNED_COLUMNS
        ",_tag,more,empty\n" KEY(2) ",32,0,1,k1,0.00%,1,k2,0,8.500000000000001,0,0,0,1.0,2.0,,new,\n" KEY(3)
            RESULT("7.250") ",,added,\n" KEY(2) RESULT("1.0") ",fallback,,\n";
    static const char after[] = TUNED_COLUMNS ",_tag,note,more\n" KEY(1) RESULT("3.00") ",,first,\n" KEY(
        2) ",32,0,1,k1,0.00%,1,k2,0,8.500000000000001,0,0,0,1.0,2.0,,,new\n" KEY(3)
        RESULT("7.250") ",,,added\n" KEY(2) RESULT("1.0") ",fallback,,\n";
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("table", before);
    _cleanup_(mf_table_freep) struct mf_table *fresh = read_text("fresh", fresh_text);
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(
        mf_table_merge(t, fresh, &(struct mf_merge_options){.accept_foreign = true}, &result, why), 0);
    ck_assert_uint_eq(result.n[MF_MERGED_ADDED], 2);
    ck_assert_uint_eq(result.n[MF_MERGED_REPLACED], 1);
    char *text = print(t);
    ck_assert_str_eq(text, after);
    free(text);
}

/* Merges `t` into `all` and returns the number of rows with the outcome `what`. Asserts that added rows keep
 * the texts of their numbers. */
static size_t merge_shipped(struct mf_table *all, const struct mf_table *t, enum mf_merged what)
{
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_merge(all, t, &(struct mf_merge_options){.accept_foreign = true}, &result, why) ==
                      0,
                  "%s", why);
    for (size_t i = 0; i < t->n_rows && what == MF_MERGED_ADDED; i++)
        for (enum mf_result c = 0; c < MF_RESULT_N_; c++)
            if (t->rows[i].text[c])
                ck_assert_str_eq(all->rows[all->n_rows - t->n_rows + i].text[c], t->rows[i].text[c]);
    return result.n[what];
}

/* Merges all of AITER's tables into one table. Every row is kept, and merging the tables again changes
 * nothing. */
MF_TEST(test_foreign_shipped)
{
    _cleanup_(mf_table_freep) struct mf_table *all = NULL;
    size_t n[MF_MERGED_N_] = {0};
    ck_assert_int_eq(mf_table_new("all.csv", true, &all), 0);
    for (int pass = 0; pass < 2; pass++) {
        enum mf_merged what = pass == 0 ? MF_MERGED_ADDED : MF_MERGED_KEPT;
        for (size_t i = 0; i < MF_ARRAY_LEN(shipped); i++) {
            if (!shipped[i].tuned || shipped[i].op != MF_TABLE_FMOE)
                continue;
            _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(shipped[i].file);
            n[what] += merge_shipped(all, t, what);
        }
    }
    ck_assert_uint_eq(n[MF_MERGED_ADDED], 2038);
    ck_assert_uint_eq(n[MF_MERGED_KEPT], 2038);
    ck_assert_uint_eq(all->n_rows, 2038);
}

MF_TEST(test_foreign_rejected)
{
    struct mf_table_row row = moefarm_row(1, 10);
    row.tag = "tag";
    _cleanup_(mf_table_freep) struct mf_table *fresh = fresh_of(&row);
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("t.csv", TUNED_COLUMNS "\n");
    _cleanup_(mf_table_freep) struct mf_table *twice =
        read_text("twice.csv", TUNED_COLUMNS "\n" KEY(1) RESULT("3.0") "\n" KEY(1) RESULT("4.0") "\n");
    _cleanup_(mf_table_freep) struct mf_table *comma = read_text(
        "comma.csv", TUNED_COLUMNS "\n" KEY(1) ",32,0,1,\"k,1\",0.0%,1,k2,0.0%,3.0,0,0,0,1.0,2.0\n");
    const struct mf_merge_options options = {.accept_foreign = true};
    check_rejected(t, fresh, &options, -EINVAL,
                   (const char *const[]){"it has a tag", KEY(1), NULL}); /* a row of moefarm */
    check_rejected(t, twice, &options, -EEXIST, (const char *const[]){"twice.csv line 2", "line 3", NULL});
    check_rejected(t, comma, &options, -EINVAL, (const char *const[]){"a cell with a comma", KEY(1), NULL});
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
