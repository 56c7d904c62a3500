#include "measure/race/race.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/paired.h"
#include "common/base/stats.h"
#include "common/base/text.h"
#include "kernels/core/philox.h"
#include "measure/race/rerun_judge.h"

#define CONFIDENCE 0.95
/* relative difference in time; among racers this close to the leader, spread, number of steps and id decide
 * (see pick) */
#define SAME_TIME 0.0005
/* racers whose spread is at most this multiple of the smallest spread are equally stable */
#define SAME_SPREAD 2.0
#define ROUNDS_MAX  100000
/* A racer is dropped if its first sample exceeds HOPELESS_FIRST times its group's smallest sample, or if the
 * minimum of its first two samples exceeds HOPELESS_SECOND times the group's smallest sample. */
#define HOPELESS_FIRST  3.0
#define HOPELESS_SECOND 1.5

/* ---- the plan ---- */

static int parse_stage(const cJSON *json, struct mf_race_stage *ret, const char **ret_field)
{
    int64_t rounds, keep;
    *ret_field = "plan.rounds[].rounds";
    if (mf_json_i64(json, "rounds", 1, ROUNDS_MAX, &rounds) < 0)
        return -EINVAL;
    *ret_field = "plan.rounds[].keep";
    if (mf_json_i64(json, "keep", 1, ROUNDS_MAX, &keep) < 0)
        return -EINVAL;
    *ret = (struct mf_race_stage){(int)rounds, (int)keep};
    return 0;
}

int mf_race_plan_parse(const cJSON *json, struct mf_race_plan *ret, const char **ret_field)
{
    struct mf_race_plan plan = {.fresh = 20, .alpha = 0.05};
    int64_t fresh;
    *ret_field = "plan";
    if (!cJSON_IsObject(json))
        return -EINVAL;
    *ret_field = "plan.rounds";
    const cJSON *stages = mf_json_array(json, "rounds"), *stage;
    if (!stages || cJSON_GetArraySize(stages) < 1 ||
        cJSON_GetArraySize(stages) > (int)MF_ARRAY_LEN(plan.stages))
        return -EINVAL;
    cJSON_ArrayForEach (stage, stages) {
        int r = parse_stage(stage, &plan.stages[plan.n_stages++], ret_field);
        if (r < 0)
            return r;
    }
    *ret_field = "plan.fresh";
    int r = mf_json_i64(json, "fresh", 0, ROUNDS_MAX, &fresh);
    if (r == 0)
        plan.fresh = (int)fresh;
    else if (r != -ENOENT)
        return -EINVAL;
    *ret_field = "plan.alpha";
    r = mf_json_double(json, "alpha", &plan.alpha);
    if ((r < 0 && r != -ENOENT) || !(plan.alpha > 0 && plan.alpha < 1))
        return -EINVAL;
    *ret_field = "plan.all";
    r = mf_json_bool(json, "all", &plan.all);
    if (r < 0 && r != -ENOENT)
        return -EINVAL;
    *ret = plan;
    return 0;
}

/* ---- one race ---- */

/* Racers of one group. Racers of different groups do not compete. */
struct race_group {
    size_t *in; /* indices of the remaining racers; sorted by score after rank() */
    size_t n_in;
    int rounds;    /* rounds run by all remaining racers */
    size_t winner; /* index of the winner; set by choose_winner */
    bool decided;
    int tries;                    /* reruns of the winner */
    char unstable[MF_REASON_MAX]; /* why the last rerun was not accepted; "": it was */
};

struct race {
    const struct mf_race_plan *plan;
    uint64_t seed;
    struct mf_racer *racers;
    size_t n;
    const int *weight;
    const struct mf_race_device *device;
    struct race_group groups[MF_RACE_GROUPS_MAX];
    size_t n_groups;
    size_t *order; /* order of the samples within a round */
    int rounds, calls;
    int repeated;         /* rounds that were repeated because the canary was slow */
    int disturbed;        /* rounds of the rerun that count although the canary was slow */
    double *score;        /* per racer: clipped mean of its samples relative to each round's median */
    double *round_median; /* per round: median time of the group */
    double *noise;        /* per remaining racer: noise scale of its relative samples */
    double *scratch, *difference;
};

