/* A table out of the text of a test. */
#pragma once

#include "common/table/table.h"

#include <check.h>
#include <string.h>

/* The caller owns it; the test fails when it is no table at all. name: what its problems call it. */
static inline struct mf_table *read_text(const char *name, const char *text)
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_read(name, text, strlen(text), &t, why) == 0, "%s", why);
    return t;
}
