/* Races over a simulated landscape: a sample is a pure function of (seed, racer, sample index). */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "kernels/core/philox.h"
#include "measure/race/race.h"

#include "support/mf_check.h"

#define N_RACERS 60
#define ROOM     512
#define N_SEEDS  1000

struct landscape {
    uint64_t seed;
    double sigma, outliers, drift;
    double spikes; /* fraction of calls slowed by a disturbance, by up to 4x */
    double truth[N_RACERS];
    int racer_calls[N_RACERS];
    double level; /* current drift, updated at each call */
    uint64_t calls;
    double sigma_of[N_RACERS]; /* replaces sigma for one racer; 0: no replacement */
    int fails_at[N_RACERS];    /* number of the call at which the racer fails; 0: no call */
    int fails_with;
    int spike_at[N_RACERS]; /* number of the call at which the racer takes twice its time; 0: no call */
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

static int sample(void *context, size_t i, int round, double *ret_us, char reason[MF_REASON_MAX])
{
    struct landscape *l = context;
    int k = ++l->racer_calls[i];
    (void)round;
    if (l->fails_at[i] == k) {
        if (l->fails_with > 0)
            strcpy(reason, "planted");
        return l->fails_with;
    }
    l->level = 0.995 * l->level + 0.1 * l->drift * normal(l->seed, l->calls++, 900);
    double sigma = l->sigma_of[i] > 0 ? l->sigma_of[i] : l->sigma;
    double us = l->truth[i] * (1 + l->level) * (1 + sigma * normal(l->seed, (uint64_t)k, i));
    if (uniform(l->seed, (uint64_t)k, 1000 + i) < l->outliers)
        us *= 1.2;
    if (uniform(l->seed, (uint64_t)k, 2000 + i) < l->spikes)
        us *= 1 + 3 * uniform(l->seed, (uint64_t)k, 3000 + i);
    *ret_us = l->spike_at[i] == k ? 2 * us : us;
    return 0;
}

/* The best racer takes 100 us. One racer in six is within 1 % of it, and the other racers take up to twice as
 * long. */
static void make_landscape(struct landscape *l, uint64_t seed)
{
    *l = (struct landscape){.seed = seed, .sigma = 0.02, .outliers = 0.01, .drift = 0.007};
    for (int i = 0; i < N_RACERS; i++) {
        double u = uniform(seed, (uint64_t)i, 5000);
        l->truth[i] = i % 6 == 0 ? 100 * (1 + 0.01 * u) : 101 * (1 + u);
    }
    l->truth[(int)(uniform(seed, 0, 6000) * N_RACERS)] = 100;
}

struct entry {
    struct mf_racer racers[N_RACERS];
    double samples[N_RACERS][ROOM];
    struct mf_race_outcome outcome;
};

static const struct mf_race_plan plan = {
    .stages = {{2, 48}, {5, 16}, {15, 8}, {100, 8}}, .n_stages = 4, .fresh = 20, .alpha = 0.05};

static void enter(struct entry *e, size_t n)
{
    memset(e, 0, sizeof(*e));
    for (size_t i = 0; i < n; i++)
        e->racers[i] =
            (struct mf_racer){.id = 1000 + (int64_t)i, .samples = e->samples[i], .status = MF_STATUS_OK};
}

static int run(struct landscape *l, struct entry *e, size_t n, const int *weight)
{
    enter(e, n);
    return mf_race_run(&plan, l->seed, e->racers, weight, n,
                       &(struct mf_race_device){.sample = sample, .context = l}, &e->outcome);
}

MF_TEST(regret_is_small)
{
    static struct entry e;
    double sum = 0, worst = 0, bias = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct landscape l;
        make_landscape(&l, seed);
        ck_assert_int_eq(run(&l, &e, N_RACERS, NULL), 0);
        double best = INFINITY, won = l.truth[e.outcome.won.winner - 1000];
        for (int i = 0; i < N_RACERS; i++)
            best = fmin(best, l.truth[i]);
        sum += won / best - 1;
        worst = fmax(worst, won / best - 1);
        bias += e.outcome.won.us / won - 1;
        /* most racers drop out early: 60 racers with 122 rounds each would be 7,320 calls */
        ck_assert_int_le(e.outcome.calls, 1800);
    }
    ck_assert_msg(sum / N_SEEDS <= 0.002, "mean regret %.3f%%, worst %.3f%%", sum / N_SEEDS * 100,
                  worst * 100);
    ck_assert_msg(worst <= 0.012, "worst regret %.3f%%", worst * 100);
    /* the fresh samples are an unbiased estimate of the winner's time */
    ck_assert_msg(fabs(bias / N_SEEDS) <= 0.002, "bias %.3f%%", bias / N_SEEDS * 100);
}

