#include "server/api/routes.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "server/api/api.h"
#include "server/http/problem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define JSON "application/json"
#define CSV  "text/csv"
#define SSE  "text/event-stream"

static const struct mf_parameter submit_parameters[] = {
    {"name", MF_PARAM_TEXT, "display name of the batch, at most 200 bytes"},
    {"", MF_PARAM_BATCH_OPTIONS, NULL},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter events_parameters[] = {
    {"last_event_id", MF_PARAM_INT,
     "id of the last event received, as in the header Last-Event-ID; 0: from the first event"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter tasks_parameters[] = {
    {"state", MF_PARAM_TEXT, "only tasks in this state"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter shapes_parameters[] = {
    {"layer_model", MF_PARAM_TEXT, "only this layer model: a shape's row without its token count"},
    {"class", MF_PARAM_TEXT,
     "only tasks on this device class, such as gfx942/304, and shapes with such a task"},
    {NULL, MF_PARAM_TEXT, NULL},
};
#define CONSUMER_PARAMETER                                                                               \
    {                                                                                                    \
        "consumer", MF_PARAM_TEXT,                                                                       \
            "moefarm, aiter, vllm, sglang or any (default: the first one that has a config of the task)" \
    }
static const struct mf_parameter task_parameters[] = {
    CONSUMER_PARAMETER,
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter pipelines_parameters[] = {
    CONSUMER_PARAMETER,
    {"finalists", MF_PARAM_FLAG, "1 lists only pipelines that were raced"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter steps_parameters[] = {
    {"family", MF_PARAM_TEXT, "only steps of this family"},
    {"status", MF_PARAM_TEXT, "only steps with this status; pending: not measured yet"},
    {"covers", MF_PARAM_TEXT, "only steps that cover exactly these ops, such as gather+gemm1+act"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter rejections_parameters[] = {
    {"kernel", MF_PARAM_TEXT, "only kernels with a name that matches this glob (* and ?)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter results_parameters[] = {
    {"task", MF_PARAM_INT, "only results of this task"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter revive_parameters[] = {
    {"class", MF_PARAM_TEXT, "device class on which the quarantine ends, such as gfx942/304"},
    {NULL, MF_PARAM_TEXT, NULL},
};
#define EXPORT_FILTERS                                                                                  \
    {"batch", MF_PARAM_INT, "only configs of this batch"},                                              \
        {"class", MF_PARAM_TEXT, "only this device class, such as gfx942/304"},                         \
        {"model", MF_PARAM_TEXT, "only the device model of this name"},                                 \
        {"gfx", MF_PARAM_TEXT, "only this GPU architecture, such as gfx942"},                           \
        {"layer_model", MF_PARAM_TEXT, "only this layer model: a shape's row without its token count"}, \
        {"simulated", MF_PARAM_FLAG, "1 includes results of simulated devices"},                        \
        {"consumer", MF_PARAM_TEXT,                                                                     \
         "consumer whose configs are exported: moefarm (default), aiter, vllm or sglang"},              \
    {                                                                                                   \
        "provenance", MF_PARAM_FLAG, "1 adds moefarm's columns to the table of another consumer"        \
    }
static const struct mf_parameter export_parameters[] = {
    EXPORT_FILTERS,
    {NULL, MF_PARAM_TEXT, NULL},
};
#define TRITON_VERSION                                                                             \
    {                                                                                              \
        "triton", MF_PARAM_TEXT, "version of Triton, such as 3.6.0, for rows that do not state it" \
    }
static const struct mf_parameter configs_parameters[] = {
    EXPORT_FILTERS,
    TRITON_VERSION,
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter lookup_parameters[] = {
    {"layer", MF_PARAM_TEXT, "layer model: a shape's row without its token count (required)"},
    {"token", MF_PARAM_INT, "token count of the call (required)"},
    {"class", MF_PARAM_TEXT, "device class, such as gfx942/304 (required)"},
    {"model", MF_PARAM_TEXT, "device model; required if the class has configs of two"},
    {"simulated", MF_PARAM_FLAG, "1 includes results of simulated devices"},
    {"consumer", MF_PARAM_TEXT,
     "consumer that dispatches the layer: moefarm (default), aiter, vllm or sglang"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter freeze_parameters[] = {
    EXPORT_FILTERS,
    TRITON_VERSION,
    {"name", MF_PARAM_TEXT,
     "name of the release: a letter and up to 62 letters, digits, '.', '_' and '-' (default: r- and the "
     "first twelve digits of its hash)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter releases_parameters[] = {
    {"name", MF_PARAM_TEXT, "only the release of this name"},
    {"sha256", MF_PARAM_TEXT, "only releases with this SHA-256 of the table"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter diff_parameters[] = {
    {"against", MF_PARAM_INT, "number of the release to compare with (default: the previous release)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter move_parameters[] = {
    {"release", MF_PARAM_INT, "number of the release to stage, unstage, approve or roll back"},
    {"reason", MF_PARAM_TEXT, "reason, stored in the history of the channel"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter misses_parameters[] = {
    {"class", MF_PARAM_TEXT, "only misses on this device class, such as gfx942/304"},
    {"state", MF_PARAM_TEXT,
     "only misses in this state: open, tuning, tuned, or failed (the task failed or was cancelled)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter submit_misses_parameters[] = {
    {"class", MF_PARAM_TEXT, "only misses on this device class, such as gfx942/304"},
    {"min_count", MF_PARAM_INT, "minimum number of lookups (default: 1)"},
    {"failed", MF_PARAM_FLAG, "1 includes misses with a failed or cancelled task"},
    {"priority", MF_PARAM_INT, "priority of the batches, 0 to 100 (default: 50)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter token_parameters[] = {
    {"role", MF_PARAM_TEXT, "role: read, submit, admin, or worker (enrols one worker key)"},
    {"name", MF_PARAM_TEXT, "name of the user or host: 1 to 63 letters, digits, '.', '_' and '-'"},
    {"expires_s", MF_PARAM_INT,
     "lifetime in seconds; 0: unlimited (default: 3600 for role worker, otherwise 0)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter merge_parameters[] = {
    EXPORT_FILTERS,
    {"replace", MF_PARAM_FLAG, "1 also replaces rows of other provenance"},
    {NULL, MF_PARAM_TEXT, NULL},
};

#define WRITER(handler)                     \
    {                                       \
        {                                   \
            MF_OWNER_WRITER, handler, false \
        }                                   \
    }
#define READER(handler)                     \
    {                                       \
        {                                   \
            MF_OWNER_READER, handler, false \
        }                                   \
    }
#define HTTP(handler)                     \
    {                                     \
        {                                 \
            MF_OWNER_HTTP, handler, false \
        }                                 \
    }

/* clang-format off */
static const struct mf_route routes[] = {
    {"POST", "/api/v1/batches", MF_ROLE_SUBMIT,
     {{MF_OWNER_READER, mf_api_submit_read, false}, {MF_OWNER_WRITER, mf_api_submit_write, false}},
     "submitBatch",
     "Submit shapes to tune: the columns of untuned_fmoe.csv and form (limit:X, alpha:X, b1, b2, "
     "gate_up:X, ep:FIRST/ALL, joined by +)",
     "Receipt", JSON, {CSV, JSON}, {200, 201, 409, 413, 415, 422}, submit_parameters, false},
    {"GET", "/api/v1/batches", MF_ROLE_READ, READER(mf_api_batches),
     "listBatches", "List all batches, newest first",
     "Batch", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/batches/{id}", MF_ROLE_READ, READER(mf_api_batch),
     "getBatch", "Get a batch: options, progress, reasons for waiting, weight layouts",
     "BatchDetail", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/batches/{id}/cancel", MF_ROLE_SUBMIT, WRITER(mf_api_cancel),
     "cancelBatch", "Cancel the unfinished tasks of a batch",
     "Done", JSON, {0}, {200, 409}, NULL, false},
    {"GET", "/api/v1/batches/{id}/tasks", MF_ROLE_READ, READER(mf_api_tasks),
     "listTasks", "List the tasks of a batch, one per shape and device class",
     "Task", JSON, {0}, {200}, tasks_parameters, true},
    {"GET", "/api/v1/batches/{id}/timeline", MF_ROLE_READ, READER(mf_api_timeline),
     "getTimeline", "Count the measured steps of a batch by time",
     "Timeline", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/batches/{id}/events", MF_ROLE_READ,
     {{MF_OWNER_READER, mf_api_events_read, false}, {MF_OWNER_HTTP, mf_api_events, false}},
     "followBatch", "Stream the events of a batch",
     NULL, SSE, {0}, {200}, events_parameters, false},
    {"GET", "/api/v1/events", MF_ROLE_READ,
     {{MF_OWNER_READER, mf_api_events_read, false}, {MF_OWNER_HTTP, mf_api_events, false}},
     "followFarm", "Stream the events of all batches and of the farm",
     NULL, SSE, {0}, {200}, events_parameters, false},
    {"GET", "/api/v1/shapes", MF_ROLE_READ, READER(mf_api_shapes),
     "listShapes", "List all submitted shapes, each with its latest tasks of all batches (at most 256)",
     "ShapeDetail", JSON, {0}, {200}, shapes_parameters, true},
    {"GET", "/api/v1/tasks/{id}", MF_ROLE_READ, READER(mf_api_task),
     "getTask", "Get a task and the configs of its consumers",
     "TaskDetail", JSON, {0}, {200}, task_parameters, false},
    {"GET", "/api/v1/tasks/{id}/pipelines", MF_ROLE_READ, READER(mf_api_pipelines),
     "listPipelines",
     "List the ranked pipelines of a task: raced ones by measured time, then the others by forecast",
     "Pipeline", JSON, {0}, {200}, pipelines_parameters, true},
    {"GET", "/api/v1/tasks/{id}/race", MF_ROLE_READ, READER(mf_api_race),
     "getRace", "Get the race of a task: samples of each finalist by round",
     "Race", JSON, {0}, {200}, task_parameters, false},
    {"GET", "/api/v1/tasks/{id}/steps", MF_ROLE_READ, READER(mf_api_steps),
     "listSteps", "List the steps of a task, with their results",
     "Step", JSON, {0}, {200}, steps_parameters, true},
    {"GET", "/api/v1/tasks/{id}/rejections", MF_ROLE_READ, READER(mf_api_rejections),
     "listRejections",
     "List rejected kernels with reasons: rejections by families, then failed or dropped steps",
     "Rejection", JSON, {0}, {200}, rejections_parameters, true},
    {"GET", "/api/v1/steps/{id}", MF_ROLE_READ, READER(mf_api_step),
     "getStep", "Get a step, its shape and its device class",
     "StepDetail", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/steps/{id}/results", MF_ROLE_READ, READER(mf_api_step_results),
     "listStepResults", "List all results of a step, with samples",
     "Result", JSON, {0}, {200}, results_parameters, true},
    {"GET", "/api/v1/pipelines/{id}", MF_ROLE_READ, READER(mf_api_pipeline),
     "getPipeline", "Get a pipeline, its steps and its race result",
     "Pipeline", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/pipelines/{id}/results", MF_ROLE_READ, READER(mf_api_pipeline_results),
     "listPipelineResults", "List all results of a pipeline, with samples",
     "Result", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/workers", MF_ROLE_READ, READER(mf_api_workers),
     "listWorkers", "List workers, their state and how they spent their time",
     "Worker", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/workers/{id}/drain", MF_ROLE_ADMIN, WRITER(mf_api_drain),
     "drainWorker", "Drain a worker: it finishes its unit and gets no more",
     "Done", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/workers/{id}/revive", MF_ROLE_ADMIN, WRITER(mf_api_worker_revive),
     "reviveWorker", "End the quarantine of a worker",
     "Done", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/quarantine", MF_ROLE_READ, READER(mf_api_quarantine),
     "listQuarantine", "List quarantined kernels with their strikes",
     "Quarantine", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/quarantine/{id}/revive", MF_ROLE_ADMIN, WRITER(mf_api_revive),
     "reviveKernel", "End the quarantine of a kernel",
     "Done", JSON, {0}, {200}, revive_parameters, false},
    {"GET", "/api/v1/export/tuned_fmoe.csv", MF_ROLE_READ, READER(mf_api_export),
     "exportTable", "Export the tuned table",
     NULL, CSV, {0}, {200, 304, 409}, export_parameters, false},
    {"GET", "/api/v1/export/configs.json", MF_ROLE_READ, READER(mf_api_configs),
     "exportConfigs", "Export the configuration files of vLLM or SGLang (consumer is required)",
     "Configs", JSON, {0}, {200, 304, 409}, configs_parameters, false},
    {"GET", "/api/v1/export/left_out", MF_ROLE_READ, READER(mf_api_left_out),
     "listLeftOut", "List the rows that the export leaves out, with reasons",
     "LeftOut", JSON, {0}, {200, 409}, configs_parameters, true},
    {"GET", "/api/v1/lookup", MF_ROLE_READ, READER(mf_api_lookup),
     "lookup", "Look up the tuned row or configuration for one call, with its provenance",
     "Lookup", JSON, {0}, {200, 304, 409}, lookup_parameters, false},
    {"POST", "/api/v1/models/layer", MF_ROLE_READ, READER(mf_api_model_layer),
     "readModel", "Read the MoE layer of a model from the files of its checkpoint, as one rank runs it",
     "ModelLayer", JSON, {JSON}, {200, 413, 415, 422}, NULL, false},
    {"POST", "/api/v1/export/merge", MF_ROLE_READ, READER(mf_api_merge),
     "mergeTable", "Merge the configs into an existing table",
     "Merge", JSON, {CSV}, {200, 409, 413, 415, 422}, merge_parameters, false},
    {"POST", "/api/v1/releases", MF_ROLE_SUBMIT,
     {{MF_OWNER_READER, mf_api_freeze_read, false}, {MF_OWNER_WRITER, mf_api_freeze_write, false}},
     "freezeRelease",
     "Freeze an export with a manifest; repeating name, filters and rows returns the same release",
     "NewRelease", JSON, {0}, {200, 201, 409, 422}, freeze_parameters, false},
    {"GET", "/api/v1/releases", MF_ROLE_READ, READER(mf_api_releases),
     "listReleases", "List releases, newest first",
     "Release", JSON, {0}, {200}, releases_parameters, true},
    {"GET", "/api/v1/releases/{id}", MF_ROLE_READ, READER(mf_api_release),
     "getRelease", "Get a release and the channels that have it",
     "Release", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/releases/{id}/manifest.json", MF_ROLE_READ, READER(mf_api_release_manifest),
     "getManifest", "Get the manifest of a release: the provenance of every row",
     "Manifest", JSON, {0}, {200, 304}, NULL, false},
    {"GET", "/api/v1/releases/{id}/tuned_fmoe.csv", MF_ROLE_READ, READER(mf_api_release_csv),
     "getReleaseTable", "Get the table of a release, byte for byte as frozen",
     NULL, CSV, {0}, {200, 304, 409}, NULL, false},
    {"GET", "/api/v1/releases/{id}/configs.json", MF_ROLE_READ, READER(mf_api_release_configs),
     "getReleaseConfigs", "Get the configuration files of a release for vLLM or SGLang, as frozen",
     "FrozenConfigs", JSON, {0}, {200, 304, 409}, NULL, false},
    {"GET", "/api/v1/releases/{id}/rows", MF_ROLE_READ, READER(mf_api_release_rows),
     "listReleaseRows", "List the rows of a release, each with the ids that lead to its samples",
     "ReleaseRow", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/releases/{id}/diff", MF_ROLE_READ, READER(mf_api_release_diff),
     "diffReleases", "Compare a release with an older one, key by key",
     "ReleaseDiff", JSON, {0}, {200}, diff_parameters, false},
    {"GET", "/api/v1/channels", MF_ROLE_READ, READER(mf_api_channels),
     "listChannels", "List channels with their current and staged releases",
     "Channel", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/channels/{name}", MF_ROLE_READ, READER(mf_api_channel),
     "getChannel", "Get a channel",
     "Channel", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/channels/{name}/tuned_fmoe.csv", MF_ROLE_READ, READER(mf_api_channel_csv),
     "pullChannel", "Get the table of the current release, for hosts that poll",
     NULL, CSV, {0}, {200, 304, 409}, NULL, false},
    {"GET", "/api/v1/channels/{name}/configs.json", MF_ROLE_READ, READER(mf_api_channel_configs),
     "pullConfigs", "Get the configuration files of the current release, for hosts that poll",
     "FrozenConfigs", JSON, {0}, {200, 304, 409}, NULL, false},
    {"GET", "/api/v1/channels/{name}/history", MF_ROLE_READ, READER(mf_api_channel_history),
     "listMoves", "List the moves of a channel, latest first",
     "ChannelMove", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/channels/{name}/stage", MF_ROLE_SUBMIT, WRITER(mf_api_stage),
     "stageRelease", "Stage a release for approval; creates the channel if needed",
     "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/channels/{name}/unstage", MF_ROLE_SUBMIT, WRITER(mf_api_unstage),
     "unstageRelease", "Unstage the staged release; the current release stays",
     "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/channels/{name}/approve", MF_ROLE_ADMIN, WRITER(mf_api_approve),
     "approveRelease", "Make the staged release the current one",
     "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/channels/{name}/rollback", MF_ROLE_ADMIN, WRITER(mf_api_rollback),
     "rollbackRelease", "Roll back from the current release to the one approved before it",
     "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/misses", MF_ROLE_SUBMIT,
     {{MF_OWNER_READER, mf_api_misses_read, false}, {MF_OWNER_WRITER, mf_api_misses_write, false}},
     "reportMisses", "Report production lookups that found no row",
     "MissReceipt", JSON, {JSON}, {200, 201, 409, 413, 415, 422}, NULL, false},
    {"GET", "/api/v1/misses", MF_ROLE_READ, READER(mf_api_misses),
     "listMisses", "List misses of production, most frequent first",
     "Miss", JSON, {0}, {200}, misses_parameters, true},
    {"POST", "/api/v1/misses/submit", MF_ROLE_SUBMIT, WRITER(mf_api_misses_submit),
     "submitMisses", "Submit misses of production: one batch per device class",
     "MissBatches", JSON, {0}, {200, 201}, submit_misses_parameters, false},
    {"POST", "/api/v1/session", MF_ROLE_READ, HTTP(mf_api_session),
     "beginSession", "Store the token of this request in a cookie, for browsers",
     "Done", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/session/end", MF_ROLE_NONE, HTTP(mf_api_session_end),
     "endSession", "Delete the session cookie",
     "Done", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/tokens", MF_ROLE_ADMIN, WRITER(mf_api_token_add),
     "addToken", "Create an access token or an enrolment token; only this response contains its text",
     "NewToken", JSON, {0}, {201, 409}, token_parameters, false},
    {"GET", "/api/v1/tokens", MF_ROLE_ADMIN, READER(mf_api_tokens),
     "listTokens", "List tokens: name, role and validity, without their text",
     "Token", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/tokens/{id}/revoke", MF_ROLE_ADMIN, WRITER(mf_api_token_revoke),
     "revokeToken", "Revoke a token",
     "Done", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/keys", MF_ROLE_ADMIN, READER(mf_api_keys),
     "listKeys", "List the keys of workers",
     "Key", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/keys/{id}/revoke", MF_ROLE_ADMIN, WRITER(mf_api_key_revoke),
     "revokeKey", "Revoke the key of a worker and disconnect the worker",
     "Done", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/openapi.json", MF_ROLE_NONE, HTTP(mf_api_openapi),
     "getOpenapi", "This document",
     NULL, JSON, {0}, {200}, NULL, false},
    {"GET", "/healthz", MF_ROLE_NONE, HTTP(mf_api_healthz),
     "getHealth", "Check that the HTTP thread answers",
     NULL, "text/plain", {0}, {200}, NULL, false},
    {"GET", "/readyz", MF_ROLE_NONE, WRITER(mf_api_readyz),
     "getReady", "Check that the store is open and workers can connect",
     NULL, "text/plain", {0}, {200}, NULL, false},
    {"GET", "/metrics", MF_ROLE_READ,
     {{MF_OWNER_WRITER, mf_api_metrics_write, true},
      {MF_OWNER_READER, mf_api_metrics_read, false},
      {MF_OWNER_HTTP, mf_api_metrics_http, false}},
     "getMetrics", "Metrics in Prometheus text format",
     NULL, "text/plain", {0}, {200}, NULL, false},
    {"GET", "/", MF_ROLE_NONE, HTTP(mf_api_page),
     "getPage", "The status page",
     NULL, "text/html", {0}, {200, 304}, NULL, false},
    {"GET", "/page/app.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getScript", "Main script of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/views.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getViews", "Views of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/task.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getTaskView", "Task view of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/releases.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getReleasesView", "Release view of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/plots.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getPlots", "Plots of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/charts.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getCharts", "Charts of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/app.css", MF_ROLE_NONE, HTTP(mf_api_page),
     "getStyle", "Style sheet of the status page",
     NULL, "text/css", {0}, {200, 304}, NULL, false},
    {"GET", "/page/icon.svg", MF_ROLE_NONE, HTTP(mf_api_page),
     "getIcon", "Icon of the status page",
     NULL, "image/svg+xml", {0}, {200, 304}, NULL, false},
    {"GET", "/page/vendor/uPlot.iife.min.js", MF_ROLE_NONE, HTTP(mf_api_page),
     "getPlotScript", "Plot library of the status page",
     NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/vendor/uPlot.min.css", MF_ROLE_NONE, HTTP(mf_api_page),
     "getPlotStyle", "Style sheet of the plot library",
     NULL, "text/css", {0}, {200, 304}, NULL, false},
    {"GET", "/page/vendor/LICENSE", MF_ROLE_NONE, HTTP(mf_api_page),
     "getPlotLicence", "Licence of the plot library",
     NULL, "text/plain", {0}, {200, 304}, NULL, false},
};
/* clang-format on */

const struct mf_route *mf_routes(size_t *ret_n)
{
    *ret_n = MF_ARRAY_LEN(routes);
    return routes;
}

/* Parses a decimal number of 1 or more without leading zeros. Returns the text after it, or NULL. */
static const char *take_id(const char *path, int64_t *ret)
{
    char digits[20];
    size_t len = strspn(path, "0123456789");
    if (len == 0 || len >= sizeof(digits) || *path == '0')
        return NULL;
    memcpy(digits, path, len);
    digits[len] = 0;
    return mf_parse_i64(digits, 1, INT64_MAX, ret) < 0 ? NULL : path + len;
}

static const char *take_name(const char *path, char ret[MF_PATH_NAME_MAX])
{
    size_t len = strcspn(path, "/");
    if (len >= MF_PATH_NAME_MAX)
        return NULL;
    memcpy(ret, path, len);
    ret[len] = 0;
    /* refuse a leading ".", because clients resolve "." and ".." as path segments */
    return mf_is_name(ret, MF_PATH_NAME_MAX - 1) && *ret != '.' ? path + len : NULL;
}

/* Matches a path against a pattern; "{id}" matches a number, "{name}" a name. */
static bool path_match(const char *pattern, const char *path, struct mf_path_parts *ret)
{
    int n = 0;
    while (*pattern) {
        if (*pattern != '{') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        bool name = strncmp(pattern, "{name}", 6) == 0;
        if (!name && n == 2)
            return false;
        path = name ? take_name(path, ret->name) : take_id(path, &ret->ids[n++]);
        if (!path)
            return false;
        pattern = strchr(pattern, '}') + 1;
    }
    return *path == 0;
}

static void allow_add(char *allow, size_t cap, const char *method)
{
    size_t len = strlen(allow);
    mf_format(allow + len, cap - len, "%s%s%s", len ? ", " : "", method,
              strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

const struct mf_route *mf_route_find(const char *method, const char *path, struct mf_path_parts *ret,
                                     char *ret_allow, size_t allow_cap)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *ret_allow = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(routes); i++) {
        struct mf_path_parts parts = {0};
        if (!path_match(routes[i].path, path, &parts))
            continue;
        if (strcmp(routes[i].method, wanted) == 0) {
            *ret = parts;
            return &routes[i];
        }
        allow_add(ret_allow, allow_cap, routes[i].method);
    }
    return NULL;
}

enum mf_parameter_type mf_option_parameter(const struct mf_batch_option *o)
{
    static const enum mf_parameter_type types[MF_OPTION_N_TYPES_] = {
        [MF_OPTION_INT] = MF_PARAM_INT,
        [MF_OPTION_NUMBER] = MF_PARAM_NUMBER,
        [MF_OPTION_FLAG] = MF_PARAM_FLAG,
    };
    return types[o->type];
}

/* Finds a parameter of the route. *ret has no summary. */
static bool parameter_find(const struct mf_route *route, const char *name, struct mf_parameter *ret)
{
    for (const struct mf_parameter *p = route->parameters; p && p->name; p++) {
        const struct mf_batch_option *o =
            p->type == MF_PARAM_BATCH_OPTIONS ? mf_batch_option_find(name) : NULL;
        if (!o && strcmp(p->name, name) != 0)
            continue;
        *ret = (struct mf_parameter){name, o ? mf_option_parameter(o) : p->type, NULL};
        return ret->type != MF_PARAM_BATCH_OPTIONS;
    }
    return false;
}

static int check_value(struct mf_request *r, const struct mf_parameter *p, const char *value)
{
    int64_t i;
    double d;
    bool b;
    switch (p->type) {
    case MF_PARAM_TEXT:
    case MF_PARAM_BATCH_OPTIONS:
        return 0;
    case MF_PARAM_INT:
        if (mf_parse_i64(value, INT64_MIN, INT64_MAX, &i) == 0)
            return 0;
        return mf_refuse_at(&r->response, 400, p->name, "type", "%s: expected an integer", p->name);
    case MF_PARAM_NUMBER:
        if (mf_parse_double(value, &d) == 0)
            return 0;
        return mf_refuse_at(&r->response, 400, p->name, "type", "%s: expected a number", p->name);
    case MF_PARAM_FLAG:
        if (mf_parse_bool(value, &b) == 0)
            return 0;
        return mf_refuse_at(&r->response, 400, p->name, "type", "%s: expected 0 or 1", p->name);
    }
    return 0;
}

static int check_page(struct mf_request *r, const char *name, const char *value)
{
    int64_t limit;
    if (strcmp(name, "limit") == 0) {
        if (mf_parse_i64(value, 1, MF_PAGE_LIMIT_MAX, &limit) < 0)
            return mf_refuse_at(&r->response, 400, "limit", "range",
                                "limit: expected an integer from 1 to %d", MF_PAGE_LIMIT_MAX);
        r->page.limit = (int)limit;
        return 0;
    }
    if (mf_cursor_parse(value, &r->page) < 0)
        return mf_refuse_at(&r->response, 400, "cursor", "cursor",
                            "cursor: not a valid cursor; pass the value of \"next\" unchanged");
    return 0;
}

int mf_route_check_query(struct mf_request *r)
{
    r->page = (struct mf_page){.limit = MF_PAGE_LIMIT_DEFAULT};
    for (int i = 0; i < r->n_query; i++) {
        const char *name = r->query[i].name;
        struct mf_parameter p;
        int e;
        for (int j = 0; j < i; j++)
            if (strcmp(r->query[j].name, name) == 0)
                return mf_refuse_at(&r->response, 400, name, "repeated", "%s: given twice; give it once",
                                    name);
        if (parameter_find(r->route, name, &p))
            e = check_value(r, &p, r->query[i].value);
        else if (r->route->page && (strcmp(name, "limit") == 0 || strcmp(name, "cursor") == 0))
            e = check_page(r, name, r->query[i].value);
        else
            e = mf_refuse_at(&r->response, 400, name, "unknown",
                             "%s: no such parameter; /api/openapi.json lists the parameters of this path",
                             name);
        if (e < 0)
            return e;
    }
    return 0;
}
