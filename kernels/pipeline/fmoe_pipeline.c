#include "kernels/pipeline/fmoe.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/pipeline_search.h"

#define ALIGN            64
#define MAX_TENSOR_SPECS (2 * MF_PATH_STEPS_MAX * MF_STEP_TENSOR_SPECS_MAX)

/* A buffer of the pipeline. If two steps write the same tensor spec, each step's output has its own slot. */
struct slot {
    struct mf_tensor_spec tensor_spec;
    int n_parts;
    size_t part_at[MF_PARTS_MAX]; /* offset of each part in the slot */
    size_t bytes;                 /* bytes of all parts, each of them aligned */
    /* first and last step that use the slot; first = -1: the caller supplies the buffer */
    int first, last;
    /* index of the slot whose memory this slot shares because a step accumulates into it; -1: own memory */
    int aliases;
    size_t offset; /* offset in the arena */
    bool is_bound_by_caller;
};

/* Addresses of a step's buffers. */
struct refs {
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX], gives[MF_STEP_TENSOR_SPECS_MAX];
};

struct bound_step {
    struct mf_step step;
    const struct mf_family *family;
    struct mf_kernel *kernel;
    int needs[MF_STEP_TENSOR_SPECS_MAX], gives[MF_STEP_TENSOR_SPECS_MAX]; /* indices of the slots */
    struct refs refs;                                                     /* of the bound arguments */
    struct mf_launch launch;
};

struct mf_pipeline {
    struct mf_device *device;
    struct mf_shape shape; /* at open */
    size_t n_steps;
    struct bound_step steps[MF_PATH_STEPS_MAX];
    size_t n_slots;
    struct slot slots[MAX_TENSOR_SPECS];
    size_t arena_bytes, workspace_offset;
};

/* ---- finding a step by its name ---- */

struct finder {
    struct mf_offer offer; /* must be first: the callbacks cast its address to this struct */
    const char *name;
    struct mf_step *found;
    bool is_found;
    char *why;
    size_t why_cap;
};

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct finder *f = (struct finder *)o;
    if (strcmp(step->name, f->name) != 0)
        return 0;
    *f->found = *step;
    f->is_found = true;
    return 0;
}

__attribute__((format(printf, 5, 6))) static int take_rejection(struct mf_offer *o, const char *family,
                                                                const char *kernel, const char *rule,
                                                                const char *format, ...)
{
    struct finder *f = (struct finder *)o;
    if (strcmp(kernel, f->name) != 0 && strcmp(kernel, family) != 0)
        /* a rejection applies to one step or, if `kernel` is the family's name, to all its steps */
        return 0;
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    mf_format(f->why, f->why_cap, "%s:%s is not legal for this shape (%s): %s", family, kernel, rule, reason);
    return 0;
}

static int find_family(const struct mf_pipeline *p, const struct mf_family_set *extra, const char *name,
                       struct bound_step *b, char *why, size_t cap)
{
    b->family = mf_family_set_find(extra, p->device->ops->kind, name);
    if (b->family && strcmp(b->family->device_kind, p->device->ops->kind) == 0)
        return 0;
    mf_format(why, cap, "unknown family \"%s\" for a %s device", name, p->device->ops->kind);
    return -EINVAL;
}

static int find_step(struct mf_pipeline *p, const struct mf_family_set *extra, const char *name, size_t len,
                     struct bound_step *b, char *why, size_t cap)
{
    char family[MF_FAMILY_NAME_MAX], step_name[MF_STEP_NAME_MAX];
    if (mf_step_name_split(name, len, family, step_name) < 0) {
        mf_format(why, cap, "invalid step \"%.*s\": expected family:step", (int)len, name);
        return -EINVAL;
    }
    int r = find_family(p, extra, family, b, why, cap);
    if (r < 0)
        return r;
    struct finder f = {.offer = {take_step, take_rejection},
                       .name = step_name,
                       .found = &b->step,
                       .why = why,
                       .why_cap = cap};
    mf_format(why, cap, "family %s offers no step %s for this shape on %s/%d", b->family->name, step_name,
              p->device->info.class.gfx, p->device->info.class.cu_num);
    r = mf_family_enumerate(b->family, &p->device->info, &p->shape, &f.offer);
    if (r < 0)
        return r;
    return f.is_found ? 0 : -EINVAL;
}

