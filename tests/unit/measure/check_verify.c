/* Tests the gates one by one, on outputs that the reference makes and that the test then modifies. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/core/quant.h"
#include "measure/session/memory.h"
#include "measure/verify/verify.h"

#include "support/mf_check.h"

/* ---- a layer, and its tensor specs as the reference encodes them ---- */

struct layer {
    struct mf_layer_data data;
    struct mf_reference ref;
    uint16_t x[64 * 64];
    int32_t ids[64 * 2];
    float weights[64 * 2], s1[8 * 96], s2[8 * 64];
    uint8_t w1[8 * 96 * 64 * 2], w2[8 * 64 * 48 * 2];
    struct mf_guarded sorted;
    int64_t slots[512], tokens[512],
        slots_here[64 * 2]; /* slots_here: in slot order; -1 for experts of other ranks */
};

/* The state of a test: a layer, an output of the layer between guard bands, and the verdict of mf_verify. */
static struct layer *l;
static struct mf_guarded g;
static struct mf_verdict verdict;

/* Makes a layer. share: if true, this rank has experts 2 to 6 of 8; if false, it has all experts. */
static void make_layer(bool fp8, bool share)
{
    l = calloc(1, sizeof(*l));
    ck_assert_ptr_nonnull(l);
    struct mf_routing routing = {.kind = MF_ROUTING_BALANCED};
    const struct mf_tensor_spec sorted = {
        .tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted", .block = 4};
    l->data.shape = (struct mf_shape){
        .token = 64,
        .model_dim = 64,
        .inter_dim = 48,
        .expert = share ? 5 : 8,
        .ep_first = share ? 2 : 0,
        .ep_experts = share ? 8 : 0,
        .topk = 2,
        .dtype = MF_DTYPE_BF16,
        .q_dtype_a = fp8 ? MF_DTYPE_FP8_E4M3FN : MF_DTYPE_BF16,
        .q_dtype_w = fp8 ? MF_DTYPE_FP8_E4M3FN : MF_DTYPE_BF16,
        .q_type = fp8 ? MF_QTYPE_PER_TOKEN : MF_QTYPE_NO,
        .use_g1u1 = true,
    };
    const struct mf_shape *s = &l->data.shape;
    mf_data_x(s, 4, l->x);
    ck_assert_int_eq(mf_data_topk(s, &routing, 4, l->ids, l->weights), 0);
    l->data =
        (struct mf_layer_data){*s, l->x, l->ids, l->weights, {{l->w1, l->s1}}, {{l->w2, l->s2}}, NULL, NULL};
    ck_assert_int_eq(mf_data_weight(s, MF_TENSOR_W1, 4, &l->data.w1), 0);
    ck_assert_int_eq(mf_data_weight(s, MF_TENSOR_W2, 4, &l->data.w2), 0);
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
    ck_assert_int_eq(mf_guarded_new(&sorted, s, NULL, &l->sorted), 0);
    ck_assert_int_eq(mf_reference_sort(s, l->ids, l->weights, 4, &l->sorted.ref), 0);
    const int32_t *ids = l->sorted.ref.part[0];
    for (int64_t p = 0; p < l->sorted.parts[0].rows; p++) {
        bool valid = p < ((int32_t *)l->sorted.ref.part[3])[0] && mf_id_token(ids[p]) < s->token;
        l->tokens[p] = valid ? mf_id_token(ids[p]) : -1;
        l->slots[p] = valid ? l->tokens[p] * s->topk + mf_id_slot(ids[p]) : -1;
    }
    for (int64_t i = 0; i < 64 * 2; i++)
        l->slots_here[i] = mf_shape_local_expert(s, l->ids[i]) < 0 ? -1 : i;
}

/* Releases the layer if the test made one. */
static void free_layer(void)
{
    if (!l)
        return;
    mf_guarded_release(&g);
    mf_guarded_release(&l->sorted);
    mf_reference_release(&l->ref);
    free(l);
}

/* Allocates an output of the layer between guard bands and fills it from the reference. */
static struct mf_verify_input output_in(const char *text, struct mf_guarded *out)
{
    struct mf_tensor_spec a;
    ck_assert_msg(mf_tensor_spec_parse(text, &a) == 0, "%s", text);
    ck_assert_int_eq(mf_guarded_new(&a, &l->data.shape, NULL, out), 0);
    ck_assert_int_eq(mf_guarded_poison(out, NULL, false), 0);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, &l->ref, &a, &l->sorted.ref, &out->ref), 0);
    bool sorted = strcmp(a.order, "sorted") == 0 && a.format != MF_FORMAT_INDEX;
    const int64_t *source =
        strcmp(a.order, "slot") == 0 && l->data.shape.ep_experts > 0 ? l->slots_here : NULL;
    return (struct mf_verify_input){
        .data = &l->data,
        .ref = &l->ref,
        .out = out,
        .source = !sorted                   ? source
                  : a.tensor == MF_TENSOR_X ? l->tokens
                                            : l->slots,
        .covers = MF_OP_BIT(MF_OP_GEMM1),
        .err_ratio = 0.1,
    };
}

