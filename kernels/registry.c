#include "kernels/core/family.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/base/cleanup.h"
#include "common/moe/family_name.h"
#include "kernels/core/layout.h"
#include "kernels/fusion/fusion.h"
#include "mf_kernel_revision.h"

extern const struct mf_family mf_family_move, mf_family_two_stage, mf_family_one_stage, mf_family_onednn,
    mf_family_sim, mf_family_aiter, mf_family_two_stage_mx, mf_family_two_stage_int4, mf_family_asm,
    mf_family_hip_move, mf_family_hip_two_stage, mf_family_hip_one_stage, mf_family_hip_two_stage_mx,
    mf_family_hip_two_stage_int4, mf_family_hip_permute, mf_family_hip_asm,
    mf_family_hip_whole_layer_persistent, mf_family_hip_two_stage_single_launch;

/* Add new families at the end, because the lists that users see and compare keep this order. */
static const struct mf_family *const families[] = {
    &mf_family_move,
    &mf_family_two_stage,
    &mf_family_one_stage,
    &mf_family_onednn,
#if MF_SIM
    &mf_family_sim,
    &mf_family_aiter,
#endif
    &mf_family_two_stage_mx,
    &mf_family_two_stage_int4,
    &mf_family_asm,
    &mf_family_hip_move,
    &mf_family_hip_two_stage,
    &mf_family_hip_one_stage,
    &mf_family_hip_two_stage_mx,
    &mf_family_hip_two_stage_int4,
    &mf_family_hip_permute,
    &mf_family_hip_asm,
    &mf_family_hip_whole_layer_persistent,
    &mf_family_hip_two_stage_single_launch,
};
static const size_t n_families = sizeof(families) / sizeof(families[0]);

const char *mf_kernel_revision(void)
{
    return MF_KERNEL_REVISION;
}

const struct mf_family *const *mf_families(size_t *ret_n)
{
    *ret_n = n_families;
    return families;
}

const struct mf_family *mf_family_find(const char *device_kind, const char *name)
{
    const char *current = mf_family_current_name(name);
    for (size_t i = 0; i < n_families; i++) {
        if (strcmp(families[i]->name, current) == 0 &&
            (!device_kind || strcmp(families[i]->device_kind, device_kind) == 0))
            return families[i];
    }
    return NULL;
}

bool mf_family_on_request(const struct mf_family *f)
{
    return strcmp(f->name, "aiter") == 0 || f == &mf_family_hip_permute;
}

int mf_offer_ignore_rejection(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                              const char *format, ...)
{
    (void)o, (void)family, (void)kernel, (void)rule, (void)format;
    return 0;
}

/* Returns the device kind: "sim", "cpu" or "hip". The class names of CPUs begin with "cpu-". */
static const char *kind_of(const struct mf_device_info *device)
{
    return device->simulated ? "sim" : strncmp(device->class.gfx, "cpu-", 4) == 0 ? "cpu" : "hip";
}

/* Filters the offers and rejections of a family, then passes them to the caller's callbacks. */
struct filter {
    /* must be the first member, because the callbacks cast its address to this struct */
    struct mf_offer offer;
    struct mf_offer *to;
    const struct mf_family *family;
    const struct mf_shape *shape;
    struct mf_graph graph;
};

/* Rejects a step whose w1 layout contradicts the shape's gate_up. Returns 1 if it rejected the step. */
static int refuse_gate_up(const struct filter *f, const struct mf_step *step)
{
    for (int i = 0; i < step->n_needs && f->shape->gate_up != MF_GATE_UP_ANY; i++) {
        const struct mf_tensor_spec *a = &step->needs[i];
        const struct mf_layout *l = mf_layout_find(a->order);
        if (a->tensor != MF_TENSOR_W1 || (l && mf_layout_gate_up(l) == f->shape->gate_up))
            continue;
        int r = f->to->reject(f->to, f->family->name, step->name, "gate_up",
                              "gate and up of w1 are stored %s; %s needs them %s (layout %s)",
                              mf_gate_up_name(f->shape->gate_up), step->name,
                              l ? mf_gate_up_name(mf_layout_gate_up(l)) : "in another order", a->order);
        return r < 0 ? r : 1;
    }
    return 0;
}

static int pass_step(struct mf_offer *o, const struct mf_step *step)
{
    const struct filter *f = (const struct filter *)o;
    struct mf_step marked = *step;
    int r = refuse_gate_up(f, step);
    if (r != 0)
        return MF_MIN(r, 0);
    marked.saved = mf_fusion_saved(&f->graph, step->covers);
    marked.aiter = step->aiter || (f->family->aiter_name && f->family->aiter_name(step->name));
    return f->to->step(f->to, &marked);
}

__attribute__((format(printf, 5, 6))) static int pass_reject(struct mf_offer *o, const char *family,
                                                             const char *kernel, const char *rule,
                                                             const char *format, ...)
{
    struct mf_offer *to = ((struct filter *)o)->to;
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return to->reject(to, family, kernel, rule, "%s", reason);
}

int mf_family_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                        const struct mf_shape *shape, struct mf_offer *offer)
{
    struct filter filter = {
        .offer = {.step = pass_step, .reject = pass_reject}, .to = offer, .family = f, .shape = shape};
    if (shape->ep_experts > 0 && !f->supports_ep)
        return offer->reject(offer, f->name, f->name, "ep",
                             "the shape has the local experts %d to %d of %d; %s does not support expert "
                             "parallelism",
                             shape->ep_first, shape->ep_first + shape->expert - 1, shape->ep_experts,
                             f->name);
    mf_graph_of(shape, &filter.graph);
    return f->enumerate(f, device, shape, &filter.offer);
}

int mf_enumerate(const struct mf_device_info *device, const struct mf_shape *shape, const char *only,
                 struct mf_offer *offer)
{
    for (size_t i = 0; i < n_families; i++) {
        const struct mf_family *f = families[i];
        if (strcmp(f->device_kind, kind_of(device)) != 0 || !mf_family_is_listed(only, f->name) ||
            (!only && mf_family_on_request(f)))
            continue;
        int r = mf_family_enumerate(f, device, shape, offer);
        if (r < 0)
            return r;
    }
    return 0;
}
