#include "emulator/grid_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#ifdef __SANITIZE_ADDRESS__
#    include <sanitizer/asan_interface.h>
#else
#    define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)0)
#endif

#define LANES_MAX     1024  /* lanes per block, as on every GPU */
#define SPINS_MAX     20000 /* consecutive rounds over all blocks without progress */
#define UNINITIALISED 0xff  /* fills LDS: NaN as a float, invalid as an index */
#define GUARD_BYTES   4096u

/* ---- schedule ---- */

static uint32_t draw(struct grid *g, uint32_t below)
{
    g->random ^= g->random << 13;
    g->random ^= g->random >> 7;
    g->random ^= g->random << 17;
    return (uint32_t)((g->random >> 32) % below);
}

static void put_in_order(struct grid *g, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = g->launch->seed == 1 ? n - 1 - i : i;
    for (uint32_t i = n; i > 1 && g->launch->seed > 1; i--) {
        uint32_t other = draw(g, i), mine = order[i - 1];
        order[i - 1] = order[other];
        order[other] = mine;
    }
}

static bool run_lane(struct grid *g, struct lane *l)
{
    g->lane = l;
    g->calls.now.thread = (struct mf_emulator_dim){l->index, 0, 0};
    g->calls.now.stack = (uintptr_t)l->stack;
    mf_fiber_switch(&g->scheduler, &l->fiber);
    return l->state != POLLING;
}

/* Runs the wave until all its lanes wait for other lanes; sometimes stops earlier. Returns true if a lane did
 * more than poll. */
static bool run_wave(struct grid *g, struct wave *w)
{
    uint32_t order[64], n = w->n_lanes;
    bool progress = false, again = true;

    while (again) {
        again = false;
        put_in_order(g, n, order);
        for (uint32_t i = 0; i < n && !g->failed; i++) {
            if (w->lanes[order[i]].state != READY)
                continue;
            again = true;
            progress |= run_lane(g, &w->lanes[order[i]]);
        }
        if (g->failed || (g->launch->seed > 1 && draw(g, 8) == 0))
            break;
    }
    return progress;
}

static void activate(struct grid *g, struct block *b)
{
    const struct mf_emulator_module *m = g->launch->module;

    g->calls.now.block = b->at;
    if (g->active == b)
        return;
    if (g->active)
        memcpy(g->active->shared, m->shared, g->shared_bytes);
    memcpy(m->shared, b->shared, g->shared_bytes);
    g->active = b;
}

/* Runs the block until it waits for another block. */
static bool run_block(struct grid *g, struct block *b)
{
    uint32_t order[LANES_MAX];
    bool progress = false, again = true;

    activate(g, b);
    for (uint32_t i = 0; i < g->n_lanes; i++) {
        if (b->lanes[i].state == POLLING)
            b->lanes[i].state = READY;
    }
    while (again && !g->failed) {
        again = false;
        put_in_order(g, g->n_waves, order);
        for (uint32_t i = 0; i < g->n_waves && !g->failed; i++)
            again |= run_wave(g, &b->waves[order[i]]);
        progress |= again;
    }
    return progress;
}

/* ---- end of a launch ---- */

static bool is_done(const struct grid *g)
{
    for (uint32_t b = 0; b < g->n_blocks; b++) {
        if (g->blocks[b].n_live > 0)
            return false;
    }
    return true;
}

static void explain_deadlock(struct grid *g)
{
    const struct block *b = g->blocks;
    uint32_t n[ENDED + 1] = {0};
    const char *name = "";

    while (b->n_live == 0)
        b++;
    for (uint32_t i = 0; i < g->n_lanes; i++) {
        n[b->lanes[i].state]++;
        if (b->lanes[i].state == IN_COLLECTIVE)
            name = b->lanes[i].wave->name;
    }
    (void)snprintf(
        g->why, MF_EMULATOR_WHY_MAX,
        "block %u is deadlocked: %u lanes wait at a barrier, %u at %s for other lanes of their wave, "
        "%u for another block, "
        "%u have ended",
        b->at.x, n[AT_BARRIER], n[IN_COLLECTIVE], *name ? name : "a call", n[POLLING], n[ENDED]);
    g->failed = true;
}

static void run_all(struct grid *g, uint32_t *order)
{
    for (int spins = 0; !g->failed && !is_done(g);) {
        bool progress = false, spun = false;
        put_in_order(g, g->n_blocks, order);
        for (uint32_t i = 0; i < g->n_blocks && !g->failed; i++) {
            if (g->blocks[order[i]].n_live > 0)
                progress |= run_block(g, &g->blocks[order[i]]);
        }
        for (uint32_t i = 0; i < g->n_blocks * g->n_lanes && !spun; i++)
            spun = g->lanes[i].state == POLLING;
        spins = progress ? 0 : spins + 1;
        if (!progress && !g->failed && (!spun || spins > SPINS_MAX))
            explain_deadlock(g);
    }
}

/* ---- allocation and release ---- */

static void enter(void *argument)
{
    struct lane *l = argument;
    struct grid *g = l->grid;
    g->launch->call(g->launch->arguments);
    mf_lane_end(g);
}

