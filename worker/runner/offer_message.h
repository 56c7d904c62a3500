/* Messages with which a runner lists the steps of an enumeration, and with which a child of the runner lists
 * the steps of one family. */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>

#include "common/moe/step.h"
#include "kernels/core/family.h"
#include "worker/runner/runner_wire.h"

/* Returns a message with a step of an enumeration, or NULL if out of memory. */
cJSON *mf_channel_step_message(const struct mf_step *step);
/* Returns a message with a rejection of an enumeration, or NULL if out of memory. */
cJSON *mf_channel_reject_message(const char *family, const char *kernel, const char *rule, const char *format,
                                 va_list args);

/* Forwards the steps and rejections that a child sends to the offer, with `family` as their family, until
 * `enumerated`. timeout_ms: maximum silence of the child; -1: no limit. Returns 1 and the child's `result` (0
 * if it sends none), 0 if the child closed its socket, -ETIMEDOUT, -EBADMSG if the child sent no valid
 * message, or a negative error of the offer. */
int mf_offers_forward(struct mf_channel *from, const char *family, int64_t timeout_ms, struct mf_offer *offer,
                      int64_t *result);
/* Offers a rejection if an enumeration by a child failed. r and result are from mf_offers_forward; status is
 * the exit status of the child, as of waitpid, if r is 0. Returns other negative values of r unchanged. */
int mf_offers_end(const char *family, int r, int64_t result, int status, struct mf_offer *offer);
