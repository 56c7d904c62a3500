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

/* Returns the id of a model of the class; creates the model with this description if missing. */
int mf_store_model(struct mf_store *s, int64_t class, const char *name, bool simulated, const char *body,
                   int64_t *ret);
/* Replaces the description of a worker's device. The description of its model is that of the model's oldest
 * trusted worker. */
int mf_store_worker_device(struct mf_store *s, int64_t worker, int64_t model, const char *body);

struct mf_worker_row {
    const char *name, *instance, *host, *version, *revision, *sandbox, *device;
    const char *families, *refused_families; /* JSON, as in the table */
    int64_t model, pid;
};
/* Counts the workers in state idle or busy. Before mf_store_start_epoch, these are the workers of the last
 * run. */
int mf_store_workers_live(struct mf_store *s, int64_t *ret);
/* Finds the device model of the worker with this name. Returns 1, or 0 if the name is new. */
int mf_store_worker_model(struct mf_store *s, const char *name, int64_t *ret_model);
/* Adds or updates the worker's row at HELLO. Sets id, counters, busy times, quarantine and families of the
 * slot. */
int mf_store_worker_hello(struct mf_store *s, const struct mf_worker_row *row, int64_t now_ms,
                          struct mf_slot *slot);
/* Writes the slot's changing members to the worker's row. */
int mf_store_worker_save(struct mf_store *s, const struct mf_slot *slot, const char *state, int64_t now_ms);

/* ---- trust (server/farm/trust.h) ---- */

/* Sets the reason of the worker's quarantine. "": ends the quarantine. */
int mf_store_worker_quarantine(struct mf_store *s, int64_t worker, const char *reason);
/* Returns 1 and the name if the worker is quarantined, otherwise 0. */
int mf_store_worker_quarantined(struct mf_store *s, int64_t worker, char ret_name[MF_WORKER_NAME_MAX]);
/* Counts an undone message. Returns 1, or 0 if no worker has this name. */
int mf_store_worker_add_undone(struct mf_store *s, const char *name, int64_t *ret_worker, int64_t *ret_n);
struct mf_worker_claim {
    /* of its device; the peak of the fastest data type; NAN: not reported */
    double gap_us, mem_read_gbs, peak_gflops;
    int64_t worker;
    const char *name, *quarantined, *model; /* valid during the call */
    bool simulated;
};
/* Called for each worker of the models with the class and name of this model, oldest first. */
typedef int (*mf_worker_claim_fn)(void *context, const struct mf_worker_claim *row);
int mf_store_worker_claims_each(struct mf_store *s, int64_t model, mf_worker_claim_fn fn, void *context);
/* Called with the launch gap in us of each trusted worker of the model that reports one. */
typedef int (*mf_gap_fn)(void *context, double gap_us);
int mf_store_gaps_each(struct mf_store *s, int64_t model, mf_gap_fn fn, void *context);
/* Returns 1 if no other trusted worker of the model has results, otherwise 0. */
int mf_store_worker_is_alone(struct mf_store *s, int64_t model, int64_t worker);
