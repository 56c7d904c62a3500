/* A GPU creates the same bits of a shape's data as the host. Runs on the emulator for every architecture, or
 * on the device that MOEFARM_TEST_DEVICE names ("hip:nvidia:0"). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "emulator/device_emulated.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "kernels/gpu/host/device_data.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

#define CORES 1 /* eight blocks, so each block processes several groups of a tensor */
#define SEED  UINT64_C(0x1234567890abcdef)

/* ---- formats ---- */

struct format {
    enum mf_dtype a, w;
    enum mf_qtype q_type;
};

static const struct {
    const char *gfx;
    struct format format;
} cases[] = {
#define CASE(GFX, D, Q)                              \
    {                                                \
        GFX,                                         \
        {                                            \
            MF_DTYPE_##D, MF_DTYPE_##D, MF_QTYPE_##Q \
        }                                            \
    }
    CASE("sm_89", BF16, NO),
    CASE("sm_89", FP8_E4M3FN, PER_TENSOR),
    CASE("sm_89", FP8_E4M3FN, PER_TOKEN),
    CASE("sm_89", FP8_E4M3FN, PER_1X128),
    CASE("sm_89", INT8, PER_TOKEN),
    CASE("gfx90a", BF16, NO),
    CASE("gfx90a", FP8_E4M3FN, PER_1X128),
    CASE("gfx942", FP8_E4M3FNUZ, PER_TENSOR),
    CASE("gfx942", FP8_E4M3FNUZ, PER_1X128),
    CASE("gfx942", INT8, PER_1X128),
    CASE("sm_89", FP4X2, PER_1X32),
    CASE("sm_89", FP4X2, PER_1X16),
    CASE("gfx942", FP8_E4M3FN, PER_1X32),
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32}},
    {"gfx942", {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN}},
};

/* Returns NULL if MOEFARM_TEST_DEVICE is of another vendor than the case. */
static struct mf_device *open_device(const char *gfx)
{
    struct mf_device *d = NULL;
    int r = mf_device_emulated_or_named(gfx, CORES, SEED, &d);
    ck_assert(r == 0 || r == -ENODEV);
    return d;
}

/* Copies device memory to a new host buffer. */
static void *read_back(struct mf_device *d, const void *from, size_t bytes)
{
    void *p = malloc(bytes);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(d->ops->copy(d, p, from, bytes), 0);
    return p;
}

/* Widths that are not multiples of a 128-element group; the last group has 16 elements. */
static struct mf_shape shape_of(const struct format *f)
{
    struct mf_shape s;
    ck_assert_int_eq(mf_shape_parse("17,272,144,2,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
                                    "bfloat16,QuantType.No,1,0",
                                    &s),
                     0);
    s.q_dtype_a = f->a;
    s.q_dtype_w = f->w;
    s.q_type = f->q_type;
    return s;
}

/* ---- tensor parts on the host and on the device ---- */

struct parts {
    struct mf_part parts[MF_PARTS_MAX];
    int n;
    struct mf_tensor_ref ref;
};

static struct parts new_parts(struct mf_device *d, const struct mf_shape *s, const struct mf_tensor_spec *a)
{
    struct parts p = {0};
    p.n = mf_tensor_spec_parts(a, s, p.parts);
    ck_assert_int_ge(p.n, 1);
    for (int i = 0; i < p.n; i++) {
        size_t bytes = (size_t)mf_part_bytes(&p.parts[i]);
        p.ref.part[i] = d ? d->ops->alloc(d, bytes) : calloc(bytes, 1);
        ck_assert_ptr_nonnull(p.ref.part[i]);
    }
    return p;
}

/* Copies parts to the device. */
static struct parts copied_parts(struct mf_device *d, const struct mf_shape *s,
                                 const struct mf_tensor_spec *a, const struct parts *from)
{
    struct parts p = new_parts(d, s, a);
    for (int i = 0; i < p.n; i++)
        ck_assert_int_eq(
            d->ops->copy(d, p.ref.part[i], from->ref.part[i], (size_t)mf_part_bytes(&p.parts[i])), 0);
    return p;
}

