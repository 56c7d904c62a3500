/* Writer handlers; all but readyz change the store, inside the transaction of the loop iteration. */
#include "server/api/api.h"

#include "common/base/json.h"
#include "server/api/submission.h"
#include "server/farm/farm.h"
#include "server/http/problem.h"

#include <errno.h>
#include <inttypes.h>

static int answer_submission(struct mf_request *r, int e, cJSON *receipt)
{
    if (e == -EEXIST)
        return mf_refuse_at(
            &r->response, 409, "header.Idempotency-Key", "reused",
            "Idempotency-Key: %s was already used with a different body or options; use a new key",
            r->idempotency_key);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "store the batch");
    return mf_respond_json(&r->response, e == 1 ? 200 : 201, receipt);
}

int mf_api_submit_write(void *farm, struct mf_request *r)
{
    struct mf_submission_work *work = r->work;
    cJSON *receipt = NULL;
    if (mf_farm_submits_later(farm, &work->submission))
        return mf_farm_submit_later(farm, r, &work->submission, answer_submission);
    int e = mf_farm_submit(farm, &work->submission, &receipt);
    return answer_submission(r, e, receipt);
}

int mf_api_cancel(void *farm, struct mf_request *r)
{
    int e = mf_farm_cancel(farm, r->path_id[0]);
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "there is no batch %" PRId64, r->path_id[0]);
    if (e == 1)
        return mf_refuse(&r->response, 409, "batch %" PRId64 " has already ended", r->path_id[0]);
    return e < 0 ? mf_refuse_errno(&r->response, e, "cancel the batch")
                 : mf_respond_state(&r->response, "cancelled");
}

int mf_api_drain(void *farm, struct mf_request *r)
{
    int e = mf_farm_drain(farm, r->path_id[0]);
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "there is no worker %" PRId64, r->path_id[0]);
    return e < 0 ? mf_refuse_errno(&r->response, e, "drain the worker")
                 : mf_respond_state(&r->response, "draining");
}

int mf_api_worker_revive(void *farm, struct mf_request *r)
{
    int e = mf_farm_worker_revive(farm, r->path_id[0]);
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "worker %" PRId64 " is not in quarantine", r->path_id[0]);
    return e < 0 ? mf_refuse_errno(&r->response, e, "end the quarantine")
                 : mf_respond_state(&r->response, "revived");
}

int mf_api_revive(void *farm, struct mf_request *r)
{
    struct mf_device_class class;
    const char *text = mf_request_query(r, "class");
    if (!text || mf_device_class_parse(text, &class) < 0)
        return mf_refuse_at(&r->response, 400, "class", text ? "value" : "missing",
                            "class: expected a device class such as gfx942/304");
    int e = mf_farm_revive(farm, r->path_id[0], &class);
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "kernel %" PRId64 " is not in quarantine on %s", r->path_id[0],
                         text);
    return e < 0 ? mf_refuse_errno(&r->response, e, "end the quarantine")
                 : mf_respond_state(&r->response, "revived");
}

int mf_api_readyz(void *farm, struct mf_request *r)
{
    struct mf_farm_stats stats;
    mf_farm_get_stats(farm, &stats);
    if (!stats.ready)
        return mf_refuse(&r->response, 503, "workers cannot connect yet");
    r->response.status = 200;
    r->response.content_type = "text/plain; charset=utf-8";
    return mf_buf_adds(&r->response.body, "ok\n");
}
