/* Kernels that have killed one runner and are retried.
 *
 *   first death ──suspect──► retry ──death─────────► quarantine: held steps are decided without a run
 *                              └─any other result──► the held steps become ready
 *
 * While a kernel is suspect, no worker of the class runs it except in the retry. Leased units that contain it
 * are withdrawn from their workers and replaced, without the step. Units that are granted leave the step out.
 * Each step that is left out is held in a unit of its own: a lease without a worker. After a restart such a
 * lease expires, and the kernel is no longer suspect. */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Number of leases' lengths that a retry may wait for a worker. Then the held steps become ready. */
#define RETRY_LEASES 10
/* Results without a run have sequence numbers below those of mf_deliver_unit_failed */
#define SEQ_BASE (INT64_C(1) << 40)

static struct mf_suspect *find(const struct mf_farm *f, int64_t kernel, int64_t class)
{
    for (size_t i = 0; i < f->n_suspects; i++) {
        if (f->suspects[i].kernel == kernel && f->suspects[i].class == class)
            return &f->suspects[i];
    }
    return NULL;
}

bool mf_suspect_is(const struct mf_farm *f, int64_t kernel, int64_t class)
{
    return find(f, kernel, class) != NULL;
}

static void forget(struct mf_farm *f, int64_t kernel, int64_t class)
{
    struct mf_suspect *s = find(f, kernel, class);
    if (s)
        *s = f->suspects[--f->n_suspects];
}

int mf_suspect_hold(struct mf_farm *f, struct mf_task *g, const struct mf_best_times *best, int64_t step,
                    int64_t kernel)
{
    int64_t unit;
    struct mf_lease *l = NULL;
    int r = mf_unit_add_steps(f, g, best, &(struct mf_unit_steps){.ids = &step, .n = 1}, &unit);
    if (r == 0)
        r = mf_lease_hold(f, unit, &l);
    if (r < 0)
        return r;
    l->held_kernel = kernel;
    return 0;
}

/* ---- withdrawing leased units ---- */

/* Replaces the leased unit by a unit with its undecided steps, without the step of this kernel, which is
 * held. */
static int withdraw(struct mf_farm *f, struct mf_lease *l, int64_t kernel)
{
    struct mf_task *g = l->task;
    const struct mf_best_times best = l->best;
    size_t n = 0;
    int64_t held = 0;
    _cleanup_(mf_freep) int64_t *ids = calloc(l->n + 1, sizeof(*ids));
    if (!ids)
        return -ENOMEM;
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i].seq)
            continue;
        if (l->items[i].kernel == kernel)
            held = l->items[i].id;
        else
            ids[n++] = l->items[i].id;
    }
    int r = mf_store_unit_end(f->store, l->unit, "cancelled");
    g->open_units--;
    if (r == 0)
        r = mf_lease_cancel(f, l);
    int64_t unit;
    if (r == 0 && n > 0)
        r = mf_unit_add_steps(f, g, &best, &(struct mf_unit_steps){.ids = ids, .n = n}, &unit);
    return r == 0 ? mf_suspect_hold(f, g, &best, held, kernel) : r;
}

static bool has_undecided(const struct mf_lease *l, int64_t kernel)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i].kernel == kernel && !l->items[i].seq)
            return true;
    }
    return false;
}

/* Finds a lease of the class with an undecided step of the kernel; held: a held step, else a step that a
 * worker has. */
static struct mf_lease *find_lease(struct mf_farm *f, int64_t kernel, int64_t class, bool held)
{
    MF_MAP_EACH(&f->leases, e)
    {
        struct mf_lease *l = e->value;
        bool matches = held ? l->held_kernel == kernel
                            : !l->held_kernel && l->kind == MF_UNIT_PROBE && has_undecided(l, kernel);
        if (l->task->class_id == class && matches)
            return l;
    }
    return NULL;
}

