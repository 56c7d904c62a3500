/* The store of who measures: epochs, device classes and models, workers. */
#pragma once

#include "common/moe/device_class.h"
#include "server/farm/slot.h"
#include "server/store/store.h"

/* A start of the coordinator: its epoch is above that of every other, those that a restored or a removed database has lost included. Workers that lived under the last one are lost until they say HELLO. */
int mf_store_start(struct mf_store *s, int64_t now_ms, int64_t *ret_epoch);

/* The id of a class, made if need be. */
int mf_store_class(struct mf_store *s, const struct mf_device_class *class, int64_t *ret);
int mf_store_class_get(struct mf_store *s, int64_t id, struct mf_device_class *ret);

/* The id of a model of the class, with its description brought up to date. 1: the name is known as simulated when
 * this one is real, or the other way round. */
int mf_store_model(struct mf_store *s, int64_t class, const char *name, bool simulated, const char *body,
                   int64_t *ret);
/* Its description, JSON text that the caller frees. -ENOENT. */
/* What its device says of itself now. */
int mf_store_model_again(struct mf_store *s, int64_t model, const char *body);
int mf_store_model_body(struct mf_store *s, int64_t model, char **ret);

struct mf_worker_row {
    const char *name, *instance, *host, *version, *revision, *families, *sandbox;
    int64_t model, pid;
};
/* Workers that were here when the farm ended. */
int mf_store_workers_live(struct mf_store *s, int64_t *ret);
/* The model a worker of that name had. 1: known; 0: the name is new. */
int mf_store_worker_model(struct mf_store *s, const char *name, int64_t *ret_model);
/* Its row as of HELLO; id, counters and busy times go into the slot. */
int mf_store_worker_hello(struct mf_store *s, const struct mf_worker_row *row, int64_t now_ms,
                          struct mf_slot *slot);
/* Writes what changes of a slot. */
int mf_store_worker_save(struct mf_store *s, const struct mf_slot *slot, const char *state, int64_t now_ms);
