/* What families offer and refuse, kept for a test to look through. */
#pragma once

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "kernels/core/family.h"

#define HEARD_MAX 512
#define HEARD_OFFER          \
    {                        \
        heard_step, heard_no \
    }

struct heard {
    struct mf_offer offer;
    const char *kernel; /* of which the noes are kept; NULL: of all */
    const char *deaf;   /* a family whose noes are not; NULL: none */
    size_t n, n_noes;
    struct {
        char family[32], name[MF_STEP_NAME_MAX];
        mf_ops covers;
        uint64_t workspace;
    } steps[HEARD_MAX];
    char rule[32], reason[MF_REASON_MAX]; /* of the last no */
};

static inline int heard_step(struct mf_offer *o, const struct mf_step *s)
{
    struct heard *h = (struct heard *)o;

    ck_assert_uint_lt(h->n, HEARD_MAX);
    (void)mf_copy(h->steps[h->n].family, sizeof(h->steps[0].family), s->family);
    (void)mf_copy(h->steps[h->n].name, sizeof(h->steps[0].name), s->name);
    h->steps[h->n].workspace = (uint64_t)s->workspace_bytes;
    h->steps[h->n++].covers = s->covers;
    return 0;
}

__attribute__((format(printf, 5, 6))) static inline int heard_no(struct mf_offer *o, const char *family,
                                                                 const char *kernel, const char *rule,
                                                                 const char *format, ...)
{
    struct heard *h = (struct heard *)o;
    va_list args;

    ck_assert(family && kernel && rule && *rule);
    if ((h->deaf && strcmp(family, h->deaf) == 0) || (h->kernel && strcmp(h->kernel, kernel) != 0))
        return 0;
    (void)mf_copy(h->rule, sizeof(h->rule), rule);
    va_start(args, format);
    ck_assert_int_gt(vsnprintf(h->reason, sizeof(h->reason), format, args), 0);
    va_end(args);
    h->n_noes++;
    return 0;
}

/* The name as it was heard; NULL: it was not. */
static inline const char *heard_of(const struct heard *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++) {
        if (strcmp(h->steps[i].name, name) == 0)
            return h->steps[i].name;
    }
    return NULL;
}
