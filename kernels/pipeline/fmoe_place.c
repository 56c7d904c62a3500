/* Ids of a placement that is no range. */
#include "kernels/pipeline/fmoe.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/cleanup.h"

static int check_map(const struct mf_shape *s, const int32_t *expert_map, const char **ret_why)
{
    _cleanup_(mf_freep) bool *taken = calloc((size_t)s->expert, sizeof(*taken));
    if (!taken)
        return -ENOMEM;
    for (int32_t e = 0; e < s->ep_experts; e++) {
        int32_t place = expert_map[e];
        if (place == -1)
            continue;
        *ret_why = place < -1 || place >= s->expert
                       ? "a place of expert_map is neither -1 nor one of the shape's experts"
                       : "two experts of expert_map have one place";
        if (place < -1 || place >= s->expert || taken[place])
            return -EINVAL;
        taken[place] = true;
    }
    return 0;
}

int mf_fmoe_place(const struct mf_shape *shape, const int32_t *expert_map, const int32_t *ids, int32_t *to,
                  const char **ret_why)
{
    *ret_why = "the shape has no form ep:FIRST/ALL: it is no rank's share of the experts";
    if (shape->ep_experts <= 0)
        return -EINVAL;
    int r = check_map(shape, expert_map, ret_why);
    if (r < 0)
        return r;
    for (int64_t i = 0; i < shape->token * shape->topk; i++) {
        int32_t place = ids[i] >= 0 && ids[i] < shape->ep_experts ? expert_map[ids[i]] : -1;
        to[i] = place < 0 ? -1 : shape->ep_first + place;
    }
    return 0;
}
