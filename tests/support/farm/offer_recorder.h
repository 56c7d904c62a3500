/* Records the steps that families offer, and the rejections with their reasons. */
#pragma once

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "kernels/core/family.h"

#define RECORDED_MAX 512
#define RECORDING_OFFER               \
    {                                 \
        record_step, record_rejection \
    }

struct offer_recorder {
    struct mf_offer offer;
    const char *kernel;         /* only rejections of this kernel are counted; NULL: of all kernels */
    const char *ignored_family; /* rejections of this family are not counted; NULL: of no family */
    size_t n, n_rejections;
    struct {
        char family[32], name[MF_STEP_NAME_MAX];
        mf_ops covers;
        uint64_t workspace;
    } steps[RECORDED_MAX];
    char rule[32], reason[MF_REASON_MAX]; /* rule and reason of the last rejection */
};

static inline int record_step(struct mf_offer *o, const struct mf_step *s)
{
    struct offer_recorder *h = (struct offer_recorder *)o;

    ck_assert_uint_lt(h->n, RECORDED_MAX);
    (void)mf_copy(h->steps[h->n].family, sizeof(h->steps[0].family), s->family);
    (void)mf_copy(h->steps[h->n].name, sizeof(h->steps[0].name), s->name);
    h->steps[h->n].workspace = (uint64_t)s->workspace_bytes;
    h->steps[h->n++].covers = s->covers;
    return 0;
}

__attribute__((format(printf, 5, 6))) static inline int record_rejection(struct mf_offer *o,
                                                                         const char *family,
                                                                         const char *kernel, const char *rule,
                                                                         const char *format, ...)
{
    struct offer_recorder *h = (struct offer_recorder *)o;
    va_list args;

    ck_assert(family && kernel && rule && *rule);
    if ((h->ignored_family && strcmp(family, h->ignored_family) == 0) ||
        (h->kernel && strcmp(h->kernel, kernel) != 0))
        return 0;
    (void)mf_copy(h->rule, sizeof(h->rule), rule);
    va_start(args, format);
    ck_assert_int_gt(vsnprintf(h->reason, sizeof(h->reason), format, args), 0);
    va_end(args);
    h->n_rejections++;
    return 0;
}

/* Returns the recorded name, or NULL if no step of this name was offered. */
static inline const char *find_recorded(const struct offer_recorder *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++) {
        if (strcmp(h->steps[i].name, name) == 0)
            return h->steps[i].name;
    }
    return NULL;
}
