/* A table of fused-MoE rows in memory: untuned_fmoe.csv (shapes) or tuned_fmoe.csv (shapes and their
 * kernels), with any header variant of ROCm/aiter.
 *
 * Columns are found by name. If the header has no gfx, it is inferred from cu_num (mf_gfx_of_cu_num). If the
 * header has no ksplit, run_1stage, xbf16 or flat, their value is 0. Columns that are neither AITER's nor
 * moefarm's are kept with each row and written back after the others, so that rewriting a file loses nothing.
 * Some of them are columns of a newer AITER, which are read (table_newer.c): gate_mode, swiglu_limit and bias
 * become the shape's form; q_dtype_a2, q_dtype_w2, q_type2, hidden_pad and intermediate_pad become the row's
 * variant. Both are parts of the key. A default value is the same key as a table without the column.
 *
 * A row is one of:
 *   clean      in rows[], without problems
 *   warned     in rows[] and used; a problem with severity `warning` describes how production treats it
 *              (a time of 0.0, a token count without bucket, a tag, a non-canonical spelling, …)
 *   stray      not in rows[], because it is unusable. A problem with severity `error` names the field and the
 *              fix. The row is written back at its position, with its cells under their own columns.
 *
 * Numbers keep their text: an unchanged number is written back as it was read (`0.0%`, `0.00%`, `0`, 13
 * decimals), and a changed or new number is written in AITER's format. Keys are always written in canonical
 * form.
 *
 * tuned_fhmoe.csv and tuned_grouped_fmoe.csv belong to other operators of AITER. Only the columns shared with
 * fmoe are read, with a warning at line 1; mf_table_write and mf_table_merge reject these tables.
 *
 * A table owns its strings, which live as long as the table. rows[] is reallocated when a row is added. A
 * table may be used by one thread, or by several threads that only read. */
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

/* moefarm's columns, appended after AITER's. All are text without comma, quote or line end. */
/* clang-format off */
#define MF_OWN_MAP(X, P)                                                               \
    X(P, PIPELINE, "pipeline")     /* "family:step|family:step", in execution order */ \
    X(P, LAYOUT, "layout")         /* weight layouts */                                \
    X(P, MODEL, "model")           /* device model (SKU) of the measurement */         \
    X(P, REVISION, "revision")     /* kernel revision */                               \
    X(P, COMPILER, "compiler")                                                         \
    X(P, ROUTING, "routing")       /* routing profile of the measurement */            \
    X(P, SEED, "seed")                                                                 \
    X(P, N, "n")                   /* number of samples of us */                       \
    X(P, MAD, "mad")               /* median absolute deviation of us, in µs */        \
    X(P, PROVENANCE, "provenance") /* "moefarm:METHOD", such as "moefarm:race" */      \
    X(P, FORM, "form")             /* form of the shape, part of the key; written only if a row has one */ \
    X(P, UNSTABLE, "unstable")     /* why no measurement of us was accepted; written only if a row has one */
/* clang-format on */
MF_NAMES_DECLARE(mf_own, MF_OWN_, MF_OWN_MAP);

struct mf_table_row {
    struct mf_device_class class; /* gfx is "" and cu_num is 0 if an untuned table has no class columns */
    struct mf_shape shape;

    int32_t block_m;               /* 1 for FLAT kernels */
    int32_t ksplit;                /* -1: as 0 (AITER's dispatcher) */
    double us1, us2, us;           /* µs; 0 if the cell of us is empty */
    double err1, err2;             /* fractions: 0.009 is written "0.9%" */
    const char *kernel1, *kernel2; /* spelled as in the file; see mf_table_no_kernel */
    bool run_1stage, xbf16;
    int32_t flat;      /* 0 sorted, 1 FLAT, 2 emsort */
    double tflops, bw; /* TFLOP/s, GB/s by AITER's formulas: see table_formula.h */

    const char *variant; /* rest of the key, from columns that the shape does not express; NULL for none */
    const char *tag;     /* `_tag`: NULL or "" for none */
    const char *own[MF_OWN_N_]; /* NULL for none */

    int64_t line; /* line in the file; 0: not read from a file */

    uint16_t misspelled; /* bit i is set if mf_shape_columns[i] was not spelled canonically */

    /* Private: the text of the numbers as read, and the cells of unknown columns. */
    const char *text[MF_RESULT_N_];
    const char **other;
    size_t n_other;
};

enum mf_severity { MF_WARNING, MF_ERROR };

