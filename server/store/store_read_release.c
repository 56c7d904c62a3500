#include "server/store/store_read_release.h"

#include "server/store/store_json.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- releases ---- */

#define RELEASE_COLUMNS                                                                                    \
    "SELECT r.id AS id, r.name AS name, r.created_by AS created_by, r.created_ms AS created_ms, r.sha256 " \
    "AS sha256, length(r.csv) AS bytes, r.n_rows AS rows, r.n_left_out AS left_out, r.filters AS filters," \
    " (SELECT json_group_array(json_object('channel', c.name, 'as', CASE WHEN c.current = r.id THEN "      \
    "'current' ELSE 'staged' END)) FROM channel c WHERE c.current = r.id OR c.staged = r.id) AS channels"  \
    " FROM release r"
#define RELEASE_TYPES "ittitiiijj"

int mf_read_releases(struct mf_store *s, const char *name, const char *sha256, const struct mf_page *page,
                     struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql(s,
               RELEASE_COLUMNS " WHERE r.id < ?1 AND (?2 IS NULL OR r.name = ?2) AND (?3 IS NULL OR r.id "
                               "IN (SELECT id FROM release WHERE sha256 = ?3)) ORDER BY r.id DESC LIMIT ?4",
               &q, "itti", page->from ? page->id : INT64_MAX, name, sha256, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_rows(q, page, RELEASE_TYPES, ret);
}

static int read_one(struct mf_sql *q, const char *types, cJSON **ret)
{
    int r = mf_sql_next(q);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    *ret = mf_row_json(q, types);
    return *ret ? 0 : -ENOMEM;
}

int mf_read_release(struct mf_store *s, int64_t id, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, RELEASE_COLUMNS " WHERE r.id = ?1", &q, "i", id);
    return r < 0 ? r : read_one(q, RELEASE_TYPES, ret);
}

static int exists(struct mf_store *s, int64_t id)
{
    return mf_sql_exists(s, "SELECT id FROM release WHERE id = ?", id);
}

static void add_link(cJSON *links, const char *name, const char *list, int64_t id, const char *rest)
{
    char path[80];
    mf_format(path, sizeof(path), "/api/v1/%s/%" PRId64 "%s", list, id, rest);
    cJSON_AddStringToObject(links, name, path);
}

static int make_row(struct mf_sql *q, void *data, cJSON **ret)
{
    (void)data;
    cJSON *o = mf_row_json(q, "itdtiiii"), *links = o ? cJSON_AddObjectToObject(o, "links") : NULL;
    if (!links) {
        cJSON_Delete(o);
        return -ENOMEM;
    }
    int64_t task = mf_sql_i64(q, 5), pipeline = mf_sql_i64(q, 6);
    add_link(links, "task", "tasks", task, "");
    add_link(links, "race", "tasks", task, "/race");
    add_link(links, "pipeline", "pipelines", pipeline, "");
    add_link(links, "samples", "pipelines", pipeline, "/results");
    *ret = o;
    return 0;
}

int mf_read_release_rows(struct mf_store *s, int64_t id, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = exists(s, id);
    if (r < 0)
        return r;
    r = mf_sql(s,
               "SELECT w.row AS row, w.key AS key, w.us AS us, w.names AS names, w.config AS config, w.task "
               "AS task, w.pipeline AS pipeline, (SELECT coalesce(sum(length(x.samples) / 4), 0) FROM result "
               "x WHERE x.task = w.task AND x.step IS NULL AND x.final = 1 AND x.pipeline = w.pipeline) AS "
               "samples FROM release_row w WHERE w.release = ?1 AND w.row > ?2 ORDER BY w.row LIMIT ?3",
               &q, "iii", id, page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_row, NULL, ret);
}

static int add_side(struct mf_store *s, const char *literal, int64_t a, int64_t b, const char *types,
                    cJSON *o, const char *name)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, literal, &q, "ii", a, b);
    return r < 0 ? r : mf_rows_json(q, types, o, name);
}

#define ONLY_IN_FIRST                                                                                    \
    "SELECT x.key AS key, x.us AS us, x.names AS names FROM release_row x WHERE x.release = ?1 AND NOT " \
    "EXISTS (SELECT 1 FROM release_row y WHERE y.release = ?2 AND y.key = x.key) ORDER BY x.row"