static void free_parts(struct mf_device *d, struct parts *p)
{
    for (int i = 0; i < p->n; i++) {
        if (d)
            d->ops->release(d, p->ref.part[i], (size_t)mf_part_bytes(&p->parts[i]));
        else
            free(p->ref.part[i]);
    }
}

/* The weight as the host creates it. */
static struct parts host_weight(const struct mf_shape *s, const struct mf_tensor_spec *a)
{
    struct mf_tensor_spec row = mf_plain_w(s, a->tensor, "row");
    struct parts plain = new_parts(NULL, s, &row), ret = new_parts(NULL, s, a);
    ck_assert_int_eq(mf_data_weight(s, a->tensor, SEED, &plain.ref), 0);
    for (int32_t e = 0; e < s->expert; e++) {
        struct mf_tensor_ref from = {0}, to = {0};
        for (int i = 0; i < plain.n; i++) {
            size_t bytes = (size_t)(mf_part_bytes(&plain.parts[i]) / s->expert);
            from.part[i] = (uint8_t *)plain.ref.part[i] + (size_t)e * bytes;
            to.part[i] = (uint8_t *)ret.ref.part[i] + (size_t)e * bytes;
        }
        ck_assert_int_eq(mf_layout_convert_weight(s, &row, a, &from, &to), 0);
    }
    free_parts(NULL, &plain);
    return ret;
}

/* ---- weights ---- */

static void check_weight(struct mf_device *d, struct mf_device_data *m, const struct mf_shape *s,
                         const struct mf_tensor_spec *a)
{
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    struct parts want = host_weight(s, a), got = new_parts(d, s, a);
    mf_tensor_spec_print(a, text);
    int r = mf_device_data_weight(m, a, &got.ref);
    ck_assert_msg(r == 0, "%s: %d, %s", text, r, mf_device_emulated_why(d));
    for (int i = 0; i < want.n; i++) {
        size_t bytes = (size_t)mf_part_bytes(&want.parts[i]);
        void *there = read_back(d, got.ref.part[i], bytes);
        ck_assert_msg(memcmp(want.ref.part[i], there, bytes) == 0, "%s: %s differs", text,
                      want.parts[i].name);
        free(there);
    }
    free_parts(NULL, &want);
    free_parts(d, &got);
}

/* ---- filling ---- */

/* Fills exactly the requested bytes, for sizes of any alignment. */
MF_TEST(fill_exact_size, .rows = 2)
{
    static const size_t sizes[] = {1, 3, 16, 31, 4096, 70001};
    const struct mf_shape s = shape_of(&cases[0].format);
    struct mf_device_data_fill fills[MF_ARRAY_LEN(sizes)];
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;

    d = open_device(_i ? "gfx942" : "sm_89");
    if (!d)
        return;
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++) {
        fills[i] = (struct mf_device_data_fill){d->ops->alloc(d, sizes[i] + 1), sizes[i], 0xa1b2c3d4};
        ck_assert_ptr_nonnull(fills[i].at);
    }
    ck_assert_int_eq(mf_device_data_fill(m, fills, MF_ARRAY_LEN(fills)), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++) {
        uint8_t *p = read_back(d, fills[i].at, sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++)
            ck_assert_uint_eq(p[k], 0xa1b2c3d4 >> k % 4 * 8 & 0xff);
        ck_assert_uint_eq(p[sizes[i]], 0);
        free(p);
        d->ops->release(d, fills[i].at, sizes[i] + 1);
    }
    (void)mf_device_data_free(m);
    (void)mf_device_close(d);
}

