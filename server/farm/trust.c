#include "server/farm/trust.h"

#include "common/base/log.h"
#include "common/base/text.h"
#include "server/choose/consensus.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define UNDONE_MAX 3
/* Maximum ln(measured / forecast); beyond a factor of 100 the measurement or the forecast is false. */
#define LOG_RATIO_MAX 4.6
/* Two workers confirm each other if their ratios differ by less than a factor of 2, their gaps of 4. */
#define RATIO_TOLERANCE 0.7
#define GAP_TOLERANCE   1.4
#define LOG_GAP_MAX     14 /* ln of one second in us */
/* A worker is odd if it claims more than this many times what the others claim, who agree within a factor of
 * 4. A busy host measures less bandwidth and a longer gap, but not a thousand times. The ceilings of GPUs of
 * one model differ by less than a factor of 3, busy or not. */
#define EXCESSIVE      1000.0
#define EXCESSIVE_GPU  3.0
#define FACT_TOLERANCE 1.4
#define LOG_FACT_MAX   100

/* ---- quarantine ---- */

static int quarantine(struct mf_farm *f, int64_t worker, const char *name, const char *reason)
{
    int r = mf_store_worker_quarantine(f->store, worker, reason);
    if (r < 0)
        return r;
    if (*reason)
        log_warn("quarantined worker %s: %s", name, reason);
    else
        log_info("revived worker %s", name);
    struct mf_slot *slot = mf_slots_by_id(&f->slots, worker);
    if (!slot)
        return 0;
    slot->quarantined = *reason != '\0';
    r = slot->quarantined ? mf_leases_release_worker(f, slot, true, "its worker was quarantined") : 0;
    if (r == 0)
        r = mf_peer_set_available(f, slot, mf_slot_is_available(slot));
    return r < 0 ? r : mf_event_worker(f, slot, mf_slot_state(slot));
}

/* Numbers of a device of which too high a value serves a false worker. */
enum { GAP, BANDWIDTH, PEAK, N_FACTS };
static const struct {
    const char *name, *unit;
} facts[N_FACTS] = {
    [GAP] = {"launch gap", "us"}, [BANDWIDTH] = {"memory bandwidth", "GB/s"}, [PEAK] = {"peak", "GFLOP/s"}};

/* The workers of a model name, by age. */
struct claims {
    const struct mf_slots *slots;
    struct {
        int64_t worker;
        char name[MF_WORKER_NAME_MAX];
        bool simulated, quarantined;
        double facts[N_FACTS]; /* NAN: not reported */
    } all[MF_CONSENSUS_MAX];
    int n, n_simulated;
    char model[101]; /* for messages */
    bool cpu;        /* the device is the CPU of a host */
};

/* Start of the reasons of quarantines that end when the majority changes. */
#define CLAIM_REASON "it claims that"

static int add_claim(void *context, const struct mf_worker_claim *row)
{
    struct claims *c = context;
    bool by_claim = strncmp(row->quarantined, CLAIM_REASON, strlen(CLAIM_REASON)) == 0;
    if (c->n == MF_CONSENSUS_MAX || (*row->quarantined && !by_claim))
        return 0;
    c->all[c->n].worker = row->worker;
    mf_format(c->all[c->n].name, sizeof(c->all[c->n].name), "%s", row->name);
    c->all[c->n].simulated = row->simulated;
    c->all[c->n].facts[GAP] = row->gap_us;
    c->all[c->n].facts[BANDWIDTH] = row->mem_read_gbs;
    c->all[c->n].facts[PEAK] = row->peak_gflops;
    /* BEAT may have raised the ceilings of a connected worker, and a later BEAT may claim less */
    const struct mf_slot *slot = mf_slots_by_id(c->slots, row->worker);
    if (slot) {
        c->all[c->n].facts[BANDWIDTH] = slot->ceilings.mem_read_gbs;
        c->all[c->n].facts[PEAK] = slot->ceilings.peak_gflops;
    }
    c->all[c->n].quarantined = by_claim;
    c->n_simulated += row->simulated;
    mf_format(c->model, sizeof(c->model), "%s", row->model);
    c->n++;
    return 0;
}

/* Returns the claim of most workers; if there are equally many, the claim of the oldest worker. */
static bool most_claim_simulated(const struct claims *c)
{
    int n_real = c->n - c->n_simulated;
    return c->n_simulated == n_real ? c->n > 0 && c->all[0].simulated : c->n_simulated > n_real;
}