int mf_suspect_add(struct mf_farm *f, int64_t kernel, int64_t class, int64_t retry)
{
    struct mf_lease *l;
    int r = mf_array_grow(&f->suspects, f->n_suspects, &f->cap_suspects, sizeof(*f->suspects));
    if (r < 0)
        return r;
    f->suspects[f->n_suspects++] = (struct mf_suspect){
        .kernel = kernel, .class = class, .retry = retry, .until_ms = f->now_ms + RETRY_LEASES * f->lease_ms};
    while (r == 0 && (l = find_lease(f, kernel, class, false)))
        r = withdraw(f, l, kernel);
    return r;
}

/* ---- decisions ---- */

int mf_suspect_clear(struct mf_farm *f, int64_t kernel, int64_t class)
{
    struct mf_lease *l;
    int r = 0;
    forget(f, kernel, class);
    while (r == 0 && (l = find_lease(f, kernel, class, true)))
        r = mf_lease_unhold(f, l);
    return r;
}

int mf_suspect_survived(struct mf_farm *f, int64_t kernel, int64_t class, int64_t unit)
{
    const struct mf_suspect *s = find(f, kernel, class);
    return s && s->retry == unit ? mf_suspect_clear(f, kernel, class) : 0;
}

bool mf_suspect_bars(const struct mf_farm *f, int64_t kernel, int64_t class, int64_t unit)
{
    const struct mf_suspect *s = find(f, kernel, class);
    return s && s->retry != unit;
}

int mf_suspect_decide(struct mf_farm *f, struct mf_task *g, const struct mf_suspect_step *s)
{
    /* seq is negative, because no worker sent this result */
    struct mf_result_row row = {.unit = s->unit,
                                .attempt = s->attempt,
                                .seq = -SEQ_BASE - s->step,
                                .step = s->step,
                                .task = g->id,
                                .worker = s->worker,
                                .status = MF_STATUS_QUARANTINED,
                                .reason = s->reason,
                                .us = (double)NAN,
                                .mad = (double)NAN,
                                .err = (double)NAN,
                                .row_err = (double)NAN,
                                .final = true,
                                .at_ms = f->wall_ms};
    int r = mf_store_result_add(f->store, &row);
    return r > 0 ? mf_task_measured(f, g, s->covers, s->worker, MF_STATUS_QUARANTINED, (double)NAN) : r;
}

int mf_suspect_quarantine(struct mf_farm *f, int64_t kernel, int64_t class, int64_t worker,
                          const char *reason)
{
    struct mf_lease *l;
    int r = 0;
    forget(f, kernel, class);
    while (r == 0 && (l = find_lease(f, kernel, class, true))) {
        struct mf_task *g = l->task;
        r = mf_suspect_decide(f, g,
                              &(struct mf_suspect_step){.unit = l->unit,
                                                        .attempt = l->attempt,
                                                        .step = l->items[0].id,
                                                        .worker = worker,
                                                        .covers = l->items[0].covers,
                                                        .reason = reason});
        if (r == 0)
            r = mf_lease_done(f, l);
        mf_lease_free(l);
        if (r == 0 && g->open_units == 0 && g->state == MF_TASK_PROBING)
            r = mf_task_probed(f, g);
    }
    return r;
}

/* The held steps of a kernel become ready when its retry has ended without a result, or finds no worker. */
int mf_suspects_expire(struct mf_farm *f)
{
    for (size_t i = 0; i < f->n_suspects; i++) {
        const struct mf_suspect s = f->suspects[i];
        int leased = mf_map_get(&f->leases, (uint64_t)s.retry) ? 1 : 0;
        int r = leased ? 0 : mf_store_unit_is_ready(f->store, s.retry);
        if (r < 0)
            return r;
        if (leased || (r > 0 && f->now_ms < s.until_ms))
            continue;
        log_info("kernel %" PRId64 ": its retry found no worker, or ended without a result", s.kernel);
        r = mf_suspect_clear(f, s.kernel, s.class);
        if (r < 0)
            return r;
        i--;
    }
    return 0;
}
