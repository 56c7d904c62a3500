/* Position and size of a list page. Lists are paged by key, not by offset: the cursor holds the sort key of
 * the last row returned, so rows added or removed between requests neither repeat nor hide other rows.
 *
 * Lists are ordered by up to three keys: a group, a number and the row id, which makes the order total. The
 * text form "group.number.id" (hexadecimal) is opaque to clients. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MF_PAGE_LIMIT_DEFAULT 100
#define MF_PAGE_LIMIT_MAX     1000
#define MF_CURSOR_TEXT_MAX    52

struct mf_page {
    int limit;
    bool from; /* false: first page; the keys below are then 0 */
    int64_t group;
    double number;
    int64_t id;
};

void mf_cursor_print(int64_t group, double number, int64_t id, char buf[MF_CURSOR_TEXT_MAX]);
/* Sets `from` and the keys. Returns -EINVAL unless mf_cursor_print could have written the text. */
int mf_cursor_parse(const char *text, struct mf_page *ret);
