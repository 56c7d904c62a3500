#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "support/mf_check.h"

static const struct {
    const char *layout;
    int bytes;
    size_t N, K;
    bool legal;
} cases[] = {
    {"row", 2, 3, 5, true},
    {"panel16", 2, 32, 6, true},
    {"panel16", 1, 48, 12, true},
    {"panel32", 2, 64, 34, true},
    {"panel32", 1, 32, 4, true},
    {"panel16", 2, 24, 6, false},
    {"panel16", 2, 16, 7, false},
    {"panel16", 1, 16, 6, false},
    {"panel32", 2, 48, 6, false},
    {"gu1", 2, 6, 5, true},
    {"gu1", 1, 14, 3, true},
    {"gu1", 2, 7, 5, false},
    {"gu16_panel16", 2, 96, 6, true},
    {"gu16_panel16", 1, 32, 8, true},
    {"gu16_panel16", 2, 48, 6, false}, /* 24 gate and 24 up rows: not multiples of 16 */
    {"gu16", 2, 96, 6, true},
    {"gu16", 1, 32, 7, true},
    {"gu16", 2, 48, 6, false},
    {"gu32_panel32", 2, 128, 34, true},
    {"gu32_panel32", 1, 64, 4, true},
    {"gu32_panel32", 2, 96, 6, false},
    {"panel128", 1, 256, 256, true},
    {"panel128", 2, 128, 192, true},
    {"panel128", 1, 192, 128, false},
    {"panel128", 1, 128, 96, false},
};

/* For every element, conversion from `row` agrees with mf_layout_index(), which is a permutation. Conversion
 * to any other layout and back to `row` restores the weight. */
MF_TEST(conversion_follows_index, .rows = MF_ARRAY_LEN(cases))
{
    const struct mf_layout *l = mf_layout_find(cases[_i].layout);
    size_t N = cases[_i].N, K = cases[_i].K, n = N * K, bytes = (size_t)cases[_i].bytes;
    ck_assert_ptr_nonnull(l);
    ck_assert_int_eq(mf_layout_legal(l, 8 * cases[_i].bytes, N, K), cases[_i].legal);
    if (!cases[_i].legal)
        return;
    _cleanup_(mf_freep) uint8_t *from = malloc(n * bytes), *to = calloc(n, bytes), *seen = calloc(n, 1);
    for (size_t i = 0; i < n * bytes; i++)
        from[i] = (uint8_t)(i * 37 + i / 251);
    mf_layout_convert(mf_layout_find("row"), l, 8 * cases[_i].bytes, N, K, from, to);
    for (size_t r = 0; r < N; r++) {
        for (size_t k = 0; k < K; k++) {
            size_t at = mf_layout_index(l, 8 * cases[_i].bytes, N, K, r, k);
            ck_assert_uint_lt(at, n);
            ck_assert_int_eq(seen[at]++, 0);
            ck_assert_int_eq(memcmp(to + at * bytes, from + (r * K + k) * bytes, bytes), 0);
        }
    }
    size_t n_layouts;
    const struct mf_layout *all = mf_layouts(&n_layouts);
    _cleanup_(mf_freep) uint8_t *other = malloc(n * bytes), *back = malloc(n * bytes);
    for (size_t i = 0; i < n_layouts; i++) {
        if (!mf_layout_legal(&all[i], 8 * cases[_i].bytes, N, K))
            continue;
        mf_layout_convert(l, &all[i], 8 * cases[_i].bytes, N, K, to, other);
        mf_layout_convert(&all[i], mf_layout_find("row"), 8 * cases[_i].bytes, N, K, other, back);
        ck_assert_msg(memcmp(back, from, n * bytes) == 0, "%s: round trip differs", all[i].name);
    }
}

