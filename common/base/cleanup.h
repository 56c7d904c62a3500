/* Scope-bound cleanup as in systemd. Declare a variable with _cleanup_(x_freep); transfer its ownership with
 * MF_TAKE. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Defines x_freep() for `_cleanup_(x_freep) type x = NULL;`. free_fn must accept NULL. */
#define MF_DEFINE_CLEANUP(type, free_fn)   \
    static inline void free_fn##p(type *p) \
    {                                      \
        free_fn(*p);                       \
    }                                      \
    struct mf_cleanup_needs_a_semicolon

/* Returns the value of p and sets p to NULL, so that ownership moves to the caller. */
#define MF_TAKE(p)                 \
    ({                             \
        typeof(p) mf_taken_ = (p); \
        (p) = NULL;                \
        mf_taken_;                 \
    })

#define MF_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MF_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define MF_MAX(a, b)    ((a) > (b) ? (a) : (b))

static inline void mf_freep(void *p)
{
    free(*(void **)p);
}

/* Closes *fd and sets it to -1, because the kernel soon reuses the descriptor number for another file. */
static inline void mf_closep(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static inline void mf_fclosep(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}
