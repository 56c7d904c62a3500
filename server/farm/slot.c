#include "server/farm/slot.h"

#include "common/base/array.h"
#include "common/base/text.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Maximum length of an ACK message. It is enough for one iteration, which handles at most 512 messages and
 * acknowledges at most one result per message. */
#define ACKS_MAX (64u << 10)

const char *const mf_phase_names[MF_N_PHASES] = {"wait", "load", "data", "verify", "timing"};

static void slot_free(struct mf_slot *slot)
{
    mf_buf_release(&slot->acks);
    free(slot->provenance);
    free(slot);
}

void mf_slots_release(struct mf_slots *s)
{
    for (size_t i = 0; i < s->n; i++)
        slot_free(s->all[i]);
    free(s->all);
    mf_map_release(&s->by_peer);
    *s = (struct mf_slots){0};
}

struct mf_slot *mf_slots_by_name(const struct mf_slots *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->all[i]->name, name) == 0)
            return s->all[i];
    }
    return NULL;
}

struct mf_slot *mf_slots_by_id(const struct mf_slots *s, int64_t worker)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->all[i]->id == worker)
            return s->all[i];
    }
    return NULL;
}

static bool same_peer(const struct mf_peer *a, const struct mf_peer *b)
{
    return a->len == b->len && memcmp(a->id, b->id, a->len) == 0 && strcmp(a->user, b->user) == 0;
}

struct mf_slot *mf_slots_by_peer(const struct mf_slots *s, const struct mf_peer *peer)
{
    struct mf_slot *slot = mf_map_get(&s->by_peer, mf_peer_hash(peer));
    /* If two routing ids have the same hash, the peer that sent HELLO last has the slot. Messages of the
     * other peer are refused, and that peer sends HELLO again. */
    return slot && same_peer(&slot->peer, peer) ? slot : NULL;
}

int mf_slots_set_peer(struct mf_slots *s, struct mf_slot *slot, const struct mf_peer *peer)
{
    if (mf_slots_by_peer(s, &slot->peer) == slot)
        (void)mf_map_remove(&s->by_peer, mf_peer_hash(&slot->peer));
    slot->peer = *peer;
    mf_buf_clear(&slot->acks);
    return mf_map_put(&s->by_peer, mf_peer_hash(peer), slot);
}

int mf_slots_add(struct mf_slots *s, const char *name, const struct mf_peer *peer, struct mf_slot **ret)
{
    int r = mf_array_grow(&s->all, s->n, &s->cap, sizeof(*s->all));
    if (r < 0)
        return r;
    struct mf_slot *slot = calloc(1, sizeof(*slot));
    if (!slot)
        return -ENOMEM;
    mf_buf_init(&slot->acks, ACKS_MAX);
    slot->peer.len = 0;
    r = mf_copy(slot->name, sizeof(slot->name), name);
    if (r == 0)
        r = mf_slots_set_peer(s, slot, peer);
    if (r < 0) {
        slot_free(slot);
        return r;
    }
    s->all[s->n++] = slot;
    *ret = slot;
    return 0;
}

void mf_slots_remove(struct mf_slots *s, struct mf_slot *slot)
{
    assert(slot->n_leases == 0);
    if (mf_slots_by_peer(s, &slot->peer) == slot)
        (void)mf_map_remove(&s->by_peer, mf_peer_hash(&slot->peer));
    for (size_t i = 0; i < s->n; i++) {
        if (s->all[i] == slot) {
            s->all[i] = s->all[--s->n];
            break;
        }
    }
    slot_free(slot);
}

bool mf_slot_is_available(const struct mf_slot *slot)
{
    return !slot->draining && !slot->quarantined;
}

int mf_slots_count(const struct mf_slots *s, int64_t class_id)
{
    int n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += mf_slot_is_available(s->all[i]) && s->all[i]->class_id == class_id;
    return n;
}

static bool offers_family(const struct mf_slot *slot, int64_t family)
{
    size_t i = 0;
    while (i < slot->n_families && slot->families[i] != family)
        i++;
    return i < slot->n_families;
}

bool mf_slot_offers(const struct mf_slot *slot, const int64_t *families, size_t n)
{
    size_t i = 0;
    while (i < n && offers_family(slot, families[i]))
        i++;
    return i == n;
}

void mf_slots_clear_starved(struct mf_slots *s, int64_t class_id)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->all[i]->class_id == class_id)
            s->all[i]->starved = false;
    }
}

const char *mf_slot_state(const struct mf_slot *slot)
{
    if (slot->draining)
        return "draining";
    return slot->n_leases > 0 ? "busy" : "idle";
}

bool mf_slot_has_changed(const struct mf_slot *slot)
{
    const struct mf_slot_published *old = &slot->published;
    return !old->state || strcmp(old->state, mf_slot_state(slot)) != 0 || old->unit != slot->unit ||
           strcmp(old->step, slot->step) != 0;
}