/* clang-format off */
#define MF_PROBLEM_MAP(X, P)                                                                            \
    X(P, RAGGED, "ragged")         /* wrong number of cells (error if it affects a needed cell) */      \
    X(P, MALFORMED, "malformed")   /* not CSV, or a limit is exceeded (error) */                        \
    X(P, VALUE, "value")           /* the cell is invalid for its column (error) */                     \
    X(P, RANGE, "range")           /* the value is out of range (error) */                              \
    X(P, MISSING, "missing")       /* empty cell (error, or warning if the value is inferred) */        \
    X(P, ZERO_TIME, "zero_time")   /* us is 0 (warning) */                                              \
    X(P, NO_TIME, "no_time")       /* us is empty (warning) */                                          \
    X(P, COPIED_TIME, "copied_time") /* same us for several token counts or device classes (warning) */ \
    X(P, TAGGED, "tagged")         /* `_tag` is set, so libfmoe skips the row (warning) */              \
    X(P, SPELLING, "spelling")     /* tuned table: not spelled as production matches it (warning) */    \
    X(P, BUCKET, "bucket")         /* tuned table: the token count is not a look-up bucket (warning) */ \
    X(P, DUPLICATE, "duplicate")   /* earlier row with the same key; both are kept (warning) */         \
    X(P, OPERATOR, "operator")     /* the table belongs to another operator (warning at line 1) */      \
    X(P, CONFLICT, "conflict")     /* git conflict marker (error) */                                    \
    X(P, MIXED, "mixed")           /* tuned table: 1 and True mixed; no row matches (warning) */        \
    X(P, UNKNOWN_COLUMN, "unknown_column")   /* neither AITER's nor moefarm's (warning) */              \
    X(P, MISSPELT_COLUMN, "misspelt_column") /* similar to a missing shape column (warning) */          \
    /* Found by mf_tables_check (table_check.h), not by the reader */                                   \
    X(P, SHADOWED, "shadowed")     /* AITER serves an earlier row with another activation */            \
    X(P, BEYOND_PEAK, "beyond_peak") /* time below what the device can reach */                         \
    X(P, ERR_LIMIT, "err_limit")   /* err1 or err2 is above the limit */                                \
    X(P, KERNEL, "kernel")         /* unknown kernel name */                                            \
    X(P, UNLISTED, "unlisted")     /* a kernel name that this build's AITER lists lack */               \
    X(P, FOREIGN, "foreign")       /* a kernel family that this build lacks */                          \
    X(P, UNREACHABLE, "unreachable") /* no AITER call computes this key */                                \
    X(P, UNSTABLE, "unstable")     /* no measurement of us was accepted */                              \
    X(P, TOKEN_ORDER, "token_order") /* slower than a row with more tokens */                           \
    X(P, HOLE, "hole")             /* a token count between two rows of a layer model is missing */     \
    /* Only in configuration files of vLLM and SGLang (triton/triton_file.h) */                         \
    X(P, KEY_ORDER, "key_order")   /* token counts out of order (warning) */                            \
    X(P, IGNORED, "ignored")       /* a value that the kernel ignores (warning) */
MF_NAMES_DECLARE(mf_problem_code, MF_PROBLEM_, MF_PROBLEM_MAP);
/* clang-format on */

struct mf_problem {
    enum mf_severity severity;
    enum mf_problem_code code;
    int64_t line;
    const char *column; /* "" if the problem concerns the whole row */
    const char *reason; /* names the field and the fix */
};

/* MF_TABLE_TRITON: a configuration file of vLLM or SGLang (triton/triton_file.h). The table has only its
 * problems. */
enum mf_table_op { MF_TABLE_FMOE, MF_TABLE_FHMOE, MF_TABLE_GROUPED, MF_TABLE_TRITON };

/* Maximum number of stored problems per code; further problems are only counted. */
#define MF_TABLE_PROBLEMS_MAX 10000

struct mf_table_stray;
struct mf_table_arena;

struct mf_table {
    const char *name; /* file name, for messages */
    enum mf_table_op op;
    bool tuned;
    struct mf_table_row *rows;
    size_t n_rows;
    struct mf_problem *problems;   /* sorted by line */
    size_t n_problems;             /* number of stored problems */
    size_t n_errors, n_warnings;   /* totals; a row may have several problems */
    size_t n_of[MF_PROBLEM_N_][2]; /* totals by code and severity */
    size_t n_strays;               /* rows that cannot be read */

