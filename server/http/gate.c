#include "server/http/gate.h"

#include "common/base/clock.h"
#include "common/base/secret.h"
#include "common/base/text.h"
#include "server/http/problem.h"
#include "server/store/store_access.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define N_BUCKETS    4096 /* two visitors of one bucket share it: rare, and nobody can choose whose */
#define WRONG_RATE   0.5  /* tokens a second that may be wrong */
#define WRONG_BURST  20.0
#define BURST_FACTOR 2.0

struct bucket {
    double left;
    int64_t at_ms; /* 0: full */
};

struct limit {
    double rate, burst;
    struct bucket buckets[N_BUCKETS];
};

struct mf_gate {
    char *database;
    struct mf_store *store; /* opened when the writer has made it */
    uint64_t seed;          /* so that nobody outside knows who shares a bucket */
    struct limit requests, wrong;
};

int mf_gate_new(const char *database, int64_t rate, struct mf_gate **ret)
{
    _cleanup_(mf_gate_freep) struct mf_gate *g = calloc(1, sizeof(*g));
    uint8_t seed[MF_KEY_SIZE];
    if (!g)
        return -ENOMEM;
    g->database = strdup(database);
    int r = g->database ? mf_secret_make(seed) : -ENOMEM;
    if (r < 0)
        return r;
    memcpy(&g->seed, seed, sizeof(g->seed));
    g->requests.rate = (double)rate;
    g->requests.burst = (double)rate * BURST_FACTOR;
    g->wrong.rate = WRONG_RATE;
    g->wrong.burst = WRONG_BURST;
    *ret = MF_TAKE(g);
    return 0;
}

struct mf_gate *mf_gate_free(struct mf_gate *g)
{
    if (!g)
        return NULL;
    mf_store_free(g->store);
    free(g->database);
    free(g);
    return NULL;
}

/* ---- how often ---- */

/* By the network of 64 bits that one visitor has of IPv6, and by IPv4 address, also where a socket of IPv6 took it. */
static uint64_t hash_address(const struct mf_gate *g, const struct sockaddr *from)
{
    if (from && from->sa_family == AF_INET6) {
        const struct in6_addr *at = &((const struct sockaddr_in6 *)from)->sin6_addr;
        return IN6_IS_ADDR_V4MAPPED(at) ? mf_hash64(&at->s6_addr[12], 4, g->seed) : mf_hash64(at, 8, g->seed);
    }
    if (from && from->sa_family == AF_INET)
        return mf_hash64(&((const struct sockaddr_in *)from)->sin_addr, 4, g->seed);
    return g->seed;
}

static struct bucket *fill(struct limit *l, uint64_t who)
{
    struct bucket *b = &l->buckets[(who ^ who >> 32) % N_BUCKETS];
    int64_t now = mf_now_ms();
    double more = (double)(now - b->at_ms) * 1e-3 * l->rate;
    b->left = b->at_ms == 0 ? l->burst : MF_MIN(l->burst, b->left + more);
    b->at_ms = now;
    return b;
}

static int refuse_often(struct mf_response *p, const struct limit *l, const struct bucket *b,
                        const char *what)
{
    (void)mf_refuse(p, 429, "too many %s; at most %g a second", what, l->rate);
    (void)mf_respond_header(p, "Retry-After", "%d", (int)((1 - b->left) / l->rate) + 1);
    return -EINVAL;
}

static int count_request(struct mf_gate *g, uint64_t who, struct mf_response *p)
{
    struct bucket *b;
    if (g->requests.rate <= 0)
        return 0;
    b = fill(&g->requests, who);
    if (b->left < 1)
        return refuse_often(p, &g->requests, b, "requests");
    b->left -= 1;
    return 0;
}

/* ---- who ---- */

const char *mf_gate_bearer(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, strlen(scheme)) != 0)
        return NULL;
    authorization += strlen(scheme);
    return authorization + strspn(authorization, " ");
}

/* 1: it stands; 0: it does not; -errno: the store cannot be read. */
static int find_token(struct mf_gate *g, const char *text, int64_t *ret_id, enum mf_role *ret_role)
{
    uint8_t secret[MF_KEY_SIZE];
    if (mf_access_token_parse(text, ret_id, secret) < 0)
        return 0;
    int r = g->store ? 0 : mf_store_open_reader(g->database, &g->store);
    return r < 0 ? r : mf_store_token_check(g->store, *ret_id, secret, mf_wall_ms(), ret_role);
}

static int refuse_unknown(struct mf_response *p, const char *detail)
{
    (void)mf_refuse_at(p, 401, "header.Authorization", "token", "%s", detail);
    (void)mf_respond_header(p, "WWW-Authenticate", "Bearer realm=\"moefarm\"");
    return -EINVAL;
}

static int check_token(struct mf_gate *g, const struct mf_visit *v, const char *text, struct mf_response *p,
                       int64_t *ret_token)
{
    enum mf_role role = MF_ROLE_NONE;
    int64_t id = 0;
    uint64_t who = hash_address(g, v->from);
    struct bucket *wrong = fill(&g->wrong, who);
    if (wrong->left < 1)
        return refuse_often(p, &g->wrong, wrong, "wrong tokens");
    int r = find_token(g, text, &id, &role);
    if (r < 0) {
        (void)mf_refuse(p, 503, "the store cannot be read now");
        (void)mf_respond_header(p, "Retry-After", "1");
        return -EINVAL;
    }
    if (r == 0) {
        wrong->left -= 1;
        return refuse_unknown(p,
                              "the token is unknown, expired or revoked; ask an admin of this farm for one");
    }
    if (count_request(g, mf_hash64(&id, sizeof(id), g->seed), p) < 0)
        return -EINVAL;
    if (role < v->needs)
        return mf_refuse_at(p, 403, "header.Authorization", "role",
                            "this takes a token of role %s; this one is of role %s", mf_role_name(v->needs),
                            mf_role_name(role));
    *ret_token = id;
    return 0;
}

int mf_gate_check(struct mf_gate *g, const struct mf_visit *v, struct mf_response *p, int64_t *ret_token)
{
    const char *text = mf_gate_bearer(v->authorization);
    text = text ? text : v->cookie;
    *ret_token = 0;
    /* The page itself is for everybody: also for those whose token has ended, who can give another one there */
    if (v->needs == MF_ROLE_NONE || !text) {
        if (count_request(g, hash_address(g, v->from), p) < 0)
            return -EINVAL;
        return v->needs == MF_ROLE_NONE
                   ? 0
                   : refuse_unknown(p, "an access token is needed: Authorization: Bearer TOKEN");
    }
    return check_token(g, v, text, p, ret_token);
}

bool mf_gate_stands(struct mf_gate *g, int64_t token)
{
    return g->store && mf_store_token_stands(g->store, token, mf_wall_ms()) > 0;
}
