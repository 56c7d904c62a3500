/* The database schema: schema.sql and the files of server/store/migrations/, compiled in (server/store/CMakeLists.txt).
 *
 * PRAGMA user_version holds the version of a database: 1 plus the number of migrations that it has. */
#pragma once

struct mf_schema {
    int version;
    const char *create;            /* makes a new database of that version */
    const char *const *migrations; /* [i] turns version i + 1 into version i + 2; version - 1 of them */
};

extern const struct mf_schema mf_schema;