/* Makes a layer and stores one of its outputs in g. */
static struct mf_verify_input output(bool fp8, const char *text)
{
    make_layer(fp8, false);
    return output_in(text, &g);
}

static void assert_right(const struct mf_verify_input *v)
{
    int r = mf_verify(v, &verdict);
    ck_assert_msg(r == 0, "%d: %s", r, verdict.reason);
}

/* Asserts that the output is rejected and that the reason begins with `start`. */
static void assert_wrong(const struct mf_verify_input *v, const char *start)
{
    ck_assert_int_eq(mf_verify(v, &verdict), 1);
    ck_assert_msg(strncmp(verdict.reason, start, strlen(start)) == 0, "%s", verdict.reason);
}

static const char *const texts[] = {
    "x/bf16/none/sorted.4",
    "g/f32/none/sorted.4",
    "gw/bf16/none/sorted.4",
    "h/bf16/none/sorted.4",
    "z/f32/none/slot",
    "zw/bf16/none/slot",
    "y/bf16/none/token",
    "y/f32/none/token",
    "sorted/index/none/sorted.4",
    "topk/index/none/token",
    "aligned/index/none/sorted.4",
    "x/fp8fn/per_token/sorted.4",
    "x/fp8fn/per_token/token",
    "h/fp8fn/per_token/sorted.4",
    "w1d/bf16/none/panel32",
    "w2d/bf16/none/row",
};
#define FIRST_FP8 11

/* Outputs as the reference encodes them pass every gate, well below the limits. */
MF_TEST(reference_passes, .rows = 2 * MF_ARRAY_LEN(texts))
{
    int text = _i / 2;
    make_layer(text >= FIRST_FP8, _i % 2);
    struct mf_verify_input v = output_in(texts[text], &g);
    assert_right(&v);
    ck_assert(!(verdict.row_err > 0.3 * verdict.row_limit));
    ck_assert(verdict.err <= 0);
    ck_assert_int_eq(mf_verify_stable(&v, &g, 0, &verdict), 0);
}

/* Poison that is not overwritten is detected in every tensor spec; padding rows may hold anything. */
MF_TEST(poison_is_detected, .rows = 2 * MF_ARRAY_LEN(texts))
{
    int text = _i / 2;
    make_layer(text >= FIRST_FP8, _i % 2);
    struct mf_verify_input v = output_in(texts[text], &g);
    ck_assert_int_eq(mf_guarded_poison(&g, v.source, false), 0);
    ck_assert_int_eq(mf_verify(&v, &verdict), 1);
    ck_assert_msg(strncmp(verdict.reason, "unwritten: ", 11) == 0 || g.tensor_spec.tensor == MF_TENSOR_TOPK,
                  "%s", verdict.reason);
}

