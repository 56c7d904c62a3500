#include "server/http/http_private.h"

#include "common/base/text.h"
#include "server/http/problem.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

/* Headers that a request may have once. A proxy and this server could choose different ones of two. */
static const char *const single[] = {
    "Host",          "Content-Length",  "Transfer-Encoding", "Content-Type",
    "Authorization", "Origin",          "Sec-Fetch-Site",    "Expect",
    "Cookie",        "Idempotency-Key", "Last-Event-ID",
};

struct reading {
    struct mf_response *response;
    unsigned seen; /* bit mask of indices into `single` */
};

/* True for the characters of a header's name (RFC 9110, tchar). */
static bool is_name(const char *name)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (const char *p = name; *p; p++)
        if (!((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
              strchr(marks, *p)))
            return false;
    return true;
}

static bool has_controls(const char *value)
{
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if ((*p < ' ' && *p != '\t') || *p == 0x7f)
            return true;
    return false;
}

static int refuse_header(struct mf_response *p, const char *name, const char *code, const char *why)
{
    char at[64];
    mf_format(at, sizeof(at), "header.%.40s", name);
    return mf_refuse_at(p, 400, at, code, "%.40s: %s", name, why);
}

static enum MHD_Result read_header(void *context, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct reading *r = context;
    (void)kind;
    if (!is_name(name)) {
        (void)mf_refuse_at(r->response, 400, "header", "name",
                           "a header's name has a character such as a space before the colon");
        return MHD_NO;
    }
    if (value && has_controls(value)) {
        (void)refuse_header(r->response, name, "value", "the value has a control character");
        return MHD_NO;
    }
    for (unsigned i = 0; i < MF_ARRAY_LEN(single); i++) {
        if (strcasecmp(name, single[i]) != 0)
            continue;
        if (r->seen & 1u << i) {
            (void)refuse_header(r->response, single[i], "twice", "given twice; give it once");
            return MHD_NO;
        }
        r->seen |= 1u << i;
    }
    return MHD_YES;
}

static int check_length(struct MHD_Connection *c, const char *version, struct mf_response *p)
{
    const char *coding = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Transfer-Encoding");
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    if (!coding)
        return 0;
    if (length)
        return refuse_header(p, "Content-Length", "conflict", "give it or Transfer-Encoding, not both");
    if (strcmp(version, "HTTP/1.0") == 0)
        return refuse_header(p, "Transfer-Encoding", "version", "HTTP/1.0 has no such header; use HTTP/1.1");
    if (strcasecmp(coding, "chunked") != 0)
        return refuse_header(p, "Transfer-Encoding", "value", "expected chunked");
    return 0;
}

/* Returns true for the characters of a host name or address with a port. */
static bool is_host(const char *host)
{
    return host[strcspn(host, " \t/?#@\\,")] == 0;
}

int mf_framing_check(struct MHD_Connection *c, const char *version, struct mf_response *p)
{
    struct reading r = {.response = p};
    const char *host;
    if (mf_connection_target_is_bad(c))
        return mf_refuse_at(p, 400, "path", "value",
                            "the path has a space, a control character or an encoded zero byte (%%00)");
    (void)MHD_get_connection_values(c, MHD_HEADER_KIND, read_header, &r);
    if (p->status)
        return -EINVAL;
    host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    if (!host && strcmp(version, "HTTP/1.0") != 0)
        return refuse_header(p, "Host", "missing", "missing; HTTP/1.1 requires it");
    if (host && !is_host(host))
        return refuse_header(p, "Host", "value", "expected a host name or address, and optionally a port");
    return check_length(c, version, p);
}
