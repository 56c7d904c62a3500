/* Who asks at the API, whether they may, and how often. Belongs to the HTTP thread.
 *
 * A token is looked up in the store, through a read-only connection of the HTTP thread's own, at every request: one that is
 * revoked is of no use from the commit on. Requests are counted for each token, for those without one for each address
 * (IPv6: its /64), and wrong tokens for each address besides. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/cleanup.h"
#include "server/http/request.h"
#include "server/http/role.h"

#define MF_GATE_COOKIE "moefarm"

struct mf_gate;

/* database: copied. rate: requests a second of one token or address, twice that at once; 0: no bound. */
int mf_gate_new(const char *database, int64_t rate, struct mf_gate **ret);
struct mf_gate *mf_gate_free(struct mf_gate *g);
MF_DEFINE_CLEANUP(struct mf_gate *, mf_gate_free);

struct mf_visit {
    const struct sockaddr *from;
    const char *authorization, *cookie; /* as they came; NULL: absent */
    enum mf_role needs;
};
/* 0: in, with the token's number (0: nobody in particular); negative: p is the refusal, 401, 403, 429 or 503. */
int mf_gate_check(struct mf_gate *g, const struct mf_visit *v, struct mf_response *p, int64_t *ret_token);
/* Does the token of a stream still stand? */
bool mf_gate_stands(struct mf_gate *g, int64_t token);
/* The text of a token that "Authorization: Bearer" holds; NULL: it holds none. */
const char *mf_gate_bearer(const char *authorization);
