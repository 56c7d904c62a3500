/* What is wrong with tables that are read together, beyond what reading each of them tells.
 *
 * One list holds all: mf_tables_check adds to the problems of each table (table.h), whose order of lines it keeps. A row
 * that it speaks of stays in use; what the reader could not use it does not see. It looks at tuned tables of this operator;
 * of others only the reader's problems stand.
 *
 *   duplicate    the key is in an earlier table too (within one table the reader tells)
 *   shadowed     AITER's look-up ignores the activation, and meets an earlier row of another one first: of rows without a
 *                `pipeline`, which AITER serves (ROCm/aiter, fused_moe.py)
 *   beyond_peak  more arithmetic a second than the device class can do, or more bytes by a tenth (device_peak.h); bytes are
 *                those that the layer must move when tokens spread evenly, less what its caches hold. Not of rows whose class nobody knows
 *   err_limit    err1 or err2 above the limit
 *   kernel,      what the caller's `name` says
 *   foreign
 *   unasked      AITER chooses the type of the activations itself, and no choice of its makes this key (production_key.h)
 *   hole         a token count that production asks for, between two that a layer model has
 *
 * The order of the tables is the order in which production reads them: of two rows the later one is told. */
#pragma once

#include <stdbool.h>

#include "common/table/table.h"

/* The limit of AITER's own test of its tables (ROCm/aiter, op_tests: test_csv_validation). */
#define MF_CHECK_ERR_RATIO 0.2

struct mf_check_name {
    enum mf_problem_code code; /* MF_PROBLEM_KERNEL or MF_PROBLEM_FOREIGN */
    const char *column;
    char reason[MF_REASON_MAX];
};

struct mf_check_options {
    double err_ratio;
    /* Is something wrong with a kernel's name in the row? Only who has the kernels can say; NULL: nobody asks. */
    bool (*name)(const struct mf_table_row *row, struct mf_check_name *ret);
};

/* -ENOMEM: what was told so far stays. */
int mf_tables_check(struct mf_table *const *tables, size_t n, const struct mf_check_options *options);

/* An empty table in the place of a file that is none: why is its one problem, at line 1. */
int mf_table_unreadable(const char *name, const char *why, struct mf_table **ret);

/* Of a table of another operator only what is no matter of columns: its values are not ours to judge. */
bool mf_check_tells(const struct mf_table *t, enum mf_problem_code code);
/* How bad a finding is to who deploys the table: an error makes production fail, serve something else, or trust a number
 * that is none. `as_read` is the reader's severity, which says whether the row can be used. */
enum mf_severity mf_check_severity(enum mf_problem_code code, enum mf_severity as_read);
/* What the code stands for, in a few words. */
const char *mf_check_meaning(enum mf_problem_code code);
