#include "worker/runner/offer_message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/status.h"

cJSON *mf_channel_step_message(const struct mf_step *step)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("step");
    _cleanup_(mf_freep) char *text = mf_step_print(step);
    return m && text && cJSON_AddRawToObject(m, "step", text) ? MF_TAKE(m) : NULL;
}

cJSON *mf_channel_reject_message(const char *family, const char *kernel, const char *rule, const char *format,
                                 va_list args)
{
    char reason[MF_REASON_MAX];
    (void)vsnprintf(reason, sizeof(reason), format, args);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("reject");
    bool whole = m && cJSON_AddStringToObject(m, "family", family) &&
                 cJSON_AddStringToObject(m, "kernel", kernel) && cJSON_AddStringToObject(m, "rule", rule) &&
                 cJSON_AddStringToObject(m, "reason", reason);
    return whole ? MF_TAKE(m) : NULL;
}

static int forward_step(const char *family, const cJSON *m, struct mf_offer *offer)
{
    struct mf_step step;
    const char *field = "step";
    if (mf_step_from_json(mf_json_object(m, "step"), &step, &field) < 0)
        return offer->reject(offer, family, family, "malformed", "invalid step: %s missing or invalid",
                             field);
    if (strcmp(step.family, family) != 0)
        return offer->reject(offer, family, step.name, "malformed",
                             "invalid step: family is %s, not the family that was enumerated", step.family);
    return offer->step(offer, &step);
}

static int forward_reject(const char *family, const cJSON *m, struct mf_offer *offer)
{
    const char *kernel = family, *rule = "", *reason = "";
    (void)mf_json_text(m, "kernel", &kernel);
    (void)mf_json_text(m, "rule", &rule);
    (void)mf_json_text(m, "reason", &reason);
    if (!mf_is_name(kernel, MF_STEP_NAME_MAX - 1))
        kernel = family;
    return offer->reject(offer, family, kernel, rule, "%s", reason);
}

int mf_offers_forward(struct mf_channel *from, const char *family, int64_t timeout_ms, struct mf_offer *offer,
                      int64_t *result)
{
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        int r = mf_channel_wait(from, timeout_ms, &m);
        if (r == -EMSGSIZE || r == -EPROTO)
            return -EBADMSG;
        if (r <= 0)
            return r == -ETIMEDOUT || r == -EBADMSG ? r : 0;
        const char *op = mf_channel_op(m);
        *result = 0;
        if (strcmp(op, "enumerated") == 0)
            return mf_json_i64(m, "result", INT32_MIN, INT32_MAX, result) == -EINVAL ? -EBADMSG : 1;
        r = strcmp(op, "step") == 0 ? forward_step(family, m, offer) : forward_reject(family, m, offer);
        if (r < 0)
            return r;
    }
}

int mf_offers_end(const char *family, int r, int64_t result, int status, struct mf_offer *offer)
{
    if (r == 1 && result >= 0)
        return 0;
    if (r == 1)
        return offer->reject(offer, family, family, "enumerate", "enumerate returned %lld (%s)",
                             (long long)result, strerror((int)-result));
    if (r == -EBADMSG)
        return offer->reject(offer, family, family, "malformed", "enumerate sent an invalid message");
    if (r == 0 && WIFSIGNALED(status))
        return offer->reject(offer, family, family, "crash", "enumerate crashed with signal %d (%s)",
                             WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (r == 0)
        return offer->reject(offer, family, family, "crash", "enumerate ended the process with exit code %d",
                             WEXITSTATUS(status));
    return r;
}
