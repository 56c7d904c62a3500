#include "measure/session/prune.h"

#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/consumer.h"

/* a step slower than this multiple of its layout's best time needs no further samples */
#define LAYOUT_FACTOR 1.05
/* a step slower than the limit needs a second run, unless its time exceeds this multiple of the best time */
#define RERUN_FACTOR 3.0
#define HANG_FACTOR  20.0 /* silence limit of a run, as a multiple of the best time of the step's kind */
#define HANG_MIN_MS  2000.0

/* A step is dropped if its time exceeds a factor times the best time of a group. The factor is smaller for
 * long runs, because they vary less. If several rules apply, the smallest limit in microseconds decides. */
static const struct {
    size_t best_at; /* offset of the group's time in struct mf_prune */
    double from_us; /* the rule applies if the group's best time is at least this long */
    double factor;
    const char *rivals;
} rules[] = {
    {offsetof(struct mf_prune, kind_us), 0, 2.0, "of its kind"},
    {offsetof(struct mf_prune, kind_us), 1000, 1.5, "of its kind"},
    {offsetof(struct mf_prune, interface_us), 0, 1.25, "with the same ops and tensor specs"},
};

/* ---- groups ---- */

/* Hashes the ops, and which consumer dispatches the step: libfmoe dispatches our steps, AITER those of its
 * generators, and each other program only its own. */
static uint64_t hash_ops(const struct mf_step *step, uint64_t h)
{
    const char *consumer = !step->foreign ? "" : step->aiter ? "aiter" : step->family;
    return mf_hash64(&step->covers, sizeof(step->covers), mf_hash64(consumer, strlen(consumer), h));
}

static uint64_t hash_kind(const struct mf_step *step)
{
    uint64_t h = hash_ops(step, MF_HASH_SEED);
    for (int i = 0; i < step->n_needs + step->n_gives; i++) {
        const struct mf_tensor_spec *a =
            i < step->n_needs ? &step->needs[i] : &step->gives[i - step->n_needs];
        int part[5] = {i < step->n_needs, (int)a->tensor, (int)a->format, (int)a->scale, a->zeroed};
        h = mf_hash64(part, sizeof(part), h);
    }
    return h;
}

static uint64_t hash_tensor_spec(const struct mf_tensor_spec *a, uint64_t h)
{
    int part[5] = {(int)a->tensor, (int)a->format, (int)a->scale, a->zeroed, a->block};
    return mf_hash64(a->order, strlen(a->order), mf_hash64(part, sizeof(part), h));
}

static uint64_t hash_interface(const struct mf_step *step)
{
    uint64_t h = hash_ops(step, MF_HASH_SEED + 1);
    for (int i = 0; i < step->n_needs; i++)
        h = hash_tensor_spec(&step->needs[i], h);
    for (int i = 0; i < step->n_gives; i++)
        h = hash_tensor_spec(&step->gives[i], h);
    return h;
}

static uint64_t hash_layout(const struct mf_step *step, uint64_t kind)
{
    uint64_t h = mf_hash64(&kind, sizeof(kind), MF_HASH_SEED + 2);
    for (int i = 0; i < step->n_needs; i++) {
        if (mf_tensor_spec_is_weight(&step->needs[i]))
            h = hash_tensor_spec(&step->needs[i], h);
    }
    return h;
}

struct mf_prune_keys mf_prune_keys(const struct mf_step *step)
{
    uint64_t kind = hash_kind(step);
    return (struct mf_prune_keys){
        .kind = kind, .interface = hash_interface(step), .layout = hash_layout(step, kind)};
}

/* ---- best times ---- */

double mf_prune_best(const struct mf_prune_bests *bests, uint64_t key)
{
    for (size_t i = 0; i < bests->n; i++) {
        if (bests->all[i].key == key)
            return bests->all[i].us;
    }
    return 0;
}

static void note(struct mf_prune_bests *bests, uint64_t key, double us)
{
    for (size_t i = 0; i < bests->n; i++) {
        if (bests->all[i].key == key) {
            bests->all[i].us = fmin(bests->all[i].us, us);
            return;
        }
    }
    if (bests->n == MF_PRUNE_BESTS_MAX)
        return;
    bests->all[bests->n].key = key;
    bests->all[bests->n++].us = us;
}

void mf_prune_note(struct mf_prune_bests *bests, const struct mf_prune_keys *keys, double us)
{
    note(bests, keys->kind, us);
    note(bests, keys->interface, us);
    note(bests, keys->layout, us);
}

/* ---- decisions ---- */

/* A consumer's table must beat the step that the consumer runs without the table: its time must be known. */
static bool is_default(const struct mf_step *step)
{
    const struct mf_consumer_step s = mf_consumer_step(step);
    return mf_consumer_any_default(&s);
}

/* Returns the smaller of two times. A time of 0 is unknown. */
static double known_min(double a, double b)
{
    return a <= 0 ? b : b <= 0 ? a : fmin(a, b);
}

struct mf_prune mf_prune_start(const struct mf_prune_bests *bests, const struct mf_prune_keys *keys,
                               const struct mf_step *step, double caller_best_us, bool exhaustive)
{
    const mf_ops gemms = MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2);
    /* The caller's best times are those of our steps, keyed only by the covered ops. They do not apply to
     * steps that cover no op, because such steps are comparable only if they convert the same tensors. */
    double caller_us = step->covers && !step->foreign ? caller_best_us : 0;
    struct mf_prune p = {.kind_us = known_min(mf_prune_best(bests, keys->kind), caller_us),
                         .interface_us = mf_prune_best(bests, keys->interface),
                         .layout_us = mf_prune_best(bests, keys->layout)};
    p.applies = (step->covers & gemms) && !exhaustive && p.kind_us > 0 && !is_default(step);
    return p;
}

struct mf_prune_limit mf_prune_limit(const struct mf_prune *p)
{
    struct mf_prune_limit limit = {.us = INFINITY, .rivals = ""};
    for (size_t i = 0; p->applies && i < MF_ARRAY_LEN(rules); i++) {
        double best_us;
        memcpy(&best_us, (const char *)p + rules[i].best_at, sizeof(best_us));
        if (best_us <= 0 || best_us < rules[i].from_us || rules[i].factor * best_us >= limit.us)
            continue;
        limit = (struct mf_prune_limit){.us = rules[i].factor * best_us,
                                        .rerun_us = RERUN_FACTOR * best_us,
                                        .factor = rules[i].factor,
                                        .best_us = best_us,
                                        .rivals = rules[i].rivals};
    }
    return limit;
}

bool mf_prune_is_decided(const struct mf_prune *p, const double *us, size_t n, int count)
{
    int n_slow = 0;
    for (size_t i = 0; p->applies && p->layout_us > 0 && i < n; i++)
        n_slow += us[i] > LAYOUT_FACTOR * p->layout_us;
    return 2 * n_slow > count;
}

int64_t mf_prune_hang_ms(double best_us, bool exhaustive, int64_t cap_ms)
{
    if (best_us <= 0 || exhaustive)
        return cap_ms;
    return (int64_t)fmin(fmax(HANG_MIN_MS, HANG_FACTOR * best_us / 1000), (double)cap_ms);
}
