#include "server/choose/halving.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The search measures at most one of this many points of a space. */
#define SPACE_DIVISOR 10
/* The first round has one of this many points, within bounds, and half as many if there are hints. */
#define FIRST_DIVISOR 40
#define FIRST_MIN     16
#define FIRST_MAX     64
#define ROUND_DIVISOR 80
#define ROUND_MIN     8
#define ROUND_MAX     32
#define SURVIVORS     8
#define SURVIVORS_MIN 3
/* points at most this many steps from a survivor are next to it */
#define NEAR_FACTOR 2

size_t mf_halving_max(size_t n)
{
    return n < MF_HALVING_LEAST ? n : MF_MAX(n / SPACE_DIVISOR, (size_t)MF_HALVING_LEAST / 2);
}

static size_t bounded(size_t n, size_t min, size_t max)
{
    return MF_MIN(MF_MAX(n, min), max);
}

/* A selection in progress. */
struct selection {
    const struct mf_halving *h;
    bool *taken; /* per point: measured or selected */
    size_t *ret, n, limit;
};

static void take(struct selection *s, size_t point)
{
    s->taken[point] = true;
    s->ret[s->n++] = point;
}

/* Key that orders equally good points, in another order for each seed. */
static uint64_t order_of(const struct selection *s, size_t point)
{
    return mf_hash64(&point, sizeof(point), s->h->seed);
}

static size_t count_measured(const struct mf_halving *h)
{
    size_t n = 0;
    for (size_t i = 0; i < h->points->n; i++)
        n += h->us[i] > 0;
    return n;
}

/* ---- first round ---- */

static size_t take_hinted(struct selection *s)
{
    size_t n = 0;
    for (size_t i = 0; s->h->hinted && i < s->h->points->n; i++) {
        n += s->h->hinted[i];
        if (s->h->hinted[i] && !s->taken[i] && s->n < s->limit)
            take(s, i);
    }
    return n;
}

/* Updates each point's distance to the nearest taken point after `point` was taken. */
static void update_nearest(const struct selection *s, double *nearest, size_t point)
{
    for (size_t i = 0; i < s->h->points->n; i++)
        nearest[i] = fmin(nearest[i], mf_points_distance(s->h->points, i, point));
}

/* Returns the point that is farthest from all taken points. */
static size_t farthest(const struct selection *s, const double *nearest)
{
    size_t best = s->h->points->n;
    for (size_t i = 0; i < s->h->points->n; i++) {
        if (s->taken[i])
            continue;
        if (best == s->h->points->n || nearest[i] > nearest[best] ||
            (nearest[i] == nearest[best] && order_of(s, i) < order_of(s, best)))
            best = i;
    }
    return best;
}

/* Takes n points, each as far as possible from all taken ones. */
static int take_spread(struct selection *s, size_t n)
{
    _cleanup_(mf_freep) double *nearest = malloc(s->h->points->n * sizeof(*nearest));
    if (!nearest)
        return -ENOMEM;
    for (size_t i = 0; i < s->h->points->n; i++)
        nearest[i] = INFINITY;
    for (size_t i = 0; i < s->h->points->n; i++) {
        if (s->taken[i])
            update_nearest(s, nearest, i);
    }
    for (; n > 0 && s->n < s->limit; n--) {
        take(s, farthest(s, nearest));
        update_nearest(s, nearest, s->ret[s->n - 1]);
    }
    return 0;
}

/* ---- later rounds ---- */

/* One of the fastest points. */
struct survivor {
    int *steps; /* per point: number of steps from the survivor */
    int reach;  /* points at most this many steps away are next to it */
};

/* Fills in the number of steps from `point` to each point. Returns the smallest number to another point: 2 if
 * each parameter occurs twice in the names. */
static int measure_steps(const struct mf_points *p, size_t point, int *steps)
{
    int least = INT16_MAX;
    for (size_t i = 0; i < p->n; i++) {
        steps[i] = mf_points_steps(p, i, point);
        if (steps[i] > 0 && steps[i] < least)
            least = steps[i];
    }
    return least;
}

