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

/* A device with 1000 GFLOP/s, 100 GB/s and an L2 cache of 1 MB. */
static const struct mf_ceilings ceilings = {.peak_gflops = 1000, .mem_read_gbs = 100, .llc_bytes = 1e6};

static const struct {
    enum mf_status status;
    double us, flops, bytes;
    enum mf_status judged;
} judged[] = {
    {MF_STATUS_OK, 10, 1e6, 1e5, MF_STATUS_OK},
    {MF_STATUS_OK, 0, 1e6, 1e5, MF_STATUS_IMPLAUSIBLE},
    {MF_STATUS_OK, -1, 1e6, 1e5, MF_STATUS_IMPLAUSIBLE},
    {MF_STATUS_SLOW, (double)NAN, 1e6, 1e5, MF_STATUS_IMPLAUSIBLE},
    {MF_STATUS_OK, 9e-4, 0, 0, MF_STATUS_IMPLAUSIBLE}, /* no kernel takes less than 1 ns */
    {MF_STATUS_OK, 1e-320, 0, 0, MF_STATUS_IMPLAUSIBLE},
    /* up to 10 % above the peak counts as measurement error */
    {MF_STATUS_OK, 1, 1.05e6, 0, MF_STATUS_OK},
    {MF_STATUS_OK, 1, 1.2e6, 0, MF_STATUS_IMPLAUSIBLE}, /* 1,200 GFLOP/s */
    {MF_STATUS_OK, 10, 0, 3.9e6, MF_STATUS_OK},         /* 390 GB/s, but the L2 cache may contain the data */
    {MF_STATUS_OK, 10, 0, 4.1e6, MF_STATUS_IMPLAUSIBLE},
    {MF_STATUS_OK, 40, 0, 4.1e6, MF_STATUS_OK},
    {MF_STATUS_WRONG, 0, 1e6, 1e5, MF_STATUS_WRONG}, /* the step has already failed for another reason */
    {MF_STATUS_CRASH, (double)NAN, 1e6, 1e5, MF_STATUS_CRASH},
};

MF_TEST(implausible_times, .rows = MF_ARRAY_LEN(judged))
{
    m = (struct mf_result_message){.status = judged[_i].status, .us = judged[_i].us, .reason = "its own"};
    mf_result_judge(&m, judged[_i].flops, judged[_i].bytes, &ceilings);
    ck_assert_str_eq(mf_status_name(m.status), mf_status_name(judged[_i].judged));
    ck_assert(m.status == judged[_i].status || strcmp(m.reason, "its own") != 0);
    /* if the ceilings of the device are unknown, every time above zero is accepted */
    m = (struct mf_result_message){.status = MF_STATUS_OK, .us = 1e-3};
    mf_result_judge(&m, 1e12, 1e12, &(struct mf_ceilings){0});
    ck_assert_int_eq(m.status, MF_STATUS_OK);
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
