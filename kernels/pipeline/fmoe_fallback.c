/* Chooses a pipeline for a call without a table row: see mf_fmoe_fallback. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/pipeline_search.h"
#include "kernels/families/family_cpu.h"
#include "kernels/pipeline/fmoe.h"

/* Steps offered for the shape, with estimated times. */
struct offered {
    struct mf_offer offer; /* must be first: the callbacks cast its address to this struct */
    const struct mf_device *device;
    const struct mf_shape *shape;
    const char *layout[2]; /* required layouts of w1 and w2; NULL: any layout */
    struct mf_step *steps;
    double *us;
    size_t n, cap_steps, cap_us;
};

/* ---- estimates ---- */

/* Peak rates for the roofline estimate: measured rates if the device has them, otherwise nominal rates. Only
 * the ratio of the nominal rates matters. */
struct balance {
    double gflops, gbs, gap_us;
};
static struct balance balance_of(const struct mf_device *d)
{
    static const struct balance gpu = {800e3, 4000, 2}, cpu = {400, 50, 0.5};
    const struct mf_device_info *i = &d->info;

    if (i->peak_gflops_bf16 > 0 && i->mem_read_gbs > 0)
        return (struct balance){i->peak_gflops_bf16, i->mem_read_gbs, i->gap_us};
    return strcmp(d->ops->kind, "cpu") == 0 ? cpu : gpu;
}

/* Returns the number of CPU threads of a step: N in "_t<N>" in its name, or 1 if its name has no "_t<N>". */
static double threads_of(const struct mf_step *step)
{
    double threads = 1;

    for (const char *at = strstr(step->name, "_t"); at; at = strstr(at + 1, "_t")) {
        char *end;
        long n = strtol(at + 2, &end, 10);
        if (end > at + 2 && (*end == '\0' || *end == '_') && n > 0)
            threads = (double)n;
    }
    return threads;
}

/* reading weights from a cache is this many times faster than reading them from memory */
#define CACHE_SPEEDUP 4
/* Compute time and memory time overlap. The estimate is the longer time plus 1/OVERLAP of the shorter time.
 */
#define OVERLAP 4

static double estimate(const struct offered *o, const struct mf_step *step)
{
    const struct mf_shape *s = o->shape;
    const struct balance b = balance_of(o->device);
    const double bits = s->q_dtype_w == MF_DTYPE_BF16 ? 1 : 2, slots = mf_cpu_slots(s);
    const double active = fmax(mf_layer_expected_active(s), 1), rows = fmax(slots / active, 1);
    double flops = step->flops, bytes = step->bytes, share = 1, computing, reading;

    if (step->block_m > 0 && step->flops > 0) {
        /* on average, the last block of an expert is half full */
        const double blocks = fmax(rows / step->block_m + 0.5, 1);
        const mf_ops both[2] = {MF_OP_BIT(MF_OP_GEMM1), MF_OP_BIT(MF_OP_GEMM2)};
        flops *= blocks * step->block_m / rows;
        for (int i = 0; i < 2; i++) {
            if (step->covers & both[i])
                bytes += (blocks - 1) / CACHE_SPEEDUP * active * mf_cpu_expert_bytes(s, MF_TENSOR_W1 + i);
        }
    }
    if (strcmp(o->device->ops->kind, "cpu") == 0)
        share = fmin(threads_of(step) / fmax(o->device->info.cores, 1), 1);
    computing = flops / (b.gflops * bits * 1e3);
    reading = bytes / (b.gbs * 1e3);
    return (fmax(computing, reading) + fmin(computing, reading) / OVERLAP) / share;
}

/* ---- collecting ---- */

static bool fits_layouts(const struct offered *o, const struct mf_step *step)
{
    for (int i = 0; i < step->n_needs; i++) {
        const struct mf_tensor_spec *a = &step->needs[i];
        const char *layout = a->tensor == MF_TENSOR_W1   ? o->layout[0]
                             : a->tensor == MF_TENSOR_W2 ? o->layout[1]
                                                         : NULL;
        if (layout && strcmp(layout, a->order) != 0)
            return false;
    }
    return true;
}

static int take_step(struct mf_offer *offer, const struct mf_step *step)
{
    struct offered *o = (struct offered *)offer;

    if (!fits_layouts(o, step))
        return 0;
    int r = mf_array_grow(&o->steps, o->n, &o->cap_steps, sizeof(*o->steps));
    if (r == 0)
        r = mf_array_grow(&o->us, o->n, &o->cap_us, sizeof(*o->us));
    if (r < 0)
        return r;
    o->us[o->n] = estimate(o, step);
    o->steps[o->n++] = *step;
    return 0;
}

static int collect(struct offered *o, const struct mf_family_set *extra)
{
    int r = 0;

    for (size_t i = 0; extra && i < extra->n && r == 0; i++) {
        if (strcmp(extra->families[i]->device_kind, o->device->ops->kind) == 0)
            r = mf_family_enumerate(extra->families[i], &o->device->info, o->shape, &o->offer);
    }
    return r < 0 ? r : mf_enumerate(&o->device->info, o->shape, NULL, &o->offer);
}