static const struct {
    const char *text;
    int part;
    /* offset from the start of the part; negative: before the start; INT64_MIN + n: n bytes past the part's
     * end */
    int64_t offset;
    const char *want;
} bands[] = {
    {"y/bf16/none/token", 0, -1, "guard: 1 byte changed 0 bytes before the start of y of y"},
    {"y/bf16/none/token", 0, -100, "guard: 1 byte changed 99 bytes before the start of y of y"},
    {"y/bf16/none/token", 0, INT64_MIN, "guard: 1 byte changed 0 bytes past the end of y of y"},
    {"y/bf16/none/token", 0, INT64_MIN + 4000, "guard: 1 byte changed 4000 bytes past the end of y of y"},
    {"sorted/index/none/sorted.4", 2, INT64_MIN,
     "guard: 1 byte changed 0 bytes past the end of experts of sorted"},
    {"sorted/index/none/sorted.4", 3, -1,
     "guard: 1 byte changed 0 bytes before the start of num_valid of sorted"},
};

MF_TEST(guard_band_is_checked_and_repaired, .rows = MF_ARRAY_LEN(bands))
{
    struct mf_verify_input v = output(false, bands[_i].text);
    int64_t at = bands[_i].offset < -1000000
                     ? mf_part_bytes(&g.parts[bands[_i].part]) + bands[_i].offset - INT64_MIN
                     : bands[_i].offset;
    ((uint8_t *)g.ref.part[bands[_i].part])[at] ^= 1;
    ck_assert_int_eq(mf_verify(&v, &verdict), 1);
    ck_assert_str_eq(verdict.reason, bands[_i].want);
    assert_right(&v);
}

/* ---- values ---- */

static float *row_of(const struct mf_guarded *of, int64_t p)
{
    return (float *)of->ref.part[0] + p * of->parts[0].cols;
}

/* 0.2 % of the elements differ. A limit of 0.1 % rejects them as mismatches; with a limit of 0.3 % the row
 * gate rejects their rows. */
MF_TEST(mismatch_ratio)
{
    struct mf_verify_input v = output(false, "z/f32/none/slot");
    int64_t n = g.parts[0].rows * g.parts[0].cols;
    for (int64_t i = 0; i < n * 2 / 1000; i++) {
        float *x = row_of(&g, 0) + i * 500 % n;
        *x += copysignf(0.0101f + 0.0101f * fabsf(*x), *x);
    }
    v.err_ratio = 0.003;
    assert_wrong(&v, "row: row ");
    v.err_ratio = 0.001;
    assert_wrong(&v, "mismatch: 0.1");
    ck_assert_msg(strstr(verdict.reason, "limit 0.1%") != NULL, "%s", verdict.reason);
    ck_assert(fabs(verdict.err - 0.002) < 0.0002);
}

static const float not_finite[] = {NAN, INFINITY, -INFINITY};

MF_TEST(not_finite_is_refused, .rows = MF_ARRAY_LEN(not_finite))
{
    struct mf_verify_input v = output(false, "z/f32/none/slot");
    row_of(&g, 37)[5] = not_finite[_i];
    row_of(&g, 99)[63] = not_finite[_i];
    assert_wrong(&v, "not finite: row 37 (token 18, slot 1, expert ");
    ck_assert_msg(strstr(verdict.reason, "has 1 NaN or infinity, first in column 5, 2 rows in all") != NULL,
                  "%s", verdict.reason);
}

/* A row with almost no routing weight is not judged relative to its own tiny norm. */
MF_TEST(small_row)
{
    make_layer(false, false);
    l->weights[9] = 1e-6f;
    struct mf_verify_input v = output_in("zw/f32/none/slot", &g);
    for (int i = 0; i < 64; i++)
        row_of(&g, 9)[i] *= 3;
    assert_right(&v);
    for (int i = 0; i < 64; i++)
        row_of(&g, 9)[i] += 0.005f;
    assert_wrong(&v, "row: row 9 (token 4, slot 1");
}

/* The limit of a quantised row is four times its quantisation error, but only for a step that computes and
 * quantises the row itself. */