static void shuffle(struct race *r, size_t *order, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        struct mf_philox4 p = mf_philox(r->seed, i, (uint64_t)r->calls);
        size_t j = (size_t)((uint64_t)p.v[0] * i >> 32), other = order[j];
        order[j] = order[i - 1];
        order[i - 1] = other;
    }
}

/* `fresh` is true if the sample belongs to a rerun, false if it belongs to a round. */
static void take_sample(struct race *r, size_t i, bool fresh)
{
    struct mf_racer *racer = &r->racers[i];
    double us = 0;
    int result =
        r->device->sample(r->device->context, i, fresh ? MF_RACE_FRESH : r->rounds, &us, racer->reason);
    r->calls++;
    if (result == 0) {
        racer->samples[racer->n_samples++] = us;
        racer->n_rounds += !fresh;
        return;
    }
    racer->status = result > 0 ? (enum mf_status)result : MF_STATUS_UNSUPPORTED;
    racer->dropped_at = r->rounds + 1;
    if (racer->reason[0] == 0)
        mf_format(racer->reason, sizeof(racer->reason), "a run in the race failed: %s",
                  result < 0 ? strerror(-result) : mf_status_name(racer->status));
}

static bool is_calm(const struct race *r)
{
    return !r->device->is_calm || r->device->is_calm(r->device->context);
}

static void settle(const struct race *r)
{
    if (r->device->settle)
        r->device->settle(r->device->context);
}

/* Discards the last sample of each racer that has not failed. */
static void discard_samples(struct race *r, const size_t *order, size_t n, bool fresh)
{
    for (size_t i = 0; i < n; i++) {
        struct mf_racer *racer = &r->racers[order[i]];
        if (racer->status != MF_STATUS_OK)
            continue;
        racer->n_samples--;
        racer->n_rounds -= !fresh;
    }
}

/* Takes one sample of each racer in `order`, in shuffled order. Repeats this if the canary is slow
 * afterwards, because the device was then throttled or disturbed. Returns false if the samples are kept
 * although the canary was slow, because the race has repeated too many rounds. */
static bool sample_each(struct race *r, size_t *order, size_t n, bool fresh)
{
    for (;;) {
        shuffle(r, order, n);
        for (size_t i = 0; i < n; i++) {
            if (r->racers[order[i]].status == MF_STATUS_OK)
                take_sample(r, order[i], fresh);
        }
        if (is_calm(r))
            return true;
        if (r->repeated == MF_RACE_REPEATS_MAX)
            return false;
        r->repeated++;
        discard_samples(r, order, n, fresh);
        settle(r);
    }
}

static void remove_failed(struct race *r, struct race_group *h)
{
    size_t kept = 0;
    for (size_t i = 0; i < h->n_in; i++) {
        if (r->racers[h->in[i]].status == MF_STATUS_OK)
            h->in[kept++] = h->in[i];
    }
    h->n_in = kept;
}

/* Takes one sample of each remaining racer of all groups, in shuffled order. */
static void run_round(struct race *r)
{
    size_t n = 0;
    for (size_t k = 0; k < r->n_groups; k++) {
        for (size_t i = 0; i < r->groups[k].n_in; i++)
            r->order[n++] = r->groups[k].in[i];
    }
    (void)sample_each(r, r->order, n, false);
    r->rounds++;
    for (size_t k = 0; k < r->n_groups; k++) {
        remove_failed(r, &r->groups[k]);
        r->groups[k].rounds = r->rounds;
    }
}

/* Divides racer i's sample of each round by the median of the round. Writes the quotients to r->scratch. */
static void relative_to_round(struct race *r, const struct race_group *h, size_t i)
{
    for (int round = 0; round < h->rounds; round++)
        r->scratch[round] = r->racers[i].samples[round] / r->round_median[round];
}

/* Scores the remaining racers over the rounds that all of them have run. All scores use the median of the
 * group's noise scales, so that a few outliers of one racer do not determine its own noise scale. */
