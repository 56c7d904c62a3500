/* Coordinator epochs, device classes, device models and workers in the database. */
#pragma once

#include "common/moe/device_class.h"
#include "server/farm/slot.h"
#include "server/store/store.h"

/* Starts a new epoch when the coordinator starts. Epochs start at the wall clock time, so they increase even
 * if the database was deleted or restored from a backup. Marks all live workers as lost until they send
 * HELLO. */
int mf_store_start_epoch(struct mf_store *s, int64_t now_ms, int64_t *ret_epoch);

/* Returns the id of a class; creates it if missing. */
int mf_store_class(struct mf_store *s, const struct mf_device_class *class, int64_t *ret);
int mf_store_class_get(struct mf_store *s, int64_t id, struct mf_device_class *ret);

/* Returns the id of a model of the class and stores its description; creates the model if missing. Returns 1
 * if the name is registered for a simulated device and this device is real, or the reverse. */
int mf_store_model(struct mf_store *s, int64_t class, const char *name, bool simulated, const char *body,
                   int64_t *ret);
/* Replaces the model's description. */
int mf_store_model_update(struct mf_store *s, int64_t model, const char *body);
int mf_store_model_body(struct mf_store *s, int64_t model, char **ret); /* JSON text that the caller frees */

struct mf_worker_row {
    const char *name, *instance, *host, *version, *revision, *families, *sandbox;
    int64_t model, pid;
};
/* Counts the workers in state idle or busy. Before mf_store_start_epoch, these are the workers of the last
 * run. */
int mf_store_workers_live(struct mf_store *s, int64_t *ret);
/* Finds the device model of the worker with this name. Returns 1, or 0 if the name is new. */
int mf_store_worker_model(struct mf_store *s, const char *name, int64_t *ret_model);
/* Adds or updates the worker's row at HELLO. Sets id, counters and busy times of the slot. */
int mf_store_worker_hello(struct mf_store *s, const struct mf_worker_row *row, int64_t now_ms,
                          struct mf_slot *slot);
/* Writes the slot's changing members to the worker's row. */
int mf_store_worker_save(struct mf_store *s, const struct mf_slot *slot, const char *state, int64_t now_ms);
