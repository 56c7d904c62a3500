#include "measure/race.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/paired.h"
#include "common/stats.h"
#include "common/text.h"
#include "kernels/philox.h"

#define CONFIDENCE   0.95
#define SAME_TIME    0.0005 /* within this of the leader the stable rule picks, not the clock */
#define SAME_SPREAD  2.0    /* a spread up to so many times the least counts as no more */
#define N_REMEASURED 4      /* the winner and its nearest ties */
#define ROUNDS_MAX   100000
/* Hopeless: by its first sample, or by the better of its first two, so many times the least sample of all */
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

struct race {
    const struct mf_race_plan *plan;
    uint64_t seed;
    struct mf_racer *racers;
    const int *weight;
    mf_race_sample_fn sample;
    void *context;
    size_t *in; /* racers still in; best first after rank() */
    size_t n_in;
    int rounds, calls;
    double *score; /* by racer: middle mean of its samples over each round's median */
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

static void take_sample(struct race *r, size_t i)
{
    struct mf_racer *racer = &r->racers[i];
    double us = 0;
    int result = r->sample(r->context, i, r->rounds, &us, racer->reason);
    r->calls++;
    if (result == 0) {
        racer->samples[racer->n_samples++] = us;
        return;
    }
    racer->status = result > 0 ? (enum mf_status)result : MF_STATUS_UNSUPPORTED;
    racer->dropped_at = r->rounds + 1;
    if (racer->reason[0] == 0)
        mf_say(racer->reason, sizeof(racer->reason), "a run in the race ended with: %s",
               result < 0 ? strerror(-result) : mf_status_name(racer->status));
}

static void forget_failed(struct race *r)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_in; i++) {
        if (r->racers[r->in[i]].status == MF_STATUS_OK)
            r->in[kept++] = r->in[i];
    }
    r->n_in = kept;
}

/* One sample of everything still in, in shuffled order. */
static void run_round(struct race *r)
{
    shuffle(r, r->in, r->n_in);
    for (size_t i = 0; i < r->n_in; i++)
        take_sample(r, r->in[i]);
    forget_failed(r);
    r->rounds++;
}

/* Scores all that are in, over the rounds that all of them have, and sorts them best first; ties by id. */
static void rank(struct race *r)
{
    for (size_t i = 0; i < r->n_in; i++)
        r->score[r->in[i]] = 0;
    for (int round = 0; round < r->rounds; round++) {
        for (size_t i = 0; i < r->n_in; i++)
            r->scratch[i] = r->racers[r->in[i]].samples[round];
        r->difference[round] = mf_median(r->scratch, r->n_in);
    }
    for (size_t i = 0; i < r->n_in; i++) {
        for (int round = 0; round < r->rounds; round++)
            r->scratch[round] = r->racers[r->in[i]].samples[round] / r->difference[round];
        r->score[r->in[i]] = mf_middle_mean(r->scratch, (size_t)r->rounds);
    }
    for (size_t i = 1; i < r->n_in; i++) {
        size_t x = r->in[i], j = i;
        for (; j > 0; j--) {
            size_t y = r->in[j - 1];
            if (r->score[y] < r->score[x] ||
                (r->score[y] <= r->score[x] && r->racers[y].id < r->racers[x].id))
                break;
            r->in[j] = y;
        }
        r->in[j] = x;
    }
}

