/* Parses RESULT messages of workers, with a reason for each refusal, and checks results for plausibility
 * against the device's ceilings. Does not use the store. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/routing.h"
#include "common/moe/status.h"
#include "server/choose/least_time.h"
#include "server/farm/slot.h"

#define MF_SAMPLES_KEEP_MAX 4096
#define MF_RESULT_STEPS_MAX 256
/* maximum length of `race` as text, which contains a few hundred numbers */
#define MF_RESULT_RACE_MAX (16u << 10)
/* Maximum length of a result's `extra`. Every accepted message fits, because `fresh` has at most as many
 * numbers as `samples`, and a number takes at most 24 characters and a comma. */
#define MF_RESULT_EXTRA_MAX (25 * MF_SAMPLES_KEEP_MAX + MF_RESULT_RACE_MAX + MF_ROUTING_TEXT_MAX + 1024)

struct mf_result_message {
    int64_t unit, attempt, epoch, seq;
    int64_t step, pipeline; /* 0: none */
    enum mf_status status;
    char reason[MF_REASON_MAX];
    double us, mad, err, row_err; /* NAN: not measured */
    int verified;
    int64_t at_ms;
    bool last;
    bool differs; /* not run: the unit describes a step differently than the worker */
    size_t n_samples, n_fresh;
    float samples[MF_SAMPLES_KEEP_MAX];
    /* these members point into the parsed JSON object */
    const cJSON *steps, *rejections; /* only in results of kind enumerate */
    const cJSON *race;               /* only in the last result of a race */
};

/* Reads the members that identify a result: unit, attempt, epoch, seq, step or pipeline, last. Returns
 * -EINVAL and the reason in *ret_why (static text); members that could not be read are 0 then. */
int mf_result_read_key(const cJSON *json, struct mf_result_message *ret, const char **ret_why);
/* Reads the whole message, whose numbers must be within their bounds (mf_wire_bounds_check). Returns -EINVAL
 * and the reason in *ret_why (static text). */
int mf_result_read(const cJSON *json, struct mf_result_message *ret, const char **ret_why);

/* If the measured time is less than the device needs for the work (least_time.h), changes the status from ok
 * or slow to implausible, and puts the numbers into the reason. */
void mf_result_judge(struct mf_result_message *m, const struct mf_work *work,
                     const struct mf_ceilings *ceilings);

/* Facts that the farm adds to a result. NULL or false: the fact does not apply. */
struct mf_result_note {
    const char *died;    /* "crash" or "hang" if the step killed its runner */
    const char *routing; /* routing profile, if it is not the batch's */
    /* "compare": belongs to a comparison with the known row; "rerun": to a repeated rerun (order.c) */
    const char *unit;
};
/* Prints the members without a column of their own as JSON: mode, canary, row_limit, dropped_at, the kernel's
 * resource usage (registers, spills, lds, occupancy), the note, fresh, race. *ret is owned by the caller;
 * NULL if there are no such members. Returns -ENOMEM; a message that mf_result_read accepts is never too
 * long. */
int mf_result_extra(const cJSON *json, const struct mf_result_note *note, char **ret);
