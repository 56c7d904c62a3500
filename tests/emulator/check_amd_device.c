/* Tests the AMD module of kernels/gpu/host/device_hip.c on a fake HIP runtime (emulator/hip/runtime.h).
 * Covers every call of struct mf_device_ops, the device description, refused calls, and failures that end the
 * process. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/host/hip_open.h"
#include "kernels/gpu/src/args.h"
#include "support/kernels/hip_release.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"

#define EXIT_FAULT 86 /* exit code of device_hip.c after a device failure */
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
    /* fails_at: number of the launch that returns -EDOM; the first launch has number 1 */
    int calls, fails_at;
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

/* Returns a bit mask of the rows that are zero. */
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

    ck_assert_str_eq(i->class.gfx, "gfx90a"); /* without the suffix ":sramecc+:xnack-" */
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

/* The code cache uses the compiler name as a key, so the name must distinguish two releases that return the
 * same version but generate different code. */
MF_TEST(names_the_compiler)
{
    ck_assert_str_eq(device->info.compiler, "hiprtc 9.0 libamdhip64.so.6.0.emulated");
}

static const struct mf_test_group tests_without_device = {.timeout_s = 60};

/* For CDNA 3 the runtime reports the L2 size of a single die; llc_bytes is the size of the Infinity Cache,
 * which is larger. */
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
    /* copies from one device buffer to another */
    ck_assert_int_eq(device->ops->copy(device, at[3], at[4] + 1000, 100000), 0);
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

/* time() captures the launches in a graph and replays it, so each launch takes effect once. */
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

/* If a launch fails during capture, time() returns the error of the launch, no launch runs, and the device
 * stays usable. */
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

static int allocate_more(struct zeroing *z)
{
    return z->device->ops->alloc(z->device, 64) ? 0 : -ENOMEM;
}

static int load_more(struct zeroing *z)
{
    const struct mf_code code = zero_code();
    struct mf_hip_function more;
    return mf_hip_function_open(z->device, &code, &more);
}

static int ignore_an_error(struct zeroing *z)
{
    (void)z->device->ops->alloc(z->device, 64);
    return 0;
}

/* Allocating memory and loading code are forbidden while a sample is captured. The error is the launch's
 * result, and the device stays usable. */
static const struct {
    int (*more)(struct zeroing *z);
    int r;
} forbidden[] = {{allocate_more, -ENOMEM}, {load_more, -ENOTSUP}, {ignore_an_error, -ECANCELED}};

MF_TEST(returns_a_capture_error, .rows = MF_ARRAY_LEN(forbidden))
{
    struct zeroing z = zeroing_of(), other = zeroing_of();
    double us;

    z.more = forbidden[_i].more;
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 1, &us), forbidden[_i].r);
    ck_assert_int_eq(device->ops->sync(device), 0);
    ck_assert_int_eq(device->ops->time(device, zero_row, &other, 2, &us), 0);
    ck_assert_int_eq(zero_rows(&other), 3);
    release(&other);
    release(&z);
}

/* ---- work of foreign code ---- */

enum { CREATE_STREAM, BEGIN_CAPTURE, END_CAPTURE, DESTROY_GRAPH };
#define NON_BLOCKING ((void *)1)
#define THREAD_LOCAL ((void *)1)

/* Calls the runtime as a framework does that shares the process with the device. */
static int runtime_call(int call, void *a, void *b)
{
    static const char *const names[] = {"hipStreamCreateWithFlags", "hipStreamBeginCapture",
                                        "hipStreamEndCapture", "hipGraphDestroy"};
    int (*f)(void *, void *);
    void *symbol = dlsym(dlopen("libamdhip64.so.6", RTLD_NOW), names[call]);

    ck_assert_ptr_nonnull(symbol);
    memcpy(&f, &symbol, sizeof(f));
    return f(a, b);
}

static void *foreign_stream(void)
{
    void *stream = NULL;

    ck_assert_int_eq(runtime_call(CREATE_STREAM, &stream, NON_BLOCKING), 0);
    return stream;
}

