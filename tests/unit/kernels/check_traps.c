/* Bugs of serving stacks in quantised, sorted and captured MoE layers, one row each. The tests check that the
 * definitions, which all kernels are checked against, and the kernel families do not have these bugs. Bugs
 * that other tests cover are listed with the test's name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/quant.h"
#include "kernels/ops/calibrate.h"
#include "kernels/ops/shuffle.h"
#include "kernels/reference/reference.h"
#include "support/kernels/family_contract.h"
#include "support/kernels/host_layer.h"
#include "support/mf_check.h"
#include "support/text_file.h"

static struct mf_shape shape_of(int64_t token, enum mf_dtype a, enum mf_dtype w, enum mf_qtype q)
{
    return (struct mf_shape){.token = token,
                             .model_dim = 64,
                             .inter_dim = 32,
                             .expert = 4,
                             .topk = 2,
                             .act_type = MF_ACT_SILU,
                             .dtype = MF_DTYPE_BF16,
                             .q_dtype_a = a,
                             .q_dtype_w = w,
                             .q_type = q,
                             .use_g1u1 = true};
}

static struct host_layer *layer_new(const struct mf_shape *s, const char *routing)
{
    struct host_layer *l = calloc(1, sizeof(*l));
    ck_assert_ptr_nonnull(l);
    host_layer_make(l, s, routing, 5);
    return l;
}

static void layer_free(struct host_layer *l)
{
    host_layer_release(l);
    free(l);
}

static struct mf_tensor_spec sorted_of(int32_t block)
{
    return (struct mf_tensor_spec){
        .tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted", .block = block};
}

/* --- the traps --- */

/* Experts have 100 rows. Swizzling all rows at once would put expert 1 into the padding of expert 0. */
static void swizzle_per_expert(void)
{
    const struct mf_shuffle_size one = {100, 4, 1, false}, both = {200, 4, 1, false};
    size_t expert1 = mf_shuffle_elements(MF_SHUFFLE_NV_32_4_4, &one);
    ck_assert_uint_eq(expert1, 512);
    ck_assert_uint_ne(mf_shuffle_index(MF_SHUFFLE_NV_32_4_4, &both, 100, 0),
                      expert1 + mf_shuffle_index(MF_SHUFFLE_NV_32_4_4, &one, 0, 0));
}

/* An expert without tokens lies between two experts with tokens, and one expert has exactly one full block.
 */
