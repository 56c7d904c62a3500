/* moefarm submit: submits a file of shapes as a batch. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "cli/support/aiter_env.h"
#include "cli/support/api.h"
#include "cli/support/file.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/batch_options.h"

#define BODY_MAX        (16u << 20) /* maximum request body of moefarmd */
#define COUNTS_FILE_MAX (1u << 20)
#define PATH_MAX_BYTES  32768 /* maximum request path; a recorded routing profile is its longest option */

#define N_FLAGS_MAX (MF_BATCH_N_OPTIONS_MAX + 1)

/* A member of the submission. Values stay text, because the coordinator checks the values and names the
 * option in its error message. */
struct flag {
    const char *member; /* "name", or a batch option */
    const char *value;  /* NULL: not given */
    char name[40], help[MF_OPTION_HELP_MAX];
};

static bool is_json(const struct mf_buf *body)
{
    size_t at = strspn(body->data, " \t\r\n\xef\xbb\xbf");

    return body->data[at] == '{';
}

/* Sets a member of the submission and replaces the value from the user's file. Numbers become JSON numbers,
 * except in `name`. */
static int set_member(cJSON *submission, const char *name, const char *text)
{
    bool is_name = strcmp(name, "name") == 0;
    cJSON *object = submission, *value;
    double number;

    if (!is_name) {
        object = mf_json_object(submission, "options");
        if (!object)
            object = cJSON_AddObjectToObject(submission, "options");
    }
    value = !is_name && mf_parse_double(text, &number) == 0 ? cJSON_CreateNumber(number)
                                                            : cJSON_CreateString(text);
    if (!object || !value)
        return -ENOMEM;
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    cJSON_AddItemToObject(object, name, value);
    return 0;
}

static int put_in_json(struct mf_buf *body, const char *baseline, const struct flag *flags, size_t n)
{
    bool json = is_json(body);
    _cleanup_(cJSON_Deletep) cJSON *submission =
        json ? mf_json_parse(body->data, body->len, BODY_MAX) : cJSON_CreateObject();
    _cleanup_(mf_freep) char *text = NULL;

    if (submission && !json)
        cJSON_AddStringToObject(submission, "csv", body->data);
    if (submission && baseline) {
        cJSON_DeleteItemFromObjectCaseSensitive(submission, "baseline");
        cJSON_AddStringToObject(submission, "baseline", baseline);
    }
    if (!submission)
        return mf_cli_fail(MF_EXIT_USAGE, "the file starts with '{' but is not valid JSON");
    for (size_t i = 0; i < n; i++) {
        if (flags[i].value && set_member(submission, flags[i].member, flags[i].value) < 0)
            return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    }
    text = mf_json_print(submission);
    mf_buf_clear(body);
    if (!text || mf_buf_adds(body, text) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    return 0;
}

/* Replaces "@FILE" by a recorded routing profile with the integers in the file. In the file, all other
 * characters are separators. */
static int read_counts(const char **routing, struct mf_buf *text)
{
    _cleanup_(mf_buf_release) struct mf_buf file;
    const char *digits = "0123456789", *at;

    mf_buf_init(&file, COUNTS_FILE_MAX);
    if (!*routing || (*routing)[0] != '@')
        return 0;
    int code = mf_file_read(*routing + 1, &file);
    if (code != 0)
        return code;
    (void)mf_buf_adds(text, "recorded");
    for (at = file.data + strcspn(file.data, digits); *at;) {
        size_t len = strspn(at, digits);
        if (mf_buf_adds(text, text->len == strlen("recorded") ? ":" : ".") < 0 ||
            mf_buf_add(text, at, len) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "%s: more token counts than a profile can hold", *routing + 1);
        at += len;
        at += strcspn(at, digits);
    }
    *routing = text->data;
    return 0;
}

/* Converts percent ("3%" or "3") to the API's fraction. Refuses numbers below 1 without '%', which could be
 * fractions. */
static int read_percent(const char **value, char fraction[32])
{
    bool sign;
    double percent;

    if (!*value)
        return 0;
    if (mf_parse_percent(*value, &percent, &sign) < 0 || !(percent >= 0 && percent < 100))
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--min-effect '%s': expected a percentage of at least 0%% and below 100%%",
                           *value);
    if (!sign && percent > 0 && percent < 1)
        return mf_cli_fail(MF_EXIT_USAGE, "--min-effect '%s': ambiguous without a unit; write %.9g%% or %s%%",
                           *value, percent * 100, *value);
    mf_format(fraction, 32, "%.9g", percent / 100);
    *value = fraction;
    return 0;
}

