/* Parses a table from a string. */
#pragma once

#include "common/table/table.h"

#include <check.h>
#include <string.h>

/* Parses a table from a text and returns it; the caller frees it. Fails the test if the text cannot be
 * parsed. name: file name in messages. */
static inline struct mf_table *read_text(const char *name, const char *text)
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_read(name, text, strlen(text), &t, why) == 0, "%s", why);
    return t;
}
