/* Freezes configs as releases and deploys releases through channels. The request handlers of the writing
 * thread call these functions within the iteration's transaction (server/farm/farm.h). */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_release.h"

/* Returns the same values as mf_store_release_add. */
int mf_farm_release_add(struct mf_farm *f, const struct mf_release *release, int64_t *ret);
/* Returns the same values as mf_store_channel_move. */
int mf_farm_channel_move(struct mf_farm *f, const struct mf_channel_move *m, struct mf_channel *ret);
/* Writes the name of a request's access token; "" for token 0 (no token). */
int mf_farm_token_name(struct mf_farm *f, int64_t token, char ret[MF_RELEASE_NAME_MAX]);
