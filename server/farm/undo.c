/* Applies a worker's message. If the message cannot be applied, for example because a constraint of the
 * database forbids its result, only this message is undone and refused. The state in memory may contain a
 * part of the message, so the farm then loads its state from the store, as at a start: workers send HELLO
 * again and keep their leases. */
#include "server/farm/trust.h"

#include "common/base/log.h"
#include "common/base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOG_LINES 10

/* The state before a message that the store does not roll back. */
struct mark {
    const struct mf_slot *slot;
    size_t acks_len, n_new_events;
};

static struct mark take_mark(const struct mf_farm *f, const struct mf_mail *mail)
{
    const struct mf_slot *slot = mf_slots_by_peer(&f->slots, &mail->peer);
    return (struct mark){slot, slot ? slot->acks.len : 0, f->n_new_events};
}

/* Drops the events and the ACK of the message. The peer's slot may have been replaced by the message. */
static void return_to_mark(struct mf_farm *f, const struct mf_mail *mail, const struct mark *m)
{
    struct mf_slot *slot = mf_slots_by_peer(&f->slots, &mail->peer);
    while (f->n_new_events > m->n_new_events)
        free(f->new_events[--f->n_new_events].body);
    if (slot)
        mf_buf_truncate(&slot->acks, slot == m->slot ? m->acks_len : 0);
}

/* Failures of the database file itself concern every message, not only this one. */
static bool is_of_message(int r)
{
    return !mf_read_only_is_temporary(r) && r != -EBADMSG;
}

static int undo(struct mf_farm *f, const struct mf_mail *mail, const struct mark *mark, int error)
{
    const struct mf_slot *slot = mf_slots_by_peer(&f->slots, &mail->peer);
    char reason[MF_REASON_MAX], name[MF_WORKER_NAME_MAX] = "";
    const char *cause = mf_store_error(f->store);
    mf_format(reason, sizeof(reason), "%s", *cause ? cause : strerrordesc_np(-error));
    mf_format(name, sizeof(name), "%s", slot ? slot->name : "");
    int r = mf_store_savepoint_rollback(f->store, MF_SAVEPOINT_MESSAGE);
    if (r < 0)
        return error;
    return_to_mark(f, mail, mark);
    f->stats.undone++;
    f->needs_reload = true;
    if (mf_log_limit(&f->log_limits.undone, LOG_LINES, f->now_ms))
        log_warn("undid %s of worker %s, which cannot be applied: %s", mf_message_name(mail->type), name,
                 reason);
    r = *name ? mf_trust_count_undone(f, name) : 0;
    if (r < 0)
        return r;
    return mf_peer_refuse(f, &mail->peer, error == -ENOMEM ? "no_memory" : "malformed",
                          (int64_t)mail->sequence, "%s cannot be applied: %s", mf_message_name(mail->type),
                          reason);
}

int mf_message_apply(struct mf_farm *f, const struct mf_mail *mail)
{
    const struct mark mark = take_mark(f, mail);
    int r = mf_store_savepoint(f->store, MF_SAVEPOINT_MESSAGE);
    if (r < 0)
        return r;
    mf_store_clear_error(f->store);
    r = mf_peer_handle(f, mail);
    if (r >= 0)
        return mf_store_savepoint_release(f->store, MF_SAVEPOINT_MESSAGE);
    return is_of_message(r) ? undo(f, mail, &mark, r) : r;
}
