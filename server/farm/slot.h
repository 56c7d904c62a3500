/* Slots: the live workers as the writing thread sees them, in memory. One slot a name; the database's row of the
 * worker is a copy for readers, and what is left of a worker that is not live.
 *
 *     (none) ──HELLO──► slot ──BYE──► (none), row "gone"
 *                         └──three beats of silence──► (none), row "lost"
 *
 * A slot answers to one routing id, of one key where the hub has keys. Its name cannot be taken by another instance while the slot is there. Belongs to the
 * writing thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/moe/device_class.h"
#include "common/net/wire.h"
#include "server/link/hub.h"
#include "server/link/map.h"

#define MF_CREDIT_MAX 8
#define MF_N_PHASES   5

/* What a device said of itself that results are judged by; 0 where it said nothing. */
struct mf_ceilings {
    double peak_gflops; /* the largest of its formats */
    double mem_read_gbs;
    double llc_bytes;
    double gap_us; /* one launch */
};

/* What people know of a worker. */
struct mf_slot_told {
    const char *state; /* NULL: nothing yet */
    int64_t unit, at_ms;
    char step[160];
};

struct mf_slot {
    int64_t id; /* of the worker's row */
    char name[MF_WORKER_NAME_MAX];
    char instance[MF_WORKER_NAME_MAX];
    struct mf_device_class class;
    int64_t class_id, model_id;
    char revision[80];
    bool simulated;
    bool compiles; /* ahead of what it measures */
    struct mf_ceilings ceilings;
    char *provenance; /* JSON members for a config: worker, host, model, compiler, … */
    bool draining;
    struct mf_peer peer;
    int64_t seen_ms, beat_ms; /* monotonic: any message, the last BEAT */
    int credit;
    bool starved;      /* the last lease found nothing; cleared when its class gets units */
    int64_t last_task; /* affinity: its data are still there */
    int n_leases;
    int64_t unit; /* as its last BEAT said */
    char step[160];
    double busy_s[MF_N_PHASES];
    int64_t n_results, n_deaths;
    struct mf_buf acks; /* of this turn: "[1,1,1],[1,1,2]" */
    bool dirty;         /* its row is to be written */
    struct mf_slot_told told;
};

extern const char *const mf_phase_names[MF_N_PHASES];

struct mf_slots {
    struct mf_slot **all;
    size_t n, cap;
    struct mf_map by_peer;
};

void mf_slots_release(struct mf_slots *s);
struct mf_slot *mf_slots_named(const struct mf_slots *s, const char *name);
struct mf_slot *mf_slots_by_id(const struct mf_slots *s, int64_t worker);
struct mf_slot *mf_slots_by_peer(const struct mf_slots *s, const struct mf_peer *peer);
/* A new slot that answers to the routing id. -ENOMEM. */
int mf_slots_add(struct mf_slots *s, const char *name, const struct mf_peer *peer, struct mf_slot **ret);
/* From now on it answers to that one. */
int mf_slots_move(struct mf_slots *s, struct mf_slot *slot, const struct mf_peer *peer);
/* Frees it; no lease may point to it any more. */
void mf_slots_remove(struct mf_slots *s, struct mf_slot *slot);
/* Those of the class that take units; revision NULL: any. */
int mf_slots_count(const struct mf_slots *s, int64_t class_id, const char *revision);
/* The others that could take what this one may: of its class, model and revision. */
int mf_slots_like(const struct mf_slots *s, const struct mf_slot *slot);
/* Units of the class became ready: its slots may ask again. */
void mf_slots_feed(struct mf_slots *s, int64_t class_id);
/* "idle", "busy" or "draining". */
const char *mf_slot_state(const struct mf_slot *slot);
/* Its state, unit or step is another than what people were told last. */
bool mf_slot_is_news(const struct mf_slot *slot);
