#include "cli/support/api.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/text_out.h"
#include "common/base/json.h"
#include "common/base/secret.h"
#include "common/base/sha256.h"
#include "common/base/text.h"

#define JSON_MAX (64u << 20)

/* The token is never taken from the command line, because other users can see arguments. */
static int read_token(const struct mf_cli *cli, char token[MF_TOKEN_TEXT_MAX])
{
    const char *text = getenv("MOEFARM_TOKEN");
    int64_t id;
    uint8_t secret[MF_KEY_SIZE];
    int r;

    token[0] = '\0';
    if (*cli->token_file)
        r = mf_secret_file_read(cli->token_file, token, MF_TOKEN_TEXT_MAX);
    else
        r = text ? mf_copy(token, MF_TOKEN_TEXT_MAX, text) : 0;
    if (r < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", *cli->token_file ? cli->token_file : "MOEFARM_TOKEN",
                           strerror(-r));
    if (*token && mf_access_token_parse(token, &id, secret) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: not an access token; create one with `moefarm token`",
                           *cli->token_file ? cli->token_file : "MOEFARM_TOKEN");
    return 0;
}

static const char *url_of(const struct mf_cli *cli)
{
    return *cli->url ? cli->url : MF_URL_DEFAULT;
}

int mf_api_connect(const struct mf_cli *cli, struct mf_http **ret)
{
    char token[MF_TOKEN_TEXT_MAX];
    int r = read_token(cli, token);

    if (r != 0)
        return r;
    r = mf_http_new(url_of(cli), &(struct mf_http_access){.token = token, .ca = cli->ca}, ret);
    explicit_bzero(token, sizeof(token));
    if (r == -EPERM)
        return mf_cli_fail(MF_EXIT_USAGE, "--url %s: would send the token unencrypted; use https://",
                           url_of(cli));
    if (r == -EINVAL)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--url '%s': not a URL; use https://host:port, or http:// for this machine",
                           cli->url);
    if (r == -ELIBACC)
        return mf_cli_fail(MF_EXIT_UNREACHED, "libcurl.so.4 not found: install Debian's package libcurl4");
    if (r < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    return 0;
}

static int connect_to(struct mf_cli *cli)
{
    return cli->http ? 0 : mf_api_connect(cli, &cli->http);
}

cJSON *mf_api_parse(const char *text, size_t len)
{
    return mf_json_parse(text, len, JSON_MAX);
}

/* Prints an error reply. The body is problem+json, or a proxy's own text. */
static void print_problem(const struct mf_http_reply *reply, const char *path)
{
    _cleanup_(cJSON_Deletep) cJSON *problem = mf_api_parse(reply->body.data, reply->body.len);
    const cJSON *error;

    if (!problem) {
        (void)mf_cli_fail(0, "%s: HTTP status %ld", path, reply->status);
        return;
    }
    const char *detail = mf_api_text(problem, "detail", mf_api_text(problem, "title", "request refused"));
    (void)mf_cli_fail(0, "%s", detail);
    cJSON_ArrayForEach (error, mf_json_array(problem, "errors")) {
        int64_t line = mf_api_i64(error, "line", 0);
        const char *at = mf_api_text(error, "at", "");

        if (line == 0 && strcmp(mf_api_text(error, "message", ""), detail) == 0)
            continue; /* the detail, already printed, has the same text */
        if (line > 0)
            fprintf(stderr, "  line %" PRId64 ": ", line);
        else
            fprintf(stderr, "  ");
        fprintf(stderr, "%s%s%s\n", at, *at ? ": " : "", mf_api_text(error, "message", ""));
    }
}

