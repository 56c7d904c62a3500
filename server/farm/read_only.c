#include "server/farm/read_only.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/api/api.h"
#include "server/api/routes.h"
#include "server/farm/bus.h"
#include "server/http/problem.h"
#include "server/http/request.h"

#include <errno.h>
#include <string.h>

#define RETRY_MS 500

/* A file system has no quota's error of its own: SQLite says of it, and of a failing disk, that the I/O failed. */
static bool may_pass(int r)
{
    return r == -ENOSPC || r == -EROFS || r == -EIO || r == -EBUSY;
}

static void refuse(const struct mf_farm *f, struct mf_request *request)
{
    struct mf_response *p = &request->response;
    p->stream = false;
    (void)mf_refuse(p, 503, "%s", f->halted);
    (void)mf_respond_header(p, "Retry-After", "1");
}

static void send_back(struct mf_farm *f, struct mf_request *request)
{
    if (mf_bus_give(f->replies, request) < 0)
        mf_request_free(request);
}

bool mf_halt(struct mf_farm *f, int r)
{
    if (!may_pass(r))
        return false;
    const char *error = f->store ? mf_store_error(f->store) : "";
    mf_format(f->halted, sizeof(f->halted),
              "the database cannot be written to (%s): nothing is taken until it can",
              *error ? error : strerror(-r));
    log_warn("%s; workers keep their results", f->halted);
    for (size_t i = 0; i < f->n_answers; i++) {
        refuse(f, f->answers[i]);
        send_back(f, f->answers[i]);
    }
    f->n_answers = 0;
    mf_hub_drop(f->hub);
    mf_farm_forget(f);
    f->stats.halted = true;
    f->halted_ms = mf_now_ms();
    f->retry_ms = f->halted_ms + RETRY_MS;
    return true;
}

/* What only asks for counters is answered: they say that it is halted. All else, /readyz too, hears why. */
static int take_requests(struct mf_farm *f)
{
    struct mf_request *request;
    int r;
    while ((r = mf_bus_take(f->requests, &request)) > 0) {
        if (request->route->hops[request->hop].handler == mf_api_metrics_write)
            (void)mf_request_run(request, f);
        else
            refuse(f, request);
        send_back(f, request);
    }
    return r;
}

static int take_mail(struct mf_farm *f)
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

int mf_halted_turn(struct mf_farm *f)
{
    int64_t now = mf_now_ms();
    int r = take_requests(f);
    if (r >= 0)
        r = take_mail(f);
    if (r < 0 || now < f->retry_ms)
        return r;
    f->retry_ms = now + RETRY_MS;
    r = mf_farm_load_again(f);
    if (r < 0) {
        mf_farm_forget(f);
        /* A file that cannot be made now, beside the database, may be made later */
        return may_pass(r) || r == -ENOENT ? 0 : r;
    }
    f->stats.halted = false;
    log_info("the database can be written to again, after %.1f s", (double)(now - f->halted_ms) * 1e-3);
    f->halted[0] = '\0';
    return 0;
}
