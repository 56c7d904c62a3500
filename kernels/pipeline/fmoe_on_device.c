#include "kernels/pipeline/fmoe_on_device.h"

#include <errno.h>

#include "common/base/cleanup.h"
#include "kernels/core/layout.h"
#include "kernels/gpu/src/args.h"

#define THREADS   256 /* as in serve.hip */
#define BLOCKS_SM 8

struct mf_code mf_on_device_code(void)
{
    return (struct mf_code){.source = "serve.hip", .function = "mf_pack"};
}

int mf_on_device_open(struct mf_device *device, struct mf_on_device *ret)
{
    const struct mf_code code = mf_on_device_code();
    int r = mf_hip_function_open(device, &code, &ret->pack);

    if (r == 0)
        r = mf_hip_function_lookup(&ret->pack, "mf_remap_ids", &ret->remap);
    return r;
}

void mf_on_device_close(struct mf_on_device *d)
{
    mf_hip_function_close(&d->pack);
}

static int launch(const struct mf_hip_function *f, int64_t work, const void *args, size_t bytes, void *stream)
{
    const struct mf_hip_function in_stream = {f->device, f->module, f->function, &stream};
    int64_t blocks = MF_MIN((work + THREADS - 1) / THREADS, (int64_t)f->device->info.cores * BLOCKS_SM);
    const struct mf_grid grid = {(uint32_t)blocks, 1, 1, THREADS, 0, true, true};

    return blocks < 1 ? 0 : mf_hip_launch(&in_stream, &grid, args, bytes);
}

/* ---- packing ---- */

static int pack_part(const struct mf_on_device *d, struct mf_hip_pack_args a, void *stream)
{
    /* only group_bytes are adjacent in both layouts if the panel has several rows */
    a.unit = mf_hip_unit(a.from, a.to, (size_t)a.row_bytes | (size_t)(a.panel > 1 ? a.group_bytes : 0));
    return launch(&d->pack, a.matrices * a.rows * a.row_bytes / a.unit, &a, sizeof(a), stream);
}

int mf_on_device_pack(const struct mf_on_device *d, const struct mf_shape *shape,
                      const struct mf_tensor_spec *to, const struct mf_tensor_ref *from,
                      const struct mf_tensor_ref *ret, void *stream)
{
    const struct mf_layout *l = mf_layout_find(to->order);
    const struct mf_codec *c = mf_codec_find(to->format, to->scale);
    struct mf_part parts[MF_PARTS_MAX];
    int n = l && c ? mf_tensor_spec_parts(to, shape, parts) : -EINVAL, r = 0;

    for (int i = 0; i < n && r == 0; i++) {
        /* the elements; scales, which follow their rows if each row has its own; the global factor */
        bool follows = i == 0 || (i == 1 && c->group_rows == 1);
        const int64_t rows = i == 2 ? 1 : parts[i].rows / shape->expert;
        struct mf_hip_pack_args a = {
            .from = from->part[i],
            .to = ret->part[i],
            .matrices = shape->expert,
            .rows = rows,
            .row_bytes = mf_part_bytes(&parts[i]) / shape->expert / MF_MAX(rows, 1),
            .panel = i == 0 ? l->panel : 1,
            .group_bytes = l->group_bytes,
            .gate_rows = follows ? l->gate_rows : 0,
        };
        r = mf_part_bytes(&parts[i]) > 0 ? pack_part(d, a, stream) : 0;
    }
    return n < 0 ? n : r;
}

/* ---- expert ids ---- */

int mf_on_device_remap(const struct mf_on_device *d, const struct mf_shape *shape, const struct mf_remap *r,
                       void *stream)
{
    const struct mf_hip_remap_args a = {
        .expert_map = r->expert_map,
        .ids = r->ids,
        .to = r->to,
        .routes = shape->token * shape->topk,
        .all = shape->ep_experts,
        .experts = shape->expert,
        .first = shape->ep_first,
        .types = r->wide ? MF_HIP_WIDE_IDS : 0,
    };

    return launch(&d->remap, a.routes, &a, sizeof(a), stream);
}

void mf_remap_on_cpu(const struct mf_shape *shape, const struct mf_remap *r)
{
    const struct mf_tensor_ref ids = {{(void *)(uintptr_t)r->ids}};
    const struct mf_route_types types = {.wide = r->wide};

    for (int64_t i = 0; i < shape->token * shape->topk; i++) {
        int32_t id = mf_route_id(&ids, types, i);
        int32_t local = id >= 0 && id < shape->ep_experts ? r->expert_map[id] : -1;
        int32_t to = local >= 0 && local < shape->expert ? shape->ep_first + local : -1;
        if (r->wide)
            ((int64_t *)r->to)[i] = to;
        else
            ((int32_t *)r->to)[i] = to;
    }
}