/* On a shared machine one call in four takes up to four times as long. A race of long calls has few rounds,
 * and most racers drop out after two rounds. A score that one disturbed call can spoil would drop the best of
 * these 30 racers, which lie within 33 % of each other. */
MF_TEST(regret_is_small_with_disturbed_calls)
{
    static struct entry e;
    const struct mf_race_plan few = {
        .stages = {{2, 5}, {3, 2}, {6, 2}}, .n_stages = 3, .fresh = 5, .alpha = 0.05};
    const size_t n = 30;
    double sum = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct landscape l;
        make_landscape(&l, seed);
        l.sigma = 0.01;
        l.spikes = 0.25;
        for (size_t i = 0; i < n; i++)
            l.truth[i] = 100 * (1 + 0.33 * (double)i / (double)n);
        enter(&e, n);
        ck_assert_int_eq(mf_race_run(&few, seed, e.racers, NULL, n,
                                     &(struct mf_race_device){.sample = sample, .context = &l}, &e.outcome),
                         0);
        sum += l.truth[e.outcome.won.winner - 1000] / 100 - 1;
    }
    printf("disturbed calls: mean regret %.3f %%\n", sum / N_SEEDS * 100);
    ck_assert_msg(sum / N_SEEDS <= 0.018, "mean regret %.3f%%", sum / N_SEEDS * 100);
}

/* The same seed gives the same outcome and the same samples, bit for bit. */
MF_TEST(race_is_deterministic)
{
    static struct entry a, b;
    struct landscape l;
    make_landscape(&l, 77);
    ck_assert_int_eq(run(&l, &a, N_RACERS, NULL), 0);
    make_landscape(&l, 77);
    ck_assert_int_eq(run(&l, &b, N_RACERS, NULL), 0);
    ck_assert_mem_eq(&a.outcome, &b.outcome, sizeof(a.outcome));
    ck_assert_mem_eq(a.samples, b.samples, sizeof(a.samples));
}

static const struct {
    int with;
    enum mf_status status;
    const char *reason;
} failures[] = {
    {MF_STATUS_WRONG, MF_STATUS_WRONG, "planted"},
    {MF_STATUS_IMPLAUSIBLE, MF_STATUS_IMPLAUSIBLE, "planted"},
    {-ENOMEM, MF_STATUS_UNSUPPORTED, "Cannot allocate memory"},
};

/* The fastest racer fails at its n-th call, in a round or in the fresh measurement. It drops out, and another
 * racer wins. */
MF_TEST(failed_racer_is_out, .rows = MF_ARRAY_LEN(failures))
{
    static struct entry e;
    static const int at[] = {1, 8, 60, 125, 135};
    for (size_t i = 0; i < MF_ARRAY_LEN(at); i++) {
        struct landscape l;
        make_landscape(&l, 5);
        l.truth[7] = 90;
        l.fails_at[7] = at[i];
        l.fails_with = failures[_i].with;
        ck_assert_int_eq(run(&l, &e, N_RACERS, NULL), 0);
        ck_assert_int_eq(e.racers[7].status, failures[_i].status);
        ck_assert_msg(strstr(e.racers[7].reason, failures[_i].reason), "%s", e.racers[7].reason);
        ck_assert_int_ne(e.outcome.won.winner, 1007);
        ck_assert_double_gt(e.outcome.won.us, 95);
        for (size_t t = 0; t < e.outcome.won.n_ties; t++)
            ck_assert_int_ne(e.outcome.won.ties[t], 1007);
    }
}

