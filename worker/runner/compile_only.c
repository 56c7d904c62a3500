#include "worker/runner/compile_only.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/text.h"
#include "kernels/gpu/host/hip_open.h"
#include "kernels/pipeline/fmoe_on_device.h"
#include "measure/session/precompile.h"
#include "worker/runner/shapes_file.h"

struct target {
    struct mf_compiler compiler;
    struct mf_device_info info; /* has only the fields that enumeration needs */
};

/* Device classes of whole chips. If --arch omits the number of compute units, the number in this table is
 * used. */
static const struct mf_device_class full_chips[] = {
    {"sm_90", 132}, {"gfx90a", 104}, {"gfx942", 304}, {"gfx950", 256}};

static int parse_arch(const char *text, struct target *ret)
{
    static const char *const vendors[] = {"nvidia", "amd"};
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    struct target t = {0};
    for (size_t i = 0; i < MF_ARRAY_LEN(vendors); i++) {
        size_t n = strlen(vendors[i]);
        if (strncmp(text, vendors[i], n) == 0 && text[n] == ':')
            t.compiler.vendor = vendors[i];
    }
    const char *name = t.compiler.vendor ? strchr(text, ':') + 1 : text;
    int cu_num = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(full_chips); i++)
        cu_num = strcmp(full_chips[i].gfx, name) == 0 ? full_chips[i].cu_num : cu_num;
    mf_format(class, sizeof(class), cu_num ? "%s/%d" : "%s", name, cu_num);
    if (!t.compiler.vendor || mf_device_class_parse(class, &t.info.class) < 0) {
        (void)fprintf(
            stderr,
            "moefarm-worker: --arch: expected nvidia:<gfx>[/<compute units>] or amd:<gfx>[/<compute "
            "units>], for example nvidia:sm_90/132, not '%s'\n",
            text);
        return -EINVAL;
    }
    t.info.cores = t.info.class.cu_num;
    mf_code_arch(&t.compiler, t.info.class.gfx);
    *ret = t;
    return 0;
}

static size_t count_made(const struct target *t, const struct mf_code *codes, size_t n)
{
    char path[PATH_MAX];
    size_t made = 0;
    for (size_t i = 0; i < n; i++)
        made += mf_code_path(&t->compiler, &codes[i], path) == 0 && access(path, R_OK) == 0;
    return made;
}

static void print_failure(const struct mf_code *c, const char *why)
{
    printf("  failed: %s", c->source);
    for (size_t i = 0; i < c->n_defines; i++)
        printf(" -D%s", c->defines[i]);
    printf("\n    ");
    for (; *why; why++)
        printf(*why == '\n' && why[1] ? "\n    " : *why == '\n' ? "" : "%c", *why);
    printf("\n");
}

/* Compiles the code objects and prints a summary and the errors. `what` labels the summary; n_steps is the
 * number of steps that use the code objects. Returns the number of failures. */
static int make(const struct target *t, const char *what, const struct mf_code *codes, size_t n,
                size_t n_steps)
{
    _cleanup_(mf_freep) char(*whys)[MF_CODE_WHY_MAX] = calloc(n + 1, sizeof(*whys));
    int64_t start = mf_now_ms();
    if (!whys)
        return -ENOMEM;
    size_t before = count_made(t, codes, n);
    int made = mf_code_make(&t->compiler, codes, n, mf_cpus_allowed(), NULL, whys);
    size_t failed = n - (size_t)made;
    printf("%s: %zu steps, %zu code objects: %zu compiled in %.1f s, %zu cached, %zu failed\n", what, n_steps,
           n, (size_t)made - before, (double)(mf_now_ms() - start) / 1000, before, failed);
    for (size_t i = 0; i < n; i++) {
        if (whys[i][0])
            print_failure(&codes[i], whys[i]);
    }
    (void)fflush(stdout);
    return (int)failed;
}

static int make_shape(const struct target *t, const struct mf_shape *shape, const char *families)
{
    _cleanup_(mf_ahead_release) struct mf_ahead ahead = {.device = &t->info, .kind = "hip", .shape = shape};
    char text[MF_SHAPE_TEXT_MAX];
    size_t n_steps;
    mf_shape_print(shape, text);
    int r = mf_ahead_add_shape(&ahead, *families ? families : NULL, &n_steps);
    return r < 0 ? r : make(t, text, ahead.codes, ahead.n, n_steps);
}

int mf_compile_only(const struct mf_compile_only *o)
{
    _cleanup_(mf_freep) struct mf_shape *shapes = NULL;
    struct target t;
    char why[MF_REASON_MAX];
    size_t n = 0;
    int failed = 0;
    if (parse_arch(o->arch, &t) < 0 || mf_shapes_file_read(o->shapes, &shapes, &n, &failed) < 0)
        return 2;
    if (mf_code_version(t.compiler.vendor, t.compiler.version, why, sizeof(why)) < 0) {
        (void)fprintf(stderr, "moefarm-worker: %s\n", why);
        return 1;
    }
    const struct mf_code own[] = {mf_device_hip_code(t.info.class.gfx), mf_on_device_code()};
    int r = make(&t, "device kernels", own, MF_ARRAY_LEN(own), 0);
    for (size_t i = 0; i < n && r >= 0; i++) {
        failed += r;
        r = make_shape(&t, &shapes[i], o->families);
    }
    if (r < 0)
        (void)fprintf(stderr, "moefarm-worker: %s\n", strerror(-r));
    return r != 0 || failed > 0;
}
