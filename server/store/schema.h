/* The database schema: schema.sql and the migrations, compiled into the program.
 *
 * PRAGMA user_version of a database is 1 plus the number of migrations applied to it. */
#pragma once

struct mf_schema {
    int version;
    const char *create;            /* SQL that creates a database of this version */
    const char *const *migrations; /* [i] migrates from version i + 1 to i + 2; version - 1 entries */
};

extern const struct mf_schema mf_schema;
