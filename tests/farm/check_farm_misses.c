/* Tests reported misses with real processes. A report is counted once even if it is sent again. The missed
 * shapes are tuned, and their misses are then no longer open. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"

#define CLASS   "gfx942/304"
#define BEAT_MS 300

static struct farm farm;

static void start(const char *const *more)
{
    static const char *const args[] = {"--device", "sim:" CLASS ":0", NULL};
    farm_start_with(&farm, BEAT_MS, more);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
}

static void stop(void)
{
    farm_stop(&farm);
}

#define SHAPE(token)                                                                                        \
    "{\"token\":" #token                                                                                    \
    ",\"model_dim\":2048,\"inter_dim\":768,\"expert\":128,\"topk\":8,\"act_type\":\"ActivationType.Silu\"," \
    "\"dtype\":\"torch.bfloat16\",\"q_dtype_a\":\"torch.bfloat16\",\"q_dtype_w\":\"torch.bfloat16\",\"q_"   \
    "type\":"                                                                                               \
    "\"QuantType.No\",\"use_g1u1\":1,\"doweight_stage1\":0}"
#define MISS(token, count) "{\"shape\":" SHAPE(token) ",\"count\":" #count "}"
#define REPORT(source, class, misses) \
    "{\"source\":\"" source "\",\"class\":\"" class "\",\"misses\":[" misses "]}"

/* Sends a POST request and returns the answer, which must have the status; the caller owns the answer. key:
 * idempotency key; "" for none. */
static cJSON *post(const char *path, const char *key, const char *body, int status)
{
    char headers[160];
    (void)snprintf(headers, sizeof(headers), "%s%s%s%s", body ? "Content-Type: application/json\r\n" : "",
                   *key ? "Idempotency-Key: " : "", key, *key ? "\r\n" : "");
    struct http_reply r =
        http_call(farm.http, "POST", path, headers, body ? body : "", body ? strlen(body) : 0);
    ck_assert_msg(r.status == status, "%s: %d %s", path, r.status, r.body);
    cJSON *json = mf_json_parse(r.body, r.len, r.len);
    http_reply_free(&r);
    return json;
}

static cJSON *report(const char *key, const char *body, int status)
{
    return post("/api/v1/misses", key, body, status);
}

/* Returns the number of listed misses, and in *ret the first miss, which the caller owns. */
static int misses(const char *query, cJSON **ret)
{
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/misses%s", query);
    cJSON *items = mf_json_array(list, "items");
    int n = cJSON_GetArraySize(items);
    if (ret)
        *ret = n > 0 ? cJSON_DetachItemFromArray(items, 0) : NULL;
    return n;
}

static int n_batches(void)
{
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/batches");
    return cJSON_GetArraySize(mf_json_array(list, "items"));
}

static void wait_state(const char *query, int n)
{
    int64_t end = mf_now_ms() + FARM_DEADLINE_MS;
    while (misses(query, NULL) != n)
        ck_assert_msg(mf_now_ms() < end, "/api/v1/misses%s does not list %d misses in time", query, n);
}

/* With --tune-misses the farm tunes misses without a request. */
MF_TEST(tunes_misses)
{
    static const char *const more[] = {"--tune-misses", "1", NULL};
    start(more);
    _cleanup_(cJSON_Deletep) cJSON *answer =
        report("n1/7/1", REPORT("n1/7", CLASS, MISS(16, 5) "," MISS(64, 2)), 201);
    ck_assert_int_eq(farm_number(answer, "counted"), 7);
    ck_assert_int_eq(farm_number(answer, "open"), 2);
    wait_state("?state=tuned", 2);
    ck_assert_int_eq(misses("?state=open", NULL), 0);
    int batches = n_batches();
    /* A row for this miss is tuned but not deployed yet, so the farm counts the miss and has nothing to tune.
     */
    _cleanup_(cJSON_Deletep) cJSON *again = report("n1/7/2", REPORT("n1/7", CLASS, MISS(16, 1)), 201);
    ck_assert_int_eq(farm_number(again, "tuned"), 1);
    ck_assert_int_eq(farm_number(again, "open"), 0);
    _cleanup_(cJSON_Deletep) cJSON *nothing = post("/api/v1/misses/submit", "", NULL, 200);
    ck_assert_int_eq(n_batches(), batches);
    _cleanup_(cJSON_Deletep) cJSON *first = NULL;
    ck_assert_int_eq(misses("", &first), 2);
    ck_assert_int_eq(farm_number(first, "count"), 6);
    ck_assert_int_eq(farm_number(first, "sources"), 1);
    ck_assert_int_gt(farm_number(first, "task"), 0);
}

