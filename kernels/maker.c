#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "kernels/data.h"
#include "kernels/layout.h"
#include "kernels/maker_private.h"

#define BLOCKS_CORE 8
#define LDS         (48 * 1024) /* that every GPU gives a block unasked */
#define FREE_ROWS   8           /* of a block where values share no scale */
#define FREE_COLS   256

/* ---- what is known ---- */

/* MF_CODEC of kernels/hip/data.hip; -1: a format that the host makes. */
static int codec_number(const struct mf_hip_machine *machine, const struct mf_codec *c)
{
    if (c->scale_format != MF_SCALE_F32 || c->bits < 8)
        return -1;
    switch (c->format) {
    case MF_FORMAT_BF16:
        return 0;
    case MF_FORMAT_FP8FN:
        return machine->fp8 ? 1 : -1;
    case MF_FORMAT_FP8FNUZ:
        return machine->fnuz ? 1 : -1;
    case MF_FORMAT_INT8:
        return 2;
    case MF_FORMAT_FP16:
    case MF_FORMAT_FP4:
    case MF_FORMAT_INT4:
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
    case MF_FORMAT_N_:
        break;
    }
    return -1;
}

/* Rows and columns of what a block makes. */
static void group_of(const struct mf_codec *c, int64_t cols, mf_i32 *ret_rows, mf_i32 *ret_cols)
{
    bool free = c->scale_bytes == 0;
    *ret_rows = free ? FREE_ROWS : c->group_rows > 0 ? c->group_rows : 1;
    *ret_cols = free ? FREE_COLS : c->group_cols > 0 ? c->group_cols : (mf_i32)cols;
}

static bool is_known(const struct mf_device_info *d, const struct mf_shape *s, struct mf_codecs *ret)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(d);
    const char *why;
    mf_i32 rows, cols;
    if (!machine || mf_codecs_of_shape(s, ret, &why) < 0)
        return false;
    group_of(ret->w, MF_MAX(s->model_dim, s->inter_dim), &rows, &cols);
    return s->dtype == MF_DTYPE_BF16 && ret->a->format == ret->w->format &&
           codec_number(machine, ret->a) >= 0 && codec_number(machine, ret->w) >= 0 &&
           s->model_dim % 16 == 0 && s->inter_dim % 16 == 0 && (int64_t)rows * cols * 2 <= LDS;
}

size_t mf_maker_codes(const struct mf_device_info *device, const struct mf_shape *shape,
                      struct mf_code ret[MF_MAKER_CODES])
{
    struct mf_codecs codecs;
    if (!is_known(device, shape, &codecs))
        return 0;
    ret[0] = (struct mf_code){.source = "data.hip", .function = "mf_data"};
    mf_code_define(&ret[0], "MF_CODEC=%d", codec_number(mf_hip_machine_of(device), codecs.w));
    mf_hip_define_fnuz(&ret[0], shape);
    ret[1] = (struct mf_code){.source = "reference.hip", .function = "mf_dots"};
    ret[2] = (struct mf_code){.source = "fill.hip", .function = "mf_fill"};
    return MF_MAKER_CODES;
}

/* ---- launches ---- */

struct run {
    struct mf_maker *m;
    const struct mf_maker_launch *launches;
};

static int launch(void *context, int index)
{
    const struct run *r = context;
    const struct mf_maker_launch *l = &r->launches[index];
    return mf_hip_launch(l->function, &l->grid, &l->args, l->bytes);
}

int mf_maker_run(struct mf_maker *m, const struct mf_maker_launch *launches, size_t n)
{
    struct run run = {m, launches};
    double us;
    return n > 0 ? m->device->ops->time(m->device, launch, &run, (int)n, &us) : 0;
}

struct mf_grid mf_maker_grid(const struct mf_maker *m, int64_t work)
{
    int64_t blocks = MF_MIN(work, (int64_t)m->device->info.cores * BLOCKS_CORE);
    return (struct mf_grid){(uint32_t)MF_MAX(blocks, 1), 1, 1, MF_MAKER_THREADS, 0, true, false};
}

int64_t mf_maker_groups(const struct mf_maker_matrices *x)
{
    mf_i32 rows, cols;
    group_of(x->codec, x->cols, &rows, &cols);
    return x->n * ((x->rows + rows - 1) / rows) * ((x->cols + cols - 1) / cols);
}

int mf_maker_add_data(struct mf_maker *m, const struct mf_maker_matrices *x, struct mf_maker_launch *ret)
{
    const struct mf_data_rule rule = mf_data_rule(&m->shape, x->tensor, m->seed);
    struct mf_maker_launch l = {.function = &m->functions[MF_MAKER_DATA], .bytes = sizeof(l.args.data)};
    l.args.data = (struct mf_hip_data_args){
        .matrices = x->numbers,
        .key = rule.key,
        .groups = mf_maker_groups(x),
        .factor = rule.factor,
        .rows = (mf_i32)x->rows,
        .cols = (mf_i32)x->cols,
        .panel = 1,
        .what = MF_DATA_FLOATS,
    };
    group_of(x->codec, x->cols, &l.args.data.group_rows, &l.args.data.group_cols);
    l.grid = mf_maker_grid(m, l.args.data.groups);
    l.grid.shared = (uint32_t)(l.args.data.group_rows * l.args.data.group_cols * 2);
    int n = 0;
    if (x->codec->scale_bytes > 0 && x->codec->group_rows == 0) {
        l.args.data.amax = x->amax;
        ret[n] = l;
        ret[n++].args.data.what = MF_DATA_AMAX;
    }
    ret[n++] = l;
    return n;
}

