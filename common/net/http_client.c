#include "common/net/http_client.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/secret.h"
#include "common/base/shared_library.h"
#include "common/base/text.h"

/* libcurl is loaded at run time: of the programs that load libfmoe, few report misses. */
#define CURL_FILE "libcurl.so.4"
/* clang-format off */
#define CURL_CALLS(X)                                                                        \
    X(curl_, easy_cleanup) X(curl_, easy_getinfo) X(curl_, easy_init) X(curl_, easy_perform) \
    X(curl_, easy_reset) X(curl_, easy_setopt) X(curl_, easy_strerror) X(curl_, free)        \
    X(curl_, global_init) X(curl_, slist_append) X(curl_, slist_free_all) X(curl_, url)      \
    X(curl_, url_cleanup) X(curl_, url_get) X(curl_, url_set)
/* clang-format on */
static struct {
    CURL_CALLS(MF_FUNCTION_POINTER)
} curl;
static const char *const curl_functions[] = {CURL_CALLS(MF_FUNCTION_NAME)};
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static int curl_error;

struct mf_http {
    CURL *curl;
    struct mf_buf url;                          /* base URL without a trailing '/' */
    char authorization[MF_TOKEN_TEXT_MAX + 16]; /* value of the header Authorization; "": none */
    const char *ca;
    char curl_text[CURL_ERROR_SIZE];
    char error[CURL_ERROR_SIZE + 256];
    struct mf_http_reply *reply; /* reply to the current request; NULL for streams */
    struct mf_sse *sse;          /* parser of the current stream; NULL for other requests */
    mf_http_tick_fn tick;
    size_t headers_len; /* length of the current reply's headers so far */
    int callback_error;
    long request_ms;
};

void mf_http_reply_init(struct mf_http_reply *r)
{
    *r = (struct mf_http_reply){.left_out = -1};
    mf_buf_init(&r->body, MF_HTTP_REPLY_MAX);
}

void mf_http_reply_release(struct mf_http_reply *r)
{
    mf_buf_release(&r->body);
}

static size_t on_body(char *bytes, size_t size, size_t n, void *context)
{
    struct mf_http *h = context;

    h->callback_error = mf_buf_add(&h->reply->body, bytes, size * n);
    return h->callback_error < 0 ? 0 : size * n;
}

/* Copies the value of a header line named `name` ("Name:"), without leading spaces and without the line end.
 * Returns false if the line has another name or the value does not fit. */
static bool header_value(const char *line, size_t len, const char *name, char *ret, size_t cap)
{
    size_t at = strlen(name);

    if (len <= at || strncasecmp(line, name, at))
        return false;
    while (at < len && line[at] == ' ')
        at++;
    while (len > at && (line[len - 1] == '\n' || line[len - 1] == '\r'))
        len--;
    if (len - at >= cap)
        return false;
    memcpy(ret, line + at, len - at);
    ret[len - at] = '\0';
    return true;
}

static bool headers_too_long(const struct mf_http *h)
{
    return h->headers_len > MF_HTTP_HEADERS_MAX;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *context)
{
    struct mf_http *h = context;
    char value[96];

    h->headers_len += size * n;
    if (headers_too_long(h)) {
        h->callback_error = -EMSGSIZE;
        return 0;
    }
    if (!h->reply)
        return size * n;
    if (header_value(bytes, size * n, "Moefarm-Left-Out:", value, sizeof(value)))
        (void)mf_parse_i64(value, 0, INT64_MAX, &h->reply->left_out);
    if (header_value(bytes, size * n, "Moefarm-Release:", value, sizeof(value)))
        (void)mf_copy(h->reply->release, sizeof(h->reply->release), value);
    if (header_value(bytes, size * n, "ETag:", value, sizeof(value)))
        (void)mf_copy(h->reply->etag, sizeof(h->reply->etag), value);
    return size * n;
}

static size_t on_stream(char *bytes, size_t size, size_t n, void *context)
{
    struct mf_http *h = context;
    long status = 0;

    (void)curl.easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return size * n;
    h->callback_error = mf_sse_feed(h->sse, bytes, size * n);
    if (h->callback_error >= 0)
        h->callback_error = h->tick(h->sse->context);
    return h->callback_error < 0 ? 0 : size * n;
}

static int stream_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct mf_http *h = context;
    long status = 0;

    (void)a, (void)b, (void)c, (void)d;
    (void)curl.easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return 0;
    /* libcurl also calls this after a failed on_stream, whose error must not be lost */
    if (h->callback_error >= 0)
        h->callback_error = h->tick(h->sse->context);
    return h->callback_error < 0;
}

static void url_freep(CURLU **u)
{
    curl.url_cleanup(*u);
}
static void text_freep(char **text)
{
    curl.free(*text);
}

/* True if the URL's host is a loopback address. Parses the URL, because a prefix comparison would also accept
 * "localhost.example.org" and "localhost@example.org". */
