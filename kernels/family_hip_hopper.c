#include "kernels/family_hip_hopper.h"

#include "common/cleanup.h"

#define SLICE 128
/* Where a row of x lies is 32 bits of 16-byte pieces (find_rows of kernels/hip/hopper_core.inc.h). */
#define GATHERED_MAX (INT64_C(16) << 32)
#define BARRIERS \
    (2 * MF_HIP_HOPPER_STAGES * 8 + 16 * (8 + 8) + 16) /* and the queue of tiles; what there() has seen */

int mf_hip_hopper_slice(int block_m, int block_n, enum mf_hip_format format)
{
    int scales = mf_hip_by_block(format) ? block_m * 4 : 0;
    return ((block_n + block_m) * SLICE + scales + 1023) / 1024 * 1024;
}

int mf_hip_hopper_out(int block_m, int columns, bool codes, bool turns)
{
    int row = codes ? columns + 16 : (columns + 8) * 2;
    return (turns ? 2 : 1) * block_m * row + BARRIERS;
}

bool mf_hip_hopper_refuses_x(const struct mf_shape *s, struct mf_refusal *no)
{
    int64_t bytes = s->token * (int64_t)mf_cpu_row_bytes(s, s->model_dim);
    if (bytes < GATHERED_MAX)
        return false;
    mf_refuse(no, "offsets",
              "x is %lld bytes; a row that is gathered lies less than %lld bytes from the first",
              (long long)bytes, (long long)GATHERED_MAX);
    return true;
}

int mf_hip_map_h(struct mf_device *device, const struct mf_hip_stage *st, const struct mf_shape *s, void *h,
                 struct mf_hip_map *ret)
{
    uint64_t bytes = s->q_type == MF_QTYPE_NO ? 2 : 1, I = (uint64_t)s->inter_dim;
    const struct mf_bulk_tensor t = {
        .at = h,
        .element_bytes = (int)bytes,
        .rank = 2,
        .length = {I, (uint64_t)mf_padded_rows(s, st->block_m)},
        .stride = {bytes, I * bytes},
        .box = {(uint32_t)(SLICE / bytes), (uint32_t)st->block_m},
    };
    return device->ops->bulk_map(device, &t, ret);
}
