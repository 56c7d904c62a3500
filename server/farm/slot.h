/* Worker slots: the live workers, in memory, one slot per name. The worker's row in the database is a copy
 * for readers; it remains when the worker has disconnected.
 *
 *       (none) ──HELLO──► slot ──BYE──► (none), row "gone"
 *                           └──silent for three heartbeats──► (none), row "lost"
 *
 * A slot belongs to one routing id and, if the hub has keys, to one key. While the slot exists, no other
 * instance can use its name. Used by the writing thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/moe/device_class.h"
#include "common/net/wire.h"
#include "server/choose/ceilings.h"
#include "server/link/hub.h"
#include "server/link/map.h"

#define MF_CREDIT_MAX        8
#define MF_N_PHASES          5
#define MF_SLOT_FAMILIES_MAX 64
#define MF_REVISION_TEXT_MAX 80

/* Values of the last published event of a worker. */
struct mf_slot_published {
    const char *state; /* NULL: no event has been published yet */
    int64_t unit, at_ms;
    char step[160];
};

struct mf_slot {
    int64_t id; /* id of the worker's row in the database */
    char name[MF_WORKER_NAME_MAX];
    char instance[MF_WORKER_NAME_MAX];
    struct mf_device_class class;
    int64_t class_id, model_id;
    int64_t families[MF_SLOT_FAMILIES_MAX]; /* ids of the families that it offers, in ascending order */
    size_t n_families;
    bool simulated;
    bool quarantined; /* gets no units, and its statistics do not count (trust.h) */
    bool compiles;    /* compiles kernels of the next shapes in advance */
    struct mf_ceilings ceilings;
    char *provenance; /* JSON members for a config: worker, host, model, compiler, … */
    bool draining;
    struct mf_peer peer;
    int64_t seen_ms, beat_ms; /* monotonic time of the last message, and of the last BEAT */
    int credit;
    bool starved;      /* the last search found no unit; cleared when units of its class become ready */
    int64_t last_task; /* task whose data the worker still has, for affinity */
    int n_leases;
    int64_t progress_ms; /* monotonic: its last result, or the lease that ended its idle time */
    int64_t unit;        /* unit that was running at the last BEAT; 0: none */
    char step[160];
    double busy_s[MF_N_PHASES];
    int64_t n_results, n_deaths;
    struct mf_buf acks; /* text of the ACK of this iteration: "[1,1,1],[1,1,2]" */
    bool dirty;         /* the worker's row must be written */
    struct mf_slot_published published;
};

extern const char *const mf_phase_names[MF_N_PHASES];

struct mf_slots {
    struct mf_slot **all;
    size_t n, cap;
    struct mf_map by_peer;
};

void mf_slots_release(struct mf_slots *s);
struct mf_slot *mf_slots_by_name(const struct mf_slots *s, const char *name);
struct mf_slot *mf_slots_by_id(const struct mf_slots *s, int64_t worker);
struct mf_slot *mf_slots_by_peer(const struct mf_slots *s, const struct mf_peer *peer);
/* Adds a slot for the routing id. Returns -ENOMEM. */
int mf_slots_add(struct mf_slots *s, const char *name, const struct mf_peer *peer, struct mf_slot **ret);
/* Moves the slot to another routing id. */
int mf_slots_set_peer(struct mf_slots *s, struct mf_slot *slot, const struct mf_peer *peer);
/* Frees the slot. No lease may point to it. */
void mf_slots_remove(struct mf_slots *s, struct mf_slot *slot);
/* True if the slot may get units: it is neither draining nor quarantined. */
bool mf_slot_is_available(const struct mf_slot *slot);
/* Counts available slots of the class. */
int mf_slots_count(const struct mf_slots *s, int64_t class_id);
/* True if the slot offers all these families. */
bool mf_slot_offers(const struct mf_slot *slot, const int64_t *families, size_t n);
/* Lets the slots of the class look for units again. Call it when units of the class become ready. */
void mf_slots_clear_starved(struct mf_slots *s, int64_t class_id);
/* Returns "idle", "busy" or "draining". */
const char *mf_slot_state(const struct mf_slot *slot);
/* True if state, unit or step differ from the last published event. */
bool mf_slot_has_changed(const struct mf_slot *slot);
