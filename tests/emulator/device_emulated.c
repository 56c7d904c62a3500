#include "emulator/device_emulated.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/cpus.h"
#include "common/base/text.h"
#include "emulator/object.h"
#include "support/remove_tree.h"

#define MODEL "emulator"

struct device {
    struct mf_device base; /* must be the first member */
    struct mf_known known;
    const struct mf_flavour *flavour;
    uint64_t seed, launches;
    char folder[PATH_MAX / 4];
    char why[MF_EMULATOR_WHY_MAX + 128];
};

struct mf_module {
    struct mf_object *object;
};

static struct device *device_of(struct mf_device *d)
{
    return (struct device *)d;
}

/* ---- compiling ---- */

static uint64_t hash_of(const struct mf_code *c)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < c->n_defines + 1; i++) {
        const char *s = i == 0 ? c->source : c->defines[i - 1];
        do
            h = (h ^ (unsigned char)*s) * 0x100000001b3u;
        while (*s++);
    }
    return h;
}

static void path_of(const struct device *d, const struct mf_code *c, char path[PATH_MAX])
{
    mf_format(path, PATH_MAX, "%s/%s-%016llx.so", d->folder, c->source, (unsigned long long)hash_of(c));
}

static int start(const struct device *d, const struct mf_code *c, const char *path, pid_t *ret)
{
    char options[MF_CODE_DEFINES_MAX * (sizeof(c->defines[0]) + 3) + 1];
    size_t n = 0;

    options[0] = '\0';
    for (size_t i = 0; i < c->n_defines; i++)
        n += (size_t)snprintf(options + n, sizeof(options) - n, " -D%s", c->defines[i]);
    const struct mf_object_build b = {d->folder, MF_SOURCE_DIR "/kernels/gpu/src", c->source, d->flavour,
                                      options};
    return mf_object_start(&b, path, ret);
}

static void read_log(const char *path, char why[MF_CODE_WHY_MAX])
{
    char log[PATH_MAX + 8];
    mf_format(log, sizeof(log), "%s.log", path);
    _cleanup_(mf_fclosep) FILE *f = fopen(log, "re");
    size_t n = f ? fread(why, 1, MF_CODE_WHY_MAX - 1, f) : 0;
    why[n] = '\0';
}

static bool is_started(char (*paths)[PATH_MAX], size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (strcmp(paths[j], paths[i]) == 0)
            return true;
    }
    return false;
}

static int compile(struct mf_device *base, const struct mf_code *codes, size_t n, char (*paths)[PATH_MAX],
                   char (*whys)[MF_CODE_WHY_MAX])
{
    const struct device *d = device_of(base);
    int at_once = mf_cpus_allowed();
    _cleanup_(mf_freep) pid_t *children = calloc(n + 1, sizeof(*children));
    _cleanup_(mf_freep) void *own = paths ? NULL : calloc(n + 1, PATH_MAX);
    int made = 0;

    if (!children || (!paths && !own))
        return -ENOMEM;
    if (!paths)
        paths = own;
    /* Keeps up to at_once compilers running: starts job i and waits for job i - at_once. If several codes
     * have the same path, it is built once. */
    for (size_t i = 0; i < n + (size_t)at_once; i++) {
        if (i < n) {
            path_of(d, &codes[i], paths[i]);
            if (access(paths[i], R_OK) != 0 && !is_started(paths, i))
                (void)start(d, &codes[i], paths[i], &children[i]);
        }
        if (i < (size_t)at_once)
            continue;
        size_t done = i - (size_t)at_once;
        if (children[done] > 0)
            (void)mf_object_finish(children[done]);
        if (access(paths[done], R_OK) == 0) {
            made++;
            continue;
        }
        if (whys)
            read_log(paths[done], whys[done]);
        paths[done][0] = '\0';
    }
    return made;
}

/* ---- modules ---- */

static struct mf_module *module_unload(struct mf_device *d, struct mf_module *m)
{
    (void)d;
    if (m)
        (void)mf_object_unload(m->object);
    free(m);
    return NULL;
}

static int module_load(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret)
{
    struct mf_module *m = calloc(1, sizeof(*m));

    if (!m)
        return -ENOMEM;
    int r = mf_object_load(path, why, why_cap, &m->object);
    if (r < 0) {
        (void)module_unload(d, m);
        return r;
    }
    *ret = m;
    return 0;
}

static int module_function(struct mf_device *d, struct mf_module *m, const char *name, void **ret)
{
    (void)d;
    *ret = mf_object_find(m->object, name);
    return *ret ? 0 : -ENOENT;
}

