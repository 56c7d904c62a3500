#include <math.h>

#include "common/base/clock.h"
#include "measure/race/measure.h"
#include "measure/session/session_data.h"

/* A run may be slow because it was interrupted, not because the device is slow. Take the minimum of up to
 * three runs. */
#define CANARY_RUNS_MAX 3

double mf_session_canary(struct mf_session *s)
{
    double least = mf_canary_us(s->device);
    for (int i = 1;
         i < CANARY_RUNS_MAX && s->baseline_canary_us > 0 && least > MF_CANARY_LIMIT * s->baseline_canary_us;
         i++)
        least = fmin(least, mf_canary_us(s->device));
    if (least > 0 && !(s->baseline_canary_us > 0 && s->baseline_canary_us < least))
        s->baseline_canary_us = least;
    return s->baseline_canary_us > 0 ? least / s->baseline_canary_us : (double)NAN;
}

#define COOL_DOWN_MS    20
#define COOL_DOWN_TRIES 10

void mf_session_cool_down(struct mf_session *s)
{
    double ratio = 1;
    for (int i = 0; i < COOL_DOWN_TRIES; i++) {
        mf_sleep_ms(COOL_DOWN_MS);
        ratio = mf_session_canary(s);
        if (!(ratio > MF_CANARY_LIMIT))
            return;
    }
    s->baseline_canary_us *= ratio;
}
