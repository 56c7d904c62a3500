#include "worker/runner/offer_message.h"

#include <stdio.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/moe/status.h"
#include "worker/runner/runner_wire.h"

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
