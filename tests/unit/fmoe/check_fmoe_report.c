/* fmoe/report.c: tests how reports react to the coordinator's replies, the idempotency keys of retries, and
 * an unreachable coordinator. */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "support/farm/fake_http.h"
#include "support/farm/serving.h"
#include "support/mf_check.h"

#define TIMEOUT_MS 30000
#define KEY_MAX    128

static struct mf_device *device;
static struct fmoe *f;
static struct fmoe_layer *layer;
static struct serving data;

static void open_layer(void)
{
    struct fmoe_layer_model model;
    struct fmoe_error error = {""};
    struct mf_shape shape;
    const char *name = serving_device(&device);

    ck_assert_int_eq(mf_shape_parse("4,64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
                                    "bfloat16,QuantType.No,1,0",
                                    &shape),
                     0);
    model = serving_model(&shape, shape.token);
    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &f) == 0, "%s", error.text);
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &layer) == 0, "%s", error.text);
    serving_make(&data, device, layer, &shape);
}

static void close_layer(void)
{
    serving_release(&data);
    fmoe_close(f);
    device = mf_device_close(device);
}

/* Causes a miss: without a table, no call has a row. */
static void miss(int64_t tokens)
{
    const struct fmoe_call call = serving_call(&data, tokens, NULL);

    ck_assert_int_eq(fmoe_run(layer, &call), 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
}

static void report_to(const char *url)
{
    struct fmoe_error error = {""};

    ck_assert_msg(fmoe_report_start(f, url, NULL, 1, &error) == 0, "%s", error.text);
}

static struct fmoe_reported wait_for(const struct fmoe_reported *expected)
{
    struct fmoe_reported actual;

    for (int64_t end = mf_now_ms() + TIMEOUT_MS;;) {
        fmoe_report_state(f, &actual);
        if (actual.sent >= expected->sent && actual.failed >= expected->failed &&
            actual.refused >= expected->refused)
            return actual;
        ck_assert_msg(mf_now_ms() < end, "timeout after %llu sent, %llu failed, %llu refused reports",
                      (unsigned long long)actual.sent, (unsigned long long)actual.failed,
                      (unsigned long long)actual.refused);
        (void)poll(NULL, 0, 2);
    }
}

/* Returns the body of report n and copies its key. The body stays valid as long as the log exists. */
static const char *posted(struct fake_http *farm, int n, char key[KEY_MAX])
{
    static const char begin[] = "POST /api/v1/misses HTTP/1.1\r\n", header[] = "\r\nIdempotency-Key: ";
    const char *at = farm->log.data, *body;

    for (int i = 0; at && (at = strstr(at, begin)) != NULL && i < n; i++)
        at += strlen(begin);
    if (!at)
        return NULL;
    body = strstr(at, "\r\n\r\n");
    at = strcasestr(at, header);
    ck_assert(at && body && at < body);
    at += strlen(header);
    mf_format(key, KEY_MAX, "%.*s", (int)strcspn(at, "\r"), at);
    return body + 4;
}

/* A report that fails temporarily is sent again before newer reports, unchanged and with the same key. */
static const struct {
    int status;
    bool cut; /* the reply is truncated */
} temporary_failures[] = {{503, false}, {500, false}, {429, false}, {401, false}, {403, false}, {201, true}};

MF_TEST(retries_with_the_same_key, .rows = MF_ARRAY_LEN(temporary_failures))
{
    const struct fake_answer answers[] = {{.request = "POST /api/v1/misses",
                                           .status = temporary_failures[_i].status,
                                           .body = "{\"title\":\"not now\"}",
                                           .cut = temporary_failures[_i].cut,
                                           .times = 1},
                                          {.request = "POST /api/v1/misses", .status = 201, .body = "{}"}};
    char first[KEY_MAX], second[KEY_MAX], third[KEY_MAX];
    const char *one, *two, *three;
    struct fmoe_reported state;
    struct fake_http farm = {0};

    fake_http_start(&farm, answers, MF_ARRAY_LEN(answers));
    miss(3);
    report_to(farm.url);
    (void)wait_for(&(struct fmoe_reported){.failed = 1});
    miss(1);
    state = wait_for(&(struct fmoe_reported){.failed = 1, .sent = 1});
    ck_assert_uint_eq(state.failed, 1);
    ck_assert_uint_eq(state.refused, 0);
    fmoe_report_stop(f); /* sends the report of the second miss */
    fake_http_stop(&farm);
    one = posted(&farm, 0, first);
    two = posted(&farm, 1, second);
    three = posted(&farm, 2, third);
    ck_assert(one && two && three);
    ck_assert_str_eq(first, second);
    ck_assert_str_ne(second, third);
    ck_assert_int_eq(strncmp(one, two, strcspn(one, "\n")), 0);
    ck_assert_ptr_nonnull(strstr(one, "{\"shape\":{\"token\":4,"));
    ck_assert_ptr_nonnull(strstr(three, "{\"shape\":{\"token\":1,"));
    fake_http_release(&farm);
}

/* A report that the coordinator rejects is dropped and counted. The next report has another key. */
static const int permanent_failures[] = {422, 400, 404, 409, 413};

MF_TEST(rejected_reports_are_dropped, .rows = MF_ARRAY_LEN(permanent_failures))
{
    const struct fake_answer answers[] = {
        {.request = "POST /api/v1/misses",
         .status = permanent_failures[_i],
         .body = "{\"title\":\"no\"}",
         .times = 1},
        {.request = "POST /api/v1/misses", .status = 200, .body = "{}"},
    };
    char first[KEY_MAX], second[KEY_MAX], none[KEY_MAX];
    struct fmoe_reported state;
    struct fake_http farm = {0};

    fake_http_start(&farm, answers, MF_ARRAY_LEN(answers));
    miss(4);
    report_to(farm.url);
    state = wait_for(&(struct fmoe_reported){.refused = 1});
    ck_assert_uint_eq(state.refused, 1);
    ck_assert_uint_eq(state.failed, 0);
    miss(2);
    fmoe_report_stop(f);
    fake_http_stop(&farm);
    ck_assert_ptr_nonnull(posted(&farm, 0, first));
    ck_assert_ptr_nonnull(strstr(posted(&farm, 1, second), "{\"shape\":{\"token\":2,"));
    ck_assert_ptr_null(posted(&farm, 2, none));
    ck_assert_str_ne(first, second);
    fake_http_release(&farm);
}

/* Returns the URL of a local port on which no server listens. The URL is valid while *ret_fd is open. */
static void closed_port(char url[64], int *ret_fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);

    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(*ret_fd, (struct sockaddr *)&address, len), 0);
    ck_assert_int_eq(getsockname(*ret_fd, (struct sockaddr *)&address, &len), 0);
    mf_format(url, 64, "http://127.0.0.1:%d", ntohs(address.sin_port));
}

