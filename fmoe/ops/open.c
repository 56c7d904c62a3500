/* Handles of the operators: opens a device, compiles and loads its kernels, launches them. */
#include "fmoe/ops/private.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/src/ops/ops_args.h"

/* clang-format off */
static const struct module {
    const char *source;
    int threads;
    const char *functions[FMOE_OPS_FUNCTIONS];
    const char *defines[2];
    bool needs_fp8, needs_fnuz;
} modules[FMOE_OPS_MODULES] = {
#define QUANTISE(...) \
    {"ops_quantise.hip", 256,                                                                      \
     {"mf_op_quantise", "mf_op_quantise_block", "mf_op_amax", "mf_op_quantise_all"},               \
     __VA_ARGS__}
    [FMOE_OPS_SORT] = {"ops_sort.hip", 512, {"mf_op_sort", "mf_op_sort_count"}, {0}, false, false},
    [FMOE_OPS_PERMUTE] = {"ops_permute.hip", 512,
        {"mf_op_permute", "mf_op_sort_permute", "mf_op_gather", "mf_op_unpermute"}, {0}, false, false},
    [FMOE_OPS_MAP] = {"ops_map.hip", 256, {"mf_op_map", "mf_op_map_count"}, {0}, false, false},
    [FMOE_OPS_ROUTE] = {"ops_route.hip", 128, {"mf_op_route"}, {0}, false, false},
    [FMOE_OPS_SHUFFLE] = {"ops_shuffle.hip", 256, {"mf_op_shuffle"}, {0}, false, false},
    /* in the order of enum element in format.c */
    [FMOE_OPS_QUANTISE] =
    QUANTISE({"MF_ELEMENT=0", "MF_GROUP=0"}, true, false),
    QUANTISE({"MF_ELEMENT=0", "MF_GROUP=0"}, true, true),
    QUANTISE({"MF_ELEMENT=1", "MF_GROUP=0"}, false, false),
    QUANTISE({"MF_ELEMENT=0", "MF_GROUP=32"}, true, false),
    QUANTISE({"MF_ELEMENT=2", "MF_GROUP=32"}, false, false),
    QUANTISE({"MF_ELEMENT=2", "MF_GROUP=16"}, true, false),
    QUANTISE({"MF_INT4", "MF_CODEC=6"}, false, false),
    QUANTISE({"MF_INT4", "MF_CODEC=7"}, false, false),
#undef QUANTISE
};
/* clang-format on */

static bool is_supported(const struct module *m, const struct mf_hip_machine *machine)
{
    return (!m->needs_fp8 || machine->fp8) && (!m->needs_fnuz || machine->fnuz);
}

static struct mf_code code_of(const struct module *m)
{
    struct mf_code code = {.source = m->source, .function = m->functions[0]};

    mf_code_define(&code, "MF_THREADS=%d", m->threads);
    for (size_t i = 0; i < MF_ARRAY_LEN(m->defines) && m->defines[i]; i++)
        mf_code_define(&code, "%s", m->defines[i]);
    if (m->needs_fnuz)
        mf_code_define(&code, "MF_FNUZ");
    return code;
}

size_t fmoe_ops_codes(const struct mf_device_info *device, struct mf_code ret[FMOE_OPS_MODULES])
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    size_t n = 0;

    for (int m = 0; machine && m < FMOE_OPS_MODULES; m++) {
        if (is_supported(&modules[m], machine))
            ret[n++] = code_of(&modules[m]);
    }
    return n;
}

/* Compiles all modules at once, so that opening them one by one finds them in the cache. */
static int compile_ahead(struct mf_device *d)
{
    _cleanup_(mf_freep) struct mf_code *codes = calloc(FMOE_OPS_MODULES, sizeof(*codes));

    if (!codes)
        return -ENOMEM;
    (void)d->ops->compile(d, codes, fmoe_ops_codes(&d->info, codes), NULL, NULL);
    return 0;
}

static int open_module(struct fmoe_ops *o, int m)
{
    struct mf_hip_function *f = o->functions[m];
    const struct mf_code code = code_of(&modules[m]);
    int r = mf_hip_function_open(o->device, &code, &f[0]);

    for (int i = 1; r == 0 && i < FMOE_OPS_FUNCTIONS && modules[m].functions[i]; i++)
        r = mf_hip_function_lookup(&f[0], modules[m].functions[i], &f[i]);
    return r;
}

