#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/philox.h"
#include "kernels/core/quant.h"
#include "kernels/cpu/device_cpu.h"
#include "support/mf_check.h"

static struct mf_shape shape_of(int64_t token, int32_t expert, int32_t topk)
{
    return (struct mf_shape){
        .token = token,
        .model_dim = 200,
        .inter_dim = 72,
        .expert = expert,
        .topk = topk,
        .dtype = MF_DTYPE_BF16,
        .q_dtype_a = MF_DTYPE_BF16,
        .q_dtype_w = MF_DTYPE_BF16,
        .use_g1u1 = true,
    };
}

/* Each value follows the definition in the header. */
MF_TEST(row_matches_definition)
{
    struct mf_shape s = shape_of(4, 8, 2);
    uint16_t row[200];
    uint64_t seed = 42, key = seed + (MF_TENSOR_X + 1) * UINT64_C(0x9E3779B97F4A7C15);
    float scale = (float)(1.0 / 37837.2);
    mf_data_x_row(&s, seed, 3, row);
    for (uint64_t k = 0; k < 200; k++) {
        struct mf_philox4 p = mf_philox(key, k / 32 * 16 + k % 16, 3);
        const uint32_t *w = p.v + (k % 32 < 16 ? 0 : 2);
        int32_t sum = (int32_t)((w[0] & 0xffff) + (w[0] >> 16) + (w[1] & 0xffff) + (w[1] >> 16)) - 131070;
        ck_assert_uint_eq(row[k], mf_bf16_from_float((float)sum * scale));
    }
}

MF_TEST(instruction_sets_agree)
{
    static const char *const names[] = {"c", "avx2", "avx512"};
    struct mf_shape s = shape_of(4, 8, 2);
    uint16_t rows[3][3][200];
    for (int i = 0; i < 3; i++) {
        setenv("MOEFARM_ISA", names[i], 1);
        mf_isa_refresh();
        mf_data_x_row(&s, 9, 2, rows[i][0]);
        mf_data_w_row(&s, MF_TENSOR_W1, 9, 7, 143, rows[i][1]);
        memset(rows[i][2], 0, sizeof(rows[i][2]));
        mf_data_w_row(&s, MF_TENSOR_W2, 9, 0, 0, rows[i][2]);
        ck_assert_int_eq(memcmp(rows[i], rows[0], sizeof(rows[0])), 0);
    }
}

/* The mean is near 0, the standard deviation is as documented, and a row that is created alone equals the
 * same row of the whole weight. */
MF_TEST(weight_mean_and_deviation)
{
    struct mf_shape s = shape_of(4, 8, 2);
    _cleanup_(mf_freep) uint16_t *w = calloc(8 * 144 * 200, sizeof(*w));
    double sum = 0, square = 0, n = 8 * 144 * 200;
    ck_assert_int_eq(mf_data_weight(&s, MF_TENSOR_W1, 5, &(struct mf_tensor_ref){{w}}), 0);
    for (int i = 0; i < 8 * 144 * 200; i++) {
        double v = (double)mf_bf16_to_float(w[i]);
        sum += v;
        square += v * v;
    }
    ck_assert_double_lt(fabs(sum / n), 0.001);
    ck_assert_double_lt(fabs(sqrt(square / n) * sqrt(200) - 1), 0.01);
    uint16_t row[200];
    mf_data_w_row(&s, MF_TENSOR_W1, 5, 6, 100, row);
    ck_assert_int_eq(memcmp(row, w + (6 * 144 + 100) * 200, sizeof(row)), 0);
}

/* An expert's fp8 weight is the quantisation of its bf16 rows, per row and per block with incomplete edges.
 */
MF_TEST(expert_is_quantised_by_rows, .rows = 4)
{
    struct mf_shape s = shape_of(4, 3, 2);
    s.q_dtype_a = s.q_dtype_w = _i % 2 ? MF_DTYPE_FP8_E4M3FNUZ : MF_DTYPE_FP8_E4M3FN;
    s.q_type = _i < 2 ? MF_QTYPE_PER_TOKEN : MF_QTYPE_PER_1X128;
    enum mf_format f = _i % 2 ? MF_FORMAT_FP8FNUZ : MF_FORMAT_FP8FN;
    static float x[144 * 200];
    static uint8_t q[144 * 200], want[144 * 200];
    uint16_t row[200];
    float scale[144], want_scale[144];
    for (int n = 0; n < 144; n++) {
        mf_data_w_row(&s, MF_TENSOR_W1, 5, 2, n, row);
        for (int k = 0; k < 200; k++)
            x[n * 200 + k] = mf_bf16_to_float(row[k]);
    }
    mf_codec_encode(mf_codec_find(f, _i < 2 ? MF_SCALE_PER_TOKEN : MF_SCALE_PER_128X128), x, 144, 200, 1,
                    want, want_scale);
    ck_assert_int_eq(mf_data_expert(&s, MF_TENSOR_W1, 5, 2, &(struct mf_tensor_ref){{q, scale}}), 0);
    ck_assert_int_eq(memcmp(q, want, sizeof(q)), 0);
    ck_assert_int_eq(memcmp(scale, want_scale, (_i < 2 ? 144 : 4) * sizeof(float)), 0);
}

