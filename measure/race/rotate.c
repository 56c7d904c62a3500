#include "measure/race/rotate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/cleanup.h"

static int overlap(const uint8_t *active, const uint8_t *taken, int32_t n, int32_t shift)
{
    int sum = 0;
    for (int32_t e = 0; e < n; e++)
        sum += active[e] && taken[(e + shift) % n];
    return sum;
}

static void take(const uint8_t *active, uint8_t *taken, int32_t n, int32_t shift)
{
    for (int32_t e = 0; e < n; e++)
        taken[(e + shift) % n] |= active[e];
}

int mf_rotation_make(const struct mf_shape *shape, const int32_t *ids, struct mf_rotation *ret)
{
    int32_t n = shape->expert;
    _cleanup_(mf_freep) uint8_t *active = calloc((size_t)n, 1), *taken = calloc((size_t)n, 1);
    struct mf_rotation r = {.n = 1};
    if (!active || !taken)
        return -ENOMEM;
    for (int64_t i = 0; i < shape->token * shape->topk; i++) {
        int32_t e = mf_shape_local_expert(shape, ids[i]);
        if (e < 0)
            continue;
        r.routes++;
        r.active += !active[e];
        active[e] = 1;
    }
    take(active, taken, n, 0);
    int64_t most = r.active > 0 ? MF_MIN((int64_t)MF_ROTATIONS_MAX, n / r.active) : 1;
    while (r.n < most) {
        int32_t best = 0;
        int least = n + 1;
        for (int32_t shift = 1; shift < n && least > 0; shift++) {
            int shared = overlap(active, taken, n, shift);
            if (shared < least) {
                least = shared;
                best = shift;
            }
        }
        if (least >= r.active)
            break;
        take(active, taken, n, best);
        r.shift[r.n++] = best;
    }
    *ret = r;
    return 0;
}

int mf_rotation_count(const struct mf_rotation *r, double bytes, double llc_bytes, bool *ret_cold)
{
    *ret_cold = false;
    if (bytes <= 0)
        return 1;
    double wanted = fmin(ceil(4 * llc_bytes / bytes) + 1, MF_ROTATIONS_MAX);
    int n = MF_MIN(r->n, (int)wanted);
    *ret_cold = (double)n * bytes >= 4 * llc_bytes;
    return *ret_cold && bytes >= 4 * llc_bytes ? 1 : n;
}

void mf_rotation_ids(const struct mf_rotation *r, int i, const struct mf_shape *shape, const int32_t *ids,
                     int32_t *out)
{
    for (int64_t j = 0; j < shape->token * shape->topk; j++) {
        int32_t e = mf_shape_local_expert(shape, ids[j]);
        out[j] = e < 0 ? ids[j] : shape->ep_first + (e + r->shift[i]) % shape->expert;
    }
}
