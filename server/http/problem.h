/* The one place that makes answers: JSON, and application/problem+json for what went wrong.
 *
 * {"type": "about:blank", "title", "status", "detail", "errors": [{"at", "code", "message"}]}
 * `at` names the field ("shapes[3].topk", "query.limit", "header.Idempotency-Key"), `message` says the fix. */
#pragma once

#include <cjson/cJSON.h>

#include "server/http/request.h"

/* Largest answer; a list's page and a merged table are far below. */
#define MF_RESPONSE_BODY_MAX (64u << 20)

/* Reason phrase of a status, "Error" for one we never send. */
const char *mf_status_title(int status);

/* Each replaces whatever the response held. They return -EINVAL, so that a handler can return them: a writer's
 * handler that answers by a problem wants its writes undone. */
int mf_refuse(struct mf_response *p, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* With one entry in `errors`; the message is the detail too. */
int mf_refuse_at(struct mf_response *p, int status, const char *at, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* With many: takes ownership of errors, an array of {at, code, message, …}. */
int mf_refuse_errors(struct mf_response *p, int status, const char *detail, cJSON *errors);
/* 500 for what is nobody's input; r is negative errno. */
int mf_refuse_errno(struct mf_response *p, int r, const char *doing);

/* The request's body as a JSON object, the caller's; refused where it is none, or where there is no memory for it. */
int mf_request_object(struct mf_request *r, cJSON **ret);

/* Appends {at, code, message} to an array; -ENOMEM. */
int mf_errors_add(cJSON *errors, const char *at, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Takes ownership of json. 0, or the -errno of the 500 that it became. */
int mf_respond_json(struct mf_response *p, int status, cJSON *json);
/* A page of a list: {"items", "next"}; next "": the last. Takes ownership of items. */
int mf_respond_list(struct mf_response *p, cJSON *items, const char *next);
/* {"state": what}, for a request that was done. */
int mf_respond_state(struct mf_response *p, const char *state);
/* Adds a header; -ENOSPC when there are four, -ENAMETOOLONG when it does not fit. */
int mf_respond_header(struct mf_response *p, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