static bool is_loopback(const char *url)
{
    _cleanup_(url_freep) CURLU *u = curl.url();
    _cleanup_(text_freep) char *host = NULL;
    struct in_addr four;

    if (!u || curl.url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl.url_get(u, CURLUPART_HOST, &host, 0) != CURLUE_OK)
        return false;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0;
}

static void load_curl(void)
{
    curl_error = mf_shared_library_load(CURL_FILE, curl_functions, MF_ARRAY_LEN(curl_functions), &curl);
    /* Not thread-safe before libcurl 7.84 */
    if (curl_error == 0 && curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        curl_error = -ENOMEM;
    if (curl_error == -ENOENT)
        curl_error = -ELIBACC;
}

int mf_http_new(const char *url, const struct mf_http_access *access, struct mf_http **ret)
{
    _cleanup_(mf_http_freep) struct mf_http *h = NULL;
    size_t len = strlen(url);

    if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0)
        return -EINVAL;
    (void)pthread_once(&curl_once, load_curl);
    if (curl_error < 0)
        return curl_error;
    if (*access->token && strncasecmp(url, "https://", 8) != 0 && !is_loopback(url))
        return -EPERM;
    h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    mf_buf_init(&h->url, 8192);
    h->ca = access->ca;
    h->request_ms = access->request_ms > 0 ? access->request_ms : MF_HTTP_REQUEST_MS;
    if (*access->token)
        mf_format(h->authorization, sizeof(h->authorization), "Bearer %s", access->token);
    while (len > 0 && url[len - 1] == '/')
        len--;
    h->curl = curl.easy_init();
    if (!h->curl || mf_buf_add(&h->url, url, len) < 0)
        return -ENOMEM;
    *ret = MF_TAKE(h);
    return 0;
}

struct mf_http *mf_http_free(struct mf_http *h)
{
    if (!h)
        return NULL;
    if (h->curl)
        curl.easy_cleanup(h->curl);
    mf_buf_release(&h->url);
    explicit_bzero(h->authorization, sizeof(h->authorization));
    free(h);
    return NULL;
}

const char *mf_http_error(const struct mf_http *h)
{
    return h->error;
}

/* Sets the options common to all requests. */
static void prepare(struct mf_http *h, const char *url)
{
    curl.easy_reset(h->curl);
    h->curl_text[0] = h->error[0] = '\0';
    h->callback_error = 0;
    h->headers_len = 0;
    curl.easy_setopt(h->curl, CURLOPT_URL, url);
    curl.easy_setopt(h->curl, CURLOPT_ERRORBUFFER, h->curl_text);
    curl.easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(h->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(h->curl, CURLOPT_HEADERDATA, h);
    curl.easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    /* Connect directly, because the proxies in the environment are for other hosts */
    curl.easy_setopt(h->curl, CURLOPT_PROXY, "");
    curl.easy_setopt(h->curl, CURLOPT_USERAGENT, "moefarm/" MF_VERSION);
    curl.easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT_MS, MF_HTTP_CONNECT_MS);
    curl.easy_setopt(h->curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (*h->ca)
        curl.easy_setopt(h->curl, CURLOPT_CAINFO, h->ca);
}

static int refuse_headers(struct mf_http *h, const char *or_else)
{
    mf_format(h->error, sizeof(h->error), "%s: the headers of the reply exceed the limit of %u KiB%s",
              h->url.data, MF_HTTP_HEADERS_MAX >> 10, or_else);
    return -EMSGSIZE;
}

/* Handles a request that a callback has stopped: sets the message and returns the error. */
static int stopped(struct mf_http *h)
{
    int r = h->callback_error;
    const char *url = h->url.data;

    if (headers_too_long(h))
        return refuse_headers(h, "");
    if (r == -ENOMEM)
        mf_format(h->error, sizeof(h->error), "%s: out of memory", url);
    else if (h->sse && r == -EMSGSIZE)
        mf_format(h->error, sizeof(h->error), "%s: an event exceeds the limit of %u MiB", url,
                  MF_SSE_EVENT_MAX >> 20);
    else if (h->sse)
        mf_format(h->error, sizeof(h->error), "%s: the event stream was closed: %s", url,
                  strerrordesc_np(-r));
    else
        mf_format(h->error, sizeof(h->error), "%s: the reply exceeds the limit of %zu bytes", url,
                  h->reply->body.max);
    return r == -EFBIG ? -EMSGSIZE : r;
}

static int perform(struct mf_http *h)
{
    CURLcode code = curl.easy_perform(h->curl);
    const char *text = h->curl_text[0] ? h->curl_text : curl.easy_strerror(code);

    if (code == CURLE_OK)
        return 0;
    if (h->callback_error < 0)
        return stopped(h);
    mf_format(h->error, sizeof(h->error), "%s: %s", h->url.data, text);
    switch ((int)code) {
    case CURLE_URL_MALFORMAT:
        return -EINVAL;
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
        return -ECONNREFUSED;
    case CURLE_OPERATION_TIMEDOUT:
        return -ETIMEDOUT;
    case CURLE_OUT_OF_MEMORY: /* also for a header line of more than 100 KiB */
        return refuse_headers(h, ", or memory ran out");
    default:
        return -EIO;
    }
}

static int add_header(struct curl_slist **list, const char *name, const char *value)
{
    char line[256];
    struct curl_slist *longer;

    mf_format(line, sizeof(line), "%s: %s", name, value);
    longer = curl.slist_append(*list, line);
    if (!longer)
        return -ENOMEM;
    *list = longer;
    return 0;
}

static void slist_freep(struct curl_slist **list)
{
    curl.slist_free_all(*list);
}

int mf_http_send(struct mf_http *h, const struct mf_http_request *q, struct mf_http_reply *ret)
{
    _cleanup_(slist_freep) struct curl_slist *headers = NULL;
    _cleanup_(mf_buf_release) struct mf_buf url;
    const char *type = NULL;
    int r = 0;

    mf_buf_init(&url, 16384);
    if (mf_buf_adds(&url, h->url.data) < 0 || mf_buf_adds(&url, q->path) < 0)
        return mf_buf_error(&url);
    prepare(h, url.data);
    h->reply = ret;
    h->sse = NULL;
    mf_buf_clear(&ret->body);
    curl.easy_setopt(h->curl, CURLOPT_TIMEOUT_MS, h->request_ms);
    curl.easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(h->curl, CURLOPT_WRITEDATA, h);
    if (q->method) {
        curl.easy_setopt(h->curl, CURLOPT_POST, 1L);
        curl.easy_setopt(h->curl, CURLOPT_CUSTOMREQUEST, q->method);
        curl.easy_setopt(h->curl, CURLOPT_POSTFIELDS, q->body ? q->body : "");
        curl.easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_len);
        r = add_header(&headers, "Expect", "");
        if (r >= 0)
            r = add_header(&headers, "Content-Type", q->content_type ? q->content_type : "application/json");
    }
    if (r >= 0 && h->authorization[0])
        r = add_header(&headers, "Authorization", h->authorization);
    if (r >= 0 && q->idempotency_key)
        r = add_header(&headers, "Idempotency-Key", q->idempotency_key);
    if (r >= 0 && q->if_none_match)
        r = add_header(&headers, "If-None-Match", q->if_none_match);
    if (r < 0)
        return r;
    curl.easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
    r = perform(h);
    if (r < 0)
        return r;
    (void)curl.easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &ret->status);
    (void)curl.easy_getinfo(h->curl, CURLINFO_CONTENT_TYPE, &type);
    mf_format(ret->content_type, sizeof(ret->content_type), "%s", type ? type : "");
    return 0;
}

