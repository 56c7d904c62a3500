#include "server/farm/result.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/net/wire_bounds.h"

#include <math.h>
#include <string.h>

#define HEAD "\"unit\":7,\"attempt\":2,\"epoch\":1,\"seq\":5,"

/* `why` is a part of the error, or NULL if the result is accepted. */
static const struct {
    const char *members, *why;
} reads[] = {
    {HEAD "\"step\":9,\"status\":\"ok\",\"us\":411.2,\"samples\":[410.9,411.5],\"verified\":2", NULL},
    {HEAD "\"status\":\"no_memory\",\"reason\":\"12 GB\",\"last\":true", NULL},
    {HEAD "\"step\":9,\"status\":\"wrong\",\"us\":null", NULL},
    {HEAD "\"pipeline\":3,\"samples\":[],\"fresh\":[1,2]", NULL},
    {"\"attempt\":2,\"epoch\":1,\"seq\":5", "unit"},
    {"\"unit\":7,\"epoch\":1,\"seq\":5", "attempt"},
    {"\"unit\":7,\"attempt\":0,\"epoch\":1,\"seq\":5", "attempt"},
    {"\"unit\":7,\"attempt\":1,\"seq\":5", "epoch"},
    {"\"unit\":7,\"attempt\":1,\"epoch\":1,\"seq\":-1", "seq"},
    {"\"unit\":7.5,\"attempt\":1,\"epoch\":1,\"seq\":1", "unit"},
    {HEAD "\"step\":\"9\"", "step"},
    {HEAD "\"step\":9,\"pipeline\":9", "both"},
    {HEAD "\"status\":\"fine\"", "status"},
    {HEAD "\"status\":3", "status"},
    {HEAD "\"reason\":[]", "reason"},
    {HEAD "\"last\":1", "last"},
    {HEAD "\"us\":\"fast\"", "us"},
    {HEAD "\"us\":1e999", "us"},
    {HEAD "\"verified\":3", "verified"},
    {HEAD "\"samples\":{}", "samples"},
    {HEAD "\"samples\":[1,\"2\"]", "samples"},
    {HEAD "\"samples\":[1e400]", "samples"},
    {HEAD "\"pipeline\":3,\"fresh\":null,\"race\":null", NULL},
    {HEAD "\"fresh\":{}", "fresh: expected an array"},
    {HEAD "\"fresh\":[[1]]", "fresh: expected numbers"},
    {HEAD "\"fresh\":[1,1e31]", "fresh[]: 1e+31 is out of bounds"},
};

static struct mf_result_message m;

/* Reads a result as the farm does. */
static int read_result(const cJSON *json, const char **ret_why)
{
    static char why[MF_REASON_MAX];
    *ret_why = why;
    return mf_wire_bounds_check(json, why) < 0 ? -1 : mf_result_read(json, &m, ret_why);
}

MF_TEST(members_are_checked, .rows = MF_ARRAY_LEN(reads))
{
    char text[512];
    const char *why = "";
    (void)snprintf(text, sizeof(text), "{%s}", reads[_i].members);
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(text);
    ck_assert_ptr_nonnull(json);
    int r = read_result(json, &why);
    ck_assert_msg((r == 0) == !reads[_i].why, "%s: %s", text, why);
    ck_assert_msg(r == 0 || strstr(why, reads[_i].why), "%s: %s", text, why);
    if (r == 0)
        ck_assert_int_eq(m.unit, 7);
}

MF_TEST(too_many_samples)
{
    const char *why = "";
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse("{" HEAD "\"step\":9}");
    cJSON *samples = cJSON_AddArrayToObject(json, "samples");
    for (int i = 0; i < MF_SAMPLES_KEEP_MAX; i++)
        cJSON_AddItemToArray(samples, cJSON_CreateNumber(i));
    ck_assert_int_eq(read_result(json, &why), 0);
    ck_assert_uint_eq(m.n_samples, MF_SAMPLES_KEEP_MAX);
    cJSON_AddItemToArray(samples, cJSON_CreateNumber(1));
    ck_assert_int_lt(read_result(json, &why), 0);
}

/* Every accepted result can be stored. If a result could not be stored, the farm would halt each time the
 * worker sends that result again. */
