/* Where a page of a list starts and how long it is. Lists page by key, not by offset: the cursor holds the sort
 * key of the last row given, so rows that come and go in between neither repeat nor hide others.
 *
 * Every list is ordered by up to three keys: a group, a number, and the row's id, which makes it total. The
 * text form is opaque to clients ("g.d.i", each in hex). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MF_PAGE_LIMIT_DEFAULT 100
#define MF_PAGE_LIMIT_MAX     1000
#define MF_CURSOR_TEXT_MAX    52

struct mf_page {
    int limit;
    bool from; /* false: from the start; the keys below are then 0 */
    int64_t group;
    double number;
    int64_t id;
};

void mf_cursor_print(int64_t group, double number, int64_t id, char buf[MF_CURSOR_TEXT_MAX]);
/* Sets from and the keys. -EINVAL for a text that mf_cursor_print does not write. */
int mf_cursor_parse(const char *text, struct mf_page *ret);
