#include "covering.h"

#include <string.h>

#include "kernels/philox.h"

#define ATTEMPTS 40 /* rows tried for a pair before it is dropped */

struct work {
    const struct covering *c;
    uint64_t seed, drawn;
    bool covered[COVERING_FACTORS][COVERING_VALUES][COVERING_FACTORS]
                [COVERING_VALUES]; /* first factor lower */
};

static int draw(struct work *w, int below)
{
    return (int)(mf_philox(w->seed, w->drawn++, 0).v[0] % (uint32_t)below);
}

static bool *pair_of(struct work *w, int f, int v, int g, int u)
{
    return f < g ? &w->covered[f][v][g][u] : &w->covered[g][u][f][v];
}

/* Missing pairs that value v of factor f brings to a row. */
static int gain(struct work *w, const int *row, int f, int v)
{
    int n = 0;

    for (int g = 0; g < w->c->n_factors; g++)
        n += g != f && row[g] >= 0 && !*pair_of(w, f, v, g, row[g]);
    return n;
}

/* The best legal value of factor f, ties drawn; false: none is legal. */
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

static void cover(struct work *w, const int *row)
{
    for (int f = 0; f < w->c->n_factors; f++) {
        for (int g = f + 1; g < w->c->n_factors; g++)
            w->covered[f][row[f]][g][row[g]] = true;
    }
}

int covering_make(const struct covering *c, uint64_t seed, int (*rows)[COVERING_FACTORS], int cap,
                  int *ret_dropped)
{
    struct work w = {.c = c, .seed = seed};
    int n = 0;

    *ret_dropped = 0;
    for (int f = 0; f < c->n_factors; f++) {
        for (int g = f + 1; g < c->n_factors; g++) {
            for (int p = 0; p < c->n_values[f] * c->n_values[g] && n < cap; p++) {
                int v = p / c->n_values[g], u = p % c->n_values[g], tried = 0;
                while (!*pair_of(&w, f, v, g, u) && tried++ < ATTEMPTS) {
                    if (!row_around(&w, f, v, g, u, rows[n]))
                        continue;
                    cover(&w, rows[n++]);
                }
                *ret_dropped += !*pair_of(&w, f, v, g, u);
            }
        }
    }
    return n;
}
