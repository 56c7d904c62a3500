#include "emulator/grid_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct grid *grid_of(struct mf_emulator_calls *e)
{
    return (struct grid *)e;
}

void mf_lane_yield(struct grid *g)
{
    mf_fiber_switch(&g->lane->fiber, &g->scheduler);
}

void mf_lane_fault(struct grid *g, const void *pc, const char *format, ...)
{
    const struct lane *l = g->lane;
    va_list args;
    int n = snprintf(g->why, MF_EMULATOR_WHY_MAX, "block %u, lane %u ", l->block->at.x, l->index);

    va_start(args, format);
    (void)vsnprintf(g->why + n, MF_EMULATOR_WHY_MAX - (size_t)n, format, args);
    va_end(args);
    g->pc = pc ? (uintptr_t)pc - g->launch->module->image : 0;
    g->failed = true;
    while (g->failed)
        mf_lane_yield(g);
}

/* ---- collective calls ---- */

static void release_block(struct block *b, uint32_t n_lanes)
{
    b->epoch++;
    b->n_waiting = 0;
    for (uint32_t i = 0; i < n_lanes; i++) {
        if (b->lanes[i].state == AT_BARRIER)
            b->lanes[i].state = READY;
    }
}

static void barrier(struct mf_emulator_calls *e)
{
    struct grid *g = grid_of(e);
    struct lane *l = g->lane;

    l->state = AT_BARRIER;
    if (++l->block->n_waiting == l->block->n_live)
        release_block(l->block, g->n_lanes);
    else
        mf_lane_yield(g);
}

/* Ends the lane. The block's barriers no longer wait for it. */
void mf_lane_end(struct grid *g)
{
    struct block *b = g->lane->block;

    g->lane->state = ENDED;
    if (--b->n_live > 0 && b->n_waiting == b->n_live)
        release_block(b, g->n_lanes);
    for (;;)
        mf_lane_yield(g);
}

static void wave_collective(struct mf_emulator_calls *e, const char *name, void *mine,
                            void (*all)(void **lanes), const void *pc)
{
    struct grid *g = grid_of(e);
    struct lane *l = g->lane;
    struct wave *w = l->wave;
    uint32_t n = g->launch->wave_lanes;
    void *arguments_of_lanes[64];

    if (w->n_lanes < n)
        mf_lane_fault(g, pc,
                      "is at %s in a wave of %u lanes: collective calls of "
                      "incomplete waves are not emulated",
                      name, w->n_lanes);
    if (w->n_there > 0 && w->name != name && strcmp(w->name, name) != 0)
        mf_lane_fault(g, pc, "is at %s, other lanes of its wave are at %s", name, w->name);
    w->name = name;
    l->mine = mine;
    l->state = IN_COLLECTIVE;
    if (++w->n_there < n) {
        mf_lane_yield(g);
        return;
    }
    w->n_there = 0;
    for (uint32_t i = 0; i < n; i++) {
        arguments_of_lanes[i] = w->lanes[i].mine;
        w->lanes[i].state = READY;
    }
    if (all)
        all(arguments_of_lanes);
    else
        w->epoch++;
}

static void pause_lane(struct mf_emulator_calls *e)
{
    struct grid *g = grid_of(e);
    g->lane->state = POLLING;
    mf_lane_yield(g);
}

/* Each call advances the clock by 100 ns. */
static uint64_t clock_ns(struct mf_emulator_calls *e)
{
    return grid_of(e)->ticks += 100;
}

/* ---- memory ---- */

static void note(struct grid *g, enum mf_shadow_event event, size_t at, size_t bytes, const void *pc)
{
    const struct lane *l = g->lane;
    const struct mf_shadow_lane by = {l->index, l->wave->index, l->block->epoch, l->wave->epoch};
    const struct mf_emulator_module *m = g->launch->module;
    char why[160];

    if (mf_shadow_note(l->block->shadow, &by, event, at, bytes, why, sizeof(why)))
        return;
    if (at >= m->lds_at)
        mf_lane_fault(g, pc, "%s: %zu bytes at %zu of LDS", why, bytes, at - m->lds_at);
    mf_lane_fault(g, pc, "%s: %zu bytes of a __shared__ variable", why, bytes);
}

/* Returns false if the address is not in shared memory. Otherwise checks the bounds and stores the address's
 * offset in shared memory. */
static bool is_shared(struct grid *g, uintptr_t p, size_t bytes, const void *pc, size_t *ret_at)
{
    const struct mf_emulator_module *m = g->launch->module;
    size_t at = p - (uintptr_t)m->shared;

    if (p < (uintptr_t)m->shared || at >= m->lds_at + MF_EMULATOR_LDS)
        return false;
    if (at + bytes > g->shared_bytes)
        mf_lane_fault(g, pc, "accesses %zu bytes at %zu of LDS: out of bounds, the launch has %u", bytes,
                      at - m->lds_at, g->launch->lds);
    *ret_at = at;
    return true;
}

