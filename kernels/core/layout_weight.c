#include "kernels/core/layout_weight.h"

#include <errno.h>
#include <string.h>

#include "kernels/core/codec.h"
#include "kernels/core/layout.h"

/* Moves per-row scales with their rows. All other scales keep their order. */
static void convert_scales(const struct mf_layout *from, const struct mf_layout *to, const struct mf_codec *c,
                           size_t N, size_t K, const uint8_t *scales, uint8_t *ret)
{
    size_t rows = mf_codec_scale_rows(c, N), bytes = mf_codec_scale_cols(c, K) * (size_t)c->scale_bytes;
    bool follow = c->group_rows == 1;
    for (size_t n = 0; n < rows; n++)
        memcpy(ret + (follow ? mf_layout_stored_row(to, N, n) : n) * bytes,
               scales + (follow ? mf_layout_stored_row(from, N, n) : n) * bytes, bytes);
}

int mf_layout_convert_weight(const struct mf_shape *shape, const struct mf_tensor_spec *from,
                             const struct mf_tensor_spec *to, const struct mf_tensor_ref *expert,
                             const struct mf_tensor_ref *ret)
{
    struct mf_part parts[MF_PARTS_MAX];
    if (from->tensor != to->tensor || from->format != to->format || from->scale != to->scale ||
        mf_tensor_spec_parts(from, shape, parts) < 0 || mf_tensor_spec_parts(to, shape, parts) < 0)
        return -EINVAL;
    const struct mf_layout *a = mf_layout_find(from->order), *b = mf_layout_find(to->order);
    const struct mf_codec *c = mf_codec_find(to->format, to->scale);
    size_t N = (size_t)(parts[0].rows / shape->expert), K = (size_t)mf_tensor_spec_cols(to, shape);
    mf_layout_convert(a, b, c->bits, N, K, expert->part[0], ret->part[0]);
    if (c->scale_bytes > 0)
        convert_scales(a, b, c, N, K, expert->part[1], ret->part[1]);
    if (c->global)
        memcpy(ret->part[2], expert->part[2], sizeof(float));
    return 0;
}
