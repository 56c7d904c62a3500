#include "cli/support/compat_rank.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_compat, MF_COMPAT_, MF_COMPAT_MAP)

/* Indices of the candidates that are still selected. The rules reorder the indices, not the candidates. */
struct selection {
    const struct mf_compat_candidate *candidates;
    size_t *indices;
    size_t n;
};

static bool is_cost(const struct mf_compat_candidate *c)
{
    return c->stage == MF_COMPAT_SORT || c->stage == MF_COMPAT_QUANT1 || c->stage == MF_COMPAT_QUANT2;
}

static bool is_timed(const struct mf_compat_candidate *c)
{
    return isfinite(c->us) && c->us > 0;
}

bool mf_compat_name_is_fused(const char *name)
{
    size_t len = strlen(name);

    return len > 4 && (strcmp(name + len - 4, "_fp4") == 0 || strcmp(name + len - 4, "_fp8") == 0);
}

/* ---- steps 2 and 3 ---- */

static int by_time(const void *va, const void *vb, void *context)
{
    const struct mf_compat_candidate *candidates = context;
    size_t a = *(const size_t *)va, b = *(const size_t *)vb;

    if (candidates[a].us != candidates[b].us)
        return candidates[a].us < candidates[b].us ? -1 : 1;
    return (a > b) - (a < b);
}

static bool same_kind(const struct mf_compat_candidate *a, const struct mf_compat_candidate *b)
{
    return a->stage == b->stage && a->block_m == b->block_m && a->flat == b->flat && a->v2 == b->v2 &&
           a->fused == b->fused;
}

static void keep_best(struct selection *l, size_t n, double err_ratio)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        const struct mf_compat_candidate *c = &l->candidates[i];
        if (!is_cost(c) && is_timed(c) && c->err <= err_ratio)
            l->indices[l->n++] = i;
    }
    qsort_r(l->indices, l->n, sizeof(*l->indices), by_time, (void *)l->candidates);
    for (size_t i = 0; i < l->n; i++) {
        bool known = false;
        for (size_t k = 0; k < kept; k++)
            known |= same_kind(&l->candidates[l->indices[i]], &l->candidates[l->indices[k]]);
        if (!known)
            l->indices[kept++] = l->indices[i];
    }
    l->n = kept;
}

/* ---- steps 1, 4 and 5 ---- */

static void set_first(struct mf_compat_row *row, const struct mf_compat_candidate *c)
{
    *row = (struct mf_compat_row){
        .block_m = c->block_m, .us1 = c->us, .err1 = c->err, .v2 = c->v2, .fused = c->fused};
    row->ksplit = mf_step_drop_ksplit(c->name, row->kernel1);
}

static size_t pair(const struct selection *l, struct mf_compat_row *rows)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++) {
        const struct mf_compat_candidate *one = &l->candidates[l->indices[i]];
        for (size_t k = 0; one->stage == MF_COMPAT_STAGE1 && k < l->n; k++) {
            const struct mf_compat_candidate *two = &l->candidates[l->indices[k]];
            if (two->stage != MF_COMPAT_STAGE2 || two->block_m != one->block_m || two->v2 != one->v2)
                continue;
            set_first(&rows[n], one);
            mf_format(rows[n].kernel2, sizeof(rows[n].kernel2), "%s", two->name);
            rows[n].us2 = two->us;
            rows[n++].err2 = two->err;
        }
    }
    return n;
}

static size_t add_one_stage(const struct selection *l, struct mf_compat_row *rows, size_t n)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct mf_compat_candidate *c = &l->candidates[l->indices[i]];
        if (c->stage != MF_COMPAT_ONE && c->stage != MF_COMPAT_ONE_XBF16)
            continue;
        set_first(&rows[n], c);
        rows[n].run_1stage = true;
        rows[n].xbf16 = c->stage == MF_COMPAT_ONE_XBF16;
        rows[n++].flat = c->flat;
    }
    return n;
}

/* ---- step 7 ---- */

/* Returns the lowest measured cost of `stage` for the block size. Returns 0 if no cost was measured, as AITER
 * does for a failed sort. */
static double cost_of(const struct mf_compat_candidate *candidates, size_t n, enum mf_compat stage,
                      int32_t block_m)
{
    double best = INFINITY;

    for (size_t i = 0; i < n; i++) {
        const struct mf_compat_candidate *c = &candidates[i];
        if (c->stage == stage && is_timed(c) && (c->block_m == 0 || c->block_m == block_m))
            best = fmin(best, c->us);
    }
    return isfinite(best) ? best : 0;
}

static bool any_xbf16(const struct mf_compat_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].xbf16)
            return true;
    }
    return false;
}

static bool any_flat(const struct mf_compat_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].flat == 1)
            return true;
    }
    return false;
}

static void add_fairness(const struct mf_shape *shape, const struct mf_compat_candidate *candidates,
                         size_t n_all, struct mf_compat_row *rows, size_t n)
{
    bool is_fp8 = shape->q_dtype_a == MF_DTYPE_FP8_E4M3FN || shape->q_dtype_a == MF_DTYPE_FP8_E4M3FNUZ;
    bool between = shape->q_type == MF_QTYPE_PER_1X32 && shape->q_dtype_w != MF_DTYPE_INT4 &&
                   (shape->q_dtype_a == MF_DTYPE_FP4X2 || is_fp8);
    bool input = shape->q_type == MF_QTYPE_PER_1X128 && any_xbf16(rows, n);
    bool sort = any_flat(rows, n);

    for (size_t i = 0; i < n; i++) {
        struct mf_compat_row *row = &rows[i];
        if (between && !row->fused && !row->v2)
            row->added += cost_of(candidates, n_all, MF_COMPAT_QUANT2, row->block_m);
        if (input && !row->xbf16)
            row->added += cost_of(candidates, n_all, MF_COMPAT_QUANT1, row->block_m);
        if (sort && row->flat == 0)
            row->added += cost_of(candidates, n_all, MF_COMPAT_SORT, row->block_m);
        row->us1 += row->added;
    }
}

int mf_compat_rank(const struct mf_shape *shape, const struct mf_compat_candidate *candidates, size_t n,
                   double err_ratio, struct mf_compat_row **ret_rows, size_t *ret_n, size_t *ret_best)
{
    _cleanup_(mf_freep) size_t *indices = calloc(n + 1, sizeof(*indices));
    _cleanup_(mf_freep) struct mf_compat_row *rows = NULL;
    struct selection l = {.candidates = candidates, .indices = indices};
    size_t ones = 0, twos = 0, n_rows, best = 0;

    if (!indices)
        return -ENOMEM;
    keep_best(&l, n, err_ratio);
    for (size_t i = 0; i < l.n; i++) {
        ones += candidates[indices[i]].stage == MF_COMPAT_STAGE1;
        twos += candidates[indices[i]].stage == MF_COMPAT_STAGE2;
    }
    rows = calloc(ones * twos + l.n + 1, sizeof(*rows));
    if (!rows)
        return -ENOMEM;
    n_rows = add_one_stage(&l, rows, pair(&l, rows));
    if (n_rows == 0)
        return -ENOENT;
    add_fairness(shape, candidates, n, rows, n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        rows[i].us = round((rows[i].us1 + rows[i].us2) * 1e4) / 1e4;
        if (rows[i].us < rows[best].us)
            best = i;
    }
    *ret_rows = MF_TAKE(rows);
    *ret_n = n_rows;
    *ret_best = best;
    return 0;
}
