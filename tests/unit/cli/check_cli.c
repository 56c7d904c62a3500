/* moefarm commands against a fake HTTP server: tests requests, output and exit status. */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/batch_options.h"
#include "common/net/http_client.h"
#include "support/farm/fake_answers.h"
#include "support/farm/fake_http.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/table_columns.h"

static struct fake_http server;

static void teardown(void)
{
    fake_http_release(&server);
    remove_folder();
}

/* ---- usage ---- */

static const struct {
    const char *words[6];
    int code;
    const char *says;
} usage_cases[] = {
    {{NULL}, 2, "commands"},
    {{"frob"}, 2, "unknown command 'frob'; moefarm --help lists the commands"},
    {{"statsu"}, 2, "unknown command 'statsu'; moefarm --help lists the commands"},
    {{"exprot"}, 2, "unknown command 'exprot'; did you mean export?"},
    {{"csv", "chekc"}, 2, "unknown command 'chekc'; did you mean csv check?"},
    {{"csv", "frobnicate"}, 2, "unknown command 'frobnicate'; moefarm csv --help lists the commands"},
    {{"csv", "check", "--url", "http://a"}, 2, "unknown option --url"},
    {{"submit"}, 2, "missing argument; usage: moefarm submit [options] FILE"},
    {{"submit", "/nonexistent.csv"}, 2, "/nonexistent.csv: No such file"},
    {{"show", "1", "2"}, 2, "too many arguments"},
    {{"watch", "x"}, 2, "'x' is not the number of a batch"},
    {{"rank", "1", "--finalist"}, 2, "did you mean --finalists"},
    {{"rank"}, 2, "expected either the number of a task or --shape"},
    {{"rank", "token=4,foo=1"}, 2, "'foo': unknown column"},
    {{"rank", "7", "--top", "0"}, 2, "--top: '0' is not an integer from 1"},
    {{"export", "--set", "x"}, 2, "require --into FILE"},
    {{"export", "--into", "a", "-o", "b"}, 2, "give one of them"},
    {{"export", "--into", "a", "--consumer", "aiter"}, 2, "--into requires --consumer moefarm"},
    {{"export", "--consumer", "vllm"}, 2, "--consumer vllm writes several files; give -o FOLDER"},
    {{"export", "--triton-version", "3.6.0"}, 2, "requires --consumer vllm or sglang"},
    {{"release"}, 2, "rollback CHANNEL [RELEASE]"},
    {{"release", "frieze"}, 2, "unknown command 'frieze'; did you mean release freeze?"},
    {{"release", "show"}, 2, "usage: moefarm release show [options] RELEASE"},
    {{"release", "stage", "a/b", "1"}, 2, "'a/b' is not a channel name"},
    {{"release", "stage", "stable", "1;2"}, 2, "'1;2' is not the number or name of a release"},
    {{"release", "freeze", "one"}, 2, "too many arguments"},
    {{"token", "read"}, 2, "missing argument; usage: moefarm token [options] ROLE NAME"},
    {{"pull", "stable"}, 2, "-o FILE is missing"},
    {{"pull", "../x", "-o", "t"}, 2, "'../x' is not a channel name"},
    {{"quarantine", "lift"}, 2, "quarantine: unknown action 'lift'"},
    {{"quarantine", "revive"}, 2, "usage: moefarm quarantine [options] [revive KERNEL]"},
    {{"quarantine", "revive", "sim_s1"}, 2, "'sim_s1' is not the number of a kernel"},
    {{"quarantine", "--class", "gfx942/304"}, 2, "--class requires revive"},
    {{"batches", "--url", "gopher://x"},
     2,
     "'gopher://x': not a URL; use https://host:port, or http:// for this machine"},
    {{"batches"}, 3, "check that moefarmd runs there"},
    {{"run-config", "/nonexistent.csv", "--device", "tpu:0"}, 2, "--device:"},
};

MF_TEST(usage, .rows = MF_ARRAY_LEN(usage_cases))
{
    const char *const *w = usage_cases[_i].words;
    /* the discard port of loopback, on which no server listens */
    struct ran r = moefarm("http://127.0.0.1:9", w[0], w[1], w[2], w[3], w[4], NULL);

    assert_code(r, usage_cases[_i].code);
    assert_says(r.err, usage_cases[_i].says);
}

