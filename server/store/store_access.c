#include "server/store/store_access.h"
#include "server/store/store_batch.h"
#include "server/store/store_json.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <string.h>

MF_NAMES_DEFINE(mf_role, MF_ROLE_, MF_ROLE_MAP)

/* Condition for a valid token: not revoked and not expired. Parameter 2 is the current time. */
#define VALID " revoked_ms IS NULL AND (expires_ms = 0 OR expires_ms > ?2)"

int mf_store_token_add(struct mf_store *s, const struct mf_token_row *row, int64_t now_ms, int64_t *ret_id)
{
    int r = mf_sql_run(
        s, "INSERT INTO token (role, name, hash, created_ms, expires_ms) VALUES (?, ?, ?, ?, ?)", "ttbii",
        mf_role_name(row->role), row->name, row->hash, (size_t)MF_KEY_SIZE, now_ms, row->expires_ms);
    if (r < 0)
        return r;
    *ret_id = mf_store_last_id(s);
    return 0;
}

int mf_store_token_revoke(struct mf_store *s, int64_t id, int64_t now_ms)
{
    int r = mf_sql_run(s, "UPDATE token SET revoked_ms = ? WHERE id = ? AND revoked_ms IS NULL", "ii", now_ms,
                       id);
    return r < 0 ? r : r == 0 ? -ENOENT : 0;
}

int mf_store_tokens_revoke(struct mf_store *s, enum mf_role role, const char *name, int64_t now_ms)
{
    return mf_sql_write(s,
                        "UPDATE token SET revoked_ms = ? WHERE role = ? AND name = ? AND revoked_ms IS NULL",
                        "itt", now_ms, mf_role_name(role), name);
}

int mf_store_tokens_count(struct mf_store *s, int64_t now_ms, int64_t *ret)
{
    return mf_sql_get_i64(s,
                          "SELECT count(*) FROM token WHERE role != 'worker' AND revoked_ms IS NULL"
                          " AND (expires_ms = 0 OR expires_ms > ?)",
                          ret, "i", now_ms);
}

int mf_store_token_check(struct mf_store *s, int64_t id, const uint8_t secret[MF_KEY_SIZE], int64_t now_ms,
                         enum mf_role *ret_role)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    uint8_t given[MF_KEY_SIZE];
    size_t len;
    int r = mf_secret_hash(secret, given);
    if (r == 0)
        r = mf_sql_first(s, "SELECT hash, role FROM token WHERE id = ?1 AND role != 'worker' AND" VALID, &q,
                         "ii", id, now_ms);
    if (r <= 0)
        return r;
    const uint8_t *kept = mf_sql_blob(q, 0, &len);
    if (len != MF_KEY_SIZE || !mf_secret_equal(kept, given))
        return 0;
    return mf_role_parse(mf_sql_text(q, 1), ret_role) < 0 ? 0 : 1;
}

int mf_store_token_is_valid(struct mf_store *s, int64_t id, int64_t now_ms)
{
    int64_t found;
    return mf_sql_get_i64(s, "SELECT id FROM token WHERE id = ?1 AND" VALID, &found, "ii", id, now_ms);
}

