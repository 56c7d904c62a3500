/* Kernel families, the sets of families that units need, and the workers that offer them, in the database.
 *
 * A family has one id per revision. A unit needs a set of families; its worker must offer all of them. Leases
 * use the table worker_family_set, which this module keeps up to date. */
#pragma once

#include "common/base/buf.h"
#include "common/moe/step.h"
#include "server/farm/slot.h"
#include "server/store/store.h"
#include "server/store/store_batch.h"

struct mf_family_row {
    char name[MF_FAMILY_NAME_MAX];
    char revision[MF_REVISION_TEXT_MAX];
};
/* -ENOENT: no such family. */
int mf_store_family_get(struct mf_store *s, int64_t family, struct mf_family_row *ret);

/* Replaces the families that the worker of the slot offers. families: JSON object {name: revision} with at
 * most MF_SLOT_FAMILIES_MAX members. Sets the families of the slot. */
int mf_store_worker_set_families(struct mf_store *s, const char *families, struct mf_slot *slot);
/* Returns the id of a set, a JSON array of family ids in ascending order. Adds the set if it is new. */
int mf_store_family_set(struct mf_store *s, const char *families, int64_t *ret);
/* Appends the families of a set as a JSON object {name: revision}. */
int mf_store_family_set_print(struct mf_store *s, int64_t set, struct mf_buf *out);
/* Returns 1 if another connected worker of the model may run units that need the set, otherwise 0. */
int mf_store_has_other_worker(struct mf_store *s, int64_t set, int64_t model, int64_t worker);

/* Called for each device model of the class with the number of the batch's families that its workers offer;
 * the largest number first, then the oldest worker. Workers that are not connected count, because they may
 * return. */
typedef int (*mf_model_offer_fn)(void *context, int64_t model, int64_t n_families);
int mf_store_model_offers_each(struct mf_store *s, int64_t batch, int64_t class, mf_model_offer_fn fn,
                               void *context);
/* Returns 1 if a worker of the model offers the family, also one that is not connected, otherwise 0. */
int mf_store_model_offers(struct mf_store *s, int64_t model, int64_t family);

/* Lists the families that the batch tunes on the class, in ascending order. */
int mf_store_batch_families(struct mf_store *s, int64_t batch, int64_t class, struct mf_ids *ret);
int mf_store_batch_add_family(struct mf_store *s, int64_t batch, int64_t class, int64_t family);
/* Lists the families of the steps of a pipeline, in ascending order. steps: JSON array of step ids. */
int mf_store_steps_families(struct mf_store *s, const char *steps, struct mf_ids *ret);
/* Lists the families of the steps of two pipelines, in ascending order. */
int mf_store_pipelines_families(struct mf_store *s, int64_t a, int64_t b, struct mf_ids *ret);