/* While the coordinator is unreachable, calls continue, and stopping does not wait. Misses that were not yet
 * in a report are sent by the next reporter. */
MF_TEST(unreachable_coordinator)
{
    const struct fake_answer accepted = {.request = "POST /api/v1/misses", .status = 201, .body = "{}"};
    struct fake_http farm = {0};
    char url[64], key[KEY_MAX];
    int fd;

    closed_port(url, &fd);
    miss(4);
    report_to(url);
    (void)wait_for(&(struct fmoe_reported){.failed = 1});
    miss(4);
    fmoe_report_stop(f);
    miss(4);
    ck_assert_uint_eq(fmoe_n_misses(f), 3);
    (void)close(fd);

    fake_http_start(&farm, &accepted, 1);
    report_to(farm.url);
    fmoe_report_stop(f);
    fake_http_stop(&farm);
    ck_assert_ptr_nonnull(strstr(posted(&farm, 0, key), "\"count\":2}"));
    fake_http_release(&farm);
}

/* Without misses, no report is sent. */
MF_TEST(silent_without_misses)
{
    struct fake_http farm = {0};
    char key[KEY_MAX];

    fake_http_start(&farm, &(struct fake_answer){0}, 0);
    report_to(farm.url);
    fmoe_report_stop(f);
    fake_http_stop(&farm);
    ck_assert_ptr_null(posted(&farm, 0, key));
    fake_http_release(&farm);
}

MF_TEST(rejects_invalid_arguments)
{
    /* a token is sent only to the local machine or over TLS; these hosts are remote */
    static const char *const remote[] = {"http://127.0.0.1@farm.example", "http://127.farm.example",
                                         "http://[::1]@farm.example", "http://localhost.example",
                                         "http://farm"};
    const char *token = serving_file("moefarm_1_00");
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_report_start(f, "ftp://farm", NULL, 5, &error), -EINVAL);
    ck_assert_int_eq(fmoe_report_start(f, "http://127.0.0.1:1", NULL, 0, &error), -EINVAL);
    ck_assert_str_eq(error.text, "seconds is 0: expected 1 to 86400");
    ck_assert_int_eq(fmoe_report_start(f, "http://127.0.0.1:1", "/nonexistent/token", 5, &error), -ENOENT);
    for (size_t i = 0; i < MF_ARRAY_LEN(remote); i++)
        ck_assert_msg(fmoe_report_start(f, remote[i], token, 5, &error) == -EPERM, "%s is not rejected",
                      remote[i]);
    ck_assert_int_eq(fmoe_report_start(f, "http://127.0.0.1:1", NULL, 5, &error), 0);
    ck_assert_int_eq(fmoe_report_start(f, "http://127.0.0.1:1", NULL, 5, &error), -EALREADY);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 100, .setup = open_layer, .teardown = close_layer});
}