/* Captures launches of the first n rows on a stream of the framework. */
static void *foreign_graph(struct zeroing *z, int n)
{
    void *own = device->stream, *stream = foreign_stream(), *graph = NULL;

    ck_assert_int_eq(runtime_call(BEGIN_CAPTURE, stream, THREAD_LOCAL), 0);
    device->stream = stream;
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(zero_row(z, i), 0);
    device->stream = own;
    ck_assert_int_eq(runtime_call(END_CAPTURE, stream, &graph), 0);
    return graph;
}

struct mixed {
    struct zeroing *z;
    void *graph;
};

/* A pipeline of a foreign graph between two launches of the device. */
static int launch_mixed(void *context, int index)
{
    const struct mixed *m = context;
    (void)index;
    int r = zero_row(m->z, 2);
    if (r == 0)
        r = device->ops->launch_graph(device, m->graph);
    return r == 0 ? zero_row(m->z, 3) : r;
}

MF_TEST(replays_a_foreign_graph)
{
    struct zeroing z = zeroing_of();
    struct mixed m = {&z, foreign_graph(&z, 2)};
    double alone = 0, us = 0;

    ck_assert_int_eq(zero_rows(&z), 0);
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 1, &alone), 0);
    ck_assert_int_eq(device->ops->time(device, launch_mixed, &m, 1, &us), 0);
    ck_assert_int_eq(zero_rows(&z), 15);
    ck_assert(us >= 4); /* the emulated runtime adds 1 us per launch */
    (void)runtime_call(DESTROY_GRAPH, m.graph, NULL);
    release(&z);
}

MF_TEST(runs_a_foreign_graph_at_once)
{
    struct zeroing z = zeroing_of();
    void *graph = foreign_graph(&z, 2);

    ck_assert_int_eq(device->ops->launch_graph(device, graph), 0);
    ck_assert_int_eq(zero_rows(&z), 3);
    (void)runtime_call(DESTROY_GRAPH, graph, NULL);
    release(&z);
}

MF_TEST(refuses_a_graph_without_kernels, .rows = 2)
{
    struct zeroing z = zeroing_of();
    struct mixed m = {&z, foreign_graph(&z, 0)};
    double us = 0;

    ck_assert_int_eq(_i == 0 ? device->ops->launch_graph(device, m.graph)
                             : device->ops->time(device, launch_mixed, &m, 1, &us),
                     -ENODATA);
    ck_assert_ptr_nonnull(strstr(device->open_error, "the captured graph has no kernels"));
    ck_assert_int_eq(zero_rows(&z), 0);
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 1, &us), 0);
    ck_assert_int_eq(zero_rows(&z), 1);
    (void)runtime_call(DESTROY_GRAPH, m.graph, NULL);
    release(&z);
}

/* Allocating memory invalidates the capture. */
static int launch_after_an_error(void *context, int index)
{
    const struct mixed *m = context;
    (void)index;
    (void)ignore_an_error(m->z);
    return device->ops->launch_graph(device, m->graph);
}

MF_TEST(refuses_a_graph_in_an_invalid_capture)
{
    struct zeroing z = zeroing_of();
    struct mixed m = {&z, foreign_graph(&z, 2)};
    double us = 0;

    ck_assert_int_eq(device->ops->time(device, launch_after_an_error, &m, 1, &us), -ECANCELED);
    ck_assert_ptr_nonnull(strstr(device->open_error, "launching a graph: "));
    ck_assert_int_eq(zero_rows(&z), 0);
    ck_assert_int_eq(device->ops->time(device, launch_mixed, &m, 1, &us), 0);
    ck_assert_int_eq(zero_rows(&z), 15);
    (void)runtime_call(DESTROY_GRAPH, m.graph, NULL);
    release(&z);
}

static int fill_rows(void *context, int index)
{
    const struct zeroing *z = context;
    if (index == 0) /* not queued */
        return 0;
    int r = device->ops->fill(device, z->y, COLS * sizeof(*z->y), 0x11111111);
    for (int i = 1; i < ROWS && r == 0; i++)
        r = device->ops->queue_copy(device, z->y + i * COLS, z->y, COLS * sizeof(*z->y));
    return r;
}

