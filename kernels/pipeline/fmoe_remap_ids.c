/* Translates expert ids for ranks whose local experts are not a contiguous range. */
#include "kernels/pipeline/fmoe.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "kernels/pipeline/fmoe_on_device.h"

static int check_map(const struct mf_shape *s, const int32_t *expert_map, const char **ret_why)
{
    _cleanup_(mf_freep) bool *taken = calloc((size_t)s->expert, sizeof(*taken));
    if (!taken)
        return -ENOMEM;
    for (int32_t e = 0; e < s->ep_experts; e++) {
        int32_t local = expert_map[e];
        if (local == -1)
            continue;
        *ret_why = local < -1 || local >= s->expert
                       ? "an index in expert_map is neither -1 nor a local expert of the shape"
                       : "two experts in expert_map have the same index";
        if (local < -1 || local >= s->expert || taken[local])
            return -EINVAL;
        taken[local] = true;
    }
    return 0;
}

int mf_fmoe_remap_ids(const struct mf_shape *shape, const int32_t *expert_map, const int32_t *ids,
                      int32_t *to, const char **ret_why)
{
    *ret_why = "the shape has no expert parallelism: its form lacks ep:FIRST/ALL";
    if (shape->ep_experts <= 0)
        return -EINVAL;
    int r = check_map(shape, expert_map, ret_why);
    if (r < 0)
        return r;
    mf_remap_on_cpu(shape, &(struct mf_remap){.expert_map = expert_map, .ids = ids, .to = to});
    return 0;
}