/* The winner fails in its last fresh sample. The runner-up is then measured afresh from the first sample on,
 * within the same sample buffer. */
MF_TEST(runner_up_replaces_failed_winner)
{
    static struct entry e;
    struct landscape l = {.seed = 3, .sigma = 0.001};
    for (int i = 0; i < 3; i++)
        l.truth[i] = 50;
    ck_assert_int_eq(run(&l, &e, 3, NULL), 0);
    int winner = (int)(e.outcome.won.winner - 1000);
    memset(l.racer_calls, 0, sizeof(l.racer_calls));
    l.calls = 0;
    l.fails_at[winner] = e.outcome.rounds + plan.fresh;
    l.fails_with = MF_STATUS_WRONG;
    ck_assert_int_eq(run(&l, &e, 3, NULL), 0);
    ck_assert_int_ne(e.outcome.won.winner, 1000 + winner);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(e.racers[i].n_rounds, (size_t)e.outcome.rounds);
        ck_assert_uint_le(e.racers[i].n_samples, (size_t)(e.outcome.rounds + plan.fresh));
    }
}

/* Two groups in one race; the racers of the second group take 1.5 times as long. In two cases all racers of
 * one group fail. Each group has the same winner as in a race of its own. The winner of the race is the
 * winner of the first group, or of the second group if the first group has no winner. */
static const struct {
    int fails;      /* group whose racers all fail in their first round; -1: none */
    int64_t won[2]; /* 0: no winner */
} group_cases[] = {{-1, {1002, 1014}}, {0, {0, 1014}}, {1, {1002, 0}}};

MF_TEST(each_group_has_a_winner, .rows = MF_ARRAY_LEN(group_cases))
{
    static struct entry e;
    struct landscape l = {.seed = 5, .sigma = 0.005};
    memset(&e, 0, sizeof(e));
    for (int i = 0; i < 20; i++) {
        int group = i / 10;
        l.truth[i] = (group ? 150 : 100) * (i == 2 || i == 14 ? 1 : 1.1);
        l.fails_at[i] = group == group_cases[_i].fails;
        e.racers[i] = (struct mf_racer){
            .id = 1000 + i, .group = group, .samples = e.samples[i], .status = MF_STATUS_OK};
    }
    l.fails_with = MF_STATUS_WRONG;
    ck_assert_int_eq(mf_race_run(&plan, l.seed, e.racers, NULL, 20,
                                 &(struct mf_race_device){.sample = sample, .context = &l}, &e.outcome),
                     0);
    ck_assert_uint_eq(e.outcome.n_groups, 2);
    for (int k = 0; k < 2; k++) {
        const struct mf_race_won *won = &e.outcome.groups[k];
        ck_assert_int_eq(won->winner, group_cases[_i].won[k]);
        if (!won->winner)
            continue;
        const struct mf_racer *w = &e.racers[won->winner - 1000];
        ck_assert_double_eq_tol(won->us, k ? 150 : 100, 0.5);
        ck_assert_uint_eq(w->n_rounds, (size_t)e.outcome.rounds);
        ck_assert_uint_eq(w->n_samples - w->n_rounds, (size_t)plan.fresh);
        for (size_t t = 0; t < won->n_ties; t++)
            ck_assert_int_eq(e.racers[won->ties[t] - 1000].group, k);
    }
    ck_assert_int_eq(e.outcome.won.winner, group_cases[_i].won[group_cases[_i].fails == 0]);
}

MF_TEST(all_racers_fail)
{
    static struct entry e;
    struct landscape l;
    make_landscape(&l, 5);
    l.fails_with = MF_STATUS_WRONG;
    for (int i = 0; i < 3; i++)
        l.fails_at[i] = i + 1;
    ck_assert_int_eq(run(&l, &e, 3, NULL), -ENOENT);
    ck_assert_int_eq(run(&l, &e, 0, NULL), -ENOENT);
}

