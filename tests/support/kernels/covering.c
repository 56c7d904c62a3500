#include "support/kernels/covering.h"

#include <string.h>

#include "kernels/core/philox.h"

#define ATTEMPTS 40 /* number of random rows to try for a pair before an exhaustive search */

struct work {
    const struct covering *c;
    uint64_t seed, drawn;
    bool covered[COVERING_FACTORS][COVERING_VALUES][COVERING_FACTORS]
                [COVERING_VALUES]; /* the first factor has the lower index */
};

static int draw(struct work *w, int below)
{
    return (int)(mf_philox(w->seed, w->drawn++, 0).v[0] % (uint32_t)below);
}

static bool *pair_of(struct work *w, int f, int v, int g, int u)
{
    return f < g ? &w->covered[f][v][g][u] : &w->covered[g][u][f][v];
}

/* Returns how many missing pairs the row gains if factor f gets value v. */
static int gain(struct work *w, const int *row, int f, int v)
{
    int n = 0;

    for (int g = 0; g < w->c->n_factors; g++)
        n += g != f && row[g] >= 0 && !*pair_of(w, f, v, g, row[g]);
    return n;
}

/* Sets factor f of the row to the legal value that adds the most missing pairs; chooses at random among equal
 * values. Returns false if no value is legal. */
static bool choose(struct work *w, int *row, int f)
{
    int best = -1, best_gain = -1, ties = 0;

    for (int v = 0; v < w->c->n_values[f]; v++) {
        int g = gain(w, row, f, v);
        row[f] = v;
        if (g < best_gain || !w->c->legal(row))
            continue;
        ties = g > best_gain ? 1 : ties + 1;
        if (g > best_gain || draw(w, ties) == 0)
            best = v;
        best_gain = g;
    }
    row[f] = best;
    return best >= 0;
}

static bool row_around(struct work *w, int f, int v, int g, int u, int *row)
{
    int order[COVERING_FACTORS];

    for (int i = 0; i < w->c->n_factors; i++) {
        int j = draw(w, i + 1);
        order[i] = order[j];
        order[j] = i;
        row[i] = -1;
    }
    row[f] = v;
    row[g] = u;
    if (!w->c->legal(row))
        return false;
    for (int i = 0; i < w->c->n_factors; i++) {
        if (row[order[i]] < 0 && !choose(w, row, order[i]))
            return false;
    }
    return true;
}

/* Searches exhaustively for the first legal row that has the values chosen so far. Returns false if there is
 * no such row. */
static bool first_row(const struct work *w, int *row)
{
    int f = 0;

    while (f < w->c->n_factors && row[f] >= 0)
        f++;
    if (f == w->c->n_factors)
        return true;
    for (row[f] = 0; row[f] < w->c->n_values[f]; row[f]++) {
        if (w->c->legal(row) && first_row(w, row))
            return true;
    }
    row[f] = -1;
    return false;
}

static bool row_with(struct work *w, const struct covering_pair *p, int *row)
{
    for (int tried = 0; tried < ATTEMPTS; tried++) {
        if (row_around(w, p->f, p->v, p->g, p->u, row))
            return true;
    }
    for (int i = 0; i < w->c->n_factors; i++)
        row[i] = -1;
    row[p->f] = p->v;
    row[p->g] = p->u;
    return w->c->legal(row) && first_row(w, row);
}

static void cover(struct work *w, const int *row)
{
    for (int f = 0; f < w->c->n_factors; f++) {
        for (int g = f + 1; g < w->c->n_factors; g++)
            w->covered[f][row[f]][g][row[g]] = true;
    }
}

static void add_pair(struct work *w, const struct covering_pair *p, struct covering_set *set)
{
    if (row_with(w, p, set->rows[set->n])) {
        cover(w, set->rows[set->n++]);
        return;
    }
    if (set->n_impossible < set->cap_impossible)
        set->impossible[set->n_impossible] = *p;
    set->n_impossible++;
}

void covering_add(const struct covering *c, uint64_t seed, struct covering_set *set)
{
    struct work w = {.c = c, .seed = seed};

    for (int i = 0; i < set->n; i++)
        cover(&w, set->rows[i]);
    set->n_impossible = 0;
    for (int f = 0; f < c->n_factors; f++) {
        for (int g = f + 1; g < c->n_factors; g++) {
            for (int p = 0; p < c->n_values[f] * c->n_values[g] && set->n < set->cap; p++) {
                struct covering_pair pair = {f, p / c->n_values[g], g, p % c->n_values[g]};
                if (!*pair_of(&w, f, pair.v, g, pair.u))
                    add_pair(&w, &pair, set);
            }
        }
    }
}
