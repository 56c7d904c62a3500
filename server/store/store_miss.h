/* The store of what production missed: look-ups of a device class that found no row (schema.sql: miss). */
#pragma once

#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "server/store/store_read.h"

#define MF_MISSES_MAX       20000 /* that are kept; more are counted as left out */
#define MF_MISS_SOURCES_MAX 32    /* that are told apart of one of them */
#define MF_MISS_REPORTS_MAX 10000 /* whose answers are kept */
#define MF_MISS_REPORT_ROWS 4096
#define MF_MISS_SOURCE_MAX  128

/* open ─submitted─► tuning ─its task is done─► tuned, ─its task failed or was cancelled─► failed */
/* clang-format off */
#define MF_MISS_MAP(X, P)   \
    X(P, OPEN, "open")      \
    X(P, TUNING, "tuning")  \
    X(P, TUNED, "tuned")    \
    X(P, FAILED, "failed")
/* clang-format on */
MF_NAMES_DECLARE(mf_miss_state, MF_MISS_, MF_MISS_MAP);

/* As mf_store_receipt. */
int mf_store_miss_known(struct mf_store *s, const char *key, const char *body_hash, cJSON **ret_receipt);
/* Keeps the answer, and only the latest MF_MISS_REPORTS_MAX. */
int mf_store_miss_receipt(struct mf_store *s, const char *key, const char *body_hash, const char *receipt,
                          int64_t now_ms);

struct mf_miss {
    const struct mf_device_class *class;
    const char *row; /* of the shape */
    int64_t count;
    const char *layout; /* "": not said */
    const char *source;
    int64_t at_ms;
};
/* Counts it; it is made when `room`. 1: it was there; 2: it is new; 0: it is not there, and there is no room. */
int mf_store_miss_add(struct mf_store *s, const struct mf_miss *miss, bool room, enum mf_miss_state *ret);
int mf_store_misses_count(struct mf_store *s, int64_t *ret);
/* Forgets those that are tuned. How many. */
int mf_store_misses_forget_tuned(struct mf_store *s);

struct mf_miss_filter {
    const struct mf_device_class *class; /* NULL: any */
    int64_t min_count;
    bool failed; /* those whose task failed or was cancelled too */
};
/* What is to be tuned, class by class and layout by layout, most missed first. */
typedef int (*mf_miss_each)(const struct mf_device_class *class, const char *row, const char *layout,
                            void *data);
int mf_store_misses_open(struct mf_store *s, const struct mf_miss_filter *filter, mf_miss_each each,
                         void *data);

/* Most missed first; class and state may be NULL. */
int mf_read_misses(struct mf_store *s, const struct mf_device_class *class, const char *state,
                   const struct mf_page *page, struct mf_list *ret);