static void empty_expert_takes_no_block(void)
{
    struct mf_shape s = shape_of(4, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO);
    static const int32_t ids[8] = {0, 3, 0, 3, 0, 3, 0, 3};
    static const float weights[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int32_t sorted_ids[64], experts[16], num_valid[2];
    float sorted_weights[64];
    struct mf_tensor_ref to = {{sorted_ids, sorted_weights, experts, num_valid}};
    ck_assert_int_eq(mf_reference_sort(&s, ids, weights, 4, &to), 0);
    ck_assert_int_eq(num_valid[0], 8);
    ck_assert_int_eq(experts[0], 0);
    ck_assert_int_eq(experts[1], 3);
}

/* Creating references does not modify the inputs. */
static void inputs_unmodified(void)
{
    struct mf_shape s = shape_of(6, MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16);
    struct host_layer *l = layer_new(&s, "uniform");
    uint16_t x[6 * 64];
    int32_t ids[12];
    struct mf_reference r;
    memcpy(x, l->data.x, sizeof(x));
    memcpy(ids, l->data.ids, sizeof(ids));
    ck_assert_int_eq(mf_reference_make(&l->data, &r), 0);
    mf_reference_release(&r);
    ck_assert_mem_eq(x, l->data.x, sizeof(x));
    ck_assert_mem_eq(ids, l->data.ids, sizeof(ids));
    layer_free(l);
}

/* A factor calibrated on normal data meets an extreme row: scales saturate, values stay finite and keep their
 * sign. */
static void calibrated_factor_saturates(void)
{
    const struct mf_codec *c = mf_codec_find(MF_FORMAT_FP4, MF_SCALE_PER_1X16);
    float row[16], back[16], global = mf_codec_global(c, 1);
    uint8_t q[8], scale;
    for (int i = 0; i < 16; i++)
        row[i] = i % 2 ? -1000.0f : 1000.0f;
    mf_codec_encode(c, row, 1, 16, global, q, &scale);
    mf_codec_decode_row(c, q, &scale, global, 0, 16, back);
    ck_assert_uint_eq(scale, 0x7e);
    for (int i = 0; i < 16; i++)
        ck_assert(isfinite(back[i]) && (back[i] < 0) == (i % 2 == 1));
}

/* x and h have separate factors. */
static void stages_have_their_own_factors(void)
{
    struct mf_shape s = shape_of(16, MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16);
    struct host_layer *l = layer_new(&s, "uniform");
    struct mf_tensor_spec a = {.tensor = MF_TENSOR_CALIB, .format = MF_FORMAT_F32, .order = "token"};
    float factors[2];
    ck_assert_int_eq(
        mf_reference_tensor_spec(&l->data, &l->ref, &a, NULL, &(struct mf_tensor_ref){{factors}}), 0);
    ck_assert_double_eq_tol((double)factors[0] * (double)l->ref.x_amax, 2688, 0.1);
    ck_assert_double_eq_tol((double)factors[1] * (double)l->ref.h_amax, 2688, 0.1);
    ck_assert(fabsf(factors[0] - factors[1]) > 0.01f * factors[0]);
    layer_free(l);
}

/* Every sorted row keeps the scales of its token, even if one expert has more than 128 tokens. */
static void scales_move_with_their_rows(void)
{
    struct mf_shape s = shape_of(200, MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32);
    struct host_layer *l = layer_new(&s, "hot:1");
    struct mf_tensor_spec order = sorted_of(128), plain = mf_plain_x(&s), moved = plain;
    struct mf_tensor_ref sorted = host_tensor_new(&order, &s), x = host_tensor_new(&plain, &s);
    (void)strcpy(moved.order, "sorted");
    moved.block = 128;
    struct mf_tensor_ref rows = host_tensor_new(&moved, &s);
    ck_assert_int_eq(mf_reference_sort(&s, l->data.ids, l->data.weights, 128, &sorted), 0);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, &l->ref, &plain, NULL, &x), 0);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, &l->ref, &moved, &sorted, &rows), 0);
    const int32_t *ids = sorted.part[0];
    int seen = 0;
    for (int32_t p = 0; p < ((int32_t *)sorted.part[3])[0]; p++) {
        int32_t token = mf_id_token(ids[p]);
        if (token >= s.token)
            continue;
        ck_assert_mem_eq((uint8_t *)rows.part[1] + p * 2, (uint8_t *)x.part[1] + token * 2, 2);
        ck_assert_mem_eq((uint8_t *)rows.part[0] + p * 32, (uint8_t *)x.part[0] + token * 32, 32);
        seen++;
    }
    ck_assert_int_eq(seen, 400);
    host_tensor_free(&sorted);
    host_tensor_free(&x);
    host_tensor_free(&rows);
    layer_free(l);
}

/* Buffers are sized for the worst routing, not the average routing, so no token is dropped under any load. */
static void no_token_is_dropped(void)
{
    static const char *const loads[] = {"hot:1", "zipf:4", "balanced", "uniform", "recorded:1.0.0.0"};
    static const int32_t blocks[] = {1, 4, 16, 128};
    for (size_t i = 0; i < MF_ARRAY_LEN(loads); i++) {
        struct mf_shape s = shape_of(129, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO);
        struct host_layer *l = layer_new(&s, loads[i]);
        for (size_t b = 0; b < MF_ARRAY_LEN(blocks); b++) {
            struct mf_tensor_spec order = sorted_of(blocks[b]);
            struct mf_tensor_ref sorted = host_tensor_new(&order, &s);
            bool there[258] = {false};
            ck_assert_int_eq(mf_reference_sort(&s, l->data.ids, l->data.weights, blocks[b], &sorted), 0);
            int32_t used = ((int32_t *)sorted.part[3])[0];
            ck_assert_int_le(used, mf_padded_rows(&s, blocks[b]));
            for (int32_t p = 0; p < used; p++) {
                int32_t id = ((int32_t *)sorted.part[0])[p];
                if (mf_id_token(id) < s.token)
                    there[mf_id_token(id) * 2 + mf_id_slot(id)] = true;
            }
            for (int j = 0; j < 258; j++)
                ck_assert(there[j]);
            host_tensor_free(&sorted);
        }
        layer_free(l);
    }
}

