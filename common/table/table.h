/* A table of fused-MoE rows in memory: untuned_fmoe.csv (shapes) or tuned_fmoe.csv (shapes and what serves
 * them), of any header variant that ROCm/aiter ships.
 *
 * Reading is by column name. A header without gfx gets it from cu_num (mf_gfx_of_cu_num); without ksplit,
 * run_1stage, xbf16 or flat these are 0. Columns that are neither AITER's nor ours are kept, row by row, and
 * written back at the end, so that rewriting a file loses nothing.
 *
 * A row is one of:
 *   clean      in rows[], nothing to say about it
 *   warned     in rows[] and used; a problem with severity `warning` says what production makes of it
 *              (a time of 0.0, a token count that production never asks for, a tag, a dead spelling, …)
 *   unusable   not in rows[]; a problem with severity `error` names the field and the fix. The row is kept
 *              aside as a stray, and written back in its place with its cells under their own columns, for
 *              it is not ours to drop.
 *
 * Numbers remember their text: a cell that nobody changed is written back as it was read (`0.0%`, `0.00%`,
 * `0`, 13 decimals), a changed or new one in AITER's format. Keys are always written canonically.
 *
 * tuned_fhmoe.csv and tuned_grouped_fmoe.csv belong to other operators of AITER. Their rows are read as far
 * as the columns are shared, with a warning at line 1; mf_table_write and the merge refuse them.
 *
 * A table owns its texts, which live as long as it does; rows[] itself moves when a row is added. A table
 * belongs to one thread, or to many that only read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/names.h"
#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"

/* clang-format off */
/* AITER's fourteen result columns, in the order of its tuner. */
/* clang-format off */
#define MF_RESULT_MAP(X, P)        \
    X(P, BLOCK_M, "block_m")       \
    X(P, KSPLIT, "ksplit")         \
    X(P, US1, "us1")               \
    X(P, KERNEL1, "kernelName1")   \
    X(P, ERR1, "err1")             \
    X(P, US2, "us2")               \
    X(P, KERNEL2, "kernelName2")   \
    X(P, ERR2, "err2")             \
    X(P, US, "us")                 \
    X(P, RUN_1STAGE, "run_1stage") \
    X(P, XBF16, "xbf16")           \
    X(P, FLAT, "flat")             \
    X(P, TFLOPS, "tflops")         \
    X(P, BW, "bw")
/* clang-format on */
MF_NAMES_DECLARE(mf_result, MF_RESULT_, MF_RESULT_MAP);

/* Ours, appended behind them. All are texts without comma, quote or line end. */
/* clang-format off */
#define MF_OWN_MAP(X, P)                                                                  \
    X(P, PIPELINE, "pipeline")     /* "family:step|family:step", in the order they run */ \
    X(P, LAYOUT, "layout")         /* of the weights */                                   \
    X(P, MODEL, "model")           /* the device model (SKU) it was measured on */        \
    X(P, REVISION, "revision")     /* of the kernels */                                   \
    X(P, COMPILER, "compiler")                                                            \
    X(P, ROUTING, "routing")       /* the profile it was timed on */                      \
    X(P, SEED, "seed")                                                                    \
    X(P, N, "n")                   /* samples behind us */                                \
    X(P, MAD, "mad")               /* of those samples, in microseconds */                \
    X(P, PROVENANCE, "provenance") /* "moefarm:" and the method: "moefarm:race" */        \
    X(P, FORM, "form")             /* of the shape; written when a row has one. Part of the key */
/* clang-format on */
MF_NAMES_DECLARE(mf_own, MF_OWN_, MF_OWN_MAP);
/* clang-format on */

struct mf_table_row {
    struct mf_device_class class; /* empty and 0 in an untuned table that does not say */
    struct mf_shape shape;

    int32_t block_m; /* 1 for FLAT kernels */
    int32_t ksplit;
    double us1, us2, us;           /* µs */
    double err1, err2;             /* fractions: 0.009 is written "0.9%" */
    const char *kernel1, *kernel2; /* as spelled in the file; see mf_table_no_kernel */
    bool run_1stage, xbf16;
    int32_t flat;      /* 0 sorted, 1 FLAT, 2 emsort */
    double tflops, bw; /* TFLOP/s, GB/s: AITER's formulas, see table_formula.h */

