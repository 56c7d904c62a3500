/* Prints a coverage report as text or JSON. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/coverage/coverage.h"
#include "common/base/buf.h"
#include "common/table/model.h"

/* The query and its result. */
struct mf_coverage_report {
    const struct mf_model *model;
    struct mf_model_split split;
    const struct mf_coverage_query *query;
    const struct mf_coverage *coverage;
};

/* Appends a summary of a few lines: the token counts that are not served, and the columns in which the
 * nearest rows differ. */
void mf_coverage_headline(const struct mf_coverage_report *r, struct mf_buf *out);
/* Prints the report with at most `top` near misses; 0: all. */
void mf_coverage_print(const struct mf_coverage_report *r, int64_t top, struct mf_buf *out);
cJSON *mf_coverage_json(const struct mf_coverage_report *r);
