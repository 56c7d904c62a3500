/* Finds which token counts of a layer a set of tuned tables serves. Replays production's look-up for every
 * token count from 1 to MF_COVERAGE_TOKENS. Also finds near misses, which are rows that differ from the key
 * in only one or two columns. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/device_class.h"
#include "common/moe/production_lookup.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"
#include "common/table/table.h"

/* Token counts above this one have the same key as this one. */
#define MF_COVERAGE_TOKENS 131072

/* clang-format off */
#define MF_COVERED_MAP(X, P)                                                                   \
    X(P, HIT, "hit")       /* a row of the count's own bucket */                                       \
    X(P, TIER, "tier")     /* no such row: the row of the tier below */                    \
    X(P, RANK, "rank")     /* no such row: a row of another rank */                           \
    X(P, OTHER, "other")   /* AITER only: a row of another activation function */              \
    X(P, HOLE, "hole")     /* no row */
/* clang-format on */
MF_NAMES_DECLARE(mf_covered, MF_COVERED_, MF_COVERED_MAP);

/* Consecutive token counts with the same key and the same result. */
struct mf_coverage_span {
    int64_t first, last;
    /* the key that the look-up tries first: it has the token bucket and activation format that the rules
     * choose */
    struct mf_shape key;
    enum mf_covered result;
    const struct mf_table *table; /* NULL for HOLE */
    const struct mf_table_row *row;
    /* For OTHER: a row with the layer's own activation function. AITER's look-up does not reach it. NULL if
     * there is no such row. */
    const struct mf_table_row *own;
};

/* Bits for the columns in which a row differs from the key. Column i of mf_shape_columns has bit 1 << i (a
 * near miss never differs in `token`). The bits below are for differences in other properties. */
enum {
    MF_NEAR_FORM = 1u << MF_SHAPE_N_COLUMNS,
    MF_NEAR_CLASS = 2u << MF_SHAPE_N_COLUMNS,
    MF_NEAR_TAG = 4u << MF_SHAPE_N_COLUMNS,      /* the row's `_tag` excludes it from the look-up */
    MF_NEAR_SPELLING = 8u << MF_SHAPE_N_COLUMNS, /* the row is spelled in a way that AITER never matches */
};
#define MF_NEAR_COLUMNS (MF_SHAPE_N_COLUMNS + 4)
#define MF_NEAR_MOST    2 /* maximum differences of a near miss */

/* Group of near misses: rows of one layer model, class and table that differ from the key in the same one or
 * two columns. The look-ups of the rows' token counts find no row. */
struct mf_coverage_near {
    const struct mf_table *table;
    const struct mf_table_row *row; /* first row of the group; the other rows differ from it only in token */
    int64_t last_line;
    size_t n_rows;
    unsigned differs;
    struct mf_shape key; /* the key that `row` nearly matches */
    int64_t tokens;      /* number of token counts that would be served if the rows matched */
    const char *meaning; /* explanation of the differences, without a full stop; "" if unknown */
    bool suggest_set;    /* true: suggest --set, because a server may use the row's values */
};

struct mf_coverage {
    struct mf_coverage_span *spans; /* ordered by token count; together they cover every count */
    size_t n_spans;
    /* sorted: groups with an explanation first, then groups with fewer differences, then groups with more
     * tokens */
    struct mf_coverage_near *near;
    size_t n_near;
    int64_t tokens[MF_COVERED_N_]; /* number of token counts by result of the look-up */
};
#define MF_COVERAGE_INIT ((struct mf_coverage){0})
void mf_coverage_release(struct mf_coverage *c);

struct mf_coverage_query {
    const struct mf_table *const *tables; /* read as one set, in this order */
    size_t n_tables;
    struct mf_device_class class;
    struct mf_shape layer; /* the layer; its token count is ignored */
    enum mf_lookup rules;
    const struct mf_production_env *env; /* AITER's environment variables; NULL: they are unset */
};
/* The tables must outlive *ret. Returns 0 or -ENOMEM. */
int mf_coverage_find(const struct mf_coverage_query *q, struct mf_coverage *ret);

/* Returns true if every token count is served by a row of the layer. */
bool mf_coverage_complete(const struct mf_coverage *c);
/* Returns the row's pipeline, or else its first kernel. Returns "" if the row names neither. */
const char *mf_coverage_kernel(const struct mf_table_row *row);

#define MF_NEAR_VALUE_MAX MF_SHAPE_FORM_MAX
/* mf_near_name returns the name of difference i, from 0 to MF_NEAR_COLUMNS - 1. mf_near_values prints two
 * values of difference i: the value in the row and the value in the key or class. */
const char *mf_near_name(int i);
void mf_near_values(const struct mf_coverage_near *n, const struct mf_device_class *class, int i,
                    char row[MF_NEAR_VALUE_MAX], char key[MF_NEAR_VALUE_MAX]);
/* Sets meaning and suggest_set, for example for a fused shared expert or another split over ranks. */
void mf_near_explain(struct mf_coverage_near *n);
