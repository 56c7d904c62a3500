#include "emulator/object.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define COMMAND_MAX 16384

extern char **environ;

static const struct mf_flavour flavours[] = {
    {"sm_89", "", 32},
    {"sm_90", "", 32}, /* only the instructions that sm_90 shares with sm_89 */
    {"gfx90a", "-D__gfx90a__", 64},
    {"gfx942", "-D__gfx942__", 64},
};

const struct mf_flavour *mf_flavour_find(const char *gfx)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(flavours); i++) {
        if (strcmp(flavours[i].gfx, gfx) == 0)
            return &flavours[i];
    }
    return NULL;
}

/* ---- compiling ---- */

#define FLAGS "-std=c++17 -O1 -g1 -w -fPIC -fvisibility=hidden -ffp-contract=off"

static int start(const char *command, pid_t *ret)
{
    char *const argv[] = {(char *)"sh", (char *)"-c", (char *)command, NULL};
    return -posix_spawn(ret, "/bin/sh", NULL, NULL, argv, environ);
}

bool mf_object_finish(pid_t child)
{
    int status;
    pid_t r;

    while ((r = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    return r == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int mf_object_prepare(const char *folder)
{
    char command[COMMAND_MAX];
    pid_t child;

    mf_format(command, sizeof(command), "%s " FLAGS " -c -o %s/tsan_hooks.o %s/tests/emulator/tsan_hooks.cc",
              MF_EMULATOR_CXX, folder, MF_SOURCE_DIR);
    int r = start(command, &child);
    return r < 0 ? r : mf_object_finish(child) ? 0 : -ENOENT;
}

/* Runs the preprocessor to list the kernels, which __global__ marks, and then the compiler. The compiler
 * turns loads and stores into calls of the hooks in tsan_hooks.cc; libtsan is not linked. */
int mf_object_start(const struct mf_object_build *b, const char *path, pid_t *ret)
{
    char of[COMMAND_MAX / 2], command[COMMAND_MAX];

    mf_format(of, sizeof(of),
              FLAGS
              " -DMF_EMULATOR=%u %s -DMF_EMULATOR_SOURCE='\"%s\"'%s -I%s -I%s/hopper -I%s/move -I%s/ops "
              "-I%s/tests/emulator",
              b->flavour->wave_lanes, b->flavour->define, b->source, b->options, b->sources, b->sources,
              b->sources, b->sources, MF_SOURCE_DIR);
    mf_format(
        command, sizeof(command),
        "exec 2>%s.log; kernels=$(%s %s -E -P %s/tests/emulator/unit.cc | sed -n 's/^extern \"C\" "
        "__attribute__((visibility(\"default\"))) void.*[ )]\\([a-z_0-9]*\\)(const .*/X(\\1)/p' | tr -d "
        "'\\n') && "
        "%s %s -DMF_EMULATOR_KERNELS=\"$kernels\" -fsanitize=thread --param "
        "tsan-instrument-func-entry-exit=0 -fno-extern-tls-init -c -o %s.o %s/tests/emulator/unit.cc && "
        "%s -shared -Wl,-Bsymbolic -nodefaultlibs -o %s.part %s.o %s/tsan_hooks.o -lm -lgcc -lc "
        "&& mv "
        "%s.part "
        "%s",
        path, MF_EMULATOR_CXX, of, MF_SOURCE_DIR, MF_EMULATOR_CXX, of, path, MF_SOURCE_DIR, MF_EMULATOR_CXX,
        path, path, b->folder, path, path);
    return start(command, ret);
}

/* ---- loading ---- */

static int take_segments(struct dl_phdr_info *info, size_t size, void *context)
{
    struct mf_object *o = context;
    (void)size;
    if (strcmp(info->dlpi_name, o->path) != 0)
        return 0;
    o->module.image = info->dlpi_addr;
    o->module.shared = info->dlpi_tls_data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD)
            o->module.image_end = MF_MAX(o->module.image_end, info->dlpi_addr + p->p_vaddr + p->p_memsz);
    }
    return 1;
}

static int list_functions(struct mf_object *o, const struct mf_emulator_kernel *kernels)
{
    size_t n = 0;

    while (kernels[n].name)
        n++;
    o->functions = calloc(n + 1, sizeof(*o->functions));
    if (!o->functions)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        o->functions[i] = (struct mf_object_function){o, &kernels[i]};
    return 0;
}

static int open_object(struct mf_object *o, char *why, size_t why_cap)
{
    mf_emulator_lds_fn lds;
    const struct mf_emulator_kernel *kernels;

    o->handle = dlopen(o->path, RTLD_NOW | RTLD_LOCAL);
    if (!o->handle) {
        mf_format(why, why_cap, "%s", dlerror());
        return -ENOENT;
    }
    *(void **)&o->module.bind = dlsym(o->handle, "mf_emulator_bind");
    *(void **)&lds = dlsym(o->handle, "mf_emulator_lds");
    kernels = dlsym(o->handle, "mf_emulator_kernels");
    if (!o->module.bind || !lds || !kernels || !kernels->name) {
        mf_format(why, why_cap, "%s contains no kernels", o->path);
        return -ENOEXEC;
    }
    /* thread-local variables have no address before their first use */
    unsigned char *at = lds();
    (void)dl_iterate_phdr(take_segments, o);
    o->module.lds_at = (size_t)(at - o->module.shared);
    return list_functions(o, kernels);
}

int mf_object_load(const char *path, char *why, size_t why_cap, struct mf_object **ret)
{
    struct mf_object *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;
    mf_format(o->path, sizeof(o->path), "%s", path);
    int r = open_object(o, why, why_cap);
    if (r < 0) {
        (void)mf_object_unload(o);
        return r;
    }
    *ret = o;
    return 0;
}

struct mf_object *mf_object_unload(struct mf_object *o)
{
    if (o && o->handle)
        (void)dlclose(o->handle);
    if (o)
        free(o->functions);
    free(o);
    return NULL;
}

struct mf_object_function *mf_object_find(struct mf_object *o, const char *name)
{
    for (struct mf_object_function *f = o->functions; f->kernel; f++) {
        if (strcmp(f->kernel->name, name) == 0)
            return f;
    }
    return NULL;
}

void mf_object_add_line(const struct mf_object *o, uintptr_t pc, char *why, size_t why_cap)
{
    char command[PATH_MAX + 64], line[128];

    if (pc == 0)
        return;
    mf_format(command, sizeof(command), "addr2line -i -s -e %s %#zx", o->path, (size_t)pc - 1);
    FILE *f = popen(command, "re");
    while (f && fgets(line, sizeof(line), f)) {
        size_t n = strlen(why);
        line[strcspn(line, " \n")] = '\0';
        if (strstr(line, ".hip:")) {
            mf_format(why + n, why_cap - n, " (%s)", line);
            break;
        }
    }
    if (f)
        (void)pclose(f);
}
