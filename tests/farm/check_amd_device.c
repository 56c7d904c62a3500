/* Tests the AMD module of kernels/gpu/host/device_hip.c over a fake HIP runtime (emulator/hip/runtime.h):
 * every call of struct mf_device_ops, the device description, refused calls, and failures that end the
 * process. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/host/hip_open.h"
#include "kernels/gpu/src/args.h"
#include "support/kernels/hip_release.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"

#define EXIT_FAULT 86 /* exit code of device_hip.c for a failed device */
#define ROWS       4
#define COLS       64

static char folder[] = "/tmp/check_amd_device.XXXXXX", plan[64];
static struct mf_device *device;

/* ---- a kernel with a visible effect: it zeroes rows of y ---- */

struct zeroing {
    struct mf_device *device;
    struct mf_hip_function function;
    uint16_t *y;
    struct mf_grid grid;
    int calls, fails_at; /* fails_at: the launch that returns -EDOM, from 1 */
    int (*more)(struct zeroing *z);
};

static struct mf_code zero_code(void)
{
    struct mf_code code = {.source = "zero.hip", .function = "mf_zero"};

    mf_code_define(&code, "MF_COLS=%d", COLS);
    mf_code_define(&code, "MF_THREADS=64");
    return code;
}

static struct zeroing zeroing_of(void)
{
    struct zeroing z = {.device = device, .grid = {1, 1, 1, 64, 0, false}};
    uint16_t ones[ROWS * COLS];
    const struct mf_code code = zero_code();

    memset(ones, 0x11, sizeof(ones));
    z.y = device->ops->alloc(device, sizeof(ones));
    ck_assert_ptr_nonnull(z.y);
    ck_assert_int_eq(device->ops->copy(device, z.y, ones, sizeof(ones)), 0);
    ck_assert_int_eq(mf_hip_function_open(device, &code, &z.function), 0);
    return z;
}

/* Launch i zeroes row i. */
static int zero_row(void *context, int index)
{
    struct zeroing *z = context;
    const struct mf_hip_combine_args args = {.y = z->y + index * COLS, .token = 1};

    if (++z->calls == z->fails_at)
        return -EDOM;
    int r = z->more ? z->more(z) : 0;
    return r < 0 ? r : mf_hip_launch(&z->function, &z->grid, &args, sizeof(args));
}

/* Bit mask of the rows that are zero. */
static int zero_rows(const struct zeroing *z)
{
    uint16_t y[ROWS * COLS];
    int rows = 0;

    ck_assert_int_eq(device->ops->copy(device, y, z->y, sizeof(y)), 0);
    for (int r = 0; r < ROWS; r++) {
        const uint16_t first = y[r * COLS];
        ck_assert(first == 0 || first == 0x1111);
        for (int c = 0; c < COLS; c++)
            ck_assert_uint_eq(y[r * COLS + c], first);
        rows |= (first == 0) << r;
    }
    return rows;
}

static void release(struct zeroing *z)
{
    mf_hip_function_close(&z->function);
    device->ops->release(device, z->y, ROWS * COLS * 2);
}

/* ---- opening ---- */

static void open_device(void)
{
    char why[256];

    ck_assert_msg(mf_device_open("hip:amd:0", why, sizeof(why), &device) == 0, "%s", why);
}

static void close_device(void)
{
    device = mf_device_close(device);
}

MF_TEST(describes_the_device)
{
    const struct mf_device_info *i = &device->info;

    ck_assert_str_eq(i->class.gfx, "gfx90a"); /* without ":sramecc+:xnack-" */
    ck_assert_int_eq(i->class.cu_num, 2);
    ck_assert_str_eq(i->model, "gfx90a of the tests' emulator");
    ck_assert_ptr_nonnull(strstr(i->driver, "HIP 6.0.32831"));
    ck_assert_str_eq(i->identity, "0000:e0:00.0");
    ck_assert_uint_eq(i->lds_bytes, 65536);
    ck_assert_uint_eq(i->memory_bytes, UINT64_C(4) << 30);
    ck_assert_double_eq(i->clock_mhz, 1700);
    ck_assert_double_eq(i->memory_mhz, 1600);
    ck_assert(i->mem_read_gbs > 0 && i->peak_gflops_bf16 > 0 && i->peak_gflops_fp8 == 0 && i->gap_us > 0);
    ck_assert(!i->simulated);
}

