#include "cli/coverage/coverage_print.h"

#include <inttypes.h>
#include <string.h>

#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

#define KERNEL_MAX 72 /* maximum length of a printed kernel name */

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* Appends "expert 257 instead of 256 and topk 9 instead of 8". */
static void add_differences(const struct mf_coverage_near *n, const struct mf_device_class *class,
                            struct mf_buf *out)
{
    const char *between = "";

    for (int i = 0; i < MF_NEAR_COLUMNS; i++) {
        char row[MF_NEAR_VALUE_MAX], key[MF_NEAR_VALUE_MAX];

        if (!(n->differs & 1u << i))
            continue;
        mf_near_values(n, class, i, row, key);
        (void)mf_buf_addf(out, "%s%s %s", between, mf_near_name(i), *row ? row : "none");
        if (1u << i != MF_NEAR_TAG && 1u << i != MF_NEAR_SPELLING)
            (void)mf_buf_addf(out, " instead of %s", *key ? key : "none");
        between = " and ";
    }
}

/* Appends "the rows have padded sizes …; use --set model_dim=3072 if your server passes that". */
static void add_meaning(const struct mf_coverage_near *n, const char *before, struct mf_buf *out)
{
    const char *between = "; use --set ";

    if (*n->meaning)
        (void)mf_buf_addf(out, "%s%s", before, n->meaning);
    for (int i = 0; n->suggest_set && i < MF_SHAPE_N_COLUMNS; i++) {
        char value[MF_NEAR_VALUE_MAX];

        if (!(n->differs & 1u << i))
            continue;
        (void)mf_shape_get(&n->row->shape, mf_near_name(i), value, sizeof(value));
        (void)mf_buf_addf(out, "%s%s=%s", between, mf_near_name(i), value);
        between = ",";
    }
    if (n->suggest_set)
        (void)mf_buf_adds(out, " if your server passes that");
}

#define RANGE_MAX 48
/* Prints "129..255" or "4". */
static void print_range(int64_t first, int64_t last, char buf[RANGE_MAX])
{
    if (last > first)
        mf_format(buf, RANGE_MAX, "%" PRId64 "..%" PRId64, first, last);
    else
        mf_format(buf, RANGE_MAX, "%" PRId64, first);
}

static const char *file_of(const struct mf_table *table)
{
    const char *slash = strrchr(table->name, '/');
    return slash ? slash + 1 : table->name;
}

/* Returns the table's file name, or its path if another table has the same file name. */
static const char *display_name(const struct mf_coverage_query *q, const struct mf_table *table)
{
    for (size_t i = 0; i < q->n_tables; i++) {
        if (q->tables[i] != table && strcmp(file_of(q->tables[i]), file_of(table)) == 0)
            return table->name;
    }
    return file_of(table);
}

/* Appends "a.csv:12" or "a.csv:12-27". */
static void add_place(const struct mf_coverage_query *q, const struct mf_coverage_near *n, struct mf_buf *out)
{
    (void)mf_buf_addf(out, "%s:%" PRId64, display_name(q, n->table), n->row->line);
    if (n->n_rows > 1)
        (void)mf_buf_addf(out, "-%" PRId64, n->last_line);
}

/* ---- the headline ---- */

static bool has_class(const struct mf_coverage_query *q)
{
    for (size_t i = 0; i < q->n_tables; i++) {
        for (size_t j = 0; j < q->tables[i]->n_rows; j++) {
            if (mf_device_class_equal(&q->tables[i]->rows[j].class, &q->class))
                return true;
        }
    }
    return false;
}

/* True if a row for that token count is missing. The last tier needs no row of its own, because it falls back
 * to the tier below. */
static bool is_missing_row(const struct mf_coverage_span *s)
{
    return s->result == MF_COVERED_HOLE && s->key.token != MF_COVERAGE_TOKENS;
}

/* Appends the token column of each missing row once: "4096, 8192". */
static void add_missing(const struct mf_coverage_report *r, struct mf_buf *out)
{
    const char *between = "";
    int64_t last = 0;

    for (size_t i = 0; i < r->coverage->n_spans; i++) {
        const struct mf_coverage_span *s = &r->coverage->spans[i];

        if (!is_missing_row(s) || s->key.token == last)
            continue;
        last = s->key.token;
        (void)mf_buf_addf(out, "%s%" PRId64, between, last);
        between = ", ";
    }
}

static void add_others(const struct mf_coverage_report *r, struct mf_buf *out)
{
    int64_t others = r->coverage->tokens[MF_COVERED_OTHER];
    bool own = true;

    if (others == 0)
        return;
    for (size_t i = 0; i < r->coverage->n_spans; i++)
        own = own && (r->coverage->spans[i].result != MF_COVERED_OTHER || r->coverage->spans[i].own);
    (void)mf_buf_addf(
        out,
        "%" PRId64
        " token count%s would use a row of ANOTHER ACTIVATION FUNCTION: AITER ignores the activation "
        "function and uses the first row that matches the rest of the key. %s\n",
        others, plural(others),
        own ? "Rows of the right function exist, but later: put them first, or in a separate table."
            : "Rows of the right function are missing.");
}

