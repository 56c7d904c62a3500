#include "kernels/cpu/device_cpu.h"

#include "kernels/cpu/module_cpu.h"
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#    include <cpuid.h>
#endif

#define DEFAULT_LLC (32u << 20)

/* Maps the vendor, family and model that CPUID reports to the -march name of GCC and LLVM. */
/* clang-format off */
static const struct march {
    const char *vendor;
    unsigned family, model_from, model_to;
    const char *name;
} marches[] = {
    {"AuthenticAMD", 0x17, 0x00, 0x2f, "znver1"},
    {"AuthenticAMD", 0x17, 0x30, 0xff, "znver2"},
    {"AuthenticAMD", 0x19, 0x00, 0x0f, "znver3"},
    {"AuthenticAMD", 0x19, 0x10, 0x1f, "znver4"},
    {"AuthenticAMD", 0x19, 0x20, 0x5f, "znver3"},
    {"AuthenticAMD", 0x19, 0x60, 0xaf, "znver4"},
    {"AuthenticAMD", 0x1a, 0x00, 0xff, "znver5"},
    {"GenuineIntel", 0x06, 0x3c, 0x3c, "haswell"},
    {"GenuineIntel", 0x06, 0x3f, 0x3f, "haswell"},
    {"GenuineIntel", 0x06, 0x45, 0x46, "haswell"},
    {"GenuineIntel", 0x06, 0x3d, 0x3d, "broadwell"},
    {"GenuineIntel", 0x06, 0x47, 0x47, "broadwell"},
    {"GenuineIntel", 0x06, 0x4f, 0x4f, "broadwell"},
    {"GenuineIntel", 0x06, 0x56, 0x56, "broadwell"},
    {"GenuineIntel", 0x06, 0x4e, 0x4e, "skylake"},
    {"GenuineIntel", 0x06, 0x5e, 0x5e, "skylake"},
    {"GenuineIntel", 0x06, 0x55, 0x55, "skylake-avx512"},
    {"GenuineIntel", 0x06, 0x6a, 0x6a, "icelake-server"},
    {"GenuineIntel", 0x06, 0x6c, 0x6c, "icelake-server"},
    {"GenuineIntel", 0x06, 0x7d, 0x7e, "icelake-client"},
    {"GenuineIntel", 0x06, 0x8c, 0x8d, "tigerlake"},
    {"GenuineIntel", 0x06, 0x8e, 0x8e, "skylake"},
    {"GenuineIntel", 0x06, 0x9e, 0x9e, "skylake"},
    {"GenuineIntel", 0x06, 0x8f, 0x8f, "sapphirerapids"},
    {"GenuineIntel", 0x06, 0xcf, 0xcf, "emeraldrapids"},
    {"GenuineIntel", 0x06, 0xad, 0xae, "graniterapids"},
    {"GenuineIntel", 0x06, 0x97, 0x97, "alderlake"},
    {"GenuineIntel", 0x06, 0x9a, 0x9a, "alderlake"},
    {"GenuineIntel", 0x06, 0xb7, 0xb7, "raptorlake"},
};
/* clang-format on */

#if defined(__x86_64__)
static const char *known_march(void)
{
    unsigned a, b, c, d;
    char vendor[13] = {0};

    if (!__get_cpuid(0, &a, &b, &c, &d))
        return NULL;
    memcpy(vendor, &b, 4);
    memcpy(vendor + 4, &d, 4);
    memcpy(vendor + 8, &c, 4);
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return NULL;
    unsigned family = (a >> 8) & 0xf, model = (a >> 4) & 0xf;
    if (family == 0xf || family == 6)
        model |= (a >> 12) & 0xf0;
    if (family == 0xf)
        family += (a >> 20) & 0xff;
    for (size_t i = 0; i < sizeof(marches) / sizeof(marches[0]); i++) {
        const struct march *m = &marches[i];
        if (strcmp(m->vendor, vendor) == 0 && m->family == family && model >= m->model_from &&
            model <= m->model_to)
            return m->name;
    }
    return NULL;
}

/* Returns the x86-64 psABI level that an unknown CPU supports. */
static const char *psabi_level(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return "x86_64_v4";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "x86_64_v3";
    return __builtin_cpu_supports("sse4.2") ? "x86_64_v2" : "x86_64";
}
#else
static const char *known_march(void)
{
    return NULL;
}

static const char *psabi_level(void)
{
    return "generic";
}
#endif

