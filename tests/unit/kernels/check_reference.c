/* Compares the fast reference with the double-precision reference, and the sorted order with AITER's own
 * example. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/quant.h"
#include "kernels/reference/reference.h"
#include "support/kernels/host_layer.h"
#include "support/kernels/reference_double.h"
#include "support/mf_check.h"

static const struct {
    enum mf_dtype a, w;
    enum mf_qtype q_type;
    double flip_error; /* maximum row error from quantised values that flip when the sum is reordered */
} formats[] = {
    {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, 1e-3},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TENSOR, 1e-2},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TENSOR, 1e-2},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TENSOR, 1e-2},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, 1e-2},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN, 1e-2},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, 1e-2},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, 1e-2},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_1X128, 1e-2},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_1X128, 1e-2},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X32, 1e-2},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, 3e-2},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, 1e-2},
    {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, 1e-3},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, 3e-2},
    {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, 1e-3},
    {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, 1e-3},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, 1e-2},
    {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, 1e-3},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, 1e-2},
};
#define N_FORMATS ((int)MF_ARRAY_LEN(formats))
#define N_COMBOS  (N_FORMATS * MF_ACT_N_ * 4)

static struct mf_shape shape_of(int combo, int64_t token)
{
    int f = combo % N_FORMATS, rest = combo / N_FORMATS;
    return (struct mf_shape){
        .token = token,
        .model_dim = 200, /* not a multiple of 128 or 16 */
        .inter_dim = 136,
        .expert = 6,
        .topk = 2,
        .act_type = (enum mf_act)(rest % MF_ACT_N_),
        .act_limit = rest % MF_ACT_N_ == MF_ACT_SILU_STEP ? 0.5f : 0,
        .dtype = MF_DTYPE_BF16,
        .q_dtype_a = formats[f].a,
        .q_dtype_w = formats[f].w,
        .q_type = formats[f].q_type,
        .use_g1u1 = rest / MF_ACT_N_ % 2,
        .doweight_stage1 = rest / MF_ACT_N_ / 2,
        .has_b1 = combo % 3 == 1,
        .has_b2 = combo % 3 == 1 || combo % 5 == 1,
    };
}

static double row_error(const float *a, const double *b, int64_t n)
{
    double d = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(d / norm);
}

/* For every activation, format, position of the routing weight and value of g1u1, the fast path equals the
 * double-precision path, except for the rounding of fp32 sums and for the quantised values of h that flip
 * because of it. */
MF_TEST(fast_matches_double, .rows = N_COMBOS)
{
    struct mf_shape s = shape_of(_i, 5);
    struct host_layer l;
    double y[200];
    host_layer_make(&l, &s, "uniform", 3);
    for (int64_t t = 0; t < s.token; t++) {
        ck_assert_int_eq(mf_reference_row_double(&l.data, &l.ref, t, true, y), 0);
        double limit = formats[_i % N_FORMATS].flip_error;
        ck_assert_double_le(row_error(l.ref.y + t * 200, y, 200), limit);
        ck_assert_int_eq(mf_reference_row_double(&l.data, &l.ref, t, false, y), 0);
        double cost = row_error(l.ref.y + t * 200, y, 200);
        if (s.q_dtype_a == MF_DTYPE_BF16) {
            ck_assert_double_le(cost, 0.006);
        } else {
            /* The stored quantisation error is the true error and not zero. It is smaller in a row with b2,
             * because b2 is not quantised. */
            ck_assert_double_gt(cost, s.has_b2 ? 0.0005 : 0.002);
            ck_assert_double_lt(cost, s.q_dtype_a == MF_DTYPE_FP4X2 ? 0.5 : 0.12);
            ck_assert_double_le(fabs(cost - (double)l.ref.y_error[t]), 0.1 * cost);
        }
    }
    host_layer_release(&l);
}

static const struct {
    int64_t token;
    const char *routing;
} loads[] = {
    {1, "uniform"}, {3, "uniform"}, {63, "hot:1"}, {64, "zipf:3"}, {65, "balanced"}, {100, "hot:0.9"},
};

