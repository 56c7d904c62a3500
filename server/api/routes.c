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
    {"name", MF_PARAM_TEXT, "name of the batch, for people (at most 200 bytes)"},
    {"classes", MF_PARAM_TEXT,
     "device classes, comma-separated: gfx942/304,cpu-znver4/2 (default: every class with a live worker)"},
    {"priority", MF_PARAM_INT, "0 to 100, more is sooner (default 50)"},
    {"topk", MF_PARAM_INT, "finalists that are raced: the K cheapest pipelines, 1 to 64 (default 8)"},
    {"err_ratio", MF_PARAM_NUMBER, "largest share of mismatching elements, 0 to 1 (default 0.1)"},
    {"time_cap_ms", MF_PARAM_INT, "time cap of a step, 100 to 600000 (default 10000)"},
    {"routing", MF_PARAM_TEXT,
     "uniform (default), balanced, zipf:S, hot:SHARE, recorded:COUNTS (dots between) or "
     "router:RULE[+shared]"},
    {"regret", MF_PARAM_TEXT,
     "routing profiles that the winner races its rivals under once more, comma-separated, at most 4; none "
     "(default: balanced,zipf:1.2)"},
    {"warmup", MF_PARAM_INT, "runs of each candidate whose times do not count, 0 to 1000 (default 0)"},
    {"iters", MF_PARAM_INT,
     "samples behind the winner's time, 5 to 4000 (default: at most 20, as many as its race has time for)"},
    {"split_k", MF_PARAM_FLAG, "0: steps that cut K are left out (default 1)"},
    {"shape_grouped", MF_PARAM_FLAG, "1: one worker measures all of a shape, while it is there (default 0)"},
    {"search", MF_PARAM_TEXT,
     "race (default), exhaustive, or enumerate: nothing is measured, the tasks say what would be tried"},
    {"consumer", MF_PARAM_TEXT,
     "moefarm (default), or aiter: what is tuned of a row is the key that AITER's production computes of it"},
    {"no_fuse", MF_PARAM_TEXT,
     "sets of ops that no step may cover together, comma-separated: gemm1+act,gemm1+gemm2"},
    {"fuse_saves", MF_PARAM_NUMBER,
     "least bytes of traffic a call that a step of several ops has to save beside a kernel for each (default "
     "0)"},
    {"layout", MF_PARAM_TEXT,
     "common (default: one weight layout per layer model), free, or \"w1=LAYOUT w2=LAYOUT\": that one"},
    {"promote", MF_PARAM_TEXT,
     "always (default): the new row of a key stands; improved (default with a baseline): the known one does, "
     "unless the new one wins against it"},
    {"min_effect", MF_PARAM_NUMBER,
     "least that a new row has to win by, with promote=improved, as a share (default 0.03)"},
    {"seed", MF_PARAM_INT, "seed of the data (default 1)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter events_parameters[] = {
    {"last_event_id", MF_PARAM_INT,
     "resume after this event, as the header Last-Event-ID; 0: from the first one"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter tasks_parameters[] = {
    {"state", MF_PARAM_TEXT, "only tasks in this state"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter shapes_parameters[] = {
    {"layer_model", MF_PARAM_TEXT, "only this layer model: the shape's row without its token"},
    {"class", MF_PARAM_TEXT, "only tasks on this device class, and shapes that have one: gfx942/304"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter pipelines_parameters[] = {
    {"finalists", MF_PARAM_FLAG, "1: only the raced ones"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter steps_parameters[] = {
    {"family", MF_PARAM_TEXT, "only steps of this family"},
    {"status", MF_PARAM_TEXT, "only steps with this status; pending: not measured yet"},
    {"covers", MF_PARAM_TEXT, "only steps that cover exactly these ops, as in gather+gemm1+act"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter rejections_parameters[] = {
    {"kernel", MF_PARAM_TEXT, "only kernels whose name matches this glob (* and ?)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter results_parameters[] = {
    {"task", MF_PARAM_INT, "only results of this task"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter revive_parameters[] = {
    {"class", MF_PARAM_TEXT, "device class whose quarantine is lifted: gfx942/304"},
    {NULL, MF_PARAM_TEXT, NULL},
};
#define EXPORT_FILTERS                                                                              \
    {"batch", MF_PARAM_INT, "only configs of this batch"},                                          \
        {"class", MF_PARAM_TEXT, "only this device class: gfx942/304"},                             \
        {"model", MF_PARAM_TEXT, "only this device model (name)"},                                  \
        {"gfx", MF_PARAM_TEXT, "only this gfx: gfx942"},                                            \
        {"layer_model", MF_PARAM_TEXT, "only this layer model: the shape's row without its token"}, \
        {"simulated", MF_PARAM_FLAG, "1: results of simulated devices too"},                        \
    {                                                                                               \
        "consumer", MF_PARAM_TEXT,                                                                  \
            "moefarm (default) or aiter: only rows whose every kernel AITER dispatches"             \
    }
static const struct mf_parameter export_parameters[] = {
    EXPORT_FILTERS,
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter freeze_parameters[] = {
    EXPORT_FILTERS,
    {"name", MF_PARAM_TEXT,
     "of the release: a letter and up to 62 letters, digits, '.', '_' and '-' (default: r- and the first "
     "twelve digits of its hash)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter releases_parameters[] = {
    {"name", MF_PARAM_TEXT, "only the one of this name"},
    {"sha256", MF_PARAM_TEXT, "only those whose table has this hash"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter diff_parameters[] = {
    {"against", MF_PARAM_INT, "number of the older release (default: the one before it)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter move_parameters[] = {
    {"release", MF_PARAM_INT,
     "number of the release that is staged, approved or taken back, from being staged or from being current"},
    {"reason", MF_PARAM_TEXT, "why, in words; it is kept with the move"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter misses_parameters[] = {
    {"class", MF_PARAM_TEXT, "only those of this device class: gfx942/304"},
    {"state", MF_PARAM_TEXT,
     "only those in this state: open, tuning, tuned, or failed (its task failed or was cancelled)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter submit_misses_parameters[] = {
    {"class", MF_PARAM_TEXT, "only those of this device class: gfx942/304"},
    {"min_count", MF_PARAM_INT, "only those that were missed at least so often (default 1)"},
    {"failed", MF_PARAM_FLAG, "1: those whose task failed or was cancelled too"},
    {"priority", MF_PARAM_INT, "of the batches, 0 to 100 (default 50)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter token_parameters[] = {
    {"role", MF_PARAM_TEXT, "read, submit, admin, or worker: a way in for one worker's key"},
    {"name", MF_PARAM_TEXT, "whose it is: 1 to 63 letters, digits, '.', '_' and '-'"},
    {"expires_s", MF_PARAM_INT,
     "seconds that it stands (default: 3600 for a worker's; 0, for ever, for others)"},
    {NULL, MF_PARAM_TEXT, NULL},
};
static const struct mf_parameter merge_parameters[] = {
    EXPORT_FILTERS,
    {"replace", MF_PARAM_FLAG, "1: rows of other provenance are replaced too"},
    {NULL, MF_PARAM_TEXT, NULL},
};

#define WRITER(handler)              \
    {                                \
        {                            \
            MF_OWNER_WRITER, handler \
        }                            \
    }
#define READER(handler)              \
    {                                \
        {                            \
            MF_OWNER_READER, handler \
        }                            \
    }
#define HTTP(handler)              \
    {                              \
        {                          \
            MF_OWNER_HTTP, handler \
        }                          \
    }

/* clang-format off */
static const struct mf_route routes[] = {
    {"POST", "/api/v1/batches", MF_ROLE_SUBMIT, {{MF_OWNER_READER, mf_api_submit_read}, {MF_OWNER_WRITER, mf_api_submit_write}},
     "submitBatch", "Submit shapes to tune: the columns of untuned_fmoe.csv and form (limit:X, alpha:X, b1, b2, gate_up:X, ep:FIRST/ALL, with + between)", "Receipt", JSON, {CSV, JSON}, {200, 201, 409, 413, 415, 422}, submit_parameters, false},
    {"GET", "/api/v1/batches", MF_ROLE_READ, READER(mf_api_batches),
     "listBatches", "All batches, newest first", "Batch", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/batches/{id}", MF_ROLE_READ, READER(mf_api_batch),
     "getBatch", "One batch: options, progress, what it waits for, weight layouts", "BatchDetail", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/batches/{id}/cancel", MF_ROLE_SUBMIT, WRITER(mf_api_cancel),
     "cancelBatch", "Cancel what is not done", "Done", JSON, {0}, {200, 409}, NULL, false},
    {"GET", "/api/v1/batches/{id}/tasks", MF_ROLE_READ, READER(mf_api_tasks),
     "listTasks", "Tasks of a batch: its shapes, each on one device class", "Task", JSON, {0}, {200}, tasks_parameters, true},
    {"GET", "/api/v1/batches/{id}/timeline", MF_ROLE_READ, READER(mf_api_timeline),
     "getTimeline", "How many steps a batch measured when", "Timeline", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/batches/{id}/events", MF_ROLE_READ, {{MF_OWNER_READER, mf_api_events_read}, {MF_OWNER_HTTP, mf_api_events}},
     "followBatch", "Events of a batch as they happen", NULL, SSE, {0}, {200}, events_parameters, false},
    {"GET", "/api/v1/events", MF_ROLE_READ, {{MF_OWNER_READER, mf_api_events_read}, {MF_OWNER_HTTP, mf_api_events}},
     "followFarm", "Events of the whole farm as they happen", NULL, SSE, {0}, {200}, events_parameters, false},
    {"GET", "/api/v1/shapes", MF_ROLE_READ, READER(mf_api_shapes),
     "listShapes", "Every shape that was ever submitted, with its latest tasks of all batches, at most 256", "ShapeDetail", JSON, {0}, {200}, shapes_parameters, true},
    {"GET", "/api/v1/tasks/{id}", MF_ROLE_READ, READER(mf_api_task),
     "getTask", "One task and its config", "TaskDetail", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/tasks/{id}/pipelines", MF_ROLE_READ, READER(mf_api_pipelines),
     "listPipelines", "Ranked pipelines of a task: raced ones by measured time, then the rest by forecast", "Pipeline", JSON, {0}, {200}, pipelines_parameters, true},
    {"GET", "/api/v1/tasks/{id}/race", MF_ROLE_READ, READER(mf_api_race),
     "getRace", "The race of a task: every finalist's samples by round", "Race", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/tasks/{id}/steps", MF_ROLE_READ, READER(mf_api_steps),
     "listSteps", "Steps that were offered for a task, with their result", "Step", JSON, {0}, {200}, steps_parameters, true},
    {"GET", "/api/v1/tasks/{id}/rejections", MF_ROLE_READ, READER(mf_api_rejections),
     "listRejections", "Why not: rejections by the families, then steps that failed or were dropped", "Rejection", JSON, {0}, {200}, rejections_parameters, true},
    {"GET", "/api/v1/steps/{id}", MF_ROLE_READ, READER(mf_api_step),
     "getStep", "One step: what it is, of which shape and class", "StepDetail", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/steps/{id}/results", MF_ROLE_READ, READER(mf_api_step_results),
     "listStepResults", "Every result of a step with its samples", "Result", JSON, {0}, {200}, results_parameters, true},
    {"GET", "/api/v1/pipelines/{id}", MF_ROLE_READ, READER(mf_api_pipeline),
     "getPipeline", "One pipeline, its steps and what its race gave", "Pipeline", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/pipelines/{id}/results", MF_ROLE_READ, READER(mf_api_pipeline_results),
     "listPipelineResults", "Every result of a pipeline with its samples", "Result", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/workers", MF_ROLE_READ, READER(mf_api_workers),
     "listWorkers", "Workers, their state and how their time was spent", "Worker", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/workers/{id}/drain", MF_ROLE_ADMIN, WRITER(mf_api_drain),
     "drainWorker", "Let a worker finish its unit and take no more", "Done", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/quarantine", MF_ROLE_READ, READER(mf_api_quarantine),
     "listQuarantine", "Kernels that are not run any more, with their strikes", "Quarantine", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/quarantine/{id}/revive", MF_ROLE_ADMIN, WRITER(mf_api_revive),
     "reviveKernel", "Lift a quarantine", "Done", JSON, {0}, {200}, revive_parameters, false},
    {"GET", "/api/v1/export/tuned_fmoe.csv", MF_ROLE_READ, READER(mf_api_export),
     "exportTable", "The tuned table", NULL, CSV, {0}, {200, 304, 409}, export_parameters, false},
    {"GET", "/api/v1/export/left_out", MF_ROLE_READ, READER(mf_api_left_out),
     "listLeftOut", "Rows that the export leaves out, with reasons", "LeftOut", JSON, {0}, {200, 409}, export_parameters, true},
    {"POST", "/api/v1/export/merge", MF_ROLE_READ, READER(mf_api_merge),
     "mergeTable", "Merge the configs into an existing table", "Merge", JSON, {CSV}, {200, 409, 413, 415, 422}, merge_parameters, false},
    {"POST", "/api/v1/releases", MF_ROLE_SUBMIT, {{MF_OWNER_READER, mf_api_freeze_read}, {MF_OWNER_WRITER, mf_api_freeze_write}},
     "freezeRelease", "Freeze an export with a manifest; the same name, filters and bytes again are the same release", "NewRelease", JSON, {0}, {200, 201, 409, 422}, freeze_parameters, false},
    {"GET", "/api/v1/releases", MF_ROLE_READ, READER(mf_api_releases),
     "listReleases", "Frozen exports, newest first", "Release", JSON, {0}, {200}, releases_parameters, true},
    {"GET", "/api/v1/releases/{id}", MF_ROLE_READ, READER(mf_api_release),
     "getRelease", "One release, and the channels that have it", "Release", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/releases/{id}/manifest.json", MF_ROLE_READ, READER(mf_api_release_manifest),
     "getManifest", "Its manifest: of every row where it comes from", "Manifest", JSON, {0}, {200, 304}, NULL, false},
    {"GET", "/api/v1/releases/{id}/tuned_fmoe.csv", MF_ROLE_READ, READER(mf_api_release_csv),
     "getReleaseTable", "Its table, byte for byte as it was frozen", NULL, CSV, {0}, {200, 304}, NULL, false},
    {"GET", "/api/v1/releases/{id}/rows", MF_ROLE_READ, READER(mf_api_release_rows),
     "listReleaseRows", "Its rows, each with the way to its samples", "ReleaseRow", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/releases/{id}/diff", MF_ROLE_READ, READER(mf_api_release_diff),
     "diffReleases", "What it changes of an older one, key by key", "ReleaseDiff", JSON, {0}, {200}, diff_parameters, false},
    {"GET", "/api/v1/channels", MF_ROLE_READ, READER(mf_api_channels),
     "listChannels", "Channels: what each has, and what is staged", "Channel", JSON, {0}, {200}, NULL, true},
    {"GET", "/api/v1/channels/{name}", MF_ROLE_READ, READER(mf_api_channel),
     "getChannel", "One channel", "Channel", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/channels/{name}/tuned_fmoe.csv", MF_ROLE_READ, READER(mf_api_channel_csv),
     "pullChannel", "The table of its current release: what deployment asks for again and again", NULL, CSV, {0}, {200, 304}, NULL, false},
    {"GET", "/api/v1/channels/{name}/history", MF_ROLE_READ, READER(mf_api_channel_history),
     "listMoves", "Its moves, latest first", "ChannelMove", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/channels/{name}/stage", MF_ROLE_SUBMIT, WRITER(mf_api_stage),
     "stageRelease", "Put a release up for approval; the channel is made if need be", "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/channels/{name}/unstage", MF_ROLE_SUBMIT, WRITER(mf_api_unstage),
     "unstageRelease", "Take back what is staged, so that nobody approves it; what the channel gives out stays", "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/channels/{name}/approve", MF_ROLE_ADMIN, WRITER(mf_api_approve),
     "approveRelease", "Have the channel give out what is staged", "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/channels/{name}/rollback", MF_ROLE_ADMIN, WRITER(mf_api_rollback),
     "rollbackRelease", "Take the current release back, to the one that was approved before it", "Moved", JSON, {0}, {200, 409}, move_parameters, false},
    {"POST", "/api/v1/misses", MF_ROLE_SUBMIT, {{MF_OWNER_READER, mf_api_misses_read}, {MF_OWNER_WRITER, mf_api_misses_write}},
     "reportMisses", "Count look-ups of production that found no row", "MissReceipt", JSON, {JSON}, {200, 201, 409, 413, 415, 422}, NULL, false},
    {"GET", "/api/v1/misses", MF_ROLE_READ, READER(mf_api_misses),
     "listMisses", "What production missed, most missed first", "Miss", JSON, {0}, {200}, misses_parameters, true},
    {"POST", "/api/v1/misses/submit", MF_ROLE_SUBMIT, WRITER(mf_api_misses_submit),
     "submitMisses", "Tune what production missed: a batch for each device class", "MissBatches", JSON, {0}, {200, 201}, submit_misses_parameters, false},
    {"POST", "/api/v1/session", MF_ROLE_READ, HTTP(mf_api_session),
     "beginSession", "Keep the token of this request in a cookie, for a browser", "Done", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/session/end", MF_ROLE_NONE, HTTP(mf_api_session_end),
     "endSession", "Take the cookie away", "Done", JSON, {0}, {200}, NULL, false},
    {"POST", "/api/v1/tokens", MF_ROLE_ADMIN, WRITER(mf_api_token_add),
     "addToken", "Make an access token, or a worker's way in; the answer alone has its text", "NewToken", JSON, {0}, {201, 409}, token_parameters, false},
    {"GET", "/api/v1/tokens", MF_ROLE_ADMIN, READER(mf_api_tokens),
     "listTokens", "Tokens: whose they are and whether they stand, never their text", "Token", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/tokens/{id}/revoke", MF_ROLE_ADMIN, WRITER(mf_api_token_revoke),
     "revokeToken", "End a token", "Done", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/v1/keys", MF_ROLE_ADMIN, READER(mf_api_keys),
     "listKeys", "Workers' keys", "Key", JSON, {0}, {200}, NULL, true},
    {"POST", "/api/v1/keys/{id}/revoke", MF_ROLE_ADMIN, WRITER(mf_api_key_revoke),
     "revokeKey", "End a worker's key: it is sent away, and nothing more of it is taken", "Done", JSON, {0}, {200}, NULL, false},
    {"GET", "/api/openapi.json", MF_ROLE_NONE, HTTP(mf_api_openapi),
     "getOpenapi", "This document", NULL, JSON, {0}, {200}, NULL, false},
    {"GET", "/healthz", MF_ROLE_NONE, HTTP(mf_api_healthz),
     "getHealth", "The HTTP thread answers", NULL, "text/plain", {0}, {200}, NULL, false},
    {"GET", "/readyz", MF_ROLE_NONE, WRITER(mf_api_readyz),
     "getReady", "The store is open and workers can connect", NULL, "text/plain", {0}, {200}, NULL, false},
    {"GET", "/metrics", MF_ROLE_READ, {{MF_OWNER_WRITER, mf_api_metrics_write}, {MF_OWNER_READER, mf_api_metrics_read}, {MF_OWNER_HTTP, mf_api_metrics_http}},
     "getMetrics", "Prometheus text", NULL, "text/plain", {0}, {200}, NULL, false},
    {"GET", "/", MF_ROLE_NONE, HTTP(mf_api_page), "getPage", "The status page", NULL, "text/html", {0}, {200, 304}, NULL, false},
    {"GET", "/page/app.js", MF_ROLE_NONE, HTTP(mf_api_page), "getScript", "Its script", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/views.js", MF_ROLE_NONE, HTTP(mf_api_page), "getViews", "Its views", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/task.js", MF_ROLE_NONE, HTTP(mf_api_page), "getTaskView", "Its view of a task", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/releases.js", MF_ROLE_NONE, HTTP(mf_api_page), "getReleasesView", "Its view of releases", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/plots.js", MF_ROLE_NONE, HTTP(mf_api_page), "getPlots", "Its plots", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/charts.js", MF_ROLE_NONE, HTTP(mf_api_page), "getCharts", "Its charts", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/app.css", MF_ROLE_NONE, HTTP(mf_api_page), "getStyle", "Its style", NULL, "text/css", {0}, {200, 304}, NULL, false},
    {"GET", "/page/icon.svg", MF_ROLE_NONE, HTTP(mf_api_page), "getIcon", "Its icon", NULL, "image/svg+xml", {0}, {200, 304}, NULL, false},
    {"GET", "/page/vendor/uPlot.iife.min.js", MF_ROLE_NONE, HTTP(mf_api_page), "getPlotScript", "Its charting library", NULL, "text/javascript", {0}, {200, 304}, NULL, false},
    {"GET", "/page/vendor/uPlot.min.css", MF_ROLE_NONE, HTTP(mf_api_page), "getPlotStyle", "Style of its charting library", NULL, "text/css", {0}, {200, 304}, NULL, false},
    {"GET", "/page/vendor/LICENSE", MF_ROLE_NONE, HTTP(mf_api_page), "getPlotLicence", "Licence of its charting library", NULL, "text/plain", {0}, {200, 304}, NULL, false},
};
/* clang-format on */

const struct mf_route *mf_routes(size_t *ret_n)
{
    *ret_n = MF_ARRAY_LEN(routes);
    return routes;
}

/* A decimal number from 1 on, without leading zeros; what is behind it, NULL: it is none. */
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
    /* "." and ".." are names that clients resolve */
    return mf_is_name(ret, MF_PATH_NAME_MAX - 1) && *ret != '.' ? path + len : NULL;
}

/* Matches a path against a pattern; "{id}" takes a number, "{name}" a name. */
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

static const struct mf_parameter *parameter_find(const struct mf_route *route, const char *name)
{
    for (const struct mf_parameter *p = route->parameters; p && p->name; p++)
        if (strcmp(p->name, name) == 0)
            return p;
    return NULL;
}

static int check_value(struct mf_request *r, const struct mf_parameter *p, const char *value)
{
    int64_t i;
    double d;
    bool b;
    switch (p->type) {
    case MF_PARAM_TEXT:
        return 0;
    case MF_PARAM_INT:
        if (mf_parse_i64(value, INT64_MIN, INT64_MAX, &i) == 0)
            return 0;
        return mf_refuse_at(&r->response, 400, p->name, "type", "%s: a whole number is expected", p->name);
    case MF_PARAM_NUMBER:
        if (mf_parse_double(value, &d) == 0)
            return 0;
        return mf_refuse_at(&r->response, 400, p->name, "type", "%s: a number is expected", p->name);
    case MF_PARAM_FLAG:
        if (mf_parse_bool(value, &b) == 0)
            return 0;
        return mf_refuse_at(&r->response, 400, p->name, "type", "%s: 1 or 0 is expected", p->name);
    }
    return 0;
}

static int check_page(struct mf_request *r, const char *name, const char *value)
{
    int64_t limit;
    if (strcmp(name, "limit") == 0) {
        if (mf_parse_i64(value, 1, MF_PAGE_LIMIT_MAX, &limit) < 0)
            return mf_refuse_at(&r->response, 400, "limit", "range",
                                "limit: a whole number from 1 to %d is expected", MF_PAGE_LIMIT_MAX);
        r->page.limit = (int)limit;
        return 0;
    }
    if (mf_cursor_parse(value, &r->page) < 0)
        return mf_refuse_at(
            &r->response, 400, "cursor", "cursor",
            "cursor: not one that this server gave; pass the value of \"next\" unchanged, or none");
    return 0;
}

int mf_route_check_query(struct mf_request *r)
{
    r->page = (struct mf_page){.limit = MF_PAGE_LIMIT_DEFAULT};
    for (int i = 0; i < r->n_query; i++) {
        const char *name = r->query[i].name;
        const struct mf_parameter *p = parameter_find(r->route, name);
        int e;
        for (int j = 0; j < i; j++)
            if (strcmp(r->query[j].name, name) == 0)
                return mf_refuse_at(&r->response, 400, name, "repeated", "%s: given twice; give it once",
                                    name);
        if (p)
            e = check_value(r, p, r->query[i].value);
        else if (r->route->page && (strcmp(name, "limit") == 0 || strcmp(name, "cursor") == 0))
            e = check_page(r, name, r->query[i].value);
        else
            e = mf_refuse_at(&r->response, 400, name, "unknown",
                             "%s: no such parameter; /api/openapi.json lists those of this path", name);
        if (e < 0)
            return e;
    }
    return 0;
}

int mf_request_run(struct mf_request *r, void *owner)
{
    const struct mf_hop *hop = &r->route->hops[r->hop];
    int e = hop->handler(owner, r);
    if (e < 0 && r->response.status == 0)
        (void)mf_refuse_errno(&r->response, e, r->route->summary);
    /* An answer ends the trip; a hop that leaves none hands over to the next. */
    r->hop++;
    if (r->response.status == 0 && (r->hop == MF_ROUTE_HOPS || r->route->hops[r->hop].owner == MF_OWNER_NONE))
        e = mf_refuse(&r->response, 500, "%s: no answer was made", r->route->summary);
    return e;
}