/* Makes an idempotency key. A repeated request with the same key creates no second batch. */
static void make_key(char key[40])
{
    uint64_t random[2] = {0, 0};

    (void)!getrandom(random, sizeof(random), 0);
    mf_format(key, 40, "cli-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
}

/* Sends the request, and retries once if the connection broke. The idempotency key makes the retry safe. */
static int send(struct mf_cli *cli, const struct mf_http_request *q, cJSON **ret)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    int code;

    mf_http_reply_init(&reply);
    code = mf_api_send(cli, q, &reply);
    if (code == MF_EXIT_UNREACHED && reply.status == 0)
        code = mf_api_send(cli, q, &reply);
    if (code != 0)
        return code;
    *ret = mf_api_parse(reply.body.data, reply.body.len);
    if (!*ret)
        return mf_cli_fail(MF_EXIT_UNREACHED, "the reply is not JSON; check that the URL is moefarmd's");
    return 0;
}

static void print_line(const char *file, const cJSON *entry)
{
    fprintf(stderr, "%s", file);
    if (mf_api_i64(entry, "line", 0) > 0)
        fprintf(stderr, ":%" PRId64, mf_api_i64(entry, "line", 0));
}

static int report(struct mf_cli *cli, const char *file, const cJSON *receipt)
{
    const cJSON *error, *errors = mf_json_array(receipt, "errors"), *column, *warning;
    int64_t undecided = mf_api_i64(receipt, "undecided", 0);
    char kept[120] = "";

    if (undecided > 0)
        mf_format(kept, sizeof(kept),
                  ", %" PRId64 " of them undecided: their known rows cannot be compared and are kept",
                  undecided);
    if (cli->json)
        (void)mf_api_print(receipt);
    else
        printf("batch %" PRId64 ": %" PRId64 " shapes, %" PRId64 " tasks%s\n",
               mf_api_i64(receipt, "batch", 0), mf_api_i64(receipt, "shapes", 0),
               mf_api_i64(receipt, "tasks", 0), kept);
    (void)fflush(stdout);
    cJSON_ArrayForEach (column, mf_json_array(receipt, "unknown_columns")) {
        print_line(file, column);
        fprintf(stderr, ": warning: %s\n", mf_api_text(column, "message", "unknown column"));
    }
    cJSON_ArrayForEach (warning, mf_json_array(receipt, "warnings")) {
        if (cJSON_IsString(warning))
            fprintf(stderr, "warning: %s\n", warning->valuestring);
    }
    cJSON_ArrayForEach (error, errors) {
        print_line(file, error);
        fprintf(stderr, ": %s: %s\n", mf_api_text(error, "at", "row"),
                mf_api_text(error, "message", "refused"));
    }
    return cJSON_GetArraySize(errors) > 0 ? MF_EXIT_FAILED : MF_EXIT_OK;
}

/* Fills in a flag and its entry in the option table. */
static void init_flag(struct flag *f, struct mf_opt *opt, const char *member, const char *argument)
{
    f->member = member;
    mf_format(f->name, sizeof(f->name), "%s", member);
    for (char *c = f->name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    *opt = (struct mf_opt){
        .name = f->name, .type = MF_OPT_TEXT, .value = &f->value, .argument = argument, .help = f->help};
}

/* Describes the option as a percentage, although the API takes a fraction. */
static void describe_percent(struct flag *f, struct mf_opt *opt)
{
    opt->argument = "PERCENT";
    mf_format(f->help, sizeof(f->help),
              "minimum improvement of a new row with --promote improved, 0%% to below 100%% (default: %g%%)",
              100 * mf_batch_options_default().min_effect);
}

static void describe_routing(struct flag *f)
{
    size_t len = strlen(f->help);

    mf_format(f->help + len, sizeof(f->help) - len, "; @FILE reads the token count of each expert");
}

static void init_option(struct flag *f, struct mf_opt *opt, const struct mf_batch_option *o)
{
    init_flag(f, opt, o->name, o->argument);
    mf_batch_option_help(o, f->help);
    f->value = mf_aiter_env_text(o);
    if (strcmp(o->name, "min_effect") == 0)
        describe_percent(f, opt);
    else if (strcmp(o->name, "routing") == 0)
        describe_routing(f);
}

/* Fills in all flags, beginning with the batch's name. Returns the number of flags. */
static size_t init_flags(struct flag flags[N_FLAGS_MAX], struct mf_opt opts[N_FLAGS_MAX])
{
    size_t n = 1;

    init_flag(&flags[0], &opts[0], "name", "TEXT");
    mf_format(flags[0].help, sizeof(flags[0].help), "name of the batch (default: the file's name)");
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o), n++)
        init_option(&flags[n], &opts[n], o);
    return n;
}

