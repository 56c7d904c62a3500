#include "measure/verify/verify_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/quant.h"

struct route {
    int64_t row; /* row of the output, for messages */
    int32_t expert, id;
    float weight;
};

static int by_expert_and_id(const void *a, const void *b)
{
    const struct route *x = a, *y = b;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Checks the blocks of the used region. The experts must ascend, and each must have the minimum number of
 * blocks for its routes. */
static int check_blocks(const struct mf_verify_input *v, const int64_t *routes, struct mf_verdict *ret)
{
    const struct mf_guarded *g = v->out;
    const int32_t *experts = g->ref.part[2];
    int64_t block = g->tensor_spec.block, at = 0;
    for (int32_t e = 0; e < v->data->shape.expert; e++) {
        for (int64_t first = 0; first < routes[e]; first += block, at++) {
            if (experts[at] == e)
                continue;
            mf_format(ret->reason, sizeof(ret->reason), "sorted: block %lld has expert %d, expected %d",
                      (long long)at, (int)experts[at], (int)e);
            return 1;
        }
    }
    return 0;
}

/* Compares the set of ids of each expert, and the weight of each id. `want` and `got` are sorted. */
static int check_routes(const struct route *want, const struct route *got, int64_t n, struct mf_verdict *ret)
{
    for (int64_t i = 0; i < n; i++) {
        if (got[i].expert != want[i].expert || got[i].id != want[i].id) {
            mf_format(ret->reason, sizeof(ret->reason),
                      "sorted: expert %d has id %08x (row %lld), expected token %d, slot %d of expert %d",
                      (int)got[i].expert, (unsigned)got[i].id, (long long)got[i].row,
                      (int)mf_id_token(want[i].id), (int)mf_id_slot(want[i].id), (int)want[i].expert);
            return 1;
        }
        if (memcmp(&got[i].weight, &want[i].weight, sizeof(float)) != 0) {
            mf_format(ret->reason, sizeof(ret->reason),
                      "sorted: row %lld (token %d, slot %d) has weight %.9g, expected %.9g",
                      (long long)got[i].row, (int)mf_id_token(got[i].id), (int)mf_id_slot(got[i].id),
                      (double)got[i].weight, (double)want[i].weight);
            return 1;
        }
    }
    return 0;
}

/* Collects the routes, without padding. Checks that padding has the contract's padding id and weight 0. */
static int collect_routes(const struct mf_verify_input *v, int64_t in_use, struct route *got, int64_t n,
                          struct mf_verdict *ret)
{
    const struct mf_shape *s = &v->data->shape;
    const int32_t *ids = v->out->ref.part[0], *experts = v->out->ref.part[2];
    const float *weights = v->out->ref.part[1];
    int32_t pad = mf_pack_id((int32_t)s->token, s->topk);
    int64_t count = 0;
    for (int64_t p = 0; p < in_use; p++) {
        if (ids[p] == pad && memcmp(&weights[p], &(float){0}, sizeof(float)) == 0)
            continue;
        if (mf_id_token(ids[p]) >= s->token || count == n) {
            mf_format(ret->reason, sizeof(ret->reason),
                      "sorted: row %lld has id %08x and weight %.3g; padding must be %08x with weight 0",
                      (long long)p, (unsigned)ids[p], (double)weights[p], (unsigned)pad);
            return 1;
        }
        got[count++] = (struct route){p, experts[p / v->out->tensor_spec.block], ids[p], weights[p]};
    }
    if (count == n)
        return 0;
    mf_format(ret->reason, sizeof(ret->reason), "sorted: %lld rows hold a token, expected %lld",
              (long long)count, (long long)n);
    return 1;
}

static int64_t rows_in_use(const struct mf_shape *s, const int64_t *routes, int64_t block)
{
    int64_t rows = 0;
    for (int32_t e = 0; e < s->expert; e++)
        rows += (routes[e] + block - 1) / block * block;
    return rows;
}

/* True if `got` holds each expected route once, in any order. */
static bool routes_match(const struct mf_verify_input *v, const struct route *got, int64_t n, uint8_t *taken)
{
    const struct mf_shape *s = &v->data->shape;
    for (int64_t i = 0; i < n; i++) {
        int64_t token = mf_id_token(got[i].id), j = mf_id_slot(got[i].id), slot = token * s->topk + j;
        if (token >= s->token || j >= s->topk || taken[slot]++ ||
            mf_shape_local_expert(s, v->data->ids[slot]) != got[i].expert ||
            memcmp(&got[i].weight, &v->data->weights[slot], sizeof(float)) != 0)
            return false;
    }
    return true;
}

int mf_verify_sorted(const struct mf_verify_input *v, struct mf_verdict *ret)
{
    const struct mf_shape *s = &v->data->shape;
    const int32_t *num_valid = v->out->ref.part[3];
    int64_t n = s->token * s->topk;
    _cleanup_(mf_freep) struct route *want = calloc((size_t)n, sizeof(*want)),
                                     *got = calloc((size_t)n, sizeof(*got));
    _cleanup_(mf_freep) int64_t *routes = calloc((size_t)s->expert, sizeof(*routes));
    _cleanup_(mf_freep) uint8_t *taken = calloc((size_t)n, 1);
    if (!want || !got || !routes || !taken)
        return -ENOMEM;
    int64_t n_local = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t e = mf_shape_local_expert(s, v->data->ids[i]);
        if (e < 0)
            continue;
        want[n_local++] = (struct route){i, e, mf_pack_id((int32_t)(i / s->topk), (int32_t)(i % s->topk)),
                                         v->data->weights[i]};
        routes[e]++;
    }
    n = n_local;
    int64_t in_use = rows_in_use(s, routes, v->out->tensor_spec.block);
    if ((uint32_t)num_valid[0] == mf_poison(MF_FORMAT_INDEX)) {
        mf_format(ret->reason, sizeof(ret->reason), "unwritten: num_valid of sorted still holds the poison");
        return 1;
    }
    if (num_valid[0] != in_use || num_valid[1] != s->token) {
        mf_format(ret->reason, sizeof(ret->reason), "sorted: num_valid is {%d, %d}, expected {%lld, %lld}",
                  (int)num_valid[0], (int)num_valid[1], (long long)in_use, (long long)s->token);
        return 1;
    }
    int r = check_blocks(v, routes, ret);
    if (r == 0)
        r = collect_routes(v, in_use, got, n, ret);
    if (r != 0 || routes_match(v, got, n, taken))
        return r;
    /* Find the first wrong route, for the message. */
    qsort(want, (size_t)n, sizeof(*want), by_expert_and_id);
    qsort(got, (size_t)n, sizeof(*got), by_expert_and_id);
    return check_routes(want, got, n, ret);
}