/* Tensor specs that the shape does not have are refused. */
MF_TEST(invalid_tensor_spec_refused)
{
    const struct mf_shape s = shape_of(&cases[0].format);
    const struct mf_tensor_ref to = {0};
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;
    struct mf_tensor_spec a = mf_plain_w(&s, MF_TENSOR_W1, "row");

    d = open_device("sm_89");
    if (!d)
        return;
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), 0);
    a.format = MF_FORMAT_FP8FN;
    ck_assert_int_eq(mf_device_data_weight(m, &a, &to), -EINVAL);
    a = mf_plain_w(&s, MF_TENSOR_W2, "gu1");
    ck_assert_int_eq(mf_device_data_weight(m, &a, &to), -EINVAL);
    (void)mf_device_data_free(m);
    (void)mf_device_close(d);
}

/* ---- references ---- */

/* Inputs and weights of a session, on the host. */
struct layer {
    struct mf_layer_data data;
    struct parts w[2];
    uint16_t *x;
    int32_t *ids;
    float *weights, *b1, *b2;
};

static void layer_init(struct layer *l, const struct mf_shape *s)
{
    const struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};
    size_t slots = (size_t)(s->token * s->topk);
    *l = (struct layer){
        .x = calloc((size_t)s->token * (size_t)s->model_dim, sizeof(*l->x)),
        .ids = calloc(slots, sizeof(*l->ids)),
        .weights = calloc(slots, sizeof(*l->weights)),
        .b1 = calloc((size_t)(s->expert * mf_gemm1_cols(s)), sizeof(*l->b1)),
        .b2 = calloc((size_t)(s->expert * s->model_dim), sizeof(*l->b2)),
    };
    mf_data_x(s, SEED, l->x);
    ck_assert_int_eq(mf_data_topk(s, &routing, SEED, l->ids, l->weights), 0);
    for (int i = 0; i < 2; i++) {
        struct mf_tensor_spec row = mf_plain_w(s, i ? MF_TENSOR_W2 : MF_TENSOR_W1, "row");
        l->w[i] = new_parts(NULL, s, &row);
        ck_assert_int_eq(mf_data_weight(s, row.tensor, SEED, &l->w[i].ref), 0);
    }
    if (s->has_b1)
        ck_assert_int_eq(mf_data_bias(s, MF_TENSOR_B1, SEED, l->b1), 0);
    if (s->has_b2)
        ck_assert_int_eq(mf_data_bias(s, MF_TENSOR_B2, SEED, l->b2), 0);
    l->data = (struct mf_layer_data){*s, l->x, l->ids, l->weights, l->w[0].ref, l->w[1].ref, l->b1, l->b2};
}

static void layer_release(struct layer *l)
{
    free_parts(NULL, &l->w[0]);
    free_parts(NULL, &l->w[1]);
    free(l->x);
    free(l->ids);
    free(l->weights);
    free(l->b1);
    free(l->b2);
}

/* Checks the plain z and zw that the device creates as inputs of steps. */
static void check_plain_z(struct mf_device *d, struct mf_device_data *m, const struct layer *l,
                          const struct mf_reference *want, const struct mf_reference *got)
{
    static const enum mf_tensor tensors[] = {MF_TENSOR_Z, MF_TENSOR_ZW};

    for (size_t i = 0; i < MF_ARRAY_LEN(tensors) && l->data.shape.ep_experts == 0; i++) {
        const struct mf_tensor_spec a = {.tensor = tensors[i], .format = MF_FORMAT_BF16, .order = "slot"};
        struct parts host = new_parts(NULL, &l->data.shape, &a), there = new_parts(d, &l->data.shape, &a);
        size_t bytes = (size_t)mf_part_bytes(&host.parts[0]);
        ck_assert_int_eq(mf_reference_tensor_spec(&l->data, want, &a, NULL, &host.ref), 0);
        ck_assert_int_eq(mf_device_data_plain_z(m, &l->data, got, &a, there.ref.part[0]), 0);
        void *is = read_back(d, there.ref.part[0], bytes);
        ck_assert_msg(memcmp(is, host.ref.part[0], bytes) == 0, "%s differs", mf_tensor_name(a.tensor));
        free(is);
        free_parts(NULL, &host);
        free_parts(d, &there);
    }
    const struct mf_tensor_spec y = {.tensor = MF_TENSOR_Y, .format = MF_FORMAT_BF16, .order = "token"};
    ck_assert_int_eq(mf_device_data_plain_z(m, &l->data, got, &y, NULL), -ENOTSUP);
}

