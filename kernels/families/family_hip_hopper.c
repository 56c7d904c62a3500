#include "kernels/families/family_hip_hopper.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/moe/layer.h"

#define SLICE 128
/* The offset of a row of x is a 32-bit count of 16-byte units (find_rows of hopper_core.inc.h). */
#define GATHERED_MAX (INT64_C(16) << 32)
/* Bytes of shared memory for ADDS_OWN of hopper_core.inc.h. Each warp adds rows to y through its own part of
 * this memory: 2 warpgroups x 4 warps x 16 rows of 64 bf16 columns, padded by 8 columns. */
#define OWN_BYTES (2 * 4 * 16 * (64 + 8) * 2)
/* Average number of blocks per active expert above which the blocks of an expert share their weight reads. */
#define SHARED_FROM 1.25
#define BARRIERS \
    (2 * MF_HIP_HOPPER_STAGES * 8 + 16 * (8 + 8) + 16) /* mbarriers, tile queue, state of there() */

int mf_hip_hopper_stage_bytes(int block_m, int block_n, enum mf_hip_format format)
{
    int scales = mf_hip_by_block(format) ? block_m * 4 : 0;
    return ((block_n + block_m) * SLICE + scales + 1023) / 1024 * 1024;
}

int mf_hip_hopper_k_slices(const struct mf_shape *s)
{
    return MF_MIN((s->inter_dim + SLICE - 1) / SLICE, MF_HIP_HOPPER_SHORT + 1);
}

/* True if a warpgroup computes all columns of its tokens. */
static bool has_whole_tokens(struct mf_hip_hopper core, int block_m)
{
    return core.swapped && (core.turns || block_m >= 128);
}

/* Must match OUT_BYTES of hopper_core.inc.h. */
int mf_hip_hopper_out_bytes(struct mf_hip_hopper core, const struct mf_hip_stage *st,
                            const struct mf_shape *s)
{
    int columns = mf_hip_stage_columns(st), bf16 = (columns + 8) * 2;
    if (st->out == MF_HIP_TO_Y && core.swapped && !core.turns && st->block_m >= 128 &&
        mf_hip_hopper_k_slices(s) <= MF_HIP_HOPPER_SHORT)
        return OWN_BYTES + BARRIERS;
    if (st->out == MF_HIP_TO_HQ && has_whole_tokens(core, st->block_m))
        return (core.turns ? 2 : 1) * st->block_m * (columns + 16) + BARRIERS;
    return (core.turns ? 2 : 1) * st->block_m * bf16 + BARRIERS;
}

bool mf_hip_hopper_refuses_x(const struct mf_shape *s, struct mf_refusal *no)
{
    int64_t bytes = s->token * (int64_t)mf_cpu_row_bytes(s, s->model_dim);
    if (bytes < GATHERED_MAX)
        return false;
    mf_refuse(no, "offsets", "x has %lld bytes; the gather addresses rows up to %lld bytes from the start",
              (long long)bytes, (long long)GATHERED_MAX);
    return true;
}

int mf_hip_map_h(struct mf_device *device, const struct mf_hip_stage *st, const struct mf_shape *s, void *h,
                 struct mf_hip_map *ret)
{
    uint64_t bytes = s->q_type == MF_QTYPE_NO ? 2 : 1, I = (uint64_t)s->inter_dim;
    const struct mf_tma_tensor t = {
        .at = h,
        .element_bytes = (int)bytes,
        .rank = 2,
        .length = {I, (uint64_t)mf_padded_rows(s, st->block_m)},
        .stride = {bytes, I * bytes},
        .box = {(uint32_t)(SLICE / bytes), (uint32_t)st->block_m},
    };
    return device->ops->tensor_map(device, &t, ret);
}

/* Returns 1 column if the L2 cache is split into halves that hold separate experts, and h takes at most a
 * third of the cache. With 1 column, h and y stay in the cache, and only weights come from HBM or from the
 * other half. */
static int32_t columns_at_once(const struct mf_hip_stage *st, const struct mf_shape *s,
                               const struct mf_device_info *device)
{
    double h = (double)(s->token * s->topk) * mf_cpu_row_bytes(s, s->inter_dim);
    if (device->halves.near > 0 && st->out == MF_HIP_TO_Y && h <= (double)device->llc_bytes / 3)
        return 1;
    return mf_hip_stage_tile_columns(st, s, device);
}

/* Returns all columns, so that all columns of a block are processed before the next block. If only one column
 * were processed at a time, even the first column would need the last block of h. However, if experts have
 * several blocks, the blocks of an expert run in succession per column, because these blocks then share
 * weight reads. */
static int32_t columns_of_paired(const struct mf_hip_stage *st, const struct mf_shape *s,
                                 const struct mf_device_info *device)
{
    bool shares = mf_layer_expected_blocks(s, st->block_m) > SHARED_FROM * mf_layer_expected_active(s);
    int columns = mf_hip_stage_columns(st);
    return shares ? columns_at_once(st, s, device) : (mf_hip_stage_width(st, s) + columns - 1) / columns;
}

static int32_t likely_blocks(const struct mf_hip_stage *st, const struct mf_shape *s)
{
    if (st->stage != 1 || mf_layer_expected_active(s) < 0.5 * s->expert)
        return 0;
    return (int32_t)MF_MAX(1, lround(mf_layer_expected_blocks(s, st->block_m)));
}

struct mf_hip_hopper_order mf_hip_hopper_order_of(const struct mf_hip_stage *st, const struct mf_shape *s,
                                                  const struct mf_device_info *device, bool paired)
{
    bool takes = paired && st->stage == 2;
    return (struct mf_hip_hopper_order){
        takes ? columns_of_paired(st, s, device) : columns_at_once(st, s, device), likely_blocks(st, s)};
}

struct mf_hip_bulk_args mf_hip_hopper_args(const struct mf_hip_stage *st, const struct mf_shape *s,
                                           const struct mf_device_info *device, const struct mf_launch *l,
                                           const struct mf_hip_hopper_order *order)
{
    const struct mf_l2_halves *halves = &device->halves;
    struct mf_hip_bulk_args a = {.tile = mf_hip_stage_args(st, s, l)};
    a.tile.columns = order->columns;
    a.tile.near = (uint32_t)(((uint64_t)halves->near << 32) / (uint64_t)device->cores);
    static_assert(sizeof(a.far) == sizeof(halves->far), "one bit per SM");
    memcpy(a.far, halves->far, sizeof(a.far));
    a.likely_blocks = order->likely_blocks;
    a.n_experts = s->expert;
    return a;
}

int mf_hip_hopper_map(const struct mf_hip_stage *st, const struct mf_shape *s, struct mf_device *device,
                      const struct mf_launch *l, struct mf_hip_bulk_args *ret)
{
    int bits = s->q_type == MF_QTYPE_NO ? 16 : 8;
    int r = mf_hip_stage_map_weights(st, s, device, bits, l->needs[2].part[0], &ret->w);
    return r == 0 && st->stage == 2 ? mf_hip_map_h(device, st, s, l->needs[0].part[0], &ret->x_map) : r;
}
