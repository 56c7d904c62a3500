#include "common/net/wire_bounds.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"

#include <string.h>

/* why: the start of the reason; NULL: the body is accepted. */
static const struct {
    const char *body, *why;
} bodies[] = {
    {"{}", NULL},
    {"{\"us\":0,\"mad\":1e11,\"verified\":2,\"err\":1e100}", NULL},
    {"{\"us\":1e-320}", NULL}, /* smaller than any plausible time, which mf_result_judge decides */
    {"{\"us\":1.1e11}", "us: 1.1e+11 is out of bounds; expected a number from 0 to 1e+11"},
    {"{\"us\":-1e-320}", "us: -9.99989e-321 is out of bounds"},
    {"{\"us\":1e308}", "us: 1e+308 is"},
    {"{\"us\":1e999}", "us: inf is"},
    {"{\"us\":-1e999}", "us: -inf is"},
    {"{\"us\":\"1e999\",\"mad\":null}", NULL}, /* not numbers: the decoder of the message refuses them */
    {"{\"verified\":3}", "verified: 3 is out of bounds; expected a number from 0 to 2"},
    {"{\"unit\":9007199254740993}", NULL}, /* parses to 2^53 */
    {"{\"unit\":9223372036854775808}", "unit: 9.22337e+18 is"},
    {"{\"samples\":[1,2,3e11]}", "samples[]: 3e+11 is"},
    {"{\"samples\":[[1,-2]]}", NULL}, /* a path without a row */
    {"{\"race\":{\"us\":1,\"groups\":[{\"us\":1},{\"us\":1e12}]}}", "race.groups[].us: 1e+12 is"},
    {"{\"race\":{\"groups\":[{\"ties\":[1,1e99]}]}}", "race.groups[].ties[]: 1e+99 is"},
    {"{\"device\":{\"peak_gflops\":{\"int4\":2e9}}}", "device.peak_gflops.int4: 2e+09 is"},
    {"{\"device\":{\"peak_gflops\":{\"int4\":2e8}}}", NULL},
    {"{\"device\":{\"gap_us\":1e308}}", "device.gap_us: 1e+308 is"},
    {"{\"busy\":{\"new\":-1}}", "busy.new: -1 is"},
    {"{\"best_us\":{\"sort\":1e12}}", "best_us.sort: 1e+12 is"},
    {"{\"steps\":[{\"flops\":1},{\"flops\":1e25}]}", "steps[].flops: 1e+25 is"},
    {"{\"new\":{\"new\":[1e100]}}", NULL},
    {"{\"new\":{\"new\":[1e101]}}", "new.new[]: 1e+101 is"},
    {"[1e308]", "[]: 1e+308 is"},
    {"1e308", ": 1e+308 is"},
};

MF_TEST(numbers_are_checked, .rows = MF_ARRAY_LEN(bodies))
{
    char why[MF_REASON_MAX] = "";
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(bodies[_i].body);
    ck_assert_ptr_nonnull(json);
    int r = mf_wire_bounds_check(json, why);
    ck_assert_msg((r == 0) == !bodies[_i].why, "%s: %s", bodies[_i].body, why);
    ck_assert_msg(r == 0 || strncmp(why, bodies[_i].why, strlen(bodies[_i].why)) == 0, "%s: %s",
                  bodies[_i].body, why);
}

/* Every row of the table is found, which requires that the table is sorted. */
static const char *const paths[] = {
    "at_ms",     "attempt",  "beat_ms",  "canary",    "credit", "dropped_at", "epoch",     "err",
    "lds",       "lease_ms", "mad",      "occupancy", "pid",    "pipeline",   "registers", "row_err",
    "row_limit", "seq",      "sequence", "spills",    "step",   "unit",       "us",        "verified",
};

MF_TEST(every_row_is_found, .rows = MF_ARRAY_LEN(paths))
{
    char why[MF_REASON_MAX], text[64];
    (void)snprintf(text, sizeof(text), "{\"%s\":-1}", paths[_i]);
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(text);
    ck_assert_int_lt(mf_wire_bounds_check(json, why), 0);
}

/* A member name of any length and many levels do not overflow the path. */
MF_TEST(long_paths_are_cut)
{
    char key[1000], why[MF_REASON_MAX];
    cJSON *json = cJSON_CreateObject(), *at = json;
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    for (int i = 0; i < 500; i++)
        at = cJSON_AddObjectToObject(at, i % 2 ? "a" : key);
    cJSON_AddNumberToObject(at, "us", 1e50);
    ck_assert_int_eq(mf_wire_bounds_check(json, why), 0);
    cJSON_AddNumberToObject(at, "mad", 1e308);
    ck_assert_int_lt(mf_wire_bounds_check(json, why), 0);
    cJSON_Delete(json);
}

int main(void)
{
    return mf_check_main(NULL);
}
