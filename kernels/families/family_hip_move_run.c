/* Family move on GPUs: launches the steps of family_hip_move.c. */
#include "common/base/cleanup.h"
#include "kernels/families/family_hip_move.h"
#include "kernels/gpu/src/args.h"

#define BLOCKS_SM 8

/* Returns the number of blocks that gives each thread one unit of work. */
static int64_t work_of(const struct mf_hip_move_config *c, const struct mf_shape *s)
{
    const struct mf_codec *codec = mf_hip_move_codec(s);
    if (c->kind == MF_HIP_FROM_ALIGNED)
        return (mf_padded_rows(s, c->block_m) + MF_HIP_MOVE_THREADS - 1) / MF_HIP_MOVE_THREADS;
    int64_t rows = c->kind == MF_HIP_QUANT2 ? mf_padded_rows(s, c->block_m) : s->token;
    int64_t cols = c->kind == MF_HIP_QUANT2 ? s->inter_dim : s->model_dim;
    int64_t groups = codec->group_cols > 0 ? (cols + codec->group_cols - 1) / codec->group_cols : 1;
    if (mf_hip_move_quantises(c->kind) && codec->group_rows > 0)
        return codec->group_cols > 0
                   ? (rows * groups * MF_MAX(codec->group_cols / 16, 2) + MF_HIP_MOVE_THREADS - 1) /
                         MF_HIP_MOVE_THREADS
                   : rows;
    return (rows * (cols / 8) + MF_HIP_MOVE_THREADS - 1) / MF_HIP_MOVE_THREADS;
}

static struct mf_grid grid_of(const struct mf_hip_move_config *c, const struct mf_shape *s,
                              const struct mf_device_info *device)
{
    int64_t sm = mf_hip_move_quantises(c->kind) ? mf_hip_quant_blocks_sm(mf_hip_move_codec(s)) : BLOCKS_SM;
    int64_t blocks = MF_MAX(MF_MIN(work_of(c, s), device->cores * sm), 1);
    uint32_t sorters = mf_hip_sort_blocks(device, c->kind, s);
    if (mf_hip_move_sorts_aside(c->kind)) /* one resident block per SM */
        sorters = MF_MAX(sorters + 1, (uint32_t)device->cores);
    if (mf_hip_move_orders(c->kind))
        return (struct mf_grid){sorters, 1,   1, MF_HIP_SORT_THREADS, mf_hip_sort_shared(device, s),
                                true,    true};
    return (struct mf_grid){(uint32_t)blocks, 1, 1, MF_HIP_MOVE_THREADS, 0, true, true};
}

void mf_hip_move_set_token_count(struct mf_kernel *k)
{
    k->grid = grid_of(k->plan, &k->shape, &k->function.device->info);
}

static const struct mf_hip_move_config *config_of(const struct mf_kernel *k)
{
    return k->plan;
}

static struct mf_hip_sort_args sort_args(const struct mf_kernel *k, const struct mf_launch *l)
{
    return (struct mf_hip_sort_args){
        .ids = l->needs[0].part[0],
        .weights = l->needs[0].part[1],
        .sorted_ids = l->gives[0].part[0],
        .sorted_weights = l->gives[0].part[1],
        .experts = l->gives[0].part[2],
        .num_valid = l->gives[0].part[3],
        .counts = l->workspace,
        .token = (int32_t)k->shape.token,
        .types = mf_hip_route_types(l),
    };
}

