#include "server/store/store_release.h"

#include "server/store/store_private.h"

#include <errno.h>
#include <string.h>

MF_NAMES_DEFINE(mf_move, MF_MOVE_, MF_MOVE_MAP)

/* Returns 1 if the same release exists, 0 if the name is unused; -EEXIST: the name is used by a different
 * release. */
static int find_same(struct mf_store *s, const struct mf_release *release, int64_t *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT id, sha256 = ?2 AND filters = ?3 FROM release WHERE name = ?1", &q, "ttt",
                         release->name, release->sha256, release->filters);
    if (r <= 0)
        return r;
    if (!mf_sql_i64(q, 1))
        return -EEXIST;
    *ret = mf_sql_i64(q, 0);
    return 1;
}

static int add_rows(struct mf_store *s, const struct mf_release *release, int64_t id)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < release->n_rows; i++) {
        const struct mf_release_row *row = &release->rows[i];
        r = mf_sql_run(
            s,
            "INSERT INTO release_row (release, row, key, us, names, config, task, pipeline) VALUES (?, "
            "?, ?, ?, ?, ?, ?, ?)",
            "iitdtiii", id, (int64_t)i + 1, row->key, row->us, row->names, row->config, row->task,
            row->pipeline);
    }
    return r;
}

int mf_store_release_add(struct mf_store *s, const struct mf_release *release, int64_t *ret)
{
    int64_t id = 0;
    int r = find_same(s, release, &id);
    if (r == 0) {
        r = mf_sql_run(s,
                       "INSERT INTO release (name, created_by, created_ms, filters, csv, sha256, manifest,"
                       " manifest_sha256, n_rows, n_left_out) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       "ttitbtbtii", release->name, release->created_by, release->created_ms,
                       release->filters, release->csv, release->csv_len, release->sha256, release->manifest,
                       release->manifest_len, release->manifest_sha256, (int64_t)release->n_rows,
                       release->n_left_out);
        id = mf_store_last_id(s);
        if (r >= 0)
            r = add_rows(s, release, id);
        r = r < 0 ? r : 0;
    }
    if (r >= 0)
        *ret = id;
    return r;
}

/* ---- channels ---- */

/* State of a channel before a move. */
struct channel_state {
    struct mf_channel channel;
    int64_t approval;  /* the move that made the current release current; 0: none */
    int64_t below;     /* the approval to which a rollback returns; 0: none */
    int64_t below_to;  /* release of that approval */
    int64_t last_from; /* from_release of the last move */
    enum mf_move last;
};

/* Returns 1, or 0 if there is no such channel. */
static int find_channel(struct mf_store *s, const char *name, struct channel_state *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s,
        "SELECT c.id, c.staged, c.current, c.approval, b.id, b.to_release, l.from_release, l.move"
        " FROM channel c LEFT JOIN channel_move a ON a.id = c.approval"
        " LEFT JOIN channel_move b ON b.id = a.below"
        " LEFT JOIN channel_move l ON l.id = (SELECT max(id) FROM channel_move WHERE channel = "
        "c.id) WHERE c.name = ?",
        &q, "t", name);
    if (r <= 0)
        return r;
    *ret = (struct channel_state){.channel.id = mf_sql_i64(q, 0),
                                  .channel.staged = mf_sql_i64(q, 1),
                                  .channel.current = mf_sql_i64(q, 2),
                                  .approval = mf_sql_i64(q, 3),
                                  .below = mf_sql_i64(q, 4),
                                  .below_to = mf_sql_i64(q, 5),
                                  .last_from = mf_sql_i64(q, 6)};
    r = mf_move_parse(mf_sql_text(q, 7), &ret->last);
    return r < 0 ? r : 1;
}

/* Limits the number of channels, because a misspelt name creates one. */
static int make_channel(struct mf_store *s, const struct mf_channel_move *m, struct channel_state *ret)
{
    int r = mf_sql_run(s,
                       "INSERT INTO channel (name, created_ms) SELECT ?1, ?2 WHERE (SELECT count(*) FROM "
                       "channel) < ?3",
                       "tii", m->channel, m->at_ms, (int64_t)MF_CHANNELS_MAX);
    *ret = (struct channel_state){.channel.id = mf_store_last_id(s)};
    return r == 0 ? MF_MOVED_TOO_MANY : r < 0 ? r : 0;
}

static int record_move(struct mf_store *s, const struct mf_channel_move *m, const struct channel_state *state,
                       int64_t from, int64_t to)
{
    return mf_sql_run(s,
                      "INSERT INTO channel_move (channel, move, from_release, to_release, below, moved_by, "
                      "reason, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                      "itIIItti", state->channel.id, mf_move_name(m->move), from, to,
                      m->move == MF_MOVE_APPROVE ? state->approval : 0, m->moved_by, m->reason, m->at_ms);
}

