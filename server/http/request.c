#include "server/http/request.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/http/problem.h"

#include <errno.h>
#include <string.h>

struct mf_request *mf_request_new(void)
{
    struct mf_request *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->response.fd = -1;
    mf_buf_init(&r->body, MF_REQUEST_BODY_MAX);
    mf_buf_init(&r->response.body, MF_RESPONSE_BODY_MAX);
    return r;
}

struct mf_request *mf_request_free(struct mf_request *r)
{
    if (!r)
        return NULL;
    for (int i = 0; i < r->n_query; i++) {
        free(r->query[i].name);
        free(r->query[i].value);
    }
    if (r->response.fd >= 0)
        (void)close(r->response.fd);
    if (r->work)
        r->work_free(r->work);
    mf_buf_release(&r->body);
    mf_buf_release(&r->response.body);
    free(r);
    return NULL;
}

const char *mf_request_query(const struct mf_request *r, const char *name)
{
    for (int i = 0; i < r->n_query; i++)
        if (strcmp(r->query[i].name, name) == 0)
            return r->query[i].value;
    return NULL;
}

bool mf_request_flag(const struct mf_request *r, const char *name)
{
    bool value = false;
    const char *text = mf_request_query(r, name);
    if (text)
        (void)mf_parse_bool(text, &value);
    return value;
}

bool mf_request_etag_matches(const struct mf_request *r, const char *etag)
{
    const char *tags = r->if_none_match;
    if (strcmp(tags, "*") == 0)
        return true;
    for (const char *p = strstr(tags, etag); p; p = strstr(p + 1, etag)) {
        char after = p[strlen(etag)];
        if (after == 0 || after == ',' || after == ' ')
            return true;
    }
    return false;
}

int mf_request_object(struct mf_request *r, cJSON **ret)
{
    size_t n = mf_json_count(r->body.data, r->body.len);
    if (n > MF_REQUEST_VALUES_MAX)
        return mf_refuse_at(&r->response, 413, "body", "too_many",
                            "the body has %zu JSON values; the limit is %d: split it", n,
                            MF_REQUEST_VALUES_MAX);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(r->body.data, r->body.len, MF_REQUEST_BODY_MAX);
    if (!json && errno == ENOMEM)
        return mf_refuse_errno(&r->response, -ENOMEM, "read the body");
    if (!json)
        return mf_refuse_at(
            &r->response, 400, "body", "json",
            "the body is not valid JSON at line %zu: check for a missing or extra comma, quote or "
            "bracket, or a string that is not UTF-8",
            mf_json_error_line(r->body.data, r->body.len));
    if (!cJSON_IsObject(json))
        return mf_refuse_at(&r->response, 400, "body", "json",
                            "the body is JSON, but not an object: expected {…}");
    *ret = MF_TAKE(json);
    return 0;
}

int mf_request_check_lines(struct mf_request *r, const char *at, const char *text, size_t len, size_t max)
{
    size_t n = 0;
    /* The end of a line is \n, \r\n or \r */
    for (size_t i = 0; i < len && n <= max; i++)
        n += text[i] == '\n' || (text[i] == '\r' && (i + 1 == len || text[i + 1] != '\n'));
    return n <= max ? 0
                    : mf_refuse_at(&r->response, 413, at, "too_many",
                                   "%s: the table has more than %zu lines, the limit: split it", at, max);
}