static int open_kernel(struct mf_pipeline *p, struct bound_step *b, char *why, size_t cap)
{
    p->device->open_error[0] = '\0';
    int r = b->family->open(b->family, p->device, &p->shape, b->step.name, &b->kernel);
    if (r < 0)
        mf_format(why, cap, "cannot open %s:%s for this shape: %s", b->family->name, b->step.name,
                  *p->device->open_error ? p->device->open_error : strerror(-r));
    return r;
}

/* ---- wiring ---- */

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static int add_slot(struct mf_pipeline *p, const struct mf_tensor_spec *a, int first, char *why, size_t cap)
{
    struct slot *s = &p->slots[p->n_slots];
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    struct mf_part parts[MF_PARTS_MAX];
    *s = (struct slot){.tensor_spec = *a, .first = first, .last = first, .aliases = -1};
    s->n_parts = mf_tensor_spec_parts(a, &p->shape, parts);
    if (s->n_parts < 0) {
        mf_tensor_spec_print(a, text);
        mf_format(why, cap, "the shape has no tensor spec %s", text);
        return -EINVAL;
    }
    for (int i = 0; i < s->n_parts; i++) {
        s->part_at[i] = s->bytes;
        s->bytes += align_up((size_t)mf_part_bytes(&parts[i]));
    }
    return (int)p->n_slots++;
}

/* Returns the last slot with this tensor spec, or -1 if no step writes the spec. */
static int find_slot(const struct mf_pipeline *p, const struct mf_tensor_spec *a)
{
    for (size_t i = p->n_slots; i-- > 0;) {
        if (mf_tensor_spec_equal(&p->slots[i].tensor_spec, a))
            return (int)i;
    }
    return -1;
}

static bool is_accumulation(const struct mf_tensor_spec *need, const struct mf_tensor_spec *give)
{
    struct mf_tensor_spec plain = *need;
    plain.zeroed = false;
    return need->zeroed && mf_tensor_spec_equal(&plain, give);
}

static int wire_needs(struct mf_pipeline *p, int at, char *why, size_t cap)
{
    struct bound_step *b = &p->steps[at];
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    for (int i = 0; i < b->step.n_needs; i++) {
        const struct mf_tensor_spec *a = &b->step.needs[i];
        int slot = find_slot(p, a);
        if (slot < 0 && (mf_tensor_spec_is_input(a) || mf_tensor_spec_is_weight(a)))
            slot = add_slot(p, a, -1, why, cap);
        else if (slot < 0) {
            mf_tensor_spec_print(a, text);
            mf_format(why, cap, "%s needs %s, which no earlier step gives", b->step.name, text);
        }
        if (slot < 0)
            return -EINVAL;
        b->needs[i] = slot;
        p->slots[slot].last = at;
    }
    return 0;
}

/* Returns the slot that owns the memory of `slot`. The memory must stay live as long as any slot that shares
 * it. */
static int owner_of(const struct mf_pipeline *p, int slot)
{
    while (p->slots[slot].aliases >= 0)
        slot = p->slots[slot].aliases;
    return slot;
}

static int wire_gives(struct mf_pipeline *p, int at, char *why, size_t cap)
{
    struct bound_step *b = &p->steps[at];
    for (int i = 0; i < b->step.n_gives; i++) {
        int slot = add_slot(p, &b->step.gives[i], at, why, cap);
        if (slot < 0)
            return -EINVAL;
        b->gives[i] = slot;
        for (int n = 0; n < b->step.n_needs; n++) {
            if (is_accumulation(&b->step.needs[n], &b->step.gives[i]))
                p->slots[slot].aliases = owner_of(p, b->needs[n]);
        }
    }
    return 0;
}

static int check_cover(struct mf_pipeline *p, char *why, size_t cap)
{
    mf_ops all = mf_layer_ops(&p->shape), covered = 0;
    char text[MF_OPS_TEXT_MAX];
    for (size_t i = 0; i < p->n_steps; i++) {
        mf_ops twice = covered & p->steps[i].step.covers;
        if (twice) {
            mf_ops_print(twice, text);
            mf_format(why, cap, "%s covers %s, which an earlier step covers", p->steps[i].step.name, text);
            return -EINVAL;
        }
        covered |= p->steps[i].step.covers;
    }
    if (covered == all)
        return 0;
    mf_ops_print(all & ~covered ? all & ~covered : covered & ~all, text);
    mf_format(why, cap, all & ~covered ? "no step covers %s" : "the layer has no %s", text);
    return -EINVAL;
}

static struct mf_tensor_spec output_of(void)
{
    return (struct mf_tensor_spec){.tensor = MF_TENSOR_Y, .format = MF_FORMAT_BF16, .order = "token"};
}