/* Tests token counts around the tile size, experts without tokens, and one hot expert. Checks every token. */
MF_TEST(fast_matches_double_for_loads, .rows = MF_ARRAY_LEN(loads))
{
    struct mf_shape s = shape_of(_i % N_FORMATS, loads[_i].token);
    struct host_layer l;
    double y[200];
    s.use_g1u1 = true;
    host_layer_make(&l, &s, loads[_i].routing, 3);
    for (int64_t t = 0; t < s.token; t++) {
        ck_assert_int_eq(mf_reference_row_double(&l.data, &l.ref, t, true, y), 0);
        ck_assert_double_le(row_error(l.ref.y + t * 200, y, 200), formats[_i % N_FORMATS].flip_error);
    }
    host_layer_release(&l);
}

/* With expert parallelism, the results of all ranks add up to the layer. Each rank's result equals the
 * double-precision reference, and a token without a local route is exactly zero. */
MF_TEST(ranks_add_up, .rows = N_FORMATS)
{
    static const int32_t ranks[][2] = {{0, 1}, {1, 3}, {4, 2}}; /* first expert, number of experts */
    struct mf_shape s = shape_of(_i + N_FORMATS * (_i % MF_ACT_N_ + MF_ACT_N_), 17);
    struct host_layer l;
    double y[200];
    s.act_limit = s.act_type == MF_ACT_SILU_STEP ? 0.5f : 0;
    s.topk = 3; /* more than the number of experts of two of the ranks */
    s.has_b1 = s.has_b2 = true;
    host_layer_make(&l, &s, "uniform", 3);
    float *sum = calloc(17 * 200, sizeof(*sum));
    int64_t zeros = 0;
    for (size_t n = 0; n < MF_ARRAY_LEN(ranks); n++) {
        struct mf_layer_data d = l.data;
        struct mf_reference r;
        size_t first = (size_t)ranks[n][0];
        for (int w = 0; w < 2; w++) {
            struct mf_tensor_spec a = mf_plain_w(&s, w ? MF_TENSOR_W2 : MF_TENSOR_W1, "row");
            struct mf_part parts[MF_PARTS_MAX];
            int n_parts = mf_tensor_spec_parts(&a, &s, parts);
            struct mf_tensor_ref *ref = w ? &d.w2 : &d.w1;
            for (int p = 0; p < n_parts; p++)
                ref->part[p] =
                    (uint8_t *)ref->part[p] + first * (size_t)(mf_part_bytes(&parts[p]) / s.expert);
        }
        d.b1 += (int64_t)first * mf_gemm1_cols(&s);
        d.b2 += (int64_t)first * s.model_dim;
        d.shape.ep_first = ranks[n][0];
        d.shape.expert = ranks[n][1];
        d.shape.ep_experts = 6;
        ck_assert_int_eq(mf_reference_make(&d, &r), 0);
        for (int64_t t = 0; t < s.token; t++) {
            int here = 0;
            for (int64_t i = t * 3; i < t * 3 + 3; i++)
                here += mf_shape_local_expert(&d.shape, l.data.ids[i]) >= 0;
            ck_assert_int_eq(mf_reference_row_double(&d, &r, t, true, y), 0);
            for (int64_t i = 0; here == 0 && i < 200; i++)
                ck_assert(r.y[t * 200 + i] == 0 && !(fabs(y[i]) > 0));
            zeros += here == 0;
            if (here > 0)
                ck_assert_double_le(row_error(r.y + t * 200, y, 200), formats[_i].flip_error);
            for (int64_t i = 0; i < 200; i++)
                sum[t * 200 + i] += r.y[t * 200 + i];
        }
        mf_reference_release(&r);
    }
    ck_assert_int_gt(zeros, 0);
    /* a scale that covers all rows of h differs between ranks, so the error is larger */
    double limit = formats[_i].q_type == MF_QTYPE_PER_TENSOR || formats[_i].q_type == MF_QTYPE_PER_1X16
                       ? 5 * formats[_i].flip_error
                       : 1e-5;
    for (int64_t t = 0; t < s.token; t++) {
        for (int64_t i = 0; i < 200; i++)
            y[i] = (double)l.ref.y[t * 200 + i];
        ck_assert_double_le(row_error(sum + t * 200, y, 200), limit);
    }
    free(sum);
    host_layer_release(&l);
}