MF_TEST(single_racer_wins)
{
    static struct entry e;
    struct landscape l;
    make_landscape(&l, 5);
    ck_assert_int_eq(run(&l, &e, 1, NULL), 0);
    ck_assert_int_eq(e.outcome.won.winner, 1000);
    ck_assert_uint_eq(e.outcome.won.n_ties, 0);
    ck_assert_int_eq(e.outcome.rounds, 122);
    ck_assert_uint_eq(e.racers[0].n_samples, 142);
}

/* Racers of equal time without noise are all tied. The stable rule picks the fewest steps, then the smallest
 * id. */
MF_TEST(stable_rule_breaks_ties)
{
    static struct entry e;
    static const int weight[5] = {4, 3, 2, 3, 2};
    struct landscape l = {.seed = 3};
    for (int i = 0; i < 5; i++)
        l.truth[i] = 50;
    ck_assert_int_eq(run(&l, &e, 5, weight), 0);
    ck_assert_int_eq(e.outcome.won.winner, 1002);
    ck_assert_uint_eq(e.outcome.won.n_ties, 4);
    ck_assert_int_eq(run(&l, &e, 5, NULL), 0);
    ck_assert_int_eq(e.outcome.won.winner, 1000);
}

/* Of two racers with equal time, the racer with less spread wins, although it has the larger id and more
 * steps. */
MF_TEST(less_spread_wins)
{
    static struct entry e;
    static const int weight[2] = {1, 2};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct landscape l = {.seed = seed, .truth = {50, 50}, .sigma_of = {0.003, 0.0003}};
        ck_assert_int_eq(run(&l, &e, 2, weight), 0);
        ck_assert_int_eq(e.outcome.won.winner, 1001);
    }
}

MF_TEST(drop_round_is_recorded)
{
    static struct entry e;
    struct landscape l;
    make_landscape(&l, 9);
    ck_assert_int_eq(run(&l, &e, N_RACERS, NULL), 0);
    int early = 0, to_the_end = 0;
    for (int i = 0; i < N_RACERS; i++) {
        const struct mf_racer *r = &e.racers[i];
        ck_assert_int_eq(r->status, MF_STATUS_OK);
        if (r->dropped_at > 0 && r->dropped_at < e.outcome.rounds)
            ck_assert_uint_eq(r->n_samples, (size_t)r->dropped_at);
        early += r->dropped_at == 2;
        to_the_end += r->dropped_at == 0;
    }
    ck_assert_int_ge(early, N_RACERS - 48);
    ck_assert_int_eq(to_the_end, (int)e.outcome.won.n_ties + 1);
}

/* Time relative to the fastest racer, and the round after which such a racer drops out; 0: only the
 * statistical test can drop it. */
static const struct {
    double times;
    int dropped_at;
} far_behind[] = {{1.2, 0}, {1.45, 0}, {1.55, 2}, {2.9, 2}, {3.1, 1}, {50, 1}};

MF_TEST(far_behind_drops_early, .rows = MF_ARRAY_LEN(far_behind))
{
    static struct entry e;
    static const struct mf_race_plan few = {.stages = {{4, N_RACERS}}, .n_stages = 1, .alpha = 1e-9};
    struct landscape l = {.seed = 11};
    memset(&e, 0, sizeof(e));
    for (int i = 0; i < 3; i++) {
        l.truth[i] = i == 1 ? 70 * far_behind[_i].times : 70;
        e.racers[i] = (struct mf_racer){.id = i + 1, .samples = e.samples[i], .status = MF_STATUS_OK};
    }
    ck_assert_int_eq(mf_race_run(&few, 1, e.racers, NULL, 3,
                                 &(struct mf_race_device){.sample = sample, .context = &l}, &e.outcome),
                     0);
    if (far_behind[_i].dropped_at > 0)
        ck_assert_int_eq(e.racers[1].dropped_at, far_behind[_i].dropped_at);
    else
        ck_assert_uint_eq(e.racers[1].n_samples, 4);
}

/* With option "all", no racer drops out. Both the last racer and a racer fifty times slower than the fastest
 * have a sample of every round. */