#define INVALID_TOKEN 3 /* invalid token id, as if a step had overwritten a row's id */

/* Checks sorted inputs gathered on the device from another row order: rows, shared scales and padding. */
static void check_gathered(struct mf_device *d, struct mf_device_data *m, const struct layer *l,
                           const struct mf_reference *ref, struct mf_tensor_spec a)
{
    const struct mf_shape *s = &l->data.shape;
    const struct mf_tensor_spec index = {MF_TENSOR_SORTED, MF_FORMAT_INDEX, MF_SCALE_NONE,
                                         "sorted",         a.block,         false};
    const struct mf_tensor_spec plain = mf_gathered_from(&a);
    struct parts sorted = new_parts(NULL, s, &index), want = new_parts(NULL, s, &a),
                 from = new_parts(NULL, s, &plain);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, ref, &index, NULL, &sorted.ref), 0);
    ((int32_t *)sorted.ref.part[0])[INVALID_TOKEN] = mf_pack_id(0x7ffff0, 1);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, ref, &a, &sorted.ref, &want.ref), 0);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, ref, &plain, NULL, &from.ref), 0);
    struct parts sorted_there = copied_parts(d, s, &index, &sorted),
                 from_there = copied_parts(d, s, &plain, &from), got = new_parts(d, s, &a);
    int r = mf_device_data_gather(m, &a, &sorted_there.ref, &from_there.ref, &got.ref);
    ck_assert_msg(r == 0, "%d: %s", r, mf_device_emulated_why(d));
    for (int i = 0; i < want.n; i++) {
        size_t bytes = (size_t)mf_part_bytes(&want.parts[i]);
        void *there = read_back(d, got.ref.part[i], bytes);
        ck_assert_msg(memcmp(want.ref.part[i], there, bytes) == 0, "%s: %s differs", mf_tensor_name(a.tensor),
                      want.parts[i].name);
        free(there);
    }
    free_parts(NULL, &sorted);
    free_parts(NULL, &want);
    free_parts(NULL, &from);
    free_parts(d, &sorted_there);
    free_parts(d, &from_there);
    free_parts(d, &got);
}