/* True if the headline shows the near miss. It does so in two cases: no token count is served, or both
 * experts and topk differ, because a shared expert is fused on one side only. */
static bool is_worth_headline(const struct mf_coverage_report *r, const struct mf_coverage_near *near)
{
    return r->coverage->tokens[MF_COVERED_HOLE] == MF_COVERAGE_TOKENS ||
           (near->row->shape.expert != near->key.expert && near->row->shape.topk != near->key.topk);
}

static void add_counts(const struct mf_coverage_report *r, struct mf_buf *out)
{
    int64_t holes = r->coverage->tokens[MF_COVERED_HOLE];

    if (mf_coverage_complete(r->coverage)) {
        (void)mf_buf_addf(out, "Every token count from 1 to %d is served.\n", MF_COVERAGE_TOKENS);
    } else if (holes == MF_COVERAGE_TOKENS) {
        (void)mf_buf_addf(out, "No token count from 1 to %d is served.\n", MF_COVERAGE_TOKENS);
    } else if (holes > 0) {
        (void)mf_buf_addf(out, "%" PRId64 " of %d token counts are NOT served: no row for token ", holes,
                          MF_COVERAGE_TOKENS);
        add_missing(r, out);
        (void)mf_buf_adds(out, ".\n");
    }
    add_others(r, out);
}

void mf_coverage_headline(const struct mf_coverage_report *r, struct mf_buf *out)
{
    const struct mf_coverage_near *near = r->coverage->n_near > 0 ? &r->coverage->near[0] : NULL;
    int64_t holes = r->coverage->tokens[MF_COVERED_HOLE];
    char class[MF_DEVICE_CLASS_TEXT_MAX];

    add_counts(r, out);
    if (holes > 0 && near && is_worth_headline(r, near)) {
        (void)mf_buf_addf(out, "%zu row%s of %s would serve %" PRId64 " of them, except for ", near->n_rows,
                          plural((int64_t)near->n_rows), display_name(r->query, near->table), near->tokens);
        add_differences(near, &r->query->class, out);
        add_meaning(near, ":\n  ", out);
        (void)mf_buf_adds(out, ".\n");
    } else if (holes > 0 && !has_class(r->query)) {
        mf_device_class_print(&r->query->class, class);
        (void)mf_buf_addf(out, "The tables have no row of device class %s.\n", class);
    }
}

/* ---- the report ---- */

static void add_query(const struct mf_coverage_report *r, struct mf_buf *out)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX], brief[MF_SHAPE_BRIEF_MAX];
    const struct mf_model *m = r->model;

    mf_device_class_print(&r->query->class, class);
    mf_shape_brief_layer_model(&r->query->layer, brief);
    (void)mf_buf_addf(out, "%s on %s: tp %" PRId32 ", ep %" PRId32 ", ", m->name, class, r->split.tp,
                      r->split.ep);
    if (r->split.fused_shared > 0)
        (void)mf_buf_addf(out, "%" PRId32 " shared expert%s, fused", r->split.fused_shared,
                          plural(r->split.fused_shared));
    else if (m->shared > 0)
        (void)mf_buf_addf(out, "%" PRId32 " shared expert%s, not fused", m->shared, plural(m->shared));
    else
        (void)mf_buf_adds(out, "no shared expert");
    (void)mf_buf_addf(out, "\nlayer: %s\nlook-up rules: %s\n", brief,
                      r->query->rules == MF_LOOKUP_AITER     ? "AITER's dispatcher"
                      : r->query->rules == MF_LOOKUP_DROP_IN ? "libfmoe, call without an activation type"
                                                             : "libfmoe");
}

/* Adds a remark if the row that serves the token count belongs to another bucket. */
static void add_how_served(const struct mf_coverage_span *s, struct mf_columns *c)
{
    const char *act = strchr(mf_act_name(s->row->shape.act_type), '.') + 1;

    if (s->result == MF_COVERED_OTHER && s->own)
        mf_columns_addf(c, "ROW FOR %s; the matching row is line %" PRId64, act, s->own->line);
    else if (s->result == MF_COVERED_OTHER)
        mf_columns_addf(c, "ROW FOR %s", act);
    else
        mf_columns_add(c, s->result == MF_COVERED_TIER   ? "the tier below"
                          : s->result == MF_COVERED_RANK ? "another rank's row"
                                                         : "");
}

