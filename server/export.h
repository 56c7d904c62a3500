/* The tuned table out of the store: which rows, for whom, and why a row is left out.
 *
 * The same configs give the same bytes: there is no time of day in it, and the order is by key. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/table.h"
#include "server/store_export.h"

enum mf_consumer { MF_CONSUMER_MOEFARM, MF_CONSUMER_AITER };

struct mf_export_options {
    struct mf_export_filter filter;
    bool simulated;            /* rows of simulated devices too */
    enum mf_consumer consumer; /* aiter: only rows whose every kernel AITER dispatches by its name */
};

/* *ret_left_out: array of {class, model, shape, us, reason}. The caller frees both. */
int mf_export(struct mf_store *s, const struct mf_export_options *o, struct mf_table **ret,
              cJSON **ret_left_out);