MF_TEST(help)
{
    struct ran r = moefarm("", "--help", NULL);

    assert_code(r, 0);
    for (const char *const *word =
             (const char *const[]){"submit FILE", "watch BATCH", "exit codes:", "--url", NULL};
         *word; word++)
        assert_says(r.out, *word);
    r = moefarm("", "export", "--help", NULL);
    assert_code(r, 0);
    assert_says(r.out, "--into FILE");
}

/* Copies `text` to `ret` and replaces each line break and the indentation after it with one space. */
static void join_lines(const char *text, char *ret, size_t cap)
{
    size_t n = 0;
    for (; *text && n + 1 < cap; text++) {
        bool space = *text == ' ' || *text == '\n';
        if (!space)
            ret[n++] = *text;
        else if (n > 0 && ret[n - 1] != ' ')
            ret[n++] = ' ';
    }
    ret[n] = '\0';
}

static const char *const described[] = {"submit",  "tune",       "export", "watch",
                                        "compare", "run-config", "misses"};

MF_TEST(help_shows_defaults_once, .rows = MF_ARRAY_LEN(described))
{
    static char joined[1 << 15];
    struct ran r = moefarm("", described[_i], "--help", NULL);
    assert_code(r, 0);
    join_lines(r.out, joined, sizeof(joined));
    for (const char *at = joined; (at = strstr(at, "(default: ")) != NULL; at++)
        ck_assert_msg(strncmp(at + strcspn(at, ")"), ") (default: ", 12) != 0, "%s: %.80s", described[_i],
                      at);
}

/* moefarm submit has an option for every batch option. Its help contains the help text of the batch option.
 */
MF_TEST(submit_help)
{
    static char joined[1 << 15];
    struct ran r = moefarm("", "submit", "--help", NULL);
    assert_code(r, 0);
    join_lines(r.out, joined, sizeof(joined));
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
        char text[MF_OPTION_HELP_MAX], flag[64];
        mf_format(flag, sizeof(flag), "--%s ", o->name);
        for (char *c = flag; *c; c++)
            *c = *c == '_' ? '-' : *c;
        assert_says(joined, flag);
        mf_batch_option_help(o, text);
        if (strcmp(o->name, "min_effect") != 0) /* this option is a percentage on the command line */
            assert_says(joined, text);
    }
    assert_says(joined,
                "--min-effect PERCENT minimum improvement of a new row with --promote improved, 0% to "
                "below 100% (default: 3%)");
    assert_says(joined, "; @FILE reads the token count of each expert");
}

/* ---- lists and errors ---- */

#define PROBLEM                                                                                              \
    "{\"type\":\"about:blank\",\"title\":\"Unprocessable\",\"status\":422,\"detail\":\"no row of the table " \
    "is "                                                                                                    \
    "good\",\"errors\":[{\"at\":\"shapes[3].topk\",\"code\":\"range\",\"message\":\"topk is above "          \
    "expert\"}]}"

#define TWO_WORKERS                                                                           \
    {                                                                                         \
        .request = "GET /api/v1/workers?limit=1000", .status = 200,                           \
        .body = "{\"items\":[{\"id\":3,\"name\":\"node1-gpu0\"},{\"id\":4,\"name\":\"4x\"}]," \
                "\"next\":null}"                                                              \
    }

/* The worker to drain is given by its number or by its name. */
MF_TEST(drain)
{
    static const struct fake_answer by_number[] = {
        {.request = "POST /api/v1/workers/4/drain", .status = 200, .body = "{}"}};
    static const struct fake_answer by_name[] = {
        TWO_WORKERS, {.request = "POST /api/v1/workers/3/drain", .status = 200, .body = "{}"}};
    static const struct fake_answer unknown[] = {TWO_WORKERS};
    fake_http_start(&server, by_number, MF_ARRAY_LEN(by_number));
    struct ran r = moefarm(server.url, "drain", "4", NULL);
    assert_code(r, 0);
    fake_http_start(&server, by_name, MF_ARRAY_LEN(by_name));
    r = moefarm(server.url, "drain", "node1-gpu0", NULL);
    assert_code(r, 0);
    assert_says(r.out, "worker 3 finishes its current unit");
    fake_http_start(&server, unknown, MF_ARRAY_LEN(unknown));
    r = moefarm(server.url, "drain", "node1", NULL);
    assert_code(r, 2);
    assert_says(r.err, "unknown worker 'node1'");
}