/* A panel stores 128 bytes of each of its rows in turn, then the next 128 bytes. */
MF_TEST(panel128_is_as_documented)
{
    static const struct {
        int bytes;
        size_t n, k, at; /* element of a [256, 256] weight; at: number of elements before it */
    } rows[] = {
        {1, 0, 127, 127},       {1, 1, 0, 128},         {1, 127, 5, 127 * 128 + 5},
        {1, 0, 128, 128 * 128}, {1, 128, 0, 128 * 256}, {1, 129, 130, 128 * 256 + 128 * 128 + 128 + 2},
        {2, 0, 63, 63},         {2, 1, 0, 64},          {2, 0, 64, 128 * 64},
        {2, 128, 0, 128 * 256},
    };
    const struct mf_layout *l = mf_layout_find("panel128");
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++)
        ck_assert_uint_eq(mf_layout_index(l, 8 * rows[i].bytes, 256, 256, rows[i].n, rows[i].k), rows[i].at);
}

/* In gu1, rows 0 and 1 are the first gate row and the first up row. In gu16 and gu32, the first 16 or 32 gate
 * rows are followed by as many up rows. */
MF_TEST(alternating_is_as_documented)
{
    static const struct {
        const char *layout;
        size_t row, panel, at; /* for N = 128: index in `row` layout, panel, and row within the panel */
    } rows[] = {
        {"gu1", 0, 0, 0},           {"gu1", 64, 1, 0},          {"gu1", 1, 2, 0},
        {"gu1", 127, 127, 0},       {"gu16_panel16", 0, 0, 0},  {"gu16_panel16", 64, 1, 0},
        {"gu16_panel16", 16, 2, 0}, {"gu16_panel16", 81, 3, 1}, {"gu32_panel32", 31, 0, 31},
        {"gu32_panel32", 64, 1, 0}, {"gu32_panel32", 33, 2, 1}, {"gu32_panel32", 127, 3, 31},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        const struct mf_layout *l = mf_layout_find(rows[i].layout);
        size_t K = 8, want = rows[i].panel * (size_t)l->panel * K + rows[i].at * (l->panel > 1 ? 2 : K);
        ck_assert_uint_eq(mf_layout_index(l, 16, 128, K, rows[i].row, 0), want);
    }
}

static const struct {
    enum mf_dtype a, w;
    enum mf_qtype q_type;
    bool alternates;
} formats[] = {
    {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, true},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TENSOR, true},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, true},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, false}, /* 128-row scales */
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, true},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, true},
    {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, true},
};

/* A weight decodes to the same rows in every layout, because per-row scales move with their rows. 128-row
 * scales, w2, and w1 without gate rows do not support alternating layouts. */
