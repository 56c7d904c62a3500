#include "server/http/request.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "server/http/problem.h"

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

bool mf_request_has(const struct mf_request *r, const char *etag)
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