static bool is_bound_by_caller(const struct mf_pipeline *p, int slot)
{
    int owner = owner_of(p, slot);
    const struct mf_tensor_spec y = output_of();
    struct mf_tensor_spec a = p->slots[slot].tensor_spec;
    a.zeroed = false;
    return p->slots[owner].first < 0 || mf_tensor_spec_equal(&a, &y);
}

/* ---- the arena ---- */

static bool lifetimes_overlap(const struct slot *a, const struct slot *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Returns the lowest offset at which s overlaps no slot that is already placed and live at the same time. */
static size_t find_offset(const struct mf_pipeline *p, const int *placed, size_t n_placed,
                          const struct slot *s)
{
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < n_placed; i++) {
            const struct slot *o = &p->slots[placed[i]];
            if (lifetimes_overlap(o, s) && at < o->offset + o->bytes && o->offset < at + s->bytes) {
                at = o->offset + o->bytes;
                moved = true;
            }
        }
    }
    return at;
}

static void lay_out(struct mf_pipeline *p)
{
    int placed[MAX_TENSOR_SPECS];
    size_t n_placed = 0, workspace = 0;
    for (size_t i = 0; i < p->n_slots; i++) {
        struct slot *owner = &p->slots[owner_of(p, (int)i)];
        owner->last = MF_MAX(owner->last, p->slots[i].last);
        p->slots[i].is_bound_by_caller = is_bound_by_caller(p, (int)i);
    }
    for (size_t i = 0; i < p->n_slots; i++) {
        struct slot *s = &p->slots[i];
        if (s->aliases >= 0 || s->is_bound_by_caller)
            continue;
        s->offset = find_offset(p, placed, n_placed, s);
        placed[n_placed++] = (int)i;
        p->arena_bytes = MF_MAX(p->arena_bytes, s->offset + s->bytes);
    }
    for (size_t i = 0; i < p->n_steps; i++)
        workspace = MF_MAX(workspace, (size_t)p->steps[i].step.workspace_bytes);
    p->workspace_offset = p->arena_bytes;
    p->arena_bytes += align_up(workspace);
}

/* ---- the calls ---- */

static int wire(struct mf_pipeline *p, char *why, size_t cap)
{
    const struct mf_tensor_spec y = output_of();
    for (size_t i = 0; i < p->n_steps; i++) {
        int r = wire_needs(p, (int)i, why, cap);
        if (r == 0)
            r = wire_gives(p, (int)i, why, cap);
        if (r < 0)
            return r;
    }
    int out = find_slot(p, &y);
    if (out < 0) {
        mf_format(why, cap, "no step gives the layer's output, y in bf16");
        return -EINVAL;
    }
    return check_cover(p, why, cap);
}

static int check_single_layout(const struct mf_pipeline *p, char *why, size_t cap)
{
    const struct mf_tensor_spec *seen[2] = {NULL, NULL};
    for (size_t i = 0; i < p->n_slots; i++) {
        const struct mf_tensor_spec *a = &p->slots[i].tensor_spec;
        if (!mf_tensor_spec_is_weight(a))
            continue;
        int w = a->tensor == MF_TENSOR_W2;
        if (seen[w]) {
            mf_format(why, cap, "%s is used in two layouts, %s and %s; a weight is stored once",
                      mf_tensor_name(a->tensor), seen[w]->order, a->order);
            return -EINVAL;
        }
        seen[w] = a;
    }
    return 0;
}

/* The steps of a pipeline to open: by name or, if text is NULL, as their families offered them. */
struct recipe {
    const char *text;
    const struct mf_step *steps;
    size_t n;
};

static int find_steps(struct mf_pipeline *p, const struct mf_family_set *extra, const struct recipe *of,
                      char *why, size_t why_cap)
{
    const char *at = of->text, *name;
    size_t len;
    int r = 0;
    for (size_t i = 0; i < of->n && r == 0; i++) {
        struct bound_step *b = &p->steps[p->n_steps++];
        if (!of->text) {
            b->step = of->steps[i];
            r = find_family(p, extra, b->step.family, b, why, why_cap);
        } else if (mf_pipeline_text_next(&at, &name, &len)) {
            r = find_step(p, extra, name, len, b, why, why_cap);
        }
        if (r == 0)
            r = open_kernel(p, b, why, why_cap);
    }
    return r;
}