/* The compiler name distinguishes releases whose version call returns the same: they generate different code,
 * and the code cache is keyed by it. */
MF_TEST(names_the_compiler)
{
    ck_assert_str_eq(device->info.compiler, "hiprtc 9.0 libamdhip64.so.6.0.emulated");
}

static const struct mf_test_group tests_without_device = {.timeout_s = 60};

/* The L2 size that the runtime reports for CDNA 3 is that of one die; llc_bytes is the larger Infinity Cache.
 */
MF_TEST(reports_the_cache_size, .rows = 2, .group = &tests_without_device)
{
    char why[256];

    ck_assert_int_eq(setenv("FAKE_HIP_ARCH", _i == 0 ? "gfx90a" : "gfx942", 1), 0);
    ck_assert_msg(mf_device_open("hip:amd:0", why, sizeof(why), &device) == 0, "%s", why);
    ck_assert_uint_eq(device->info.llc_bytes, _i == 0 ? 16 << 10 : 256 << 20);
    close_device();
}

MF_TEST(opens_with_known_info)
{
    const struct mf_device_info known = device->info;
    struct mf_device *again;
    char why[256];

    ck_assert_int_eq(mf_device_open_with("hip:amd:0", &(struct mf_device_open_options){.known = &known}, why,
                                         sizeof(why), &again),
                     0);
    ck_assert_mem_eq(&again->info, &known, sizeof(known));
    mf_device_close(again);
}

MF_TEST(rejects_a_missing_device)
{
    struct mf_device *other;
    char why[256];

    ck_assert_int_eq(mf_device_open("hip:amd:1", why, sizeof(why), &other), -EINVAL);
    ck_assert_str_eq(why, "hip:amd:1: the runtime reports 1 device");
}

/* ---- memory ---- */

MF_TEST(allocates_zeroed_memory)
{
    static const size_t sizes[] = {1, 63, 4096, 100000, 3 << 20};
    unsigned char *at[MF_ARRAY_LEN(sizes)];
    _cleanup_(mf_freep) unsigned char *here = malloc(3 << 20);

    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++) {
        at[i] = device->ops->alloc(device, sizes[i]);
        ck_assert(at[i] && (uintptr_t)at[i] % 64 == 0);
        memset(here, 0xff, sizes[i]);
        ck_assert_int_eq(device->ops->copy(device, here, at[i], sizes[i]), 0);
        for (size_t j = 0; j < sizes[i]; j++)
            ck_assert_uint_eq(here[j], 0);
        memset(here, (int)i + 1, sizes[i]);
        ck_assert_int_eq(device->ops->copy(device, at[i], here, sizes[i]), 0);
    }
    ck_assert_int_eq(device->ops->copy(device, at[3], at[4] + 1000, 100000), 0); /* within the device */
    ck_assert_int_eq(device->ops->copy(device, here, at[3], 100000), 0);
    ck_assert(here[0] == 5 && here[99999] == 5);
    ck_assert_int_eq(device->ops->copy(device, here, at[2], 4096), 0);
    ck_assert(here[0] == 3 && here[4095] == 3);
    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++)
        device->ops->release(device, at[i], sizes[i]);
}

MF_TEST(survives_a_failed_allocation)
{
    ck_assert_ptr_null(device->ops->alloc(device, SIZE_MAX / 2));
    ck_assert_ptr_null(device->ops->alloc(device, 0));
    struct zeroing z = zeroing_of();
    double us;
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 1, &us), 0);
    release(&z);
}

/* ---- time ---- */

/* Launches are captured and run once, when the graph is replayed. */
MF_TEST(captures_and_replays_launches)
{
    struct zeroing z = zeroing_of();
    double us = 0;

    ck_assert_int_eq(zero_rows(&z), 0);
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 3, &us), 0);
    ck_assert_int_eq(z.calls, 3);
    ck_assert_int_eq(zero_rows(&z), 7);
    ck_assert(us > 3);
    release(&z);
}

/* If a launch fails during capture: its own error is returned, nothing has run, and the device still works.
 */
