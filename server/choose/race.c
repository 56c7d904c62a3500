#include "server/choose/race.h"

#include "common/base/cleanup.h"
#include "common/base/paired.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *va, const void *vb)
{
    const struct mf_ranked *a = va, *b = vb;
    if (a->forecast_us != b->forecast_us)
        return a->forecast_us < b->forecast_us ? -1 : 1;
    /* if the forecasts are equal, keep the order of the path array, which is sorted by (us, names) */
    return a->path < b->path ? -1 : a->path > b->path;
}

static bool same_structure(const struct mf_ranked *a, const struct mf_ranked *b)
{
    return a->path->structure == b->path->structure;
}

/* True if both pipelines run both GEMMs in one kernel, or if neither pipeline does. */
static bool same_kind(const struct mf_ranked *a, const struct mf_ranked *b)
{
    return mf_path_fuses_gemms(a->path->structure) == mf_path_fuses_gemms(b->path->structure);
}

static bool same_block(const struct mf_ranked *a, const struct mf_ranked *b)
{
    return a->path->block_m == b->path->block_m;
}

/* Finalists so far, in order of selection. */
struct selection {
    const struct mf_ranked *of[MF_FINALISTS_MAX];
    size_t n;
};

/* Returns true if a finalist is like `r`, as judged by the function `like`. */
static bool is_represented(const struct selection *p, const struct mf_ranked *r,
                           bool (*like)(const struct mf_ranked *, const struct mf_ranked *))
{
    for (size_t j = 0; j < p->n; j++) {
        if (like(p->of[j], r))
            return true;
    }
    return false;
}

/* Selection rules, most important first. All pipelines are tested against one rule before the next rule is
 * applied. */
enum pass { FIRST, REQUIRED, OTHER_KIND, ONE_KERNEL, STRUCTURES, BLOCKS, CHEAPEST, CLOSE, N_PASSES };

/* best: the pipeline with the lowest forecast. The tested pipeline is `rank` entries after `best`. */
static bool is_selected(enum pass pass, const struct selection *p, const struct mf_ranked *best, size_t rank,
                        size_t topk)
{
    const struct mf_ranked *r = best + rank;
    switch (pass) {
    case FIRST:
        return rank == 0;
    case REQUIRED:
        return r->required;
    case OTHER_KIND:
        return !is_represented(p, r, same_kind);
    case ONE_KERNEL:
        return mf_path_fuses_gemms(r->path->structure) && !is_represented(p, r, same_structure);
    case STRUCTURES:
        return !is_represented(p, r, same_structure);
    case BLOCKS:
        return !is_represented(p, r, same_block);
    case CHEAPEST:
        return rank < topk;
    case CLOSE: /* given the spread of both forecasts, r may be faster than `best` */
        return (r->log_spread > 0 || best->log_spread > 0) &&
               r->forecast_us <= best->forecast_us * exp(r->log_spread + best->log_spread);
    case N_PASSES:
        break;
    }
    return false;
}

size_t mf_race_finalists(struct mf_ranked *ranked, size_t n, int topk, size_t max_finalists)
{
    struct selection selection = {.n = 0};
    max_finalists = MF_MIN(max_finalists, (size_t)MF_FINALISTS_MAX);
    qsort(ranked, n, sizeof(*ranked), compare);
    for (size_t i = 0; i < n; i++)
        ranked[i].finalist = false;
    for (int pass = 0; pass < N_PASSES; pass++) {
        for (size_t i = 0; i < n && selection.n < max_finalists; i++) {
            if (ranked[i].finalist || !is_selected((enum pass)pass, &selection, ranked, i, (size_t)topk))
                continue;
            ranked[i].finalist = true;
            selection.of[selection.n++] = &ranked[i];
        }
    }
    return selection.n;
}

#define FIRST_ROUNDS_MIN 2 /* minimum rounds of each racer in the first stage */
#define FRESH_MIN        5
/* maximum share of the budget for the first FIRST_ROUNDS_MIN rounds; if they would take more, fewer finalists
 * race */
#define FIRST_ROUNDS_SHARE 0.75

size_t mf_race_finalist_limit(double best_us, double budget_s, int topk)
{
    double n = FIRST_ROUNDS_SHARE * budget_s / (FIRST_ROUNDS_MIN * best_us * 1e-6);
    return (size_t)fmin(fmax(n, MF_MAX(MF_FINALISTS_MIN, topk)), MF_FINALISTS_MAX);
}

/* Estimates the duration in seconds of one of n_groups groups. Assumes that each stage drops the slowest
 * racers. */
static double schedule_s(const double *forecast_us, size_t n, const struct mf_race_schedule *s,
                         size_t n_groups)
{
    double total = 0;
    size_t in = n;
    for (int i = 0; i < s->n_stages; i++) {
        for (size_t j = 0; j < in; j++)
            total += forecast_us[j] * s->stages[i].rounds;
        in = MF_MIN(in, (size_t)s->stages[i].keep);
    }
    size_t n_fresh = MF_MIN(MF_MAX(MF_RACE_RERUN_MAX / n_groups, (size_t)1), n);
    for (size_t j = 0; j < n_fresh; j++)
        total += forecast_us[j] * s->fresh;
    return total * 1e-6;
}

void mf_race_schedule(const double *forecast_us, const size_t *n, size_t n_groups,
                      const struct mf_race_budget *budget, struct mf_race_schedule *ret)
{
    /* The first stage has few rounds, of all racers; later stages have more rounds, of fewer racers. If the
     * device's speed drifts, this schedule has half the regret of timing each racer in one block, and takes a
     * fraction of the calls. */
    *ret = (struct mf_race_schedule){
        .stages = {{6, 16}, {10, 6}, {20, 4}}, .n_stages = 3, .fresh = budget->fresh, .alpha = 0.05};
    double full_s = 0;
    /* divide the racers that a stage keeps among the groups, so that several groups take about as long as one
     */
    for (int i = 0; i < ret->n_stages; i++)
        ret->stages[i].keep = MF_MAX(ret->stages[i].keep / (int)n_groups, 2);
    for (size_t k = 0; k < n_groups; forecast_us += n[k++])
        full_s += schedule_s(forecast_us, n[k], ret, n_groups);
    double scale = full_s > budget->s ? budget->s / full_s : 1;
    int total = 0;
    for (int i = 0; i < ret->n_stages; i++) {
        ret->stages[i].rounds =
            (int)fmax(i == 0 ? FIRST_ROUNDS_MIN : 1, floor(ret->stages[i].rounds * scale));
        total += ret->stages[i].rounds;
    }
    /* add missing rounds to the last stage, because it has the fewest racers */
    if (total < MF_RACE_ROUNDS_MIN)
        ret->stages[ret->n_stages - 1].rounds += MF_RACE_ROUNDS_MIN - total;
    ret->fresh = (int)fmax(MF_MIN(FRESH_MIN, budget->fresh), floor(ret->fresh * scale));
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
        if (!r->reported || r->status != MF_STATUS_OK || !(r->us > 0) || r->verified < 2)
            continue;
        if (r->pipeline == winner)
            return (int)i;
        /* racers are in forecast order, so if two times are equal, the racer with the lower forecast wins */
        if (best < 0 || r->us < racers[best].us)
            best = (int)i;
    }
    return best;
}
