#include "cli/coverage/coverage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_covered, MF_COVERED_, MF_COVERED_MAP)

void mf_coverage_release(struct mf_coverage *c)
{
    free(c->spans);
    free(c->near);
    *c = MF_COVERAGE_INIT;
}

bool mf_coverage_complete(const struct mf_coverage *c)
{
    return c->tokens[MF_COVERED_HOLE] == 0 && c->tokens[MF_COVERED_OTHER] == 0;
}

/* ---- replay of look-ups ---- */

static enum mf_covered classify(const struct mf_lookup_try *tries, const struct mf_lookup_found *found)
{
    const struct mf_shape *row = &found->row->shape, *key = &tries[found->attempt].key;

    if (row->act_type != key->act_type)
        return MF_COVERED_OTHER;
    if (key->token != tries[0].key.token)
        return MF_COVERED_TIER;
    return tries[found->attempt].any & MF_LOOKUP_ANY_RANK ? MF_COVERED_RANK : MF_COVERED_HIT;
}

/* Finds the row that matches the whole key, including the activation function, which AITER's dispatcher
 * ignores. */
static const struct mf_table_row *own_row(const struct mf_coverage_query *q, const struct mf_shape *key)
{
    for (size_t i = 0; i < q->n_tables; i++) {
        for (size_t j = 0; j < q->tables[i]->n_rows; j++) {
            const struct mf_table_row *row = &q->tables[i]->rows[j];
            const struct mf_lookup_try whole = {*key, MF_LOOKUP_ANY_FORM};

            if (mf_lookup_matches(&whole, &row->shape) && mf_device_class_equal(&row->class, &q->class))
                return row;
        }
    }
    return NULL;
}

static struct mf_coverage_span look_up(const struct mf_coverage_query *q, const struct mf_shape *call,
                                       const struct mf_lookup_try *tries)
{
    struct mf_coverage_span span = {
        .first = call->token, .last = call->token, .key = tries[0].key, .result = MF_COVERED_HOLE};
    struct mf_lookup_found found;

    if (mf_lookup_find(q->tables, q->n_tables, &q->class, call, q->rules, q->env, &found)) {
        span.table = found.table;
        span.row = found.row;
        span.result = classify(tries, &found);
    }
    if (span.result == MF_COVERED_OTHER)
        span.own = own_row(q, &tries[found.attempt].key);
    return span;
}

static int add_span(struct mf_coverage *c, size_t *cap, const struct mf_coverage_span *span)
{
    int r = mf_array_grow(&c->spans, c->n_spans, cap, sizeof(*c->spans));
    if (r < 0)
        return r;
    c->spans[c->n_spans++] = *span;
    return 0;
}

/* Replays the look-up for each token count. Token counts with the same first key get the same result, so the
 * tables are searched once per key. */
static int replay(const struct mf_coverage_query *q, struct mf_coverage *c)
{
    struct mf_lookup_try tries[MF_LOOKUP_TRIES_MAX];
    struct mf_shape call = q->layer;
    size_t cap = 0;

    for (call.token = 1; call.token <= MF_COVERAGE_TOKENS; call.token++) {
        struct mf_coverage_span *last = c->n_spans > 0 ? &c->spans[c->n_spans - 1] : NULL;

        (void)mf_lookup_tries(&call, q->rules, q->env, tries);
        if (last && mf_shape_equal(&last->key, &tries[0].key)) {
            last->last = call.token;
        } else {
            struct mf_coverage_span span = look_up(q, &call, tries);
            int r = add_span(c, &cap, &span);
            if (r < 0)
                return r;
        }
        c->tokens[c->spans[c->n_spans - 1].result]++;
    }
    return 0;
}

/* ---- near misses ---- */

static unsigned differences(const struct mf_coverage_query *q, const struct mf_table *table,
                            const struct mf_table_row *row, const struct mf_shape *key)
{
    char a[MF_SHAPE_FORM_MAX], b[MF_SHAPE_FORM_MAX];
    struct mf_shape shape = row->shape;
    unsigned differs = 0;

    if (shape.ep_experts > 0 && key->ep_experts > 0)
        shape.ep_first = key->ep_first; /* the look-up accepts a row of any expert-parallel rank */
    for (int i = 0; i <= MF_SHAPE_N_COLUMNS; i++) {
        const char *column = i < MF_SHAPE_N_COLUMNS ? mf_shape_columns[i] : MF_SHAPE_FORM;

        if (i == MF_SHAPE_N_COLUMNS && q->rules == MF_LOOKUP_AITER)
            break;
        (void)mf_shape_get(&shape, column, a, sizeof(a));
        (void)mf_shape_get(key, column, b, sizeof(b));
        if (strcmp(a, b) != 0)
            differs |= 1u << i;
    }
    if (!mf_device_class_equal(&row->class, &q->class))
        differs |= MF_NEAR_CLASS;
    if (!mf_lookup_considers(q->rules, table, row))
        differs |= row->tag && *row->tag ? MF_NEAR_TAG : MF_NEAR_SPELLING;
    return differs;
}