/* The clamp is applied before silu. Other results follow if it is applied after silu or left out. */
static void clamp_is_before_silu(void)
{
    struct mf_shape before = {.act_type = MF_ACT_SILU, .act_limit = 7},
                    after = {.act_type = MF_ACT_SILU_STEP, .act_limit = 7};
    struct mf_shape none = {.act_type = MF_ACT_SILU};
    ck_assert_double_eq_tol(mf_activate(&before, 50, 1), 6.99362, 1e-5);
    ck_assert_double_eq_tol(mf_activate(&after, 50, 1), 7, 1e-12);
    ck_assert_double_eq_tol(mf_activate(&none, 50, 1), 50, 1e-9);
}

/* NaN and infinity in one token affect only the rows of that token. */
static void nan_stays_in_its_token(void)
{
    struct mf_shape s = shape_of(8, MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN);
    struct host_layer *l = layer_new(&s, "uniform");
    struct mf_reference broken;
    ((uint16_t *)l->data.x)[3 * 64 + 5] = 0x7fc0;
    ck_assert_int_eq(mf_reference_make(&l->data, &broken), 0);
    for (int t = 0; t < 8; t++)
        for (int i = 0; i < 64; i++)
            ck_assert(t == 3 ? (bool)isnan(broken.y[t * 64 + i])
                             : !(broken.y[t * 64 + i] > l->ref.y[t * 64 + i] ||
                                 broken.y[t * 64 + i] < l->ref.y[t * 64 + i]));
    mf_reference_release(&broken);
    layer_free(l);
}

/* Applying the routing weight before the activation or after gemm2 gives different results, because silu is
 * not linear. */
static void weight_position_matters(void)
{
    struct mf_shape s = shape_of(4, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO);
    struct host_layer *late = layer_new(&s, "uniform");
    s.doweight_stage1 = true;
    struct host_layer *before = layer_new(&s, "uniform");
    double difference = 0, size = 0;
    for (int i = 0; i < 4 * 64; i++) {
        difference += pow((double)before->ref.y[i] - (double)late->ref.y[i], 2);
        size += pow((double)late->ref.y[i], 2);
    }
    ck_assert_double_gt(difference, 0.01 * size);
    layer_free(late);
    layer_free(before);
}

/* Bytes of e4m3fn that are read as e4m3fnuz have half the value, and the byte 0x80 is NaN in e4m3fnuz. */
static void fp8_encodings_differ(void)
{
    ck_assert_double_eq((double)mf_fp8_to_float(MF_FORMAT_FP8FN, 0x38), 1);
    ck_assert_double_eq((double)mf_fp8_to_float(MF_FORMAT_FP8FNUZ, 0x38), 0.5);
    ck_assert(isnan(mf_fp8_to_float(MF_FORMAT_FP8FNUZ, 0x80)));
    ck_assert(!isnan(mf_fp8_to_float(MF_FORMAT_FP8FN, 0x80)));
}

/* In no family does a kernel let NaN, infinity, gates above 10,000 or zero weights affect other rows: all
 * other rows of each step equal those for normal inputs. Formats with one scale for all rows are excluded. */
static void extreme_tokens_isolated(void)
{
    static const struct contract_case layers[] = {
        {9, 128, 64, 8, 3, MF_ACT_SILU, false},
        {9, 96, 96, 8, 2, MF_ACT_SWIGLU, true},
        {64, 128, 64, 8, 2, MF_ACT_SILU, false}, /* this case clamps */
    };
    contract_pin_core(0);
    for (size_t i = 0; i < MF_ARRAY_LEN(layers) * CONTRACT_N_FORMATS; i++) {
        const struct contract_format *f = &contract_formats[i % CONTRACT_N_FORMATS];
        const char *const families[] = {f->family, "one_stage", "move", "onednn"};
        struct mf_shape s = contract_shape(&layers[i / CONTRACT_N_FORMATS], f);
        struct mf_device *d = contract_device(i % 3 == 2 ? "c" : NULL);
        const struct contract_run run = {.device = d,
                                         .families = families,
                                         .n_families = MF_ARRAY_LEN(families),
                                         .shape = &s,
                                         .most = 12,
                                         .first = (int)i,
                                         .wild = true};
        if (f->q_type != MF_QTYPE_PER_TENSOR && f->q_type != MF_QTYPE_PER_1X16)
            ck_assert_int_gt(contract_check_some(&run), 0);
        (void)mf_device_close(d);
    }
}