static int open_modules(struct fmoe_ops *o, struct fmoe_error *error)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(&o->device->info);
    int r = machine ? compile_ahead(o->device) : -ENOTSUP;

    if (!machine)
        return fmoe_fail(error, r, "%s: no operators for this architecture", o->device->info.class.gfx);
    o->wave = machine->wave;
    for (int m = 0; r == 0 && m < FMOE_OPS_MODULES; m++) {
        if (is_supported(&modules[m], machine))
            r = open_module(o, m);
    }
    if (r < 0)
        return fmoe_fail(error, r, "loading the operators: %s",
                         *o->device->open_error ? o->device->open_error : strerror(-r));
    return 0;
}

int fmoe_ops_open_on(struct mf_device *device, struct fmoe_error *error, struct fmoe_ops **ret)
{
    struct fmoe_ops *o = calloc(1, sizeof(*o));
    int r = 0;

    if (!o)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    o->device = device;
    o->is_borrowed = true;
    if (device->ops->own_memory || device->ops->compile)
        r = open_modules(o, error);
    if (r < 0) {
        fmoe_ops_close(o);
        return r;
    }
    *ret = o;
    return 0;
}

int fmoe_ops_open(const char *device, struct fmoe_error *error, struct fmoe_ops **ret)
{
    const struct mf_device_open_options how = {.guest = true};
    struct mf_device *d = NULL;
    char why[MF_REASON_MAX] = "";
    int r = mf_device_open_with(device, &how, why, sizeof(why), &d);

    if (r < 0)
        return fmoe_fail(error, r, "%s", why);
    if (!d->ops->enter)
        r = fmoe_fail(
            error, -EINVAL,
            "device '%s' cannot run operators: expected cpu:0, hip:amd:<ordinal> or hip:nvidia:<ordinal>",
            device);
    else
        r = fmoe_ops_open_on(d, error, ret);
    if (r < 0)
        (void)mf_device_close(d);
    else
        (*ret)->is_borrowed = false;
    return r;
}

void fmoe_ops_close(struct fmoe_ops *o)
{
    if (!o)
        return;
    if (o->device->ops->sync)
        (void)o->device->ops->sync(o->device);
    for (int m = 0; m < FMOE_OPS_MODULES; m++)
        mf_hip_function_close(&o->functions[m][0]);
    if (!o->is_borrowed)
        o->device = mf_device_close(o->device);
    free(o);
}

/* ---- calls ---- */

int fmoe_ops_begin(struct fmoe_ops *o, struct fmoe_error *error)
{
    int r = 0;

    if (!fmoe_ops_on_gpu(o))
        return fmoe_cpu_take() ? 0 : fmoe_fail(error, -EBUSY, "another call of the process uses the CPU");
    if (o->device->ops->enter)
        r = o->device->ops->enter(o->device);
    return r < 0 ? fmoe_fail(error, r, "the device has failed: restart the process") : 0;
}

int fmoe_ops_end(struct fmoe_ops *o, int r, struct fmoe_error *error)
{
    if (!fmoe_ops_on_gpu(o))
        fmoe_cpu_give();
    else if (r < 0)
        return fmoe_fail(error, r, "launching the operator: %s", strerror(-r));
    return r;
}

int fmoe_ops_threads(int module)
{
    return modules[module].threads;
}

int fmoe_ops_launch(const struct fmoe_ops *o, const struct fmoe_ops_launch *l, const void *args, size_t bytes)
{
    const struct mf_grid grid = {
        .x = (uint32_t)l->blocks,
        .y = 1,
        .z = 1,
        .block = (uint32_t)modules[l->module].threads,
        .shared = (uint32_t)l->shared,
        .struct_argument = true,
        .programmatic_launch = true,
    };

    if (l->blocks < 1)
        return 0;
    return o->device->ops->module_launch(o->device, o->functions[l->module][l->function].function, &grid,
                                         args, bytes, l->stream);
}

int64_t fmoe_ops_blocks(const struct fmoe_ops *o, int module, int64_t warps, int resident)
{
    int64_t in_block = modules[module].threads / o->wave;

    return MF_MIN((warps + in_block - 1) / in_block, (int64_t)o->device->info.cores * resident);
}