static bool is_same_near_miss(const struct mf_coverage_near *n, const struct mf_table *table,
                              const struct mf_table_row *row, unsigned differs, const struct mf_shape *key)
{
    return n->table == table && n->differs == differs &&
           mf_shape_same_layer_model(&n->row->shape, &row->shape) &&
           mf_device_class_equal(&n->row->class, &row->class) && mf_shape_same_layer_model(&n->key, key);
}

/* Returns the number of token counts that a row with the span's key would serve. Includes the token counts of
 * the tier above if that tier would fall back to this row. */
static int64_t would_serve(const struct mf_coverage *c, const struct mf_coverage_span *span)
{
    const struct mf_coverage_span *last = &c->spans[c->n_spans - 1];
    int64_t tokens = span->last - span->first + 1;

    return span + 1 == last && last->result == span->result ? tokens + 1 : tokens;
}

/* Records a row as a near miss of the span's key. If the row belongs to the group of an existing near miss,
 * extends that group. */
static int add_near(struct mf_coverage *c, size_t *cap, const struct mf_table *table,
                    const struct mf_table_row *row, unsigned differs, const struct mf_coverage_span *span)
{
    int64_t tokens = would_serve(c, span);
    struct mf_coverage_near *n = NULL;

    for (size_t i = 0; i < c->n_near && !n; i++) {
        if (is_same_near_miss(&c->near[i], table, row, differs, &span->key))
            n = &c->near[i];
    }
    if (n) {
        n->n_rows++;
        n->last_line = MF_MAX(n->last_line, row->line);
        n->tokens += tokens;
        return 0;
    }
    int r = mf_array_grow(&c->near, c->n_near, cap, sizeof(*c->near));
    if (r < 0)
        return r;
    c->near[c->n_near++] = (struct mf_coverage_near){.table = table,
                                                     .row = row,
                                                     .last_line = row->line,
                                                     .n_rows = 1,
                                                     .differs = differs,
                                                     .key = span->key,
                                                     .tokens = tokens};
    return 0;
}

static int near_of_span(const struct mf_coverage_query *q, const struct mf_coverage_span *span,
                        struct mf_coverage *c, size_t *cap)
{
    for (size_t i = 0; i < q->n_tables; i++) {
        for (size_t j = 0; j < q->tables[i]->n_rows; j++) {
            const struct mf_table_row *row = &q->tables[i]->rows[j];
            unsigned differs;
            int r;

            if (row->shape.token != span->key.token)
                continue;
            differs = differences(q, q->tables[i], row, &span->key);
            if (!differs || __builtin_popcount(differs) > MF_NEAR_MOST || row == span->row)
                continue;
            r = add_near(c, cap, q->tables[i], row, differs, span);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static int by_nearness(const void *a, const void *b)
{
    const struct mf_coverage_near *x = a, *y = b;
    int n = __builtin_popcount(x->differs) + (*x->meaning ? 0 : MF_NEAR_MOST);
    int m = __builtin_popcount(y->differs) + (*y->meaning ? 0 : MF_NEAR_MOST);

    if (n != m)
        return n - m;
    if (x->tokens != y->tokens)
        return x->tokens > y->tokens ? -1 : 1;
    return (x->row->line > y->row->line) - (x->row->line < y->row->line);
}

static bool is_missing(const struct mf_coverage_span *s)
{
    return s->result == MF_COVERED_HOLE || (s->result == MF_COVERED_OTHER && !s->own);
}

static int find_near(const struct mf_coverage_query *q, struct mf_coverage *c)
{
    size_t cap = 0;

    for (size_t i = 0; i < c->n_spans; i++) {
        const struct mf_coverage_span *span = &c->spans[i];
        int r = is_missing(span) ? near_of_span(q, span, c, &cap) : 0;
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < c->n_near; i++)
        mf_near_explain(&c->near[i]);
    if (c->n_near > 0)
        qsort(c->near, c->n_near, sizeof(*c->near), by_nearness);
    return 0;
}

int mf_coverage_find(const struct mf_coverage_query *q, struct mf_coverage *ret)
{
    struct mf_coverage c = MF_COVERAGE_INIT;
    int r = replay(q, &c);

    if (r == 0)
        r = find_near(q, &c);
    if (r < 0) {
        mf_coverage_release(&c);
        return r;
    }
    *ret = c;
    return 0;
}

const char *mf_coverage_kernel(const struct mf_table_row *row)
{
    const char *pipeline = row->own[MF_OWN_PIPELINE];

    if (pipeline && *pipeline)
        return pipeline;
    return mf_table_no_kernel(row->kernel1) ? "" : row->kernel1;
}
