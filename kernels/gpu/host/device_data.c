#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/gpu/host/device_data_private.h"

#define BLOCKS_PER_CORE 8
#define LDS_MAX         (48 * 1024) /* a block may use this much on every GPU without an opt-in */
#define TILE_ROWS       8           /* rows per block if no two values share a scale */
#define TILE_COLS       256

/* ---- supported shapes ---- */

/* Returns the value of MF_CODEC (kernels/gpu/src/codecs.h) for the codec, or -1 if the host must encode the
 * format. */
static int codec_number(const struct mf_hip_machine *machine, const struct mf_codec *c)
{
    bool mx = c->scale_format == MF_SCALE_E8M0;
    switch (c->format) {
    case MF_FORMAT_BF16:
        return 0;
    case MF_FORMAT_FP8FN:
        return !machine->fp8 ? -1 : mx ? 3 : 1;
    case MF_FORMAT_FP8FNUZ:
        return machine->fnuz && !mx ? 1 : -1;
    case MF_FORMAT_INT8:
        return 2;
    case MF_FORMAT_FP4:
        return mx ? 4 : 5;
    case MF_FORMAT_INT4:
        return c->group_cols == 32 ? 6 : 7;
    case MF_FORMAT_FP16:
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
    case MF_FORMAT_N_:
        break;
    }
    return -1;
}

/* True if a scale covers fewer than 128 columns, so that one block computes many scales. */
static bool has_small_groups(const struct mf_codec *c)
{
    return c->group_cols > 0 && c->group_cols < 128;
}

bool mf_device_data_needs_amax(const struct mf_codec *c)
{
    return (c->scale_bytes > 0 && c->group_rows == 0) || c->global;
}

/* Sets the number of rows and columns that a block generates at a time. */
static void group_of(const struct mf_codec *c, int64_t cols, mf_i32 *ret_rows, mf_i32 *ret_cols)
{
    bool free = c->scale_bytes == 0 || has_small_groups(c);
    *ret_rows = free ? TILE_ROWS : c->group_rows > 0 ? c->group_rows : 1;
    *ret_cols = free ? TILE_COLS : c->group_cols > 0 ? c->group_cols : (mf_i32)cols;
}

/* Returns the bytes of LDS for the kernel: the bf16 values, and the scales of small groups if there are any.
 */
static int64_t lds_of(const struct mf_codec *c, int64_t cols)
{
    mf_i32 group_rows, group_cols;
    group_of(c, cols, &group_rows, &group_cols);
    int64_t values = (int64_t)group_rows * group_cols;
    return 2 * (values + (has_small_groups(c) ? values / c->group_cols : 0));
}

static bool is_supported(const struct mf_device_info *d, const struct mf_shape *s, struct mf_codecs *ret)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(d);
    const char *why;
    if (!machine || mf_codecs_of_shape(s, ret, &why) < 0)
        return false;
    int64_t widest = MF_MAX(s->model_dim, s->inter_dim);
    return s->dtype == MF_DTYPE_BF16 && codec_number(machine, ret->a) >= 0 &&
           codec_number(machine, ret->w) >= 0 && s->model_dim % 16 == 0 && s->inter_dim % 16 == 0 &&
           lds_of(ret->a, widest) <= LDS_MAX && lds_of(ret->w, widest) <= LDS_MAX;
}

static struct mf_code data_code(const struct mf_device_info *d, const struct mf_shape *shape,
                                const struct mf_codec *c)
{
    struct mf_code code = {.source = "data.hip", .function = "mf_data"};
    mf_code_define(&code, "MF_CODEC=%d", codec_number(mf_hip_machine_of(d), c));
    mf_hip_define_fnuz(&code, shape);
    return code;
}

size_t mf_device_data_codes(const struct mf_device_info *device, const struct mf_shape *shape,
                            struct mf_code ret[MF_DEVICE_DATA_CODES])
{
    struct mf_codecs codecs;
    if (!is_supported(device, shape, &codecs))
        return 0;
    ret[MF_DEVICE_DATA_CODE_W] = data_code(device, shape, codecs.w);
    ret[MF_DEVICE_DATA_CODE_REFERENCE] = (struct mf_code){.source = "reference.hip", .function = "mf_dots"};
    ret[MF_DEVICE_DATA_CODE_FILL] = (struct mf_code){.source = "fill.hip", .function = "mf_fill"};
    ret[MF_DEVICE_DATA_CODE_ROWS] =
        (struct mf_code){.source = "rows.hip", .function = "mf_compare_reference"};
    ret[MF_DEVICE_DATA_CODE_X] = data_code(device, shape, codecs.a);
    return mf_code_equal(&ret[MF_DEVICE_DATA_CODE_X], &ret[MF_DEVICE_DATA_CODE_W]) ? MF_DEVICE_DATA_CODE_X
                                                                                   : MF_DEVICE_DATA_CODES;
}

