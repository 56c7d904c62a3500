#include "common/table/table_merge.h"

#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SHOWN_MAX 56
#define LOCATION_MAX   (NAME_SHOWN_MAX + 24)

MF_NAMES_DEFINE(mf_merged, MF_MERGED_, MF_MERGED_MAP)

void mf_merge_result_release(struct mf_merge_result *r)
{
    free(r->items);
    *r = MF_MERGE_RESULT_INIT;
}

/* True if the row's provenance is "moefarm" or starts with "moefarm:". */
static bool is_ours(const struct mf_table_row *row)
{
    const char *p = row->own[MF_OWN_PROVENANCE];
    return p && strncmp(p, "moefarm", 7) == 0 && (p[7] == '\0' || p[7] == ':');
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* True if the row won a direct comparison with the known row of its key. Its time comes from a race. */
static bool is_promoted(const struct mf_table_row *row)
{
    return same_text(row->own[MF_OWN_PROVENANCE], MF_PROVENANCE_PROMOTED);
}

static bool same_method(const struct mf_table_row *a, const struct mf_table_row *b)
{
    const char *method[2] = {a->own[MF_OWN_PROVENANCE], b->own[MF_OWN_PROVENANCE]};
    if (is_promoted(a))
        method[0] = MF_PROVENANCE_RACE;
    if (is_promoted(b))
        method[1] = MF_PROVENANCE_RACE;
    return same_text(method[0], method[1]);
}

/* Columns that must be equal for two times of one key to be comparable. */
static const enum mf_own basis[] = {MF_OWN_MODEL, MF_OWN_ROUTING};

/* Returns the first column that makes the times of the two rows incomparable, or MF_OWN_N_ if there is no
 * such column. */
static enum mf_own differing_column(const struct mf_table_row *a, const struct mf_table_row *b)
{
    if (!same_method(a, b))
        return MF_OWN_PROVENANCE;
    for (size_t i = 0; i < MF_ARRAY_LEN(basis); i++)
        if (!same_text(a->own[basis[i]], b->own[basis[i]]))
            return basis[i];
    return MF_OWN_N_;
}

/* True if both rows are moefarm's with the same method, model and routing. */
static bool are_comparable(const struct mf_table_row *a, const struct mf_table_row *b)
{
    return is_ours(a) && is_ours(b) && differing_column(a, b) == MF_OWN_N_;
}

/* ----------------------------------------------------------------------------------------- refusals */

static int check_table(const struct mf_table *t, char why[MF_REASON_MAX])
{
    if (t->tuned && t->op == MF_TABLE_FMOE)
        return 0;
    mf_format(why, MF_REASON_MAX, "%s is %s; only tuned fmoe tables can be merged", t->name,
              t->op == MF_TABLE_FMOE ? "an untuned table" : "a table of another operator");
    return -ENOTSUP;
}

static int check_fresh(const struct mf_table *fresh, bool accept_foreign, char why[MF_REASON_MAX])
{
    for (size_t i = 0; i < fresh->n_rows; i++) {
        const struct mf_table_row *row = &fresh->rows[i];
        if (accept_foreign && !is_ours(row))
            continue;
        const char *wrong = !is_ours(row)                         ? "its provenance is not moefarm's"
                            : mf_table_row_has_tag(row)           ? "it has a tag"
                            : !(isfinite(row->us) && row->us > 0) ? "its us is not above 0"
                                                                  : NULL;
        if (!wrong)
            continue;
        char key[MF_TABLE_KEY_MAX];
        mf_table_key(row, key);
        mf_format(why, MF_REASON_MAX, "%s: row %s cannot be merged: %s", fresh->name, key, wrong);
        return -EINVAL;
    }
    if (fresh->n_strays > 0)
        mf_format(why, MF_REASON_MAX, "%s has %zu row%s that cannot be read; repair %s first", fresh->name,
                  fresh->n_strays, fresh->n_strays == 1 ? "" : "s", fresh->n_strays == 1 ? "it" : "them");
    return fresh->n_strays > 0 ? -EINVAL : 0;
}

/* Formats the location of a row: "tuned_fmoe.csv line 12", or the row's number if the row was not read from a
 * file. */
static void format_location(const struct mf_table *t, const struct mf_table_row *row, char buf[LOCATION_MAX])
{
    /* Truncate long paths at the front. */
    size_t len = strlen(t->name);
    const char *name = len > NAME_SHOWN_MAX ? t->name + len - NAME_SHOWN_MAX : t->name;
    if (row->line > 0)
        mf_format(buf, LOCATION_MAX, "%s line %" PRId64, name, row->line);
    else
        mf_format(buf, LOCATION_MAX, "%s row %zu", name, (size_t)(row - t->rows) + 1);
}

static int refuse_clash(const struct mf_table_clash *clash, char why[MF_REASON_MAX])
{
    char key[MF_TABLE_KEY_MAX], a[LOCATION_MAX], b[LOCATION_MAX];
    mf_table_key(clash->b, key);
    format_location(clash->table_a, clash->a, a);
    format_location(clash->table_b, clash->b, b);
    /* The key comes last, so that truncation does not affect the locations. */
    mf_format(why, MF_REASON_MAX,
              "%s and %s have the same key; production refuses such a set; remove one of the rows (key %s)",
              a, b, key);
    return -EEXIST;
}

/* Rejects the merge if a key occurs twice in `table` and the set together, or twice in `fresh` and the set
 * together. A key that is in both `table` and `fresh` is a normal merge. */
static int check_clashes(const struct mf_table *table, const struct mf_table *fresh,
                         const struct mf_merge_options *options, char why[MF_REASON_MAX])
{
    _cleanup_(mf_freep) const struct mf_table **set = calloc(options->n_set + 1, sizeof(*set));
    if (!set)
        return -ENOMEM;
    for (size_t i = 0; i < options->n_set; i++)
        set[i + 1] = options->set[i];
    const struct mf_table *const heads[] = {table, fresh};
    for (size_t i = 0; i < MF_ARRAY_LEN(heads); i++) {
        _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
        size_t n = 0;
        set[0] = heads[i];
        int r = mf_table_clashes(set, options->n_set + 1, &clashes, &n);
        if (r < 0)
            return r;
        if (n > 0)
            return refuse_clash(&clashes[0], why);
    }
    return 0;
}

/* ----------------------------------------------------------------------------------------- decisions */

static bool is_timed(const struct mf_table_row *row)
{
    return isfinite(row->us) && row->us > 0;
}

static const char *unstable_reason(const struct mf_table_row *row)
{
    const char *reason = row->own[MF_OWN_UNSTABLE];
    return reason ? reason : "";
}

static enum mf_merged decide_ours(const struct mf_table_row *old, const struct mf_table_row *row,
                                  char reason[MF_REASON_MAX])
{
    const char *old_pipeline = old->own[MF_OWN_PIPELINE], *pipeline = row->own[MF_OWN_PIPELINE];
    /* A promoted row replaces the old row even if the old time is lower. The two rows were compared directly,
     * but the time in the table may have been measured under other conditions. */
    if (is_promoted(row) &&
        !mf_pipeline_text_equal(old_pipeline ? old_pipeline : "", pipeline ? pipeline : "")) {
        mf_format(
            reason, MF_REASON_MAX,
            "promoted over the known row in a direct comparison: %.4f us; the row in the table has %.4f us",
            row->us, old->us);
        return MF_MERGED_REPLACED;
    }
    const char *old_unstable = unstable_reason(old), *unstable = unstable_reason(row);
    if (is_timed(old) && *unstable && !*old_unstable) {
        mf_format(reason, MF_REASON_MAX, "the new time is unstable (%.240s)", unstable);
        return MF_MERGED_KEPT;
    }
    if (is_timed(old) && *old_unstable && !*unstable) {
        mf_format(reason, MF_REASON_MAX, "the time of the row in the table is unstable (%.240s)",
                  old_unstable);
        return MF_MERGED_REPLACED;
    }
    if (is_timed(old) && old->us <= row->us) {
        mf_format(reason, MF_REASON_MAX, "the row in the table is %s: %.4f against %.4f us",
                  old->us < row->us ? "faster" : "as fast", old->us, row->us);
        return MF_MERGED_KEPT;
    }
    mf_format(reason, MF_REASON_MAX, "faster than the row in the table: %.4f against %.4f us", row->us,
              old->us);
    return MF_MERGED_REPLACED;
}

/* Decides between two rows of other tools. */
static enum mf_merged decide_both_foreign(const struct mf_table_row *old, const struct mf_table_row *row,
                                          char reason[MF_REASON_MAX])
{
    if (is_timed(row) && (!is_timed(old) || row->us < old->us)) {
        mf_format(reason, MF_REASON_MAX,
                  is_timed(old) ? "the lower time of two rows of other tools, as in AITER's merge: %.4f "
                                  "against %.4f us"
                                : "the row in the table has no time: %.4f against %.4f us",
                  row->us, old->us);
        return MF_MERGED_REPLACED;
    }
    mf_format(reason, MF_REASON_MAX,
              is_timed(row) ? "the row in the table is as fast or faster: %.4f against %.4f us"
                            : "the new row has no time: %.4f against %.4f us in the table",
              is_timed(row) ? old->us : row->us, is_timed(row) ? row->us : old->us);
    return MF_MERGED_KEPT;
}

static enum mf_merged decide_foreign(const struct mf_table_row *old, const struct mf_table_row *row,
                                     bool replace, char reason[MF_REASON_MAX])
{
    const char *then = replace ? "replaced" : "not replaced; --replace replaces it";
    if (!is_ours(row)) {
        mf_format(reason, MF_REASON_MAX, "the row in the table is moefarm's and the new one is not: %s",
                  then);
    } else if (!is_ours(old)) {
        mf_format(reason, MF_REASON_MAX, "the row in the table is not moefarm's: %s", then);
    } else {
        enum mf_own column = differing_column(old, row);
        mf_format(reason, MF_REASON_MAX,
                  "the row in the table has %s '%.60s' and the new one '%.60s', so their times "
                  "cannot be compared: %s",
                  mf_own_name(column), old->own[column] ? old->own[column] : "",
                  row->own[column] ? row->own[column] : "", then);
    }
    return replace ? MF_MERGED_REPLACED : MF_MERGED_FOREIGN;
}

static enum mf_merged decide(const struct mf_table_row *old, const struct mf_table_row *row, bool replace,
                             char reason[MF_REASON_MAX])
{
    if (!old) {
        mf_format(reason, MF_REASON_MAX, "the table has no row with this key");
        return MF_MERGED_ADDED;
    }
    if (!is_ours(old) && !is_ours(row))
        return decide_both_foreign(old, row, reason);
    return are_comparable(old, row) ? decide_ours(old, row, reason)
                                    : decide_foreign(old, row, replace, reason);
}

static int apply(struct mf_table *table, const struct mf_table *fresh, const struct mf_table_row *row,
                 enum mf_merged what)
{
    const struct mf_table_row *old = mf_table_find_same(table, row);
    bool foreign = !is_ours(row);
    switch (what) {
    case MF_MERGED_ADDED:
        return foreign ? mf_table_copy_row(table, fresh, row, NULL) : mf_table_add(table, row);
    case MF_MERGED_REPLACED:
        return foreign ? mf_table_copy_row(table, fresh, row, old)
                       : mf_table_replace(table, (size_t)(old - table->rows), row);
    case MF_MERGED_KEPT:
    case MF_MERGED_FOREIGN:
    case MF_MERGED_N_:
        break;
    }
    return 0;
}

/* Decides about all rows before the table changes. The decisions are in result->items. */
static int decide_all(const struct mf_table *table, const struct mf_table *fresh, bool replace,
                      struct mf_merge_result *result)
{
    result->items = calloc(fresh->n_rows + 1, sizeof(*result->items));
    if (!result->items)
        return -ENOMEM;
    for (size_t i = 0; i < fresh->n_rows; i++) {
        const struct mf_table_row *row = &fresh->rows[i];
        const struct mf_table_row *old = mf_table_find_same(table, row);
        struct mf_merge_item *item = &result->items[i];
        item->what = decide(old, row, replace, item->reason);
        item->old_us = old ? old->us : 0;
        item->new_us = row->us;
        mf_table_key(row, item->key);
        result->n[item->what]++;
    }
    result->n_items = fresh->n_rows;
    return 0;
}

int mf_table_merge(struct mf_table *table, const struct mf_table *fresh,
                   const struct mf_merge_options *options, struct mf_merge_result *ret,
                   char why[MF_REASON_MAX])
{
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    const struct mf_merge_options none = {0};
    if (!options)
        options = &none;
    mf_format(why, MF_REASON_MAX, "out of memory");
    int r = check_table(table, why);
    if (r == 0)
        r = check_table(fresh, why);
    if (r == 0)
        r = check_fresh(fresh, options->accept_foreign, why);
    if (r == 0)
        r = check_clashes(table, fresh, options, why);
    if (r == 0)
        r = decide_all(table, fresh, options->replace, &result);
    for (size_t i = 0; i < result.n_items && r == 0; i++) {
        r = apply(table, fresh, &fresh->rows[i], result.items[i].what);
        if (r == -EINVAL)
            mf_format(why, MF_REASON_MAX, "%s: row %s has a cell with a comma, a quote or a line end",
                      fresh->name, result.items[i].key);
    }
    if (r < 0)
        return r;
    why[0] = '\0';
    *ret = result;
    result = MF_MERGE_RESULT_INIT;
    return 0;
}