/* A quarantined worker is listed as such, and an admin revives it by its number or by its name. */
MF_TEST(revives_a_worker)
{
    static const struct fake_answer list[] = {
        {.request = "GET /api/v1/workers?limit=1000",
         .status = 200,
         .body =
             "{\"items\":[{\"id\":3,\"name\":\"bad\",\"state\":\"idle\",\"quarantined\":\"it claims that\"},"
             "{\"id\":4,\"name\":\"good\",\"state\":\"idle\",\"quarantined\":\"\",\"refused_families\":"
             "[{\"name\":\"torch\",\"why\":\"no module named torch\"}]}],\"next\":null}"}};
    static const struct fake_answer revived[] = {
        TWO_WORKERS, {.request = "POST /api/v1/workers/3/revive", .status = 200, .body = "{}"}};
    fake_http_start(&server, list, MF_ARRAY_LEN(list));
    struct ran r = moefarm(server.url, "workers", NULL);
    assert_code(r, 0);
    assert_says(r.out, "quarantined");
    assert_says(r.out, "torch (no module named torch)");
    assert_says(r.out, "idle");
    fake_http_start(&server, revived, MF_ARRAY_LEN(revived));
    r = moefarm(server.url, "revive-worker", "node1-gpu0", NULL);
    assert_code(r, 0);
    assert_says(r.out, "worker 3 is no longer in quarantine");
}

/* clang-format off */
#define LISTED(items) \
    {.request = "GET /api/v1/quarantine?limit=1000", .status = 200, \
     .body = "{\"items\":[" items "],\"next\":null}"}
#define REVIVE "POST /api/v1/quarantine/12/revive?class=gfx950%2F256"
#define KERNEL_ON(class) \
    "{\"kernel\":12,\"family\":\"tile\",\"name\":\"tile_s2\",\"class\":\"" class "\"," \
    "\"reason\":\"killed two runners\"," \
    "\"at_ms\":1790000000000,\"strikes\":[{\"status\":\"hang\",\"reason\":\"silent for 10 s\"," \
    "\"worker\":\"w1\",\"task\":5,\"at_ms\":1789999940000}]}"
#define ONE KERNEL_ON("gfx950/256")
#define TWO KERNEL_ON("gfx942/304") "," ONE
#define NO_ROLE "{\"detail\":\"this route needs a token of role admin, this token has role read\"}"

static const struct {
    struct fake_answer answers[2];
    const char *words[4];
    int code;
    const char *says;
} quarantine_cases[] = {
    {{LISTED("")}, {NULL}, 0, "no kernel is quarantined\n"},
    {{LISTED("")}, {"--json"}, 0, "[]\n"},
    {{LISTED(TWO)}, {NULL}, 0,
     "    12  gfx942/304  tile:tile_s2        2026-09-21 14:13  killed two runners\n"
     "                    hang on w1, task 5  2026-09-21 14:12  silent for 10 s\n"
     "    12  gfx950/256  tile:tile_s2 "},
    {{LISTED(TWO)}, {"revive", "13"}, 2,
     "kernel 13 is not quarantined; moefarm quarantine lists the quarantined kernels"},
    {{LISTED(TWO)}, {"revive", "12"}, 2, "kernel 12 is quarantined on gfx942/304, gfx950/256: give --class"},
    {{LISTED(TWO)}, {"revive", "12", "--class", "gfx942"}, 2,
     "kernel 12 is not quarantined on 'gfx942', but on gfx942/304, gfx950/256"},
    {{LISTED(TWO), {.request = REVIVE, .status = 200, .body = "{}"}},
     {"revive", "12", "--class", "gfx950/256"}, 0,
     "kernel 12 tile:tile_s2 is no longer quarantined on gfx950/256; submit its shapes again\n"},
    {{LISTED(ONE), {.request = REVIVE, .status = 200, .body = "{}"}}, {"revive", "12"}, 0,
     "kernel 12 tile:tile_s2 is no longer quarantined on gfx950/256; submit its shapes again\n"},
    {{LISTED(ONE), {.request = REVIVE, .status = 403, .body = NO_ROLE}}, {"revive", "12"}, 2,
     "this route needs a token of role admin, this token has role read"},
};
/* clang-format on */

MF_TEST(quarantine, .rows = MF_ARRAY_LEN(quarantine_cases))
{
    const char *const *w = quarantine_cases[_i].words;
    fake_http_start(&server, quarantine_cases[_i].answers, quarantine_cases[_i].answers[1].request ? 2 : 1);
    struct ran r = moefarm(server.url, "quarantine", w[0], w[1], w[2], w[3], NULL);
    assert_code(r, quarantine_cases[_i].code);
    assert_says(r.code == 0 ? r.out : r.err, quarantine_cases[_i].says);
}

