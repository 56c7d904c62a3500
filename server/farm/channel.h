/* What the farm does for those who freeze and deploy; called by request handlers of the writing thread, as
 * server/farm/farm.h. */
#pragma once

#include "server/farm/farm.h"
#include "server/store/store_release.h"

/* As mf_store_release_add. */
int mf_farm_release_add(struct mf_farm *f, const struct mf_release *release, int64_t *ret);
/* As mf_store_channel_move. */
int mf_farm_channel_move(struct mf_farm *f, const struct mf_channel_move *m, struct mf_channel *ret);
/* Whose a request's token is; "" for 0. */
int mf_farm_token_name(struct mf_farm *f, int64_t token, char ret[MF_RELEASE_NAME_MAX]);
