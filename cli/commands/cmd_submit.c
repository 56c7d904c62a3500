/* moefarm submit: submits a file of shapes as a batch. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "cli/support/api.h"
#include "cli/support/file.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define BODY_MAX        (16u << 20) /* moefarmd's limit */
#define COUNTS_FILE_MAX (1u << 20)
#define PATH_MAX_BYTES  32768 /* a recorded profile is the longest option */

/* A batch option of the API. Values stay text: the coordinator checks them, and its error names the option.
 */
struct option {
    const char *name; /* in the API; the flag has '-' instead of '_' */
    const char *argument, *help;
};
/* clang-format off */
static const struct option options[] = {
    {"name", "TEXT", "name of the batch (default: the file's name)"},
    {"classes", "LIST", "device classes, as in gfx942/304,cpu-znver4/2 (default: all that have workers)"},
    {"priority", "N", "priority from 0 to 100, higher is sooner (default: 50)"},
    {"topk", "N", "finalists: the N cheapest pipelines, 1 to 64 (default: 8)"},
    {"err_ratio", "X", "maximum mismatch ratio, defined as in AITER (default: 0.1)"},
    {"time_cap_ms", "MS", "time limit of one step in ms, 100 to 600000 (default: 10000)"},
    {"routing", "PROFILE",
     "routing profile: uniform, balanced, zipf:1.2, hot:0.5, recorded:31.0.7, "
     "router:sigmoid_groups+shared, or @FILE with the token count of each expert (default: uniform)"},
    {"regret", "LIST",
     "routing profiles under which the winner's regret is measured, or none (default: balanced,zipf:1.2)"},
    {"no_fuse", "LIST", "ops that no step may fuse, as in gemm1+act,gemm1+gemm2"},
    {"fuse_saves", "BYTES",
     "minimum memory traffic that a fused step saves compared with separate kernels (default: 0)"},
    {"warmup", "N", "untimed runs before the samples of each candidate (default: 0)"},
    {"iters", "N", "samples for the winner's time, 5 to 4000 (default: at most 20)"},
    {"split_k", "0|1", "0 excludes split-K steps (default: 1)"},
    {"shape_grouped", "0|1", "1 measures all steps of a shape on one worker (default: 0)"},
    {"search", "MODE",
     "race, exhaustive (all gates and samples for every step) or enumerate (no measurement) (default: race)"},
    {"consumer", "NAME",
     "moefarm, or aiter: tunes the key that AITER's production computes for a row (default: moefarm)"},
    {"promote", "MODE",
     "always: the new row of a shape replaces the known row; improved: only if it wins against the known row "
     "(default: improved with --baseline, else always)"},
    {"min_effect", "PERCENT", "with --promote improved: minimum improvement of a new row (default: 3%)"},
    {"layout", "MODE",
     "common: one weight layout per layer model; free: any layout per shape; \"w1=row w2=row\": this layout "
     "(default: common)"},
    {"seed", "N", "seed of the data (default: 1)"},
};
/* clang-format on */
#define N_OPTIONS MF_ARRAY_LEN(options)

static bool is_json(const struct mf_buf *body)
{
    size_t at = strspn(body->data, " \t\r\n\xef\xbb\xbf");

    return body->data[at] == '{';
}

/* Sets a member of the submission, replacing the file's. Numbers become JSON numbers, except in the name. */
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

static int put_in_json(struct mf_buf *body, const char *baseline, const char *const *values)
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
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (values[i] && set_member(submission, options[i].name, values[i]) < 0)
            return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    }
    text = mf_json_print(submission);
    mf_buf_clear(body);
    if (!text || mf_buf_adds(body, text) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "out of memory");
    return 0;
}

/* Expands "@FILE" to a recorded profile of the integers in the file. Any other text separates them. */
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

/* Sends the request, and retries once if the connection broke. The idempotency key makes this safe. */
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
    const cJSON *error, *errors = mf_json_array(receipt, "errors"), *column;
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
    cJSON_ArrayForEach (error, errors) {
        print_line(file, error);
        fprintf(stderr, ": %s: %s\n", mf_api_text(error, "at", "row"),
                mf_api_text(error, "message", "refused"));
    }
    return cJSON_GetArraySize(errors) > 0 ? MF_EXIT_FAILED : MF_EXIT_OK;
}

int mf_cmd_submit(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const char *values[N_OPTIONS] = {NULL}, *key = NULL, *baseline = NULL, *file, *slash;
    char names[N_OPTIONS][24], random_key[40], fraction[32];
    struct mf_opt opts[N_OPTIONS + 3];
    bool watch = false;
    _cleanup_(mf_buf_release) struct mf_buf body, path, counts, known;
    _cleanup_(cJSON_Deletep) cJSON *receipt = NULL;
    struct mf_http_request q;
    int rest, r, code;

    mf_buf_init(&body, BODY_MAX);
    mf_buf_init(&path, PATH_MAX_BYTES);
    mf_buf_init(&counts, PATH_MAX_BYTES);
    mf_buf_init(&known, BODY_MAX);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        mf_format(names[i], sizeof(names[i]), "%s", options[i].name);
        for (char *c = names[i]; *c; c++)
            *c = *c == '_' ? '-' : *c;
        opts[i] = (struct mf_opt){.name = names[i],
                                  .type = MF_OPT_TEXT,
                                  .value = &values[i],
                                  .argument = options[i].argument,
                                  .help = options[i].help};
    }
    opts[N_OPTIONS] = (struct mf_opt){.name = "idempotency-key",
                                      .type = MF_OPT_TEXT,
                                      .value = &key,
                                      .argument = "TEXT",
                                      .help = "idempotency key; the same key creates at most one batch"};
    opts[N_OPTIONS + 1] = (struct mf_opt){
        .name = "watch", .type = MF_OPT_BOOL, .value = &watch, .help = "follow the batch until it ends"};
    opts[N_OPTIONS + 2] = (struct mf_opt){
        .name = "baseline",
        .type = MF_OPT_TEXT,
        .value = &baseline,
        .argument = "FILE",
        .help = "tuned table that is deployed; a new row replaces one of its rows only if it wins"};
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;

    file = argv[rest];
    code = mf_file_read(file, &body);
    for (size_t i = 0; i < N_OPTIONS && code == 0; i++) {
        if (strcmp(options[i].name, "routing") == 0)
            code = read_counts(&values[i], &counts);
        else if (strcmp(options[i].name, "min_effect") == 0)
            code = read_percent(&values[i], fraction);
    }
    if (code == 0 && baseline)
        code = mf_file_read(baseline, &known);
    if (code != 0)
        return code;
    slash = strrchr(file, '/');
    if (!values[0] && strcmp(file, "-") != 0 && !is_json(&body))
        values[0] = slash ? slash + 1 : file;
    (void)mf_buf_adds(&path, "/api/v1/batches");
    if (baseline || is_json(&body)) {
        code = put_in_json(&body, baseline ? known.data : NULL, values);
        if (code != 0)
            return code;
    } else {
        for (size_t i = 0; i < N_OPTIONS; i++)
            mf_http_add_query(&path, options[i].name, values[i]);
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
