/* server/http/problem.c: tests the responses to request bodies that are not a JSON object. */
#include "server/http/problem.h"
#include "server/http/request.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "support/mf_check.h"
#include "support/no_memory.h"

static const struct {
    const char *body;
    int failing_allocation; /* index of the cJSON allocation that fails; -1: no allocation fails */
    int status;
} bodies[] = {
    {"{\"a\": [1, 2]}", -1, 0},
    {"{}", -1, 0},
    {"", -1, 400},
    {"[1]", -1, 400},
    {"{\"a\": [1, 2]", -1, 400},
    {"{\"a\": [1, 2]}", 0, 500},
    {"{}", 0, 500},
    {"{\"a\": [1, 2]}", 4, 500},
};

MF_TEST(body_is_an_object, .rows = MF_ARRAY_LEN(bodies))
{
    struct mf_request *r = mf_request_new();
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    ck_assert_ptr_nonnull(r);
    ck_assert_int_eq(mf_buf_adds(&r->body, bodies[_i].body), 0);
    fail_allocation(bodies[_i].failing_allocation);
    int e = mf_request_object(r, &json);
    restore_allocation();
    ck_assert_int_eq(e == 0, bodies[_i].status == 0);
    ck_assert_int_eq(cJSON_IsObject(json), bodies[_i].status == 0);
    if (e < 0) {
        ck_assert_int_eq(r->response.status, bodies[_i].status);
        ck_assert_str_eq(r->response.content_type, "application/problem+json");
    }
    (void)mf_request_free(r);
}

int main(void)
{
    return mf_check_main(NULL);
}