    const char *tag;            /* `_tag`: NULL or "" for none */
    const char *own[MF_OWN_N_]; /* NULL for none */

    int64_t line; /* in the file it was read from; 0: not read from one */

    uint16_t misspelled; /* bit i: the cell of mf_shape_columns[i] was not read as the canonical text */

    /* Private: the texts of the numbers as read, and the cells of columns that nobody knows. */
    const char *text[MF_RESULT_N_];
    const char **other;
    size_t n_other;
};

enum mf_severity { MF_WARNING, MF_ERROR };

/* clang-format off */
#define MF_PROBLEM_MAP(X, P)                                                                                 \
    X(P, RAGGED, "ragged")         /* more or fewer cells than the header: error when it matters */          \
    X(P, MALFORMED, "malformed")   /* not CSV, or past a ceiling: error */                                   \
    X(P, VALUE, "value")           /* a cell is no value of its column: error */                             \
    X(P, RANGE, "range")           /* a value that no layer, device or result can have: error */             \
    X(P, MISSING, "missing")       /* an empty cell: error, or a warning where it is inferred */             \
    X(P, ZERO_TIME, "zero_time")   /* us is 0: warning */                                                    \
    X(P, COPIED_TIME, "copied_time") /* one us for several token counts of a layer model: warning */         \
    X(P, TAGGED, "tagged")         /* `_tag` is set, libfmoe passes the row over: warning */                 \
    X(P, SPELLING, "spelling")     /* tuned: production matches the canonical text only: warning */          \
    X(P, BUCKET, "bucket")         /* tuned: a token count that production never asks for: warning */        \
    X(P, DUPLICATE, "duplicate")   /* the key is in an earlier row too, both are kept: warning */            \
    X(P, OPERATOR, "operator")     /* the table belongs to another operator: warning at line 1 */            \
    X(P, CONFLICT, "conflict")     /* a mark of a merge that nobody finished: error */                       \
    X(P, MIXED, "mixed")           /* tuned: one flag as 1 and as True, no row is matched: warning */        \
    X(P, UNKNOWN_COLUMN, "unknown_column")   /* nobody knows it: warning at the header's line */             \
    X(P, MISSPELT_COLUMN, "misspelt_column") /* near to one of the shape that the header lacks: warning */   \
    /* What mf_tables_check (table_check.h) finds, which a reader does not look for */                       \
    X(P, SHADOWED, "shadowed")     /* AITER serves an earlier row of another activation */                   \
    X(P, BEYOND_PEAK, "beyond_peak") /* a time that the device cannot reach */                               \
    X(P, ERR_LIMIT, "err_limit")   /* err1 or err2 above the limit */                                        \
    X(P, KERNEL, "kernel")         /* a name that no family has */                                           \
    X(P, FOREIGN, "foreign")       /* a step of a family that is not in this build */                        \
    X(P, UNASKED, "unasked")       /* AITER computes another key for every call */                            \
    X(P, HOLE, "hole")             /* a token count that the ladder of a layer model lacks */
MF_NAMES_DECLARE(mf_problem_code, MF_PROBLEM_, MF_PROBLEM_MAP);
/* clang-format on */

struct mf_problem {
    enum mf_severity severity;
    enum mf_problem_code code;
    int64_t line;
    const char *column; /* "" when it is about the whole row */
    const char *reason; /* a sentence that names the field and the fix */
};

enum mf_table_op { MF_TABLE_FMOE, MF_TABLE_FHMOE, MF_TABLE_GROUPED };

/* Problems of one code beyond this many are counted, not kept. */
#define MF_TABLE_PROBLEMS_MAX 10000

struct mf_table_stray;
struct mf_table_arena;

struct mf_table {
    const char *name; /* of the file, for messages */
    enum mf_table_op op;
    bool tuned;
    struct mf_table_row *rows;
    size_t n_rows;
    struct mf_problem *problems;   /* in the order of lines */
    size_t n_problems;             /* kept */
    size_t n_errors, n_warnings;   /* counted; a row may have several */
    size_t n_of[MF_PROBLEM_N_][2]; /* counted, by code and severity */
    size_t n_strays;               /* rows that cannot be read */