int mf_api_send(struct mf_cli *cli, const struct mf_http_request *q, struct mf_http_reply *reply)
{
    int r = connect_to(cli);

    if (r != 0)
        return r;
    r = mf_http_send(cli->http, q, reply);
    if (r == -ECONNREFUSED)
        return mf_cli_fail(MF_EXIT_UNREACHED, "%s; check that moefarmd runs there (--url, MOEFARM_URL)",
                           mf_http_error(cli->http));
    if (r < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "%s", mf_http_error(cli->http));
    if ((reply->status >= 200 && reply->status < 300) || (reply->status == 304 && q->if_none_match))
        return 0;
    print_problem(reply, q->path);
    if (reply->status == 401)
        fprintf(stderr, "  pass a token with --token-file, MOEFARM_TOKEN_FILE or MOEFARM_TOKEN\n");
    return reply->status >= 500 ? MF_EXIT_UNREACHED : MF_EXIT_USAGE;
}

int mf_api_table(struct mf_cli *cli, const char *path, const char *if_none_match, struct mf_http_reply *reply)
{
    char hash[MF_SHA256_TEXT_MAX];
    int code =
        mf_api_send(cli, &(struct mf_http_request){.path = path, .if_none_match = if_none_match}, reply);

    if (code != 0 || reply->status == 304)
        return code;
    /* A proxy that changes only the encoding on the way marks the tag as weak */
    const char *tag = strncmp(reply->etag, "W/", 2) == 0 ? reply->etag + 2 : reply->etag;
    size_t len = strlen(tag);
    if (len != MF_SHA256_TEXT_MAX + 1 || tag[0] != '"' || tag[len - 1] != '"')
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "%s%s: the reply has no ETag with the hash of the table; check that the URL is "
                           "moefarmd's and that no proxy removes the header",
                           url_of(cli), path);
    mf_sha256_print(reply->body.data ? reply->body.data : "", reply->body.len, hash);
    if (memcmp(tag + 1, hash, sizeof(hash) - 1) != 0)
        return mf_cli_fail(
            MF_EXIT_UNREACHED,
            "%s%s: the reply was cut or changed on the way: its %zu bytes have the SHA-256 %.12s…, "
            "its ETag is %.13s…; run the command again",
            url_of(cli), path, reply->body.len, hash, tag);
    return 0;
}

static int send_json(struct mf_cli *cli, const struct mf_http_request *q, cJSON **ret)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    int r;

    mf_http_reply_init(&reply);
    r = mf_api_send(cli, q, &reply);
    if (r != 0)
        return r;
    *ret = mf_api_parse(reply.body.data, reply.body.len);
    if (!*ret)
        return mf_cli_fail(MF_EXIT_UNREACHED, "%s%s: the reply is not JSON; check that the URL is moefarmd's",
                           url_of(cli), q->path);
    return 0;
}

int mf_api_get(struct mf_cli *cli, const char *path, cJSON **ret)
{
    return send_json(cli, &(struct mf_http_request){.path = path}, ret);
}

int mf_api_post(struct mf_cli *cli, const char *path, cJSON **ret)
{
    return send_json(cli, &(struct mf_http_request){.method = "POST", .path = path}, ret);
}

/* Moves the items of a page to the end of items. */
static int append_page(cJSON *page, cJSON *items)
{
    cJSON *from = mf_json_array(page, "items");
    int n = cJSON_GetArraySize(items);

    if (!from)
        return -EINVAL;
    while (from->child) {
        if (n++ >= MF_API_ITEMS_MAX)
            return -EFBIG;
        cJSON_AddItemToArray(items, cJSON_DetachItemViaPointer(from, from->child));
    }
    return 0;
}

int mf_api_list(struct mf_cli *cli, const char *path, cJSON **ret_items)
{
    _cleanup_(cJSON_Deletep) cJSON *items = cJSON_CreateArray();
    _cleanup_(mf_buf_release) struct mf_buf full, cursor;
    const char *next = "";
    int r;

    mf_buf_init(&full, 16384);
    mf_buf_init(&cursor, 4096);
    while (next) {
        _cleanup_(cJSON_Deletep) cJSON *page = NULL;

        mf_buf_clear(&full);
        (void)mf_buf_adds(&full, path);
        mf_http_add_query(&full, "limit", "1000");
        mf_http_add_query(&full, "cursor", *next ? next : NULL);
        if (!items || mf_buf_error(&full) < 0)
            return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
        r = mf_api_get(cli, full.data, &page);
        if (r != 0)
            return r;
        r = append_page(page, items);
        if (r < 0)
            return mf_cli_fail(MF_EXIT_UNREACHED, "%s: %s", path,
                               r == -EFBIG ? "the list is longer than this program can read"
                                           : "the reply is not a list");
        mf_buf_clear(&cursor);
        next = mf_api_text(page, "next", NULL);
        if (next && (!*next || mf_buf_adds(&cursor, next) < 0))
            next = NULL;
        else if (next)
            next = cursor.data;
    }
    *ret_items = MF_TAKE(items);
    return 0;
}

