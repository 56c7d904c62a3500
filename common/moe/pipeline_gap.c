#include "common/moe/pipeline_gap.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* Steps that can run if every earlier step may run, whatever its block_m and its weight layouts are. */
struct reach {
    const struct mf_path_problem *p;
    bool *can_run; /* per step */
};

static bool is_written(const struct reach *r, const struct mf_tensor_spec *a)
{
    for (size_t i = 0; i < r->p->n_steps; i++) {
        const struct mf_step *step = r->p->steps[i].step;
        for (int k = 0; r->can_run[i] && k < step->n_gives; k++) {
            if (mf_tensor_spec_equal(&step->gives[k], a))
                return true;
        }
    }
    return false;
}

/* Returns the first tensor spec that the step reads and no reachable step writes; NULL if there is none. */
static const struct mf_tensor_spec *missing_input(const struct reach *r, const struct mf_step *step)
{
    for (int i = 0; i < step->n_needs; i++) {
        const struct mf_tensor_spec *a = &step->needs[i];
        if (!mf_tensor_spec_is_weight(a) && !mf_tensor_spec_is_input(a) && !is_written(r, a))
            return a;
    }
    return NULL;
}

static void find_reachable(struct reach *r)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < r->p->n_steps; i++) {
            if (!r->can_run[i] && !missing_input(r, r->p->steps[i].step))
                more = r->can_run[i] = true;
        }
    }
}

static mf_ops reached_ops(const struct reach *r)
{
    mf_ops ops = 0;
    for (size_t i = 0; i < r->p->n_steps; i++)
        ops |= r->can_run[i] ? r->p->steps[i].step->covers : 0;
    return ops;
}

/* Returns the first step, by family and name, that covers the op. */
static const struct mf_step *first_step(const struct mf_path_problem *p, mf_ops op)
{
    const struct mf_step *first = NULL;
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct mf_step *step = p->steps[i].step;
        if ((step->covers & op) && (!first || mf_step_compare(step, first) < 0))
            first = step;
    }
    return first;
}

static void describe_unreached(const struct reach *r, mf_ops unreached, char *buf, size_t cap)
{
    char op[MF_OPS_TEXT_MAX], spec[MF_TENSOR_SPEC_TEXT_MAX];
    mf_ops lowest = unreached & ~(unreached - 1);
    const struct mf_step *step = first_step(r->p, lowest);
    mf_tensor_spec_print(missing_input(r, step), spec);
    mf_ops_print(lowest, op);
    mf_format(buf, cap, "no correct step writes %s, which %s needs for %s", spec, step->name, op);
}

int mf_pipeline_gap(const struct mf_path_problem *p, char *buf, size_t cap)
{
    char ops[MF_OPS_TEXT_MAX];
    mf_ops uncovered = mf_path_uncovered(p);
    if (uncovered) {
        mf_ops_print(uncovered, ops);
        mf_format(buf, cap, "no correct step covers %s", ops);
        return 0;
    }
    _cleanup_(mf_freep) bool *can_run = calloc(p->n_steps + 1, sizeof(*can_run));
    struct reach r = {p, can_run};
    if (!can_run)
        return -ENOMEM;
    find_reachable(&r);
    mf_ops unreached = p->ops & ~reached_ops(&r);
    if (unreached)
        describe_unreached(&r, unreached, buf, cap);
    else
        mf_format(buf, cap, "no correct steps agree on block_m and on the weight layouts");
    return 0;
}
