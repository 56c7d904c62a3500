/* Creates and revokes access tokens and worker keys. The request handlers of the writing thread call these
 * functions within the iteration's transaction (server/farm/farm.h). */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_access.h"

struct mf_token_request {
    enum mf_role role;
    const char *name;   /* the caller has checked the name */
    int64_t expires_ms; /* 0: never */
};
/* Creates a token and returns its id and its text; the farm stores only a hash. Returns -ENOTSUP for a worker
 * (enrolment) token if the hub has no keys, and -EACCES for other roles if the API requires no tokens: every
 * user of the host could create them, and they would outlive a later start with --tokens. */
int mf_farm_token_add(struct mf_farm *f, const struct mf_token_request *request, int64_t *ret_id,
                      char ret_text[MF_TOKEN_TEXT_MAX]);
/* Returns -ENOENT for an unknown token. */
int mf_farm_token_revoke(struct mf_farm *f, int64_t id);
/* Revokes the key and disconnects the worker that uses it. Returns -ENOENT for an unknown key. */
int mf_farm_key_revoke(struct mf_farm *f, int64_t id);