MF_TEST(lists_follow_the_cursor)
{
    static const struct fake_answer answers[] = {
        {.request = "GET /api/v1/batches?limit=1000",
         .status = 200,
         .chunked = true,
         .body = "{\"items\":[{\"id\":8,\"name\":\"b\",\"state\":\"open\",\"priority\":50,\"created_ms\":"
                 "1790000000000,"
                 "\"tasks\":42,\"done\":7,\"failed\":0,\"steps\":100,\"measured\":20}],\"next\":\"a+b/c=\"}"},
        {.request = "GET /api/v1/batches?limit=1000&cursor=a%2Bb%2Fc%3D",
         .status = 200,
         .body = "{\"items\":[{\"id\":7,\"name\":\"first\",\"state\":\"done\",\"tasks\":1,\"done\":1}],"
                 "\"next\":null}"},
    };
    struct ran r;

    fake_http_start(&server, answers, MF_ARRAY_LEN(answers));
    r = moefarm(server.url, "batches", NULL);
    assert_code(r, 0);
    assert_says(r.out, "8  b ");
    assert_says(r.out, "7  first");
    assert_says(r.out, "2026-09-21 14:13");
}

static const struct {
    struct fake_answer answer;
    int code;
    const char *says;
} failure_cases[] = {
    {{.status = 422, .type = "application/problem+json", .body = PROBLEM},
     2,
     "shapes[3].topk: topk is above expert"},
    {{.status = 404, .body = "{\"title\":\"no such batch\"}"}, 2, "no such batch"},
    /* if the error repeats the detail, it is printed only once */
    {{.status = 401,
      .body = "{\"detail\":\"no token\",\"errors\":[{\"at\":\"header.Authorization\",\"message\":\"no "
              "token\"}]}"},
     2,
     "moefarm: no token\n  pass a token with "},
    {{.status = 502, .type = "text/html", .body = "<h1>bad gateway</h1>"}, 3, "HTTP status 502"},
    {{.status = 200, .type = "text/html", .body = "<h1>hello</h1>"}, 3, "the reply is not JSON"},
    {{.status = 200, .body = "{\"items\":3}"}, 3, "the reply is not a list"},
    {{.status = 200, .body = "{\"items\":[],\"next\":null}", .cut = true}, 3, "transfer closed"},
    {{.status = 200, .body = "{\"items\":[],\"next\":null}", .cut = true, .chunked = true}, 3, "transfer"},
};

MF_TEST(failures, .rows = MF_ARRAY_LEN(failure_cases))
{
    struct fake_answer answer = failure_cases[_i].answer;
    struct ran r;

    answer.request = "GET *";
    fake_http_start(&server, &answer, 1);
    r = moefarm(server.url, "workers", NULL);
    assert_code(r, failure_cases[_i].code);
    assert_says(r.err, failure_cases[_i].says);
}

/* ---- submit ---- */

#define RECEIPT "{\"batch\":7,\"shapes\":2,\"tasks\":2,\"errors\":[]}"
#define RECEIPT_ERRORS                                                                                  \
    "{\"batch\":7,\"shapes\":1,\"tasks\":1,\"errors\":[{\"line\":3,\"at\":\"topk\",\"code\":\"range\"," \
    "\"message\":\"topk has to be from 1 to 127\"}]}"

MF_TEST(submit_csv)
{
    static const struct fake_answer answers[] = {
        {.request = "POST /api/v1/batches*", .status = 201, .body = RECEIPT}};
    struct ran r;

    text_file_write(in_folder("shapes.csv"), "token,model_dim\n1,2\n");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), "--topk", "4", "--classes=cpu-x/2,gfx942/304",
                "--err-ratio", "0.05", "--idempotency-key", "k1", NULL);
    fake_http_stop(&server);
    assert_code(r, 0);
    ck_assert_str_eq(r.out, "batch 7: 2 shapes, 2 tasks\n");
    assert_says(
        server.log.data,
        "POST /api/v1/batches?name=shapes.csv&classes=cpu-x%2F2%2Cgfx942%2F304&topk=4&err_ratio=0.05 HTTP");
    assert_says(server.log.data, "Content-Type: text/csv\r\n");
    assert_says(server.log.data, "Idempotency-Key: k1\r\n");
    assert_says(server.log.data, "\r\n\r\ntoken,model_dim\n1,2\n");
}

