/* Access tokens and worker keys: creating and revoking them. The request handlers of the writing thread call
 * these functions within the iteration's transaction (server/farm/farm.h). */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_access.h"

struct mf_token_request {
    enum mf_role role;
    const char *name;   /* checked by the caller */
    int64_t expires_ms; /* 0: never */
};
/* Creates a token and returns its id and its text; only a hash is stored. Returns -ENOTSUP for a worker
 * (enrolment) token if the hub has no keys. */
int mf_farm_token_add(struct mf_farm *f, const struct mf_token_request *request, int64_t *ret_id,
                      char ret_text[MF_TOKEN_TEXT_MAX]);
/* Returns -ENOENT for an unknown token. */
int mf_farm_token_revoke(struct mf_farm *f, int64_t id);
/* Disconnects the worker that uses the key; its next message is refused. -ENOENT: the key is unknown. */
int mf_farm_key_revoke(struct mf_farm *f, int64_t id);