static void read_model(char *buf, size_t cap)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "re");

    (void)snprintf(buf, cap, "unknown CPU");
    if (!f)
        return;
    while (fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon += 1 + (colon[1] == ' ');
        colon[strcspn(colon, "\n")] = '\0';
        (void)snprintf(buf, cap, "%s", colon);
        break;
    }
    (void)fclose(f);
}

static uint64_t read_llc_bytes(void)
{
    uint64_t best = 0;

    for (int i = 0; i < 8; i++) {
        char path[80];
        unsigned long long size = 0;
        char unit = '\0';
        (void)snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *f = fopen(path, "re");
        if (!f)
            break;
        if (fscanf(f, "%llu%c", &size, &unit) >= 1) {
            size <<= unit == 'K' ? 10 : unit == 'M' ? 20 : 0;
            best = size > best ? size : best;
        }
        (void)fclose(f);
    }
    if (best == 0) {
        long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
        best = l3 > 0 ? (uint64_t)l3 : l2 > 0 ? (uint64_t)l2 : DEFAULT_LLC;
    }
    return best;
}

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

static void *cpu_alloc(struct mf_device *d, size_t bytes)
{
    (void)d;
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    void *p = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* fewer TLB misses, if the system allows huge pages */
    if (bytes >= (4u << 20))
        (void)madvise(p, whole_pages(bytes), MADV_HUGEPAGE);
    return p;
}

static void cpu_release(struct mf_device *d, void *memory, size_t bytes)
{
    (void)d;
    if (memory)
        (void)munmap(memory, whole_pages(bytes));
}

static int cpu_copy(struct mf_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
    return 0;
}

/* Wakes the threads and pins the caller before the first clock reading, so that the sample includes neither
 * the wake-up nor the pinning. The vDSO serves clock_gettime without a system call. */
static int cpu_time(struct mf_device *d, mf_launch_fn launch, void *context, int n, double *ret_us)
{
    struct timespec from, to;
    cpu_set_t before;
    int r = 0;

    (void)d;
    mf_pool_pin_caller(&before);
    mf_pool_wake();
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < n && r >= 0; i++)
        r = launch(context, i);
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    if (CPU_COUNT(&before) > 0)
        (void)sched_setaffinity(0, sizeof(before), &before);
    if (r < 0)
        return r;
    *ret_us = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) * 1e-3;
    return 0;
}

/* Does nothing, because launches on the CPU are synchronous. */
static int cpu_no_op(struct mf_device *d)
{
    (void)d;
    return 0;
}

static void cpu_free(struct mf_device *d)
{
    free(d);
}

static const struct mf_device_ops cpu_ops = {
    .kind = "cpu",
    .free = cpu_free,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .copy = cpu_copy,
    .time = cpu_time,
    .module_load = mf_module_cpu_load,
    .module_unload = mf_module_cpu_unload,
    .module_function = mf_module_cpu_function,
    .module_launch = mf_module_cpu_launch,
    .enter = cpu_no_op,
    .sync = cpu_no_op,
};

static void describe(struct mf_device_info *info)
{
    const char *march = known_march();

    *info = (struct mf_device_info){.cores = mf_pool_threads(), .llc_bytes = read_llc_bytes()};
    (void)snprintf(info->class.gfx, sizeof(info->class.gfx), "cpu-%s", march ? march : psabi_level());
    info->class.cu_num = info->cores;
    read_model(info->model, sizeof(info->model));
    (void)snprintf(info->isa, sizeof(info->isa), "%s", mf_isa_name(mf_isa_best()));
    (void)snprintf(info->compiler, sizeof(info->compiler), "gcc %s", __VERSION__);
    info->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int mf_device_cpu_open(const struct mf_device_open_options *how, struct mf_device **ret)
{
    const struct mf_device_info *known = how->known;
    struct mf_device *d = calloc(1, sizeof(*d));
    struct mf_cpu_peaks peaks = {0};
    int r;

    if (!d)
        return -ENOMEM;
    mf_isa_refresh();
    d->ops = &cpu_ops;
    describe(&d->info);
    if (known) {
        peaks = (struct mf_cpu_peaks){known->peak_gflops_bf16, known->peak_gflops_f32, known->mem_read_gbs,
                                      known->gap_us};
    } else if (!how->guest) {
        r = mf_cpu_peaks_measure(mf_isa_best(), d->info.llc_bytes, &peaks);
        if (r < 0) {
            free(d);
            return r;
        }
    }
    d->info.peak_gflops_bf16 = peaks.bf16_gflops;
    d->info.peak_gflops_f32 = peaks.f32_gflops;
    d->info.mem_read_gbs = peaks.mem_read_gbs;
    d->info.gap_us = peaks.gap_us;
    *ret = d;
    return 0;
}
