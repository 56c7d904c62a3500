/* Fills a farm's database with the states that the API and the page must show: batches in every state, tasks
 * in every stage, races with ties, failures, and rejections with reasons. The seed is fixed, so that tests
 * can expect exact numbers. */
#pragma once

#include "server/store/store.h"

/* Ids of the batches and tasks that tests use. */
enum {
    FIXTURE_BATCH_DONE = 1,    /* seven tasks with token counts 1 to 64, bf16, on class cpu-znver4/2 */
    FIXTURE_BATCH_OPEN = 2,    /* one task in every stage, and a failed task */
    FIXTURE_BATCH_WAITING = 3, /* waits, because its class has no workers */
    /* task with token count 16 of the first batch; two of its pipelines are tied */
    FIXTURE_TASK_RACED = 5,
    FIXTURE_TASKS_DONE = 7,
};

/* Fills an empty store in one transaction. now_ms: current time of the fixture. */
void farm_fixture_fill(struct mf_store *s, int64_t now_ms);
/* Adds a second device model in the class of the first batch, and a config of this model. An export must then
 * name a model. */
void farm_fixture_second_model(struct mf_store *s);
/* Adds configs of vLLM and SGLang for an NVIDIA H200 (sm_90/132): two layer models with one file name,
 * another one, a token count for which vLLM's default is the fastest, and a row of SGLang with another
 * configuration for the second GEMM. */
void farm_fixture_configs(struct mf_store *s);
