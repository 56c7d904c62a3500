/* Checks a set of tables that production loads together.
 *
 * mf_tables_check adds its findings to the problems of each table (table.h) and keeps them sorted by line.
 * The rows stay in use. Only rows of tuned fmoe tables that the reader accepted are checked.
 *
 *   duplicate    an earlier table has the same key (duplicates within a table are found by the reader)
 *   copied_time  rows of one layer model have the same time in several device classes or tables (copies
 *                within a table and class are found by the reader)
 *   shadowed     AITER's look-up ignores the activation and finds an earlier row with another activation
 *                (ROCm/aiter, fused_moe.py). Checked only for rows without `pipeline`, which AITER serves
 *   beyond_peak  the time implies more FLOP/s than the device class can reach, or more than 110 % of its
 *                memory bandwidth (device_peak.h). The bytes are those that the layer must read and write if
 *                tokens are spread evenly, minus the capacity of the caches. Not checked for unknown device
 *                classes
 *   err_limit    err1 or err2 is above the limit
 *   kernel,      the caller's `name` function reports a kernel name
 *   unlisted,
 *   foreign
 *   unreachable  AITER chooses the activation type itself, and no choice yields this key (production_key.h).
 *                The finding names the environment variable that would change the choice
 *   hole         a look-up bucket is missing between two token counts of a layer model
 *
 * The order of the tables is the order in which production reads them. Of two conflicting rows the later one
 * is reported. */
#pragma once

#include <stdbool.h>

#include "common/table/table.h"

/* Limit of AITER's own test of its tables (ROCm/aiter, op_tests: test_csv_validation). */
#define MF_CHECK_ERR_RATIO 0.2

struct mf_production_env;

struct mf_check_name {
    enum mf_problem_code code; /* MF_PROBLEM_KERNEL, MF_PROBLEM_UNLISTED or MF_PROBLEM_FOREIGN */
    const char *column;
    char reason[MF_REASON_MAX];
};

struct mf_check_options {
    double err_ratio;
    const struct mf_production_env *env; /* AITER's environment variables; NULL: they are unset */
    /* Returns true if a kernel name of the row is wrong, with the reason in *ret. `data` is name_data. If
     * `name` is NULL, kernel names are not checked. */
    bool (*name)(const struct mf_table_row *row, const void *data, struct mf_check_name *ret);
    const void *name_data;
};

/* Checks the tables and adds the findings to their problems. -ENOMEM: findings made before the failure stay
 * in the tables. */
int mf_tables_check(struct mf_table *const *tables, size_t n, const struct mf_check_options *options);

/* Creates an empty table for an unreadable file, with one problem: `why` at line 1. */
int mf_table_unreadable(const char *name, const char *why, struct mf_table **ret);

/* False if the problem is meaningless for the table because the table belongs to another operator, whose
 * tables have other columns. */
bool mf_check_applies(const struct mf_table *t, enum mf_problem_code code);
/* Returns the severity of a finding for a table in production use. MF_ERROR: production fails, serves another
 * row, or relies on an invalid number. as_read: the severity that the reader set; it tells whether the row is
 * usable. */
enum mf_severity mf_check_severity(enum mf_problem_code code, enum mf_severity as_read);
/* Short description of the code. */
const char *mf_check_meaning(enum mf_problem_code code);
