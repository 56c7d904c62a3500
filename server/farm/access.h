/* What the farm does for those who manage who may come in; called by request handlers of the writing thread, as
 * server/farm/farm.h. */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_access.h"

struct mf_token_wish {
    enum mf_role role;
    const char *name;   /* checked by the caller */
    int64_t expires_ms; /* 0: never */
};
/* Makes a token; its text is nowhere else. -ENOTSUP: a worker's, of a farm whose hub has no keys. */
int mf_farm_token_add(struct mf_farm *f, const struct mf_token_wish *wish, int64_t *ret_id,
                      char ret_text[MF_TOKEN_TEXT_MAX]);
/* -ENOENT. */
int mf_farm_token_revoke(struct mf_farm *f, int64_t id);
/* The worker that has the key is sent away at once, and its next message refused. -ENOENT. */
int mf_farm_key_revoke(struct mf_farm *f, int64_t id);