    /* private */
    size_t rows_cap, problems_cap;
    char **header; /* column names as read; "" for ignored columns */
    size_t n_header;
    const char **other; /* names of the unknown columns */
    size_t n_other;
    struct mf_table_stray *strays;
    size_t strays_cap;
    uint32_t *slots; /* hash table of the keys: row number + 1; 0: free */
    size_t n_slots;
    struct mf_table_arena *arena;
};

/* Creates an empty table. Copies name. */
int mf_table_new(const char *name, bool tuned, struct mf_table **ret);
struct mf_table *mf_table_free(struct mf_table *t);
MF_DEFINE_CLEANUP(struct mf_table *, mf_table_free);

/* Reads the text of a whole file. Invalid rows become problems of the table, not errors. -EBADMSG: the header
 * is empty, or a column is missing or duplicated. -EFBIG: a limit is exceeded. The reason is in why. */
int mf_table_read(const char *name, const char *text, size_t len, struct mf_table **ret,
                  char why[MF_REASON_MAX]);

/* Selects the part of each row that is read. Cells outside this part are not checked, and their columns may
 * be missing. A table that was read partially has only keys, so do not write it. */
enum mf_table_part {
    MF_TABLE_ROWS,   /* the whole row */
    MF_TABLE_KEYS,   /* device class and shape */
    MF_TABLE_SHAPES, /* shape only */
};
/* As mf_table_read, for one part. */
int mf_table_read_part(const char *name, const char *text, size_t len, enum mf_table_part part,
                       struct mf_table **ret, char why[MF_REASON_MAX]);

/* Adds a copy of the row and its strings. Ignores the row's line, its misspelled bits and its private
 * members. -EINVAL: a string cannot be written, a number is not finite, or a row of a tuned table has no
 * device class. */
int mf_table_add(struct mf_table *t, const struct mf_table_row *row);
/* Replaces row i with a copy of `row`, which must have the same key. The cells of unknown columns become
 * empty, except those that are part of the key. -EINVAL: the keys differ, or as for mf_table_add. */
int mf_table_replace(struct mf_table *t, size_t i, const struct mf_table_row *row);

/* Sorts the rows by key (gfx, cu_num, token, …) and moves strays to the end. -ENOMEM. */
int mf_table_sort(struct mf_table *t);

/* Returns the first row that has the key and no tag, as production does; NULL if no row matches. */
const struct mf_table_row *mf_table_find(const struct mf_table *t, const struct mf_device_class *class,
                                         const struct mf_shape *shape);

#define MF_TABLE_VARIANT_MAX 192
#define MF_TABLE_KEY_MAX     (MF_SHAPE_TEXT_MAX + MF_DEVICE_CLASS_TEXT_MAX + MF_TABLE_VARIANT_MAX)
/* Formats the fourteen key values in canonical form: "gfx942,304,512,6144,…,1,0". */
void mf_table_key(const struct mf_table_row *row, char buf[MF_TABLE_KEY_MAX]);
bool mf_table_key_equal(const struct mf_table_row *a, const struct mf_table_row *b);

/* Two rows with the same key and tag. AITER refuses to load a set of files that has such a pair. */
struct mf_table_clash {
    const struct mf_table *table_a, *table_b;
    const struct mf_table_row *a, *b; /* a precedes b in the order of tables and rows */
};
/* Finds every row with the key of an earlier row, within a table or across tables. The caller frees *ret.
 * *ret is NULL if there is no such row. */
int mf_table_clashes(const struct mf_table *const *tables, size_t n, struct mf_table_clash **ret,
                     size_t *ret_n);

/* True for all spellings of "no kernel": NULL, "", "None", "Null", "nan". */
bool mf_table_no_kernel(const char *name);

enum mf_table_columns {
    /* AITER's columns; `_tag` if any row has a tag; moefarm's columns if any row has values in them; unknown
     * columns */
    MF_TABLE_ALL,
    /* only AITER's 28 columns (in an untuned table, the 12 shape columns); rows with a tag are omitted */
    MF_TABLE_AITER,
};
/* Appends the table: header, then rows and strays in order, each ended by "\n". An untuned table has the
 * twelve shape columns, preceded by gfx and cu_num if a row has them. MF_TABLE_AITER omits strays. Errors,
 * with the reason in why: -ENOTSUP: the table belongs to another operator; -EINVAL: a cell cannot be written;
 * -EBADMSG: a stray has more cells than the header. */
int mf_table_write(const struct mf_table *t, enum mf_table_columns columns, struct mf_buf *out,
                   char why[MF_REASON_MAX]);
