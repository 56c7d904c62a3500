#include "emulator/device_emulated.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "remove_tree.h"

#define COMMAND_MAX 8192

extern char **environ;

struct device {
    struct mf_device base; /* first */
    struct mf_known known;
    uint32_t wave_lanes;
    const char *define; /* that says the architecture, as its compiler has it */
    uint64_t seed, launches;
    char folder[PATH_MAX / 4];
    char why[MF_EMULATOR_WHY_MAX + 128];
};

struct mf_module {
    struct mf_emulator_module emulated;
    void *object;
    char path[PATH_MAX];
};

static struct device *device_of(struct mf_device *d)
{
    return (struct device *)d;
}

/* ---- compiling ---- */

static const char flags[] = "-std=c++17 -O1 -g1 -w -fPIC -fvisibility=hidden -ffp-contract=off";

static int start(const char *command, pid_t *ret)
{
    char *const argv[] = {(char *)"sh", (char *)"-c", (char *)command, NULL};
    return -posix_spawn(ret, "/bin/sh", NULL, NULL, argv, environ);
}

static bool finish(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What every object has beside its kernel; -ENOENT: no compiler. */
static int compile_beside(const struct device *d)
{
    char command[COMMAND_MAX];
    pid_t child;

    mf_say(command, sizeof(command), "%s %s -c -o %s/beside.o %s/tests/emulator/beside.cc", MF_EMULATOR_CXX,
           flags, d->folder, MF_SOURCE_DIR);
    int r = start(command, &child);
    return r < 0 ? r : finish(child) ? 0 : -ENOENT;
}

static uint64_t hash_of(const struct mf_code *c)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < c->n_defines + 2; i++) {
        const char *s = i == 0 ? c->source : i == 1 ? c->function : c->defines[i - 2];
        do
            h = (h ^ (unsigned char)*s) * 0x100000001b3u;
        while (*s++);
    }
    return h;
}

static void path_of(const struct device *d, const struct mf_code *c, char path[PATH_MAX])
{
    mf_say(path, PATH_MAX, "%s/%s-%016llx.so", d->folder, c->source, (unsigned long long)hash_of(c));
}

/* Loads and stores become calls of beside.cc's hooks; without the option's own library. */
static void command_of(const struct device *d, const struct mf_code *c, const char *path,
                       char command[COMMAND_MAX])
{
    char defines[MF_CODE_DEFINES_MAX * (sizeof(c->defines[0]) + 3) + 1];
    size_t n = 0;

    defines[0] = '\0';
    for (size_t i = 0; i < c->n_defines; i++)
        n += (size_t)snprintf(defines + n, sizeof(defines) - n, " -D%s", c->defines[i]);
    mf_say(
        command, COMMAND_MAX,
        "exec 2>%s.log; %s %s -fsanitize=thread --param tsan-instrument-func-entry-exit=0 "
        "-fno-extern-tls-init "
        "-DMF_EMULATOR=%u %s -DMF_EMULATOR_FUNCTION=%s -DMF_EMULATOR_SOURCE='\"%s\"'%s -I%s/tests/emulator "
        "-I%s/kernels/hip -c -o %s.o %s/tests/emulator/unit.cc && "
        "%s -shared -Wl,-Bsymbolic -nodefaultlibs -o %s.part %s.o %s/beside.o -lm -lgcc -lc && mv %s.part %s",
        path, MF_EMULATOR_CXX, flags, d->wave_lanes, d->define, c->function, c->source, defines,
        MF_SOURCE_DIR, MF_SOURCE_DIR, path, MF_SOURCE_DIR, MF_EMULATOR_CXX, path, path, d->folder, path,
        path);
}

static void read_log(const char *path, char why[MF_CODE_WHY_MAX])
{
    char log[PATH_MAX + 8];
    mf_say(log, sizeof(log), "%s.log", path);
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
    long at_once = sysconf(_SC_NPROCESSORS_ONLN);
    _cleanup_(mf_freep) pid_t *children = calloc(n + 1, sizeof(*children));
    int made = 0;

    if (!children)
        return -ENOMEM;
    /* The one to wait for follows behind the one to start. Two of one path are made once. */
    for (size_t i = 0; i < n + (size_t)at_once; i++) {
        char command[COMMAND_MAX];
        if (i < n) {
            path_of(d, &codes[i], paths[i]);
            command_of(d, &codes[i], paths[i], command);
            if (access(paths[i], R_OK) != 0 && !is_started(paths, i))
                (void)start(command, &children[i]);
        }
        if (i < (size_t)at_once)
            continue;
        size_t done = i - (size_t)at_once;
        if (children[done] > 0)
            (void)finish(children[done]);
        if (access(paths[done], R_OK) == 0) {
            made++;
            continue;
        }
        read_log(paths[done], whys[done]);
        paths[done][0] = '\0';
    }
    return made;
}

/* ---- modules ---- */

static int take_segments(struct dl_phdr_info *info, size_t size, void *context)
{
    struct mf_module *m = context;
    (void)size;
    if (strcmp(info->dlpi_name, m->path) != 0)
        return 0;
    m->emulated.image = info->dlpi_addr;
    m->emulated.shared = info->dlpi_tls_data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD)
            m->emulated.image_end = MF_MAX(m->emulated.image_end, info->dlpi_addr + p->p_vaddr + p->p_memsz);
    }
    return 1;
}