static void check_global(struct grid *g, uintptr_t p, size_t bytes, bool writes, const void *pc)
{
    const struct mf_emulator_module *m = g->launch->module;
    const struct mf_known_range *r = mf_known_below(g->launch->known, p);
    const char *does = writes ? "writes" : "reads";

    if (r && p + bytes <= r->to) {
        if (writes && !r->writable)
            mf_lane_fault(g, pc, "writes %zu bytes at %zu of an input of %zu bytes", bytes,
                          (size_t)(p - r->from), (size_t)(r->to - r->from));
        return;
    }
    if (p >= m->image && p + bytes <= m->image_end)
        return;
    if (r)
        mf_lane_fault(g, pc, "%s %zu bytes out of bounds: at %zu of a buffer of %zu bytes", does, bytes,
                      (size_t)(p - r->from), (size_t)(r->to - r->from));
    mf_lane_fault(g, pc, "%s %zu bytes out of bounds, at %#zx: below every buffer", does, bytes, (size_t)p);
}

static void check_alignment(struct grid *g, const void *p, size_t bytes, const void *pc)
{
    if (bytes <= 16 && (uintptr_t)p % bytes != 0)
        mf_lane_fault(g, pc,
                      "accesses %zu bytes at an address that is not a multiple of the size (remainder %zu)",
                      bytes, (size_t)((uintptr_t)p % bytes));
}

static void on_access(struct mf_emulator_calls *e, const void *p, uint32_t bytes, int kind, const void *pc)
{
    struct grid *g = grid_of(e);
    bool writes = kind & MF_ACCESS_WRITE;
    size_t at = 0;

    if (!(kind & MF_ACCESS_UNALIGNED))
        check_alignment(g, p, bytes, pc);
    if (is_shared(g, (uintptr_t)p, bytes, pc, &at))
        note(g, writes ? MF_SHADOW_WRITE : MF_SHADOW_READ, at, bytes, pc);
    else
        check_global(g, (uintptr_t)p, bytes, writes, pc);
}

/* ---- asynchronous copies ---- */

static void start_copy(struct mf_emulator_calls *e, void *lds, const void *global, uint32_t bytes,
                       uint32_t read, const void *pc)
{
    struct grid *g = grid_of(e);
    struct lane *l = g->lane;
    size_t at = 0;

    check_alignment(g, lds, bytes, pc);
    if (!is_shared(g, (uintptr_t)lds, bytes, pc, &at))
        mf_lane_fault(g, pc, "copies to an address that is not in LDS");
    if (read > 0) {
        check_alignment(g, global, bytes, pc);
        check_global(g, (uintptr_t)global, read, false, pc);
    }
    note(g, MF_SHADOW_COPY_START, at, bytes, pc);
    if (l->n_copies == l->cap_copies) {
        uint32_t cap = l->cap_copies ? l->cap_copies * 2 : 64;
        struct copy *more = reallocarray(l->copies, cap, sizeof(*more));
        if (!more)
            mf_lane_fault(g, pc, "has no memory left for its copies");
        l->copies = more;
        l->cap_copies = cap;
    }
    l->copies[l->n_copies++] = (struct copy){lds, global, bytes, l->groups, read};
}

static void copy_commit(struct mf_emulator_calls *e)
{
    grid_of(e)->lane->groups++;
}

static void land(struct grid *g, const struct copy *c)
{
    note(g, MF_SHADOW_COPY_DONE, (size_t)((unsigned char *)c->to - g->launch->module->shared), c->bytes,
         NULL);
    memcpy(c->to, c->from, c->read);
    memset((char *)c->to + c->read, 0, c->bytes - c->read);
}

static void copy_wait(struct mf_emulator_calls *e, uint32_t groups)
{
    struct grid *g = grid_of(e);
    struct lane *l = g->lane;
    uint32_t n = 0;

    while (n < l->n_copies && l->copies[n].group + groups < l->groups)
        land(g, &l->copies[n++]);
    l->n_copies -= n;
    if (n > 0)
        memmove(l->copies, l->copies + n, l->n_copies * sizeof(l->copies[0]));
}

void mf_lane_bind(struct mf_emulator_calls *e)
{
    e->access = on_access;
    e->barrier = barrier;
    e->wave_collective = wave_collective;
    e->copy = start_copy;
    e->copy_commit = copy_commit;
    e->copy_wait = copy_wait;
    e->pause = pause_lane;
    e->clock_ns = clock_ns;
}
