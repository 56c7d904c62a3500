#include "measure/session/guard.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/quant.h"
#include "measure/session/memory.h"

#define PATTERN 0x5c
/* in bytes; the available memory is checked before a larger buffer is allocated */
#define LARGE ((size_t)64 << 20)

static void poison_rows(struct mf_guarded *g, int part, int64_t row, int64_t rows)
{
    const struct mf_part *p = &g->parts[part];
    bool is_value;
    mf_poison_fill_bytes(mf_part_poison(&g->tensor_spec, part, &is_value), p->element_bytes,
                         (uint8_t *)g->ref.part[part] + row * p->cols * p->element_bytes,
                         (size_t)(rows * p->cols));
}

/* Band i lies before part i; the last band lies after the last part. */
static void band_at(const struct mf_guarded *g, int i, size_t *ret_from, size_t *ret_to)
{
    *ret_from = i > 0 ? g->end[i - 1] : 0;
    *ret_to = i < g->n_parts ? g->start[i] : g->region.bytes;
}

static void draw_bands(struct mf_guarded *g)
{
    size_t from, to;
    for (int i = 0; i <= g->n_parts; i++) {
        band_at(g, i, &from, &to);
        memset(g->region.at + from, PATTERN, to - from);
    }
}

/* Applies `act`, which pushes, pulls or populates a range, to all bands. */
static int on_bands(const struct mf_guarded *g, int (*act)(const struct mf_region *, size_t, size_t))
{
    size_t from, to;
    int r = 0;
    for (int i = 0; i <= g->n_parts && r == 0; i++) {
        band_at(g, i, &from, &to);
        r = act(&g->region, from, to - from);
    }
    return r;
}

int mf_guarded_push_bands(struct mf_guarded *g)
{
    return on_bands(g, mf_region_push_range);
}

int mf_guarded_pull_bands(struct mf_guarded *g)
{
    return on_bands(g, mf_region_pull_range);
}

/* device_data: NULL if the host fills the buffer. */
static int make(const struct mf_tensor_spec *a, const struct mf_shape *shape, struct mf_device *device,
                struct mf_device_data *device_data, struct mf_guarded *ret)
{
    struct mf_guarded g = {.tensor_spec = *a, .region = MF_REGION_INIT, .device_data = device_data};
    size_t at = MF_GUARD_BYTES;
    g.n_parts = mf_tensor_spec_parts(a, shape, g.parts);
    if (g.n_parts < 0)
        return g.n_parts;
    for (int i = 0; i < g.n_parts; i++) {
        g.start[i] = at;
        g.end[i] = at + (size_t)mf_part_bytes(&g.parts[i]);
        at = (g.end[i] + MF_GUARD_BYTES + 63) & ~(size_t)63;
    }
    /* Writing to a page that cannot be allocated raises SIGBUS, so check that there is memory for a large
     * buffer. */
    if (at >= LARGE && at > mf_memory_available())
        return -ENOMEM;
    int r = device_data ? mf_region_new_sparse(at, &g.region) : mf_region_new(at, &g.region);
    if (r < 0)
        return r;
    for (int i = 0; i < g.n_parts; i++)
        g.ref.part[i] = g.region.at + g.start[i];
    /* Allocate the pages first, so that writing the bands does not raise SIGBUS. */
    r = on_bands(&g, mf_region_populate);
    if (r == 0) {
        draw_bands(&g);
        r = mf_region_alloc_copy(&g.region, device);
    }
    if (r < 0) {
        mf_region_release(&g.region);
        return r;
    }
    for (int i = 0; i < g.n_parts; i++)
        g.launch_ref.part[i] = mf_region_launch_address(&g.region, g.ref.part[i]);
    *ret = g;
    return 0;
}

int mf_guarded_new(const struct mf_tensor_spec *a, const struct mf_shape *shape, struct mf_device *device,
                   struct mf_guarded *ret)
{
    return make(a, shape, device, NULL, ret);
}

