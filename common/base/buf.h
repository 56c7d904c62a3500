/* A growing byte buffer with a size limit.
 *
 * data is never NULL after init and data[len] is always 0, so `data` can be used as a C string. An append
 * that exceeds the limit or runs out of memory changes nothing and makes every later append fail (sticky
 * error), so a sequence of appends needs only one check of mf_buf_error(). */
#pragma once

#include <stdarg.h>
#include <stddef.h>

struct mf_buf {
    char *data;
    size_t len, cap, max;
    int error; /* 0, -ENOMEM or -EFBIG */
};

/* max: largest length in bytes, without the terminator. Allocates nothing. */
void mf_buf_init(struct mf_buf *b, size_t max);
void mf_buf_release(struct mf_buf *b);
/* Sets the length to 0 and clears the error; keeps the allocation. */
void mf_buf_clear(struct mf_buf *b);
int mf_buf_add(struct mf_buf *b, const void *data, size_t len);
/* Appends one byte. Inline, because most calls need no reallocation. */
static inline int mf_buf_addc(struct mf_buf *b, char c)
{
    if (b->error < 0 || b->cap < b->len + 2)
        return mf_buf_add(b, &c, 1);
    b->data[b->len++] = c;
    b->data[b->len] = '\0';
    return 0;
}
int mf_buf_adds(struct mf_buf *b, const char *text);
int mf_buf_addf(struct mf_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
int mf_buf_addv(struct mf_buf *b, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
/* Shortens the contents to len bytes, if they are longer. */
void mf_buf_truncate(struct mf_buf *b, size_t len);
/* Removes the first n bytes. */
void mf_buf_consume(struct mf_buf *b, size_t n);
static inline int mf_buf_error(const struct mf_buf *b)
{
    return b->error;
}
/* Returns the contents as a heap string that the caller frees, and empties b. Returns NULL if an append
 * failed. */
char *mf_buf_take(struct mf_buf *b);