static void check_gather(struct mf_device *d, struct mf_device_data *m, const struct layer *l,
                         const struct mf_reference *ref)
{
    static const enum mf_tensor tensors[] = {MF_TENSOR_X, MF_TENSOR_G, MF_TENSOR_GW,
                                             MF_TENSOR_H, MF_TENSOR_Z, MF_TENSOR_ZW};
    struct mf_tensor_spec x = mf_plain_x(&l->data.shape), h = mf_plain_h(&l->data.shape, 16);
    (void)snprintf(x.order, sizeof(x.order), "sorted");
    x.block = 16;
    check_gathered(d, m, l, ref, x);
    check_gathered(d, m, l, ref, h);
    for (size_t i = 0; i < MF_ARRAY_LEN(tensors); i++)
        check_gathered(
            d, m, l, ref,
            (struct mf_tensor_spec){tensors[i], MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", 8, false});
    ck_assert_int_eq(mf_device_data_gather(
                         m,
                         &(struct mf_tensor_spec){
                             .tensor = MF_TENSOR_Y, .format = MF_FORMAT_BF16, .order = "sorted", .block = 8},
                         NULL, NULL, NULL),
                     -EINVAL);
}

/* Checks every array of the reference block, the two magnitudes before them, and z. */
static void check_reference(struct mf_device *d, struct mf_device_data *m, const struct mf_shape *s)
{
    struct layer l;
    struct mf_reference want, got;
    size_t bytes;

    layer_init(&l, s);
    ck_assert_int_eq(mf_reference_make(&l.data, &want), 0);
    ck_assert_int_eq(mf_reference_bytes(s, false, &bytes), 0);
    void *block = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(block);
    memset(block, 0xff, bytes);
    l.data.w1 = l.data.w2 = (struct mf_tensor_ref){{NULL}};
    int r = mf_device_data_reference(m, &l.data, block, &got);
    ck_assert_msg(r == 0, "%d: %s", r, mf_device_emulated_why(d));
    const size_t T = (size_t)s->token, rows = T * (size_t)s->topk, H = (size_t)s->model_dim;
    ck_assert_ptr_null(got.z);
    check_plain_z(d, m, &l, &want, &got);
    check_gather(d, m, &l, &want);
    float *z = calloc(rows * H, sizeof(*z));
    ck_assert_ptr_nonnull(z);
    ck_assert_int_eq(mf_device_data_z(m, &l.data, &got, z), 0);
    const struct {
        const char *name;
        const float *want, *got;
        size_t n;
    } arrays[] = {
        {"amax", want.block, block, 2},
        {"x", want.x, got.x, T * H},
        {"g", want.g, got.g, rows * (size_t)mf_gemm1_cols(s)},
        {"h_bf16", want.h_bf16, got.h_bf16, rows * (size_t)s->inter_dim},
        {"h", want.h, got.h, rows * (size_t)s->inter_dim},
        {"z", want.z, z, rows * H},
        {"y", want.y, got.y, T * H},
        {"h_error", want.h_error, got.h_error, rows},
        {"z_error", want.z_error, got.z_error, rows},
        {"y_error", want.y_error, got.y_error, T},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(arrays); i++) {
        ck_assert(!arrays[i].want == !arrays[i].got);
        for (size_t k = 0; arrays[i].want && k < arrays[i].n; k++)
            ck_assert_msg(memcmp(&arrays[i].want[k], &arrays[i].got[k], sizeof(float)) == 0,
                          "%s[%zu] is %.9g, should be %.9g", arrays[i].name, k, (double)arrays[i].got[k],
                          (double)arrays[i].want[k]);
    }
    free(z);
    free(block);
    mf_reference_release(&want);
    layer_release(&l);
}

/* Weights in every layout of the shape, and the reference. */
MF_TEST(weights_and_reference_match_host, .rows = MF_ARRAY_LEN(cases))
{
    if (!mf_draw(_i, 2))
        return;
    const struct mf_shape s = shape_of(&cases[_i].format);
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;
    size_t n_layouts;
    int n = 0;
    const struct mf_layout *layouts = mf_layouts(&n_layouts);

    d = open_device(cases[_i].gfx);
    if (!d)
        return;
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), 0);
    for (size_t i = 0; i < 2 * n_layouts; i++) {
        struct mf_part parts[MF_PARTS_MAX];
        struct mf_tensor_spec a = mf_plain_w(&s, i % 2 ? MF_TENSOR_W2 : MF_TENSOR_W1, layouts[i / 2].name);
        if (mf_tensor_spec_parts(&a, &s, parts) < 0)
            continue;
        check_weight(d, m, &s, &a);
        n++;
    }
    ck_assert_int_ge(n, 4); /* at least row and panel16 for both weights */
    check_reference(d, m, &s);
    (void)mf_device_data_free(m);
    (void)mf_device_close(d);
}

/* Weights whose rows are long enough for panels of 128 rows by 128 bytes. */
MF_TEST(panel128_weights_match_host, .rows = MF_ARRAY_LEN(cases))
{
    if (!mf_draw(_i, 2))
        return;
    struct mf_shape s = shape_of(&cases[_i].format);
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;

    s.model_dim = 512;
    s.inter_dim = 256;
    const struct mf_tensor_spec w[] = {mf_plain_w(&s, MF_TENSOR_W1, "panel128"),
                                       mf_plain_w(&s, MF_TENSOR_W2, "panel128")};
    d = open_device(cases[_i].gfx);
    if (!d)
        return;
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(w); i++)
        check_weight(d, m, &s, &w[i]);
    (void)mf_device_data_free(m);
    (void)mf_device_close(d);
}