MF_TEST(accepted_results_fit)
{
    static const char *const numbers[] = {"canary", "row_limit", "dropped_at", "registers",
                                          "spills", "lds",       "occupancy"};
    const double longest = 1.2345678901234567e-300;
    char routing[MF_ROUTING_TEXT_MAX], pad[MF_RESULT_RACE_MAX];
    const char *why = "";
    char *extra = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json =
        cJSON_Parse("{" HEAD "\"mode\":\"0123456789012345678901234567890\"}");
    cJSON *fresh = cJSON_AddArrayToObject(json, "fresh"), *race = cJSON_AddObjectToObject(json, "race");
    memset(routing, '9', sizeof(routing) - 1);
    routing[sizeof(routing) - 1] = '\0';
    memset(pad, 'x', sizeof(pad) - 8); /* {"a":"…"} */
    pad[sizeof(pad) - 8] = '\0';
    for (size_t i = 0; i < MF_ARRAY_LEN(numbers); i++)
        cJSON_AddNumberToObject(json, numbers[i], longest);
    for (int i = 0; i < MF_SAMPLES_KEEP_MAX; i++)
        cJSON_AddItemToArray(fresh, cJSON_CreateNumber(longest));
    cJSON_AddStringToObject(race, "a", pad);
    ck_assert_msg(read_result(json, &why) == 0, "%s", why);
    const struct mf_result_note note = {.died = "hang", .routing = routing, .unit = "compare"};
    ck_assert_int_eq(mf_result_extra(json, &note, &extra), 0);
    ck_assert_uint_gt(strlen(extra), 23 * MF_SAMPLES_KEEP_MAX + MF_RESULT_RACE_MAX);
    free(extra);

    cJSON_AddStringToObject(race, "b", "");
    ck_assert_int_lt(read_result(json, &why), 0);
    ck_assert_str_eq(why, "race: expected at most 16 KiB");
    cJSON_DeleteItemFromObject(race, "b");
    cJSON_AddItemToArray(fresh, cJSON_CreateNumber(1));
    ck_assert_int_lt(read_result(json, &why), 0);
    ck_assert_str_eq(why, "fresh: expected at most 4096 numbers");
}

static const struct {
    enum mf_status status;
    double us;
    const char *reason; /* NULL: plausible */
} judged[] = {
    {MF_STATUS_OK, 10, NULL},
    {MF_STATUS_SLOW, 10, NULL},
    {MF_STATUS_OK, 0.9, "status ok with a time of 0.9 us; expected at least 0.9091 us: 0.001 GFLOP at the"},
    {MF_STATUS_OK, 0, "status ok with a time of 0 us"},
    {MF_STATUS_SLOW, -1, "status slow with a time of -1 us"},
    {MF_STATUS_OK, 1e-320, "status ok with a time of 1e-320 us"},
    {MF_STATUS_SLOW, (double)NAN, "status slow without a time"},
    {MF_STATUS_WRONG, 0, NULL}, /* the step has already failed for another reason */
    {MF_STATUS_CRASH, (double)NAN, NULL},
};

MF_TEST(implausible_times, .rows = MF_ARRAY_LEN(judged))
{
    const struct mf_ceilings ceilings = {.dtype_gflops = {[MF_DTYPE_BF16] = 1000}};
    m = (struct mf_result_message){.status = judged[_i].status, .us = judged[_i].us, .reason = "its own"};
    mf_result_judge(&m, &(struct mf_work){.gemm = true, .flops = 1e6}, &ceilings);
    const char *expected = judged[_i].reason ? judged[_i].reason : "its own";
    enum mf_status status = judged[_i].reason ? MF_STATUS_IMPLAUSIBLE : judged[_i].status;
    ck_assert_str_eq(mf_status_name(m.status), mf_status_name(status));
    ck_assert_msg(strncmp(m.reason, expected, strlen(expected)) == 0, "%s", m.reason);
}

MF_TEST(extra_is_json)
{
    char *extra = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json =
        cJSON_Parse("{\"mode\":\"cold\",\"canary\":1.003,\"dropped_at\":4,"
                    "\"registers\":168,\"spills\":0,\"lds\":98304,\"occupancy\":2,"
                    "\"fresh\":[1,2],\"race\":{\"winner\":3},\"x\":1}");
    ck_assert_int_eq(mf_result_extra(json, &(struct mf_result_note){.died = "hang"}, &extra), 0);
    ck_assert_str_eq(
        extra,
        "{\"mode\":\"cold\",\"canary\":1.003,\"dropped_at\":4,\"registers\":168,\"spills\":0,\"lds\":98304,"
        "\"occupancy\":2,\"died\":\"hang\",\"fresh\":[1,2],"
        "\"race\":{\"winner\":3}}");
    free(extra);
    /* a mode that would break the JSON is omitted */
    _cleanup_(cJSON_Deletep) cJSON *evil = cJSON_Parse("{\"mode\":\"a\\\",\\\"b\"}");
    ck_assert_int_eq(mf_result_extra(evil, &(struct mf_result_note){0}, &extra), 0);
    ck_assert_ptr_null(extra);
}

int main(void)
{
    return mf_check_main(NULL);
}