MF_TEST(returns_a_launch_error)
{
    struct zeroing z = zeroing_of();
    double us = 0;

    z.fails_at = 2;
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 3, &us), -EDOM);
    ck_assert_int_eq(zero_rows(&z), 0);
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 2, &us), 0);
    ck_assert_int_eq(zero_rows(&z), 3);
    release(&z);
}

/* The fake runtime runs work only when the host synchronises, as a real one may. */
MF_TEST(runs_at_synchronisation)
{
    struct zeroing z = zeroing_of();
    double us = 0;

    ck_assert_int_eq(zero_row(&z, 2), 0);
    ck_assert_int_eq(zero_rows(&z), 0);
    ck_assert_int_eq(device->ops->canary(device, &us), 0);
    ck_assert_int_eq(zero_rows(&z), 4);
    release(&z);
}

MF_TEST(runs_the_canary)
{
    double first = 0, second = 0;

    ck_assert_int_eq(device->ops->canary(device, &first), 0);
    ck_assert_int_eq(device->ops->canary(device, &second), 0);
    ck_assert(first > 0 && second > first / 2 && second < first * 2);
}

/* ---- code ---- */

MF_TEST(compiles_and_loads)
{
    struct mf_code codes[2] = {zero_code(), zero_code()};
    char paths[2][PATH_MAX], whys[2][MF_CODE_WHY_MAX];
    struct mf_module *m;
    void *f;

    mf_code_define(&codes[1], "MF_THREADS=none_such");
    ck_assert_int_eq(device->ops->compile(device, codes, 2, paths, whys), 1);
    ck_assert_str_eq(paths[1], "");
    ck_assert_ptr_nonnull(strstr(whys[1], "none_such"));
    ck_assert_int_eq(device->ops->module_load(device, paths[0], whys[0], sizeof(whys[0]), &m), 0);
    ck_assert_int_eq(device->ops->module_function(device, m, "mf_none_such", &f), -ENOENT);
    ck_assert_int_eq(device->ops->module_function(device, m, "mf_zero", &f), 0);
    (void)device->ops->module_unload(device, m);
}

static const struct {
    const char *path;
    int r;
    const char *message;
} not_loaded[] = {
    {"/nonexistent", -ENOENT, "/nonexistent: cannot be read"},
    {MF_SOURCE_DIR "/LICENSE", -ENOEXEC, "is not a code object for gfx90a: no kernel image is available"},
};

MF_TEST(rejects_other_files, .rows = MF_ARRAY_LEN(not_loaded))
{
    struct mf_module *m;
    char why[PATH_MAX];

    ck_assert_int_eq(device->ops->module_load(device, not_loaded[_i].path, why, sizeof(why), &m),
                     not_loaded[_i].r);
    ck_assert_msg(strstr(why, not_loaded[_i].message) != NULL, "%s", why);
}

MF_TEST(has_no_tensor_maps)
{
    const struct mf_tma_tensor t = {.rank = 1};
    char map[128];

    ck_assert_int_eq(device->ops->tensor_map(device, &t, map), -ENOTSUP);
}

/* Resources of a CU: 64 KiB of LDS, 4 SIMDs with 512 registers and 8 waves each. */
/* clang-format off */
static const struct {
    const char *registers, *spills;
    struct mf_grid grid;
    int r;
    struct mf_resource_usage use;
} uses[] = {
    {"0",   "0",  {1, 1, 1, 64,   0,     false, false}, 0,      {.occupancy = 32}},
    {"128", "48", {1, 1, 1, 256,  8192,  false, false}, 0,
     {.registers = 128, .spills = 48, .lds = 8192, .occupancy = 4}},
    {"128", "0",  {1, 1, 1, 256,  32768, false, false}, 0,
     {.registers = 128, .lds = 32768, .occupancy = 2}},
    {"256", "0",  {1, 1, 1, 1024, 0,     false, false}, -E2BIG, {.registers = 256, .occupancy = -1}},
    {"0",   "0",  {1, 1, 1, 64,   65537, false, false}, -E2BIG, {.occupancy = 0}},
};
/* clang-format on */

