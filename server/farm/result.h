/* A RESULT as a worker sent it: read with refusals, and judged by what its device can do. Knows no store. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/routing.h"
#include "common/moe/status.h"
#include "server/farm/slot.h"

#define MF_SAMPLES_KEEP_MAX 4096
#define MF_RESULT_STEPS_MAX 256
/* Of race as text: some hundred ids, times and counts */
#define MF_RESULT_RACE_MAX (16u << 10)
/* Whatever is taken fits: fresh is as long as samples, a number as text has at most 24 characters and a comma. */
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
    size_t n_samples;
    float samples[MF_SAMPLES_KEEP_MAX];
    /* Of the JSON object that it was read from */
    const cJSON *steps, *rejections; /* enumerate */
    const cJSON *race;               /* the closing one of a race */
};

/* -EINVAL with the sentence in *ret_why (static text). On failure unit, attempt and seq are set when they could be read. */
int mf_result_read(const cJSON *json, struct mf_result_message *ret, const char **ret_why);

/* A time that its device cannot have made turns ok and slow into implausible, with the numbers in the reason. */
void mf_result_judge(struct mf_result_message *m, double flops, double bytes,
                     const struct mf_ceilings *ceilings);

/* What the farm adds to a result; NULL for what does not apply. */
struct mf_result_note {
    const char *died;    /* how its first death was called, which is tried again */
    const char *routing; /* where it is not the batch's */
    bool compares;       /* it is of a comparison with the known row */
};
/* What has no column, as JSON text, on the heap: mode, canary, row_limit, dropped_at, what its code takes of a compute unit, the note, fresh, race. NULL in *ret:
 * there is nothing. -ENOMEM; what mf_result_read takes is never too long. */
int mf_result_extra(const cJSON *json, const struct mf_result_note *note, char **ret);
