/* Builds a tuned table of moefarm row by row. */
#pragma once

#include <string.h>

#include "common/base/text.h"
#include "support/table_columns.h"
#include "support/text_file.h"

#define TABLE_HEADER TUNED_COLUMNS OWN_COLUMNS ",form\n"

/* Shared object that offers the steps of tests/support/kernels/rows_family.c, such as "rows:right". */
#define ROWS_SO MF_BINARY_DIR "/tests/rows.so"

/* Appends a row to the table in `text`. class: "cpu-znver4,2"; shape: the twelve columns of a shape; names:
 * steps as "family:step|family:step". */
static inline void add_row(char *text, size_t cap, const char *class, const char *shape, const char *us,
                           const char *names, const char *form)
{
    size_t len = strlen(text);

    mf_format(text + len, cap - len,
              "%s,%s,8,0,1.0,a,0.0%%,0.0,None,0.0%%,%s,1,0,0,1.0,2.0,%s,w1=row,cpu,r1,gcc,zipf:1.2,3,20,0.5,"
              "moefarm:race,%s\n",
              class, shape, us, names, form);
}

struct tuned_row {
    const char *shape, *us, *names; /* as of add_row */
};
/* The rows of a table, for write_rows. */
#define TUNED(...) ((const struct tuned_row[]){__VA_ARGS__, {NULL, NULL, NULL}})

/* Writes a table whose rows have one class. */
static inline void write_rows(const char *path, const char *class, const struct tuned_row *rows)
{
    char text[4096] = TABLE_HEADER;

    for (; rows->shape; rows++)
        add_row(text, sizeof(text), class, rows->shape, rows->us, rows->names, "");
    text_file_write(path, text);
}