static struct mf_module *module_unload(struct mf_device *d, struct mf_module *m)
{
    (void)d;
    if (m->object)
        (void)dlclose(m->object);
    free(m);
    return NULL;
}

static int module_load(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret)
{
    struct mf_module *m = calloc(1, sizeof(*m));
    mf_emulator_lds_fn lds;

    if (!m)
        return -ENOMEM;
    mf_say(m->path, sizeof(m->path), "%s", path);
    m->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!m->object) {
        mf_say(why, why_cap, "%s", dlerror());
        (void)module_unload(d, m);
        return -ENOENT;
    }
    *(void **)&m->emulated.bind = dlsym(m->object, "mf_emulator_bind");
    *(void **)&m->emulated.call = dlsym(m->object, "mf_emulator_call");
    *(void **)&lds = dlsym(m->object, "mf_emulator_lds");
    /* the first use of thread-local variables is what gives them a place */
    unsigned char *at = lds();
    (void)dl_iterate_phdr(take_segments, m);
    m->emulated.lds_at = (size_t)(at - m->emulated.shared);
    *ret = m;
    return 0;
}

static int module_function(struct mf_device *d, struct mf_module *m, const char *name, void **ret)
{
    const char *own = dlsym(m->object, "mf_emulator_function");
    (void)d;
    if (!own || strcmp(own, name) != 0)
        return -ENOENT;
    *ret = m;
    return 0;
}

/* Adds where in the kernel's source an address is, past the words that it is inlined from; where binutils can say it. */
static void add_line(struct device *d, const char *path, uintptr_t pc)
{
    char command[PATH_MAX + 64], line[128];

    if (pc == 0)
        return;
    mf_say(command, sizeof(command), "addr2line -i -s -e %s %#zx", path, (size_t)pc - 1);
    FILE *f = popen(command, "re");
    while (f && fgets(line, sizeof(line), f)) {
        size_t n = strlen(d->why);
        line[strcspn(line, " \n")] = '\0';
        if (strstr(line, ".hip:")) {
            mf_say(d->why + n, sizeof(d->why) - n, " (%s)", line);
            break;
        }
    }
    if (f)
        (void)pclose(f);
}

static int module_launch(struct mf_device *base, void *function, const struct mf_grid *grid,
                         const void *block, size_t bytes)
{
    struct device *d = device_of(base);
    struct mf_module *m = function;
    uint64_t turn = d->launches++;
    uintptr_t pc;
    const struct mf_emulator_launch l = {
        .module = &m->emulated,
        .wave_lanes = d->wave_lanes,
        .grid = {grid->x, grid->y, grid->z},
        .block = {grid->block, 1, 1},
        .lds = grid->shared,
        .arguments = block,
        .seed = turn % 3 == 2 ? d->seed + turn : turn % 3,
        .known = &d->known,
    };

    (void)bytes;
    int r = mf_emulator_run(&l, d->why, &pc);
    if (r == -EFAULT)
        add_line(d, m->path, pc);
    return r;
}

/* ---- the device ---- */

void mf_device_emulated_know(struct mf_device *d, const void *memory, size_t bytes, bool writable)
{
    if (!memory)
        mf_known_forget(&device_of(d)->known);
    else if (mf_known_add(&device_of(d)->known, memory, bytes, writable) < 0)
        abort();
}

const char *mf_device_emulated_why(const struct mf_device *d)
{
    return ((const struct device *)d)->why;
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
    .free = free_device,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_function = module_function,
    .module_launch = module_launch,
    .compile = compile,
};

static const struct {
    const char *gfx, *define;
    uint32_t wave_lanes;
} flavours[] = {
    {"sm_89", "", 32},
    {"gfx90a", "-D__gfx90a__", 64},
    {"gfx942", "-D__gfx942__", 64},
};

int mf_device_emulated_open(const char *gfx, int cores, uint64_t seed, struct mf_device **ret)
{
    size_t flavour = 0;

    while (flavour < MF_ARRAY_LEN(flavours) && strcmp(flavours[flavour].gfx, gfx) != 0)
        flavour++;
    if (flavour == MF_ARRAY_LEN(flavours))
        return -EINVAL;
    struct device *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->base = (struct mf_device){.ops = &ops,
                                 .info = {.class = {.cu_num = cores}, .model = "emulator", .cores = cores}};
    mf_say(d->base.info.class.gfx, sizeof(d->base.info.class.gfx), "%s", gfx);
    d->wave_lanes = flavours[flavour].wave_lanes;
    d->define = flavours[flavour].define;
    d->seed = seed + 2; /* 0 and 1 are orders of their own */
    mf_say(d->folder, sizeof(d->folder), "%s/moefarm-emulator-XXXXXX",
           getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int r = mkdtemp(d->folder) ? compile_beside(d) : -errno;
    if (r < 0) {
        free_device(&d->base);
        return r;
    }
    *ret = &d->base;
    return 0;
}