/* Returns true and the reason if worker i claims far more than the other workers. Two of these must agree. */
static bool is_excessive(const struct claims *c, int i, char reason[MF_REASON_MAX])
{
    for (int k = 0; k < N_FACTS; k++) {
        double limit = log(k == GAP || c->cpu ? EXCESSIVE : EXCESSIVE_GPU);
        struct mf_consensus others = {.n = 0};
        double median, own = c->all[i].facts[k];
        for (int j = 0; j < c->n; j++) {
            if (j != i && c->all[j].simulated == c->all[i].simulated)
                mf_consensus_add(&others, log1p(c->all[j].facts[k]), LOG_FACT_MAX);
        }
        if (!mf_consensus_find(&others, false, FACT_TOLERANCE, &median) || !(log1p(own) - median > limit))
            continue;
        mf_format(reason, MF_REASON_MAX,
                  CLAIM_REASON " its %s is %.3g %s; the median of %zu other workers of the model is %.3g %s",
                  facts[k].name, own, facts[k].unit, others.n, expm1(median), facts[k].unit);
        return true;
    }
    return false;
}

/* Returns true and the reason if worker i disagrees with the other workers. simulated: the claim of most. */
static bool is_odd(const struct claims *c, int i, bool simulated, char reason[MF_REASON_MAX])
{
    if (c->all[i].simulated == simulated)
        return is_excessive(c, i, reason);
    mf_format(reason, MF_REASON_MAX,
              CLAIM_REASON " model %s is %s; %d of %d workers of this name, the oldest first, claim the"
                           " opposite",
              c->model, simulated ? "a real device" : "simulated",
              simulated ? c->n_simulated : c->n - c->n_simulated, c->n);
    return true;
}

int mf_trust_judge_model(struct mf_farm *f, const struct mf_slot *slot)
{
    struct claims c = {.slots = &f->slots, .cpu = mf_device_class_is_cpu(&slot->class)};
    int r = mf_store_worker_claims_each(f->store, slot->model_id, add_claim, &c);
    bool simulated = most_claim_simulated(&c);
    for (int i = 0; r == 0 && i < c.n; i++) {
        char reason[MF_REASON_MAX] = "";
        bool odd = is_odd(&c, i, simulated, reason);
        if (odd == c.all[i].quarantined)
            continue;
        r = quarantine(f, c.all[i].worker, c.all[i].name, reason);
    }
    return r;
}

int mf_farm_worker_revive(struct mf_farm *f, int64_t worker)
{
    char name[MF_WORKER_NAME_MAX];
    int r = mf_store_worker_quarantined(f->store, worker, name);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    return quarantine(f, worker, name, "");
}

int mf_trust_count_undone(struct mf_farm *f, const char *worker)
{
    int64_t id, n;
    int r = mf_store_worker_add_undone(f->store, worker, &id, &n);
    if (r <= 0 || n < UNDONE_MAX)
        return r < 0 ? r : 0;
    return quarantine(f, id, worker, "it sent messages that cannot be applied (see the log of moefarmd)");
}

/* ---- statistics ---- */

static int add_gap(void *context, double gap_us)
{
    mf_consensus_add(context, log1p(gap_us), LOG_GAP_MAX);
    return 0;
}

int mf_trust_gap_us(struct mf_farm *f, int64_t model, double *ret)
{
    struct mf_consensus c = {.n = 0};
    double log_gap;
    *ret = 0;
    int r = mf_store_gaps_each(f->store, model, add_gap, &c);
    if (r == 0 && mf_consensus_find(&c, true, GAP_TOLERANCE, &log_gap))
        *ret = expm1(log_gap);
    return r;
}

struct ratios {
    struct mf_consensus ratio, spread;
    int64_t worker;
};

static int add_ratio(void *context, int64_t worker, double log_ratio, double log_spread)
{
    struct ratios *s = context;
    mf_consensus_add(&s->ratio, log_ratio, LOG_RATIO_MAX);
    mf_consensus_add(&s->spread, log_spread, LOG_RATIO_MAX);
    s->worker = worker;
    return 0;
}

/* True if no other trusted worker of the model is connected or has results. */
static int is_alone(struct mf_farm *f, int64_t model, int64_t worker)
{
    for (size_t i = 0; i < f->slots.n; i++) {
        const struct mf_slot *slot = f->slots.all[i];
        if (slot->model_id == model && slot->id != worker && !slot->quarantined)
            return 0;
    }
    return mf_store_worker_is_alone(f->store, model, worker);
}

int mf_trust_ratio(struct mf_farm *f, int64_t model, const char *structure, int64_t before_ms,
                   double *ret_log_ratio, double *ret_log_spread)
{
    struct ratios s = {.worker = 0};
    *ret_log_ratio = *ret_log_spread = 0;
    int r = mf_store_ratios_each(f->store, model, structure, before_ms, add_ratio, &s);
    int alone = r == 0 && s.ratio.n == 1 ? is_alone(f, model, s.worker) : 0;
    if (r < 0 || alone < 0)
        return r < 0 ? r : alone;
    if (mf_consensus_find(&s.ratio, alone > 0, RATIO_TOLERANCE, ret_log_ratio) &&
        !mf_consensus_find(&s.spread, alone > 0, LOG_RATIO_MAX, ret_log_spread))
        *ret_log_spread = 0;
    return 0;
}