/* ---- weights ---- */

int mf_maker_weight(struct mf_maker *m, const struct mf_artifact *a, const struct mf_tensor_ref *to)
{
    struct mf_artifact plain = mf_plain_w(&m->shape, a->tensor, a->order);
    struct mf_part parts[MF_PARTS_MAX];
    if (!mf_artifact_equal(&plain, a) || mf_artifact_parts(a, &m->shape, parts) < 0)
        return -EINVAL;
    const struct mf_layout *layout = mf_layout_find(a->order);
    struct mf_maker_matrices x = {
        .tensor = a->tensor,
        .codec = m->codecs.w,
        .n = m->shape.expert,
        .rows = parts[0].rows / m->shape.expert,
        .cols = parts[0].cols,
    };
    size_t amax_bytes = (size_t)mf_maker_groups(&x) * sizeof(float);
    if (x.codec->scale_bytes > 0 && x.codec->group_rows == 0) {
        x.amax = m->device->ops->alloc(m->device, amax_bytes);
        if (!x.amax)
            return -ENOMEM;
    }
    struct mf_maker_launch launches[2];
    int n = mf_maker_add_data(m, &x, launches);
    struct mf_hip_data_args *last = &launches[n - 1].args.data;
    last->what = MF_DATA_CODES;
    last->panel = layout->panel;
    last->gate_rows = layout->gate_rows;
    last->out = to->part[0];
    last->scale = to->part[1];
    int r = mf_maker_run(m, launches, (size_t)n);
    if (x.amax)
        m->device->ops->release(m->device, x.amax, amax_bytes);
    return r;
}

/* ---- filling ---- */

int mf_maker_fill(struct mf_maker *m, const struct mf_maker_fill *fills, size_t n)
{
    struct mf_maker_launch launches[MF_MAKER_FILLS];
    for (size_t i = 0; i < n; i++) {
        struct mf_maker_launch *l = &launches[i];
        *l =
            (struct mf_maker_launch){.function = &m->functions[MF_MAKER_FILL], .bytes = sizeof(l->args.fill)};
        l->args.fill = (struct mf_hip_fill_args){
            .to = fills[i].at, .bytes = (long long)fills[i].bytes, .pattern = fills[i].pattern};
        l->grid = mf_maker_grid(m, (int64_t)(fills[i].bytes / 16 / MF_MAKER_THREADS + 1));
    }
    return mf_maker_run(m, launches, n);
}

/* ---- opening ---- */

static int open_functions(struct mf_maker *m, struct mf_code codes[MF_MAKER_CODES])
{
    static const struct {
        int code;
        const char *function;
    } kernels[MF_MAKER_N_] = {
        [MF_MAKER_DATA] = {0, "mf_data"},       [MF_MAKER_DOTS] = {1, "mf_dots"},
        [MF_MAKER_SLOTS] = {1, "mf_sum_slots"}, [MF_MAKER_DIFFERENCES] = {1, "mf_differences"},
        [MF_MAKER_FILL] = {2, "mf_fill"},
    };
    int r = 0;
    for (int i = 0; i < MF_MAKER_N_ && r == 0; i++) {
        codes[kernels[i].code].function = kernels[i].function;
        r = mf_hip_function_open(m->device, &codes[kernels[i].code], &m->functions[i]);
    }
    return r;
}

int mf_maker_new(struct mf_device *device, const struct mf_shape *shape, uint64_t seed, struct mf_maker **ret)
{
    struct mf_codecs codecs;
    struct mf_code codes[MF_MAKER_CODES];
    if (!device->ops->own_memory || !device->ops->compile || !is_known(&device->info, shape, &codecs))
        return -ENOTSUP;
    struct mf_maker *m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    *m = (struct mf_maker){.device = device, .shape = *shape, .seed = seed, .codecs = codecs};
    size_t n = mf_maker_codes(&device->info, shape, codes);
    (void)device->ops->compile(device, codes, n, NULL, NULL); /* all at once; opening says what fails */
    int r = open_functions(m, codes);
    if (r < 0) {
        (void)mf_maker_free(m);
        return r == -ENOMEM ? r : -ENOTSUP;
    }
    *ret = m;
    return 0;
}

struct mf_maker *mf_maker_free(struct mf_maker *m)
{
    for (size_t i = 0; m && i < MF_ARRAY_LEN(m->functions); i++)
        mf_hip_function_close(&m->functions[i]);
    free(m);
    return NULL;
}
