/* Whole text files; a failure fails the test. */
#pragma once

#include "common/base/cleanup.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns the text, which the caller frees. */
__attribute__((unused)) static char *text_file_read(const char *path)
{
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t size = 0;
    ck_assert_msg(f != NULL, "cannot read %s", path);
    if (getdelim(&text, &size, '\0', f) < 0)
        text[0] = '\0'; /* an empty file */
    return text;
}

__attribute__((unused)) static void text_file_write(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    ck_assert_msg(f != NULL, "cannot write %s", path);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}