/* An unknown column causes a warning but no failure. */
MF_TEST(submit_unknown_column)
{
    static const struct fake_answer answers[] = {
        {.request = "POST /api/v1/batches*",
         .status = 201,
         .body =
             "{\"batch\":7,\"shapes\":2,\"tasks\":2,\"errors\":[],\"unknown_columns\":[{\"at\":\"act_limt\","
             "\"code\":\"unknown_column\",\"message\":\"there is no column 'act_limt'\",\"line\":1}]}"}};
    struct ran r;

    text_file_write(in_folder("shapes.csv"), "token,act_limt\n1,2\n");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), NULL);
    assert_code(r, 0);
    ck_assert_str_eq(r.out, "batch 7: 2 shapes, 2 tasks\n");
    assert_says(r.err, "shapes.csv:1: warning: there is no column 'act_limt'\n");
}

/* A class without a worker causes a warning but no failure. */
MF_TEST(submit_without_worker)
{
    static const struct fake_answer answers[] = {
        {.request = "POST /api/v1/batches*",
         .status = 201,
         .body = "{\"batch\":7,\"shapes\":1,\"tasks\":1,\"errors\":[],\"unknown_columns\":[],\"warnings\":["
                 "\"no worker of class gfx942/304 is connected; its tasks wait for one\"]}"}};
    struct ran r;

    text_file_write(in_folder("shapes.csv"), "token\n1\n");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), NULL);
    assert_code(r, 0);
    ck_assert_str_eq(r.out, "batch 7: 1 shapes, 1 tasks\n");
    assert_says(r.err, "warning: no worker of class gfx942/304 is connected; its tasks wait for one\n");
}

/* The deployed table and the shapes are sent in one JSON body. The value of --min-effect is a percentage. */
MF_TEST(submit_baseline)
{
    static const struct fake_answer answers[] = {
        {.request = "POST /api/v1/batches", .status = 201, .body = RECEIPT}};
    struct ran r;

    text_file_write(in_folder("shapes.csv"), "token,model_dim\n1,2\n");
    text_file_write(in_folder("table.csv"), "gfx,\"us\"\n");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), "--baseline", in_folder("table.csv"),
                "--min-effect", "5", NULL);
    fake_http_stop(&server);
    assert_code(r, 0);
    assert_says(server.log.data, "Content-Type: application/json\r\n");
    assert_says(server.log.data, "\"csv\":\"token,model_dim\\n1,2\\n\"");
    assert_says(server.log.data, "\"baseline\":\"gfx,\\\"us\\\"\\n\"");
    assert_says(server.log.data, "\"name\":\"shapes.csv\"");
    assert_says(server.log.data, "\"options\":{\"min_effect\":0.05}");
    /* rows of the deployed table that cannot be compared are reported by the submit command */
    static const struct fake_answer foreign[] = {
        {.request = "POST /api/v1/batches",
         .status = 201,
         .body =
             "{\"batch\":7,\"shapes\":2,\"tasks\":2,\"undecided\":1,\"errors\":[{\"at\":\"baseline, line 2\","
             "\"code\":\"baseline\",\"message\":\"the row names no pipeline\"}]}"}};
    fake_http_start(&server, foreign, 1);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), "--baseline", in_folder("table.csv"), NULL);
    fake_http_stop(&server);
    assert_code(r, 1);
    assert_says(r.out, "2 tasks, 1 of them undecided: their known rows cannot be compared and are kept\n");
    assert_says(r.err, "shapes.csv: baseline, line 2: the row names no pipeline\n");
    r = moefarm("http://127.0.0.1:1", "submit", in_folder("shapes.csv"), "--baseline", "/nonexistent.csv",
                NULL);
    assert_code(r, 2);
}

static const struct {
    /* fraction: the value in the request; NULL if the option is rejected */
    const char *text, *fraction, *says;
} min_effects[] = {
    {"3%", "0.03", ""},
    {"3", "0.03", ""},
    {"0.5%", "0.005", ""},
    {"0", "0", ""},
    {"0.03", NULL, "--min-effect '0.03': ambiguous without a unit; write 3% or 0.03%"},
    {"300", NULL, "--min-effect '300': expected a percentage of at least 0% and below 100%"},
    {"100%", NULL, "'100%': expected"},
    {"%", NULL, "'%': expected"},
    {"3%%", NULL, "'3%%': expected"},
};

