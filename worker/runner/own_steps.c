#include "worker/runner/own_steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"

static void clear(struct mf_own_steps *o)
{
    for (size_t i = 0; i < o->n; i++)
        free(o->families[i].steps);
    o->n = 0;
}

void mf_own_steps_release(struct mf_own_steps *o)
{
    clear(o);
    free(o->families);
    o->families = NULL;
    o->cap = 0;
}

/* ---- the family's steps ---- */

struct collector {
    struct mf_offer offer; /* must be the first member, because take_step casts it */
    struct mf_own_family *to;
};

static int take_step(struct mf_offer *offer, const struct mf_step *step)
{
    struct mf_own_family *to = ((struct collector *)offer)->to;
    if (to->n == MF_OWN_STEPS_MAX)
        return -EFBIG;
    int r = mf_array_grow(&to->steps, to->n, &to->cap, sizeof(*to->steps));
    if (r == 0)
        to->steps[to->n++] = *step;
    return r;
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct mf_step *)a)->name, ((const struct mf_step *)b)->name);
}

/* Appends the family's steps to o. */
static int enumerate(struct mf_own_steps *o, const struct mf_family *f)
{
    int r = mf_array_grow(&o->families, o->n, &o->cap, sizeof(*o->families));
    if (r < 0)
        return r;
    struct mf_own_family *own = &o->families[o->n];
    *own = (struct mf_own_family){.family = f};
    struct collector c = {.offer = {take_step, mf_offer_ignore_rejection}, .to = own};
    r = o->enumerate(o->context, f, &o->shape, &c.offer);
    if (r < 0) {
        free(own->steps);
        return r;
    }
    if (own->n > 0)
        qsort(own->steps, own->n, sizeof(*own->steps), compare);
    o->n++;
    return 0;
}

static int find_family(struct mf_own_steps *o, const struct mf_shape *shape, const struct mf_family *f,
                       const struct mf_own_family **ret)
{
    if (o->n > 0 && !mf_shape_equal(&o->shape, shape))
        clear(o);
    o->shape = *shape;
    size_t i = 0;
    while (i < o->n && o->families[i].family != f)
        i++;
    int r = i < o->n ? 0 : enumerate(o, f);
    if (r == 0)
        *ret = &o->families[i];
    return r;
}

/* ---- comparing ---- */

static bool differ_in_numbers(const struct mf_step *a, const struct mf_step *own, char why[MF_REASON_MAX])
{
    const struct {
        const char *name;
        uint64_t value, here;
    } numbers[] = {
        {"workspace", a->workspace_bytes, own->workspace_bytes},
        {"block_m", (uint64_t)a->block_m, (uint64_t)own->block_m},
        {"ksplit", (uint64_t)a->ksplit, (uint64_t)own->ksplit},
        {"number of inputs", (uint64_t)a->n_needs, (uint64_t)own->n_needs},
        {"number of outputs", (uint64_t)a->n_gives, (uint64_t)own->n_gives},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(numbers); i++) {
        if (numbers[i].value == numbers[i].here)
            continue;
        mf_format(why, MF_REASON_MAX, "the step's description differs from this worker's: %s %llu, here %llu",
                  numbers[i].name, (unsigned long long)numbers[i].value, (unsigned long long)numbers[i].here);
        return true;
    }
    return false;
}

static bool differ_in_specs(const char *side, const struct mf_tensor_spec *a,
                            const struct mf_tensor_spec *own, int32_t n, char why[MF_REASON_MAX])
{
    char text[MF_TENSOR_SPEC_TEXT_MAX], here[MF_TENSOR_SPEC_TEXT_MAX];
    for (int32_t i = 0; i < n; i++) {
        if (mf_tensor_spec_equal(&a[i], &own[i]))
            continue;
        mf_tensor_spec_print(&a[i], text);
        mf_tensor_spec_print(&own[i], here);
        mf_format(why, MF_REASON_MAX, "the step's description differs from this worker's: %s %s, here %s",
                  side, text, here);
        return true;
    }
    return false;
}

static bool differ_in_ops(const struct mf_step *a, const struct mf_step *own, char why[MF_REASON_MAX])
{
    char text[MF_OPS_TEXT_MAX], here[MF_OPS_TEXT_MAX];
    if (a->covers == own->covers)
        return false;
    mf_ops_print(a->covers, text);
    mf_ops_print(own->covers, here);
    mf_format(why, MF_REASON_MAX, "the step's description differs from this worker's: covers %s, here %s",
              text, here);
    return true;
}

static bool differ(const struct mf_step *a, const struct mf_step *own, char why[MF_REASON_MAX])
{
    return differ_in_numbers(a, own, why) || differ_in_ops(a, own, why) ||
           differ_in_specs("needs", a->needs, own->needs, own->n_needs, why) ||
           differ_in_specs("gives", a->gives, own->gives, own->n_gives, why);
}

static int compare_name(const void *name, const void *step)
{
    return strcmp(name, ((const struct mf_step *)step)->name);
}

int mf_own_steps_replace(struct mf_own_steps *o, const struct mf_shape *shape, const struct mf_family *f,
                         struct mf_step *step, char why[MF_REASON_MAX])
{
    const struct mf_own_family *family = NULL;
    int r = find_family(o, shape, f, &family);
    if (r < 0)
        return r;
    const struct mf_step *own =
        family->n > 0 ? bsearch(step->name, family->steps, family->n, sizeof(*own), compare_name) : NULL;
    if (!own) {
        mf_format(why, MF_REASON_MAX, "this worker's family %s does not offer the step for this shape",
                  f->name);
        return 1;
    }
    /* A family may offer several steps of one name, for example for several block_m. */
    const struct mf_step *end = family->steps + family->n;
    while (own > family->steps && strcmp(own[-1].name, step->name) == 0)
        own--;
    while (differ(step, own, why)) {
        own++;
        if (own == end || strcmp(own->name, step->name) != 0)
            return 1;
    }
    *step = *own;
    return 0;
}