static int launch_sort(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_sort_args a = sort_args(k, l);
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_sort_zero(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_codec *codec = mf_hip_move_codec(&k->shape);
    bool zeroes = config_of(k)->kind == MF_HIP_SORT_ZERO;
    struct mf_hip_sort_zero_args a = {
        .sort = sort_args(k, l),
        .y = zeroes ? l->gives[1].part[0] : NULL,
        .sorters = (int32_t)mf_hip_sort_blocks(&k->function.device->info, config_of(k)->kind, &k->shape),
    };
    if (mf_hip_move_quantises_first(config_of(k)->kind, &k->shape)) {
        const struct mf_tensor_ref *to = &l->gives[zeroes ? 2 : 1];
        a.quant.x = l->needs[1].part[0];
        a.quant.q = to->part[0];
        a.quant.scale = to->part[1];
        a.quant.factor = codec->global ? l->needs[2].part[0] : NULL;
        a.quant.factor_kept = codec->global ? to->part[2] : NULL;
    }
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_align(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_align_args a = {
        .ids = l->needs[0].part[0],
        .sorted_ids = l->gives[0].part[0],
        .experts = l->gives[0].part[1],
        .num_post_pad = l->gives[0].part[2],
        .rows = (int32_t)mf_padded_rows(&k->shape, config_of(k)->block_m),
        .token = (int32_t)k->shape.token,
        .types = mf_hip_route_types(l),
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_from_aligned(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_aligned_args a = {
        .flat = l->needs[0].part[0],
        .aligned_experts = l->needs[0].part[1],
        .num_post_pad = l->needs[0].part[2],
        .weights = l->needs[1].part[1],
        .sorted_ids = l->gives[0].part[0],
        .sorted_weights = l->gives[0].part[1],
        .experts = l->gives[0].part[2],
        .num_valid = l->gives[0].part[3],
        .token = (int32_t)k->shape.token,
        .types = mf_hip_route_types(l),
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_quant(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_codec *codec = mf_hip_move_codec(&k->shape);
    bool second = config_of(k)->kind == MF_HIP_QUANT2;
    const struct mf_hip_quant_args a = {
        .x = l->needs[0].part[0],
        .q = l->gives[0].part[0],
        .scale = l->gives[0].part[1],
        .num_valid = second ? l->needs[1].part[3] : NULL,
        .sorted_ids = second && mf_hip_move_is_shared(codec) ? l->needs[1].part[0] : NULL,
        .largest = l->workspace,
        .factor = codec->global ? (const float *)l->needs[second ? 2 : 1].part[0] + second : NULL,
        .factor_kept = codec->global ? l->gives[0].part[2] : NULL,
        .rows = (int32_t)(second ? mf_padded_rows(&k->shape, config_of(k)->block_m) : k->shape.token),
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_combine(const struct mf_kernel *k, const struct mf_launch *l)
{
    bool weighs = config_of(k)->kind == MF_HIP_COMBINE && !k->shape.doweight_stage1;
    const struct mf_hip_combine_args a = {
        .z = l->needs[0].part[0],
        .weights = weighs ? l->needs[1].part[1] : NULL,
        .ids = l->needs[1].part[0],
        .y = l->gives[0].part[0],
        .token = (int32_t)k->shape.token,
        .types = mf_hip_route_types(l),
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_zero(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_combine_args a = {.y = l->gives[0].part[0], .token = (int32_t)k->shape.token};
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

int mf_hip_move_launch(struct mf_kernel *k, const struct mf_launch *l)
{
    static int (*const launchers[MF_HIP_MOVE_N_])(const struct mf_kernel *, const struct mf_launch *) = {
        [MF_HIP_SORT] = launch_sort,
        [MF_HIP_SORT_ZERO] = launch_sort_zero,
        [MF_HIP_SORT_QUANT1] = launch_sort_zero,
        [MF_HIP_ALIGN] = launch_align,
        [MF_HIP_ALIGN_MANY] = launch_align,
        [MF_HIP_FROM_ALIGNED] = launch_from_aligned,
        [MF_HIP_QUANT1] = launch_quant,
        [MF_HIP_QUANT2] = launch_quant,
        [MF_HIP_COMBINE] = launch_combine,
        [MF_HIP_COMBINE_WEIGHTED] = launch_combine,
        [MF_HIP_ZERO] = launch_zero};
    return launchers[config_of(k)->kind](k, l);
}
