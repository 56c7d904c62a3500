/* Messages with which a runner lists the steps of an enumeration. */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>

#include "common/moe/step.h"

/* Returns a message with a step of an enumeration, or NULL if out of memory. */
cJSON *mf_channel_step_message(const struct mf_step *step);
/* Returns a message with a rejection of an enumeration, or NULL if out of memory. */
cJSON *mf_channel_reject_message(const char *family, const char *kernel, const char *rule, const char *format,
                                 va_list args);