/* samples[i] - samples[leader] by round, relative to the leader's median; into r->difference. */
static void pair_with(struct race *r, size_t i, size_t leader)
{
    memcpy(r->scratch, r->racers[leader].samples, (size_t)r->rounds * sizeof(double));
    double scale = mf_median(r->scratch, (size_t)r->rounds);
    for (int round = 0; round < r->rounds; round++)
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

static void drop(struct race *r, size_t racer)
{
    r->racers[racer].dropped_at = r->rounds;
    size_t kept = 0;
    for (size_t i = 0; i < r->n_in; i++) {
        if (r->in[i] != racer)
            r->in[kept++] = r->in[i];
    }
    r->n_in = kept;
}

/* Drops what is slower than the leader by the paired test, at a family-wise error of alpha (Holm). */
static int drop_slower(struct race *r)
{
    size_t m = r->n_in - 1, leader = r->in[0];
    _cleanup_(mf_freep) struct compared *c = calloc(m + 1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    for (size_t i = 0; i < m; i++) {
        c[i].racer = r->in[i + 1];
        pair_with(r, c[i].racer, leader);
        c[i].p = mf_wilcoxon_p(r->difference, (size_t)r->rounds, r->scratch);
    }
    qsort(c, m, sizeof(*c), by_p);
    for (size_t i = 0; i < m && c[i].p <= r->plan->alpha / (double)(m - i); i++)
        drop(r, c[i].racer);
    return 0;
}

static double least_sample(const struct mf_racer *racer)
{
    double least = INFINITY;
    for (size_t i = 0; i < racer->n_samples; i++)
        least = fmin(least, racer->samples[i]);
    return least;
}

/* A forecast can be far off, and then the first rounds say so: no statistics are needed to drop those. */
static void drop_hopeless(struct race *r)
{
    double least = INFINITY, limit = r->rounds == 1 ? HOPELESS_FIRST : HOPELESS_SECOND;
    for (size_t i = 0; i < r->n_in; i++)
        least = fmin(least, least_sample(&r->racers[r->in[i]]));
    for (size_t i = r->n_in; i-- > 0;) {
        if (least_sample(&r->racers[r->in[i]]) > limit * least)
            drop(r, r->in[i]);
    }
}

static int run_stage(struct race *r, const struct mf_race_stage *stage)
{
    for (int i = 0; i < stage->rounds && r->n_in > 0; i++) {
        run_round(r);
        if (r->rounds <= 2 && !r->plan->all)
            drop_hopeless(r);
    }
    if (r->n_in == 0 || r->plan->all)
        return 0;
    rank(r);
    int result = drop_slower(r);
    while (result == 0 && r->n_in > (size_t)stage->keep)
        drop(r, r->in[r->n_in - 1]);
    return result;
}

static double spread(struct race *r, size_t racer)
{
    memcpy(r->scratch, r->racers[racer].samples, (size_t)r->rounds * sizeof(double));
    return mf_mad(r->scratch, (size_t)r->rounds);
}

/* What is no time tells nothing apart. */
static bool is_tie(struct race *r, size_t i, size_t leader)
{
    struct mf_interval change;
    return mf_paired_interval(r->racers[leader].samples, r->racers[i].samples, (size_t)r->rounds, CONFIDENCE,
                              r->difference, &change) < 0 ||
           change.low <= 0;
}

/* Leaves in r->in, in order of time, the leader and what cannot be told apart from it. */
static void keep_ties(struct race *r)
{
    size_t kept = 1;
    for (size_t i = 1; i < r->n_in; i++) {
        if (is_tie(r, r->in[i], r->in[0]))
            r->in[kept++] = r->in[i];
        else
            r->racers[r->in[i]].dropped_at = r->rounds;
    }
    r->n_in = kept;
}

/* Among the ties within SAME_TIME of the leader: less spread, then fewer steps, then the smaller id. */
static size_t pick(struct race *r)
{
    double least = INFINITY, leader = r->score[r->in[0]];
    size_t n = 0, best = r->in[0];
    while (n < r->n_in && r->score[r->in[n]] <= leader * (1 + SAME_TIME))
        n++;
    for (size_t i = 0; i < n; i++)
        least = fmin(least, spread(r, r->in[i]));
    bool best_wide = true;
    for (size_t i = 0; i < n; i++) {
        size_t x = r->in[i];
        bool wide = spread(r, x) > SAME_SPREAD * least;
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

/* The winner and its nearest ties once more, interleaved: these samples chose nothing, so they are unbiased. */
static void remeasure(struct race *r, size_t winner)
{
    size_t order[N_REMEASURED] = {winner}, n = 1;
    for (size_t i = 0; i < r->n_in && n < N_REMEASURED; i++) {
        if (r->in[i] != winner)
            order[n++] = r->in[i];
    }
    for (int i = 0; i < r->plan->fresh; i++) {
        shuffle(r, order, n);
        for (size_t j = 0; j < n; j++) {
            if (r->racers[order[j]].status == MF_STATUS_OK)
                take_sample(r, order[j]);
        }
    }
}

static void fill_outcome(struct race *r, size_t winner, struct mf_race_outcome *ret)
{
    const struct mf_racer *w = &r->racers[winner];
    size_t rounds = (size_t)r->rounds, first = w->n_samples > rounds ? rounds : 0, n = w->n_samples - first;
    *ret = (struct mf_race_outcome){.winner = w->id, .rounds = r->rounds, .calls = r->calls};
    memcpy(r->scratch, w->samples + first, n * sizeof(double));
    ret->us = mf_median(r->scratch, n);
    ret->mad = mf_mad(r->scratch, n);
    for (size_t i = 0; i < r->n_in && ret->n_ties < MF_ARRAY_LEN(ret->ties); i++) {
        if (r->in[i] != winner)
            ret->ties[ret->n_ties++] = r->racers[r->in[i]].id;
    }
}

/* Those that were dropped last, and their rounds: for when all that were left have failed. */
static void readmit(struct race *r, size_t n)
{
    int last = 0;
    for (size_t i = 0; i < n; i++) {
        if (r->racers[i].status == MF_STATUS_OK)
            last = MF_MAX(last, r->racers[i].dropped_at);
    }
    for (size_t i = 0; i < n && last > 0; i++) {
        if (r->racers[i].status != MF_STATUS_OK || r->racers[i].dropped_at != last)
            continue;
        r->racers[i].dropped_at = 0;
        r->in[r->n_in++] = i;
        r->rounds = last;
    }
}

static int race(struct race *r, size_t n, struct mf_race_outcome *ret)
{
    for (size_t i = 0; i < n; i++) {
        if (r->racers[i].status == MF_STATUS_OK)
            r->in[r->n_in++] = i;
    }
    for (int i = 0; i < r->plan->n_stages; i++) {
        int result = run_stage(r, &r->plan->stages[i]);
        if (result < 0)
            return result;
    }
    /* A winner that fails while it is measured afresh leaves the place to the next. */
    for (;;) {
        if (r->n_in == 0)
            readmit(r, n);
        if (r->n_in == 0)
            return -ENOENT;
        rank(r);
        keep_ties(r);
        size_t winner = pick(r);
        remeasure(r, winner);
        bool stands = r->racers[winner].status == MF_STATUS_OK;
        forget_failed(r);
        if (stands) {
            fill_outcome(r, winner, ret);
            return 0;
        }
    }
}

int mf_race_run(const struct mf_race_plan *plan, uint64_t seed, struct mf_racer *racers, const int *weight,
                size_t n, mf_race_sample_fn sample, void *context, struct mf_race_outcome *ret)
{
    size_t room = n + (size_t)plan->fresh;
    for (int i = 0; i < plan->n_stages; i++)
        room += (size_t)plan->stages[i].rounds;
    _cleanup_(mf_freep) size_t *in = calloc(n + 1, sizeof(*in));
    _cleanup_(mf_freep) double *score = calloc(n + 1, sizeof(*score));
    _cleanup_(mf_freep) double *scratch = calloc(room + 1, sizeof(*scratch));
    _cleanup_(mf_freep) double *difference = calloc(room + 1, sizeof(*difference));
    if (!in || !score || !scratch || !difference)
        return -ENOMEM;
    struct race r = {
        .plan = plan,
        .seed = seed,
        .racers = racers,
        .weight = weight,
        .sample = sample,
        .context = context,
        .in = in,
        .score = score,
        .scratch = scratch,
        .difference = difference,
    };
    return race(&r, n, ret);
}