/* Converts values whose form on the command line differs from the API's. */
static int convert_values(struct flag *flags, size_t n, struct mf_buf *counts, char fraction[32])
{
    int code = 0;

    for (size_t i = 0; i < n && code == 0; i++) {
        if (strcmp(flags[i].member, "routing") == 0)
            code = read_counts(&flags[i].value, counts);
        else if (strcmp(flags[i].member, "min_effect") == 0)
            code = read_percent(&flags[i].value, fraction);
    }
    return code;
}

int mf_cmd_submit(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const char *key = NULL, *baseline = NULL, *file, *slash;
    char random_key[40], fraction[32];
    struct flag flags[N_FLAGS_MAX] = {0};
    struct mf_opt opts[N_FLAGS_MAX + 3];
    size_t n = init_flags(flags, opts);
    bool watch = false;
    _cleanup_(mf_buf_release) struct mf_buf body, path, counts, known;
    _cleanup_(cJSON_Deletep) cJSON *receipt = NULL;
    struct mf_http_request q;
    int rest, r, code;

    mf_buf_init(&body, BODY_MAX);
    mf_buf_init(&path, PATH_MAX_BYTES);
    mf_buf_init(&counts, PATH_MAX_BYTES);
    mf_buf_init(&known, BODY_MAX);
    opts[n] = (struct mf_opt){.name = "idempotency-key",
                              .type = MF_OPT_TEXT,
                              .value = &key,
                              .argument = "TEXT",
                              .help = "idempotency key; the same key creates at most one batch"};
    opts[n + 1] = (struct mf_opt){
        .name = "watch", .type = MF_OPT_BOOL, .value = &watch, .help = "follow the batch until it ends"};
    opts[n + 2] = (struct mf_opt){
        .name = "baseline",
        .type = MF_OPT_TEXT,
        .value = &baseline,
        .argument = "FILE",
        .help = "tuned table that is deployed; a new row replaces one of its rows only if it wins"};
    r = mf_cli_parse(cli, self, opts, n + 3, 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;

    file = argv[rest];
    code = mf_file_read(file, &body);
    if (code == 0)
        code = convert_values(flags, n, &counts, fraction);
    if (code == 0 && baseline)
        code = mf_file_read(baseline, &known);
    if (code != 0)
        return code;
    slash = strrchr(file, '/');
    if (!flags[0].value && strcmp(file, "-") != 0 && !is_json(&body))
        flags[0].value = slash ? slash + 1 : file;
    (void)mf_buf_adds(&path, "/api/v1/batches");
    if (baseline || is_json(&body)) {
        code = put_in_json(&body, baseline ? known.data : NULL, flags, n);
        if (code != 0)
            return code;
    } else {
        for (size_t i = 0; i < n; i++)
            mf_http_add_query(&path, flags[i].member, flags[i].value);
    }
    make_key(random_key);
    q = (struct mf_http_request){.method = "POST",
                                 .path = path.data,
                                 .idempotency_key = key ? key : random_key,
                                 .content_type = is_json(&body) ? "application/json" : "text/csv",
                                 .body = body.data,
                                 .body_len = body.len};
    code = send(cli, &q, &receipt);
    if (code != 0)
        return code;
    code = report(cli, file, receipt);
    if (watch) {
        r = mf_watch_batch(cli, mf_api_i64(receipt, "batch", 0),
                           &(struct mf_watch_options){.reconnect_timeout_s = MF_WATCH_TIMEOUT_S});
        code = r != 0 ? r : code;
    }
    return code;
}
