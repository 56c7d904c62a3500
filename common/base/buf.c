#include "common/base/buf.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data of buffers without an allocation. Never written. */
static char empty_data[1];

void mf_buf_init(struct mf_buf *b, size_t max)
{
    *b = (struct mf_buf){.data = empty_data, .max = max < SIZE_MAX ? max : SIZE_MAX - 1};
}

void mf_buf_release(struct mf_buf *b)
{
    if (b->cap > 0)
        free(b->data);
    mf_buf_init(b, b->max);
}

void mf_buf_clear(struct mf_buf *b)
{
    b->len = 0;
    b->error = 0;
    if (b->cap > 0)
        b->data[0] = '\0';
}

/* Makes room for `extra` bytes and the terminator. b->cap includes the terminator, so b->cap is 0 (no
 * allocation) or at most b->max + 1. */
static int reserve(struct mf_buf *b, size_t extra)
{
    if (b->error < 0)
        return b->error;
    if (b->cap > 0 && extra < b->cap - b->len)
        return 0;
    if (extra > b->max - b->len)
        return b->error = -EFBIG;

    size_t need = b->len + extra + 1;
    size_t cap = b->cap > 0 ? b->cap : 128;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap > b->max + 1)
        cap = b->max + 1;
    char *data = realloc(b->cap > 0 ? b->data : NULL, cap);
    if (!data)
        return b->error = -ENOMEM;
    b->data = data;
    b->cap = cap;
    b->data[b->len] = '\0';
    return 0;
}

int mf_buf_add(struct mf_buf *b, const void *data, size_t len)
{
    int r = reserve(b, len);
    if (r < 0)
        return r;
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int mf_buf_adds(struct mf_buf *b, const char *text)
{
    return mf_buf_add(b, text, strlen(text));
}

int mf_buf_addf(struct mf_buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int r = mf_buf_addv(b, format, args);
    va_end(args);
    return r;
}

int mf_buf_addv(struct mf_buf *b, const char *format, va_list args)
{
    if (b->error < 0)
        return b->error;

    /* Most appends fit into the existing allocation and are formatted once. */
    size_t room = b->cap > 0 ? b->cap - b->len : 0;
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(room > 0 ? b->data + b->len : NULL, room, format, args);
    int r = n < 0 ? (b->error = -EFBIG) : 0;
    if (n >= 0 && (size_t)n < room) {
        b->len += (size_t)n;
    } else if (n >= 0) {
        r = reserve(b, (size_t)n);
        if (r == 0) {
            (void)vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
            b->len += (size_t)n;
        }
    }
    va_end(again);
    /* Restore the terminator, which was overwritten by output that did not fit. */
    if (r < 0 && b->cap > 0)
        b->data[b->len] = '\0';
    return r;
}

void mf_buf_truncate(struct mf_buf *b, size_t len)
{
    if (len >= b->len)
        return;
    b->len = len;
    b->data[len] = '\0';
}

void mf_buf_consume(struct mf_buf *b, size_t n)
{
    if (n >= b->len)
        n = b->len;
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

char *mf_buf_take(struct mf_buf *b)
{
    char *text = NULL;
    if (b->error == 0)
        text = b->cap > 0 ? b->data : calloc(1, 1);
    if (text && b->cap > 0)
        mf_buf_init(b, b->max);
    return text;
}