int mf_store_token_name(struct mf_store *s, int64_t id, char ret[MF_TOKEN_NAME_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    *ret = '\0';
    if (id == 0)
        return 0;
    int r = mf_sql_first(s, "SELECT name FROM token WHERE id = ?", &q, "i", id);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    return mf_copy(ret, MF_TOKEN_NAME_MAX, mf_sql_text(q, 0));
}

int mf_store_enrolment_find(struct mf_store *s, const uint8_t hash[MF_KEY_SIZE], int64_t now_ms,
                            int64_t *ret_id)
{
    return mf_sql_get_i64(s, "SELECT id FROM token WHERE hash = ?1 AND role = 'worker' AND" VALID, ret_id,
                          "bi", hash, (size_t)MF_KEY_SIZE, now_ms);
}

int mf_store_key_find(struct mf_store *s, const uint8_t public_key[MF_KEY_SIZE],
                      char ret_worker[MF_KEY_WORKER_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT worker FROM worker_key WHERE public_key = ? AND revoked_ms IS NULL", &q,
                         "b", public_key, (size_t)MF_KEY_SIZE);
    if (r <= 0)
        return r;
    r = mf_copy(ret_worker, MF_KEY_WORKER_MAX, mf_sql_text(q, 0));
    return r < 0 ? r : 1;
}

/* Returns 1 if the token has enrolled this key for this worker already. */
static int is_repeated(struct mf_store *s, int64_t token, const uint8_t *public_key, const char *worker)
{
    int64_t id;
    return mf_sql_get_i64(s,
                          "SELECT id FROM worker_key WHERE token = ? AND public_key = ? AND worker = ?"
                          " AND revoked_ms IS NULL",
                          &id, "ibt", token, public_key, (size_t)MF_KEY_SIZE, worker);
}

int mf_store_key_enrol(struct mf_store *s, int64_t token, const uint8_t public_key[MF_KEY_SIZE],
                       const char *worker, int64_t now_ms)
{
    int64_t id, used;
    int r =
        mf_sql_get_i64(s, "SELECT used_ms IS NOT NULL FROM token WHERE id = ?1 AND role = 'worker' AND" VALID,
                       &used, "ii", token, now_ms);
    if (r <= 0)
        return r < 0 ? r : MF_ENROLMENT_TOKEN_INVALID;
    r = is_repeated(s, token, public_key, worker);
    if (r != 0)
        return r < 0 ? r : MF_ENROLMENT_DONE;
    if (used)
        return MF_ENROLMENT_TOKEN_USED;
    r = mf_sql_get_i64(s, "SELECT id FROM worker_key WHERE worker = ? AND revoked_ms IS NULL", &id, "t",
                       worker);
    if (r != 0)
        return r < 0 ? r : MF_ENROLMENT_NAME_TAKEN;
    r = mf_sql_get_i64(s, "SELECT id FROM worker_key WHERE public_key = ?", &id, "b", public_key,
                       (size_t)MF_KEY_SIZE);
    if (r != 0)
        return r < 0 ? r : MF_ENROLMENT_KEY_KNOWN;
    r = mf_sql_run(s, "UPDATE token SET used_ms = ? WHERE id = ?", "ii", now_ms, token);
    if (r >= 0)
        r = mf_sql_run(s,
                       "INSERT INTO worker_key (worker, public_key, token, enrolled_ms) VALUES (?, ?, ?, ?)",
                       "tbii", worker, public_key, (size_t)MF_KEY_SIZE, token, now_ms);
    return r < 0 ? r : MF_ENROLMENT_DONE;
}

int mf_store_key_revoke(struct mf_store *s, int64_t id, int64_t now_ms, uint8_t ret_key[MF_KEY_SIZE])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    size_t len;
    int r = mf_sql_first(s,
                         "UPDATE worker_key SET revoked_ms = ? WHERE id = ? AND revoked_ms IS NULL"
                         " RETURNING public_key,"
                         " coalesce((SELECT w.id FROM worker w WHERE w.name = worker_key.worker), 0)",
                         &q, "ii", now_ms, id);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    const void *key = mf_sql_blob(q, 0, &len);
    if (len != MF_KEY_SIZE)
        return -EBADMSG;
    memcpy(ret_key, key, MF_KEY_SIZE);
    return mf_store_enumerations_drop(s, mf_sql_i64(q, 1));
}

int mf_read_tokens(struct mf_store *s, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT id AS id, role AS role, name AS name, created_ms AS created_ms, expires_ms AS "
                   "expires_ms, used_ms AS used_ms, revoked_ms AS revoked_ms FROM token WHERE id > ?1"
                   " ORDER BY id LIMIT ?2",
                   &q, "ii", page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_rows(q, page, "ittiiii", ret);
}

int mf_read_keys(struct mf_store *s, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT id AS id, worker AS worker, lower(hex(public_key)) AS public_key, token AS token,"
                   " enrolled_ms AS enrolled_ms, revoked_ms AS revoked_ms FROM worker_key WHERE id > ?1"
                   " ORDER BY id LIMIT ?2",
                   &q, "ii", page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_rows(q, page, "ittiii", ret);
}