static void score(struct race *r, const struct race_group *h)
{
    for (int round = 0; round < h->rounds; round++) {
        for (size_t i = 0; i < h->n_in; i++)
            r->scratch[i] = r->racers[h->in[i]].samples[round];
        r->round_median[round] = mf_median(r->scratch, h->n_in);
    }
    for (size_t i = 0; i < h->n_in; i++) {
        relative_to_round(r, h, h->in[i]);
        r->noise[i] = mf_noise_scale(r->scratch, (size_t)h->rounds);
    }
    double scale = mf_median(r->noise, h->n_in);
    for (size_t i = 0; i < h->n_in; i++) {
        relative_to_round(r, h, h->in[i]);
        r->score[h->in[i]] = mf_clipped_mean(r->scratch, (size_t)h->rounds, scale);
    }
}

/* Scores the remaining racers and sorts them by score, then by id. */
static void rank(struct race *r, struct race_group *h)
{
    score(r, h);
    for (size_t i = 1; i < h->n_in; i++) {
        size_t x = h->in[i], j = i;
        for (; j > 0; j--) {
            size_t y = h->in[j - 1];
            if (r->score[y] < r->score[x] ||
                (r->score[y] <= r->score[x] && r->racers[y].id < r->racers[x].id))
                break;
            h->in[j] = y;
        }
        h->in[j] = x;
    }
}

/* Writes the difference samples[i] - samples[leader] of each round, divided by the leader's median, to
 * r->difference. */
static void pair_with(struct race *r, const struct race_group *h, size_t i, size_t leader)
{
    memcpy(r->scratch, r->racers[leader].samples, (size_t)h->rounds * sizeof(double));
    double scale = mf_median(r->scratch, (size_t)h->rounds);
    for (int round = 0; round < h->rounds; round++)
        r->difference[round] = (r->racers[i].samples[round] - r->racers[leader].samples[round]) / scale;
}

struct compared {
    size_t racer;
    double p;
};

static int by_p(const void *a, const void *b)
{
    const struct compared *x = a, *y = b;
    return (x->p > y->p) - (x->p < y->p);
}

static void drop(struct race *r, struct race_group *h, size_t racer)
{
    r->racers[racer].dropped_at = r->rounds;
    size_t kept = 0;
    for (size_t i = 0; i < h->n_in; i++) {
        if (h->in[i] != racer)
            h->in[kept++] = h->in[i];
    }
    h->n_in = kept;
}

/* Drops racers that the paired test finds slower than the leader. Holm's correction limits the family-wise
 * error rate to alpha. */
