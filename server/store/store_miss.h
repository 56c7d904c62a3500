/* Misses: production lookups of a device class that found no row (schema.sql: miss). */
#pragma once

#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "server/store/store_read.h"

#define MF_MISSES_MAX       20000 /* maximum stored misses; further misses are reported as left_out */
#define MF_MISS_SOURCES_MAX 32    /* maximum distinct sources stored per miss */
#define MF_MISS_REPORTS_MAX 10000 /* maximum stored receipts */
#define MF_MISS_REPORT_ROWS 4096
#define MF_MISS_SOURCE_MAX  128

/* open ─submitted─► tuning ─task done─► tuned; tuning ─task failed or cancelled─► failed */
/* clang-format off */
#define MF_MISS_MAP(X, P)   \
    X(P, OPEN, "open")      \
    X(P, TUNING, "tuning")  \
    X(P, TUNED, "tuned")    \
    X(P, FAILED, "failed")
/* clang-format on */
MF_NAMES_DECLARE(mf_miss_state, MF_MISS_, MF_MISS_MAP);

/* See mf_store_find_receipt. */
int mf_store_miss_find_receipt(struct mf_store *s, const char *key, const char *body_hash,
                               cJSON **ret_receipt);
/* Stores the receipt and deletes all receipts except the latest MF_MISS_REPORTS_MAX. */
int mf_store_miss_add_receipt(struct mf_store *s, const char *key, const char *body_hash, const char *receipt,
                              int64_t now_ms);

struct mf_miss {
    const struct mf_device_class *class;
    const char *row; /* row text of the shape */
    int64_t count;
    const char *layout; /* "": not reported */
    const char *source;
    int64_t at_ms;
};
/* Adds miss->count lookups to the miss. Creates a missing miss only if room is true. Returns 1 if the miss
 * existed, 2 if it is new, 0 if it was not stored because room is false. */
int mf_store_miss_add(struct mf_store *s, const struct mf_miss *miss, bool room, enum mf_miss_state *ret);
int mf_store_misses_count(struct mf_store *s, int64_t *ret);
/* Deletes the misses that are tuned. Returns their number. */
int mf_store_misses_delete_tuned(struct mf_store *s);

struct mf_miss_filter {
    const struct mf_device_class *class; /* NULL: any */
    int64_t min_count;
    bool failed; /* include misses whose task failed or was cancelled */
};
/* Lists the misses to tune, ordered by class and layout, most frequent first. */
typedef int (*mf_miss_fn)(const struct mf_device_class *class, const char *row, const char *layout,
                          void *data);
int mf_store_misses_open(struct mf_store *s, const struct mf_miss_filter *filter, mf_miss_fn each,
                         void *data);

/* Lists misses, most frequent first. class and state may be NULL. */
int mf_read_misses(struct mf_store *s, const struct mf_device_class *class, const char *state,
                   const struct mf_page *page, struct mf_list *ret);
