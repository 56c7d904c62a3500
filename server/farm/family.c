/* Which families a batch tunes on a class, and which of them one worker can run together.
 *
 * A batch tunes the families, each at a revision, that available workers of the class offered when its first
 * task began. Workers may offer different subsets. A unit and a pipeline contain only families that one
 * worker offers together. */
#include "server/farm/farm_private.h"

#include "common/base/text.h"
#include "server/store/store_family.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_of(const struct mf_slot *slot, int64_t class_id, int64_t model)
{
    return mf_slot_is_available(slot) && slot->class_id == class_id && (!model || slot->model_id == model);
}

bool mf_families_are_offered(const struct mf_farm *f, int64_t class_id, int64_t model,
                             const int64_t *families, size_t n)
{
    for (size_t i = 0; i < f->slots.n; i++) {
        if (is_of(f->slots.all[i], class_id, model) && mf_slot_offers(f->slots.all[i], families, n))
            return true;
    }
    return false;
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Pins the batch to the families that available workers of the class offer. */
static int pin(struct mf_farm *f, const struct mf_batch *b, int64_t class_id, struct mf_ids *ret)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < f->slots.n; i++) {
        const struct mf_slot *slot = f->slots.all[i];
        for (size_t k = 0; r == 0 && is_of(slot, class_id, 0) && k < slot->n_families; k++) {
            if (mf_ids_contain(ret, slot->families[k]))
                continue;
            r = mf_store_batch_add_family(f->store, b->id, class_id, slot->families[k]);
            if (r == 0)
                r = mf_ids_add(ret, slot->families[k]);
        }
    }
    if (ret->n > 0)
        qsort(ret->all, ret->n, sizeof(*ret->all), compare_ids);
    return r;
}

int mf_families_of_batch(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const struct mf_ids **ret)
{
    int r = 0;
    if (b->families_class != class_id) {
        b->families_class = 0;
        b->families.n = 0;
        r = mf_store_batch_families(f->store, b->id, class_id, &b->families);
        if (r == 0 && b->families.n == 0)
            r = pin(f, b, class_id, &b->families);
        if (r == 0 && b->families.n > 0)
            b->families_class = class_id;
    }
    *ret = &b->families;
    return r;
}

/* The models with the most families. */
struct model_choice {
    int64_t models[8], n_families;
    size_t n;
    bool differ; /* another model offers fewer families */
};

static int add_model(void *context, int64_t model, int64_t n_families)
{
    struct model_choice *c = context;
    if (c->n == 0)
        c->n_families = n_families;
    if (n_families < c->n_families)
        c->differ = true;
    else if (c->n < MF_ARRAY_LEN(c->models))
        c->models[c->n++] = model;
    return 0;
}

int mf_families_choose_model(struct mf_farm *f, struct mf_task *g)
{
    const struct mf_ids *families;
    struct model_choice c = {.n = 0};
    int r = g->model ? 0 : mf_families_of_batch(f, g->batch, g->class_id, &families);
    if (r < 0 || g->model)
        return r;
    r = mf_store_model_offers_each(f->store, g->batch->id, g->class_id, add_model, &c);
    /* Models with equally many families may still differ, unless they offer all */
    bool differ = c.differ || (c.n > 1 && c.n_families < (int64_t)families->n);
    if (r < 0 || !differ || c.n == 0)
        return r;
    g->model = c.models[g->id % (int64_t)c.n];
    return mf_store_task_set_model(f->store, g->id, g->model);
}

int mf_families_print_missing(struct mf_farm *f, int64_t class_id, const struct mf_ids *families, char *buf,
                              size_t cap)
{
    size_t len = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < families->n; i++) {
        struct mf_family_row row;
        if (mf_families_are_offered(f, class_id, 0, &families->all[i], 1))
            continue;
        int r = mf_store_family_get(f->store, families->all[i], &row);
        if (r < 0)
            return r;
        mf_format(buf + len, cap - len, "%sfamily %s at revision %s", len ? " and " : "", row.name,
                  row.revision);
        len = strlen(buf);
    }
    return 0;
}

