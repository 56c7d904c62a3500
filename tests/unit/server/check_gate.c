#include "server/http/gate.h"
#include "support/mf_check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

/* Pairs of clients without tokens; `shared` is true if both clients share one rate limit. */
/* clang-format off */
static const struct {
    const char *first, *second;
    bool shared;
} pairs[] = {
    {"10.0.0.1",         "10.0.0.1",         true},
    {"10.0.0.1",         "10.0.0.2",         false},
    {"2001:db8::1",      "2001:db8::2",      true},  /* both addresses are in one /64 network */
    {"2001:db8:0:1::1",  "2001:db8:0:2::1",  false},
    {"::ffff:10.0.0.1",  "::ffff:10.0.0.2",  false}, /* IPv4 addresses on an IPv6 socket */
    {"::ffff:10.0.0.1",  "10.0.0.1",         true},
};
/* clang-format on */

/* Returns the status of a request to a route that needs no role, or 0 if the request is admitted. */
static int status_of_request(struct mf_gate *g, const char *from)
{
    struct mf_request *r = mf_request_new();
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {0};
    int64_t token;
    bool v4 = inet_pton(AF_INET, from, &address.v4.sin_addr) == 1;
    ck_assert(v4 || inet_pton(AF_INET6, from, &address.v6.sin6_addr) == 1);
    address.any.sa_family = v4 ? AF_INET : AF_INET6;
    const struct mf_gate_request gate_request = {.from = &address.any, .needs = MF_ROLE_NONE};
    int status = mf_gate_check(g, &gate_request, &r->response, &token) == 0 ? 0 : r->response.status;
    mf_request_free(r);
    return status;
}

MF_TEST(test_shared_rate_limit, .rows = MF_ARRAY_LEN(pairs))
{
    _cleanup_(mf_gate_freep) struct mf_gate *g = NULL;
    ck_assert_int_eq(mf_gate_new("/nonexistent", 1, &g), 0);
    int status = 0, n = 0;
    /* One more request is admitted per second. So the second client may be admitted after a pause, and the
     * test tries again. */
    for (int tries = 0; status == 0 && tries < (pairs[_i].shared ? 5 : 1); tries++) {
        while (n < 1000 && status_of_request(g, pairs[_i].first) == 0)
            n++;
        status = status_of_request(g, pairs[_i].second);
    }
    ck_assert_int_ge(n, 1);
    ck_assert_int_lt(n, 1000);
    ck_assert_int_eq(status, pairs[_i].shared ? 429 : 0);
}

int main(void)
{
    return mf_check_main(NULL);
}
