#include "server/http/gate.h"

#include "common/base/clock.h"
#include "common/base/secret.h"
#include "common/base/text.h"
#include "server/http/client_address.h"
#include "server/http/problem.h"
#include "server/store/store_access.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Keys with the same hash share a bucket. The hash has a secret seed, so clients cannot choose a bucket */
#define N_BUCKETS    4096
#define WRONG_RATE   0.5 /* failed tokens per second and address */
#define WRONG_BURST  20.0
#define BURST_FACTOR 2.0

struct bucket {
    double left;
    int64_t at_ms; /* time of the last refill; 0: the bucket is full */
};

struct limit {
    double rate, burst;
    struct bucket buckets[N_BUCKETS];
};

struct mf_gate {
    char *database;
    struct mf_store *store; /* NULL until the writer has created the database */
    uint64_t seed;          /* secret, so that clients cannot predict collisions */
    /* Tokens have buckets of their own, so that requests without a token cannot use up a token's limit */
    struct limit tokens, addresses, wrong;
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
    g->tokens.rate = g->addresses.rate = (double)rate;
    g->tokens.burst = g->addresses.burst = (double)rate * BURST_FACTOR;
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

/* ---- rate limits ---- */

static struct bucket *fill(struct limit *l, uint64_t client)
{
    struct bucket *b = &l->buckets[(client ^ client >> 32) % N_BUCKETS];
    int64_t now = mf_now_ms();
    double more = (double)(now - b->at_ms) * 1e-3 * l->rate;
    b->left = b->at_ms == 0 ? l->burst : MF_MIN(l->burst, b->left + more);
    b->at_ms = now;
    return b;
}

static int refuse_rate(struct mf_response *p, const struct limit *l, const struct bucket *b, const char *what)
{
    (void)mf_refuse(p, 429, "too many %s; the limit is %g per second", what, l->rate);
    (void)mf_respond_header(p, "Retry-After", "%d", (int)((1 - b->left) / l->rate) + 1);
    return -EINVAL;
}

/* Takes one from the client's bucket, or refuses if the bucket is empty. */
static int count(struct limit *l, uint64_t client, const char *what, struct mf_response *p)
{
    struct bucket *b;
    if (l->rate <= 0)
        return 0;
    b = fill(l, client);
    if (b->left < 1)
        return refuse_rate(p, l, b, what);
    b->left -= 1;
    return 0;
}

/* ---- authentication ---- */

const char *mf_gate_bearer(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, strlen(scheme)) != 0)
        return NULL;
    authorization += strlen(scheme);
    return authorization + strspn(authorization, " ");
}

/* Returns 1 if the token is valid, 0 if not, -errno if the store cannot be read. */
static int find_token(struct mf_gate *g, const char *text, int64_t *ret_id, enum mf_role *ret_role)
{
    uint8_t secret[MF_KEY_SIZE];
    if (mf_access_token_parse(text, ret_id, secret) < 0)
        return 0;
    int r = g->store ? 0 : mf_store_open_reader(g->database, &g->store);
    return r < 0 ? r : mf_store_token_check(g->store, *ret_id, secret, mf_wall_ms(), ret_role);
}

static int refuse_unauthenticated(struct mf_response *p, const char *detail)
{
    (void)mf_refuse_at(p, 401, "header.Authorization", "token", "%s", detail);
    (void)mf_respond_header(p, "WWW-Authenticate", "Bearer realm=\"moefarm\"");
    return -EINVAL;
}

static int check_token(struct mf_gate *g, const struct mf_gate_request *v, const char *text,
                       struct mf_response *p, int64_t *ret_token)
{
    enum mf_role role = MF_ROLE_NONE;
    int64_t id = 0;
    int r = find_token(g, text, &id, &role);
    if (r < 0) {
        (void)mf_refuse(p, 503, "the store cannot be read now; try again");
        (void)mf_respond_header(p, "Retry-After", "1");
        return -EINVAL;
    }
    /* Only wrong tokens are throttled, so that a client cannot lock out others behind its address */
    if (r == 0 && count(&g->wrong, mf_client_hash(v->from, g->seed), "failed tokens", p) < 0)
        return -EINVAL;
    if (r == 0)
        return refuse_unauthenticated(
            p, "the token is unknown, expired or revoked; ask an administrator of the farm for a new one");
    if (count(&g->tokens, mf_hash64(&id, sizeof(id), g->seed), "requests", p) < 0)
        return -EINVAL;
    if (role < v->needs)
        return mf_refuse_at(p, 403, "header.Authorization", "role",
                            "this route needs a token of role %s, this token has role %s",
                            mf_role_name(v->needs), mf_role_name(role));
    *ret_token = id;
    return 0;
}

int mf_gate_check(struct mf_gate *g, const struct mf_gate_request *v, struct mf_response *p,
                  int64_t *ret_token)
{
    const char *text = mf_gate_bearer(v->authorization);
    text = text ? text : v->cookie;
    *ret_token = 0;
    /* The status page needs no token, because a user whose token has expired enters a new token there. */
    if (v->needs == MF_ROLE_NONE || !text) {
        if (count(&g->addresses, mf_client_hash(v->from, g->seed), "requests", p) < 0)
            return -EINVAL;
        return v->needs == MF_ROLE_NONE
                   ? 0
                   : refuse_unauthenticated(p,
                                            "this route needs an access token: Authorization: Bearer TOKEN");
    }
    return check_token(g, v, text, p, ret_token);
}

bool mf_gate_token_valid(struct mf_gate *g, int64_t token)
{
    return g->store && mf_store_token_is_valid(g->store, token, mf_wall_ms()) > 0;
}
