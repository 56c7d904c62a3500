#include "cli/support/plain_output.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/durable_file.h"
#include "common/base/text.h"

#define CHARACTER_MAX 4 /* bytes of a UTF-8 character */

struct filter {
    int fd;
    char rest[CHARACTER_MAX]; /* incomplete character at the end of the last write */
    size_t n_rest;
};

static bool is_control(const unsigned char *p, size_t n)
{
    return n == 1 ? (*p < ' ' && *p != '\n' && *p != '\t') || *p == 0x7f : *p == 0xc2 && p[1] < 0xa0;
}

/* Number of bytes of the character that begins with this byte; 1 for other bytes. */
static size_t length_from(unsigned char first)
{
    return first > 0xf4 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
}

size_t mf_plain_text(const char *text, size_t len, char *out)
{
    size_t i = 0;

    while (i < len) {
        const unsigned char *p = (const unsigned char *)text + i;
        size_t n = mf_utf8_length(p, len - i);

        if (n == 0 && length_from(*p) > len - i)
            break;
        if (n == 0 || is_control(p, n))
            memset(out + i, '?', n ? n : 1);
        else
            memcpy(out + i, p, n);
        i += n ? n : 1;
    }
    return i;
}

static ssize_t filter_write(void *cookie, const char *text, size_t len)
{
    struct filter *f = cookie;
    char piece[4096 + CHARACTER_MAX], plain[sizeof(piece)];

    for (size_t at = 0; at < len;) {
        size_t n = MF_MIN(len - at, (size_t)4096);

        memcpy(piece, f->rest, f->n_rest);
        memcpy(piece + f->n_rest, text + at, n);
        at += n;
        n += f->n_rest;
        size_t used = mf_plain_text(piece, n, plain);
        f->n_rest = n - used;
        memcpy(f->rest, piece + used, f->n_rest);
        int r = mf_write_all(f->fd, plain, used);
        if (r < 0) {
            errno = -r;
            return 0;
        }
    }
    return (ssize_t)len;
}

static FILE *filter_open(struct filter *f, int fd, int buffering)
{
    f->fd = fd;
    FILE *stream = fopencookie(f, "w", (cookie_io_functions_t){.write = filter_write});
    if (stream)
        (void)setvbuf(stream, NULL, buffering, 0);
    return stream;
}

int mf_plain_output_start(void)
{
    static struct filter out, err;
    FILE *new_out = filter_open(&out, STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    FILE *new_err = filter_open(&err, STDERR_FILENO, _IONBF);

    if (!new_out || !new_err)
        return -ENOMEM;
    stdout = new_out; /* glibc allows it */
    stderr = new_err;
    return 0;
}

void mf_plain_output_rewind(size_t n)
{
    char text[48];

    (void)fflush(stdout);
    mf_format(text, sizeof(text), "\033[%zuA\r\033[J", n);
    (void)mf_write_all(STDOUT_FILENO, text, strlen(text));
}
