#include "support/farm/farm_audit.h"

#include <check.h>
#include <poll.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"

void farm_keys_add(struct farm_keys *k, struct mf_spool_key key)
{
    k->at = reallocarray(k->at, k->n + 1, sizeof(*k->at));
    ck_assert_ptr_nonnull(k->at);
    k->at[k->n++] = key;
}

void farm_keys_release(struct farm_keys *k)
{
    free(k->at);
    *k = (struct farm_keys){0};
}

void farm_read_spool(struct farm *f, int place, struct farm_keys *to)
{
    char name[16];
    struct mf_spool *spool = NULL;
    struct mf_spool_key key;
    const char *body;
    size_t len;
    (void)snprintf(name, sizeof(name), "w%d", place);
    ck_assert_int_eq(mf_spool_open(f->folder, name, &spool, NULL), 0);
    while (mf_spool_next(spool, &key, &body, &len)) {
        if (strstr(body, "\"step\":") || strstr(body, "\"pipeline\":"))
            farm_keys_add(to, key);
        mf_spool_sent(spool);
    }
    mf_spool_close(spool);
}

bool farm_spools_empty(struct farm *f)
{
    for (int place = 0; place < f->n_workers; place++) {
        char path[128];
        struct stat st;
        (void)snprintf(path, sizeof(path), "%s/w%d.spool", f->folder, place);
        if (stat(path, &st) < 0 || st.st_size > 0)
            return false;
    }
    return true;
}

void farm_wait_spools(struct farm *f)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    while (!farm_spools_empty(f)) {
        ck_assert_msg(mf_now_ms() < until, "a worker's spool in %s still holds results", f->folder);
        (void)poll(NULL, 0, 5);
    }
}

static sqlite3 *open_database(struct farm *f)
{
    char path[128];
    sqlite3 *db = NULL;
    (void)snprintf(path, sizeof(path), "%s/state/farm.db", f->folder);
    ck_assert_int_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, 5000);
    return db;
}

/* Returns the first column of the only row that the query returns; the caller frees it. */
static char *ask_text(sqlite3 *db, const char *sql, int64_t a, int64_t b, int64_t c)
{
    sqlite3_stmt *q = NULL;
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    const int64_t args[] = {a, b, c};
    for (int i = 0; i < sqlite3_bind_parameter_count(q); i++)
        (void)sqlite3_bind_int64(q, i + 1, args[i]);
    ck_assert_msg(sqlite3_step(q) == SQLITE_ROW, "%s: %s", sql, sqlite3_errmsg(db));
    const unsigned char *text = sqlite3_column_text(q, 0);
    char *ret = strdup(text ? (const char *)text : "");
    sqlite3_finalize(q);
    return ret;
}

long farm_query_number(struct farm *f, const char *sql)
{
    sqlite3 *db = open_database(f);
    _cleanup_(mf_freep) char *text = ask_text(db, sql, 0, 0, 0);
    (void)sqlite3_close(db);
    return strtol(text, NULL, 10);
}

/* clang-format off */
/* Each query returns an empty text if the rule holds, or else one violation. */
static const struct {
    const char *what, *sql;
} rules[] = {
    {"task not done",
     "SELECT max(id || ' is ' || state || ' ' || reason) FROM task WHERE batch = ? AND state <> 'done'"},
    {"task without exactly one config",
     "SELECT max(id) FROM task g WHERE batch = ? AND (SELECT count(*) FROM config WHERE task = g.id) <> "
     "(SELECT count(*) FROM task_consumer WHERE task = g.id AND reason = '')"},
    /* A kernel that was quarantined before the batch is not measured. */
    {"step without exactly one final result",
     "SELECT max(g.id || ', step ' || s.id) FROM task g JOIN task_enumeration e ON e.task = g.id JOIN step s"
     " ON s.enumeration = e.enumeration"
     " WHERE g.batch = ?"
     " AND (SELECT count(*) FROM result r WHERE r.task = g.id AND r.step = s.id AND r.final = 1) <> 1"
     " AND NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.kernel = s.kernel AND q.class = g.class)"},
    {"failed result without a reason",
     "SELECT max(r.id) FROM task g JOIN result r ON r.task = g.id WHERE g.batch = ?"
     " AND r.status <> 'ok' AND r.reason = ''"},
    {"unit still open",
     "SELECT max(u.id || ' ' || u.state) FROM task g JOIN unit u ON u.task = g.id WHERE g.batch = ?"
     " AND u.state IN ('ready', 'leased')"},
    {"wrong number of measured steps",
     "SELECT max(id) FROM task g WHERE batch = ?"
     " AND n_measured <> (SELECT count(*) FROM result r WHERE r.task = g.id"
     " AND r.step IS NOT NULL AND r.final = 1)"},
};
/* clang-format on */

void farm_check_results(struct farm *f, const struct farm_keys *kept)
{
    sqlite3 *db = open_database(f);
    _cleanup_(mf_freep) char *whole = ask_text(db, "PRAGMA integrity_check", 0, 0, 0);
    ck_assert_str_eq(whole, "ok");
    for (size_t i = 0; i < kept->n; i++) {
        const struct mf_spool_key *k = &kept->at[i];
        /* The results of an enumeration are stored as steps, not as results. */
        _cleanup_(mf_freep) char *found =
            ask_text(db,
                     "SELECT EXISTS (SELECT 1 FROM result WHERE unit = ?1 AND attempt = ?2 AND seq = ?3)"
                     " OR EXISTS (SELECT 1 FROM unit WHERE id = ?1 AND kind = 'enumerate')",
                     k->unit, k->attempt, k->seq);
        ck_assert_msg(*found == '1', "the result of unit %ld attempt %ld seq %ld is lost", (long)k->unit,
                      (long)k->attempt, (long)k->seq);
    }
    (void)sqlite3_close(db);
}

void farm_audit(struct farm *f, int batch, const struct farm_keys *kept)
{
    farm_check_results(f, kept);
    sqlite3 *db = open_database(f);
    for (size_t i = 0; i < MF_ARRAY_LEN(rules); i++) {
        _cleanup_(mf_freep) char *wrong = ask_text(db, rules[i].sql, batch, 0, 0);
        ck_assert_msg(!*wrong, "%s: %s", rules[i].what, wrong);
    }
    (void)sqlite3_close(db);
}

int farm_log_count(struct farm *f, const char *log, const char *text)
{
    char path[128];
    int n = 0;
    (void)snprintf(path, sizeof(path), "%s/%s", f->folder, log);
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
    _cleanup_(mf_freep) char *line = NULL;
    size_t cap = 0;
    while (file && getline(&line, &cap, file) >= 0)
        n += strstr(line, text) != NULL;
    return n;
}

bool farm_log_has(struct farm *f, const char *log, const char *text)
{
    return farm_log_count(f, log, text) > 0;
}

void farm_wait_log(struct farm *f, const char *log, const char *text)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    while (!farm_log_has(f, log, text)) {
        ck_assert_msg(mf_now_ms() < until, "no line with \"%s\" in %s", text, log);
        (void)poll(NULL, 0, 5);
    }
}