static int module_launch(struct mf_device *base, void *function, const struct mf_grid *grid,
                         const void *block, size_t bytes, void *stream)
{
    struct device *d = device_of(base);
    const struct mf_object_function *f = function;
    uint64_t turn = d->launches++;
    uintptr_t pc;
    const struct mf_emulator_launch l = {
        .module = &f->object->module,
        .call = f->kernel->call,
        .wave_lanes = d->flavour->wave_lanes,
        .grid = {grid->x, grid->y, grid->z},
        .block = {grid->block, 1, 1},
        .lds = grid->shared,
        .arguments = block,
        .seed = turn % 3 == 2 ? d->seed + turn : turn % 3,
        .known = &d->known,
    };

    (void)stream;
    if (bytes != f->kernel->bytes) {
        mf_format(d->why, sizeof(d->why), "%s takes %zu bytes of arguments, not %zu", f->kernel->name,
                  (size_t)f->kernel->bytes, bytes);
        return -EINVAL;
    }
    int r = mf_emulator_run(&l, d->why, &pc);
    if (r == -EFAULT)
        mf_object_add_line(f->object, pc, d->why, sizeof(d->why));
    return r;
}

/* ---- memory and time ---- */

static void *device_alloc(struct mf_device *base, size_t bytes)
{
    size_t whole = (bytes + 63) / 64 * 64;
    void *p = bytes > 0 ? aligned_alloc(64, whole) : NULL;

    if (p && mf_known_add(&device_of(base)->known, p, bytes, true) < 0)
        abort();
    return p ? memset(p, 0, whole) : NULL;
}

static void device_release(struct mf_device *base, void *memory, size_t bytes)
{
    (void)bytes;
    mf_known_remove(&device_of(base)->known, memory);
    free(memory);
}

static int device_copy(struct mf_device *base, void *to, const void *from, size_t bytes)
{
    (void)base;
    memmove(to, from, bytes);
    return 0;
}

/* The emulator has no meaningful speed, so every launch takes one millisecond. */
static int device_time(struct mf_device *base, mf_launch_fn launch, void *context, int n, double *ret_us)
{
    int r = 0;

    (void)base;
    for (int i = 0; i < n && r == 0; i++)
        r = launch(context, i);
    *ret_us = 1000.0 * n;
    return r;
}

/* ---- the device ---- */

void mf_device_emulated_allow(struct mf_device *d, const void *memory, size_t bytes, bool writable)
{
    if (!memory)
        mf_known_forget(&device_of(d)->known);
    else if (mf_known_add(&device_of(d)->known, memory, bytes, writable) < 0)
        abort();
}

const char *mf_device_emulated_why(const struct mf_device *d)
{
    return strcmp(d->info.model, MODEL) == 0 ? ((const struct device *)d)->why : "";
}

static void free_device(struct mf_device *base)
{
    struct device *d = device_of(base);

    (void)remove_tree(d->folder);
    mf_known_release(&d->known);
    free(d);
}

static const struct mf_device_ops ops = {
    .kind = "hip",
    .own_memory = true,
    .free = free_device,
    .alloc = device_alloc,
    .release = device_release,
    .copy = device_copy,
    .time = device_time,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_function = module_function,
    .module_launch = module_launch,
    .compile = compile,
};

int mf_device_emulated_open(const char *gfx, int cores, uint64_t seed, struct mf_device **ret)
{
    const struct mf_flavour *flavour = mf_flavour_find(gfx);

    if (!flavour)
        return -EINVAL;
    struct device *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->base = (struct mf_device){
        .ops = &ops,
        .info = {
            .class = {.cu_num = cores}, .model = MODEL, .memory_bytes = UINT64_C(1) << 30, .cores = cores}};
    mf_format(d->base.info.class.gfx, sizeof(d->base.info.class.gfx), "%s", gfx);
    d->flavour = flavour;
    d->seed = seed + 2; /* seeds 0 and 1 select the ascending and descending order */
    mf_format(d->folder, sizeof(d->folder), "%s/moefarm-emulator-XXXXXX",
              getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int r = mkdtemp(d->folder) ? mf_object_prepare(d->folder) : -errno;
    if (r < 0) {
        free_device(&d->base);
        return r;
    }
    *ret = &d->base;
    return 0;
}

int mf_device_emulated_or_named(const char *gfx, int cores, uint64_t seed, struct mf_device **ret)
{
    const char *name = getenv("MOEFARM_TEST_DEVICE");
    struct mf_device *d = NULL;
    char why[512];

    if (!name)
        return mf_device_emulated_open(gfx, cores, seed, ret);
    if (mf_device_open(name, why, sizeof(why), &d) < 0) {
        printf("%s: %s\n", name, why);
        return -EINVAL;
    }
    if (strncmp(d->info.class.gfx, gfx, 3) != 0) {
        (void)mf_device_close(d);
        return -ENODEV;
    }
    *ret = d;
    return 0;
}
