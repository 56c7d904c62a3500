/* Authentication, authorisation and rate limits of HTTP requests. Used by the HTTP thread only.
 *
 * Each request looks up its token in the store over a read-only connection, so revoking a token takes effect
 * with the commit. Requests are limited per token, or per address (IPv6: /64 prefix) if they carry no token.
 * Failed tokens are limited per address as well; this limit never refuses a valid token. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/cleanup.h"
#include "server/http/request.h"
#include "server/http/role.h"

#define MF_GATE_COOKIE "moefarm"

struct mf_gate;

/* Creates a gate. Copies `database`. rate: requests per second per token or address; a burst may have twice
 * as many requests. 0: unlimited. */
int mf_gate_new(const char *database, int64_t rate, struct mf_gate **ret);
struct mf_gate *mf_gate_free(struct mf_gate *g);
MF_DEFINE_CLEANUP(struct mf_gate *, mf_gate_free);

struct mf_gate_request {
    const struct sockaddr *from;
    const char *authorization, *cookie; /* header and cookie values; NULL if absent */
    enum mf_role needs;
};
/* Returns 0 and the token's id (0: no token needed), or a negative value with p set to 401, 403, 429 or 503.
 */
int mf_gate_check(struct mf_gate *g, const struct mf_gate_request *v, struct mf_response *p,
                  int64_t *ret_token);
/* Returns true unless the token has expired or was revoked. */
bool mf_gate_token_valid(struct mf_gate *g, int64_t token);
/* Returns the token in "Authorization: Bearer TOKEN", or NULL if the header has another form. */
const char *mf_gate_bearer(const char *authorization);
