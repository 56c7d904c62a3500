/* Dequantises weights in strips: every weight codec in every layout and instruction set, compared with its
 * definition. */
#include "kernels/cpu/dequant.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "kernels/core/quant.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct {
    enum mf_dtype a, w;
    enum mf_qtype q_type;
} formats[] = {
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_TOKEN},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_1X128},
    {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_TENSOR},
    {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_1X128},
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X32},
    {MF_DTYPE_BF16,         MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X32},
    {MF_DTYPE_BF16,         MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16},
    {MF_DTYPE_BF16,         MF_DTYPE_INT4,         MF_QTYPE_PER_1X32},
    {MF_DTYPE_BF16,         MF_DTYPE_INT4,         MF_QTYPE_PER_TOKEN},
};
/* H and I are the K of w1 and w2: shorter than one piece, several pieces, an incomplete last piece, and rows
 * that end within a 128-wide scale group. */
static const struct { int32_t H, I; } sizes[] = {{256, 96}, {704, 352}, {2080, 32}};
static const char *const layouts[] = {"row", "panel16", "panel32"};
static const char *const isas[] = {"c", "avx2", "avx512"};
/* clang-format on */

#define EXPERTS 3
#define SEED    7

static struct mf_tensor_ref make_weight(const struct mf_shape *s, const struct mf_tensor_spec *a,
                                        int64_t *ret_rows)
{
    struct mf_part parts[MF_PARTS_MAX];
    struct mf_tensor_spec row = mf_plain_w(s, a->tensor, "row");
    struct mf_tensor_ref plain = {0}, ref = {0};
    int n = mf_tensor_spec_parts(a, s, parts);

    ck_assert_int_gt(n, 0);
    for (int i = 0; i < n; i++) {
        plain.part[i] = malloc((size_t)mf_part_bytes(&parts[i]));
        ref.part[i] = malloc((size_t)mf_part_bytes(&parts[i]));
        ck_assert(plain.part[i] && ref.part[i]);
    }
    ck_assert_int_eq(mf_data_weight(s, a->tensor, SEED, &plain), 0);
    for (int32_t e = 0; e < s->expert; e++) {
        struct mf_tensor_ref from = {0}, to = {0};
        for (int i = 0; i < n; i++) {
            size_t bytes = (size_t)(mf_part_bytes(&parts[i]) / s->expert);
            from.part[i] = (uint8_t *)plain.part[i] + (size_t)e * bytes;
            to.part[i] = (uint8_t *)ref.part[i] + (size_t)e * bytes;
        }
        ck_assert_int_eq(mf_layout_convert_weight(s, &row, a, &from, &to), 0);
    }
    for (int i = 0; i < n; i++)
        free(plain.part[i]);
    *ret_rows = parts[0].rows / s->expert;
    return ref;
}

/* Computes an expert's weight in `row` layout, each value rounded to bf16 once. */
static void define(const struct mf_shape *s, enum mf_tensor w, int32_t e, size_t N, size_t K, uint16_t *ret)
{
    struct mf_tensor_spec row = mf_plain_w(s, w, "row");
    const struct mf_codec *c = mf_codec_find(row.format, row.scale);
    _cleanup_(mf_freep) float *values = calloc(K, sizeof(*values));
    struct mf_part parts[MF_PARTS_MAX];
    struct mf_tensor_ref expert = {0};
    int n = mf_tensor_spec_parts(&row, s, parts);

    ck_assert_ptr_nonnull(values);
    for (int i = 0; i < n; i++)
        expert.part[i] = calloc(1, (size_t)(mf_part_bytes(&parts[i]) / s->expert));
    ck_assert_int_eq(mf_data_expert(s, w, SEED, e, &expert), 0);
    for (size_t r = 0; r < N; r++) {
        mf_codec_decode_row(c, expert.part[0], expert.part[1], c->global ? *(const float *)expert.part[2] : 1,
                            r, K, values);
        mf_bf16_from_floats(values, K, ret + r * K);
    }
    for (int i = 0; i < n; i++)
        free(expert.part[i]);
}

static void check(const struct mf_shape *s, enum mf_tensor w, const char *layout)
{
    struct mf_tensor_spec a = mf_plain_w(s, w, layout);
    struct mf_dequant d = {.ops = mf_cpu_ops(mf_isa_best()),
                           .codec = mf_codec_find(a.format, a.scale),
                           .panel = mf_layout_find(layout)->panel};
    int64_t rows;

    d.from = make_weight(s, &a, &rows);
    d.N = (size_t)rows;
    d.K = (size_t)mf_tensor_spec_cols(&a, s);
    size_t matrix = d.N * d.K;
    void *room = aligned_alloc(64, mf_dequant_workspace());
    uint16_t *should = calloc(matrix, sizeof(*should)), *is = calloc(matrix, sizeof(*is));
    d.to = calloc(EXPERTS * matrix, sizeof(*d.to));
    ck_assert(room && should && is && d.to);
    for (int32_t e = 0; e < EXPERTS; e += 2) { /* the expert in between must stay unchanged */
        for (size_t n = 0; n < d.N; n += MF_DEQUANT_ROWS)
            mf_dequant_strip(&d, (size_t)e, n, room);
        define(s, w, e, d.N, d.K, should);
        mf_layout_convert(mf_layout_find("row"), mf_layout_find("panel32"), 16, d.N, d.K, should, is);
        ck_assert_msg(memcmp(is, d.to + (size_t)e * matrix, matrix * sizeof(*is)) == 0,
                      "%s in %s: expert %d of %s differs", d.codec->name, layout, (int)e, mf_tensor_name(w));
    }
    memset(is, 0, matrix * sizeof(*is));
    ck_assert_int_eq(memcmp(is, d.to + matrix, matrix * sizeof(*is)), 0);
    for (int i = 0; i < MF_PARTS_MAX; i++)
        free(d.from.part[i]);
    free(room);
    free(should);
    free(is);
    free(d.to);
}

MF_TEST(strips_match_definition, .rows = MF_ARRAY_LEN(formats) * MF_ARRAY_LEN(isas))
{
    size_t rest = (size_t)_i, format = rest % MF_ARRAY_LEN(formats);
    const char *isa = isas[rest / MF_ARRAY_LEN(formats)];

    ck_assert_int_eq(setenv("MOEFARM_ISA", isa, 1), 0);
    if (strncmp(mf_isa_name(mf_isa_best()), isa, strlen(isa)) != 0) {
        (void)printf("%s is skipped: the machine supports %s\n", isa, mf_isa_name(mf_isa_best()));
        return;
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++) {
        const struct mf_shape s = {.token = 4,
                                   .model_dim = sizes[i].H,
                                   .inter_dim = sizes[i].I,
                                   .expert = EXPERTS,
                                   .topk = 1,
                                   .act_type = MF_ACT_SILU,
                                   .dtype = MF_DTYPE_BF16,
                                   .q_dtype_a = formats[format].a,
                                   .q_dtype_w = formats[format].w,
                                   .q_type = formats[format].q_type,
                                   .use_g1u1 = true};
        for (size_t l = 0; l < MF_ARRAY_LEN(layouts); l++) {
            check(&s, MF_TENSOR_W1, layouts[l]);
            check(&s, MF_TENSOR_W2, layouts[l]);
        }
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
