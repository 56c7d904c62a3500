/* Which token counts of a layer a set of tuned tables serves: production's look-up, replayed over every count from 1 to the last
 * that has a bucket of its own; and which rows would have served the others, were it not for a column or two. */
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

/* Calls with more tokens look up as this one does. */
#define MF_COVERAGE_TOKENS 131072

/* clang-format off */
#define MF_COVERED_MAP(X, P)                                                                   \
    X(P, HIT, "hit")       /* a row of its own bucket */                                       \
    X(P, TIER, "tier")     /* the row of the tier below, for want of one */                    \
    X(P, RANK, "rank")     /* another rank's row, for want of one */                           \
    X(P, OTHER, "other")   /* AITER only: a row of another activation function */              \
    X(P, HOLE, "hole")     /* no row */
/* clang-format on */
MF_NAMES_DECLARE(mf_covered, MF_COVERED_, MF_COVERED_MAP);

/* Token counts one after the other that ask for one key and get one answer. */
struct mf_coverage_span {
    int64_t first, last;
    struct mf_shape key; /* what is asked first: the bucket, with the activations that the rules choose */
    enum mf_covered what;
    const struct mf_table *table; /* NULL for a hole */
    const struct mf_table_row *row;
    /* Of a row of another activation: the layer's own row, which AITER does not get to; NULL: there is none either. */
    const struct mf_table_row *own;
};

/* What a row has otherwise than the key: the columns of mf_shape_columns but token by their number, and these. Bits. */
enum {
    MF_NEAR_FORM = 1u << MF_SHAPE_N_COLUMNS,
    MF_NEAR_CLASS = 2u << MF_SHAPE_N_COLUMNS,
    MF_NEAR_TAG = 4u << MF_SHAPE_N_COLUMNS,      /* its `_tag` takes it out of the look-up */
    MF_NEAR_SPELLING = 8u << MF_SHAPE_N_COLUMNS, /* AITER never matches its text */
};
#define MF_NEAR_COLUMNS (MF_SHAPE_N_COLUMNS + 4)
#define MF_NEAR_MOST    2 /* differences of a near miss */

/* Rows of one layer model and class, in one table, that differ from what is asked in the same one or two ways, and whose token
 * counts are asked for in vain. */
struct mf_coverage_near {
    const struct mf_table *table;
    const struct mf_table_row *row; /* the first of them; the others differ in token alone */
    int64_t last_line;
    size_t n_rows;
    unsigned differs;
    struct mf_shape key; /* that the first is near to */
    int64_t tokens;      /* counts that would be served if the rows had the key */
    const char
        *meaning; /* what the differences mean, as a sentence without its end; "": nothing that is known */
    bool set;     /* a server may well ask as the row says: --set */
};

struct mf_coverage {
    struct mf_coverage_span *spans; /* in the order of their counts; together all of them */
    size_t n_spans;
    struct mf_coverage_near
        *near; /* those that mean something first, by fewest differences, then those that would serve most */
    size_t n_near;
    int64_t tokens[MF_COVERED_N_]; /* how many counts */
};
#define MF_COVERAGE_INIT ((struct mf_coverage){0})
void mf_coverage_release(struct mf_coverage *c);

struct mf_coverage_question {
    const struct mf_table *const *tables; /* read together, in this order */
    size_t n_tables;
    struct mf_device_class class;
    struct mf_shape layer; /* its token count is passed over */
    enum mf_lookup rules;
};
/* The tables have to outlive the answer. -ENOMEM. */
int mf_coverage_find(const struct mf_coverage_question *q, struct mf_coverage *ret);

/* Whether every count is served by a row of its layer. */
bool mf_coverage_complete(const struct mf_coverage *c);
/* What a row runs: its pipeline, or its first kernel; "" where it names none. */
const char *mf_coverage_kernel(const struct mf_table_row *row);

#define MF_NEAR_VALUE_MAX MF_SHAPE_FORM_MAX
/* The name of difference i, 0 … MF_NEAR_COLUMNS - 1, and its text in the row and in the key or the class. */
const char *mf_near_name(int i);
void mf_near_values(const struct mf_coverage_near *n, const struct mf_device_class *class, int i,
                    char row[MF_NEAR_VALUE_MAX], char key[MF_NEAR_VALUE_MAX]);
/* Says what the differences mean: a shared expert that is fused in, another split of the ranks, … Fills in meaning and set. */
void mf_near_explain(struct mf_coverage_near *n);
