/* The database schema: tests new databases, stored databases of earlier versions, and failed migrations. */
#include "server/store/schema.h"
#include "server/store/store_private.h"

#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/text_file.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA_TEXT_MAX (1u << 20)

static char folder[64];
static char path[100];

static void make_folder(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_schema.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/farm.db", folder);
}

static void remove_folder(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

static int64_t query(struct mf_store *s, const char *literal)
{
    int64_t n = -1;
    ck_assert_int_eq(mf_sql_get_i64(s, literal, &n, ""), 1);
    return n;
}

/* Appends the SQL without comments and repeated white space, because these depend on how a statement was
 * written. */
static void add_normalised(struct mf_buf *out, const char *sql)
{
    bool space = false;
    for (const char *c = sql; *c; c++) {
        if (c[0] == '-' && c[1] == '-')
            c += strcspn(c, "\n");
        if (!*c)
            break;
        if (strchr(" \t\n", *c)) {
            space = true;
            continue;
        }
        if (space)
            (void)mf_buf_adds(out, " ");
        space = false;
        (void)mf_buf_addf(out, "%c", *c);
    }
    (void)mf_buf_adds(out, "\n");
}

/* Describes a schema: columns, foreign keys, indices and triggers. Columns are in alphabetical order, because
 * ALTER TABLE appends them. */
static char *describe(struct mf_store *s)
{
    static const char columns[] =
        "SELECT m.name || '.' || c.name || ' ' || c.type || ' ' || c.\"notnull\" || ' ' || "
        "ifnull(c.dflt_value, '-') || ' ' || c.pk FROM sqlite_schema m JOIN pragma_table_xinfo(m.name) c "
        "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1";
    static const char references[] =
        "SELECT m.name || '.' || f.\"from\" || ' -> ' || f.\"table\" || ' ' || f.on_delete FROM "
        "sqlite_schema m "
        "JOIN pragma_foreign_key_list(m.name) f WHERE m.type = 'table' ORDER BY 1";
    static const char others[] =
        "SELECT sql FROM sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL ORDER BY name";
    const char *const queries[] = {columns, references, others};
    struct mf_buf out;
    mf_buf_init(&out, SCHEMA_TEXT_MAX);
    for (size_t i = 0; i < MF_ARRAY_LEN(queries); i++) {
        _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
        ck_assert_int_eq(mf_sql_dynamic(s, queries[i], &q), 0);
        while (mf_sql_next(q) > 0)
            add_normalised(&out, mf_sql_text(q, 0));
    }
    ck_assert_int_eq(mf_buf_error(&out), 0);
    return out.data;
}

static char *describe_new_database(void)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    make_folder();
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    ck_assert_int_eq(query(s, "PRAGMA user_version"), mf_schema.version);
    char *text = describe(s);
    s = mf_store_free(s);
    remove_folder();
    return text;
}