void mf_api_path(char buf[MF_API_PATH_MAX], const char *format, int64_t id)
{
    const char *at = strstr(format, "{}");

    mf_format(buf, MF_API_PATH_MAX, "%.*s%" PRId64 "%s", (int)(at - format), format, id, at + 2);
}

int mf_api_print(const cJSON *json)
{
    _cleanup_(mf_freep) char *text = cJSON_Print(json);

    if (!text)
        return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    printf("%s\n", text);
    return 0;
}

int64_t mf_api_i64(const cJSON *object, const char *key, int64_t fallback)
{
    int64_t value = fallback;

    (void)mf_json_i64(object, key, INT64_MIN, INT64_MAX, &value);
    return value;
}

double mf_api_double(const cJSON *object, const char *key, double fallback)
{
    double value = fallback;

    (void)mf_json_double(object, key, &value);
    return value;
}

const char *mf_api_text(const cJSON *object, const char *key, const char *fallback)
{
    const char *value = fallback;

    (void)mf_json_text(object, key, &value);
    return value;
}

int mf_api_shape(const cJSON *columns, struct mf_shape *ret)
{
    struct mf_shape shape = {0};

    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(columns, mf_shape_columns[i]);
        const char *why;
        char text[64];

        if (cJSON_IsString(value))
            mf_format(text, sizeof(text), "%s", value->valuestring);
        else if (cJSON_IsNumber(value) && value->valuedouble == floor(value->valuedouble))
            mf_format(text, sizeof(text), "%.0f", value->valuedouble);
        else if (cJSON_IsBool(value))
            mf_format(text, sizeof(text), "%d", cJSON_IsTrue(value));
        else
            return -EINVAL;
        if (mf_shape_set(&shape, mf_shape_columns[i], text, &why) < 0)
            return -EINVAL;
    }
    const char *why, *form = mf_api_text(columns, MF_SHAPE_FORM, "");
    if (mf_shape_set(&shape, MF_SHAPE_FORM, form, &why) < 0)
        return -EINVAL;
    *ret = shape;
    return 0;
}

void mf_api_waiting(const cJSON *batch, struct mf_buf *out)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, mf_json_array(batch, "waiting")) {
        const char *reason = mf_api_text(item, "reason", "");
        int64_t n = mf_api_i64(item, "tasks", 0);

        if (*reason)
            (void)mf_buf_addf(out, "waiting: %" PRId64 " task%s of %s: %s\n", n, n == 1 ? "" : "s",
                              mf_api_text(item, "class", "?"), reason);
    }
}

void mf_api_promotion(const cJSON *task, struct mf_buf *out)
{
    const cJSON *p = mf_json_object(task, "promotion");
    double known_us = mf_api_double(p, "known_us", NAN);
    char us[MF_US_MAX];

    if (!p)
        return;
    (void)mf_buf_addf(out, "  %s: %s", mf_api_text(p, "decision", "?"), mf_api_text(p, "reason", ""));
    if (*mf_api_text(p, "source", "")) {
        mf_us(known_us, us);
        (void)mf_buf_addf(out, " (known from %s%s%s%s)", mf_api_text(p, "source", ""),
                          known_us > 0 ? ", " : "", known_us > 0 ? us : "", known_us > 0 ? " there" : "");
    }
    (void)mf_buf_adds(out, "\n");
}