MF_TEST(scales_follow_their_rows, .rows = MF_ARRAY_LEN(formats))
{
    struct mf_shape s = {.token = 1,
                         .model_dim = 64,
                         .inter_dim = 64,
                         .expert = 1,
                         .topk = 1,
                         .dtype = MF_DTYPE_BF16,
                         .q_dtype_a = formats[_i].a,
                         .q_dtype_w = formats[_i].w,
                         .q_type = formats[_i].q_type,
                         .use_g1u1 = true};
    static const char *const names[] = {"gu1", "gu16_panel16", "gu32_panel32", "gu16"};
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        struct mf_tensor_spec row = mf_plain_w(&s, MF_TENSOR_W1, "row"),
                              a = mf_plain_w(&s, MF_TENSOR_W1, names[i]),
                              w2 = mf_plain_w(&s, MF_TENSOR_W2, names[i]);
        struct mf_part parts[MF_PARTS_MAX];
        struct mf_tensor_ref from = {0}, to = {0};
        const struct mf_codec *c = mf_codec_find(row.format, row.scale);
        const struct mf_layout *l = mf_layout_find(names[i]);
        ck_assert_int_eq(mf_tensor_spec_parts(&w2, &s, parts), -EINVAL);
        s.use_g1u1 = false;
        ck_assert_int_eq(mf_tensor_spec_parts(&a, &s, parts), -EINVAL);
        s.use_g1u1 = true;
        ck_assert_int_eq(mf_tensor_spec_parts(&a, &s, parts) > 0, formats[_i].alternates);
        if (!formats[_i].alternates)
            continue;
        int n = mf_tensor_spec_parts(&row, &s, parts);
        for (int p = 0; p < n; p++) {
            from.part[p] = calloc(1, (size_t)mf_part_bytes(&parts[p]));
            to.part[p] = calloc(1, (size_t)mf_part_bytes(&parts[p]));
        }
        ck_assert_int_eq(mf_data_expert(&s, MF_TENSOR_W1, 7, 0, &from), 0);
        ck_assert_int_eq(mf_layout_convert_weight(&s, &row, &w2, &from, &to), -EINVAL);
        ck_assert_int_eq(mf_layout_convert_weight(&s, &row, &a, &from, &to), 0);
        for (size_t r = 0; r < 128; r++) {
            float want[64], got[64];
            float global = c->global ? *(float *)from.part[2] : 1;
            mf_codec_decode_row(c, from.part[0], from.part[1], global, r, 64, want);
            /* Copies the row from the layout, element by element. `at` is the index of its scale. */
            size_t at = (r < 64 ? r : r - 64) / (size_t)l->gate_rows * 2 * (size_t)l->gate_rows +
                        (r < 64 ? 0 : (size_t)l->gate_rows) + r % (size_t)l->gate_rows;
            uint8_t line[128] = {0};
            for (size_t k = 0; k < 64; k++) {
                size_t index = mf_layout_index(l, c->bits, 128, 64, r, k);
                const uint8_t *e = to.part[0];
                if (c->bits == 4)
                    line[k / 2] |= (uint8_t)((e[index / 2] >> index % 2 * 4 & 15) << k % 2 * 4);
                else
                    memcpy(line + k * (size_t)c->bits / 8, e + index * (size_t)c->bits / 8,
                           (size_t)c->bits / 8);
            }
            size_t scale_bytes = mf_codec_scale_cols(c, 64) * (size_t)c->scale_bytes;
            const uint8_t *scale = (const uint8_t *)to.part[1] + (c->group_rows == 1 ? at : 0) * scale_bytes;
            mf_codec_decode_row(c, line, scale, c->global ? *(float *)to.part[2] : 1, 0, 64, got);
            ck_assert_msg(memcmp(got, want, sizeof(got)) == 0, "%s: row %zu of %s", names[i], r, c->name);
        }
        for (int p = 0; p < n; p++) {
            free(from.part[p]);
            free(to.part[p]);
        }
    }
}

/* [N/16][K/2][16][2] for bf16: two elements along K, then 16 rows. */
MF_TEST(panel16_is_as_documented)
{
    const struct mf_layout *l = mf_layout_find("panel16");
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 0, 1), 1);
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 1, 0), 2);
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 0, 2), 32);
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 16, 0), 128);
    ck_assert_uint_eq(mf_layout_index(l, 8, 32, 8, 1, 0), 4);
    ck_assert_uint_eq(mf_layout_index(l, 8, 32, 8, 0, 4), 64);
    ck_assert_uint_eq(mf_layout_index(l, 4, 32, 16, 1, 0), 8);
    ck_assert_uint_eq(mf_layout_index(l, 4, 32, 16, 0, 8), 128);
}

#define SIZES "4,128,64,8,2,ActivationType.Silu,torch.bfloat16,"
#define BF16  SIZES "torch.bfloat16,torch.bfloat16,QuantType.No,1,0,"
#define BLOCK                                                                                             \
    "4,128,128,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType." \
    "per_1x128,1,0,"
#define MXFP4 SIZES "torch.bfloat16,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0,"
#define INT4  SIZES "torch.bfloat16,torch.int4,QuantType.per_1x32,1,0,"

/* Shapes that prescribe the layout of w1, and the layouts of w1 among the steps that a family offers for
 * them, in the order of mf_layouts(). */