/* clang-format off */
static const struct {
    enum mf_act act;
    double gate, up, want;
    float limit;
} activations[] = {
    {MF_ACT_SWIGLU,    0,  0,  0,          0},
    {MF_ACT_SWIGLU,    1,  2,  2.537387,   0},
    {MF_ACT_SWIGLU,    8,  -9, -41.999720, 0},
    {MF_ACT_SWIGLU,    -3, 1,  -0.0361426, 0},
    {MF_ACT_SILU,      1,  2,  1.462117,   0},
    {MF_ACT_GELU,      1,  1,  0.841345,   0},
    {MF_ACT_GELU,      -2, 3,  -0.136501,  0},
    {MF_ACT_GELU_TANH, 1,  1,  0.841192,   0},
    {MF_ACT_NO,        3,  -2, -6,         0},
    /* DeepSeek-V4 clamps before silu. */
    {MF_ACT_SILU,      20, 30, 99.995460,  10},
    {MF_ACT_SILU,      50, 1,  9.999546,   10},
    {MF_ACT_SILU,      1,  2,  1.462117,   10},
    {MF_ACT_SILU,      8,  1,  6.993624,   7},
    /* silu_step clamps after silu. */
    {MF_ACT_SILU_STEP, 50, 1,  10,         10},
    {MF_ACT_SILU_STEP, 20, 30, 100,        10},
    {MF_ACT_SILU_STEP, 8,  -9, -49,        7},
    {MF_ACT_RELU2,     3,  2,  18,         0},
    {MF_ACT_RELU2,     -3, 2,  0,          0},
};
/* clang-format on */

MF_TEST(activation_vector, .rows = MF_ARRAY_LEN(activations))
{
    struct mf_shape s = {.act_type = activations[_i].act, .act_limit = activations[_i].limit};
    double got = mf_activate(&s, activations[_i].gate, activations[_i].up);
    ck_assert_double_le(fabs(got - activations[_i].want), 2e-6);
}

/* One token, one expert, and zero x and w1, so that gemm1 gives only b1. The first column of w2 is one, so y
 * is the activated b1 plus b2. The routing weight multiplies this sum, unless it is applied before the
 * activation, where it only multiplies zero. */
MF_TEST(biases_alone, .rows = 2)
{
    struct mf_shape s = {.token = 1,
                         .model_dim = 16,
                         .inter_dim = 16,
                         .expert = 1,
                         .topk = 1,
                         .act_type = MF_ACT_SWIGLU,
                         .dtype = MF_DTYPE_BF16,
                         .q_dtype_a = MF_DTYPE_BF16,
                         .q_dtype_w = MF_DTYPE_BF16,
                         .use_g1u1 = true,
                         .doweight_stage1 = _i == 1,
                         .has_b1 = true,
                         .has_b2 = true};
    uint16_t x[16] = {0}, w1[32 * 16] = {0}, w2[16 * 16] = {0};
    const int32_t ids[] = {0};
    const float weights[] = {0.25f};
    float b1[32], b2[16];
    for (int i = 0; i < 32; i++)
        b1[i] = i < 16 ? 1 : 2; /* (1, 2) -> 2.537387 */
    for (int i = 0; i < 16; i++) {
        b2[i] = (float)(i - 8);
        w2[i * 16] = mf_bf16_from_float(1); /* z is the first element of h plus b2 */
    }
    struct mf_layer_data d = {s, x, ids, weights, {{w1}}, {{w2}}, b1, b2};
    struct mf_reference r;
    double y[16];
    ck_assert_int_eq(mf_reference_make(&d, &r), 0);
    ck_assert_int_eq(mf_reference_row_double(&d, &r, 0, false, y), 0);
    for (int i = 0; i < 16; i++) {
        double want = (2.537387 + (i - 8)) * (_i == 1 ? 1 : 0.25);
        ck_assert_double_le(fabs(y[i] - want), 2e-6);
        ck_assert_double_le(fabs((double)r.y[i] - want), 0.01);
        ck_assert(r.g[i] == 0);
    }
    mf_reference_release(&r);
}

/* The example of AITER's moe_sorting_opus.h, corrected: five tokens, three slots, six experts, blocks of 4.
 */
