/* What a farm's database has to say after a fault, whatever the fault was: read out of the files themselves. */
#pragma once

#include <stddef.h>

#include "support/farm/farm_harness.h"
#include "worker/agent/spool.h"

/* Results by (unit, attempt, sequence). */
struct farm_keys {
    struct mf_spool_key *at;
    size_t n;
};

void farm_keys_add(struct farm_keys *k, struct mf_spool_key key);
void farm_keys_release(struct farm_keys *k);

/* Results of steps and pipelines that a dead worker had measured and not been told to forget. */
void farm_read_spool(struct farm *f, int place, struct farm_keys *to);
/* A batch can be done while a worker that was started anew has yet to send what its predecessor had measured: late
 * samples. A spool that is acknowledged is cut to nothing. */
bool farm_spools_empty(struct farm *f);
void farm_wait_spools(struct farm *f);

/* The database passes integrity_check and holds every one of those results. */
void farm_check_whole(struct farm *f, const struct farm_keys *kept);
/* That, and each task of the batch is done and has one config, each of its steps one result that decides it, and one that is not ok says why. */
void farm_audit(struct farm *f, int batch, const struct farm_keys *kept);
/* A number out of the database, as an SQL query of one row gives it. */
long farm_ask(struct farm *f, const char *sql);
/* Lines of a log ("moefarmd.log", "worker0.log") that have the text. */
int farm_log_count(struct farm *f, const char *log, const char *text);
bool farm_log_has(struct farm *f, const char *log, const char *text);
/* Waits until one has. */
void farm_wait_log(struct farm *f, const char *log, const char *text);
