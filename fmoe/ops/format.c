/* Quantisation and the orders of weights and scales. */
#include "fmoe/ops/private.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/codec.h"
#include "kernels/core/quant.h"
#include "kernels/gpu/src/ops/ops_args.h"
#include "kernels/gpu/src/ops/ops_order.h"
#include "kernels/ops/shuffle.h"

/* ---- formats ---- */

/* Kinds of element and scale. Each has a GPU module; open.c lists the modules in this order. */
enum element { E_FP8FN, E_FP8FNUZ, E_INT8, E_MXFP8, E_MXFP4, E_NVFP4, E_INT4_32, E_INT4 };

/* clang-format off */
static const struct format {
    const char *name;
    enum mf_format format;
    enum mf_scale scale;
    enum element element;
} formats[] = {
#define FOUR(word, FORMAT)                                                             \
    {word "_tensor",  MF_FORMAT_##FORMAT, MF_SCALE_PER_TENSOR,  E_##FORMAT},           \
    {word "_token",   MF_FORMAT_##FORMAT, MF_SCALE_PER_TOKEN,   E_##FORMAT},           \
    {word "_128",     MF_FORMAT_##FORMAT, MF_SCALE_PER_1X128,   E_##FORMAT},           \
    {word "_128x128", MF_FORMAT_##FORMAT, MF_SCALE_PER_128X128, E_##FORMAT}
    FOUR("fp8fn", FP8FN),
    FOUR("fp8fnuz", FP8FNUZ),
    FOUR("int8", INT8),
    {"mxfp8",        MF_FORMAT_FP8FN, MF_SCALE_PER_1X32,  E_MXFP8},
    {"mxfp4",        MF_FORMAT_FP4,   MF_SCALE_PER_1X32,  E_MXFP4},
    {"nvfp4",        MF_FORMAT_FP4,   MF_SCALE_PER_1X16,  E_NVFP4},
    {"int4_32",      MF_FORMAT_INT4,  MF_SCALE_PER_1X32,  E_INT4_32},
    {"int4_channel", MF_FORMAT_INT4,  MF_SCALE_PER_TOKEN, E_INT4},
#undef FOUR
};
/* clang-format on */

static const struct format *find_format(const char *name)
{
    for (size_t i = 0; name && i < MF_ARRAY_LEN(formats); i++) {
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    }
    return NULL;
}

static int check_format(const char *name, int64_t rows, int64_t cols, struct fmoe_error *error)
{
    if (!find_format(name))
        return fmoe_fail(error, -EINVAL,
                         "format '%s': expected a format that fmoe_ops.h lists, as \"fp8fn_128\"",
                         name ? name : "");
    if (rows < 1 || rows > INT32_MAX || cols < 8 || cols > INT32_MAX / 2 || cols % 8 != 0)
        return fmoe_fail(error, -EINVAL,
                         "%lld rows, %lld columns: expected at least 1 row, and a multiple of 8 columns",
                         (long long)rows, (long long)cols);
    return 0;
}

int fmoe_op_quantised_sizes(const char *format, int64_t rows, int64_t cols, struct fmoe_op_quantised *ret,
                            struct fmoe_error *error)
{
    int r = check_format(format, rows, cols, error);
    const struct format *f = find_format(format);

    if (r < 0)
        return r;
    const struct mf_codec *c = mf_codec_find(f->format, f->scale);
    *ret = (struct fmoe_op_quantised){
        .row_bytes = (int64_t)mf_codec_row_bytes(c, (size_t)cols),
        .scale_rows = (int64_t)mf_codec_scale_rows(c, (size_t)rows),
        .scale_cols = (int64_t)mf_codec_scale_cols(c, (size_t)cols),
        .scale_bytes = c->scale_bytes,
        .has_factor = c->global,
        .factor_max = c->global ? mf_codec_global(c, 1) : 0,
    };
    return 0;
}

/* ---- quantise, CPU ---- */

struct band {
    const struct mf_codec *codec;
    const uint16_t *x; /* bf16 [rows, cols]: the rows that share scales */
    size_t rows, cols;
    float global;
    uint8_t *q, *scale;
    float *row;     /* scratch [cols] */
    uint32_t *amax; /* scratch [scale columns] */
};

/* Compares the bits of magnitudes as integers, so that NaN is the largest. */
static void add_amax(const struct band *b, const uint16_t *x, size_t group)
{
    for (size_t i = 0; i < b->cols; i++)
        b->amax[i / group] = MF_MAX(b->amax[i / group], (uint32_t)(x[i] & 0x7fff) << 16);
}

static void quantise_band(const struct band *b)
{
    const struct mf_codec *c = b->codec;
    size_t group = c->group_cols > 0 ? (size_t)c->group_cols : b->cols, n = mf_codec_scale_cols(c, b->cols);

    memset(b->amax, 0, n * sizeof(*b->amax));
    for (size_t r = 0; r < b->rows; r++)
        add_amax(b, b->x + r * b->cols, group);
    for (size_t g = 0; g < n; g++) {
        float amax;
        memcpy(&amax, &b->amax[g], sizeof(amax));
        mf_codec_group_scale(c, amax, b->global, b->scale + g * (size_t)c->scale_bytes);
    }
    for (size_t r = 0; r < b->rows; r++) {
        mf_bf16_to_floats(b->x + r * b->cols, b->cols, b->row);
        mf_codec_encode_row(c, b->row, b->cols, b->scale, b->global,
                            b->q + r * mf_codec_row_bytes(c, b->cols));
    }
}

static int quantise_on_cpu(const struct mf_codec *c, const struct fmoe_op_quantise *q,
                           struct fmoe_error *error)
{
    size_t rows = (size_t)q->rows, cols = (size_t)q->cols, row_bytes = mf_codec_row_bytes(c, cols);
    size_t scales = mf_codec_scale_cols(c, cols), group = c->group_rows > 0 ? (size_t)c->group_rows : rows;
    size_t bands = (rows + group - 1) / group;
    _cleanup_(mf_freep) float *row = calloc(cols, sizeof(*row));
    _cleanup_(mf_freep) uint32_t *amax = calloc(scales, sizeof(*amax));

    if (!row || !amax)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    for (size_t i = 0; i < (size_t)q->matrices * bands; i++) {
        size_t m = i / bands, first = i % bands * group;
        const struct band b = {
            .codec = c,
            .x = (const uint16_t *)q->x + (m * rows + first) * cols,
            .rows = MF_MIN(group, rows - first),
            .cols = cols,
            .global = c->global ? q->factor[m] : 1,
            .q = (uint8_t *)q->q + (m * rows + first) * row_bytes,
            .scale = (uint8_t *)q->scale + i * scales * (size_t)c->scale_bytes,
            .row = row,
            .amax = amax,
        };
        quantise_band(&b);
    }
    return 0;
}

/* ---- quantise, GPU ---- */

#define PARTS_MAX (FMOE_OP_AMAX_BYTES / 4)

static int quantise_all_on_gpu(const struct fmoe_ops *o, int module, struct mf_op_quantise_args *a,
                               void *stream)
{
    int64_t chunks = a->rows * (a->cols / 8), threads = fmoe_ops_threads(module);

    a->parts = (mf_i32)MF_MAX(MF_MIN((chunks + threads - 1) / threads, (int64_t)PARTS_MAX), 1);
    const struct fmoe_ops_launch amax = {module, FMOE_OPS_QUANTISE_AMAX, (int64_t)a->matrices * a->parts, 0,
                                         stream};
    const struct fmoe_ops_launch all = {module, FMOE_OPS_QUANTISE_ALL, (int64_t)a->matrices * a->parts, 0,
                                        stream};
    int r = fmoe_ops_launch(o, &amax, a, sizeof(*a));

    return r < 0 ? r : fmoe_ops_launch(o, &all, a, sizeof(*a));
}

static int quantise_on_gpu(const struct fmoe_ops *o, int module, const struct mf_codec *c,
                           const struct fmoe_op_quantise *q)
{
    struct mf_op_quantise_args a = {
        .x = q->x,
        .q = q->q,
        .scale = q->scale,
        .factor = c->global ? q->factor : NULL,
        .amax = q->workspace,
        .rows = q->rows,
        .matrices = (mf_i32)q->matrices,
        .cols = q->cols,
        .group_rows = c->group_rows,
        .group_cols = c->group_cols > 0 ? c->group_cols : q->cols,
    };
    int64_t groups = q->matrices * (int64_t)mf_codec_scale_rows(c, (size_t)q->rows) *
                     (int64_t)mf_codec_scale_cols(c, (size_t)q->cols);
    bool small = c->group_rows == 1 && c->group_cols > 0;
    const struct fmoe_ops_launch l = {
        .module = module,
        .function = small ? FMOE_OPS_QUANTISE_GROUPS : FMOE_OPS_QUANTISE_BLOCK,
        .blocks = small ? fmoe_ops_blocks(o, module, groups * a.group_cols / 8 / o->wave + 1, 4)
                        : MF_MIN(groups, (int64_t)o->device->info.cores * 4),
        .stream = q->stream,
    };

    if (c->group_rows == 0)
        return quantise_all_on_gpu(o, module, &a, q->stream);
    return fmoe_ops_launch(o, &l, &a, sizeof(a));
}

int fmoe_op_quantise(struct fmoe_ops *o, const struct fmoe_op_quantise *q, struct fmoe_error *error)
{
    const struct format *f = find_format(q->format);
    int r = check_format(q->format, q->rows, q->cols, error), module = 0;

    if (r == 0 && (q->matrices < 1 || q->matrices > 1 << 20))
        r = fmoe_fail(error, -EINVAL, "%lld matrices: expected 1 to 2^20", (long long)q->matrices);
    if (r < 0)
        return r;
    const struct mf_codec *c = mf_codec_find(f->format, f->scale);
    module = FMOE_OPS_QUANTISE + (int)f->element;
    if (c->global && !q->factor)
        return fmoe_fail(error, -EINVAL, "factor: format %s needs a factor per matrix", f->name);
    if (fmoe_ops_on_gpu(o) && !o->functions[module][0].function)
        return fmoe_fail(error, -ENOTSUP, "format %s: not supported on %s", f->name,
                         o->device->info.class.gfx);
    if (fmoe_ops_on_gpu(o) && ((uintptr_t)q->x | (uintptr_t)q->q) % 16 != 0)
        return fmoe_fail(error, -EINVAL, "x and q: expected addresses that are multiples of 16");
    r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    r = fmoe_ops_on_gpu(o) ? quantise_on_gpu(o, module, c, q) : quantise_on_cpu(c, q, error);
    return fmoe_ops_end(o, r, error);
}

/* ---- orders ---- */

/* Finds an order and checks that it supports the size. */
static int find_order(const char *name, int64_t rows, int64_t cols, int32_t element_bytes,
                      struct fmoe_error *error, enum mf_shuffle *ret, struct mf_shuffle_size *ret_size)
{
    char why[256];

    if (!name || mf_shuffle_parse(name, ret) < 0)
        return fmoe_fail(error, -EINVAL,
                         "order '%s': expected 16x16, a16w4, a16w4_gu, a16w4_scale, e8m0, "
                         "e8m0_1250, 32_4_4 or 8_4",
                         name ? name : "");
    if (rows < 1 || rows > INT32_MAX || cols < 1 || cols > INT32_MAX ||
        (element_bytes != 1 && element_bytes != 2))
        return fmoe_fail(error, -EINVAL,
                         "%lld rows, %lld columns of %d bytes: expected 1 to 2^31 - 1 rows and columns, and "
                         "elements of 1 or 2 bytes",
                         (long long)rows, (long long)cols, element_bytes);
    *ret_size = (struct mf_shuffle_size){(size_t)rows, (size_t)cols, element_bytes, false};
    if (!mf_shuffle_legal(*ret, ret_size, why, sizeof(why)))
        return fmoe_fail(error, -EINVAL, "%s", why);
    return 0;
}

int fmoe_op_shuffled_elements(const char *order, int64_t rows, int64_t cols, int32_t element_bytes,
                              int64_t *ret_elements, struct fmoe_error *error)
{
    struct mf_shuffle_size z;
    enum mf_shuffle s;
    int r = find_order(order, rows, cols, element_bytes, error, &s, &z);

    if (r == 0)
        *ret_elements = (int64_t)mf_shuffle_elements(s, &z);
    return r;
}

/* Returns the number of bytes that are adjacent and aligned in both orders. */
static int adjacent_bytes(enum mf_shuffle s, const struct fmoe_op_shuffle *q)
{
    static const int bytes[MF_SHUFFLE_N_] = {
        [MF_SHUFFLE_W16X16] = 16,   [MF_SHUFFLE_A16W4] = 16,    [MF_SHUFFLE_A16W4_GU] = 16,
        [MF_SHUFFLE_E8M0_1250] = 4, [MF_SHUFFLE_NV_32_4_4] = 4, [MF_SHUFFLE_NV_8_4] = 4,
    };
    int unit = bytes[s];
    uintptr_t all = (uintptr_t)q->from | (uintptr_t)q->to | (uintptr_t)(q->cols * q->element_bytes);

    return unit > 0 && all % (uintptr_t)unit == 0 ? unit : q->element_bytes;
}

static int shuffle_on_gpu(const struct fmoe_ops *o, enum mf_shuffle s, const struct mf_shuffle_size *z,
                          const struct fmoe_op_shuffle *q)
{
    struct mf_op_shuffle_args a = {
        .from = q->from,
        .to = q->to,
        .matrices = q->matrices,
        .rows = q->rows,
        .cols = q->cols,
        .order = (int)s,
        .element_bytes = q->element_bytes,
        .undo = q->undo,
        .unit = adjacent_bytes(s, q),
        .fill = s == MF_SHUFFLE_E8M0_1250 ? 0x7f7f7f7f : 0,
    };
    mf_shuffle_padded(s, z, &a.padded_rows, &a.padded_cols);
    int64_t units = q->matrices * a.padded_rows * a.padded_cols * q->element_bytes / a.unit;
    const struct fmoe_ops_launch l = {
        FMOE_OPS_SHUFFLE, 0, fmoe_ops_blocks(o, FMOE_OPS_SHUFFLE, (units + 31) / 32, 8), 0, q->stream};

    return fmoe_ops_launch(o, &l, &a, sizeof(a));
}

int fmoe_op_shuffle(struct fmoe_ops *o, const struct fmoe_op_shuffle *q, struct fmoe_error *error)
{
    struct mf_shuffle_size z;
    enum mf_shuffle s;
    int r = find_order(q->order, q->rows, q->cols, q->element_bytes, error, &s, &z);

    if (r == 0 && (q->matrices < 0 || q->matrices > 1 << 20))
        r = fmoe_fail(error, -EINVAL, "%lld matrices: expected 0 to 2^20", (long long)q->matrices);
    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    if (fmoe_ops_on_gpu(o))
        r = shuffle_on_gpu(o, s, &z, q);
    else if (q->undo)
        mf_shuffle_undo(s, &z, (size_t)q->matrices, q->from, q->to);
    else
        mf_shuffle_apply(s, &z, (size_t)q->matrices, q->from, q->to);
    return fmoe_ops_end(o, r, error);
}