MF_TEST(checks_resource_usage, .rows = MF_ARRAY_LEN(uses))
{
    struct mf_resource_usage use = {0};

    ck_assert_int_eq(setenv("FAKE_HIP_REGISTERS", uses[_i].registers, 1), 0);
    ck_assert_int_eq(setenv("FAKE_HIP_SPILLS", uses[_i].spills, 1), 0);
    device->use = &use;
    struct zeroing z = zeroing_of();
    double us;
    z.grid = uses[_i].grid;
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 1, &us), uses[_i].r);
    ck_assert_int_eq(zero_rows(&z), uses[_i].r == 0);
    ck_assert_msg(memcmp(&use, &uses[_i].use, sizeof(use)) == 0,
                  "%d registers, %d spills, %d of LDS, %d blocks", use.registers, use.spills, use.lds,
                  use.occupancy);
    device->use = NULL;
    release(&z);
}

/* ---- a device that fails ---- */

static void sample(void)
{
    struct zeroing z = zeroing_of();
    double us;
    (void)device->ops->time(device, zero_row, &z, 2, &us);
    release(&z);
}

static void allocate(void)
{
    device->ops->release(device, device->ops->alloc(device, 64), 64);
}

/* y is shorter than the row. */
static void write_beyond(void)
{
    struct zeroing z = zeroing_of();
    double us;
    z.y = device->ops->alloc(device, COLS * 2 - 16);
    (void)device->ops->time(device, zero_row, &z, 1, &us);
}

static void copy_beyond(void)
{
    char here[128];
    (void)device->ops->copy(device, here, device->ops->alloc(device, 64), 128);
}

static int allocate_more(struct zeroing *z)
{
    return z->device->ops->alloc(z->device, 64) ? 0 : -ENOMEM;
}

static int load_more(struct zeroing *z)
{
    const struct mf_code code = zero_code();
    return mf_hip_function_open(z->device, &code, &z->function);
}

/* Allocating memory and loading code are not allowed within a sample. */
static void allocate_in_a_sample(void)
{
    struct zeroing z = zeroing_of();
    double us;
    z.more = allocate_more;
    (void)device->ops->time(device, zero_row, &z, 1, &us);
}

static void load_in_a_sample(void)
{
    struct zeroing z = zeroing_of();
    double us;
    z.more = load_more;
    (void)device->ops->time(device, zero_row, &z, 1, &us);
}

/* Evicts the L2 cache: reads twice its size with the kernel that measures memory bandwidth, and runs a code
 * eviction kernel. */
static void evict(void)
{
    double bytes = 0;
    ck_assert_int_eq(device->ops->evict_caches(device, &bytes), 0);
    ck_assert(bytes == 2.0 * (double)device->info.llc_bytes);
    sample();
}

MF_TEST(evicts_the_cache)
{
    ck_assert_uint_gt(device->info.llc_bytes, 0);
    evict();
}

/* clang-format off */
static const struct {
    const char *fault;
    void (*action)(void);
    const char *message;
} failures[] = {
    {"illegal mf_zero 2", sample, "running a step: an illegal memory access was encountered"},
    {"illegal mf_delay 1", sample, "running a step: an illegal memory access was encountered"},
    {"illegal mf_read 1", evict, "running a step: an illegal memory access was encountered"},
    {"illegal mf_evict_code 1", evict, "running a step: an illegal memory access was encountered"},
    {"illegal hipMemcpy 1", sample, "copying: an illegal memory access was encountered"},
    /* any call may return an earlier error; it must not be taken for lack of memory or a wrong file */
    {"illegal hipMalloc 1", allocate, "allocating memory: an illegal memory access was encountered"},
    {"illegal hipFree 1", allocate, "releasing memory: an illegal memory access was encountered"},
    {"illegal hipModuleLoadData 1", sample, "loading code: an illegal memory access was encountered"},
    {"illegal hipModuleGetFunction 1", sample, "finding a kernel: an illegal memory access was encountered"},
    {"illegal hipModuleLaunchKernel 1", sample, "launching: an illegal memory access was encountered"},
    {"illegal hipModuleLaunchKernel 3", sample, "launching: an illegal memory access was encountered"},
    {"illegal hipStreamBeginCapture 1", sample, "capturing: an illegal memory access was encountered"},
    {"illegal hipStreamEndCapture 1", sample, "capturing: an illegal memory access was encountered"},
    {"illegal hipGraphInstantiate 1", sample, "making a graph: an illegal memory access was encountered"},
    {"illegal hipGraphLaunch 1", sample, "timing: an illegal memory access was encountered"},
    {"illegal hipEventElapsedTime 1", sample, "timing: an illegal memory access was encountered"},
    {"illegal hipModuleUnload 1", sample, "unloading code: an illegal memory access was encountered"},
    {"", write_beyond, "out of bounds: at 112 of a buffer of 112 bytes (zero.hip:"},
    {"", write_beyond, "running a step: an illegal memory access was encountered"},
    {"", copy_beyond, "copying: invalid argument"},
    {"", allocate_in_a_sample, "operation not permitted when stream is capturing"},
    {"", load_in_a_sample, "operation not permitted when stream is capturing"},
};
/* clang-format on */

