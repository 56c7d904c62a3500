/* What the handlers of tables share: the filters of an export, and an answer that may be large. */
#pragma once

#include "common/base/sha256.h"
#include "server/api/export.h"
#include "server/http/request.h"
#include "server/store/store_read_release.h"

/* Points into itself and into the request: it is not copied. */
struct mf_table_query {
    struct mf_export_options options;
    struct mf_device_class class;
    char layer_model[MF_SHAPE_TEXT_MAX];
};
/* From the request's parameters. Negative: the response says what is wrong with them, or that a class has two models. */
int mf_table_query_read(struct mf_request *r, struct mf_store *s, struct mf_table_query *ret);

/* Answers 200 with the response's body, which goes to a file that nobody has a name of; the ETag is its hash. */
int mf_table_answer(struct mf_request *r, struct mf_store *s, const char *content_type,
                    const char sha256[MF_SHA256_TEXT_MAX]);
/* Answers with a file of a release, which is held against its hash. */
int mf_api_answer_release(struct mf_request *r, struct mf_store *s, int64_t id, enum mf_release_file what);
