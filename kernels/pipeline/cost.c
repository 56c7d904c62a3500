#include "kernels/pipeline/cost.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/moe/pipeline_search.h"
#include "common/moe/pipeline_text.h"
#include "kernels/families/family_cpu.h"

/* Peak rates for the roofline estimate: measured rates if the device has them, otherwise nominal rates. Only
 * the ratio of the nominal rates matters. */
struct balance {
    double gflops, gbs, gap_us;
    double cache; /* rate of reading weights again from a cache, divided by gbs */
};
static struct balance balance_of(const struct mf_device *d)
{
    static const struct balance gpu = {800e3, 4000, 2, 2}, cpu = {400, 50, 0.5, 4};
    const struct mf_device_info *i = &d->info;
    struct balance nominal = strcmp(d->ops->kind, "cpu") == 0 ? cpu : gpu;

    if (i->peak_gflops_bf16 > 0 && i->mem_read_gbs > 0)
        nominal = (struct balance){i->peak_gflops_bf16, i->mem_read_gbs, i->gap_us, nominal.cache};
    return nominal;
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

/* Compute time and memory time overlap. The estimate is the longer time plus 1/OVERLAP of the shorter time.
 */
#define OVERLAP 4

double mf_cost_of_step(const struct mf_device *device, const struct mf_shape *s, const struct mf_step *step)
{
    const struct balance b = balance_of(device);
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
                bytes += (blocks - 1) / b.cache * active * mf_cpu_expert_bytes(s, MF_TENSOR_W1 + i);
        }
    }
    if (strcmp(device->ops->kind, "cpu") == 0)
        share = fmin(threads_of(step) / fmax(device->info.cores, 1), 1);
    computing = flops / (b.gflops * bits * 1e3);
    reading = bytes / (b.gbs * 1e3);
    return (fmax(computing, reading) + fmin(computing, reading) / OVERLAP) / share;
}

double mf_cost_of_gap(const struct mf_device *device)
{
    return balance_of(device).gap_us;
}

/* ---- a pipeline at another shape ---- */

struct sum {
    struct mf_offer offer; /* must be first: the callback casts its address to this struct */
    const struct mf_device *device;
    const struct mf_shape *shape;
    const char *family, *step;
    double us;
};

static int take_step(struct mf_offer *offer, const struct mf_step *step)
{
    struct sum *s = (struct sum *)offer;

    if (strcmp(step->name, s->step) == 0)
        s->us = mf_cost_of_step(s->device, s->shape, step);
    return 0;
}

int mf_cost_of_pipeline(const struct mf_device *device, const struct mf_shape *shape,
                        const struct mf_family_set *extra, const char *names, double *ret_us)
{
    char family[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
    const char *name;
    double us = 0;
    size_t len;

    while (mf_pipeline_text_next(&names, &name, &len)) {
        struct sum s = {
            {take_step, mf_offer_ignore_rejection}, device, shape, family, step, (double)INFINITY};
        const struct mf_family *f = NULL;
        int r = 0;
        if (mf_step_name_split(name, len, family, step) == 0)
            f = mf_family_set_find(extra, device->ops->kind, family);
        if (f)
            r = mf_family_enumerate(f, &device->info, shape, &s.offer);
        if (r < 0)
            return r;
        us += s.us + mf_cost_of_gap(device);
    }
    *ret_us = us;
    return 0;
}

/* ---- distance ---- */

static double doublings(double from, double to)
{
    return fabs(log2(to / from));
}

/* Returns the average number of rows of an active expert. */
static double rows_per_expert(const struct mf_shape *s)
{
    return fmax(mf_cpu_slots(s) / fmax(mf_layer_expected_active(s), 1), 1);
}

double mf_cost_of_distance(const struct mf_shape *asked, const struct mf_shape *row)
{
    struct mf_shape same = *row;

    if (mf_shape_same_layer_model(asked, row))
        return (asked->token < row->token ? MF_COST_FEWER_TOKENS : MF_COST_MORE_TOKENS) *
               doublings((double)row->token, (double)asked->token);
    same.model_dim = asked->model_dim;
    same.inter_dim = asked->inter_dim;
    same.expert = asked->expert;
    same.topk = asked->topk;
    same.ep_first = asked->ep_first;
    same.ep_experts = asked->ep_experts;
    if (!mf_shape_same_layer_model(asked, &same))
        return (double)INFINITY;
    return MF_COST_OTHER_LAYER +
           (rows_per_expert(asked) < rows_per_expert(row) ? MF_COST_FEWER_TOKENS : MF_COST_MORE_TOKENS) *
               doublings(rows_per_expert(row), rows_per_expert(asked)) +
           MF_COST_OTHER_SIZE *
               (doublings(row->model_dim, asked->model_dim) + doublings(row->inter_dim, asked->inter_dim));
}