MF_TEST(all_option_keeps_every_racer)
{
    static struct entry e;
    _cleanup_(cJSON_Deletep) cJSON *json =
        cJSON_Parse("{\"rounds\":[{\"rounds\":30,\"keep\":1}],\"fresh\":0,\"alpha\":0.05,\"all\":true}");
    struct landscape l = {.seed = 11};
    struct mf_race_plan stays;
    const char *field;
    memset(&e, 0, sizeof(e));
    ck_assert_int_eq(mf_race_plan_parse(json, &stays, &field), 0);
    for (int i = 0; i < 3; i++) {
        l.truth[i] = i == 1 ? 3500 : 70 + i;
        e.racers[i] = (struct mf_racer){.id = i + 1, .samples = e.samples[i], .status = MF_STATUS_OK};
    }
    ck_assert_int_eq(mf_race_run(&stays, 1, e.racers, NULL, 3,
                                 &(struct mf_race_device){.sample = sample, .context = &l}, &e.outcome),
                     0);
    ck_assert_int_eq(e.outcome.rounds, 30);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(e.racers[i].n_samples, 30);
}

/* One bad sample does not decide a race: the fastest racer wins although its first call is disturbed. */
MF_TEST(one_bad_sample_is_forgiven)
{
    static struct entry e;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct landscape l;
        make_landscape(&l, seed);
        l.truth[3] = 80;
        l.spike_at[3] = 1;
        ck_assert_int_eq(run(&l, &e, N_RACERS, NULL), 0);
        ck_assert_int_eq(e.outcome.won.winner, 1003);
    }
}

/* ---- disturbances ---- */

/* A device that is disturbed by a factor from a given call on, until the race has settled often enough. */
struct disturbed {
    struct landscape l;
    double factor;
    int from, n_calls; /* number of the first disturbed call; number of calls so far */
    bool only_fresh;   /* only reruns are disturbed */
    bool is_seen;      /* the canary shows the disturbance */
    int n_settled, ends_after;
};

static bool is_disturbed(const struct disturbed *d)
{
    return d->n_calls >= d->from && d->n_settled < d->ends_after;
}

static int disturbed_sample(void *context, size_t i, int round, double *ret_us, char reason[MF_REASON_MAX])
{
    struct disturbed *d = context;
    d->n_calls++;
    int r = sample(&d->l, i, round, ret_us, reason);
    if (is_disturbed(d) && (round == MF_RACE_FRESH || !d->only_fresh))
        *ret_us *= d->factor;
    return r;
}

static bool disturbed_is_calm(void *context)
{
    const struct disturbed *d = context;
    return !d->is_seen || !is_disturbed(d);
}

static void disturbed_settle(void *context)
{
    ((struct disturbed *)context)->n_settled++;
}

/* The race has 3 racers and 22 rounds; the rerun has 9 rounds. */
/* clang-format off */
static const struct {
    double factor;
    int from;
    bool only_fresh, is_seen;
    int ends_after;     /* number of waits after which the disturbance is over */
    int tries, repeated;
    double us;          /* the winner's time */
    const char *unstable;
} disturbances[] = {
    /* the host is busy during the rerun, which the canary cannot see: the first, second or every rerun */
    {2.4, 0, true, false, 0,   1, 0, 100, ""},
    {2.4, 0, true, false, 1,   2, 0, 100, ""},
    {2.4, 0, true, false, 2,   3, 0, 100, ""},
    {2.4, 0, true, false, 99,  3, 0, 240, "after 3 reruns: the median of the rerun (240."},
    {0.4, 0, true, false, 99,  3, 0, 40,  "after 3 reruns: the median of the rerun (40.0"},
    /* the disturbance begins within the rerun */
    {2.4, 22 * 3 + 3, true, false, 1,  2, 0, 100, ""},
    {2.4, 22 * 3 + 3, true, false, 99, 3, 0, 240, "after 3 reruns: "},
    /* the canary shows a disturbance of the first round, of a later round and of the rerun */
    {2.4, 0,           false, true, 2, 1, 1, 100, ""},
    {2.4, 30,          false, true, 3, 1, 3, 100, ""},
    {2.4, 22 * 3 + 3, false, true, 1, 1, 1, 100, ""},
    /* the device never becomes calm */
    {2.4, 22 * 3 + 3, false, true, 99, 3, MF_RACE_REPEATS_MAX, 240,
     "after 3 reruns: the canary was slow after 9 of 9 rounds of the rerun"},
};
/* clang-format on */

