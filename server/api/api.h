/* Request handlers, grouped by the thread that runs them. */
#pragma once

#include "server/http/request.h"

/* Reader threads. The owner is a struct mf_reader. */
int mf_api_submit_read(void *reader, struct mf_request *r); /* parses the body into r->work */
int mf_api_batches(void *reader, struct mf_request *r);
int mf_api_batch(void *reader, struct mf_request *r);
int mf_api_tasks(void *reader, struct mf_request *r);
int mf_api_timeline(void *reader, struct mf_request *r);
/* events missed by a stream, as text/event-stream */
int mf_api_events_read(void *reader, struct mf_request *r);
int mf_api_shapes(void *reader, struct mf_request *r);
int mf_api_task(void *reader, struct mf_request *r);
int mf_api_pipelines(void *reader, struct mf_request *r);
int mf_api_race(void *reader, struct mf_request *r);
int mf_api_steps(void *reader, struct mf_request *r);
int mf_api_rejections(void *reader, struct mf_request *r);
int mf_api_step(void *reader, struct mf_request *r);
int mf_api_step_results(void *reader, struct mf_request *r);
int mf_api_pipeline(void *reader, struct mf_request *r);
int mf_api_pipeline_results(void *reader, struct mf_request *r);
int mf_api_workers(void *reader, struct mf_request *r);
int mf_api_quarantine(void *reader, struct mf_request *r);
int mf_api_tokens(void *reader, struct mf_request *r);
int mf_api_keys(void *reader, struct mf_request *r);
int mf_api_export(void *reader, struct mf_request *r);
int mf_api_configs(void *reader, struct mf_request *r);
int mf_api_left_out(void *reader, struct mf_request *r);
int mf_api_lookup(void *reader, struct mf_request *r);
int mf_api_model_layer(void *reader, struct mf_request *r);
int mf_api_merge(void *reader, struct mf_request *r);
int mf_api_freeze_read(void *reader, struct mf_request *r); /* builds r->work (struct mf_release_work) */
int mf_api_releases(void *reader, struct mf_request *r);
int mf_api_release(void *reader, struct mf_request *r);
int mf_api_release_rows(void *reader, struct mf_request *r);
int mf_api_release_diff(void *reader, struct mf_request *r);
int mf_api_release_csv(void *reader, struct mf_request *r);
int mf_api_release_configs(void *reader, struct mf_request *r);
int mf_api_release_manifest(void *reader, struct mf_request *r);
int mf_api_misses_read(void *reader, struct mf_request *r); /* parses the body into r->work */
int mf_api_misses(void *reader, struct mf_request *r);
int mf_api_channels(void *reader, struct mf_request *r);
int mf_api_channel(void *reader, struct mf_request *r);
int mf_api_channel_history(void *reader, struct mf_request *r);
int mf_api_channel_csv(void *reader, struct mf_request *r);
int mf_api_channel_configs(void *reader, struct mf_request *r);
int mf_api_metrics_read(void *reader, struct mf_request *r); /* counts by state, from the store */

/* Writer thread, inside the transaction of its loop iteration. The owner is a struct mf_farm. */
int mf_api_submit_write(void *farm, struct mf_request *r);
int mf_api_cancel(void *farm, struct mf_request *r);
int mf_api_drain(void *farm, struct mf_request *r);
int mf_api_worker_revive(void *farm, struct mf_request *r);
int mf_api_revive(void *farm, struct mf_request *r);
int mf_api_freeze_write(void *farm, struct mf_request *r);
int mf_api_misses_write(void *farm, struct mf_request *r);
int mf_api_misses_submit(void *farm, struct mf_request *r);
int mf_api_stage(void *farm, struct mf_request *r);
int mf_api_approve(void *farm, struct mf_request *r);
int mf_api_rollback(void *farm, struct mf_request *r);
int mf_api_unstage(void *farm, struct mf_request *r);
int mf_api_token_add(void *farm, struct mf_request *r);
int mf_api_token_revoke(void *farm, struct mf_request *r);
int mf_api_key_revoke(void *farm, struct mf_request *r);
int mf_api_readyz(void *farm, struct mf_request *r);
int mf_api_metrics_write(void *farm, struct mf_request *r); /* copies the writer's counters to r->stats */

/* HTTP thread. The owner is a struct mf_http. */
int mf_api_session(void *http, struct mf_request *r);
int mf_api_session_end(void *http, struct mf_request *r);
int mf_api_healthz(void *http, struct mf_request *r);
int mf_api_openapi(void *http, struct mf_request *r);
int mf_api_page(void *http, struct mf_request *r);
int mf_api_events(void *http, struct mf_request *r);       /* opens the stream */
int mf_api_metrics_http(void *http, struct mf_request *r); /* appends the request counters */