/* Checks the tails: ids after the used region must be T * top-k, and blocks after the last used block must
 * have expert -1. */
static int check_tails(const struct mf_verify_input *v, struct mf_verdict *ret)
{
    const struct mf_guarded *g = v->out;
    const int32_t *ids = g->ref.part[0], *experts = g->ref.part[1];
    int64_t in_use = *(const int32_t *)g->ref.part[2], n = v->data->shape.token * v->data->shape.topk;
    for (int64_t p = in_use; p < g->parts[0].rows; p++) {
        if (ids[p] == n)
            continue;
        mf_format(ret->reason, sizeof(ret->reason), "aligned: row %lld of the tail has id %d, expected %lld",
                  (long long)p, (int)ids[p], (long long)n);
        return 1;
    }
    for (int64_t b = in_use / g->tensor_spec.block; b < g->parts[1].rows; b++) {
        if (experts[b] == -1)
            continue;
        mf_format(ret->reason, sizeof(ret->reason),
                  "aligned: block %lld of the tail has expert %d, expected -1", (long long)b,
                  (int)experts[b]);
        return 1;
    }
    return 0;
}

int mf_verify_aligned(const struct mf_verify_input *v, struct mf_verdict *ret)
{
    const struct mf_shape *s = &v->data->shape;
    const int32_t *flat = v->out->ref.part[0];
    int64_t rows = v->out->parts[0].rows, n = s->token * s->topk;
    int32_t num_valid[2] = {*(const int32_t *)v->out->ref.part[2], (int32_t)s->token};
    _cleanup_(mf_freep) int32_t *ids = calloc((size_t)rows, sizeof(*ids));
    _cleanup_(mf_freep) float *weights = calloc((size_t)rows, sizeof(*weights));
    if (!ids || !weights)
        return -ENOMEM;
    for (int64_t p = 0; p < rows; p++) {
        bool routed = flat[p] >= 0 && flat[p] < n;
        ids[p] = routed ? mf_pack_id(flat[p] / s->topk, flat[p] % s->topk)
                        : mf_pack_id((int32_t)s->token, s->topk + (flat[p] != n));
        weights[p] = routed ? v->data->weights[flat[p]] : 0;
    }
    struct mf_guarded sorted = *v->out;
    sorted.tensor_spec.tensor = MF_TENSOR_SORTED;
    sorted.ref = (struct mf_tensor_ref){{ids, weights, v->out->ref.part[1], num_valid}};
    struct mf_verify_input as_sorted = *v;
    as_sorted.out = &sorted;
    int r = mf_verify_sorted(&as_sorted, ret);
    return r != 0 ? r : check_tails(v, ret);
}

int mf_verify_topk(const struct mf_verify_input *v, struct mf_verdict *ret)
{
    const struct mf_guarded *g = v->out;
    if (memcmp(g->ref.part[0], v->data->ids, (size_t)mf_part_bytes(&g->parts[0])) == 0 &&
        memcmp(g->ref.part[1], v->data->weights, (size_t)mf_part_bytes(&g->parts[1])) == 0)
        return 0;
    mf_format(ret->reason, sizeof(ret->reason), "topk: the output differs from the input routing");
    return 1;
}