/* Entries beyond the rows in use are invalid as a token, as an expert and as a weight, so any use of them is
 * detected. */
static void tail_is_invalid(void)
{
    struct mf_shape s = shape_of(5, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO);
    struct host_layer *l = layer_new(&s, "hot:1");
    struct mf_tensor_spec order = sorted_of(4);
    struct mf_tensor_ref sorted = host_tensor_new(&order, &s);
    ck_assert_int_eq(mf_reference_sort(&s, l->data.ids, l->data.weights, 4, &sorted), 0);
    int32_t used = ((int32_t *)sorted.part[3])[0], rows = (int32_t)mf_padded_rows(&s, 4);
    ck_assert_int_lt(used, rows);
    for (int32_t p = used; p < rows; p++) {
        ck_assert_int_eq(((int32_t *)sorted.part[0])[p], 0x7fffffff);
        ck_assert(isnan(((float *)sorted.part[1])[p]));
        ck_assert_int_eq(((int32_t *)sorted.part[2])[p / 4], 0x7fffffff);
    }
    host_tensor_free(&sorted);
    layer_free(l);
}

/* Padding columns (gpt-oss: 2880 to 3072) that are zero in both weights do not change the result. */
static void padded_width_is_the_same(void)
{
    enum { H = 64, WIDE = 32, NARROW = 24, E = 4 };
    struct mf_shape s = shape_of(7, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO);
    s.act_type = MF_ACT_SWIGLU; /* Swiglu adds one to up */
    struct host_layer *l = layer_new(&s, "uniform");
    uint16_t *w1 = l->data.w1.part[0], *w2 = l->data.w2.part[0], *to1 = w1, *to2 = w2;
    struct mf_reference narrow;
    for (int row = 0; row < E * 2 * WIDE; row++)
        if (row % WIDE >= NARROW)
            memset(w1 + row * H, 0, H * sizeof(*w1));
    for (int i = 0; i < E * H * WIDE; i++)
        if (i % WIDE >= NARROW)
            w2[i] = 0;
    mf_reference_release(&l->ref);
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
    for (int row = 0; row < E * 2 * WIDE; row++)
        if (row % WIDE < NARROW) {
            memmove(to1, w1 + row * H, H * sizeof(*w1));
            to1 += H;
        }
    for (int i = 0; i < E * H * WIDE; i++)
        if (i % WIDE < NARROW)
            *to2++ = w2[i];
    l->data.shape.inter_dim = NARROW;
    ck_assert_int_eq(mf_reference_make(&l->data, &narrow), 0);
    for (int i = 0; i < 7 * H; i++)
        ck_assert_double_eq_tol((double)narrow.y[i], (double)l->ref.y[i],
                                1e-5 * (1 + fabs((double)l->ref.y[i])));
    mf_reference_release(&narrow);
    layer_free(l);
}

/* Steps are opened once and launched with different routings, as in the replay of a captured graph. Each step
 * starts once with a balanced routing and once with the fewest active experts. */
static void replayed_with_another_routing(void)
{
    static const int formats[] = {0, 1, 11};
    for (size_t i = 0; i < MF_ARRAY_LEN(formats); i++) {
        const struct contract_format *f = &contract_formats[formats[i]];
        const struct contract_case c = {17, 128, 64, 8, 3, MF_ACT_SILU, false};
        const struct mf_shape s = contract_shape(&c, f);
        struct mf_device *d = contract_device(NULL);
        ck_assert_int_gt(contract_replay(d, f->family, &s, NULL), 0);
        ck_assert_int_gt(contract_replay(d, "move", &s, NULL), 0);
        (void)mf_device_close(d);
    }
}

