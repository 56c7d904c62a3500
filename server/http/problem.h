/* Builds all responses: JSON, and application/problem+json for errors.
 *
 *   {"type": "about:blank", "title", "status", "detail", "errors": [{"at", "code", "message"}]}
 *
 * `at` names the field ("shapes[3].topk", "query.limit", "header.Idempotency-Key"); `message` says how to
 * correct the field. */
#pragma once

#include <cjson/cJSON.h>

#include "server/http/response.h"

/* Maximum size of a response. List pages and merged tables stay far below it. */
#define MF_RESPONSE_BODY_MAX (64u << 20)

/* Returns the reason phrase of a status, or "Error" for a status that moefarmd does not use. */
const char *mf_status_title(int status);

/* These functions replace the response and return -EINVAL. A handler in the writer returns that value to roll
 * back its transaction. */
int mf_refuse(struct mf_response *p, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Same as mf_refuse, but adds one entry to `errors`. The message is used as the detail too. */
int mf_refuse_at(struct mf_response *p, int status, const char *at, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Same as mf_refuse, but adds several entries. Takes ownership of `errors`, an array of {at, code, message,
 * …}. */
int mf_refuse_errors(struct mf_response *p, int status, const char *detail, cJSON *errors);
/* Responds with 500 for an internal error. r is a negative errno; doing names the failed action. */
int mf_refuse_errno(struct mf_response *p, int r, const char *doing);

/* Appends {at, code, message} to an array. Returns -ENOMEM if out of memory. */
int mf_errors_add(cJSON *errors, const char *at, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Takes ownership of json. Returns 0, or a negative errno after responding with 500. */
int mf_respond_json(struct mf_response *p, int status, cJSON *json);
/* Responds with one page of a list: {"items", "next"}. next: cursor of the next page, "" on the last page.
 * Takes ownership of items. */
int mf_respond_list(struct mf_response *p, cJSON *items, const char *next);
/* Responds with 200 and {"state": state}. */
int mf_respond_state(struct mf_response *p, const char *state);
/* Adds a header. Returns -ENOSPC if there are four already, -ENAMETOOLONG if the value does not fit. */
int mf_respond_header(struct mf_response *p, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