static bool is_near(const struct survivor *survivors, size_t n, size_t point)
{
    size_t i = 0;
    while (i < n && survivors[i].steps[point] > survivors[i].reach)
        i++;
    return i < n;
}

/* Returns the fastest measured point that is not near a survivor, or the number of points. */
static size_t next_survivor(const struct mf_halving *h, const struct survivor *survivors, size_t n)
{
    size_t best = h->points->n;
    for (size_t i = 0; i < h->points->n; i++) {
        if (h->us[i] > 0 && isfinite(h->us[i]) && (best == h->points->n || h->us[i] < h->us[best]) &&
            !is_near(survivors, n, i))
            best = i;
    }
    return best;
}

/* steps: room for max numbers per point */
static size_t pick_survivors(const struct mf_halving *h, size_t max, int *steps, struct survivor *ret)
{
    size_t n = 0;
    for (; n < max; n++) {
        size_t point = next_survivor(h, ret, n);
        if (point == h->points->n)
            break;
        ret[n].steps = steps + n * h->points->n;
        ret[n].reach = NEAR_FACTOR * measure_steps(h->points, point, ret[n].steps);
    }
    return n;
}

/* Takes the untaken point nearest to the survivor. Returns false if no untaken point is within its reach. */
static bool take_nearest(struct selection *s, const struct survivor *of)
{
    size_t n = s->h->points->n, best = n;
    int best_steps = of->reach + 1;
    for (size_t i = 0; i < n; i++) {
        int steps = s->taken[i] ? INT_MAX : of->steps[i];
        bool ties = best < n && steps == best_steps;
        if (steps < best_steps || (ties && order_of(s, i) < order_of(s, best))) {
            best = i;
            best_steps = steps;
        }
    }
    if (best < n)
        take(s, best);
    return best < n;
}

/* Takes a point next to each survivor in turn, until the limit is reached or all of these are taken. */
static int take_near(struct selection *s, size_t n_survivors)
{
    struct survivor survivors[SURVIVORS];
    _cleanup_(mf_freep) int *steps = calloc(s->h->points->n + 1, n_survivors * sizeof(*steps));
    if (!steps)
        return -ENOMEM;
    size_t n = pick_survivors(s->h, n_survivors, steps, survivors);
    for (bool more = true; more && s->n < s->limit;) {
        more = false;
        for (size_t i = 0; i < n && s->n < s->limit; i++)
            more |= take_nearest(s, &survivors[i]);
    }
    return 0;
}

static int later_round(struct selection *s, size_t n_measured, size_t n_first)
{
    size_t n_points = s->h->points->n, n_round = bounded(n_points / ROUND_DIVISOR, ROUND_MIN, ROUND_MAX);
    size_t rounds = (n_measured - n_first) / n_round;
    s->limit = MF_MIN(s->limit, n_round);
    return take_near(s, MF_MAX((size_t)SURVIVORS >> MF_MIN(rounds, (size_t)8), (size_t)SURVIVORS_MIN));
}

int mf_halving_next(const struct mf_halving *h, size_t limit, size_t *ret, size_t *ret_n)
{
    const size_t n = h->points->n, n_measured = count_measured(h), max = mf_halving_max(n);
    size_t n_first = bounded(n / FIRST_DIVISOR, FIRST_MIN, FIRST_MAX);
    _cleanup_(mf_freep) bool *taken = calloc(n + 1, sizeof(*taken));
    if (!taken)
        return -ENOMEM;
    struct selection s = {.h = h, .taken = taken, .ret = ret};
    s.limit = max > n_measured ? MF_MIN(limit, max - n_measured) : 0;
    for (size_t i = 0; i < n; i++)
        taken[i] = h->us[i] > 0;
    size_t n_hinted = take_hinted(&s);
    if (n_hinted > 0)
        n_first = MF_MAX(n_first / 2, n_hinted);
    if (n < MF_HALVING_LEAST)
        n_first = n;
    int r = 0;
    if (n_measured >= n_first)
        r = later_round(&s, n_measured, n_first);
    else if (n_measured + s.n < n_first)
        r = take_spread(&s, n_first - n_measured - s.n);
    *ret_n = s.n;
    return r;
}
