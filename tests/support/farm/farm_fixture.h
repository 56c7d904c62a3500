/* A farm's database with the states that the API and the page must show: batches in every state, tasks in
 * every stage, races with ties, failures, and rejections with reasons. Generated from a fixed seed, so that
 * tests can state exact numbers. */
#pragma once

#include "server/store/store.h"

/* Row ids used by the tests. */
enum {
    FIXTURE_BATCH_DONE = 1,    /* seven tasks, token counts 1 to 64, bf16, on cpu-znver4/2 */
    FIXTURE_BATCH_OPEN = 2,    /* a task in every stage, and a failed one */
    FIXTURE_BATCH_WAITING = 3, /* for a class without workers */
    FIXTURE_TASK_RACED = 5,    /* token count 16 of the first batch: two pipelines tie */
    FIXTURE_TASKS_DONE = 7,
};

/* Fills an empty store in one transaction. now_ms: current time of the fixture. */
void farm_fixture_fill(struct mf_store *s, int64_t now_ms);
/* Adds a config of a second device model in the class of the first batch; an export must then name the model.
 */
void farm_fixture_second_model(struct mf_store *s);
