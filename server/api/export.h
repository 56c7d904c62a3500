/* Creates the tuned table from the store: selects the rows for a consumer, and lists the rows left out with
 * reasons.
 *
 * The output is deterministic: equal configs give equal bytes. It contains no time stamps and is sorted by
 * key. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/moe/batch_options.h"
#include "common/table/table.h"
#include "server/store/store_export.h"

/* Called for each config in the table, in table order. `row` has the values as the table stores them. */
typedef int (*mf_export_row_fn)(const struct mf_export_config *c, const struct mf_table_row *row, void *data);

struct mf_export_options {
    struct mf_export_filter filter; /* mf_export sets filter.consumer */
    bool simulated;                 /* include rows of simulated devices */
    enum mf_consumer consumer;      /* whose configs are exported */
    bool provenance;                /* write moefarm's columns for other consumers too */
    const char *triton;      /* vllm, sglang: Triton version of rows that do not state it; NULL: none */
    mf_export_row_fn on_row; /* may be NULL */
    void *data;              /* passed to on_row */
};

/* *ret_left_out: array of {class, model, shape, us, reason}. The caller frees both results. */
int mf_export(struct mf_store *s, const struct mf_export_options *o, struct mf_table **ret,
              cJSON **ret_left_out);
/* Appends one row to the list of rows left out. model NULL: unknown. us 0: unknown. */
int mf_export_leave_out(cJSON *list, const char *class, const char *model, const char *shape, double us,
                        const char *reason);
/* Formats the column `pipeline`: "family:step|family:step". */
#define MF_EXPORT_PIPELINE_MAX (MF_EXPORT_STEPS_MAX * (MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX + 2))
void mf_export_join(const struct mf_export_config *c, char *dst, size_t cap);
/* Writes the table as CSV with the columns that the options ask for. */
int mf_export_print(const struct mf_table *t, const struct mf_export_options *o, struct mf_buf *out,
                    char why[MF_REASON_MAX]);
