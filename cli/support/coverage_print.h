/* A coverage for people and as JSON. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/support/coverage.h"
#include "common/base/buf.h"
#include "common/table/model.h"

/* What was asked, and what came out. */
struct mf_coverage_report {
    const struct mf_model *model;
    struct mf_model_split split;
    const struct mf_coverage_question *question;
    const struct mf_coverage *coverage;
};

/* What matters most, in a line or a few: what is not served, and when some rows are near, how they differ. */
void mf_coverage_headline(const struct mf_coverage_report *r, struct mf_buf *out);
/* At most top near misses; 0: all. */
void mf_coverage_print(const struct mf_coverage_report *r, int64_t top, struct mf_buf *out);
cJSON *mf_coverage_json(const struct mf_coverage_report *r);
