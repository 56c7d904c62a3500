#include "server/store/store_release.h"

#include "server/store/store_private.h"

#include <errno.h>
#include <string.h>

MF_NAMES_DEFINE(mf_move, MF_MOVE_, MF_MOVE_MAP)

/* 1: known, and the same; -EEXIST: known, and another. */
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

/* What a move finds: the channel, and the approval that it stands by. */
struct standing {
    struct mf_channel channel;
    int64_t approval;  /* 0: none */
    int64_t below;     /* the approval that a rollback goes back to; 0: none */
    int64_t below_to;  /* its release */
    int64_t last_from; /* of the last move */
    enum mf_move last;
};

/* 1: there is such a channel. */
static int find_channel(struct mf_store *s, const char *name, struct standing *ret)
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
    *ret = (struct standing){.channel.id = mf_sql_i64(q, 0),
                             .channel.staged = mf_sql_i64(q, 1),
                             .channel.current = mf_sql_i64(q, 2),
                             .approval = mf_sql_i64(q, 3),
                             .below = mf_sql_i64(q, 4),
                             .below_to = mf_sql_i64(q, 5),
                             .last_from = mf_sql_i64(q, 6)};
    r = mf_move_parse(mf_sql_text(q, 7), &ret->last);
    return r < 0 ? r : 1;
}

/* A word that is misspelt makes one, too: there is a bound. */
static int make_channel(struct mf_store *s, const struct mf_channel_move *m, struct standing *ret)
{
    int r = mf_sql_run(s,
                       "INSERT INTO channel (name, created_ms) SELECT ?1, ?2 WHERE (SELECT count(*) FROM "
                       "channel) < ?3",
                       "tii", m->channel, m->at_ms, (int64_t)MF_CHANNELS_MAX);
    *ret = (struct standing){.channel.id = mf_store_last_id(s)};
    return r == 0 ? MF_MOVED_TOO_MANY : r < 0 ? r : 0;
}

static int record(struct mf_store *s, const struct mf_channel_move *m, const struct standing *was,
                  int64_t from, int64_t to)
{
    return mf_sql_run(s,
                      "INSERT INTO channel_move (channel, move, from_release, to_release, below, moved_by, "
                      "reason, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                      "itIIItti", was->channel.id, mf_move_name(m->move), from, to,
                      m->move == MF_MOVE_APPROVE ? was->approval : 0, m->moved_by, m->reason, m->at_ms);
}

static int stage(struct mf_store *s, const struct mf_channel_move *m, struct standing *was)
{
    struct mf_channel *c = &was->channel;
    if (c->staged == m->release)
        return MF_MOVED_BEFORE;
    if (c->current == m->release)
        return MF_MOVED_CURRENT;
    int r = record(s, m, was, c->staged, m->release);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET staged = ? WHERE id = ?", "ii", m->release, c->id);
    c->staged = m->release;
    return r < 0 ? r : MF_MOVED;
}

static int approve(struct mf_store *s, const struct mf_channel_move *m, struct standing *was)
{
    struct mf_channel *c = &was->channel;
    if (!c->staged && c->current == m->release && was->last == MF_MOVE_APPROVE)
        return MF_MOVED_BEFORE;
    if (c->current == m->release)
        return MF_MOVED_CURRENT;
    if (c->staged != m->release)
        return MF_MOVED_NOT_STAGED;
    int r = record(s, m, was, c->current, m->release);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET staged = NULL, current = ?, approval = ? WHERE id = ?", "iii",
                       m->release, mf_store_last_id(s), c->id);
    c->current = m->release;
    c->staged = 0;
    return r < 0 ? r : MF_MOVED;
}

/* What was approved while it was current already is nothing to go back to. Such approvals are in old
 * databases only. */
static int pass_over(struct mf_store *s, struct standing *was)
{
    int r = 0;
    while (r >= 0 && was->below && was->below_to == was->channel.current) {
        _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
        r = mf_sql_first(
            s,
            "SELECT b.id, b.to_release FROM channel_move a LEFT JOIN channel_move b ON b.id = a.below "
            "WHERE a.id = ?",
            &q, "i", was->below);
        was->below = r > 0 ? mf_sql_i64(q, 0) : 0;
        was->below_to = r > 0 ? mf_sql_i64(q, 1) : 0;
    }
    return r < 0 ? r : 0;
}

/* What is staged stays so, for it was not what went wrong; but it is not staged any more where it becomes current. */
static int rollback(struct mf_store *s, const struct mf_channel_move *m, struct standing *was)
{
    struct mf_channel *c = &was->channel;
    if (was->last == MF_MOVE_ROLLBACK && was->last_from == m->release)
        return MF_MOVED_BEFORE;
    if (c->current != m->release)
        return MF_MOVED_NOT_CURRENT;
    int r = pass_over(s, was);
    if (r < 0)
        return r;
    if (!was->below)
        return MF_MOVED_NONE_BELOW;
    c->staged = c->staged == was->below_to ? 0 : c->staged;
    r = record(s, m, was, c->current, was->below_to);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET current = ?, approval = ?, staged = ? WHERE id = ?", "iiIi",
                       was->below_to, was->below, c->staged, c->id);
    c->current = was->below_to;
    return r < 0 ? r : MF_MOVED;
}

/* Before it was approved, so that nobody approves it: what is pulled is what it was. */
static int unstage(struct mf_store *s, const struct mf_channel_move *m, struct standing *was)
{
    struct mf_channel *c = &was->channel;
    if (!c->staged && was->last == MF_MOVE_UNSTAGE && was->last_from == m->release)
        return MF_MOVED_BEFORE;
    if (c->staged != m->release)
        return MF_MOVED_NOT_STAGED;
    int r = record(s, m, was, m->release, 0);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE channel SET staged = NULL WHERE id = ?", "i", c->id);
    c->staged = 0;
    return r < 0 ? r : MF_MOVED;
}

int mf_store_channel_move(struct mf_store *s, const struct mf_channel_move *m, struct mf_channel *ret)
{
    static int (*const moves[MF_MOVE_N_])(struct mf_store *, const struct mf_channel_move *,
                                          struct standing *) = {[MF_MOVE_STAGE] = stage,
                                                                [MF_MOVE_APPROVE] = approve,
                                                                [MF_MOVE_ROLLBACK] = rollback,
                                                                [MF_MOVE_UNSTAGE] = unstage};
    struct standing was = {0};
    int64_t release;
    int r = mf_sql_get_i64(s, "SELECT id FROM release WHERE id = ?", &release, "i", m->release);
    if (r <= 0)
        return r < 0 ? r : MF_MOVED_NO_RELEASE;
    r = find_channel(s, m->channel, &was);
    if (r == 0 && m->move != MF_MOVE_STAGE)
        return MF_MOVED_NO_CHANNEL;
    if (r == 0 && (r = make_channel(s, m, &was)) != 0)
        return r;
    if (r >= 0)
        r = moves[m->move](s, m, &was);
    if (r >= 0)
        *ret = was.channel;
    return r;
}
