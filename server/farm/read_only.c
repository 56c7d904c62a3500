/* Read-only mode: the state of the farm while the database is not writable because the disk is full,
 * read-only or failing.
 *
 *   running ──an iteration fails for such a reason──► read-only ──a write succeeds──► running
 *
 * In read-only mode the farm frees its state in memory, because that state belongs to a transaction that was
 * rolled back. The farm answers requests that change state, and /readyz, with 503 and the reason. It answers
 * heartbeats but not results, so that workers keep their results in their spools. The readers serve read
 * requests as usual. When a write succeeds, the farm loads its state from the store as at a start. */
#include "server/farm/farm_private.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/farm/bus.h"
#include "server/http/problem.h"
#include "server/http/request.h"
#include "server/http/route.h"

#include <errno.h>
#include <string.h>

#define RETRY_MS 500

/* An exceeded disk quota counts as temporary, because SQLite reports it as an I/O error like that of a
 * failing disk. */
bool mf_read_only_is_temporary(int r)
{
    return r == -ENOSPC || r == -EROFS || r == -EIO || r == -EBUSY;
}

static void refuse(const struct mf_farm *f, struct mf_request *request)
{
    struct mf_response *p = &request->response;
    p->stream = false;
    (void)mf_refuse(p, 503, "%s", f->read_only_reason);
    (void)mf_respond_header(p, "Retry-After", "1");
}

static void send_back(struct mf_farm *f, struct mf_request *request)
{
    if (mf_bus_send_pointer(f->replies, request) < 0)
        mf_request_free(request);
}

bool mf_read_only_enter(struct mf_farm *f, int r)
{
    if (!mf_read_only_is_temporary(r))
        return false;
    const char *error = f->store ? mf_store_error(f->store) : "";
    mf_format(f->read_only_reason, sizeof(f->read_only_reason),
              "the database is not writable (%s): changes are refused until a write succeeds",
              *error ? error : strerror(-r));
    log_warn("%s; workers keep their results in their spools", f->read_only_reason);
    for (size_t i = 0; i < f->n_answers; i++) {
        refuse(f, f->answers[i]);
        send_back(f, f->answers[i]);
    }
    f->n_answers = 0;
    mf_hub_drop(f->hub);
    mf_farm_reset_state(f);
    f->stats.read_only = true;
    f->read_only_since_ms = mf_now_ms();
    f->read_only_retry_ms = f->read_only_since_ms + RETRY_MS;
    return true;
}

/* Runs the hop for /metrics, which shows read-only mode. Answers all other requests, including /readyz, with
 * the reason. */
static int handle_requests(struct mf_farm *f)
{
    struct mf_request *request;
    int r;
    while ((r = mf_bus_recv_pointer(f->requests, &request)) > 0) {
        if (request->route->hops[request->hop].runs_read_only)
            (void)mf_request_run(request, f);
        else
            refuse(f, request);
        send_back(f, request);
    }
    return r;
}

static int handle_messages(struct mf_farm *f)
{
    const struct mf_mail *mail;
    int r;
    while ((r = mf_hub_recv(f->hub, &mail)) > 0) {
        if (!mail->error && mail->type == MF_MESSAGE_BEAT)
            (void)mf_hub_post(f->hub, &mail->peer, MF_MESSAGE_BEAT, "{}");
    }
    mf_hub_flush(f->hub);
    return r;
}

int mf_read_only_iteration(struct mf_farm *f)
{
    int64_t now = mf_now_ms();
    int r = handle_requests(f);
    if (r >= 0)
        r = handle_messages(f);
    if (r < 0 || now < f->read_only_retry_ms)
        return r;
    f->read_only_retry_ms = now + RETRY_MS;
    r = mf_farm_reload(f);
    if (r < 0) {
        mf_farm_reset_state(f);
        /* If SQLite's files do not exist, they may be created later, when the file system is writable again
         */
        return mf_read_only_is_temporary(r) || r == -ENOENT ? 0 : r;
    }
    f->stats.read_only = false;
    log_info("the database is writable again after %.1f s", (double)(now - f->read_only_since_ms) * 1e-3);
    f->read_only_reason[0] = '\0';
    return 0;
}