static int drop_slower(struct race *r, struct race_group *h)
{
    size_t m = h->n_in - 1, leader = h->in[0];
    _cleanup_(mf_freep) struct compared *c = calloc(m + 1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    for (size_t i = 0; i < m; i++) {
        c[i].racer = h->in[i + 1];
        pair_with(r, h, c[i].racer, leader);
        c[i].p = mf_wilcoxon_p(r->difference, (size_t)h->rounds, r->scratch);
    }
    qsort(c, m, sizeof(*c), by_p);
    for (size_t i = 0; i < m && c[i].p <= r->plan->alpha / (double)(m - i); i++)
        drop(r, h, c[i].racer);
    return 0;
}

static double min_sample(const struct mf_racer *racer)
{
    double least = INFINITY;
    for (size_t i = 0; i < racer->n_samples; i++)
        least = fmin(least, racer->samples[i]);
    return least;
}

/* Drops racers whose first samples are far slower than the group's fastest sample. Such racers are in the
 * race because their forecast was wrong. A difference of this size needs no statistical test. */
static void drop_hopeless(struct race *r, struct race_group *h)
{
    double least = INFINITY, limit = r->rounds == 1 ? HOPELESS_FIRST : HOPELESS_SECOND;
    for (size_t i = 0; i < h->n_in; i++)
        least = fmin(least, min_sample(&r->racers[h->in[i]]));
    for (size_t i = h->n_in; i-- > 0;) {
        if (min_sample(&r->racers[h->in[i]]) > limit * least)
            drop(r, h, h->in[i]);
    }
}

static bool is_finished(const struct race *r)
{
    size_t n_in = 0;
    for (size_t k = 0; k < r->n_groups; k++)
        n_in += r->groups[k].n_in;
    return n_in == 0;
}

static int drop_losers(struct race *r, struct race_group *h, size_t keep)
{
    if (h->n_in == 0)
        return 0;
    rank(r, h);
    int result = drop_slower(r, h);
    while (result == 0 && h->n_in > keep)
        drop(r, h, h->in[h->n_in - 1]);
    return result;
}

static int run_stage(struct race *r, const struct mf_race_stage *stage)
{
    int result = 0;
    for (int i = 0; i < stage->rounds && !is_finished(r); i++) {
        run_round(r);
        for (size_t k = 0; k < r->n_groups && r->rounds <= 2 && !r->plan->all; k++)
            drop_hopeless(r, &r->groups[k]);
    }
    for (size_t k = 0; k < r->n_groups && result == 0 && !r->plan->all; k++)
        result = drop_losers(r, &r->groups[k], (size_t)stage->keep);
    return result;
}

static double spread(struct race *r, const struct race_group *h, size_t racer)
{
    memcpy(r->scratch, r->racers[racer].samples, (size_t)h->rounds * sizeof(double));
    return mf_mad(r->scratch, (size_t)h->rounds);
}

/* True if the racer is statistically tied with the leader. If there are too few samples for a confidence
 * interval, every racer is tied with the leader. */
static bool is_tie(struct race *r, const struct race_group *h, size_t i, size_t leader)
{
    struct mf_interval change;
    return mf_paired_interval(r->racers[leader].samples, r->racers[i].samples, (size_t)h->rounds, CONFIDENCE,
                              r->difference, &change) < 0 ||
           change.low <= 0;
}

/* Keeps the leader and the racers statistically tied with it in h->in, sorted by time. */
static void keep_ties(struct race *r, struct race_group *h)
{
    size_t kept = 1;
    for (size_t i = 1; i < h->n_in; i++) {
        if (is_tie(r, h, h->in[i], h->in[0]))
            h->in[kept++] = h->in[i];
        else
            r->racers[h->in[i]].dropped_at = h->rounds;
    }
    h->n_in = kept;
}

/* Picks the winner among the racers within SAME_TIME of the leader. Prefers racers with a small spread, then
 * the fewest steps, then the smallest id. */
static size_t pick(struct race *r, const struct race_group *h)
{
    double least = INFINITY, leader = r->score[h->in[0]];
    size_t n = 0, best = h->in[0];
    while (n < h->n_in && r->score[h->in[n]] <= leader * (1 + SAME_TIME))
        n++;
    for (size_t i = 0; i < n; i++)
        least = fmin(least, spread(r, h, h->in[i]));
    bool best_wide = true;
    for (size_t i = 0; i < n; i++) {
        size_t x = h->in[i];
        bool wide = spread(r, h, x) > SAME_SPREAD * least;
        int steps = r->weight ? r->weight[x] - r->weight[best] : 0;
        bool better = wide != best_wide ? !wide
                      : steps != 0      ? steps < 0
                                        : r->racers[x].id < r->racers[best].id;
        if (i == 0 || better) {
            best = x;
            best_wide = wide;
        }
    }
    return best;
}

/* Writes the group's winner and then its nearest ties to ret, at most an equal share of MF_RACE_RERUN_MAX.
 * Returns their number. */
static size_t nearest_ties(const struct race *r, const struct race_group *h, size_t *ret)
{
    size_t n = 0, most = MF_MAX(MF_RACE_RERUN_MAX / r->n_groups, (size_t)1);
    ret[n++] = h->winner;
    for (size_t i = 0; i < h->n_in && n < most; i++) {
        if (h->in[i] != h->winner)
            ret[n++] = h->in[i];
    }
    return n;
}

/* Takes the rerun samples of the racers in `order`, after discarding those of an earlier rerun. */
static void rerun_each(struct race *r, size_t *order, size_t n)
{
    r->disturbed = 0;
    for (size_t j = 0; j < n; j++)
        r->racers[order[j]].n_samples = r->racers[order[j]].n_rounds;
    for (int i = 0; i < r->plan->fresh; i++)
        r->disturbed += !sample_each(r, order, n, true);
}

/* Judges the rerun of the group's winner. A winner that has failed is not judged, because it is replaced. */
static bool accepts_rerun(struct race *r, struct race_group *h)
{
    const struct mf_racer *w = &r->racers[h->winner];
    const struct mf_rerun rerun = {.rounds = w->samples,
                                   .n_rounds = w->n_rounds,
                                   .fresh = w->samples + w->n_rounds,
                                   .n_fresh = w->n_samples - w->n_rounds};
    h->unstable[0] = '\0';
    if (w->status != MF_STATUS_OK)
        return true;
    if (r->disturbed == 0)
        return mf_rerun_accepts(&rerun, r->scratch, h->unstable);
    mf_format(h->unstable, sizeof(h->unstable),
              "the canary was slow after %d of %d rounds of the rerun: the device was throttled or disturbed",
              r->disturbed, r->plan->fresh);
    return false;
}

/* Reruns the winners of undecided groups and their nearest ties, interleaved. Rerun samples are unbiased,
 * because no racer was selected by its rerun samples. Rerun samples of different groups are comparable. */
static void rerun_winners(struct race *r)
{
    static_assert(MF_RACE_RERUN_MAX >= MF_RACE_GROUPS_MAX, "each group's winner must be rerun");
    size_t order[MF_RACE_RERUN_MAX], n = 0;
    bool accepted = r->plan->fresh == 0;
    for (size_t k = 0; k < r->n_groups; k++) {
        if (!r->groups[k].decided)
            n += nearest_ties(r, &r->groups[k], order + n);
    }
    for (int try = 1; !accepted && try <= MF_RERUN_TRIES_MAX; try++) {
        if (try > 1)
            settle(r);
        rerun_each(r, order, n);
        accepted = true;
        for (size_t k = 0; k < r->n_groups; k++) {
            if (r->groups[k].decided)
                continue;
            r->groups[k].tries = try;
            accepted &= accepts_rerun(r, &r->groups[k]);
        }
    }
}

static void fill_won(struct race *r, const struct race_group *h, struct mf_race_won *ret)
{
    const struct mf_racer *w = &r->racers[h->winner];
    size_t first = w->n_samples > w->n_rounds ? w->n_rounds : 0, n = w->n_samples - first;
    *ret = (struct mf_race_won){.winner = w->id, .tries = h->tries};
    if (h->unstable[0])
        mf_format(ret->unstable, sizeof(ret->unstable), "after %d reruns: %s", h->tries, h->unstable);
    memcpy(r->scratch, w->samples + first, n * sizeof(double));
    ret->us = mf_median(r->scratch, n);
    ret->mad = mf_mad(r->scratch, n);
    for (size_t i = 0; i < h->n_in && ret->n_ties < MF_ARRAY_LEN(ret->ties); i++) {
        if (h->in[i] != h->winner)
            ret->ties[ret->n_ties++] = r->racers[h->in[i]].id;
    }
}

/* Returns -ENOENT if no group has a winner. */
static int fill_outcome(struct race *r, struct mf_race_outcome *ret)
{
    struct mf_race_outcome o = {.n_groups = r->n_groups, .calls = r->calls, .repeated = r->repeated};
    const struct mf_race_won *best = NULL;
    for (size_t k = 0; k < r->n_groups; k++) {
        if (r->groups[k].n_in == 0)
            continue;
        fill_won(r, &r->groups[k], &o.groups[k]);
        if (best && best->us <= o.groups[k].us)
            continue;
        best = &o.groups[k];
        o.rounds = r->groups[k].rounds;
    }
    if (!best)
        return -ENOENT;
    o.won = *best;
    *ret = o;
    return 0;
}

/* Readmits the racers of the group that were dropped last. This is necessary because all remaining racers
 * have failed. The readmitted racers keep the samples of the rounds that they ran. */
static void readmit(struct race *r, struct race_group *h)
{
    int last = 0, group = (int)(h - r->groups);
    for (size_t i = 0; i < r->n; i++) {
        if (r->racers[i].group == group && r->racers[i].status == MF_STATUS_OK)
            last = MF_MAX(last, r->racers[i].dropped_at);
    }
    for (size_t i = 0; i < r->n && last > 0; i++) {
        if (r->racers[i].group != group || r->racers[i].status != MF_STATUS_OK ||
            r->racers[i].dropped_at != last)
            continue;
        r->racers[i].dropped_at = 0;
        h->in[h->n_in++] = i;
        h->rounds = last;
    }
}

/* Chooses the group's winner; the caller reruns it. Returns false if no racer is left. */
static bool choose_winner(struct race *r, struct race_group *h)
{
    if (h->n_in == 0)
        readmit(r, h);
    if (h->n_in == 0)
        return false;
    rank(r, h);
    keep_ties(r, h);
    h->winner = pick(r, h);
    return true;
}

static int race(struct race *r, struct mf_race_outcome *ret)
{
    if (!is_calm(r))
        settle(r);
    for (int i = 0; i < r->plan->n_stages; i++) {
        int result = run_stage(r, &r->plan->stages[i]);
        if (result < 0)
            return result;
    }
    /* If a winner fails in its rerun, the next racer of its group takes its place. */
    for (bool open = true; open;) {
        open = false;
        for (size_t k = 0; k < r->n_groups; k++) {
            struct race_group *h = &r->groups[k];
            h->decided = h->decided || !choose_winner(r, h);
            open |= !h->decided;
        }
        if (open)
            rerun_winners(r);
        for (size_t k = 0; k < r->n_groups; k++) {
            struct race_group *h = &r->groups[k];
            if (h->decided)
                continue;
            h->decided = r->racers[h->winner].status == MF_STATUS_OK;
            remove_failed(r, h);
        }
    }
    return fill_outcome(r, ret);
}

/* Assigns the racers to their groups. index_storage has room for r->n indices per group. */
static void enter(struct race *r, size_t *index_storage)
{
    for (size_t i = 0; i < r->n; i++) {
        size_t group = (size_t)r->racers[i].group;
        assert(group < MF_RACE_GROUPS_MAX);
        r->n_groups = MF_MAX(r->n_groups, group + 1);
    }
    for (size_t k = 0; k < r->n_groups; k++) {
        struct race_group *h = &r->groups[k];
        h->in = index_storage + k * r->n;
        for (size_t i = 0; i < r->n; i++) {
            if (r->racers[i].status == MF_STATUS_OK && (size_t)r->racers[i].group == k)
                h->in[h->n_in++] = i;
        }
    }
}

int mf_race_run(const struct mf_race_plan *plan, uint64_t seed, struct mf_racer *racers, const int *weight,
                size_t n, const struct mf_race_device *device, struct mf_race_outcome *ret)
{
    size_t room = n + (size_t)plan->fresh;
    for (int i = 0; i < plan->n_stages; i++)
        room += (size_t)plan->stages[i].rounds;
    _cleanup_(mf_freep) size_t *index_storage =
        calloc((n + 1) * (MF_RACE_GROUPS_MAX + 1), sizeof(*index_storage));
    _cleanup_(mf_freep) double *score = calloc(n + 1, sizeof(*score));
    _cleanup_(mf_freep) double *noise = calloc(n + 1, sizeof(*noise));
    _cleanup_(mf_freep) double *round_median = calloc(room + 1, sizeof(*round_median));
    _cleanup_(mf_freep) double *scratch = calloc(room + 1, sizeof(*scratch));
    _cleanup_(mf_freep) double *difference = calloc(room + 1, sizeof(*difference));
    if (!index_storage || !score || !noise || !round_median || !scratch || !difference)
        return -ENOMEM;
    struct race r = {
        .plan = plan,
        .seed = seed,
        .racers = racers,
        .n = n,
        .weight = weight,
        .device = device,
        .order = index_storage + n * MF_RACE_GROUPS_MAX,
        .score = score,
        .round_median = round_median,
        .noise = noise,
        .scratch = scratch,
        .difference = difference,
    };
    enter(&r, index_storage);
    return race(&r, ret);
}