static int stage(struct mf_store *s, const struct mf_channel_move *m, struct channel_state *state)
{
    struct mf_channel *c = &state->channel;
    if (c->staged == m->release)
        return MF_MOVED_ALREADY;
    if (c->current == m->release)
        return MF_MOVED_CURRENT;
    int r = record_move(s, m, state, c->staged, m->release);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET staged = ? WHERE id = ?", "ii", m->release, c->id);
    c->staged = m->release;
    return r < 0 ? r : MF_MOVED;
}

static int approve(struct mf_store *s, const struct mf_channel_move *m, struct channel_state *state)
{
    struct mf_channel *c = &state->channel;
    if (!c->staged && c->current == m->release && state->last == MF_MOVE_APPROVE)
        return MF_MOVED_ALREADY;
    if (c->current == m->release)
        return MF_MOVED_CURRENT;
    if (c->staged != m->release)
        return MF_MOVED_NOT_STAGED;
    int r = record_move(s, m, state, c->current, m->release);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET staged = NULL, current = ?, approval = ? WHERE id = ?", "iii",
                       m->release, mf_store_last_id(s), c->id);
    c->current = m->release;
    c->staged = 0;
    return r < 0 ? r : MF_MOVED;
}

/* Skips approvals of the release that is current, because a rollback to such an approval would change
 * nothing. Only old databases contain such approvals. */
static int skip_current(struct mf_store *s, struct channel_state *state)
{
    int r = 0;
    while (r >= 0 && state->below && state->below_to == state->channel.current) {
        _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
        r = mf_sql_first(
            s,
            "SELECT b.id, b.to_release FROM channel_move a LEFT JOIN channel_move b ON b.id = a.below "
            "WHERE a.id = ?",
            &q, "i", state->below);
        state->below = r > 0 ? mf_sql_i64(q, 0) : 0;
        state->below_to = r > 0 ? mf_sql_i64(q, 1) : 0;
    }
    return r < 0 ? r : 0;
}

/* Rolls back to the approval below the current one. The staged release stays staged unless the rollback makes
 * it current. */
static int rollback(struct mf_store *s, const struct mf_channel_move *m, struct channel_state *state)
{
    struct mf_channel *c = &state->channel;
    if (state->last == MF_MOVE_ROLLBACK && state->last_from == m->release)
        return MF_MOVED_ALREADY;
    if (c->current != m->release)
        return MF_MOVED_NOT_CURRENT;
    int r = skip_current(s, state);
    if (r < 0)
        return r;
    if (!state->below)
        return MF_MOVED_NO_PREVIOUS;
    c->staged = c->staged == state->below_to ? 0 : c->staged;
    r = record_move(s, m, state, c->current, state->below_to);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET current = ?, approval = ?, staged = ? WHERE id = ?", "iiIi",
                       state->below_to, state->below, c->staged, c->id);
    c->current = state->below_to;
    return r < 0 ? r : MF_MOVED;
}

/* Withdraws the staged release before its approval. The current release does not change. */
static int unstage(struct mf_store *s, const struct mf_channel_move *m, struct channel_state *state)
{
    struct mf_channel *c = &state->channel;
    if (!c->staged && state->last == MF_MOVE_UNSTAGE && state->last_from == m->release)
        return MF_MOVED_ALREADY;
    if (c->staged != m->release)
        return MF_MOVED_NOT_STAGED;
    int r = record_move(s, m, state, m->release, 0);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET staged = NULL WHERE id = ?", "i", c->id);
    c->staged = 0;
    return r < 0 ? r : MF_MOVED;
}

int mf_store_channel_move(struct mf_store *s, const struct mf_channel_move *m, struct mf_channel *ret)
{
    static int (*const moves[MF_MOVE_N_])(struct mf_store *, const struct mf_channel_move *,
                                          struct channel_state *) = {[MF_MOVE_STAGE] = stage,
                                                                     [MF_MOVE_APPROVE] = approve,
                                                                     [MF_MOVE_ROLLBACK] = rollback,
                                                                     [MF_MOVE_UNSTAGE] = unstage};
    struct channel_state state = {0};
    int64_t release;
    int r = mf_sql_get_i64(s, "SELECT id FROM release WHERE id = ?", &release, "i", m->release);
    if (r <= 0)
        return r < 0 ? r : MF_MOVED_NO_RELEASE;
    r = find_channel(s, m->channel, &state);
    if (r == 0 && m->move != MF_MOVE_STAGE)
        return MF_MOVED_NO_CHANNEL;
    if (r == 0 && (r = make_channel(s, m, &state)) != 0)
        return r;
    if (r >= 0)
        r = moves[m->move](s, m, &state);
    if (r >= 0)
        *ret = state.channel;
    return r;
}