MF_TEST(sort_example)
{
    enum { P = 0x03000005 };
    static const int32_t ids[] = {0, 3, 5, 2, 3, 5, 1, 3, 5, 1, 2, 3, 1, 3, 5};
    static const int32_t want[] = {
        0x00000000, P,          P, P, 0x00000002, 0x00000003, 0x00000004, P,
        0x00000001, 0x01000003, P, P, 0x01000000, 0x01000001, 0x01000002, 0x02000003,
        0x01000004, P,          P, P, 0x02000000, 0x02000001, 0x02000002, 0x02000004,
    };
    static const int32_t want_experts[] = {0, 1, 2, 3, 3, 5};
    struct mf_shape s = {.token = 5, .topk = 3, .expert = 6, .model_dim = 16, .inter_dim = 16};
    int32_t out[64], experts[16], num_valid[2];
    float weights[15], out_weights[64];
    ck_assert_int_eq(mf_padded_rows(&s, 4), 36);
    for (int i = 0; i < 15; i++)
        weights[i] = (float)(i + 1);
    struct mf_tensor_ref ref = {{out, out_weights, experts, num_valid}};
    ck_assert_int_eq(mf_reference_sort(&s, ids, weights, 4, &ref), 0);
    ck_assert_int_eq(num_valid[0], 24);
    ck_assert_int_eq(num_valid[1], 5);
    ck_assert_mem_eq(out, want, sizeof(want));
    ck_assert_mem_eq(experts, want_experts, sizeof(want_experts));
    for (int p = 0; p < 24; p++) {
        float w = out[p] == P ? 0 : weights[mf_id_token(out[p]) * 3 + mf_id_slot(out[p])];
        ck_assert(out_weights[p] == w);
    }
    ck_assert_int_eq(experts[6], 0x7fffffff);
    ck_assert_int_eq(out[24], 0x7fffffff);
}

static void decode(const struct mf_tensor_spec *a, const struct mf_tensor_ref *t, int64_t row, int64_t cols,
                   float *out)
{
    const struct mf_codec *c = mf_codec_find(a->format, a->scale);
    if (a->format == MF_FORMAT_F32)
        memcpy(out, (float *)t->part[0] + row * cols, (size_t)cols * sizeof(*out));
    else
        mf_codec_decode_row(c, t->part[0], t->part[1], c->global ? *(float *)t->part[2] : 1, (size_t)row,
                            (size_t)cols, out);
}

static const char *const tensor_specs[] = {
    "g/f32/none/sorted.16", "gw/bf16/none/sorted.16", "h/bf16/none/sorted.16", "h/Q/sorted.16",
    "z/f32/none/slot",      "zw/bf16/none/slot",      "y/bf16/none/token",     "x/Q/token",
    "x/Q/sorted.16",
};

/* Each tensor spec decodes to its reference row within the format's rounding error, and padding rows hold
 * NaN. */
static void check_tensor_spec(struct host_layer *l, const struct mf_tensor_spec *a,
                              const struct mf_tensor_ref *sorted)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n_parts = mf_tensor_spec_parts(a, &l->data.shape, parts);
    struct mf_tensor_ref to = host_tensor_new(a, &l->data.shape);
    int64_t cols = mf_tensor_spec_cols(a, &l->data.shape);
    /* padding is NaN if the element or the row's scale can represent it */
    bool is_value;
    (void)mf_part_poison(a, 0, &is_value);
    bool shows = !is_value || (n_parts > 1 && parts[1].rows == parts[0].rows);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, &l->ref, a, sorted, &to), 0);
    float got[300];
    for (int64_t p = 0; p < parts[0].rows; p++) {
        int64_t row = p;
        decode(a, &to, p, cols, got);
        if (strcmp(a->order, "sorted") == 0) {
            int32_t id = ((int32_t *)sorted->part[0])[p];
            if (mf_id_token(id) >= l->data.shape.token) {
                for (int64_t i = 0; i < cols; i++)
                    ck_assert(!shows || isnan(got[i]));
                continue;
            }
            row = a->tensor == MF_TENSOR_X ? mf_id_token(id)
                                           : mf_id_token(id) * l->data.shape.topk + mf_id_slot(id);
        }
        float factor;
        const float *want = mf_reference_row(&l->data, &l->ref, a, row, &factor);
        ck_assert_ptr_nonnull(want);
        for (int64_t i = 0; i < cols; i++) {
            float tolerance = a->format == MF_FORMAT_BF16 ? fabsf(want[i] * factor) * 0x1p-8f : 0;
            ck_assert(fabsf(got[i] - want[i] * factor) <= tolerance);
        }
    }
    host_tensor_free(&to);
}

