/* A release: a frozen export with a manifest of the provenance of every row; see "Releases and channels" in
 * docs/api.md.
 *
 * A reader creates it from one snapshot and the writer stores it. A release never changes. */
#pragma once

#include <cjson/cJSON.h>

#include "server/api/export.h"
#include "server/store/store_release.h"

#define MF_RELEASE_FORMAT 1 /* format of the manifest; increment if a member changes its meaning */

struct mf_release_request {
    const char *name;       /* NULL: derived from the table's hash */
    const char *created_by; /* name of the token; "" without tokens */
    int64_t created_ms;
};

struct mf_release_work {
    struct mf_release release; /* points into the fields below */
    char name[MF_RELEASE_NAME_MAX];
    char created_by[MF_RELEASE_NAME_MAX];
    char *filters;
    struct mf_buf csv, manifest;
    struct mf_release_row *rows; /* the rows own their strings */
    size_t n_rows, cap;
};

/* Creates a release, which the caller frees. Returns -ENODATA if no config matches the filters, or another
 * -errno. `why` has the reason, or is "" if the errno says everything. */
int mf_release_make(struct mf_store *s, const struct mf_export_options *o,
                    const struct mf_release_request *request, struct mf_release_work **ret,
                    char why[MF_REASON_MAX]);
void mf_release_work_free(void *work);