/* Shape options other than the format; experts without tokens and experts of other ranks. */
static const struct {
    int64_t token;
    int32_t expert, topk, ep_experts, ep_first;
    bool g1u1, doweight, b1, b2;
} layers[] = {
    {1, 5, 2, 0, 0, true, false, false, false},
    {40, 2, 1, 0, 0, true, false, true, true},
    {5, 3, 4, 8, 2, true, false, false, false},
    {9, 3, 2, 0, 0, false, true, false, true},
};

MF_TEST(references_of_shape_options, .rows = MF_ARRAY_LEN(layers))
{
    struct mf_shape s = shape_of(&cases[3].format);
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;

    s.token = layers[_i].token;
    s.expert = layers[_i].expert;
    s.topk = layers[_i].topk;
    s.ep_experts = layers[_i].ep_experts;
    s.ep_first = layers[_i].ep_first;
    s.use_g1u1 = layers[_i].g1u1;
    s.doweight_stage1 = layers[_i].doweight;
    s.has_b1 = layers[_i].b1;
    s.has_b2 = layers[_i].b2;
    d = open_device("sm_89");
    if (!d)
        return;
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), 0);
    check_reference(d, m, &s);
    (void)mf_device_data_free(m);
    (void)mf_device_close(d);
}

/* A layer whose weights exceed 2^31 bytes and elements; for a real device only. */
static const struct format large[] = {{MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO},
                                      {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128}};

static const struct mf_test_group optional_tests = {.optional = true};

MF_TEST(layer_beyond_2g_elements, .rows = MF_ARRAY_LEN(large), .group = &optional_tests)
{
    struct mf_shape s = shape_of(&large[_i]);
    struct mf_device_data *m = NULL;

    if (!getenv("MOEFARM_TEST_DEVICE")) {
        mf_check_skip("MOEFARM_TEST_DEVICE names no device for the large layers");
        return;
    }
    struct mf_device *d = open_device("sm_90");
    if (!d)
        return;
    s.token = 512;
    s.model_dim = 7168;
    s.inter_dim = 640;
    s.expert = 256;
    s.topk = 8;
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), 0);
    const struct mf_tensor_spec row = mf_plain_w(&s, MF_TENSOR_W1, "row");
    check_weight(d, m, &s, &row);
    check_reference(d, m, &s);
    (void)mf_device_data_free(m);
    (void)mf_device_close(d);
}

/* ---- formats that only the host creates ---- */

static const struct {
    const char *gfx;
    struct format format;
    int32_t model_dim;
} unsupported[] = {
    {"sm_89", {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN}, 256},
    /* rows that are not multiples of 32 bytes */
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO}, 264},
    {"sm_89", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN}, 32768}, /* rows that do not fit into LDS */
};

MF_TEST(unsupported_format_refused, .rows = MF_ARRAY_LEN(unsupported))
{
    struct mf_shape s = shape_of(&unsupported[_i].format);
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;

    s.model_dim = unsupported[_i].model_dim;
    ck_assert_int_eq(mf_device_emulated_open(unsupported[_i].gfx, CORES, SEED, &d), 0);
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), -ENOTSUP);
    (void)mf_device_close(d);
}

MF_TEST(cpu_device_refused)
{
    const struct mf_shape s = shape_of(&cases[0].format);
    struct mf_device *d = NULL;
    struct mf_device_data *m = NULL;
    char why[256];

    ck_assert_int_eq(mf_device_open("cpu:0", why, sizeof(why), &d), 0);
    ck_assert_int_eq(mf_device_data_new(d, &s, SEED, &m), -ENOTSUP);
    (void)mf_device_close(d);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
