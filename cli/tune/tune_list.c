/* Selects the rows to tune. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tune/tune.h"
#include "common/moe/production_key.h"

void mf_tune_list_release(struct mf_tune_list *l)
{
    free(l->shapes);
    free(l->tuned);
    *l = (struct mf_tune_list){.n = 0};
}

static struct mf_shape *find(struct mf_shape *shapes, size_t n, const struct mf_shape *shape)
{
    for (size_t i = 0; i < n; i++) {
        if (mf_shape_equal(&shapes[i], shape))
            return &shapes[i];
    }
    return NULL;
}

bool mf_tune_list_drop(struct mf_tune_list *l, const struct mf_shape *shape)
{
    struct mf_shape *at = find(l->shapes, l->n, shape);

    if (!at)
        return false;
    memmove(at, at + 1, (size_t)(l->shapes + l->n - (at + 1)) * sizeof(*at));
    l->n--;
    return true;
}

static bool has_row(const struct mf_table *t, const struct mf_device_class *class,
                    const struct mf_shape *shape)
{
    return mf_table_find(t, class, shape) != NULL;
}

/* Adds the shape to l->shapes or l->tuned, or counts it in l->n_elsewhere. */
static void consider(struct mf_tune_list *l, const struct mf_table *const *tuned, size_t n_tuned,
                     const struct mf_tune_choice *choice, const struct mf_shape *shape)
{
    bool in_first = n_tuned > 0 && has_row(tuned[0], &l->class, shape), elsewhere = false;

    for (size_t i = 1; i < n_tuned; i++)
        elsewhere |= has_row(tuned[i], &l->class, shape);
    if (find(l->shapes, l->n, shape) || find(l->tuned, l->n_tuned, shape))
        return;
    if (!choice->all && (in_first || elsewhere))
        l->tuned[l->n_tuned++] = *shape;
    else if (elsewhere && !in_first)
        l->n_elsewhere++;
    else
        l->shapes[l->n++] = *shape;
}

int mf_tune_list_make(const struct mf_table *untuned, const struct mf_table *const *tuned, size_t n_tuned,
                      const struct mf_device_class *class, const struct mf_tune_choice *choice,
                      struct mf_tune_list *ret)
{
    size_t first = choice->last && untuned->n_rows > 0 ? untuned->n_rows - 1 : 0;
    struct mf_tune_list l = {.class = *class,
                             .shapes = calloc(untuned->n_rows + 1, sizeof(*l.shapes)),
                             .tuned = calloc(untuned->n_rows + 1, sizeof(*l.tuned))};

    if (!l.shapes || !l.tuned) {
        mf_tune_list_release(&l);
        return -ENOMEM;
    }
    for (size_t i = first; i < untuned->n_rows; i++) {
        const struct mf_table_row *row = &untuned->rows[i];
        struct mf_shape shape = row->shape;
        char why[256];

        if (row->class.cu_num > 0 && !mf_device_class_equal(&row->class, class))
            continue;
        if (choice->for_aiter && mf_production_row(&row->shape, &choice->env, &shape, why, sizeof(why)) == 0)
            shape = row->shape;
        consider(&l, tuned, n_tuned, choice, &shape);
    }
    *ret = l;
    return 0;
}
