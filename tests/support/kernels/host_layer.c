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
        size_t bytes = (size_t)mf_part_bytes(&parts[i]);
        ck_assert_int_eq(posix_memalign(&ref.part[i], 64, bytes), 0);
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

void host_inputs_make(struct mf_layer_data *d, const struct mf_shape *s, const struct mf_routing *routing,
                      uint64_t seed)
{
    size_t slots = (size_t)(s->token * s->topk);
    uint16_t *x = calloc((size_t)(s->token * s->model_dim), sizeof(*x));
    int32_t *ids = calloc(slots, sizeof(*ids));
    float *weights = calloc(slots, sizeof(*weights));

    ck_assert(x && ids && weights);
    mf_data_x(s, seed, x);
    ck_assert_int_eq(mf_data_topk(s, routing, seed, ids, weights), 0);
    *d = (struct mf_layer_data){.shape = *s,
                                .x = x,
                                .ids = ids,
                                .weights = weights,
                                .w1 = new_weight(s, MF_TENSOR_W1, seed),
                                .w2 = new_weight(s, MF_TENSOR_W2, seed),
                                .b1 = new_bias(s, MF_TENSOR_B1, seed),
                                .b2 = new_bias(s, MF_TENSOR_B2, seed)};
}

void host_inputs_release(struct mf_layer_data *d)
{
    free((void *)d->x);
    free((void *)d->ids);
    free((void *)d->weights);
    free((void *)d->b1);
    free((void *)d->b2);
    host_tensor_free(&d->w1);
    host_tensor_free(&d->w2);
}

void host_layer_make(struct host_layer *l, const struct mf_shape *s, const char *routing, uint64_t seed)
{
    struct mf_routing profile;
    ck_assert_int_eq(mf_routing_parse(routing, &profile), 0);
    host_inputs_make(&l->data, s, &profile, seed);
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
}

void host_layer_release(struct host_layer *l)
{
    mf_reference_release(&l->ref);
    host_inputs_release(&l->data);
}
