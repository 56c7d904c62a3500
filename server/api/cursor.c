#include "server/api/cursor.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void mf_cursor_print(int64_t group, double number, int64_t id, char buf[MF_CURSOR_TEXT_MAX])
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    (void)snprintf(buf, MF_CURSOR_TEXT_MAX, "%" PRIx64 ".%" PRIx64 ".%" PRIx64, (uint64_t)group, bits,
                   (uint64_t)id);
}

/* Parses 1 to 16 lower-case hexadecimal digits, after which `end` must follow. Returns NULL on an error. */
static const char *read_hex(const char *p, char end, uint64_t *ret)
{
    uint64_t value = 0;
    int n = 0;
    for (; *p && *p != end; p++, n++) {
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
        if (digit < 0 || n == 16)
            return NULL;
        value = value << 4 | (uint64_t)digit;
    }
    if (n == 0 || *p != end)
        return NULL;
    *ret = value;
    return end ? p + 1 : p;
}

int mf_cursor_parse(const char *text, struct mf_page *ret)
{
    uint64_t keys[3];
    const char *p = read_hex(text, '.', &keys[0]);
    if (p)
        p = read_hex(p, '.', &keys[1]);
    if (p)
        p = read_hex(p, 0, &keys[2]);
    if (!p)
        return -EINVAL;
    double number;
    memcpy(&number, &keys[1], sizeof(number));
    if (!isfinite(number))
        return -EINVAL;
    ret->from = true;
    ret->group = (int64_t)keys[0];
    ret->number = number;
    ret->id = (int64_t)keys[2];
    return 0;
}
