/* The tuned table out of the store: which rows, for whom, and why a row is left out.
 *
 * The same configs give the same bytes: there is no time of day in it, and the order is by key. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/table/table.h"
#include "server/store/store_export.h"

enum mf_consumer { MF_CONSUMER_MOEFARM, MF_CONSUMER_AITER };

/* Hears of each config that made it into the table, in the table's order; the row is as the table has it. */
typedef int (*mf_export_taken)(const struct mf_export_config *c, const struct mf_table_row *row, void *data);

struct mf_export_options {
    struct mf_export_filter filter;
    bool simulated;            /* rows of simulated devices too */
    enum mf_consumer consumer; /* aiter: only rows whose every kernel AITER dispatches by its name */
    mf_export_taken taken;     /* NULL: nobody */
    void *data;                /* its */
};

/* *ret_left_out: array of {class, model, shape, us, reason}. The caller frees both. */
int mf_export(struct mf_store *s, const struct mf_export_options *o, struct mf_table **ret,
              cJSON **ret_left_out);
/* "family:step|family:step", the column `pipeline`. */
#define MF_EXPORT_PIPELINE_MAX (MF_EXPORT_STEPS_MAX * (MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX + 2))
void mf_export_join(const struct mf_export_config *c, char *dst, size_t cap);
/* Its bytes, with the columns that the consumer reads. */
int mf_export_print(const struct mf_table *t, enum mf_consumer consumer, struct mf_buf *out,
                    char why[MF_REASON_MAX]);