static int make_block(struct grid *g, uint32_t index)
{
    const struct mf_emulator_launch *l = g->launch;
    struct block *b = &g->blocks[index];

    b->at = (struct mf_emulator_dim){index % l->grid.x, index / l->grid.x % l->grid.y,
                                     index / l->grid.x / l->grid.y};
    b->lanes = g->lanes + (size_t)index * g->n_lanes;
    b->waves = g->waves + (size_t)index * g->n_waves;
    b->n_live = g->n_lanes;
    b->epoch = 1;
    b->shadow = mf_shadow_new(g->shared_bytes, l->wave_lanes);
    b->shared = malloc(g->shared_bytes + 1);
    if (!b->shadow || !b->shared)
        return -ENOMEM;
    memset(b->shared, UNINITIALISED, g->shared_bytes);
    for (uint32_t i = 0; i < g->n_lanes; i++) {
        struct wave *w = &b->waves[i / l->wave_lanes];
        unsigned char *room =
            g->stacks + ((size_t)index * g->n_lanes + i) * (MF_EMULATOR_STACK + GUARD_BYTES);
        if (i % l->wave_lanes == 0)
            *w = (struct wave){.lanes = &b->lanes[i],
                               .index = i / l->wave_lanes,
                               .n_lanes = MF_MIN(l->wave_lanes, g->n_lanes - i),
                               .epoch = 1};
        b->lanes[i] =
            (struct lane){.grid = g, .block = b, .wave = w, .index = i, .stack = room + GUARD_BYTES};
        if (mprotect(room, GUARD_BYTES, PROT_NONE) < 0)
            return -errno;
        mf_fiber_start(&b->lanes[i].fiber, b->lanes[i].stack, MF_EMULATOR_STACK, enter, &b->lanes[i]);
    }
    return 0;
}

static int make(struct grid *g)
{
    size_t lanes = (size_t)g->n_blocks * g->n_lanes;
    int r = 0;

    g->blocks = calloc(g->n_blocks, sizeof(*g->blocks));
    g->lanes = calloc(lanes, sizeof(*g->lanes));
    g->waves = calloc((size_t)g->n_blocks * g->n_waves, sizeof(*g->waves));
    g->stacks = mmap(NULL, lanes * (MF_EMULATOR_STACK + GUARD_BYTES), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!g->blocks || !g->lanes || !g->waves || g->stacks == MAP_FAILED)
        return -ENOMEM;
    for (uint32_t b = 0; b < g->n_blocks && r == 0; b++)
        r = make_block(g, b);
    return r;
}

static void release(struct grid *g)
{
    size_t lanes = (size_t)g->n_blocks * g->n_lanes;

    for (size_t i = 0; g->lanes && i < lanes; i++)
        free(g->lanes[i].copies);
    for (uint32_t b = 0; g->blocks && b < g->n_blocks; b++) {
        (void)mf_shadow_free(g->blocks[b].shadow);
        free(g->blocks[b].shared);
    }
    /* Lanes of a failed launch leave poisoned frames on their stacks. */
    if (g->stacks != MAP_FAILED)
        ASAN_UNPOISON_MEMORY_REGION(g->stacks, lanes * (MF_EMULATOR_STACK + GUARD_BYTES));
    if (g->stacks != MAP_FAILED)
        (void)munmap(g->stacks, lanes * (MF_EMULATOR_STACK + GUARD_BYTES));
    free(g->blocks);
    free(g->lanes);
    free(g->waves);
}

static bool is_legal(const struct mf_emulator_launch *l, char *why)
{
    if (l->block.x == 0 || l->block.x > LANES_MAX || l->block.y != 1 || l->block.z != 1)
        (void)snprintf(why, MF_EMULATOR_WHY_MAX,
                       "a block of %ux%ux%u lanes: expected one dimension of 1 to %d", l->block.x, l->block.y,
                       l->block.z, LANES_MAX);
    else if (l->lds > MF_EMULATOR_LDS)
        (void)snprintf(why, MF_EMULATOR_WHY_MAX, "%u bytes of LDS; a block has %d", l->lds, MF_EMULATOR_LDS);
    else
        return true;
    return false;
}

int mf_emulator_run(const struct mf_emulator_launch *l, char why[MF_EMULATOR_WHY_MAX], uintptr_t *ret_pc)
{
    struct grid g = {
        .launch = l, .why = why, .stacks = MAP_FAILED, .random = l->seed * 0x9e3779b97f4a7c15u + 1};
    uint32_t *order;

    *ret_pc = 0;
    if (!is_legal(l, why))
        return -EINVAL;
    g.n_blocks = l->grid.x * l->grid.y * l->grid.z;
    g.n_lanes = l->block.x;
    g.n_waves = (l->block.x + l->wave_lanes - 1) / l->wave_lanes;
    g.shared_bytes = l->module->lds_at + l->lds;
    g.calls.now.block_dim = l->block;
    g.calls.now.grid_dim = l->grid;
    mf_lane_bind(&g.calls);
    order = calloc(g.n_blocks, sizeof(*order));
    int r = order ? make(&g) : -ENOMEM;
    if (r == 0) {
        l->module->bind(&g.calls);
        run_all(&g, order);
        r = g.failed ? -EFAULT : 0;
        *ret_pc = g.pc;
    }
    free(order);
    release(&g);
    return r;
}
