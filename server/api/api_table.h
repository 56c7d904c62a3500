/* Shared by the handlers of tables: filters of an export, and responses that may be large. */
#pragma once

#include "common/base/sha256.h"
#include "server/api/export.h"
#include "server/http/request.h"
#include "server/store/store_read_release.h"

/* Filters of an export. Do not copy this struct, because it contains pointers into itself and into the
 * request. */
struct mf_table_query {
    struct mf_export_options options;
    struct mf_device_class class;
    char layer_model[MF_SHAPE_TEXT_MAX];
};
/* Reads the filters from the request's parameters. Returns a negative value after responding with an error: a
 * parameter is invalid, or a class has results of several device models. */
int mf_table_query_read(struct mf_request *r, struct mf_store *s, struct mf_table_query *ret);
/* Like mf_table_query_read, but a class may have results of several device models. */
int mf_table_query_options(struct mf_request *r, struct mf_table_query *ret);

/* Moves the response's body to an unlinked file and responds with 200. The ETag is the body's SHA-256. */
int mf_table_answer(struct mf_request *r, struct mf_store *s, const char *content_type,
                    const char sha256[MF_SHA256_TEXT_MAX]);
/* Responds with a file of a release, after checking it against its hash. */
int mf_api_answer_release(struct mf_request *r, struct mf_store *s, int64_t id, enum mf_release_file what);
