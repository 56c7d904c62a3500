#include "measure/session/fixed_inputs.h"

#include <string.h>

#define ALIGNMENT ((size_t)64)
#define POISON    0xff /* NaN in f32, bf16 and fp8 E4M3FN */

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

int mf_fixed_input_queue_copy(struct mf_session *s, const struct mf_tensor_spec *a,
                              const struct mf_tensor_ref *to, const struct mf_tensor_ref *from)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &s->shape, parts), r = 0;
    for (int i = 0; i < n && r == 0; i++)
        r = s->device->ops->queue_copy(s->device, to->part[i], from->part[i],
                                       (size_t)mf_part_bytes(&parts[i]));
    return r;
}

int mf_fixed_input_witness(const struct mf_tensor_spec *needs, int n)
{
    const unsigned values = 1u << MF_TENSOR_X | 1u << MF_TENSOR_G | 1u << MF_TENSOR_GW | 1u << MF_TENSOR_H |
                            1u << MF_TENSOR_Z | 1u << MF_TENSOR_ZW;
    for (int i = 0; i < n; i++) {
        if ((values >> needs[i].tensor & 1) && !needs[i].zeroed)
            return i;
    }
    return -1;
}

int mf_fixed_input_hide(struct mf_session *s, const struct mf_tensor_spec *a, const struct mf_tensor_ref *to)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &s->shape, parts), r = 0;
    for (int i = 0; i < n && r == 0; i++) {
        size_t bytes = (size_t)mf_part_bytes(&parts[i]);
        if (s->device->ops->own_memory)
            r = s->device->ops->fill(s->device, to->part[i], bytes / 4 * 4, mf_part_poison_word(a, parts, i));
        else
            memset(to->part[i], POISON, bytes);
    }
    return r == 0 && s->device->ops->sync ? s->device->ops->sync(s->device) : r;
}