MF_TEST(row_limit_of_quantising_steps)
{
    struct mf_verify_input v = output(true, "h/fp8fn/per_token/sorted.4");
    assert_right(&v);
    ck_assert(fabs(verdict.row_limit - 0.02) < 1e-9);
    v.covers = MF_OP_BIT(MF_OP_QUANT2); /* this op alone reads the exact h */
    assert_right(&v);
    ck_assert(fabs(verdict.row_limit - 0.02) < 1e-9);
    v.covers = MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2);
    v.err_ratio = 1;
    for (int64_t p = 0; p < g.parts[0].rows; p++) {
        if (v.source[p] >= 0)
            ((float *)g.ref.part[1])[p] *= 1.03f;
    }
    assert_right(&v);
    ck_assert_msg(verdict.row_limit > 0.03 && verdict.row_limit < 0.2 && fabs(verdict.row_err - 0.03) < 0.001,
                  "%g of %g", verdict.row_err, verdict.row_limit);
    v.covers = MF_OP_BIT(MF_OP_GEMM1);
    assert_wrong(&v, "expert 2: median relative error 0.03 ");
}

MF_TEST(unwritten_scale)
{
    struct mf_verify_input v = output(true, "x/fp8fn/per_token/token");
    mf_poison_fill(MF_FORMAT_F32, (float *)g.ref.part[1] + 11, 1);
    ck_assert_int_eq(mf_verify(&v, &verdict), 1);
    ck_assert_str_eq(verdict.reason,
                     "unwritten: row 11 of x still holds the poison in its scale, 1 rows in all");
}

/* An FP8 output of a shape without quantisation has no reference. This is an error, not a pass. */
MF_TEST(missing_reference)
{
    struct mf_verify_input v = output(false, "x/fp8fn/per_token/token");
    ck_assert_int_eq(mf_verify(&v, &verdict), -EINVAL);
}

/* Rows of a dequantised weight are read through its layout. Experts without a route have no rows. */
MF_TEST(dequantised_weight)
{
    struct mf_verify_input v = output(true, "w1d/bf16/none/panel32");
    int64_t source[8 * 96];
    uint16_t *expert3 = (uint16_t *)g.ref.part[0] + 3 * 96 * 64;
    for (size_t k = 0; k < 64; k++)
        expert3[mf_layout_index(mf_layout_find("panel32"), 16, 96, 64, 40, k)] = 0;
    assert_wrong(&v, "row: row 328 (expert 3, its row 40) of w1d has relative error 1,");
    for (int64_t p = 0; p < 8 * 96; p++)
        source[p] = p / 96 == 3 ? -1 : p;
    v.source = source;
    assert_right(&v);
}

/* An output larger than available memory is an error before anything is written. */
MF_TEST(dequantised_weight_exceeds_memory)
{
    struct mf_shape s = {.token = 64,
                         .model_dim = 7168,
                         .inter_dim = 2048,
                         .topk = 1,
                         .dtype = MF_DTYPE_BF16,
                         .q_dtype_a = MF_DTYPE_FP8_E4M3FN,
                         .q_dtype_w = MF_DTYPE_FP8_E4M3FN,
                         .q_type = MF_QTYPE_PER_TOKEN,
                         .use_g1u1 = true};
    struct mf_tensor_spec a;
    ck_assert_int_eq(mf_tensor_spec_parse("w1d/bf16/none/panel32", &a), 0);
    s.expert = (int32_t)(mf_memory_available() / (2ull * 2 * 2048 * 7168)) + 2;
    ck_assert_int_eq(mf_guarded_new(&a, &s, NULL, &g), -ENOMEM);
}

/* A weight that is not on the host has no reference. */
MF_TEST(dequantised_weight_without_host_copy)
{
    struct mf_verify_input v = output(true, "w1d/bf16/none/panel32");
    l->data.w1.part[0] = NULL;
    ck_assert_int_eq(mf_verify(&v, &verdict), -EINVAL);
    ck_assert_int_eq(mf_reference_tensor_spec(&l->data, &l->ref, &g.tensor_spec, NULL, &g.ref), -EINVAL);
}