/* ---- offers ---- */

/* True if the same workers, and at least one, offer both families. */
static bool have_same_workers(const struct mf_farm *f, int64_t class_id, int64_t model, int64_t a, int64_t b)
{
    int n = 0;
    for (size_t i = 0; i < f->slots.n; i++) {
        const struct mf_slot *slot = f->slots.all[i];
        bool offers_a = mf_slot_offers(slot, &a, 1);
        if (!is_of(slot, class_id, model))
            continue;
        if (offers_a != mf_slot_offers(slot, &b, 1))
            return false;
        n += offers_a;
    }
    return n > 0;
}

int64_t mf_families_group(const struct mf_farm *f, int64_t class_id, int64_t model,
                          const struct mf_ids *families, int64_t family)
{
    for (size_t i = 0; i < families->n; i++) {
        if (have_same_workers(f, class_id, model, families->all[i], family))
            return families->all[i];
    }
    return family;
}

bool mf_family_offer_contains(const struct mf_family_offer *o, int64_t family)
{
    size_t i = 0;
    while (i < o->n && o->families[i] != family)
        i++;
    return i < o->n;
}

static bool contains_all(const struct mf_family_offer *o, const struct mf_family_offer *other)
{
    size_t i = 0;
    while (i < other->n && mf_family_offer_contains(o, other->families[i]))
        i++;
    return i == other->n;
}

/* Adds the offer unless a listed one contains it. Removes the listed ones that it contains. */
static size_t add_offer(const struct mf_family_offer *o, struct mf_family_offer list[MF_FAMILY_SETS_MAX],
                        size_t n)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (contains_all(&list[i], o))
            return n;
    }
    for (size_t i = 0; i < n; i++) {
        if (!contains_all(o, &list[i]))
            list[n_kept++] = list[i];
    }
    if (n_kept < MF_FAMILY_SETS_MAX)
        list[n_kept++] = *o;
    return n_kept;
}

size_t mf_families_offers(const struct mf_farm *f, int64_t class_id, int64_t model,
                          const struct mf_ids *families, struct mf_family_offer ret[MF_FAMILY_SETS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < f->slots.n; i++) {
        const struct mf_slot *slot = f->slots.all[i];
        struct mf_family_offer o = {.n = 0};
        for (size_t k = 0; k < families->n && o.n < MF_SLOT_FAMILIES_MAX; k++) {
            if (is_of(slot, class_id, model) && mf_slot_offers(slot, &families->all[k], 1))
                o.families[o.n++] = families->all[k];
        }
        if (o.n > 0)
            n = add_offer(&o, ret, n);
    }
    return n;
}

static int print_offer(struct mf_farm *f, const struct mf_family_offer *o, char *buf, size_t cap)
{
    size_t len = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < o->n; i++) {
        struct mf_family_row row;
        int r = mf_store_family_get(f->store, o->families[i], &row);
        if (r < 0)
            return r;
        mf_format(buf + len, cap - len, "%s%s", len ? ", " : "", row.name);
        len = strlen(buf);
    }
    return 0;
}

int mf_families_reject_others(struct mf_farm *f, const struct mf_task *g, const struct mf_family_offer *offer)
{
    const struct mf_ids *families;
    char reason[MF_REASON_MAX], names[MF_REASON_MAX / 2];
    int r = mf_families_of_batch(f, g->batch, g->class_id, &families);
    if (r == 0)
        r = print_offer(f, offer, names, sizeof(names));
    for (size_t i = 0; r == 0 && i < families->n; i++) {
        struct mf_family_row row;
        if (mf_family_offer_contains(offer, families->all[i]))
            continue;
        r = mf_store_family_get(f->store, families->all[i], &row);
        if (r < 0)
            return r;
        mf_format(reason, sizeof(reason),
                  "no connected worker offers family %s at revision %s together with the families of the best"
                  " pipeline, %s; the task races on a worker with those",
                  row.name, row.revision, names);
        r = mf_store_rejection_add(f->store, g->enumeration, g->batch->id, row.name, "*", "offer_set",
                                   reason);
    }
    return r;
}
