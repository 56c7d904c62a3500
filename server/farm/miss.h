/* What the farm does with what production missed; called by request handlers of the writing thread, as server/farm/farm.h. */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_miss.h"

struct mf_miss_row {
    struct mf_shape shape;
    int64_t count;
    char layout[MF_PATH_LAYOUT_MAX]; /* that its weights lie in; "": it is not said */
};

struct mf_miss_report {
    const char *source;
    struct mf_device_class class;
    const char *idempotency_key; /* "" for none */
    const char *body_hash;
    const struct mf_miss_row *rows;
    size_t n_rows;
    const cJSON *errors; /* of the bad rows; goes into the answer */
};
/* Counts them. *ret_receipt is the answer's JSON, the caller's. 1: the key was used before with the same body, and this is
 * the answer given then. -EEXIST: the key was used with another body. */
int mf_farm_misses_take(struct mf_farm *f, const struct mf_miss_report *report, cJSON **ret_receipt);
/* A batch for each class of what is not tuned. *ret: [{"batch", "class", "shapes"}], the caller's. */
int mf_farm_misses_submit(struct mf_farm *f, const struct mf_miss_filter *filter, int priority, cJSON **ret);