MF_TEST(submit_min_effect, .rows = MF_ARRAY_LEN(min_effects))
{
    static const struct fake_answer answers[] = {
        {.request = "POST /api/v1/batches*", .status = 201, .body = RECEIPT}};
    char sent[64];
    struct ran r;

    text_file_write(in_folder("shapes.csv"), "token,model_dim\n1,2\n");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), "--min-effect", min_effects[_i].text, NULL);
    fake_http_stop(&server);
    assert_code(r, min_effects[_i].fraction ? 0 : 2);
    assert_says(r.err, min_effects[_i].says);
    if (min_effects[_i].fraction) {
        (void)snprintf(sent, sizeof(sent), "&min_effect=%s HTTP", min_effects[_i].fraction);
        assert_says(server.log.data, sent);
    }
}

MF_TEST(submit_json)
{
    static const struct fake_answer answers[] = {
        {.request = "POST /api/v1/batches", .status = 201, .body = RECEIPT_ERRORS}};
    struct ran r;

    text_file_write(in_folder("shapes.json"),
                    " {\"name\":\"n\",\"csv\":\"a\",\"options\":{\"topk\":8,\"seed\":3}}");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "submit", "--topk", "4", "--layout", "free", "--name", "47",
                in_folder("shapes.json"), NULL);
    fake_http_stop(&server);
    assert_code(r, 1); /* a row was rejected */
    assert_says(r.err, "shapes.json:3: topk: topk has to be from 1 to 127");
    assert_says(server.log.data, "Content-Type: application/json\r\n");
    assert_says(server.log.data, "\"options\":{\"seed\":3,\"topk\":4,\"layout\":\"free\"}");
    assert_says(server.log.data, "\"name\":\"47\"");
    assert_says(server.log.data, "Idempotency-Key: cli-");
}

/* The first reply is truncated, so the program sends the request again with the same idempotency key. */
MF_TEST(submit_is_retried)
{
    static const struct fake_answer answers[] = {
        {.request = "POST *", .status = 201, .body = RECEIPT, .cut = true, .times = 1},
        {.request = "POST *", .status = 200, .body = RECEIPT},
    };
    char first[64] = "", second[64] = "";
    struct ran r;
    char *at;

    text_file_write(in_folder("shapes.csv"), "x\n");
    fake_http_start(&server, answers, 2);
    r = moefarm(server.url, "submit", in_folder("shapes.csv"), NULL);
    fake_http_stop(&server);
    assert_code(r, 0);
    at = strstr(server.log.data, "Idempotency-Key: ");
    ck_assert_ptr_nonnull(at);
    (void)sscanf(at, "Idempotency-Key: %60s", first);
    at = strstr(at + 1, "Idempotency-Key: ");
    ck_assert_ptr_nonnull(at);
    (void)sscanf(at, "Idempotency-Key: %60s", second);
    ck_assert_str_eq(first, second);
}

/* ---- watch ---- */

/* The event stream ends after event 3. Then the server replies 503. The program reconnects with Last-Event-ID
 * after each of the two failures. */
static const struct fake_answer watch_answers[] = {
    {.request = "GET /api/v1/batches/7",
     .status = 200,
     .body = "{\"id\":7,\"state\":\"open\",\"eta_s\":5,\"waiting\":["
             "{\"class\":\"gfx950/256\",\"tasks\":2,\"reason\":\"waits for a worker\"}]}",
     .times = 3},
    {.request = "GET /api/v1/batches/7",
     .status = 200,
     .body = "{\"id\":7,\"state\":\"done\",\"eta_s\":null}"},
    {.request = "GET /api/v1/batches/7/tasks*",
     .status = 200,
     .times = 3,
     .body =
         "{\"items\":[" TASK("1", "1", "probing", "") "," TASK("2", "2", "probing", "") "],\"next\":null}"},
    {.request = "GET /api/v1/batches/7/tasks*",
     .status = 200,
     .body = "{\"items\":[" TASK(
         "1", "1", "done",
         "\"us\":411.2,\"unstable\":\"it scatters\",\"decision\":\"kept\",") "," TASK("2", "2", "failed",
                                                                                      "\"reason\":\"why "
                                                                                      "not\",") "],\"next\":"
                                                                                                "null}"},
    {.request = "GET /api/v1/batches/7/events",
     .status = 200,
     .type = "text/event-stream",
     .times = 1,
     .cut = false,
     .chunked = true,
     .body = ": hello\n\nevent: task\nid: 3\ndata: "
             "{\"batch\":7,\"task\":1,\"state\":\"racing\",\"steps\":10,\"measured\":10}\n\n"},
    {.request = "GET /api/v1/batches/7/events", .status = 503, .body = "{}", .times = 1},
    {.request = "GET /api/v1/batches/7/events",
     .status = 200,
     .type = "text/event-stream",
     .chunked = true,
     .body = "event: batch\nid: 4\ndata: {\"batch\":7,\"state\":\"done\"}\n\n"},
};