static int open_recipe(struct mf_device *device, const struct mf_shape *shape,
                       const struct mf_family_set *extra, const struct recipe *of, char *why, size_t why_cap,
                       struct mf_pipeline **ret)
{
    if (of->n > MF_PATH_STEPS_MAX) {
        mf_format(why, why_cap, "the pipeline has %zu steps: expected 1 to %d", of->n, MF_PATH_STEPS_MAX);
        return -EINVAL;
    }
    struct mf_pipeline *p = calloc(1, sizeof(*p));
    if (!p) {
        mf_format(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    p->device = device;
    p->shape = *shape;
    int r = find_steps(p, extra, of, why, why_cap);
    if (r == 0)
        r = wire(p, why, why_cap);
    if (r == 0)
        r = check_single_layout(p, why, why_cap);
    if (r < 0) {
        mf_pipeline_close(p);
        return r == -ENOMEM ? r : -EINVAL;
    }
    lay_out(p);
    mf_format(why, why_cap, "%s", "");
    *ret = p;
    return 0;
}

int mf_pipeline_open(struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                     struct mf_pipeline **ret)
{
    struct recipe of = {.text = text};
    const char *at = text, *name;
    size_t len;
    while (mf_pipeline_text_next(&at, &name, &len))
        of.n++;
    return open_recipe(device, shape, extra, &of, why, why_cap, ret);
}

int mf_pipeline_open_steps(struct mf_device *device, const struct mf_shape *shape,
                           const struct mf_family_set *extra, const struct mf_step *steps, size_t n,
                           char *why, size_t why_cap, struct mf_pipeline **ret)
{
    const struct recipe of = {.steps = steps, .n = n};
    return open_recipe(device, shape, extra, &of, why, why_cap, ret);
}

struct mf_pipeline *mf_pipeline_close(struct mf_pipeline *p)
{
    for (size_t i = 0; p && i < p->n_steps; i++) {
        if (p->steps[i].kernel)
            p->steps[i].family->close(p->steps[i].kernel);
    }
    free(p);
    return NULL;
}

size_t mf_pipeline_arena_bytes(const struct mf_pipeline *p)
{
    return p->arena_bytes;
}

size_t mf_pipeline_n_steps(const struct mf_pipeline *p)
{
    return p->n_steps;
}

const struct mf_step *mf_pipeline_step(const struct mf_pipeline *p, size_t i)
{
    return &p->steps[i].step;
}

struct mf_tensor_spec mf_pipeline_weight(const struct mf_pipeline *p, enum mf_tensor w)
{
    for (size_t i = 0; i < p->n_slots; i++) {
        if (p->slots[i].tensor_spec.tensor == w)
            return p->slots[i].tensor_spec;
    }
    return mf_plain_w(&p->shape, w, "row");
}

/* A bound tensor that is not an input is the output y. */
static struct mf_tensor_ref caller_ref(const struct mf_tensor_spec *a, const struct mf_fmoe_args *args)
{
    const struct mf_tensor_ref *const inputs[MF_TENSOR_N_] = {
        [MF_TENSOR_X] = &args->x,   [MF_TENSOR_TOPK] = &args->topk,   [MF_TENSOR_W1] = &args->w1,
        [MF_TENSOR_W2] = &args->w2, [MF_TENSOR_CALIB] = &args->calib, [MF_TENSOR_B1] = &args->b1,
        [MF_TENSOR_B2] = &args->b2,
    };
    return inputs[a->tensor] ? *inputs[a->tensor] : args->y;
}

static struct mf_tensor_ref ref_of(const struct mf_pipeline *p, int slot, const struct mf_fmoe_args *args)
{
    const struct slot *s = &p->slots[slot];
    uint8_t *at = (uint8_t *)args->arena + p->slots[owner_of(p, slot)].offset;
    struct mf_tensor_ref ref = {0};
    if (s->is_bound_by_caller)
        return caller_ref(&s->tensor_spec, args);
    for (int i = 0; i < s->n_parts; i++)
        ref.part[i] = at + s->part_at[i];
    return ref;
}

struct mf_tensor_ref mf_pipeline_between(const struct mf_pipeline *p, enum mf_tensor tensor,
                                         enum mf_format format, const struct mf_fmoe_args *args,
                                         int64_t *ret_rows, size_t *ret_step)
{
    for (size_t i = 0; i < p->n_slots; i++) {
        const struct slot *s = &p->slots[i];
        if (s->tensor_spec.tensor != tensor || s->tensor_spec.format != format || s->is_bound_by_caller)
            continue;
        struct mf_part parts[MF_PARTS_MAX];
        (void)mf_tensor_spec_parts(&s->tensor_spec, &p->shape, parts);
        *ret_rows = parts[0].rows;
        *ret_step = (size_t)s->first;
        return ref_of(p, (int)i, args);
    }
    return (struct mf_tensor_ref){0};
}

/* Sets the step's buffers in `refs`, and returns the arguments of its launch, which point to `refs`. */
static struct mf_launch launch_of(const struct mf_pipeline *p, const struct bound_step *b,
                                  const struct mf_fmoe_args *args, struct refs *refs)
{
    for (int i = 0; i < b->step.n_needs; i++)
        refs->needs[i] = ref_of(p, b->needs[i], args);
    for (int i = 0; i < b->step.n_gives; i++)
        refs->gives[i] = ref_of(p, b->gives[i], args);
    return (struct mf_launch){.needs = refs->needs,
                              .gives = refs->gives,
                              .workspace = (uint8_t *)args->arena + p->workspace_offset,
                              .routes = args->routes};
}

void mf_pipeline_bind(struct mf_pipeline *p, const struct mf_fmoe_args *args)
{
    for (size_t i = 0; i < p->n_steps; i++)
        p->steps[i].launch = launch_of(p, &p->steps[i], args, &p->steps[i].refs);
}

static int call_step(const struct mf_pipeline *p, const struct bound_step *b, int64_t token,
                     const struct mf_fmoe_args *args, void *stream)
{
    _Alignas(max_align_t) uint8_t copy[MF_KERNEL_COPY_MAX];
    struct mf_kernel *k = b->family->copy ? b->family->copy(b->kernel, stream, copy) : b->kernel;
    struct refs refs;
    const struct mf_launch launch = launch_of(p, b, args, &refs);
    if (b->family->set_token_count)
        b->family->set_token_count(k, token);
    return b->family->launch(k, &launch);
}

int mf_pipeline_call(const struct mf_pipeline *p, int64_t token, const struct mf_fmoe_args *args,
                     void *stream)
{
    if (token < 1 || token > p->shape.token)
        return -EINVAL;
    for (size_t i = 0; i < p->n_steps; i++) {
        if (!p->steps[i].family->set_token_count && token != p->shape.token)
            return -ENOTSUP;
    }
    int r = 0;
    for (size_t i = 0; i < p->n_steps && r >= 0; i++)
        r = call_step(p, &p->steps[i], token, args, stream);
    return r;
}

static int prepare_step(const struct bound_step *b)
{
    return b->family->prepare ? b->family->prepare(b->kernel, &b->launch) : 0;
}

int mf_pipeline_prepare(struct mf_pipeline *p)
{
    int r = 0;
    for (size_t i = 0; i < p->n_steps && r >= 0; i++)
        r = prepare_step(&p->steps[i]);
    return r;
}

bool mf_pipeline_captures(const struct mf_pipeline *p)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        if (p->steps[i].family->captures)
            return true;
    }
    return false;
}

