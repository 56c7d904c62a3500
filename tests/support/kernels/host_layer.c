#include "support/kernels/host_layer.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct mf_tensor_ref host_tensor_new(const struct mf_tensor_spec *a, const struct mf_shape *s)
{
    struct mf_part parts[MF_PARTS_MAX];
    struct mf_tensor_ref ref = {0};
    int n = mf_tensor_spec_parts(a, s, parts);
    ck_assert_int_gt(n, 0);
    for (int i = 0; i < n; i++) {
        size_t bytes = ((size_t)mf_part_bytes(&parts[i]) + 63) / 64 * 64;
        ref.part[i] = aligned_alloc(64, bytes);
        ck_assert_ptr_nonnull(ref.part[i]);
        memset(ref.part[i], 0, bytes);
    }
    return ref;
}

void host_tensor_free(const struct mf_tensor_ref *ref)
{
    for (int i = 0; i < MF_PARTS_MAX; i++)
        free(ref->part[i]);
}

static struct mf_tensor_ref new_weight(const struct mf_shape *s, enum mf_tensor w, uint64_t seed)
{
    struct mf_tensor_spec a = mf_plain_w(s, w, "row");
    struct mf_tensor_ref ref = host_tensor_new(&a, s);
    ck_assert_int_eq(mf_data_weight(s, w, seed, &ref), 0);
    return ref;
}

static float *new_bias(const struct mf_shape *s, enum mf_tensor b, uint64_t seed)
{
    if (!(b == MF_TENSOR_B1 ? s->has_b1 : s->has_b2))
        return NULL;
    struct mf_tensor_spec a = mf_plain_bias(b);
    struct mf_tensor_ref ref = host_tensor_new(&a, s);
    ck_assert_int_eq(mf_data_bias(s, b, seed, ref.part[0]), 0);
    return ref.part[0];
}

void host_layer_make(struct host_layer *l, const struct mf_shape *s, const char *routing, uint64_t seed)
{
    size_t slots = (size_t)(s->token * s->topk);
    uint16_t *x = calloc((size_t)(s->token * s->model_dim), sizeof(*x));
    int32_t *ids = calloc(slots, sizeof(*ids));
    float *weights = calloc(slots, sizeof(*weights));
    struct mf_routing profile;

    ck_assert(x && ids && weights);
    ck_assert_int_eq(mf_routing_parse(routing, &profile), 0);
    mf_data_x(s, seed, x);
    ck_assert_int_eq(mf_data_topk(s, &profile, seed, ids, weights), 0);
    l->data = (struct mf_layer_data){.shape = *s,
                                     .x = x,
                                     .ids = ids,
                                     .weights = weights,
                                     .w1 = new_weight(s, MF_TENSOR_W1, seed),
                                     .w2 = new_weight(s, MF_TENSOR_W2, seed),
                                     .b1 = new_bias(s, MF_TENSOR_B1, seed),
                                     .b2 = new_bias(s, MF_TENSOR_B2, seed)};
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
}

void host_layer_release(struct host_layer *l)
{
    mf_reference_release(&l->ref);
    free((void *)l->data.x);
    free((void *)l->data.ids);
    free((void *)l->data.weights);
    free((void *)l->data.b1);
    free((void *)l->data.b2);
    host_tensor_free(&l->data.w1);
    host_tensor_free(&l->data.w2);
}