MF_TEST(watch)
{
    struct ran r;
    char *at;

    fake_http_start(&server, watch_answers, MF_ARRAY_LEN(watch_answers));
    r = moefarm(server.url, "watch", "7", NULL);
    fake_http_stop(&server);
    assert_code(r, 1); /* task 2 failed */
    assert_says(r.out, "task 1  cpu-x/2  T1 H2048 I96 E128 k8 bf16: done, 411.2 us, UNSTABLE, kept\n");
    assert_says(r.out, "task 2  cpu-x/2  T2 H2048 I96 E128 k8 bf16: failed: why not\n");
    at = strstr(r.out, "waiting: 2 tasks of gfx950/256: waits for a worker\n");
    ck_assert_msg(at && !strstr(at + 1, "waiting: "), "not printed exactly once:\n%s", r.out);
    assert_says(r.out, "batch 7 done: 2 of 2 tasks, 1 failed");
    assert_says(r.out, ", 1 kept\n");
    ck_assert_msg(strchr(r.out, '\033') == NULL, "escape sequences although stdout is no terminal:\n%s",
                  r.out);
    at = strstr(server.log.data, "/events");
    ck_assert_ptr_nonnull(at);
    at = strstr(at + 1, "/events");
    ck_assert_ptr_nonnull(at);
    assert_says(at, "Last-Event-ID: 3\r\n");
}

MF_TEST(watch_without_coordinator)
{
    static const struct fake_answer answers[] = {
        {.request = "GET /api/v1/batches/7", .status = 200, .body = "{\"id\":7,\"state\":\"open\"}"},
        {.request = "GET /api/v1/batches/7/tasks*", .status = 200, .body = "{\"items\":[],\"next\":null}"},
        {.request = "GET *", .status = 503, .body = "{}"},
    };
    struct ran r;

    fake_http_start(&server, answers, MF_ARRAY_LEN(answers));
    r = moefarm(server.url, "watch", "7", "--reconnect-timeout", "0", NULL);
    assert_code(r, 3);
}

/* Reasons why the reader of an event stream stops, each with the message that names it. */
static const struct {
    struct fake_answer batch, events; /* replies after the first GET of the batch */
    const char *says;
} stream_failures[] = {
    {{.status = 502, .body = "{}"},
     {.status = 200, .type = "text/event-stream", .chunked = true, .body = ": hello\n\n"},
     "the event stream was closed: "},
    {{.status = 200, .body = "{\"id\":7,\"state\":\"open\"}"},
     {.status = 200, .type = "text/event-stream", .chunked = true, .body = NULL}, /* NULL: a long event */
     "an event exceeds the limit of 1 MiB"},
};

MF_TEST(watch_names_the_failure, .rows = MF_ARRAY_LEN(stream_failures))
{
    static char long_event[MF_SSE_EVENT_MAX + 100];
    struct fake_answer answers[] = {
        {.request = "GET /api/v1/batches/7",
         .status = 200,
         .body = "{\"id\":7,\"state\":\"open\"}",
         .times = 1},
        stream_failures[_i].batch,
        stream_failures[_i].events,
        {.request = "GET /api/v1/batches/7/tasks*", .status = 200, .body = "{\"items\":[],\"next\":null}"},
    };

    answers[1].request = "GET /api/v1/batches/7";
    answers[2].request = "GET /api/v1/batches/7/events";
    memset(long_event, 'x', sizeof(long_event) - 1);
    if (!answers[2].body)
        answers[2].body = long_event;
    fake_http_start(&server, answers, MF_ARRAY_LEN(answers));
    struct ran r = moefarm(server.url, "watch", "7", "--reconnect-timeout", "0", NULL);
    assert_code(r, 3);
    assert_says(r.err, stream_failures[_i].says);
    ck_assert_msg(!strstr(r.err, "the reply exceeds"), "%s", r.err);
}

