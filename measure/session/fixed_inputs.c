#include "measure/session/fixed_inputs.h"

#include <string.h>

#define ALIGNMENT ((size_t)64)

static size_t align_up(size_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Places the parts of a tensor spec at `at` bytes. Returns the end. `start` is NULL to compute only sizes. */
static size_t place(const struct mf_session *s, const struct mf_tensor_spec *a, uint8_t *start, size_t at,
                    struct mf_tensor_ref *ret)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &s->shape, parts);
    for (int i = 0; i < n; i++) {
        if (start)
            ret->part[i] = start + at;
        at += align_up((size_t)mf_part_bytes(&parts[i]));
    }
    return at;
}

int mf_fixed_inputs_reserve(struct mf_session *s, const struct mf_tensor_spec *specs, size_t n,
                            struct mf_tensor_ref *ret)
{
    size_t bytes = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        bytes = place(s, &specs[i], NULL, bytes, NULL);
    int r = mf_session_reserve(s, &s->fixed_inputs, bytes + ALIGNMENT);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        ret[i] = (struct mf_tensor_ref){0};
        at = place(s, &specs[i], mf_region_launch_start(&s->fixed_inputs), at, &ret[i]);
    }
    return 0;
}

int mf_fixed_input_copy(struct mf_session *s, const struct mf_tensor_spec *a, const struct mf_tensor_ref *to,
                        const struct mf_tensor_ref *from)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &s->shape, parts), r = 0;
    for (int i = 0; i < n && r == 0; i++) {
        size_t bytes = (size_t)mf_part_bytes(&parts[i]);
        if (s->device->ops->own_memory)
            r = s->device->ops->copy(s->device, to->part[i], from->part[i], bytes);
        else
            memcpy(to->part[i], from->part[i], bytes);
    }
    return r;
}