/* An accumulator is zeroed and not poisoned, so the row gate must reject a row that was not written. */
MF_TEST(accumulation)
{
    struct mf_verify_input v = output(false, "y/f32/none/token");
    v.accumulates = true;
    assert_right(&v);
    memset(row_of(&g, 5), 0, 64 * sizeof(float));
    assert_wrong(&v, "row: row 5 of y has relative error 1,");
}

MF_TEST(zeroed_tensor_spec)
{
    struct mf_verify_input v = output(false, "y/f32/none/token+zeroed");
    assert_right(&v);
    row_of(&g, 5)[3] = 1e-6f;
    assert_wrong(&v, "row: row 5 of y");
}

/* ---- the second run ---- */

static const struct {
    float scale;
    double tolerance;
    int want;
} second_runs[] = {{1, 0, 0}, {1.0001f, 0, 1}, {1.0001f, 0.001, 0}, {1.01f, 0.001, 1}};

/* There are enough rows for all threads of the pool. The verdict counts all rows that differ and names the
 * lowest. */
MF_TEST(second_run_of_many_rows)
{
    const struct mf_tensor_spec a = {.tensor = MF_TENSOR_Z, .format = MF_FORMAT_F32, .order = "slot"};
    int32_t ids[2 * 512] = {0};
    const struct mf_layer_data data = {
        .shape = {.token = 512, .model_dim = 256, .inter_dim = 16, .expert = 2, .topk = 2}, .ids = ids};
    struct mf_guarded first, second;

    ck_assert_int_eq(mf_guarded_new(&a, &data.shape, NULL, &first), 0);
    ck_assert_int_eq(mf_guarded_new(&a, &data.shape, NULL, &second), 0);
    ck_assert_int_eq(mf_guarded_poison(&first, NULL, true), 0);
    ck_assert_int_eq(mf_guarded_poison(&second, NULL, true), 0);
    const struct mf_verify_input v = {.data = &data, .out = &first};
    ck_assert_int_eq(mf_verify_stable(&v, &second, 0, &verdict), 0);
    for (int64_t p = 1023; p > 0; p -= 340) { /* 1023, 683, 343, 3 */
        float *row = (float *)second.ref.part[0] + p * 256;
        row[255] = 1;
    }
    ck_assert_int_eq(mf_verify_stable(&v, &second, 0, &verdict), 1);
    ck_assert_msg(strncmp(verdict.reason, "unstable: a second run differs in 4 rows, first in row 3 (", 58) ==
                      0,
                  "%s", verdict.reason);
    mf_guarded_release(&first);
    mf_guarded_release(&second);
}

MF_TEST(second_run, .rows = MF_ARRAY_LEN(second_runs))
{
    struct mf_guarded again;
    struct mf_verify_input v = output(false, "z/f32/none/slot");
    (void)output_in("z/f32/none/slot", &again);
    for (int i = 0; i < 64; i++) {
        row_of(&again, 20)[i] *= second_runs[_i].scale;
        row_of(&again, 31)[i] *= second_runs[_i].scale;
    }
    ck_assert_int_eq(mf_verify_stable(&v, &again, second_runs[_i].tolerance, &verdict), second_runs[_i].want);
    if (second_runs[_i].want)
        ck_assert_msg(
            strncmp(verdict.reason, "unstable: a second run differs in 2 rows, first in row 20 (", 59) == 0,
            "%s", verdict.reason);
    mf_guarded_release(&again);
}

/* ---- sorted ---- */

enum change { SWAP_IDS, SWAP_TWO_EXPERTS, TOKEN_TWICE, BAD_PAD, PAD_WEIGHT, WRONG_EXPERT, TAIL_GARBAGE };
static const struct {
    enum change change;
    const char *want; /* NULL: passes */
} changes[] = {
    {SWAP_IDS, NULL}, /* rows of an expert may be in any order, with their weights */
    {SWAP_TWO_EXPERTS, "sorted: expert "},
    {TOKEN_TWICE, "sorted: expert "},
    {BAD_PAD, "sorted: row "},
    {PAD_WEIGHT, "sorted: row "},
    {WRONG_EXPERT, "sorted: block 1 has expert "},
    {TAIL_GARBAGE, NULL},
};