int mf_read_release_diff(struct mf_store *s, int64_t id, int64_t against, cJSON **ret)
{
    _cleanup_(cJSON_Deletep) cJSON *o = cJSON_CreateObject();
    int64_t same = 0;
    int r = exists(s, id);
    if (r == 0 && against)
        r = exists(s, against);
    else if (r == 0)
        r = mf_sql_get_i64(s, "SELECT coalesce(max(id), 0) FROM release WHERE id < ?", &against, "i", id);
    if (r >= 0)
        r = mf_sql_get_i64(
            s,
            "SELECT count(*) FROM release_row x JOIN release_row y ON y.release = ?2 AND y.key "
            "= x.key WHERE x.release = ?1 AND x.us = y.us AND x.names = y.names",
            &same, "ii", id, against);
    if (r < 0)
        return r;
    mf_json_add_i64(o, "release", id);
    cJSON_AddItemToObject(o, "against", against ? cJSON_CreateNumber((double)against) : cJSON_CreateNull());
    mf_json_add_i64(o, "same", same);
    if ((r = add_side(s, ONLY_IN_FIRST, id, against, "tdt", o, "added")) < 0 ||
        (r = add_side(s, ONLY_IN_FIRST, against, id, "tdt", o, "removed")) < 0)
        return r;
    r = add_side(s,
                 "SELECT x.key AS key, y.us AS old_us, x.us AS new_us, y.names AS old_names, x.names AS "
                 "new_names FROM release_row x JOIN release_row y ON y.release = ?2 AND y.key = x.key"
                 " WHERE x.release = ?1 AND (x.us <> y.us OR x.names <> y.names) ORDER BY x.row",
                 id, against, "tddtt", o, "changed");
    if (r < 0)
        return r;
    *ret = MF_TAKE(o);
    return 0;
}

int mf_read_release_file(struct mf_store *s, int64_t id, enum mf_release_file what, struct mf_buf *out,
                         char ret_sha256[MF_SHA256_TEXT_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    char found[MF_SHA256_TEXT_MAX];
    size_t len = 0;
    int r = what == MF_RELEASE_MANIFEST
                ? mf_sql_first(s, "SELECT manifest, manifest_sha256 FROM release WHERE id = ?", &q, "i", id)
                : mf_sql_first(s,
                               "SELECT csv, sha256, coalesce(json_extract(filters, '$.consumer') IN "
                               "('vllm', 'sglang'), 0) FROM release WHERE id = ?",
                               &q, "i", id);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    if (what != MF_RELEASE_MANIFEST && (what == MF_RELEASE_CONFIGS) != (mf_sql_i64(q, 2) != 0))
        return -ENOTSUP;
    const void *data = mf_sql_blob(q, 0, &len);
    mf_sha256_print(data, len, found);
    if (strcmp(found, mf_sql_text(q, 1)) != 0)
        return -EBADMSG;
    memcpy(ret_sha256, found, sizeof(found));
    return mf_buf_add(out, data, len);
}

/* ---- channels ---- */

#define CHANNEL_COLUMNS                                                                                     \
    "SELECT c.id AS id, c.name AS name, CASE WHEN c.staged IS NULL THEN NULL ELSE json_object('id', t.id, " \
    "'name', t.name) END AS staged, CASE WHEN c.current IS NULL THEN NULL ELSE json_object('id', u.id, "    \
    "'name', u.name, 'consumer', json_extract(u.filters, '$.consumer')) END AS current, u.sha256 AS "       \
    "sha256, c.created_ms AS created_ms,"                                                                   \
    " (SELECT max(at_ms) FROM channel_move WHERE channel = c.id) AS moved_ms FROM channel c"                \
    " LEFT JOIN release t ON t.id = c.staged LEFT JOIN release u ON u.id = c.current"
#define CHANNEL_TYPES "itjjtii"

int mf_read_channels(struct mf_store *s, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, CHANNEL_COLUMNS " WHERE c.id > ?1 ORDER BY c.id LIMIT ?2", &q, "ii", page->id,
                   (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_rows(q, page, CHANNEL_TYPES, ret);
}

int mf_read_channel(struct mf_store *s, const char *name, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, CHANNEL_COLUMNS " WHERE c.name = ?1", &q, "t", name);
    return r < 0 ? r : read_one(q, CHANNEL_TYPES, ret);
}

int mf_read_channel_moves(struct mf_store *s, const char *name, const struct mf_page *page,
                          struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int64_t channel;
    int r = mf_sql_get_i64(s, "SELECT id FROM channel WHERE name = ?", &channel, "t", name);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = mf_sql(
        s,
        "SELECT m.id AS id, m.move AS move, m.from_release AS from_release, m.to_release AS to_release,"
        " m.moved_by AS moved_by, m.reason AS reason, m.at_ms AS at_ms FROM channel_move m"
        " WHERE m.channel = ?1 AND m.id < ?2 ORDER BY m.id DESC LIMIT ?3",
        &q, "iii", channel, page->from ? page->id : INT64_MAX, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_rows(q, page, "itiitti", ret);
}

int mf_read_channel_current(struct mf_store *s, const char *name, int64_t *ret_release,
                            char ret_name[MF_RELEASE_NAME_MAX], char ret_sha256[MF_SHA256_TEXT_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql_first(s,
                     "SELECT r.id, r.name, r.sha256 FROM channel c LEFT JOIN release r ON r.id = c.current"
                     " WHERE c.name = ?",
                     &q, "t", name);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    if (mf_sql_null(q, 0))
        return -ENODATA;
    *ret_release = mf_sql_i64(q, 0);
    r = mf_copy(ret_name, MF_RELEASE_NAME_MAX, mf_sql_text(q, 1));
    return r < 0 ? r : mf_copy(ret_sha256, MF_SHA256_TEXT_MAX, mf_sql_text(q, 2));
}
