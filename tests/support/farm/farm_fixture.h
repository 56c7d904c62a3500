/* A farm's database with what the API and the page can meet: batches in every state, tasks at every stage, races with ties,
 * failures and rejections with their reasons. Made by rules from a fixed seed, so that tests can name numbers. */
#pragma once

#include "server/store/store.h"

/* Ids that tests ask for. */
enum {
    FIXTURE_BATCH_DONE = 1,    /* seven tasks, tokens 1 … 64, bf16, on cpu-znver4/2 */
    FIXTURE_BATCH_OPEN = 2,    /* a task at every stage, and one that failed */
    FIXTURE_BATCH_WAITING = 3, /* for a class that nobody has */
    FIXTURE_TASK_RACED = 5,    /* token 16 of the first batch: two pipelines tie */
    FIXTURE_TASKS_DONE = 7,
};

/* Fills an empty store, in one transaction. now_ms: what the fixture takes for now. */
void farm_fixture_fill(struct mf_store *s, int64_t now_ms);
/* A config of a second model of the class of the first batch; then an export must be told which. */
void farm_fixture_second_model(struct mf_store *s);
