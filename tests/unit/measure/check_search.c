/* Compares the race of the workers (measure/race/race.h) with exhaustive search in a simulation. The regret
 * is the winner's true time divided by the best true time, minus 1.
 *
 * one_device: 920 steps with true times 1 + 0.0004 i + 0.00002 i^1.5; two dozen steps are within 1 % of the
 * best. A call has 2 % noise, and one call in a hundred takes 20 % longer. The device drifts: each block of
 * calls shares a level, which follows an AR(1) process with coefficient 0.95 and standard deviation D. The
 * race may use 8,400 calls; exhaustive search with 100 calls per step needs 92,000.
 *
 * devices_of_a_class: several devices of slightly different speed. Every step is timed three times, each time
 * in a unit of 64 steps on any device. The best steps then race on one device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "kernels/core/philox.h"
#include "measure/race/race.h"

#include "support/mf_check.h"

#define N_STEPS   920
#define N_SEEDS   300
#define CALLS     8400
#define REGRET    0.0007
#define BLOCK     10 /* calls that share a drift level */
#define N_PROBES  3
#define UNIT      64
#define N_DEVICES 8
#define OFFSET    0.005 /* standard deviation of the devices' speed */

static const struct mf_race_plan full_plan = {
    .stages = {{3, 64}, {10, 24}, {40, 8}, {450, 8}}, .n_stages = 4, .fresh = 20, .alpha = 0.05};
static const struct mf_race_plan finalists_plan = {
    .stages = {{10, 24}, {40, 8}, {450, 8}}, .n_stages = 3, .fresh = 20, .alpha = 0.05};

struct device {
    uint64_t seed, calls;
    double drift, level, pace;
    const double *truth; /* true times by racer */
};

static double uniform(uint64_t seed, uint64_t a, uint64_t b)
{
    struct mf_philox4 p = mf_philox(seed, a, b);
    return ((double)p.v[0] + 0.5) / 4294967296.0;
}

static double normal(uint64_t seed, uint64_t a, uint64_t b)
{
    return sqrt(-2 * log(uniform(seed, 2 * a, b))) * cos(6.283185307179586 * uniform(seed, 2 * a + 1, b));
}

static double call(struct device *d, double truth)
{
    uint64_t k = d->calls++;
    if (k % BLOCK == 0)
        d->level = 0.95 * d->level + sqrt(1 - 0.95 * 0.95) * d->drift * normal(d->seed, k, 1);
    double us = 100 * truth * d->pace * (1 + d->level) * (1 + 0.02 * normal(d->seed, k, 2));
    return uniform(d->seed, k, 3) < 0.01 ? 1.2 * us : us;
}

static int sample(void *context, size_t i, int round, double *ret_us, char reason[MF_REASON_MAX])
{
    struct device *d = context;
    (void)round;
    (void)reason;
    *ret_us = call(d, d->truth[i]);
    return 0;
}

/* Draws the true times in random order, so that a rule that prefers certain ids gains nothing. */
static void make_truth(uint64_t seed, double truth[N_STEPS])
{
    for (int i = 0; i < N_STEPS; i++)
        truth[i] = 1 + 0.0004 * i + 0.00002 * pow(i, 1.5);
    for (int i = N_STEPS - 1; i > 0; i--) {
        int j = (int)(uniform(seed, (uint64_t)i, 77) * (i + 1));
        double swapped = truth[j];
        truth[j] = truth[i];
        truth[i] = swapped;
    }
}

static struct device make_device(uint64_t seed, uint64_t number, double drift, const double *truth)
{
    return (struct device){.seed = seed * 1000 + number, .drift = drift, .pace = 1, .truth = truth};
}

/* Races n racers. Returns the winner's index in d->truth. */
static size_t race(const struct mf_race_plan *plan, struct device *d, size_t n, int *ret_calls)
{
    size_t room = 600;
    _cleanup_(mf_freep) struct mf_racer *racers = calloc(n, sizeof(*racers));
    _cleanup_(mf_freep) double *samples = calloc(n * room, sizeof(*samples));
    struct mf_race_outcome outcome;
    ck_assert(racers && samples);
    for (size_t i = 0; i < n; i++)
        racers[i] =
            (struct mf_racer){.id = (int64_t)i + 1, .samples = samples + i * room, .status = MF_STATUS_OK};
    ck_assert_int_eq(mf_race_run(plan, d->seed, racers, NULL, n,
                                 &(struct mf_race_device){.sample = sample, .context = d}, &outcome),
                     0);
    *ret_calls = outcome.calls;
    return (size_t)outcome.won.winner - 1;
}

static const double drifts[] = {0, 0.002, 0.007};

static void judge(const char *what, double drift, double regret, double worst, int most_calls)
{
    printf("%s, D = %.1f %%: mean regret %.4f %%, worst %.3f %%, at most %d calls\n", what, 100 * drift,
           100 * regret, 100 * worst, most_calls);
    ck_assert_msg(regret <= REGRET, "%s, D = %.1f %%: mean regret %.4f %%, %d calls", what, 100 * drift,
                  100 * regret, most_calls);
    ck_assert_int_le(most_calls, CALLS);
}

MF_TEST(one_device, .rows = MF_ARRAY_LEN(drifts))
{
    static double truth[N_STEPS];
    double sum = 0, worst = 0;
    int most_calls = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        int calls;
        make_truth(seed, truth);
        struct device d = make_device(seed, 0, drifts[_i], truth);
        double regret = truth[race(&full_plan, &d, N_STEPS, &calls)] - 1;
        sum += regret;
        worst = fmax(worst, regret);
        most_calls = MF_MAX(most_calls, calls);
    }
    judge("one device", drifts[_i], sum / N_SEEDS, worst, most_calls);
}

struct probed {
    double us;
    int step;
};

static int by_time(const void *a, const void *b)
{
    const struct probed *x = a, *y = b;
    return (x->us > y->us) - (x->us < y->us);
}

MF_TEST(devices_of_a_class, .rows = MF_ARRAY_LEN(drifts))
{
    static double truth[N_STEPS], best[UNIT];
    double sum = 0, worst = 0;
    int most_calls = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct device d[N_DEVICES];
        struct probed probed[N_STEPS];
        int calls;
        make_truth(seed, truth);
        for (uint64_t k = 0; k < N_DEVICES; k++) {
            d[k] = make_device(seed, k, drifts[_i], truth);
            d[k].pace = 1 + OFFSET * normal(seed, k, 88);
        }
        for (int i = 0; i < N_STEPS; i++) {
            double us[N_PROBES];
            for (int k = 0; k < N_PROBES; k++)
                us[k] = call(&d[i / UNIT % N_DEVICES], truth[i]);
            probed[i] = (struct probed){mf_median(us, N_PROBES), i};
        }
        qsort(probed, N_STEPS, sizeof(*probed), by_time);
        for (int i = 0; i < UNIT; i++)
            best[i] = truth[probed[i].step];
        d[0].truth = best;
        double regret = best[race(&finalists_plan, &d[0], UNIT, &calls)] - 1;
        sum += regret;
        worst = fmax(worst, regret);
        most_calls = MF_MAX(most_calls, calls + N_PROBES * N_STEPS);
    }
    judge("devices of a class", drifts[_i], sum / N_SEEDS, worst, most_calls);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 240});
}