static void create_stored(const char *sql_file, int version)
{
    char pragma[40];
    sqlite3 *db = NULL;
    _cleanup_(mf_freep) char *sql = text_file_read(sql_file);
    mf_format(pragma, sizeof(pragma), "PRAGMA user_version = %d", version);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s: %s", sql_file,
                  sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_exec(db, pragma, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db,
                                  "INSERT INTO device_class VALUES (1, 'gfx942', 304);"
                                  "INSERT INTO device_model (id, class, name, simulated, body)"
                                  " VALUES (7, 1, 'm', 1, '{\"gap_us\":3}');"
                                  "INSERT INTO worker (name, instance, model, host, pid, version, revision,"
                                  " families, state, joined_ms, seen_ms)"
                                  " VALUES ('w', 'i', 7, 'h', 1, '0', 'r', '[]', 'idle', 1, 1)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
}

/* After migration, each tests/data/schema/version_N.sql must have the same schema as schema.sql, and must
 * keep its rows. */
MF_TEST(stored_versions_are_migrated)
{
    glob_t found;
    _cleanup_(mf_freep) char *expected = describe_new_database();
    ck_assert_int_eq(glob(MF_TEST_DATA "/schema/version_*.sql", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        int version = 0;
        ck_assert_int_eq(sscanf(strrchr(found.gl_pathv[i], '/'), "/version_%d.sql", &version), 1);
        _cleanup_(mf_store_freep) struct mf_store *s = NULL;
        make_folder();
        create_stored(found.gl_pathv[i], version);
        ck_assert_int_eq(mf_store_open(path, &s), 0);
        _cleanup_(mf_freep) char *got = describe(s);
        ck_assert_msg(strcmp(got, expected) == 0,
                      "a migrated %s differs from schema.sql: add a migration "
                      "(server/store/migrations/README.md). Migrated:\n%s\nschema.sql:\n%s",
                      found.gl_pathv[i], got, expected);
        ck_assert_int_eq(query(s, "PRAGMA user_version"), mf_schema.version);
        ck_assert_int_eq(query(s, "SELECT count(*) FROM device_class"), 1);
        ck_assert_int_eq(query(s, "SELECT json_extract(m.body, '$.gap_us') FROM worker w JOIN device_model m"
                                  " ON m.id = w.model WHERE w.name = 'w' AND m.name = 'm'"),
                         3);
        ck_assert_int_eq(query(s, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
        s = mf_store_free(s);
        remove_folder();
    }
    globfree(&found);
}

/* Contents of a database of version 1: task 1 has a race with a rerun, task 2 a kept row. */
static const char measured[] =
    "INSERT INTO device_model VALUES (1, 1, 'MI300X', 0, '{}');"
    "INSERT INTO shape VALUES (1, 'x', 'x', 1), (2, 'y', 'x', 2);"
    "INSERT INTO batch (id, name, state, priority, options, body_hash, receipt, created_ms)"
    " VALUES (1, '', 'done', 1, '{}', '', '{}', 1);"
    "INSERT INTO task (id, batch, shape, class, state) VALUES (1, 1, 1, 1, 'done'), (2, 1, 2, 1, 'done');"
    "INSERT INTO pipeline VALUES (1, 1, 1, '[]', '', 16, '', 1, 1, 1), (2, 1, 2, '[1]', '', 16, '', 1, 1, 1),"
    " (3, 2, 1, '[]', '', 16, '', 1, 1, 1);"
    "INSERT INTO result (unit, attempt, seq, pipeline, task, worker, status, reason, us, mad, verified, late,"
    " final, samples, extra, at_ms) VALUES"
    " (1, 1, 1, 1, 1, 1, 'ok', '', 100, 1, 2, 0, 1, zeroblob(80), '{\"fresh\":[240,241,242]}', 1),"
    " (1, 1, 2, 2, 1, 1, 'ok', '', 110, 2, 1, 0, 1, zeroblob(40), NULL, 1),"
    " (1, 1, 3, NULL, 1, 1, 'ok', '', NULL, NULL, 0, 0, 1, NULL, '{\"race\":{\"mad\":5}}', 1);"
    "INSERT INTO config (id, task, shape, class, model, pipeline, us, us1, us2, err1, err2, ties, provenance,"
    " at_ms) VALUES (1, 1, 1, 1, 1, 1, 241, 1, 1, 0, 0, '[]', '{}', 1),"
    " (2, 2, 2, 1, 1, 3, 90, 1, 1, 0, 0, '[]', '{}', 1);"
    "INSERT INTO promotion (task, known, source, new, least, decision, reason, mad, n, at_ms)"
    " VALUES (2, '', '', 3, 0.03, 'kept', '', 7, 96, 1);";

/* A config of version 1 gets the spread and number of the samples of its time: of the rerun, or of the
 * comparison. Its pipelines get their medians in the race. */
MF_TEST(measurements_are_migrated)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    sqlite3 *db = NULL;
    make_folder();
    create_stored(MF_TEST_DATA "/schema/version_1.sql", 1);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, measured, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    ck_assert_int_eq(query(s, "SELECT count(*) FROM config WHERE task = 1 AND us = 241 AND mad = 5 AND n = 3"
                              " AND tries = 1 AND unstable = ''"),
                     1);
    ck_assert_int_eq(
        query(s, "SELECT count(*) FROM config WHERE task = 2 AND us = 90 AND mad = 7 AND n = 96"), 1);
    ck_assert_int_eq(
        query(s, "SELECT count(*) FROM pipeline WHERE id = 1 AND race_us = 100 AND race_mad = 1"), 1);
    ck_assert_int_eq(
        query(s, "SELECT count(*) FROM pipeline WHERE id = 2 AND race_us = 110 AND race_mad = 2"), 1);
    ck_assert_int_eq(query(s, "SELECT count(*) FROM pipeline WHERE id = 3 AND race_us IS NULL"), 1);
    s = mf_store_free(s);
    remove_folder();
}

/* Contents of a database of version 2: two tasks share an enumeration of all families of a revision. */
static const char enumerated[] =
    "INSERT INTO shape VALUES (1, 'x', 'x', 1);"
    "INSERT INTO batch (id, name, state, priority, options, body_hash, receipt, created_ms)"
    " VALUES (1, '', 'open', 1, '{}', '', '{}', 1), (2, '', 'open', 1, '{}', '', '{}', 1);"
    "INSERT INTO enumeration (id, class, shape, revision, complete) VALUES (5, 1, 1, 'r8', 0),"
    " (6, 1, 1, 'r9', 1);"
    "INSERT INTO task (id, batch, shape, class, state, enumeration) VALUES (1, 1, 1, 1, 'probing', 6),"
    " (2, 2, 1, 1, 'enumerating', 5);"
    "INSERT INTO kernel VALUES (1, 'move', 'r9', 'sort');"
    "INSERT INTO step VALUES (1, 6, 1, 'sort', 16, 1, 1, '{}');"
    "INSERT INTO unit (id, task, class, kind, state, priority, body, created_ms) VALUES"
    " (1, 1, 1, 'probe', 'ready', 1, '{\"steps\":[1]}', 1), (2, 2, 1, 'enumerate', 'ready', 1, '{}', 1);"
    "UPDATE worker SET families = '[\"move\",\"two_stage\"]', revision = 'r9';";

/* The enumerations of a revision become those of a family "all" at this revision, which units and batches
 * need. */
MF_TEST(enumerations_are_migrated)
{
    static const char *const checks[] = {
        "SELECT count(*) FROM enumeration e JOIN family f ON f.id = e.family WHERE f.name = 'all' AND"
        " (e.id, f.revision, e.complete) IN ((5, 'r8', 0), (6, 'r9', 1))",
        "SELECT count(*) FROM task_enumeration WHERE (task, enumeration) IN ((1, 6), (2, 5))",
        "SELECT count(*) FROM batch_family b JOIN family f ON f.id = b.family WHERE b.class = 1 AND"
        " (b.batch, f.revision) IN ((1, 'r9'), (2, 'r8'))",
        "SELECT count(*) FROM unit u JOIN family_set s ON s.id = u.families JOIN family f ON"
        " s.families = '[' || f.id || ']' WHERE (u.id, f.revision, u.body) IN"
        " ((1, 'r9', '{\"steps\":[1]}'), (2, 'r8', '{\"enumeration\":5}'))",
        "SELECT 2 * count(*) FROM worker WHERE families = '{\"move\":\"r9\",\"two_stage\":\"r9\"}'",
    };
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    sqlite3 *db = NULL;
    make_folder();
    create_stored(MF_TEST_DATA "/schema/version_2.sql", 2);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, enumerated, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(checks); i++)
        ck_assert_msg(query(s, checks[i]) == 2, "%s", checks[i]);
    ck_assert_int_eq(query(s, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    s = mf_store_free(s);
    remove_folder();
}

/* Contents of a database of version 2: batch 1 is for AITER, batch 2 has no option `consumer`. */
static const char one_consumer[] =
    "INSERT INTO shape VALUES (1, 'x', 'x', 1);"
    "INSERT INTO batch (id, name, state, priority, options, body_hash, receipt, created_ms) VALUES"
    " (1, '', 'open', 1, '{\"consumer\":\"aiter\"}', '', '{}', 1), (2, '', 'open', 1, '{}', '', '{}', 1);"
    "INSERT INTO task (id, batch, shape, class, state) VALUES (1, 1, 1, 1, 'racing'), (2, 2, 1, 1, 'done');"
    "INSERT INTO pipeline VALUES (5, 1, 1, '[1]', '', 16, '', 1, 1, 1, 2, 3), (6, 2, 1, '[]', '', 16, '', 1, "
    "1,"
    " 0, NULL, NULL);"
    "INSERT INTO unit (id, task, class, kind, state, priority, body, created_ms) VALUES"
    " (1, 1, 1, 'race', 'ready', 1, '{\"pipelines\":[5]}', 1);"
    "INSERT INTO layout_race VALUES (1, 'row', 5, 1, 1, 1, 1, '', '[]', '{}');"
    "INSERT INTO layout_choice VALUES (1, 1, 'x', 'row', 1, '{}');"
    "INSERT INTO config (id, task, shape, class, model, pipeline, us, us1, us2, err1, err2, ties, provenance,"
    " at_ms) VALUES (3, 1, 1, 1, 7, 5, 241, 1, 1, 0, 0, '[]', '{}', 1), (4, 2, 1, 1, 7, 6, 90, 1, 1, 0, 0,"
    " '[]', '{}', 1);"
    "INSERT INTO promotion (task, known, source, new, least, decision, reason, at_ms)"
    " VALUES (1, '', '', 5, 0.03, 'kept', '', 1);"
    "INSERT INTO comparison VALUES (1, 1, 1, '', 1, 1, 1, 1, 1, 1, 'ok', 'ok', '', '', 1);";

static const char *const of_consumers[] = {
    "SELECT count(*) FROM task_consumer WHERE task = 1 AND consumer = 'aiter' AND reason = ''",
    "SELECT count(*) FROM task_consumer WHERE task = 2 AND consumer = 'moefarm'",
    "SELECT count(*) FROM batch WHERE id = 1 AND options = '{\"consumer\":[\"aiter\"]}'",
    "SELECT count(*) FROM batch WHERE id = 2 AND options = '{}'",
    "SELECT count(*) FROM unit WHERE body = '{\"pipelines\":[5],\"consumer\":\"aiter\"}'",
    "SELECT count(*) FROM pipeline WHERE id = 5 AND consumer = 'aiter' AND race_us = 2 AND race_mad = 3",
    "SELECT count(*) FROM pipeline WHERE id = 6 AND consumer = 'moefarm'",
    "SELECT count(*) FROM layout_race WHERE task = 1 AND consumer = 'aiter' AND pipeline = 5",
    "SELECT count(*) FROM layout_choice WHERE batch = 1 AND consumer = 'aiter' AND layout = 'row'",
    "SELECT count(*) FROM config WHERE id = 3 AND consumer = 'aiter' AND us = 241 AND pipeline = 5",
    "SELECT count(*) FROM config WHERE id = 4 AND consumer = 'moefarm' AND us = 90",
    "SELECT count(*) FROM promotion WHERE task = 1 AND consumer = 'aiter' AND decision = 'kept'",
    "SELECT count(*) FROM comparison WHERE unit = 1 AND consumer = 'aiter'",
};

/* The rows of a batch get the batch's consumer. */
MF_TEST(consumers_are_migrated)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    sqlite3 *db = NULL;
    int64_t n = 0;
    make_folder();
    create_stored(MF_TEST_DATA "/schema/version_2.sql", 2);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, one_consumer, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(of_consumers); i++) {
        _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
        ck_assert_int_eq(mf_sql_dynamic(s, of_consumers[i], &q), 0);
        ck_assert_int_eq(mf_sql_next(q), 1);
        n = mf_sql_i64(q, 0);
        ck_assert_msg(n == 1, "%s: %lld", of_consumers[i], (long long)n);
    }
    ck_assert_int_eq(query(s, "PRAGMA foreign_keys"), 1);
    ck_assert_int_eq(query(s, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    s = mf_store_free(s);
    remove_folder();
}

static const char *const two_steps[] = {"CREATE TABLE fruit (name TEXT) STRICT",
                                        "ALTER TABLE fruit ADD COLUMN colour TEXT NOT NULL DEFAULT ''"};
static const char *const second_fails[] = {"CREATE TABLE fruit (name TEXT) STRICT",
                                           "ALTER TABLE tree ADD COLUMN x"};

/* clang-format off */
static const struct {
    const char *what;
    int from, to;               /* user_version of the database; version of the program */
    const char *const *steps;
    bool works;
    int64_t n_columns;          /* number of columns of the table `fruit` after the migration */
} cases[] = {
    {"nothing to do",     1, 1, two_steps,    true,  0},
    {"both migrations",   1, 3, two_steps,    true,  2},
    {"only the first",    1, 2, two_steps,    true,  1},
    {"a failed one undoes the others", 1, 3, second_fails, false, 0},
    {"a newer database",  4, 3, two_steps,    false, 0},
};
/* clang-format on */

MF_TEST(missing_migrations_run, .rows = MF_ARRAY_LEN(cases))
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    const struct mf_schema schema = {cases[_i].to, "", cases[_i].steps};
    char pragma[40];
    make_folder();
    ck_assert_int_eq(mf_store_open(path, &s), 0);
    mf_format(pragma, sizeof(pragma), "PRAGMA user_version = %d", cases[_i].from);
    ck_assert_int_eq(sqlite3_exec(mf_store_db(s), pragma, NULL, NULL, NULL), SQLITE_OK);
    int r = mf_store_apply_schema(s, &schema);
    ck_assert_msg((r == 0) == cases[_i].works, "%s: %d %s", cases[_i].what, r, mf_store_error(s));
    ck_assert_int_eq(query(s, "PRAGMA user_version"), cases[_i].works ? cases[_i].to : cases[_i].from);
    ck_assert_int_eq(query(s, "SELECT count(*) FROM pragma_table_xinfo('fruit')"), cases[_i].n_columns);
    s = mf_store_free(s);
    remove_folder();
}

int main(void)
{
    return mf_check_main(NULL);
}