int mf_guarded_new_on_device(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                             struct mf_device_data *device_data, struct mf_guarded *ret)
{
    return make(a, shape, mf_device_data_device(device_data), device_data, ret);
}

void mf_guarded_release(struct mf_guarded *g)
{
    mf_region_release(&g->region);
}

/* Fills only the device copy. The host sees the values after a pull. */
static int fill_on_device(struct mf_guarded *g, bool zero)
{
    struct mf_device_data_fill fills[MF_PARTS_MAX];
    for (int i = 0; i < g->n_parts; i++) {
        uint32_t poison = zero ? 0 : mf_part_poison_word(&g->tensor_spec, g->parts, i);
        fills[i] = (struct mf_device_data_fill){g->launch_ref.part[i], g->end[i] - g->start[i], poison};
    }
    int r = mf_guarded_push_bands(g);
    return r < 0 ? r : mf_device_data_fill(g->device_data, fills, (size_t)g->n_parts);
}

int mf_guarded_poison(struct mf_guarded *g, const int64_t *source, bool zero)
{
    bool whole = !source || g->tensor_spec.format == MF_FORMAT_INDEX || !g->poisoned;
    if (g->device_data)
        return fill_on_device(g, zero);
    g->poisoned |= !zero;
    for (int i = 0; i < g->n_parts; i++) {
        if (zero) {
            memset(g->ref.part[i], 0, g->end[i] - g->start[i]);
            continue;
        }
        if (whole || g->parts[i].rows != g->parts[0].rows) {
            poison_rows(g, i, 0, g->parts[i].rows);
            continue;
        }
        for (int64_t p = 0; p < g->parts[i].rows; p++) {
            if (source[p] >= 0)
                poison_rows(g, i, p, 1);
        }
    }
    return mf_region_push(&g->region);
}

int mf_guarded_queue_poison(const struct mf_guarded *g, struct mf_device *device, bool zero)
{
    int r = 0;
    for (int i = 0; i < g->n_parts && r == 0; i++) {
        uint32_t poison = zero ? 0 : mf_part_poison_word(&g->tensor_spec, g->parts, i);
        r = device->ops->fill(device, g->launch_ref.part[i], (g->end[i] - g->start[i]) / 4 * 4, poison);
    }
    return r;
}

/* Returns the number of bytes in [from, to) that differ from the pattern. Stores the offsets of the first and
 * the last of these bytes. */
static size_t count_changed(const struct mf_guarded *g, size_t from, size_t to, size_t *ret_first,
                            size_t *ret_last)
{
    size_t n = 0;
    if (from == to)
        return 0;
    if (g->region.at[from] == PATTERN &&
        memcmp(g->region.at + from, g->region.at + from + 1, to - from - 1) == 0)
        return 0;
    for (size_t i = from; i < to; i++) {
        if (g->region.at[i] == PATTERN)
            continue;
        if (n++ == 0)
            *ret_first = i;
        *ret_last = i;
    }
    return n;
}

int mf_guarded_check(struct mf_guarded *g, char *why, size_t cap)
{
    for (int i = 0; i <= g->n_parts; i++) {
        size_t from, to;
        band_at(g, i, &from, &to);
        size_t first = 0, last = 0, n = count_changed(g, from, to, &first, &last);
        if (n == 0)
            continue;
        /* A band lies between two parts. Report the part nearer to the changed bytes. */
        bool past = i > 0 && (i == g->n_parts || first - from <= to - 1 - last);
        const char *part = g->parts[past ? i - 1 : i].name;
        if (past)
            mf_format(why, cap, "guard: %zu byte%s changed %zu bytes past the end of %s of %s", n,
                      n == 1 ? "" : "s", first - from, part, mf_tensor_name(g->tensor_spec.tensor));
        else
            mf_format(why, cap, "guard: %zu byte%s changed %zu bytes before the start of %s of %s", n,
                      n == 1 ? "" : "s", to - 1 - last, part, mf_tensor_name(g->tensor_spec.tensor));
        draw_bands(g);
        (void)mf_guarded_push_bands(g);
        return 1;
    }
    return 0;
}