/* Prints one line per span that a row serves. */
static void add_spans(const struct mf_coverage_report *r, struct mf_buf *out)
{
    struct mf_columns c;
    int64_t n = 0;

    mf_columns_init(&c, 5);
    static const char *const header[] = {"tokens", "served by", "us", "", "kernel"};
    for (size_t i = 0; i < MF_ARRAY_LEN(header); i++)
        mf_columns_add(&c, header[i]);
    for (size_t i = 0; i < r->coverage->n_spans; i++) {
        const struct mf_coverage_span *s = &r->coverage->spans[i];
        char range[RANGE_MAX], us[MF_US_MAX];

        if (s->result == MF_COVERED_HOLE)
            continue;
        n++;
        print_range(s->first, s->last, range);
        mf_us(s->row->us, us);
        mf_columns_add(&c, range);
        mf_columns_addf(&c, "%s:%" PRId64, display_name(r->query, s->table), s->row->line);
        mf_columns_add(&c, us);
        add_how_served(s, &c);
        mf_columns_addf(&c, "%.*s", KERNEL_MAX, mf_coverage_kernel(s->row));
    }
    if (n > 0) {
        (void)mf_buf_adds(out, "\n");
        mf_columns_print(&c, out);
    }
    mf_columns_release(&c);
}

/* Prints the holes. Consecutive holes whose keys differ only in the bucket share a line. */
static void add_holes(const struct mf_coverage_report *r, struct mf_buf *out)
{
    const struct mf_coverage_span *spans = r->coverage->spans, *end = spans + r->coverage->n_spans;

    if (r->coverage->tokens[MF_COVERED_HOLE] > 0)
        (void)mf_buf_adds(out, "\nholes (token counts → token column of the missing rows):\n");
    for (const struct mf_coverage_span *s = spans, *next; s < end; s = next) {
        char range[RANGE_MAX];

        for (next = s + 1;
             next < end && next->result == s->result && mf_shape_same_layer_model(&next->key, &s->key);)
            next++;
        if (s->result != MF_COVERED_HOLE)
            continue;
        print_range(s->first, next[-1].last, range);
        (void)mf_buf_addf(out, "  %s → ", range);
        for (const struct mf_coverage_span *one = s; one < next; one++) {
            if (is_missing_row(one))
                (void)mf_buf_addf(out, "%s%" PRId64, one > s ? ", " : "", one->key.token);
        }
        if (s->key.q_dtype_a != r->query->layer.q_dtype_a)
            (void)mf_buf_addf(out, ", with q_dtype_a %s instead of %s", mf_dtype_name(s->key.q_dtype_a),
                              mf_dtype_name(r->query->layer.q_dtype_a));
        (void)mf_buf_adds(out, "\n");
    }
}

static void add_near_misses(const struct mf_coverage_report *r, int64_t top, struct mf_buf *out)
{
    size_t n = r->coverage->n_near;

    if (n == 0)
        return;
    (void)mf_buf_adds(out, "\nnear misses (rows that differ in one or two columns):\n");
    for (size_t i = 0; i < n && (top == 0 || (int64_t)i < top); i++) {
        const struct mf_coverage_near *near = &r->coverage->near[i];

        (void)mf_buf_adds(out, "  ");
        add_place(r->query, near, out);
        (void)mf_buf_addf(out, "  %zu row%s for %" PRId64 " token count%s: ", near->n_rows,
                          plural((int64_t)near->n_rows), near->tokens, plural(near->tokens));
        add_differences(near, &r->query->class, out);
        add_meaning(near, "\n      ", out);
        (void)mf_buf_adds(out, "\n");
    }
    if (top > 0 && (int64_t)n > top)
        (void)mf_buf_addf(out, "  … and %" PRId64 " more (--top 0)\n", (int64_t)n - top);
}

/* Returns the number of lines of the table that could not be read. */
static size_t count_unread(const struct mf_table *table)
{
    int64_t last = 0;
    size_t n = 0;

    for (size_t i = 0; i < table->n_problems; i++) {
        const struct mf_problem *p = &table->problems[i];

        if (p->severity != MF_ERROR || p->line == last)
            continue;
        last = p->line;
        n++;
    }
    return n;
}

/* Appends notes: rows that cannot be read, and rows without a pipeline, which libfmoe refuses. */
static void add_notes(const struct mf_coverage_report *r, struct mf_buf *out)
{
    size_t n_without = 0, n_unread = 0;

    for (size_t i = 0; i < r->coverage->n_spans; i++) {
        const struct mf_table_row *row = r->coverage->spans[i].row;
        n_without += row && (!row->own[MF_OWN_PIPELINE] || !*row->own[MF_OWN_PIPELINE]);
    }
    for (size_t i = 0; i < r->query->n_tables; i++)
        n_unread += count_unread(r->query->tables[i]);
    if (n_unread > 0)
        (void)mf_buf_addf(out,
                          "\nnote: %zu row%s of the tables cannot be read and may be the missing ones; run "
                          "moefarm csv check\n",
                          n_unread, plural((int64_t)n_unread));
    if (r->query->rules != MF_LOOKUP_AITER && n_without > 0)
        (void)mf_buf_adds(
            out, "\nnote: the rows have no pipeline column; libfmoe refuses such a table, export it with "
                 "consumer=moefarm\n");
}

void mf_coverage_print(const struct mf_coverage_report *r, int64_t top, struct mf_buf *out)
{
    add_query(r, out);
    (void)mf_buf_adds(out, "\n");
    mf_coverage_headline(r, out);
    add_spans(r, out);
    add_holes(r, out);
    add_near_misses(r, top, out);
    add_notes(r, out);
}