MF_TEST(tensor_specs_decode_to_their_reference, .rows = N_FORMATS)
{
    struct mf_shape s = shape_of(_i, 7);
    struct host_layer l;
    int32_t ids[512], experts[64], num_valid[2];
    float weights[512];
    struct mf_tensor_ref sorted = {{ids, weights, experts, num_valid}};
    s.use_g1u1 = true;
    host_layer_make(&l, &s, "uniform", 3);
    ck_assert_int_eq(mf_reference_sort(&s, l.data.ids, l.data.weights, 16, &sorted), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(tensor_specs); i++) {
        char text[MF_TENSOR_SPEC_TEXT_MAX];
        struct mf_tensor_spec plain = mf_plain_x(&s), a;
        const char *q = strchr(tensor_specs[i], 'Q');
        if (q && plain.scale == MF_SCALE_NONE)
            continue;
        if (q)
            (void)snprintf(text, sizeof(text), "%.*s%s/%s%s", (int)(q - tensor_specs[i]), tensor_specs[i],
                           mf_format_name(plain.format), mf_scale_name(plain.scale), q + 1);
        else
            (void)snprintf(text, sizeof(text), "%s", tensor_specs[i]);
        ck_assert_msg(mf_tensor_spec_parse(text, &a) == 0, "%s", text);
        check_tensor_spec(&l, &a, &sorted);
    }
    host_layer_release(&l);
}

/* A reference block that was filled, moved and opened again equals the computed reference. Nothing is written
 * beyond the block. */
MF_TEST(block_reopened, .rows = N_FORMATS)
{
    struct mf_shape s = shape_of(_i, 9);
    struct host_layer l;
    size_t bytes;
    struct mf_reference made, opened;
    host_layer_make(&l, &s, "zipf:1.2", 3);
    ck_assert_int_eq(mf_reference_bytes(&s, true, &bytes), 0);
    uint8_t *block = aligned_alloc(64, bytes + 64), *copy = aligned_alloc(64, bytes);
    memset(block + bytes, 0xa5, 64);
    ck_assert_int_eq(mf_reference_make_in(&l.data, NULL, block, &made), 0);
    for (int i = 0; i < 64; i++)
        ck_assert_uint_eq(block[bytes + (size_t)i], 0xa5);
    memcpy(copy, block, bytes);
    memset(block, 0xff, bytes);
    mf_reference_open(&s, true, copy, &opened);
    const struct {
        const float *kept, *computed;
        int64_t n;
    } arrays[] = {
        {opened.x, l.ref.x, s.token * s.model_dim},
        {opened.g, l.ref.g, s.token * s.topk * mf_gemm1_cols(&s)},
        {opened.h_bf16, l.ref.h_bf16, s.token * s.topk * s.inter_dim},
        {opened.h, l.ref.h, s.token * s.topk * s.inter_dim},
        {opened.z, l.ref.z, s.token * s.topk * s.model_dim},
        {opened.y, l.ref.y, s.token * s.model_dim},
        {opened.h_error, l.ref.h_error, s.token * s.topk},
        {opened.z_error, l.ref.z_error, s.token * s.topk},
        {opened.y_error, l.ref.y_error, s.token},
        {&opened.x_amax, &l.ref.x_amax, 1},
        {&opened.h_amax, &l.ref.h_amax, 1},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(arrays); i++) {
        ck_assert_msg(!arrays[i].kept == !arrays[i].computed, "array %zu", i);
        if (arrays[i].kept)
            ck_assert_mem_eq(arrays[i].kept, arrays[i].computed, (size_t)arrays[i].n * sizeof(float));
    }
    ck_assert((opened.h == opened.h_bf16) == (l.ref.h == l.ref.h_bf16));
    free(block);
    free(copy);
    host_layer_release(&l);
}

static const char *const no_tensor_specs[] = {
    "g/bf16/none/token",        "y/bf16/none/sorted.16",   "x/fp8fn/none/token",    "w1/bf16/none/panel99",
    "sorted/f32/none/sorted.4", "y/fp8fn/per_token/token", "w1/bf16/per_token/row",
};

MF_TEST(unsupported_tensor_specs, .rows = MF_ARRAY_LEN(no_tensor_specs))
{
    struct mf_shape s = shape_of(0, 7);
    struct mf_part parts[MF_PARTS_MAX];
    struct mf_tensor_spec a;
    ck_assert_msg(mf_tensor_spec_parse(no_tensor_specs[_i], &a) == 0, "%s", no_tensor_specs[_i]);
    ck_assert_int_eq(mf_tensor_spec_parts(&a, &s, parts), -EINVAL);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