MF_TEST(disturbed_rounds_are_repeated, .rows = MF_ARRAY_LEN(disturbances))
{
    static struct entry e;
    static const struct mf_race_plan few = {.stages = {{22, 3}}, .n_stages = 1, .fresh = 9, .alpha = 0.05};
    struct disturbed d = {.l = {.seed = 7, .sigma = 0.002, .truth = {101, 100, 102}},
                          .factor = disturbances[_i].factor,
                          .from = disturbances[_i].from,
                          .only_fresh = disturbances[_i].only_fresh,
                          .is_seen = disturbances[_i].is_seen,
                          .ends_after = disturbances[_i].ends_after};
    const struct mf_race_device device = {disturbed_sample, disturbed_is_calm, disturbed_settle, &d};
    enter(&e, 3);
    ck_assert_int_eq(mf_race_run(&few, 7, e.racers, NULL, 3, &device, &e.outcome), 0);
    const struct mf_race_won *won = &e.outcome.won;
    ck_assert_int_eq(won->winner, 1001);
    ck_assert_double_eq_tol(won->us, disturbances[_i].us, disturbances[_i].us * 0.01);
    ck_assert_msg(strncmp(won->unstable, disturbances[_i].unstable, strlen(disturbances[_i].unstable)) == 0,
                  "%s", won->unstable);
    ck_assert_int_eq(won->unstable[0] == 0, disturbances[_i].unstable[0] == 0);
    ck_assert_int_eq(won->tries, disturbances[_i].tries);
    ck_assert_int_eq(e.outcome.repeated, disturbances[_i].repeated);
    ck_assert_int_eq(e.outcome.rounds, 22);
    ck_assert_uint_eq(e.racers[1].n_rounds, 22);
    ck_assert_uint_eq(e.racers[1].n_samples, 31);
}

static const struct {
    const char *json, *field;
} bad_plans[] = {
    {"[]", "plan"},
    {"{}", "plan.rounds"},
    {"{\"rounds\":[]}", "plan.rounds"},
    {"{\"rounds\":[{\"rounds\":0,\"keep\":3}]}", "plan.rounds[].rounds"},
    {"{\"rounds\":[{\"rounds\":1}]}", "plan.rounds[].keep"},
    {"{\"rounds\":[{\"rounds\":1,\"keep\":1}],\"fresh\":-1}", "plan.fresh"},
    {"{\"rounds\":[{\"rounds\":1,\"keep\":1}],\"alpha\":2}", "plan.alpha"},
    {"{\"rounds\":[{\"rounds\":1,\"keep\":1}],\"all\":1}", "plan.all"},
};

MF_TEST(bad_plan, .rows = MF_ARRAY_LEN(bad_plans))
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(bad_plans[_i].json);
    struct mf_race_plan p;
    const char *field;
    ck_assert_int_eq(mf_race_plan_parse(json, &p, &field), -EINVAL);
    ck_assert_str_eq(field, bad_plans[_i].field);
}

MF_TEST(good_plan)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(
        "{\"rounds\":[{\"rounds\":10,\"keep\":24},{\"rounds\":30,\"keep\":8}],\"fresh\":15,\"alpha\":0.1}");
    struct mf_race_plan p;
    const char *field;
    ck_assert_int_eq(mf_race_plan_parse(json, &p, &field), 0);
    ck_assert_int_eq(p.n_stages, 2);
    ck_assert_int_eq(p.stages[1].rounds, 30);
    ck_assert_int_eq(p.stages[1].keep, 8);
    ck_assert_int_eq(p.fresh, 15);
    ck_assert(p.alpha > 0.099 && p.alpha < 0.101);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