    /* private */
    size_t rows_cap, problems_cap;
    char **header; /* names as read; "" for columns that are passed over */
    size_t n_header;
    const char **other; /* names of the columns that nobody knows */
    size_t n_other;
    struct mf_table_stray *strays;
    size_t strays_cap;
    uint32_t *slots; /* hash of the keys: row number + 1, 0 when free */
    size_t n_slots;
    struct mf_table_arena *arena;
};

/* An empty table. name is copied. */
int mf_table_new(const char *name, bool tuned, struct mf_table **ret);
struct mf_table *mf_table_free(struct mf_table *t);
MF_DEFINE_CLEANUP(struct mf_table *, mf_table_free);

/* Reads a whole file's text; dirty rows are problems of the table, not failures. -EBADMSG: the header itself
 * is unusable (empty, a column missing or named twice), and why says so; also with -EFBIG. */
int mf_table_read(const char *name, const char *text, size_t len, struct mf_table **ret,
                  char why[MF_REASON_MAX]);

/* What of a row is read. A cell beyond it is no problem, and its column may be missing: a time that is none says nothing of the
 * shape. Such a table is for its keys, and not to be written. */
enum mf_table_part {
    MF_TABLE_ROWS,   /* all of it */
    MF_TABLE_KEYS,   /* device class and shape */
    MF_TABLE_SHAPES, /* the shape */
};
/* As mf_table_read, of that part. */
int mf_table_read_part(const char *name, const char *text, size_t len, enum mf_table_part part,
                       struct mf_table **ret, char why[MF_REASON_MAX]);

/* Adds a copy of the row, texts included; line, misspelled, and what is private in the row, are ignored. -EINVAL: a text
 * of it could not be written, a number of it is not finite, or a tuned table's row has no device class. */
int mf_table_add(struct mf_table *t, const struct mf_table_row *row);
/* Puts a copy of the row in the place of row i; cells of unknown columns stay as they were. -EINVAL as
 * mf_table_add; also when the keys differ. */
int mf_table_replace(struct mf_table *t, size_t i, const struct mf_table_row *row);

/* Orders the rows by their key: gfx, cu_num, token and so on. Strays go behind them. -ENOMEM. */
int mf_table_sort(struct mf_table *t);

/* The row of that key, the first one when it is there twice; rows with a tag are passed over, as production
 * does. NULL: none. */
const struct mf_table_row *mf_table_find(const struct mf_table *t, const struct mf_device_class *class,
                                         const struct mf_shape *shape);

#define MF_TABLE_KEY_MAX (MF_SHAPE_TEXT_MAX + MF_DEVICE_CLASS_TEXT_MAX)
/* "gfx942,304,512,6144,…,1,0": the fourteen key values, canonical. */
void mf_table_key(const struct mf_table_row *row, char buf[MF_TABLE_KEY_MAX]);
bool mf_table_key_equal(const struct mf_table_row *a, const struct mf_table_row *b);

/* Two rows of one key (and one tag). AITER refuses to load a set of files that has such a pair. */
struct mf_table_clash {
    const struct mf_table *table_a, *table_b;
    const struct mf_table_row *a, *b; /* a comes first in the order of the tables and their rows */
};
/* Every row that repeats the key of an earlier one, within a table or across them. The caller frees *ret,
 * which is NULL for none. */
int mf_table_clashes(const struct mf_table *const *tables, size_t n, struct mf_table_clash **ret,
                     size_t *ret_n);

/* True for the spellings of "no kernel": NULL, "", "None", "Null", "nan". */
bool mf_table_no_kernel(const char *name);

enum mf_table_columns {
    MF_TABLE_ALL,   /* AITER's, `_tag` when a row has one, ours when a row has any, then unknown ones */
    MF_TABLE_AITER, /* AITER's 28 (12 when untuned) and nothing else; rows with a tag are left out */
};
/* Appends the table: always a header, "\n", rows and strays in their order. An untuned table has the twelve
 * shape columns, with gfx and cu_num in front when a row says them. -ENOTSUP: another operator's table;
 * -EINVAL: a cell that cannot be written; -EBADMSG: a stray with more cells than the header has names. Each
 * with why. MF_TABLE_AITER leaves strays out. */
int mf_table_write(const struct mf_table *t, enum mf_table_columns columns, struct mf_buf *out,
                   char why[MF_REASON_MAX]);