/* ---- rows ---- */

static bool is_offered(const struct offered *o, const char *family, const char *step)
{
    for (size_t i = 0; i < o->n; i++) {
        if (strcmp(o->steps[i].family, family) == 0 && strcmp(o->steps[i].name, step) == 0)
            return true;
    }
    return false;
}

static bool all_offered(const struct offered *o, const char *pipeline)
{
    char family[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
    const char *name;
    size_t len;

    while (mf_pipeline_text_next(&pipeline, &name, &len)) {
        if (mf_step_name_split(name, len, family, step) < 0 || !is_offered(o, family, step))
            return false;
    }
    return true;
}

/* Returns the distance of a row from the shape. The smallest distances are those of rows of the same layer
 * model: -2000 and above for larger token counts, -1000 and above for smaller ones. Within each group, nearer
 * rows have smaller distances. INFINITY if the row is not comparable. */
static double distance(const struct mf_shape *asked, const struct mf_shape *row)
{
    struct mf_shape same = *row;

    if (mf_shape_same_layer_model(asked, row)) {
        double ratio = log2((double)row->token / (double)asked->token);
        return ratio > 0 ? -2000 + ratio : -1000 - ratio;
    }
    same.model_dim = asked->model_dim;
    same.inter_dim = asked->inter_dim;
    same.expert = asked->expert;
    same.topk = asked->topk;
    same.ep_first = asked->ep_first;
    same.ep_experts = asked->ep_experts;
    if (!mf_shape_same_layer_model(asked, &same))
        return (double)INFINITY;
    return fabs(log2((double)row->token / (double)asked->token)) +
           fabs(log2((double)row->model_dim / asked->model_dim)) +
           fabs(log2((double)row->inter_dim / asked->inter_dim)) +
           fabs(log2((double)row->expert / asked->expert)) + fabs(log2((double)row->topk / asked->topk));
}

/* Finds the nearest row whose steps are all offered. Returns -ENOENT if no row has all steps offered. */
static int nearest_row(const struct mf_fmoe *f, const struct offered *o, struct mf_fmoe_choice *ret)
{
    double least = (double)INFINITY;

    for (size_t i = 0; i < mf_fmoe_n_rows(f); i++) {
        struct mf_shape shape;
        const char *names;
        double us, away;

        (void)mf_fmoe_row(f, i, &shape, &us, &names);
        away = distance(o->shape, &shape);
        if (!(away < least) || !all_offered(o, names) || mf_copy(ret->names, sizeof(ret->names), names) < 0)
            continue;
        least = away;
        ret->row = i;
    }
    return least < (double)INFINITY ? 0 : -ENOENT;
}

/* ---- the estimate ---- */

static int cheapest(const struct offered *o, char *why, size_t why_cap, struct mf_fmoe_choice *ret)
{
    _cleanup_(mf_freep) struct mf_path_step *steps = calloc(o->n + 1, sizeof(*steps));
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    struct mf_path_problem problem = {
        .ops = mf_layer_ops(o->shape),
        .format = MF_FORMAT_BF16,
        .steps = steps,
        .n_steps = o->n,
        .gap_us = balance_of(o->device).gap_us,
        .keep = 1,
    };
    size_t n = 0;
    int r;

    if (!steps)
        return -ENOMEM;
    for (size_t i = 0; i < o->n; i++)
        steps[i] = (struct mf_path_step){&o->steps[i], o->us[i]};
    r = mf_path_find(&problem, &paths, &n);
    if (r < 0)
        return r;
    if (n == 0) {
        mf_format(why, why_cap, "no pipeline of this build covers the layer on %s/%d",
                  o->device->info.class.gfx, o->device->info.class.cu_num);
        return -ENOENT;
    }
    ret->names[0] = '\0';
    for (int32_t i = 0; i < paths[0].n; i++) {
        const struct mf_step *step = &o->steps[paths[0].steps[i]];
        (void)mf_pipeline_text_add(ret->names, sizeof(ret->names), step->family, step->name);
    }
    ret->row = SIZE_MAX;
    return 0;
}

int mf_fmoe_fallback(const struct mf_fmoe *f, const struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *w1, const char *w2, char *why,
                     size_t why_cap, struct mf_fmoe_choice *ret)
{
    struct offered o = {.offer = {take_step, mf_offer_ignore_rejection},
                        .device = device,
                        .shape = shape,
                        .layout = {w1, w2}};
    int r = collect(&o, extra);

    mf_format(why, why_cap, "%s", "");
    if (r >= 0)
        r = f ? nearest_row(f, &o, ret) : -ENOENT;
    if (r == -ENOENT)
        r = cheapest(&o, why, why_cap, ret);
    if (r < 0 && !*why)
        mf_format(why, why_cap, "choosing a pipeline: %s", strerror(-r));
    free(o.steps);
    free(o.us);
    return r;
}