/* Without --tune-misses the farm lists misses until a request submits them as batches. */
MF_TEST(lists_until_submitted)
{
    start(NULL);
    cJSON_Delete(report("", REPORT("n1/7", CLASS, MISS(16, 5) "," MISS(64, 9)), 201));
    cJSON_Delete(report("", REPORT("n2/7", CLASS, MISS(16, 5)), 201));
    cJSON_Delete(report("", REPORT("n3/1", "gfx950/256", MISS(16, 1)), 201));
    _cleanup_(cJSON_Deletep) cJSON *first = NULL;
    ck_assert_int_eq(misses("?state=open", &first), 3);
    ck_assert_int_eq(farm_number(first, "count"), 10);
    ck_assert_int_eq(farm_number(first, "sources"), 2);
    ck_assert_int_eq(n_batches(), 0);
    _cleanup_(cJSON_Deletep) cJSON *one = post("/api/v1/misses/submit?min_count=10", "", NULL, 201);
    ck_assert_int_eq(farm_number(cJSON_GetArrayItem(mf_json_array(one, "batches"), 0), "shapes"), 1);
    farm_wait_done(&farm, farm_number(cJSON_GetArrayItem(mf_json_array(one, "batches"), 0), "batch"));
    /* Submits the remaining misses: one batch per class. One of these batches waits, because its class has no
     * workers. */
    _cleanup_(cJSON_Deletep) cJSON *rest = post("/api/v1/misses/submit", "", NULL, 201);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(rest, "batches")), 2);
    ck_assert_int_eq(misses("?state=open", NULL), 0);
    wait_state("?state=tuned", 2);
    ck_assert_int_eq(misses("?state=tuning&class=gfx950/256", NULL), 1);
    cJSON_Delete(post("/api/v1/misses/submit", "", NULL, 200));
    /* the misses of a cancelled batch are submitted again only with failed=1 */
    cJSON_Delete(post("/api/v1/batches/3/cancel", "", NULL, 200));
    ck_assert_int_eq(misses("?state=failed", NULL), 1);
    cJSON_Delete(post("/api/v1/misses/submit", "", NULL, 200));
    cJSON_Delete(post("/api/v1/misses/submit?failed=1", "", NULL, 201));
    ck_assert_int_eq(misses("?state=tuning", NULL), 1);
}

MF_TEST(counts_a_report_once)
{
    static const char body[] = REPORT("n1/7", CLASS, MISS(16, 5));
    farm_start(&farm, BEAT_MS);
    _cleanup_(cJSON_Deletep) cJSON *first = report("n1/7/1", body, 201);
    _cleanup_(cJSON_Deletep) cJSON *again = report("n1/7/1", body, 200);
    ck_assert(cJSON_Compare(first, again, true));
    cJSON_Delete(report("n1/7/1", REPORT("n1/7", CLASS, MISS(16, 6)), 409));
    farm_kill_daemon(&farm);
    farm_start_daemon(&farm, BEAT_MS);
    cJSON_Delete(report("n1/7/1", body, 200));
    _cleanup_(cJSON_Deletep) cJSON *miss = NULL;
    ck_assert_int_eq(misses("", &miss), 1);
    ck_assert_int_eq(farm_number(miss, "count"), 5);
}

/* clang-format off */
static const struct {
    const char *body;
    int status;
    const char *at;
} wrong[] = {
    {"[]", 400, "body"},
    {"{", 400, "body"},
    {REPORT("", CLASS, MISS(16, 5)), 422, "source"},
    {REPORT("a\\nb", CLASS, MISS(16, 5)), 422, "source"},
    {REPORT("n", "gfx942", MISS(16, 5)), 422, "class"},
    {REPORT("n", CLASS, ""), 422, "misses"},
    {"{\"source\":\"n\",\"class\":\"" CLASS "\"}", 422, "misses"},
    {"{\"source\":\"n\",\"class\":\"" CLASS "\",\"miss\":[]}", 422, "miss"},
    {REPORT("n", CLASS, MISS(16, 0)), 422, "misses[0].count"},
    {REPORT("n", CLASS, MISS(16, 1.5)), 422, "misses[0].count"},
    {REPORT("n", CLASS, MISS(16, -1)), 422, "misses[0].count"},
    {REPORT("n", CLASS, MISS(0, 1)), 422, "misses[0].shape.token"},
    {REPORT("n", CLASS, "7"), 422, "misses[0]"},
    {REPORT("n", CLASS, "{\"shape\":" SHAPE(1) ",\"count\":1,\"layout\":\"row\"}"), 422, "misses[0].layout"},
    {REPORT("n", CLASS, "{\"count\":1}"), 422, "misses[0].shape"},
    {REPORT("n", CLASS, "{\"shape\":" SHAPE(1) ",\"count\":1,\"cuont\":1}"), 422, "misses[0].cuont"},
};
/* clang-format on */