MF_TEST(long_reply_is_refused)
{
    static const struct fake_answer answers[] = {{.request = "GET /", .status = 200, .body = "0123456789"}};
    _cleanup_(mf_http_freep) struct mf_http *h = NULL;
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;

    fake_http_start(&server, answers, 1);
    ck_assert_int_eq(mf_http_new(server.url, &(struct mf_http_access){.token = "", .ca = ""}, &h), 0);
    mf_http_reply_init(&reply);
    mf_buf_init(&reply.body, 8);
    ck_assert_int_eq(mf_http_send(h, &(struct mf_http_request){.path = "/"}, &reply), -EMSGSIZE);
    assert_says(mf_http_error(h), ": the reply exceeds the limit of 8 bytes");
}

/* Headers of a reply: one line, repeated, each with a value of `len` bytes. */
static const struct {
    size_t len, times;
    bool stream;
} long_headers[] = {{200 << 10, 1, false}, {200 << 10, 1, true}, {100, 10000, false}, {100, 10000, true}};

static int no_event(void *context, const char *kind, const char *data)
{
    (void)context, (void)kind, (void)data;
    return 0;
}

static int no_tick(void *context)
{
    (void)context;
    return 0;
}

MF_TEST(long_headers_are_refused, .rows = MF_ARRAY_LEN(long_headers))
{
    _cleanup_(mf_buf_release) struct mf_buf headers;
    _cleanup_(mf_http_freep) struct mf_http *h = NULL;
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    _cleanup_(mf_sse_release) struct mf_sse sse;
    long status;

    mf_buf_init(&headers, 4u << 20);
    for (size_t i = 0; i < long_headers[_i].times; i++)
        ck_assert_int_eq(mf_buf_addf(&headers, "X: %0*d\r\n", (int)long_headers[_i].len, 0), 0);
    const struct fake_answer answers[] = {
        {.request = "GET /", .status = 200, .body = "{}", .headers = headers.data}};
    fake_http_start(&server, answers, 1);
    ck_assert_int_eq(mf_http_new(server.url, &(struct mf_http_access){.token = "", .ca = ""}, &h), 0);
    mf_http_reply_init(&reply);
    mf_sse_init(&sse, no_event, NULL);
    ck_assert_int_eq(long_headers[_i].stream
                         ? mf_http_stream(h, "/", &sse, no_tick, &status)
                         : mf_http_send(h, &(struct mf_http_request){.path = "/"}, &reply),
                     -EMSGSIZE);
    assert_says(mf_http_error(h), ": the headers of the reply exceed the limit of ");
}

/* On Ctrl-C, the program prints that the batch continues, and then SIGINT ends it. */
MF_TEST(watch_interrupted)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char url[64];

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    mf_format(url, sizeof(url), "http://127.0.0.1:%d", ntohs(address.sin_port));
    struct ran r = moefarm_interrupted(fd, url, "watch", "7", NULL);
    assert_code(r, SIGINT);
    assert_says(r.err, "the batch continues");
    (void)close(fd);
}

/* Text of files and headers that reaches the terminal: a cell of a table, and the name of a release. */
MF_TEST(control_characters_of_files_are_replaced)
{
    static const struct fake_answer answers[] = {
        {.request = "GET *", .status = 404, .body = "{\"title\":\"a\\u001b[2Jb\"}", .type = "text/html"}};
    struct ran r;

    text_file_write(in_folder("table.csv"), SHAPE_COLUMNS ",\x1b]0;owned\x07\n4\x1b[2J,\xc2\x9b"
                                                          "31m\n");
    r = moefarm("", "csv", "check", in_folder("table.csv"), NULL);
    ck_assert_msg(!strchr(r.out, '\x1b') && !strchr(r.out, '\x07') && !strstr(r.out, "\xc2\x9b"), "%s",
                  r.out);
    ck_assert_msg(!strchr(r.err, '\x1b') && !strchr(r.err, '\x07') && !strstr(r.err, "\xc2\x9b"), "%s",
                  r.err);
    r = moefarm("http://127.0.0.1:1/\x1b[2J", "batches", NULL);
    ck_assert_msg(!strchr(r.err, '\x1b'), "%s", r.err);
    r = moefarm("", "frob\x1b[2J", NULL);
    assert_says(r.err, "unknown command 'frob?[2J'");
    fake_http_start(&server, answers, 1);
    r = moefarm(server.url, "batches", NULL);
    ck_assert_msg(!strchr(r.err, '\x1b'), "%s", r.err);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = make_folder, .teardown = teardown});
}