/* ---- launches ---- */

struct run {
    struct mf_device_data *m;
    const struct mf_device_data_launch *launches;
};

static int launch(void *context, int index)
{
    const struct run *r = context;
    const struct mf_device_data_launch *l = &r->launches[index];
    return mf_hip_launch(l->function, &l->grid, &l->args, l->bytes);
}

int mf_device_data_run(struct mf_device_data *m, const struct mf_device_data_launch *launches, size_t n)
{
    struct run run = {m, launches};
    /* do not record resource usage, which is recorded only for steps */
    struct mf_resource_usage *saved_use = m->device->use;
    double us;
    m->device->use = NULL;
    int r = n > 0 ? m->device->ops->time(m->device, launch, &run, (int)n, &us) : 0;
    m->device->use = saved_use;
    return r;
}

struct mf_grid mf_device_data_grid(const struct mf_device_data *m, int64_t work)
{
    int64_t blocks = MF_MIN(work, (int64_t)m->device->info.cores * BLOCKS_PER_CORE);
    return (struct mf_grid){(uint32_t)MF_MAX(blocks, 1), 1, 1, MF_DEVICE_DATA_THREADS, 0, true, false};
}

int64_t mf_device_data_groups(const struct mf_device_data_matrices *x)
{
    mf_i32 rows, cols;
    group_of(x->codec, x->cols, &rows, &cols);
    return x->n * ((x->rows + rows - 1) / rows) * ((x->cols + cols - 1) / cols);
}

int mf_device_data_add_data(struct mf_device_data *m, const struct mf_device_data_matrices *x,
                            struct mf_device_data_launch *ret)
{
    const struct mf_data_rule rule = mf_data_rule(&m->shape, x->tensor, m->seed);
    enum mf_device_data_kernel kernel = x->tensor == MF_TENSOR_X ? MF_DEVICE_DATA_X : MF_DEVICE_DATA_W;
    struct mf_device_data_launch l = {.function = &m->functions[kernel], .bytes = sizeof(l.args.data)};
    l.args.data = (struct mf_hip_data_args){
        .matrices = x->indices,
        .key = rule.key,
        .groups = mf_device_data_groups(x),
        .factor = rule.factor,
        .rows = (mf_i32)x->rows,
        .cols = (mf_i32)x->cols,
        .panel = 1,
        .group_words = 1,
        .what = MF_DATA_FLOATS,
    };
    group_of(x->codec, x->cols, &l.args.data.group_rows, &l.args.data.group_cols);
    l.grid = mf_device_data_grid(m, l.args.data.groups);
    l.grid.shared = (uint32_t)lds_of(x->codec, x->cols);
    int n = 0;
    if (mf_device_data_needs_amax(x->codec)) {
        l.args.data.amax = x->amax;
        ret[n] = l;
        ret[n++].args.data.what = MF_DATA_AMAX;
    }
    ret[n++] = l;
    return n;
}

/* ---- weights ---- */

int mf_device_data_weight(struct mf_device_data *m, const struct mf_tensor_spec *a,
                          const struct mf_tensor_ref *to)
{
    struct mf_tensor_spec plain = mf_plain_w(&m->shape, a->tensor, a->order);
    struct mf_part parts[MF_PARTS_MAX];
    if (!mf_tensor_spec_equal(&plain, a) || mf_tensor_spec_parts(a, &m->shape, parts) < 0)
        return -EINVAL;
    const struct mf_layout *layout = mf_layout_find(a->order);
    struct mf_device_data_matrices x = {
        .tensor = a->tensor,
        .codec = m->codecs.w,
        .n = m->shape.expert,
        .rows = parts[0].rows / m->shape.expert,
        .cols = mf_tensor_spec_cols(a, &m->shape),
    };
    size_t amax_bytes = (size_t)mf_device_data_groups(&x) * sizeof(float);
    if (mf_device_data_needs_amax(x.codec)) {
        x.amax = m->device->ops->alloc(m->device, amax_bytes);
        if (!x.amax)
            return -ENOMEM;
    }
    struct mf_device_data_launch launches[2];
    int n = mf_device_data_add_data(m, &x, launches);
    struct mf_hip_data_args *last = &launches[n - 1].args.data;
    last->what = MF_DATA_CODES;
    last->panel = layout->panel;
    last->group_words = layout->group_bytes / 4;
    last->gate_rows = layout->gate_rows;
    last->out = to->part[0];
    last->scale = to->part[1];
    last->global = to->part[2];
    int r = mf_device_data_run(m, launches, (size_t)n);
    if (x.amax)
        m->device->ops->release(m->device, x.amax, amax_bytes);
    return r;
}