/* Sizes above 32 bits are computed in 64 bits. */
static void sizes_beyond_32_bits(void)
{
    struct mf_shape s = {.token = 56000,
                         .model_dim = 7168,
                         .inter_dim = 2048,
                         .expert = 512,
                         .topk = 8,
                         .dtype = MF_DTYPE_BF16,
                         .q_dtype_a = MF_DTYPE_BF16,
                         .q_dtype_w = MF_DTYPE_BF16,
                         .use_g1u1 = true};
    struct mf_tensor_spec z = {.tensor = MF_TENSOR_Z, .format = MF_FORMAT_BF16, .order = "slot"};
    struct mf_tensor_spec w = mf_plain_w(&s, MF_TENSOR_W1, "row");
    struct mf_part parts[MF_PARTS_MAX];
    ck_assert_int_eq(mf_tensor_spec_parts(&z, &s, parts), 1);
    ck_assert_int_eq(mf_part_bytes(&parts[0]), INT64_C(56000) * 8 * 7168 * 2);
    ck_assert_int_eq(mf_tensor_spec_parts(&w, &s, parts), 1);
    ck_assert_int_eq(mf_part_bytes(&parts[0]), INT64_C(512) * 4096 * 7168 * 2);
}

/* Tests a block of zeros, and blocks with a largest value just below a power of two and exactly at it. */
static void block_scale_edges(void)
{
    const struct mf_codec *c = mf_codec_find(MF_FORMAT_FP4, MF_SCALE_PER_1X32);
    static const float tops[] = {0, 5.9999995f, 6, 6.0000005f, 48, 48.000004f};
    static const uint8_t scales[] = {0, 127, 127, 128, 130, 131};
    for (size_t i = 0; i < MF_ARRAY_LEN(tops); i++) {
        uint8_t scale;
        mf_codec_group_scale(c, tops[i], 1, &scale);
        ck_assert_msg(scale == scales[i], "amax %.9g: %u, not %u", (double)tops[i], scale, scales[i]);
    }
}

/* Ids number the experts of all ranks, but weights exist only for local experts. With ids from 8 to 11 and 4
 * local experts, the result equals that for ids from 0. Slots of other ranks are never read, although they
 * hold NaN. */
static void ids_are_global_weights_local(void)
{
    struct mf_shape s = shape_of(9, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO);
    struct host_layer *l = layer_new(&s, "uniform");
    s.ep_first = 8;
    s.ep_experts = 16;
    int32_t ids[18];
    struct mf_reference here;
    for (int i = 0; i < 18; i++)
        ids[i] = l->data.ids[i] + 8;
    struct mf_layer_data d = l->data;
    d.shape = s;
    d.ids = ids;
    ck_assert_int_eq(mf_reference_make(&d, &here), 0);
    ck_assert_mem_eq(here.y, l->ref.y, 9 * 64 * sizeof(float));
    mf_reference_release(&here);
    /* Token 0 has no local slot, and token 1 has one local slot. ids[2] is the local index instead of the id,
     * and ids[4] does not exist. */
    ids[0] = 12;
    ids[1] = 7;
    ids[2] = l->data.ids[2];
    ids[4] = -1;
    ck_assert_int_eq(mf_reference_make(&d, &here), 0);
    for (int i = 0; i < 64; i++)
        ck_assert(here.y[i] == 0);
    ck_assert(memcmp(here.y + 64, l->ref.y + 64, 64 * sizeof(float)) != 0);
    ck_assert_mem_eq(here.y + 3 * 64, l->ref.y + 3 * 64, 6 * 64 * sizeof(float));
    int32_t sorted_ids[64], experts[16], num_valid[2];
    float sorted_weights[64];
    struct mf_tensor_ref sorted = {{sorted_ids, sorted_weights, experts, num_valid}};
    ck_assert_int_eq(mf_reference_sort(&s, ids, l->data.weights, 4, &sorted), 0);
    for (int b = 0; b < num_valid[0] / 4; b++)
        ck_assert(experts[b] >= 0 && experts[b] < 4);
    struct mf_tensor_spec z = {.tensor = MF_TENSOR_Z, .format = MF_FORMAT_F32, .order = "slot"};
    struct mf_tensor_ref to = host_tensor_new(&z, &s);
    ck_assert_int_eq(mf_reference_tensor_spec(&d, &here, &z, NULL, &to), 0);
    for (int i = 0; i < 18; i++)
        ck_assert_int_eq(isnan(((float *)to.part[0])[i * 64]) != 0, i < 3 || i == 4);
    host_tensor_free(&to);
    mf_reference_release(&here);
    layer_free(l);
}