static const struct {
    const char *routing;
    int64_t token;
    int32_t expert, topk;
} routes[] = {
    {"uniform", 1000, 32, 4},  {"uniform", 3, 8, 8},    {"balanced", 64, 32, 3},  {"balanced", 5, 7, 7},
    {"zipf:1.2", 1000, 32, 4}, {"zipf:4", 200, 16, 16}, {"hot:0.5", 4000, 32, 4}, {"hot:1", 65, 9, 2},
    {"hot:0", 65, 9, 2},       {"hot:0.3", 65, 6, 6},
};

/* The experts of a token are distinct and in range, the token's weights are positive with sum 1, and the same
 * seed gives the same routing. */
MF_TEST(routing_is_valid, .rows = MF_ARRAY_LEN(routes))
{
    struct mf_shape s = shape_of(routes[_i].token, routes[_i].expert, routes[_i].topk);
    struct mf_routing routing;
    size_t n = (size_t)(s.token * s.topk);
    _cleanup_(mf_freep) int32_t *ids = calloc(n, sizeof(*ids)), *again = calloc(n, sizeof(*again));
    _cleanup_(mf_freep) float *weights = calloc(n, sizeof(*weights));
    ck_assert_int_eq(mf_routing_parse(routes[_i].routing, &routing), 0);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 11, ids, weights), 0);
    int64_t zeros = 0;
    for (int64_t t = 0; t < s.token; t++) {
        float sum = 0;
        for (int32_t j = 0; j < s.topk; j++) {
            int64_t at = t * s.topk + j;
            ck_assert_int_ge(ids[at], 0);
            ck_assert_int_lt(ids[at], s.expert);
            ck_assert(weights[at] > 0);
            sum += weights[at];
            zeros += ids[at] == 0;
            for (int32_t i = 0; i < j; i++)
                ck_assert_int_ne(ids[at], ids[t * s.topk + i]);
        }
        ck_assert(fabsf(sum - 1) <= 1e-6f);
    }
    if (routing.kind == MF_ROUTING_HOT && s.topk < s.expert)
        ck_assert_double_le(fabs((double)zeros / (double)s.token - routing.parameter), 0.03);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 11, again, weights), 0);
    ck_assert_int_eq(memcmp(ids, again, n * sizeof(*ids)), 0);
}

/* Zipf: the load of one expert is far above the mean; uniform: all loads are near the mean; balanced: all
 * loads are equal. */
MF_TEST(routing_profiles)
{
    static const struct {
        const char *routing;
        double least, most; /* bounds of the busiest expert's load divided by the mean load */
    } profiles[] = {{"uniform", 1.0, 1.3}, {"zipf:1.2", 4, 9}, {"balanced", 1, 1}};
    struct mf_shape s = shape_of(4096, 32, 2);
    struct mf_routing routing;
    _cleanup_(mf_freep) int32_t *ids = calloc(4096 * 2, sizeof(*ids));
    _cleanup_(mf_freep) float *weights = calloc(4096 * 2, sizeof(*weights));
    for (size_t p = 0; p < MF_ARRAY_LEN(profiles); p++) {
        int counts[32] = {0}, top = 0;
        ck_assert_int_eq(mf_routing_parse(profiles[p].routing, &routing), 0);
        ck_assert_int_eq(mf_data_topk(&s, &routing, 1, ids, weights), 0);
        for (int i = 0; i < 4096 * 2; i++)
            counts[ids[i]]++;
        for (int e = 0; e < 32; e++)
            top = MF_MAX(top, counts[e]);
        ck_assert_double_ge(top / 256.0, profiles[p].least);
        ck_assert_double_le(top / 256.0, profiles[p].most);
        ck_assert_int_eq(mf_active_experts(&s, ids), 32);
    }
}

/* Compares the data with a recorded hash, because every node must create the same bits. */
MF_TEST(bits_match_recorded_hash)
{
    struct mf_shape s = shape_of(64, 32, 4);
    struct mf_routing routing = {.kind = MF_ROUTING_ZIPF, .parameter = 1.1};
    uint16_t row[200];
    int32_t ids[64 * 4];
    float weights[64 * 4];
    uint64_t h = UINT64_C(14695981039346656037);
    mf_data_w_row(&s, MF_TENSOR_W1, 1, 31, 143, row);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 1, ids, weights), 0);
    const struct {
        const void *p;
        size_t n;
    } parts[] = {{row, sizeof(row)}, {ids, sizeof(ids)}, {weights, sizeof(weights)}};
    for (size_t i = 0; i < MF_ARRAY_LEN(parts); i++) {
        for (size_t b = 0; b < parts[i].n; b++)
            h = (h ^ ((const uint8_t *)parts[i].p)[b]) * UINT64_C(1099511628211);
    }
    ck_assert_uint_eq(h, UINT64_C(2287163328784770322));
}

int main(void)
{
    return mf_check_main(NULL);
}