static const struct {
    const char *family, *shape, *offered;
} pins[] = {
    {"two_stage", BF16 "gate_up:separated", "row panel16 panel32"},
    {"two_stage", BF16 "gate_up:interleaved", "gu1"},
    {"two_stage", BF16 "gate_up:tiled", "gu16_panel16 gu32_panel32"},
    {"two_stage", BLOCK "gate_up:tiled", ""},
    {"two_stage_mx", MXFP4 "gate_up:interleaved", "gu1"},
    {"two_stage_int4", INT4 "gate_up:tiled", "gu16_panel16 gu32_panel32"},
    {"one_stage", BF16 "gate_up:interleaved", "gu1"},
    {"one_stage", BF16 "gate_up:tiled", "gu16_panel16 gu32_panel32"},
    {"one_stage", BF16 "gate_up:separated", "row panel16 panel32"},
    {"onednn", BF16 "gate_up:interleaved", ""},
    {"onednn", BF16 "gate_up:tiled", ""},
};

struct offer_checker {
    struct mf_offer offer;
    bool offered[MF_LAYOUTS_MAX];
    int row, refused; /* row: index in pins; refused: number of rejections */
    const char *by;   /* expected rule of the rejections */
};

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct offer_checker *a = (struct offer_checker *)o;
    size_t n;
    const struct mf_layout *all = mf_layouts(&n);
    for (int i = 0; i < step->n_needs; i++) {
        if (step->needs[i].tensor == MF_TENSOR_W1)
            a->offered[mf_layout_find(step->needs[i].order) - all] = true;
    }
    return 0;
}

__attribute__((format(printf, 5, 6))) static int record_rejection(struct mf_offer *o, const char *family,
                                                                  const char *kernel, const char *rule,
                                                                  const char *format, ...)
{
    struct offer_checker *a = (struct offer_checker *)o;
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    ck_assert_str_eq(family, pins[a->row].family);
    if (strcmp(rule, a->by) != 0)
        return 0;
    a->refused++;
    if (strcmp(rule, "gate_up") != 0)
        return 0;
    ck_assert_ptr_nonnull(strstr(reason, "gate and up of w1 are stored "));
    ck_assert_ptr_nonnull(strstr(reason, kernel));
    return 0;
}

/* Family onednn is rejected as a whole on machines without AVX-512. */
static bool needs_missing_isa(const char *family)
{
    return strcmp(family, "onednn") == 0 && mf_isa_best() != MF_ISA_AVX512;
}

/* Steps with the prescribed layouts are offered. All other steps are rejected, and the reason names the
 * prescribed layout and the step. */
MF_TEST(shape_prescribes_w1_layout, .rows = MF_ARRAY_LEN(pins))
{
    struct mf_device_info info = {.class = {.gfx = "cpu-x86_64_v4", .cu_num = 2}, .cores = 2};
    bool missing_isa = needs_missing_isa(pins[_i].family);
    struct offer_checker a = {
        .offer = {take_step, record_rejection}, .row = _i, .by = missing_isa ? "isa" : "gate_up"};
    struct mf_shape s;
    char offered[256] = "";
    size_t n;
    const struct mf_layout *all = mf_layouts(&n);
    ck_assert_int_eq(mf_shape_parse(pins[_i].shape, &s), 0);
    ck_assert_int_eq(mf_enumerate(&info, &s, pins[_i].family, &a.offer), 0);
    for (size_t i = 0; i < n; i++) {
        if (a.offered[i])
            mf_format(offered + strlen(offered), sizeof(offered) - strlen(offered), "%s%s",
                      offered[0] ? " " : "", all[i].name);
    }
    ck_assert_str_eq(offered, pins[_i].offered);
    ck_assert_int_gt(a.refused, 0);
    s.gate_up = MF_GATE_UP_ANY;
    a.refused = 0;
    ck_assert_int_eq(mf_enumerate(&info, &s, pins[_i].family, &a.offer), 0);
    ck_assert_int_eq(a.refused > 0, missing_isa);
}

MF_TEST(unknown_layout)
{
    ck_assert_ptr_null(mf_layout_find("panel17"));
    ck_assert_ptr_null(mf_layout_find(""));
}

int main(void)
{
    return mf_check_main(NULL);
}
