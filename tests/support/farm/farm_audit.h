/* Checks invariants of a farm's database that must hold after any fault, by reading its files. */
#pragma once

#include <stddef.h>

#include "support/farm/farm_harness.h"
#include "worker/agent/spool.h"

/* Keys of results: unit, attempt and sequence number. */
struct farm_keys {
    struct mf_spool_key *at;
    size_t n;
};

void farm_keys_add(struct farm_keys *k, struct mf_spool_key key);
void farm_keys_release(struct farm_keys *k);

/* Adds to `to` the unacknowledged results of steps and pipelines in the spool of a dead worker. */
void farm_read_spool(struct farm *f, int place, struct farm_keys *to);
/* True if all spools are empty; the coordinator has then acknowledged all results, and each spool is
 * truncated to 0 bytes. A batch can be done earlier, while a restarted worker still has to send late samples
 * from before its restart. */
bool farm_spools_empty(struct farm *f);
void farm_wait_spools(struct farm *f);

/* Checks that the database passes integrity_check and holds all results in `kept`. */
void farm_check_results(struct farm *f, const struct farm_keys *kept);
/* Makes the checks of farm_check_results(). Also checks that each task of the batch is done with one config,
 * each of its steps has one final result, and each failed result has a reason. */
void farm_audit(struct farm *f, int batch, const struct farm_keys *kept);
/* Returns the number that an SQL query returns as its only row. */
long farm_query_number(struct farm *f, const char *sql);
/* Returns the number of lines that contain the text in a log ("moefarmd.log", "worker0.log"). */
int farm_log_count(struct farm *f, const char *log, const char *text);
bool farm_log_has(struct farm *f, const char *log, const char *text);
/* Waits until a line of the log contains the text. */
void farm_wait_log(struct farm *f, const char *log, const char *text);
