/* Builds UNIT messages and fills in the items of leases. */
#pragma once

#include "server/farm/farm_private.h"

/* maximum length of a UNIT message and of a unit's body */
#define MF_UNIT_TEXT_MAX (8u << 20)

/* True for units that race whole pipelines on one device. */
static inline bool mf_unit_is_race(enum mf_unit_kind kind)
{
    return kind == MF_UNIT_RACE || kind == MF_UNIT_COMPARE;
}

/* Appends the UNIT message of a lease, without its closing brace, and fills in the lease's items. Removes
 * steps from the lease that have a deciding result or that no worker may run. body: of the unit's row. */
int mf_unit_message_add(struct mf_farm *f, struct mf_lease *l, const char *body, struct mf_buf *out);
/* Appends the shapes that the workers of the class will enumerate next. */
int mf_unit_message_add_next(struct mf_farm *f, const struct mf_lease *l, struct mf_buf *out);
/* Fills in the items of a lease without building its UNIT message: the message was sent before a restart, or
 * the unit is held back from all workers. body: of the unit's row. */
int mf_lease_load_items(struct mf_farm *f, struct mf_lease *l, const char *body);
