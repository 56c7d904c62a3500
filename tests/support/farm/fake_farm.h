/* A real moefarmd for tests with fake workers, and checks of its answers, log and database. Every function
 * fails the test on an error. */
#pragma once

#include <stdint.h>

#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"

#define FAKE_FARM_BEAT_MS  20000 /* long, because fake workers send no BEAT between messages */
#define FAKE_FARM_LIMIT_MS 30000 /* time limit of every wait */

struct fake_farm {
    struct farm_process process;
    void *zmq;
};

/* more: further options of moefarmd, ended by NULL; NULL: none */
void fake_farm_start_with(struct fake_farm *f, int beat_ms, const char *const *more);
void fake_farm_start(struct fake_farm *f);
void fake_farm_stop(struct fake_farm *f);
/* Connects a worker and waits for WELCOME. */
void fake_farm_join(struct fake_farm *f, struct fake_worker *w, const char *name);
/* Submits one shape per token count from 1, and returns the batch's id. */
int64_t fake_farm_submit(struct fake_farm *f, int n_tokens, const char *query);
/* Answers units until the batch is done. */
void fake_farm_finish(struct fake_farm *f, struct fake_worker *w, int64_t batch);

/* Runs a statement in the database of the running farm. */
void fake_farm_sql(const struct fake_farm *f, const char *sql);
/* Returns the first column of the query's only row, as text. The caller frees it. */
char *fake_farm_text(const struct fake_farm *f, const char *sql);
double fake_farm_number(const struct fake_farm *f, const char *sql);
/* Returns the value of a metric without labels. */
double fake_farm_metric(const struct fake_farm *f, const char *name);

/* Waits for a REFUSE and checks that its reason contains the text. */
void fake_farm_expect_refusal(struct fake_worker *w, const char *text);
/* Returns the number of log lines with the text. */
int fake_farm_count_log(const struct fake_farm *f, const char *text);
void fake_farm_expect_log(const struct fake_farm *f, const char *text);
/* Checks the reason of the worker's quarantine. text "": the worker is not quarantined. */
void fake_farm_expect_quarantine(struct fake_farm *f, const char *name, const char *text);