MF_TEST(reports_position_of_errors)
{
    farm_start(&farm, BEAT_MS);
    for (size_t i = 0; i < MF_ARRAY_LEN(wrong); i++) {
        _cleanup_(cJSON_Deletep) cJSON *problem = report("", wrong[i].body, wrong[i].status);
        const cJSON *error = cJSON_GetArrayItem(mf_json_array(problem, "errors"), 0);
        ck_assert_msg(strcmp(farm_text(error, "at"), wrong[i].at) == 0, "report %zu: error at %s", i,
                      farm_text(error, "at"));
    }
    /* a report with valid and invalid rows: the valid rows are counted */
    _cleanup_(cJSON_Deletep) cJSON *some =
        report("", REPORT("n", CLASS, MISS(16, 0) "," MISS(16, 3) "," MISS(0, 1)), 201);
    ck_assert_int_eq(farm_number(some, "misses"), 1);
    ck_assert_int_eq(farm_number(some, "counted"), 3);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(some, "errors")), 2);

    /* A count saturates at 2^53: up to there JSON numbers hold every integer exactly. */
    int64_t counted = 0, count = 0;
    _cleanup_(cJSON_Deletep) cJSON *first = NULL;
    _cleanup_(cJSON_Deletep) cJSON *most =
        report("", REPORT("n", CLASS, MISS(16, 9007199254740992) "," MISS(64, 9007199254740992)), 201);
    ck_assert_int_eq(mf_json_i64(most, "counted", 1, INT64_MAX, &counted), 0);
    ck_assert_int_eq(counted, INT64_C(1) << 53);
    ck_assert_int_eq(misses("", &first), 2);
    ck_assert_int_eq(mf_json_i64(first, "count", 1, INT64_MAX, &count), 0);
    ck_assert_int_eq(count, INT64_C(1) << 53);
    cJSON_Delete(post("/api/v1/misses/submit?min_count=0", "", NULL, 400));
    cJSON_Delete(post("/api/v1/misses/submit?class=x", "", NULL, 400));
}

/* Returns a report with one miss for each of n shapes, whose token counts are consecutive and begin at
 * `from`. */
static char *many(int from, int n)
{
    struct mf_buf b;
    mf_buf_init(&b, 16u << 20);
    (void)mf_buf_adds(&b, "{\"source\":\"flood\",\"class\":\"" CLASS "\",\"misses\":[");
    for (int i = 0; i < n; i++)
        (void)mf_buf_addf(&b, "%s{\"shape\":{\"token\":%d,%s,\"count\":1}", i ? "," : "", from + i,
                          strchr(SHAPE(1), ',') + 1);
    (void)mf_buf_adds(&b, "]}");
    return mf_buf_take(&b);
}

/* The list of misses has a maximum length. If it is full, misses in the list are still counted. */
MF_TEST(bounds_the_list)
{
    int left_out = 0;
    farm_start(&farm, BEAT_MS);
    for (int i = 0; i < 5; i++) {
        _cleanup_(mf_freep) char *body = many(1 + i * 4096, 4096);
        _cleanup_(cJSON_Deletep) cJSON *answer = report("", body, 201);
        left_out += farm_number(answer, "left_out");
    }
    ck_assert_int_eq(left_out, 5 * 4096 - 20000);
    _cleanup_(mf_freep) char *beyond = many(1, 4097);
    cJSON_Delete(report("", beyond, 422));
    _cleanup_(cJSON_Deletep) cJSON *known = report("", REPORT("n", CLASS, MISS(16, 7)), 201);
    ck_assert_int_eq(farm_number(known, "left_out"), 0);
    /* a miss keeps at most 32 sources */
    for (int i = 0; i < 40; i++) {
        char body[1024];
        (void)snprintf(body, sizeof(body), "{\"source\":\"host/%d\",\"class\":\"" CLASS "\",\"misses\":[%s]}",
                       i, MISS(16, 1));
        cJSON_Delete(report("", body, 201));
    }
    _cleanup_(cJSON_Deletep) cJSON *most = NULL;
    ck_assert_int_gt(misses("?limit=1", &most), 0);
    ck_assert_int_eq(farm_number(most, "count"), 48);
    ck_assert_int_eq(farm_number(most, "sources"), 32);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
