#include "server/race.h"

#include "common/cleanup.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *va, const void *vb)
{
    const struct mf_ranked *a = va, *b = vb;
    if (a->forecast_us != b->forecast_us)
        return a->forecast_us < b->forecast_us ? -1 : 1;
    /* Of one array that is sorted by (us, names) */
    return a->path < b->path ? -1 : a->path > b->path;
}

/* Is one of its structure a finalist already, and one of its block_m? */
static bool is_represented(const struct mf_ranked *ranked, size_t i)
{
    bool structure = false, block = false;
    for (size_t j = 0; j < i; j++) {
        if (!ranked[j].finalist)
            continue;
        structure |= ranked[j].path->structure == ranked[i].path->structure;
        block |= ranked[j].path->block_m == ranked[i].path->block_m;
    }
    return structure && block;
}

size_t mf_race_finalists(struct mf_ranked *ranked, size_t n, int topk)
{
    size_t n_finalists = 0;
    qsort(ranked, n, sizeof(*ranked), compare);
    for (size_t i = 0; i < n && n_finalists < MF_FINALISTS_MAX; i++) {
        /* Within the spread of its forecast, it may well be the fastest */
        bool close =
            ranked[i].forecast_us <= ranked[0].forecast_us * exp(ranked[i].log_spread + ranked[0].log_spread);
        bool known_spread = ranked[i].log_spread > 0 || ranked[0].log_spread > 0;
        ranked[i].finalist = i < (size_t)topk || (known_spread && close) || !is_represented(ranked, i);
        n_finalists += ranked[i].finalist;
    }
    return n_finalists;
}

/* Seconds of a schedule when the dearest go first. */
static double schedule_s(const double *forecast_us, size_t n, const struct mf_race_schedule *s, double scale)
{
    double total = 0;
    size_t in = n;
    for (int i = 0; i < s->n_stages; i++) {
        for (size_t j = 0; j < in; j++)
            total += forecast_us[j] * s->stages[i].rounds * scale;
        in = MF_MIN(in, (size_t)s->stages[i].keep);
    }
    return (total + forecast_us[0] * s->fresh) * 1e-6;
}

void mf_race_schedule(const double *forecast_us, size_t n, double budget_s, struct mf_race_schedule *ret)
{
    /* Few rounds of all, more of those that are left: half the regret of timing each in a block at a fraction of
     * the calls, when the device drifts. */
    *ret = (struct mf_race_schedule){
        .stages = {{6, 16}, {10, 6}, {20, 4}}, .n_stages = 3, .fresh = 20, .alpha = 0.05};
    double full_s = schedule_s(forecast_us, n, ret, 1);
    double scale = full_s > budget_s ? budget_s / full_s : 1;
    int total = 0;
    for (int i = 0; i < ret->n_stages; i++) {
        ret->stages[i].rounds = (int)fmax(i == 0 ? 2 : 1, floor(ret->stages[i].rounds * scale));
        total += ret->stages[i].rounds;
    }
    /* Where fewest are left */
    if (total < MF_RACE_ROUNDS_MIN)
        ret->stages[ret->n_stages - 1].rounds += MF_RACE_ROUNDS_MIN - total;
    ret->fresh = (int)fmax(5, floor(ret->fresh * scale));
}

int mf_race_schedule_print(const struct mf_race_schedule *s, struct mf_buf *out)
{
    (void)mf_buf_adds(out, "{\"rounds\":[");
    for (int i = 0; i < s->n_stages; i++)
        (void)mf_buf_addf(out, "%s{\"rounds\":%d,\"keep\":%d}", i ? "," : "", s->stages[i].rounds,
                          s->stages[i].keep);
    (void)mf_buf_addf(out, "],\"fresh\":%d,\"alpha\":%g}", s->fresh, s->alpha);
    return mf_buf_error(out);
}

int mf_race_pick(const struct mf_racer_result *racers, size_t n, int64_t winner)
{
    int best = -1;
    for (size_t i = 0; i < n; i++) {
        const struct mf_racer_result *r = &racers[i];
        if (!r->reported || r->status != MF_STATUS_OK || !(r->us > 0))
            continue;
        if (r->pipeline == winner)
            return (int)i;
        /* Racers stand in the order of their places, so that equal times go to the better forecast */
        if (best < 0 || r->us < racers[best].us)
            best = (int)i;
    }
    return best;
}
