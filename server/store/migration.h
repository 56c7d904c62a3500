/* The files of schema/, built in by core.cmake in the order of their numbers: migration i brings a database of version i
 * (PRAGMA user_version) to i + 1. */
#pragma once

extern const char *const mf_migrations[];
extern const int mf_n_migrations;