int mf_http_stream(struct mf_http *h, const char *path, struct mf_sse *sse, mf_http_tick_fn tick,
                   long *ret_status)
{
    _cleanup_(slist_freep) struct curl_slist *headers = NULL;
    _cleanup_(mf_buf_release) struct mf_buf url;
    int r;

    mf_buf_init(&url, 16384);
    if (mf_buf_adds(&url, h->url.data) < 0 || mf_buf_adds(&url, path) < 0)
        return mf_buf_error(&url);
    prepare(h, url.data);
    h->reply = NULL;
    h->sse = sse;
    h->tick = tick;
    mf_sse_restart(sse);
    curl.easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, on_stream);
    curl.easy_setopt(h->curl, CURLOPT_WRITEDATA, h);
    curl.easy_setopt(h->curl, CURLOPT_NOPROGRESS, 0L);
    curl.easy_setopt(h->curl, CURLOPT_XFERINFOFUNCTION, stream_progress);
    curl.easy_setopt(h->curl, CURLOPT_XFERINFODATA, h);
    curl.easy_setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(h->curl, CURLOPT_LOW_SPEED_TIME, MF_HTTP_SILENCE_S);
    r = add_header(&headers, "Accept", "text/event-stream");
    if (r >= 0 && h->authorization[0])
        r = add_header(&headers, "Authorization", h->authorization);
    if (r >= 0 && sse->last_id[0])
        r = add_header(&headers, "Last-Event-ID", sse->last_id);
    if (r < 0)
        return r;
    curl.easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
    r = perform(h);
    (void)curl.easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, ret_status);
    return r;
}

void mf_http_add_query(struct mf_buf *path, const char *name, const char *value)
{
    static const char hex[] = "0123456789ABCDEF";

    if (!value)
        return;
    (void)mf_buf_adds(path, strchr(path->data, '?') ? "&" : "?");
    (void)mf_buf_adds(path, name);
    (void)mf_buf_adds(path, "=");
    for (const char *p = value; *p; p++) {
        unsigned char c = (unsigned char)*p;
        bool plain =
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr("-_.~", c);
        char code[3] = {'%', hex[c >> 4], hex[c & 15]};

        (void)mf_buf_add(path, plain ? (const char *)&c : code, plain ? 1 : 3);
    }
}