int mf_pipeline_warm_up(struct mf_pipeline *p)
{
    int r = 0;
    for (size_t i = 0; i < p->n_steps && r >= 0; i++) {
        r = prepare_step(&p->steps[i]);
        if (r >= 0)
            r = mf_pipeline_launch(p, i);
        if (r >= 0 && p->device->ops->sync)
            r = p->device->ops->sync(p->device);
    }
    return r;
}

int mf_pipeline_finish(struct mf_pipeline *p)
{
    int r = 0;
    for (size_t i = 0; i < p->n_steps && r >= 0; i++) {
        const struct bound_step *b = &p->steps[i];
        r = b->family->finish ? b->family->finish(b->kernel, &b->launch) : 0;
    }
    return r;
}

const char *mf_pipeline_eager(const struct mf_pipeline *p, const struct mf_step **ret_step)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct bound_step *b = &p->steps[i];
        const char *why = b->family->eager ? b->family->eager(b->kernel) : NULL;
        if (why) {
            *ret_step = &b->step;
            return why;
        }
    }
    return NULL;
}

int mf_pipeline_launch(struct mf_pipeline *p, size_t i)
{
    return p->steps[i].family->launch(p->steps[i].kernel, &p->steps[i].launch);
}

int mf_pipeline_run(struct mf_pipeline *p)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        int r = mf_pipeline_launch(p, i);
        if (r < 0)
            return r;
    }
    return 0;
}