/* "bug n": one of 25 bugs of an NVFP4 serving stack. "trap n": bug classes from public issue trackers:
 *
 *    1 token counts around buckets        10 stale rows of other ranks      19 checks that miss one wrong row
 *    2 uneven loads                       11 scaling applied twice          20 32-bit offsets
 *    3 duplicate ids, -1, beyond E        12 NaN in other tokens' rows      21 worst-case grids, idle blocks
 *    4 counts around blocks, odd E        13 huge gates, clamps             22 padded widths
 *    5 garbage after the rows in use      14 edges of scales                23 allocations during capture
 *    6 dispatch thresholds                15 the other fp8 encoding         24 state between replays
 *    7 nondeterministic order             16 position of the weight         25 first calls during capture
 *    8 limits of packed ids               17 position of biases             26 compilation during capture
 *    9 maps and masks of ranks            18 partial sums over old memory */
/* clang-format off */
static const struct {
    const char *trap;
    void (*check)(void);
} traps[] = {
    {"bug 1, 24: scales swizzled over all experts at once", swizzle_per_expert},
    {"bug 2, 4: offsets of empty experts and exact blocks", empty_expert_takes_no_block},
    {"bug 3: inputs modified", inputs_unmodified},
    {"bug 5: calibrated factor overflows the block scale", calibrated_factor_saturates},
    {"bug 6, 7: one factor for both stages", stages_have_their_own_factors},
    {"bug 8, 13, trap 9, 10: global ids used as local ids", ids_are_global_weights_local},
    {"bug 9-11, 14: scales at fixed offsets, expert above 128 rows", scales_move_with_their_rows},
    {"bug 12, 18-20, 23, trap 23-25: one routing captured, another replayed", replayed_with_another_routing},
    {"bug 16, 17, 22, trap 2: buffers for the average load, tokens dropped", no_token_is_dropped},
    {"bug 25, trap 13: clamp missing or after silu", clamp_is_before_silu},
    {"trap 5, 21: entries beyond the rows in use", tail_is_invalid},
    {"trap 12: NaN of one token in other tokens' rows", nan_stays_in_its_token},
    {"trap 12, 13, 16: NaN, infinity, huge gates, zero weights", extreme_tokens_isolated},
    {"trap 14: block scales at powers of two, zero block", block_scale_edges},
    {"trap 15: the other fp8 encoding", fp8_encodings_differ},
    {"trap 16: routing weight of stage 1 applied in stage 2", weight_position_matters},
    {"trap 20: 32-bit offsets", sizes_beyond_32_bits},
    {"trap 22: padded widths", padded_width_is_the_same},
};

