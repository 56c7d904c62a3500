#include "server/choose/foreign_layers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"

static bool is_layer(const struct mf_path_problem *p, size_t step)
{
    return p->steps[step].step->foreign && p->steps[step].step->covers == p->ops;
}

static bool is_best_of_program(const struct mf_path_problem *p, size_t step)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        bool rival = is_layer(p, i) && strcmp(p->steps[i].step->family, p->steps[step].step->family) == 0;
        if (rival &&
            (p->steps[i].us < p->steps[step].us || (p->steps[i].us == p->steps[step].us && i < step)))
            return false;
    }
    return true;
}

static enum mf_foreign_layer layer_of(const struct mf_path_problem *p, enum mf_consumer c, size_t step)
{
    const struct mf_consumer_step s = mf_consumer_step(p->steps[step].step);
    if (!is_layer(p, step))
        return MF_LAYER_OTHER;
    if (mf_consumer_default(c, &s))
        return MF_LAYER_RACES;
    return is_best_of_program(p, step) ? MF_LAYER_SHOWN : MF_LAYER_OTHER;
}

enum mf_foreign_layer mf_foreign_layer(const struct mf_path_problem *p, enum mf_consumer c,
                                       const struct mf_path *path)
{
    return path->n == 1 ? layer_of(p, c, (size_t)path->steps[0]) : MF_LAYER_OTHER;
}

static bool contains(const struct mf_path *paths, size_t n, size_t step)
{
    for (size_t i = 0; i < n; i++) {
        if (paths[i].n == 1 && (size_t)paths[i].steps[0] == step)
            return true;
    }
    return false;
}

static int insert(const struct mf_path *path, struct mf_path **paths, size_t *n)
{
    struct mf_path *all = realloc(*paths, (*n + 1) * sizeof(*all));
    size_t at = 0;
    if (!all)
        return -ENOMEM;
    while (at < *n && all[at].us <= path->us)
        at++;
    memmove(all + at + 1, all + at, (*n - at) * sizeof(*all));
    all[at] = *path;
    *paths = all;
    ++*n;
    return 0;
}

/* Adds the step's pipeline, if the step alone is one. */
static int add(const struct mf_path_problem *p, size_t step, struct mf_path **paths, size_t *n)
{
    struct mf_path_problem alone = *p;
    _cleanup_(mf_freep) struct mf_path *found = NULL;
    size_t n_found = 0;
    alone.steps = &p->steps[step];
    alone.n_steps = 1;
    int r = mf_path_find(&alone, &found, &n_found);
    if (r < 0 || n_found == 0)
        return r < 0 ? r : 0;
    found->steps[0] = (int32_t)step;
    return insert(found, paths, n);
}

int mf_foreign_layers_add(const struct mf_path_problem *p, enum mf_consumer c, struct mf_path **paths,
                          size_t *n)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < p->n_steps; i++) {
        if (layer_of(p, c, i) != MF_LAYER_OTHER && !contains(*paths, *n, i))
            r = add(p, i, paths, n);
    }
    return r;
}