/* `before` runs on the stream, so it overwrites what earlier work has written. */
MF_TEST(times_an_eager_launch)
{
    struct zeroing z = zeroing_of();
    double us = 0;

    ck_assert_int_eq(zero_row(&z, 3), 0);
    ck_assert_int_eq(device->ops->time_eager(device, fill_rows, zero_row, &z, &us), 0);
    ck_assert_int_eq(zero_rows(&z), 1);
    ck_assert(us >= 1);
    z.fails_at = z.calls + 1;
    ck_assert_int_eq(device->ops->time_eager(device, fill_rows, zero_row, &z, &us), -EDOM);
    ck_assert_int_eq(device->ops->time(device, zero_row, &z, 1, &us), 0);
    release(&z);
}

/* The host needs longer than the first delay, which is 60 us. */
static int queue_slowly(struct zeroing *z)
{
    (void)z;
    for (uint64_t start = mf_now_ns(); mf_now_ns() < start + 200000;)
        ;
    return 0;
}

MF_TEST(repeats_an_eager_launch)
{
    struct zeroing z = zeroing_of();
    double us = 0;

    z.more = queue_slowly;
    ck_assert_int_eq(device->ops->time_eager(device, fill_rows, zero_row, &z, &us), 0);
    ck_assert(z.calls == 2 || z.calls == 3);
    ck_assert_int_eq(zero_rows(&z), 1);
    release(&z);
}

/* The fake runtime runs a launch only when the host synchronises. A real runtime may do the same. */
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

/* A CU has 64 KiB of LDS and 4 SIMDs with 512 registers and 8 waves each. */
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

static void eager_sample(void)
{
    struct zeroing z = zeroing_of();
    double us;
    (void)device->ops->time_eager(device, fill_rows, zero_row, &z, &us);
}

static void run_graph(void)
{
    struct zeroing z = zeroing_of();
    (void)device->ops->launch_graph(device, foreign_graph(&z, 1));
}

static void allocate(void)
{
    device->ops->release(device, device->ops->alloc(device, 64), 64);
}

/* The kernel writes beyond the end of y, which is shorter than the row. */
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

/* Foreign code begins a capture and does not end it. */
static void leave_a_capture(void)
{
    (void)runtime_call(BEGIN_CAPTURE, foreign_stream(), THREAD_LOCAL);
    (void)device->ops->sync(device);
}

/* evict_caches() reads twice the L2 size with the kernel that measures memory bandwidth, then runs a kernel
 * that evicts the instruction cache. */
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
    /* any call may return the error of an earlier call; the device must not report it as lack of memory or as
     * an invalid file */
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
    {"illegal hipMemsetD32Async 1", eager_sample, "filling memory: an illegal memory access was encountered"},
    {"illegal hipMemcpyDtoDAsync 1", eager_sample, "copying: an illegal memory access was encountered"},
    {"illegal mf_zero 1", eager_sample, "running a step: an illegal memory access was encountered"},
    {"illegal mf_zero 1", run_graph, "launching a graph: an illegal memory access was encountered"},
    {"illegal hipModuleUnload 1", sample, "unloading code: an illegal memory access was encountered"},
    {"", write_beyond, "out of bounds: at 112 of a buffer of 112 bytes (zero.hip:"},
    {"", write_beyond, "running a step: an illegal memory access was encountered"},
    {"", copy_beyond, "copying: invalid argument"},
    {"", leave_a_capture, "on which foreign code has left a capture open: operation not permitted"},
};
/* clang-format on */

/* After a device failure every later call on the device would fail, so the process prints the reason and
 * exits with EXIT_FAULT. */
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

/* The device stays usable after a refused call. */
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

/* Opens the device as a guest in a host process: the device times nothing, launches go to the given stream
 * and run when it is synchronised, and a device failure is a persistent error. */
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

/* The host cannot access device memory, so an access kills the process. */
MF_TEST(protects_device_memory)
{
    char *memory = device->ops->alloc(device, 64);
    int status = 0;

    pid_t child = fork();
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer would catch the signal instead of dying */
        memory[3] = 1;
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

int main(void)
{
    hip_release_use(6);
    if (!mkdtemp(folder) || setenv("MOEFARM_CODE_CACHE", folder, 1) < 0)
        return EXIT_FAILURE;
    mf_format(plan, sizeof(plan), "%s/plan", folder);
    int failed = mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup_all = open_device, .teardown_all = close_device});
    (void)remove_tree(folder);
    return failed;
}
