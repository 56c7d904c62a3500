/* Which workers are trusted. A quarantined worker stays connected but gets no units, and its statistics do
 * not count. The reason is in the worker's row, until an admin revives the worker.
 *
 * trusted ──disagrees with the workers of its model, or sends messages that cannot be applied──► quarantined
 *      ▲                                                                                               │
 *      └──revived by an admin, or more workers now agree with it──────────────────────────────────────┘
 * */
#pragma once

#include "server/farm/farm_private.h"

/* Compares the workers of the slot's device model after one of them sent its device. Quarantines workers that
 * claim another value of `simulated` than most workers of the name (if equally many: than the oldest worker),
 * or a number far above what the other workers report: a thousand times, or 3 times the peak or bandwidth of
 * a GPU. Revives workers for which this is no longer true. */
int mf_trust_judge_model(struct mf_farm *f, const struct mf_slot *slot);
/* Call after a message of the worker was undone. After UNDONE_MAX such messages the worker is quarantined. */
int mf_trust_count_undone(struct mf_farm *f, const char *worker);
/* Finds the launch gap of a device model in us; 0 if no value is confirmed. */
int mf_trust_gap_us(struct mf_farm *f, int64_t model, double *ret);
/* Finds the correction of a structure's forecast on a device model, from batches that ended before before_ms.
 * Sets both to 0 if no value is confirmed. */
int mf_trust_ratio(struct mf_farm *f, int64_t model, const char *structure, int64_t before_ms,
                   double *ret_log_ratio, double *ret_log_spread);
