/* A release: an export that is frozen, with a manifest that says of every row where it comes from (docs/releases.md).
 *
 * It is made of one snapshot by a reader and stored by the writer. Nothing of it ever changes. */
#pragma once

#include <cjson/cJSON.h>

#include "server/api/export.h"
#include "server/store/store_release.h"

#define MF_RELEASE_FORMAT 1 /* of the manifest; a member that changes its meaning raises it */

struct mf_release_wish {
    const char *name;       /* NULL: after its bytes */
    const char *created_by; /* "": nobody was asked who they are */
    int64_t created_ms;
};

struct mf_release_work {
    struct mf_release release; /* points into what follows */
    char name[MF_RELEASE_NAME_MAX];
    char created_by[MF_RELEASE_NAME_MAX];
    char *filters;
    struct mf_buf csv, manifest;
    struct mf_release_row *rows; /* with texts of their own */
    size_t n_rows, cap;
};

/* -ENODATA: no config is within the filters; otherwise also with why, "" when there is nothing to say. The caller frees
 * *ret. */
int mf_release_make(struct mf_store *s, const struct mf_export_options *o, const struct mf_release_wish *wish,
                    struct mf_release_work **ret, char why[MF_REASON_MAX]);
void mf_release_work_free(void *work);
