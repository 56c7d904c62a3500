#include "server/http/gate.h"
#include "support/mf_check.h"

#include "common/base/clock.h"
#include "common/base/secret.h"
#include "server/store/store_access.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Returns the status of a request, or 0 if the request is admitted. token: value of the header Authorization;
 * NULL: the route needs no role. */
static int status_of(struct mf_gate *g, const char *from, const char *token_header)
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
    const struct mf_gate_request gate_request = {.from = &address.any,
                                                 .authorization = token_header,
                                                 .needs = token_header ? MF_ROLE_READ : MF_ROLE_NONE};
    int status = mf_gate_check(g, &gate_request, &r->response, &token) == 0 ? 0 : r->response.status;
    mf_request_free(r);
    return status;
}

static int status_of_request(struct mf_gate *g, const char *from)
{
    return status_of(g, from, NULL);
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

static char database[64], right[MF_TOKEN_TEXT_MAX + 8];

/* Creates a database with one token, and the header Authorization with that token. */
static void make_database(void)
{
    char folder[] = "/tmp/mf_gate_XXXXXX";
    uint8_t secret[MF_KEY_SIZE], hash[MF_KEY_SIZE];
    char token[MF_TOKEN_TEXT_MAX];
    struct mf_store *s = NULL;
    int64_t id;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(database, sizeof(database), "%s/farm.db", folder);
    mf_store_init();
    ck_assert_int_eq(mf_store_open(database, &s), 0);
    ck_assert_int_eq(mf_secret_make(secret), 0);
    ck_assert_int_eq(mf_secret_hash(secret, hash), 0);
    const struct mf_token_row row = {MF_ROLE_READ, "r", hash, 0};
    ck_assert_int_eq(mf_store_begin(s), 0);
    ck_assert_int_eq(mf_store_token_add(s, &row, mf_wall_ms(), &id), 0);
    ck_assert_int_ge(mf_store_commit(s), 0);
    (void)mf_store_free(s);
    mf_access_token_print(id, secret, token);
    (void)snprintf(right, sizeof(right), "Bearer %s", token);
}

static void remove_database(void)
{
    char *name = strrchr(database, '/');
    static const char *const files[] = {"/farm.db", "/farm.db-wal", "/farm.db-shm", ""};
    for (size_t i = 0; i < MF_ARRAY_LEN(files); i++) {
        strcpy(name, files[i]);
        (void)remove(database);
    }
}

/* Wrong tokens are throttled. The right token of the same address is still admitted, and is still known after
 * the refusals. */
MF_TEST(test_wrong_tokens_do_not_block_right_ones)
{
    _cleanup_(mf_gate_freep) struct mf_gate *g = NULL;
    make_database();
    ck_assert_int_eq(mf_gate_new(database, 1000, &g), 0);
    int status = 401, n = 0;
    for (; status == 401 && n < 1000; n++)
        status = status_of(g, "10.0.0.1", "Bearer moefarm_1_no");
    ck_assert_int_eq(status, 429);
    ck_assert_int_ge(n, 20);
    ck_assert_int_eq(status_of(g, "10.0.0.1", right), 0);
    ck_assert_int_eq(status_of(g, "10.0.0.1", "Bearer moefarm_1_no"), 429);
    remove_database();
}

/* Requests without a token from very many networks use up no token's limit. */
MF_TEST(test_addresses_do_not_use_up_tokens)
{
    _cleanup_(mf_gate_freep) struct mf_gate *g = NULL;
    char from[64];
    make_database();
    ck_assert_int_eq(mf_gate_new(database, 1, &g), 0);
    for (int i = 0; i < 100000; i++) {
        (void)snprintf(from, sizeof(from), "2001:db8:%x:%x::1", i >> 16, i & 0xffff);
        (void)status_of_request(g, from);
    }
    ck_assert_int_eq(status_of_request(g, "2001:db9::1"), 429);
    ck_assert_int_eq(status_of(g, "10.0.0.1", right), 0);
    remove_database();
}

int main(void)
{
    return mf_check_main(NULL);
}