/* After a device failure the process exits with its own code and prints the reason: every later call on the
 * device would fail. */
MF_TEST(exits_on_device_failure, .rows = MF_ARRAY_LEN(failures))
{
    char words[4096] = "";
    size_t n = 0;
    int pipes[2], status;

    ck_assert_int_eq(pipe(pipes), 0);
    if (failures[_i].fault[0])
        hip_release_plan(plan, failures[_i].fault);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(pipes[1], STDERR_FILENO);
        failures[_i].action();
        _exit(0);
    }
    (void)close(pipes[1]);
    for (ssize_t got; (got = read(pipes[0], words + n, sizeof(words) - 1 - n)) > 0;)
        n += (size_t)got;
    (void)close(pipes[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAULT, "status %#x: %s", status, words);
    ck_assert_msg(strstr(words, failures[_i].message) != NULL, "%s", words);
    ck_assert_int_ne(access(plan, F_OK), 0);
}

/* Refused calls that leave the device usable. */
MF_TEST(continues_after_a_refusal)
{
    const struct mf_code code = zero_code();
    struct mf_hip_function f;

    hip_release_plan(plan, "refused hipMalloc 1");
    ck_assert_ptr_null(device->ops->alloc(device, 64));
    ck_assert_int_ne(access(plan, F_OK), 0);
    sample();
    hip_release_plan(plan, "refused hipModuleLoadData 1");
    ck_assert_int_eq(mf_hip_function_open(device, &code, &f), -ENOTSUP);
    ck_assert_int_ne(access(plan, F_OK), 0);
    sample();
}

/* As a guest in a host process: nothing is timed, launches go to the given stream and run at synchronisation,
 * and a device failure is a persistent error. */
MF_TEST(works_as_a_guest)
{
    const struct mf_device_open_options how = {.guest = true};
    struct mf_device *runner_device = device;
    char why[256];
    int status;

    ck_assert_msg(mf_device_open_with("hip:amd:0", &how, why, sizeof(why), &device) == 0, "%s", why);
    ck_assert(!device->ops->time && !device->ops->canary);
    ck_assert(device->info.mem_read_gbs == 0 && device->info.class.cu_num > 0);
    struct zeroing z = zeroing_of();
    ck_assert_int_eq(device->ops->enter(device), 0);
    ck_assert_int_eq(zero_row(&z, 1), 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
    ck_assert_int_eq(zero_rows(&z), 2);
    pid_t child = fork();
    if (child == 0) {
        hip_release_plan(plan, "illegal mf_zero 1");
        bool right = zero_row(&z, 2) == 0 && device->ops->sync(device) == -EIO && zero_row(&z, 3) == -EIO &&
                     device->ops->copy(device, z.y, why, 8) == -EIO && !device->ops->alloc(device, 64);
        _exit(right ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
    release(&z);
    device = mf_device_close(device);
    device = runner_device;
}

/* Device memory is not accessible from the host: an access ends the process. */
MF_TEST(protects_device_memory)
{
    char *memory = device->ops->alloc(device, 64);
    int status = 0;

    pid_t child = fork();
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer would catch the signal */
        memory[3] = 1;
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

int main(int argc, char **argv)
{
    (void)argc;
    hip_release_enter(6, argv);
    if (!mkdtemp(folder) || setenv("MOEFARM_CODE_CACHE", folder, 1) < 0)
        return EXIT_FAILURE;
    mf_format(plan, sizeof(plan), "%s/plan", folder);
    int failed = mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup_all = open_device, .teardown_all = close_device});
    (void)remove_tree(folder);
    return failed;
}
