#include "server/http/problem.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *mf_status_title(int status)
{
    static const struct {
        int status;
        const char *title;
    } titles[] = {
        {200, "OK"},
        {201, "Created"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(titles); i++)
        if (titles[i].status == status)
            return titles[i].title;
    return "Error";
}

static void response_reset(struct mf_response *p, int status, const char *content_type)
{
    mf_buf_clear(&p->body);
    if (p->fd >= 0)
        (void)close(p->fd);
    p->fd = -1;
    p->etag[0] = 0;
    memset(p->headers, 0, sizeof(p->headers));
    p->status = status;
    p->content_type = content_type;
}

/* Responds with a constant body if building the error response runs out of memory. */
static void respond_constant(struct mf_response *p)
{
    response_reset(p, 500, "application/problem+json");
    mf_buf_adds(&p->body, "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500,"
                          "\"detail\":\"out of memory\",\"errors\":[]}");
}

int mf_respond_json(struct mf_response *p, int status, cJSON *json)
{
    _cleanup_(cJSON_Deletep) cJSON *owned = json;
    _cleanup_(mf_freep) char *text = owned ? mf_json_print(owned) : NULL;

    response_reset(p, status, "application/json");
    if (!text || mf_buf_adds(&p->body, text) < 0) {
        respond_constant(p);
        return -ENOMEM;
    }
    return 0;
}

int mf_respond_list(struct mf_response *p, cJSON *items, const char *next)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "items", items);
    cJSON_AddItemToObject(o, "next", *next ? cJSON_CreateString(next) : cJSON_CreateNull());
    return mf_respond_json(p, 200, o);
}

int mf_respond_state(struct mf_response *p, const char *state)
{
    cJSON *o = cJSON_CreateObject();
    if (o)
        cJSON_AddStringToObject(o, "state", state);
    return mf_respond_json(p, 200, o);
}

int mf_refuse_errors(struct mf_response *p, int status, const char *detail, cJSON *errors)
{
    _cleanup_(cJSON_Deletep) cJSON *list = errors ? errors : cJSON_CreateArray();
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();

    if (!list || !json || !cJSON_AddStringToObject(json, "type", "about:blank") ||
        !cJSON_AddStringToObject(json, "title", mf_status_title(status)) ||
        !cJSON_AddNumberToObject(json, "status", status) ||
        !cJSON_AddStringToObject(json, "detail", detail) || !cJSON_AddItemToObject(json, "errors", list)) {
        respond_constant(p);
        return -EINVAL;
    }
    list = NULL;
    if (mf_respond_json(p, status, MF_TAKE(json)) == 0)
        p->content_type = "application/problem+json";
    return -EINVAL;
}

int mf_refuse(struct mf_response *p, int status, const char *format, ...)
{
    char detail[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof(detail), format, args);
    va_end(args);
    return mf_refuse_errors(p, status, detail, NULL);
}

static int errors_add(cJSON *errors, const char *at, const char *code, const char *message)
{
    _cleanup_(cJSON_Deletep) cJSON *entry = cJSON_CreateObject();
    if (!entry || !cJSON_AddStringToObject(entry, "at", at) ||
        !cJSON_AddStringToObject(entry, "code", code) ||
        !cJSON_AddStringToObject(entry, "message", message) || !cJSON_AddItemToArray(errors, entry))
        return -ENOMEM;
    entry = NULL;
    return 0;
}

int mf_errors_add(cJSON *errors, const char *at, const char *code, const char *format, ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    return errors_add(errors, at, code, message);
}

int mf_refuse_at(struct mf_response *p, int status, const char *at, const char *code, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);

    _cleanup_(cJSON_Deletep) cJSON *errors = cJSON_CreateArray();
    if (!errors || errors_add(errors, at, code, message) < 0) {
        respond_constant(p);
        return -EINVAL;
    }
    return mf_refuse_errors(p, status, message, MF_TAKE(errors));
}

int mf_refuse_errno(struct mf_response *p, int r, const char *doing)
{
    return mf_refuse(p, 500, "%s: %s", doing, strerror(-r));
}

int mf_respond_header(struct mf_response *p, const char *name, const char *format, ...)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(p->headers); i++) {
        if (p->headers[i][0][0])
            continue;
        va_list args;
        va_start(args, format);
        int n = vsnprintf(p->headers[i][1], sizeof(p->headers[i][1]), format, args);
        va_end(args);
        if (n < 0 || (size_t)n >= sizeof(p->headers[i][1])) {
            p->headers[i][1][0] = 0;
            return -ENAMETOOLONG;
        }
        return mf_copy(p->headers[i][0], sizeof(p->headers[i][0]), name);
    }
    return -ENOSPC;
}
