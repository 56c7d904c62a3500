/* Counts the shapes that production looked up but did not find in its tuned table, and submits batches for
 * them. The request handlers of the writing thread call these functions within the iteration's transaction
 * (server/farm/farm.h). */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_miss.h"

struct mf_miss_row {
    struct mf_shape shape;
    int64_t count;
    char layout[MF_PATH_LAYOUT_MAX]; /* layout of production's weights; "": not given */
};

struct mf_miss_report {
    const char *source;
    struct mf_device_class class;
    const char *idempotency_key; /* "" for none */
    const char *body_hash;
    const struct mf_miss_row *rows;
    size_t n_rows;
    const cJSON *errors; /* errors of the invalid rows; copied into the response */
};
/* Adds the reported counts. *ret_receipt is the response's JSON, owned by the caller. Returns 1 and the
 * original response if the idempotency key was used with the same body, -EEXIST if it was used with another
 * body. */
int mf_farm_misses_add(struct mf_farm *f, const struct mf_miss_report *report, cJSON **ret_receipt);
/* Submits a batch of the untuned shapes for each class and layout. *ret is [{"batch", "class", "shapes"}],
 * owned by the caller. */
int mf_farm_misses_submit(struct mf_farm *f, const struct mf_miss_filter *filter, int priority, cJSON **ret);