/* ---- filling ---- */

int mf_device_data_fill(struct mf_device_data *m, const struct mf_device_data_fill *fills, size_t n)
{
    struct mf_device_data_launch launches[MF_DEVICE_DATA_FILLS];
    for (size_t i = 0; i < n; i++) {
        struct mf_device_data_launch *l = &launches[i];
        *l = (struct mf_device_data_launch){.function = &m->functions[MF_DEVICE_DATA_FILL],
                                            .bytes = sizeof(l->args.fill)};
        l->args.fill = (struct mf_hip_fill_args){
            .to = fills[i].at, .bytes = (long long)fills[i].bytes, .pattern = fills[i].pattern};
        l->grid = mf_device_data_grid(m, (int64_t)(fills[i].bytes / 16 / MF_DEVICE_DATA_THREADS + 1));
    }
    return mf_device_data_run(m, launches, n);
}

/* ---- opening ---- */

static int open_functions(struct mf_device_data *m, struct mf_code codes[MF_DEVICE_DATA_CODES])
{
    static const struct {
        enum mf_device_data_code code;
        const char *function;
    } kernels[MF_DEVICE_DATA_N_] = {
        [MF_DEVICE_DATA_W] = {MF_DEVICE_DATA_CODE_W, "mf_data"},
        [MF_DEVICE_DATA_X] = {MF_DEVICE_DATA_CODE_X, "mf_data"},
        [MF_DEVICE_DATA_DOTS] = {MF_DEVICE_DATA_CODE_REFERENCE, "mf_dots"},
        [MF_DEVICE_DATA_SLOTS] = {MF_DEVICE_DATA_CODE_REFERENCE, "mf_sum_slots"},
        [MF_DEVICE_DATA_DIFFERENCES] = {MF_DEVICE_DATA_CODE_REFERENCE, "mf_differences"},
        [MF_DEVICE_DATA_FILL] = {MF_DEVICE_DATA_CODE_FILL, "mf_fill"},
        [MF_DEVICE_DATA_COMPARE_REFERENCE] = {MF_DEVICE_DATA_CODE_ROWS, "mf_compare_reference"},
        [MF_DEVICE_DATA_COMPARE_RUNS] = {MF_DEVICE_DATA_CODE_ROWS, "mf_compare_runs"},
        [MF_DEVICE_DATA_ROUND] = {MF_DEVICE_DATA_CODE_ROWS, "mf_round"},
        [MF_DEVICE_DATA_GATHER] = {MF_DEVICE_DATA_CODE_ROWS, "mf_gather"},
    };
    const struct mf_hip_function *first[MF_DEVICE_DATA_CODES] = {NULL};
    int r = 0;
    for (int i = 0; i < MF_DEVICE_DATA_N_ && r == 0; i++) {
        enum mf_device_data_code code = kernels[i].code;
        if (first[code]) {
            r = mf_hip_function_lookup(first[code], kernels[i].function, &m->functions[i]);
            continue;
        }
        codes[code].function = kernels[i].function;
        r = mf_hip_function_open(m->device, &codes[code], &m->functions[i]);
        first[code] = &m->functions[i];
    }
    return r;
}

int mf_device_data_new(struct mf_device *device, const struct mf_shape *shape, uint64_t seed,
                       struct mf_device_data **ret)
{
    struct mf_codecs codecs;
    struct mf_code codes[MF_DEVICE_DATA_CODES];
    if (!device->ops->own_memory || !device->ops->compile || !is_supported(&device->info, shape, &codecs))
        return -ENOTSUP;
    struct mf_device_data *m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    *m = (struct mf_device_data){.device = device, .shape = *shape, .seed = seed, .codecs = codecs};
    size_t n = mf_device_data_codes(&device->info, shape, codes);
    /* compiles all codes in parallel; the failure of a code is reported when the code is opened */
    (void)device->ops->compile(device, codes, n, NULL, NULL);
    int r = open_functions(m, codes);
    if (r < 0) {
        (void)mf_device_data_free(m);
        return r == -ENOMEM ? r : -ENOTSUP;
    }
    *ret = m;
    return 0;
}

struct mf_device *mf_device_data_device(const struct mf_device_data *m)
{
    return m->device;
}

struct mf_device_data *mf_device_data_free(struct mf_device_data *m)
{
    if (m)
        (void)mf_device_data_drop_cache(m);
    for (size_t i = 0; m && i < MF_ARRAY_LEN(m->functions); i++)
        mf_hip_function_close(&m->functions[i]);
    free(m);
    return NULL;
}