/* Bugs and traps that other tests cover. */
static const struct {
    const char *trap, *file, *test;
} covered_elsewhere[] = {
    {"trap 1: token counts around buckets", "support/farm/route_cases.h", "{\"1: 2^n + 1 tokens\""},
    {"trap 1: rows of tables by bucket", "unit/kernels/check_fmoe_table.c", "look_up"},
    {"trap 1: steps of a bucket for fewer tokens", "unit/kernels/check_bucket.c",
     "every_token_count_of_bucket"},
    {"trap 2: uneven loads", "support/farm/route_cases.h", "{\"2: two hot experts\""},
    {"trap 3: duplicate ids, -1, beyond E", "support/farm/route_cases.h", "{\"3: -1 and ids beyond E\""},
    {"trap 4: counts around blocks, odd E", "support/farm/route_cases.h",
     "{\"4: counts B - 1, B, B + 1, 0\""},
    {"trap 6: dispatch thresholds", "support/farm/route_cases.h", "{\"6: 1025 routes, E = 65\""},
    {"trap 7: nondeterministic order", "unit/kernels/ops/check_moe_sort.c", "unstable_sort_is_correct"},
    {"trap 7: nondeterministic order", "unit/kernels/ops/check_align.c", "unstable_sort_is_correct"},
    {"trap 8: limits of packed ids", "unit/kernels/ops/check_moe_sort.c", "largest_token_and_slot"},
    {"trap 9: a map with -1 passed as mask", "unit/kernels/ops/check_moe_sort.c",
     "{0, -1}}, \"expert_mask\""},
    {"trap 9: a map in descending order", "unit/kernels/ops/check_align.c",
     "\"remote routes dropped, the map in no order\""},
    {"trap 11: scaling applied once", "unit/kernels/check_router.c", "bias_selects_scale_applied_once"},
    {"trap 12: NaN in one token's logits", "unit/kernels/check_router.c", "nonfinite_logits_isolated"},
    {"trap 14: NaN and zero in one group", "unit/kernels/check_codec.c", "nan_stays_in_its_group"},
    {"trap 17: bias added after the weight", "unit/measure/check_planted.c",
     "PLANTED_BIAS_LATE, \"mismatch: \""},
    {"trap 17: the next expert's bias", "unit/measure/check_planted.c", "PLANTED_BIAS_NEXT, \"mismatch: \""},
    {"trap 18: partial sums over old memory", "unit/kernels/check_family_two_stage.c", "test_splits"},
    {"trap 19: one row of 4096", "unit/measure/check_planted.c", "one_row_of_4096"},
    {"trap 20: rows beyond 2^32 bytes", "unit/kernels/ops/check_permute.c", "far_rows"},
    {"bug 12, 18-20, 23, trap 23: allocations during capture", "unit/kernels/check_replay.c",
     "captured_and_replayed"},
    {"bug 15, 21, trap 24: layers sharing an arena", "unit/kernels/check_replay.c", "layers_share_an_arena"},
    {"bug 15, 21: the arena's size", "unit/kernels/check_replay.c", "sixty_layers_hold_one_arena"},
    {"trap 23, 26: modules and memory before a capture", "farm/check_amd_worker.c", "tunes_a_shape"},
};
/* clang-format on */

MF_TEST(trap, .rows = MF_ARRAY_LEN(traps))
{
    traps[_i].check();
}

/* The named file contains the table row or the test. */
MF_TEST(trap_covered_elsewhere, .rows = MF_ARRAY_LEN(covered_elsewhere))
{
    char path[512], defined[96];
    mf_format(path, sizeof(path), MF_SOURCE_DIR "/tests/%s", covered_elsewhere[_i].file);
    _cleanup_(mf_freep) char *text = text_file_read(path);
    bool row = strchr(covered_elsewhere[_i].test, '"') != NULL;
    mf_format(defined, sizeof(defined), row ? "%s" : "MF_TEST(%s", covered_elsewhere[_i].test);
    ck_assert_msg(strstr(text, defined), "%s: %s does not contain %s", covered_elsewhere[_i].trap,
                  covered_elsewhere[_i].file, covered_elsewhere[_i].test);
}

#define BUGS  25
#define TRAPS 26

/* Marks the numbers in a name such as "bug 9-11, 14, trap 5: what". */
static void mark(const char *name, bool bugs[BUGS + 1], bool numbers[TRAPS + 1])
{
    bool *to = NULL;
    int from = 0;
    for (const char *p = name; *p != ':'; p++) {
        to = *p == 'b' ? bugs : *p == 't' ? numbers : to;
        if (*p < '0' || *p > '9')
            continue;
        char *end;
        int n = (int)strtol(p, &end, 10);
        ck_assert_msg(to && n >= 1 && n <= (to == bugs ? BUGS : TRAPS), "%s", name);
        for (int i = p > name && p[-1] == '-' ? from : n; i <= n; i++)
            to[i] = true;
        from = n;
        p = end - 1;
    }
}

MF_TEST(every_number_has_a_row)
{
    bool bugs[BUGS + 1] = {0}, numbers[TRAPS + 1] = {0};
    for (size_t i = 0; i < MF_ARRAY_LEN(traps); i++)
        mark(traps[i].trap, bugs, numbers);
    for (size_t i = 0; i < MF_ARRAY_LEN(covered_elsewhere); i++)
        mark(covered_elsewhere[i].trap, bugs, numbers);
    for (int i = 1; i <= BUGS; i++)
        ck_assert_msg(bugs[i], "bug %d has no row", i);
    for (int i = 1; i <= TRAPS; i++)
        ck_assert_msg(numbers[i], "trap %d has no row", i);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300});
}
