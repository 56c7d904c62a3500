#include "server/choose/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fixed cost of a step in seconds: to open the kernel, verify it and record the result. */
#define STEP_FIXED_S 0.015
/* Number of runs of a step that is not dropped early: two verified, one warm-up, twenty timed. */
#define STEP_CALLS 23
/* Typical time of a step, as a multiple of its time at the device's ceiling. It is large, because most
 * kernels are several times slower than the best. */
#define STEP_SLOWER 4.0

double mf_plan_step_s(const struct mf_step_row *step, const struct mf_ceilings *ceilings)
{
    double us = 10;
    if (ceilings->peak_gflops > 0)
        us = fmax(us, step->flops / (ceilings->peak_gflops * 1e3));
    if (ceilings->mem_read_gbs > 0)
        us = fmax(us, step->bytes / (ceilings->mem_read_gbs * 1e3));
    return STEP_FIXED_S + STEP_CALLS * STEP_SLOWER * us * 1e-6;
}

static int compare(const void *va, const void *vb)
{
    const struct mf_step_row *a = va, *b = vb;
    if (a->block_m != b->block_m)
        return a->block_m < b->block_m ? -1 : 1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->covers != b->covers)
        return a->covers < b->covers ? -1 : 1;
    int c = strcmp(a->family, b->family);
    if (c == 0)
        c = (a->offered_by > b->offered_by) - (a->offered_by < b->offered_by);
    return c ? c : strcmp(a->name, b->name);
}

size_t mf_plan_cut(struct mf_step_row *steps, size_t n, const struct mf_plan_options *options,
                   size_t *ret_ends)
{
    size_t n_units = 0, first = 0;
    double unit_s = 0;
    qsort(steps, n, sizeof(*steps), compare);
    for (size_t i = 0; i < n; i++) {
        double step_s = mf_plan_step_s(&steps[i], &options->ceilings);
        bool other_block = i > first && steps[i].block_m != steps[i - 1].block_m;
        bool other_group = i > first && steps[i].group != steps[i - 1].group;
        bool other_covers = i > first && steps[i].covers != steps[i - 1].covers;
        /* A unit that is at least half full ends where the covered ops change, because its steps share little
         * data with the following steps */
        bool full = unit_s + step_s > options->target_s || (other_covers && unit_s > options->target_s / 2) ||
                    i - first == MF_PLAN_UNIT_STEPS_MAX;
        if (i > first && (other_block || other_group || full)) {
            ret_ends[n_units++] = i;
            first = i;
            unit_s = 0;
        }
        unit_s += step_s;
    }
    if (n > 0)
        ret_ends[n_units++] = n;
    return n_units;
}