static void swap(int32_t *ids, float *weights, int64_t a, int64_t b)
{
    int32_t id = ids[a];
    float w = weights[a];
    ids[a] = ids[b];
    weights[a] = weights[b];
    ids[b] = id;
    weights[b] = w;
}

MF_TEST(sorted_contract, .rows = MF_ARRAY_LEN(changes))
{
    make_layer(false, false);
    /* 15 tokens for expert 0 leave it one padding row */
    l->ids[0] = 1;
    l->ids[1] = 2;
    struct mf_verify_input v = output_in("sorted/index/none/sorted.4", &g);
    int32_t *ids = g.ref.part[0], *experts = g.ref.part[2];
    float *weights = g.ref.part[1];
    int64_t used = ((int32_t *)g.ref.part[3])[0], pad = 0;
    while (mf_id_token(ids[pad]) != 64)
        pad++;
    assert_right(&v);
    switch (changes[_i].change) {
    case SWAP_IDS:
        swap(ids, weights, 0, 1);
        break;
    case SWAP_TWO_EXPERTS:
        swap(ids, weights, 0, 20);
        break;
    case TOKEN_TWICE:
        ids[0] = ids[1];
        break;
    case BAD_PAD:
        ids[pad] = 64;
        break;
    case PAD_WEIGHT:
        weights[pad] = 0.5f;
        break;
    case WRONG_EXPERT:
        experts[1]++;
        break;
    case TAIL_GARBAGE:
        ck_assert_int_lt(used, g.parts[0].rows);
        ids[used] = 3;
        weights[used] = 1;
        experts[used / 4] = 5;
        break;
    }
    if (changes[_i].want)
        assert_wrong(&v, changes[_i].want);
    else
        assert_right(&v);
}

/* ---- aligned: the same tests for vLLM's contract, which also defines the tails ---- */

enum flaw {
    ALIGNED_ORDER,
    ALIGNED_TWICE,
    ALIGNED_NEGATIVE,
    ALIGNED_BLOCK,
    ALIGNED_COUNT,
    ALIGNED_TAIL,
    ALIGNED_TAIL_BLOCK
};
static const struct {
    enum flaw flaw;
    const char *want; /* NULL: passes */
} flaws[] = {
    {ALIGNED_ORDER, NULL},
    {ALIGNED_TWICE, "sorted: expert "},
    {ALIGNED_NEGATIVE, "sorted: row "},
    {ALIGNED_BLOCK, "sorted: block 1 has expert "},
    {ALIGNED_COUNT, "sorted: num_valid is "},
    {ALIGNED_TAIL, "aligned: row "},
    {ALIGNED_TAIL_BLOCK, "aligned: block "},
};

MF_TEST(aligned_contract, .rows = MF_ARRAY_LEN(flaws))
{
    struct mf_verify_input v = output(false, "aligned/index/none/sorted.4");
    int32_t *ids = g.ref.part[0], *experts = g.ref.part[1], *used = g.ref.part[2], first = ids[0];
    assert_right(&v);
    ck_assert_int_lt(*used, g.parts[0].rows);
    switch (flaws[_i].flaw) {
    case ALIGNED_ORDER:
        ids[0] = ids[1];
        ids[1] = first;
        break;
    case ALIGNED_TWICE:
        ids[0] = ids[1];
        break;
    case ALIGNED_NEGATIVE:
        ids[0] = -1;
        break;
    case ALIGNED_BLOCK:
        experts[1]++;
        break;
    case ALIGNED_COUNT:
        *used += 4;
        break;
    case ALIGNED_TAIL:
        ids[*used] = 3;
        break;
    case ALIGNED_TAIL_BLOCK:
        experts[*used / 4] = 0;
        break;
    }
    if (flaws[_i].want)
        assert_wrong(&v, flaws[_i].want);
    else
        assert_right(&v);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.teardown = free_layer});
}
