/* Opens GPUs as devices, with the HIP module API or, under the same names, the CUDA driver API. This source
 * is compiled to two loadable modules (kernels/gpu/host/hip_calls_amd.h, hip_calls_nvidia.h).
 *
 * A sample is a graph of the launches between two events. A kernel in front of the graph delays it until the
 * whole graph is queued. Memory, modules and streams are created outside of samples. The device idles after
 * each sample for the duration of the sample. Without idle time, an H200 reaches its power cap within 0.1 s
 * of large GEMMs and slows down by 10 to 50 %. With as much idle time as work, an H200 keeps its clock.
 *
 * A failed device returns only errors until the process that uses it ends. A runner process therefore exits.
 * A guest runs in another application's process, so it returns the errors instead. */
#include "kernels/gpu/host/device_hip_private.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/text.h"
#include "kernels/gpu/host/hip_open.h"
#include "kernels/gpu/src/args.h"

/* maximum idle time, because after longer samples the device heats up even with more idle time */
#define REST_MAX_US       10000
#define EXIT_FAULT        86 /* exit status after a device failure */
#define READ_BYTES        (UINT64_C(2) << 30)
#define READ_BLOCKS       4 /* blocks per SM or CU */
#define EVICT_CACHE_SIZES 2 /* size of the eviction buffer, in multiples of the last-level cache */
#define CEILING_SAMPLES   12
#define PEAK_ITERATIONS   2048
#define GAP_LAUNCHES      41
#define LINES             64 /* cache lines for locating the L2 partitions, LINE_STRIDE bytes apart */
#define LINE_STRIDE       4224
#define LINE_ITERATIONS   8
#define HALVES_ATTEMPTS   3 /* more than one, because an attempt misses an SM that another program occupies */

/* ---- errors ---- */

static int errno_of(hipError_t e)
{
    return e == hipErrorOutOfMemory ? -ENOMEM : -EIO;
}

/* True for errors that indicate a failed device. An error of an asynchronous launch is returned by a later
 * call. HIP uses CUDA's error numbers but has no names for some of them. */
static bool is_failure(hipError_t e)
{
    static const int failures[] = {
        214,                /* uncorrectable ECC error */
        700, 702, 709, 710, /* illegal address, timeout, context destroyed, assert */
        714, 715, 716, 717, /* stack, illegal instruction, misaligned address, address space */
        718, 719,           /* invalid program counter, other launch failure */
        999,                /* unknown */
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(failures); i++) {
        if ((int)e == failures[i])
            return true;
    }
    return false;
}

/* True for errors that a capture in the process causes: the application's, or foreign code's in a runner.
 * Such errors do not mean that the device failed. In every capture mode the runtime refuses to synchronise a
 * device while a stream on it is being captured. */
static bool is_capture_error(hipError_t e)
{
    return (int)e >= 900 && (int)e <= 907;
}

/* Exits the process or marks a guest as failed. */
static void fail(struct hip_device *d, hipError_t e, const char *what)
{
    if (!d->failed)
        (void)fprintf(stderr, "device failure in %s: %s\n", what, mf_hip_error_text(&d->c, e));
    d->failed = true;
    if (!d->guest)
        _exit(EXIT_FAULT);
}

int mf_hip_check(struct hip_device *d, hipError_t e, const char *what)
{
    if (e != hipSuccess && !is_capture_error(e))
        fail(d, e, what);
    if (e != hipSuccess && !d->failed)
        mf_format(d->base.open_error, sizeof(d->base.open_error), "%s: %s", what,
                  mf_hip_error_text(&d->c, e));
    return d->failed ? -EIO : e == hipSuccess ? 0 : -ECANCELED;
}

hipError_t mf_hip_check_failure(struct hip_device *d, hipError_t e, const char *what)
{
    if (is_failure(e))
        fail(d, e, what);
    return e;
}

/* ---- memory ---- */

static void *hip_alloc(struct mf_device *base, size_t bytes)
{
    struct hip_device *d = mf_hip_of(base);
    void *p = NULL;
    if (bytes == 0 ||
        mf_hip_check_failure(d, mf_hip_malloc(&d->c, &p, bytes), "allocating memory") != hipSuccess)
        return NULL;
    int r = mf_hip_check(d, mf_hip_clear(&d->c, p, bytes), "clearing memory");
    if (r == 0)
        r = mf_hip_check(d, d->c.hipStreamSynchronize(NULL), "clearing memory");
    if (r < 0) {
        (void)mf_hip_free(&d->c, p);
        return NULL;
    }
    return p;
}

static void hip_release(struct mf_device *base, void *memory, size_t bytes)
{
    (void)bytes;
    if (memory)
        (void)mf_hip_check(mf_hip_of(base), mf_hip_free(&mf_hip_of(base)->c, memory), "releasing memory");
}

static int hip_copy(struct mf_device *base, void *to, const void *from, size_t bytes)
{
    struct hip_device *d = mf_hip_of(base);
    int r = mf_hip_check(d, mf_hip_copy(&d->c, to, from, bytes), "copying");
    /* The copy may return as soon as the host buffer is read, and d->stream does not wait for the null
     * stream. */
    if (r == 0 && !d->guest)
        r = mf_hip_check(d, d->c.hipStreamSynchronize(NULL), "copying");
    return r;
}

static int hip_enter(struct mf_device *base)
{
    struct hip_device *d = mf_hip_of(base);
    return mf_hip_check(d, mf_hip_enter(&d->c, d->current), "entering the device");
}

/* Ends a capture on the device's own stream, which foreign code began or an error invalidated. */
static void end_capture(struct hip_device *d)
{
    hipGraph_t graph = NULL;
    (void)mf_hip_check_failure(d, d->c.hipStreamEndCapture(d->stream, &graph), "ending a capture");
    if (graph)
        (void)d->c.hipGraphDestroy(graph);
}

int mf_hip_sync(struct mf_device *base)
{
    struct hip_device *d = mf_hip_of(base);
    int r = mf_hip_check(d, d->c.hipDeviceSynchronize(), "waiting for the device");
    if (r != -ECANCELED)
        return r;
    if (!d->guest) {
        end_capture(d);
        hipError_t e = d->c.hipDeviceSynchronize();
        if (e != hipSuccess)
            fail(d, e, "waiting for the device, on which foreign code has left a capture open");
    }
    return -EBUSY;
}

/* ---- code objects ---- */

static void *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    long n = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = n > 0 ? malloc((size_t)n + 1) : NULL;
    if (text) {
        rewind(f);
        if (fread(text, 1, (size_t)n, f) != (size_t)n) {
            free(text);
            text = NULL;
        } else {
            text[n] = '\0';
        }
    }
    if (f)
        (void)fclose(f);
    return text;
}

static int hip_module_load(struct mf_device *base, const char *path, char *why, size_t why_cap,
                           struct mf_module **ret)
{
    struct hip_device *d = mf_hip_of(base);
    _cleanup_(mf_freep) void *image = read_file(path);
    struct mf_module *m = calloc(1, sizeof(*m));
    if (!image || !m) {
        mf_format(why, why_cap, "%s: %s", path, image ? "out of memory" : "cannot be read");
        free(m);
        return image ? -ENOMEM : -ENOENT;
    }
    hipError_t e = mf_hip_check_failure(d, d->c.hipModuleLoadData(&m->module, image), "loading code");
    if (e != hipSuccess) {
        mf_format(why, why_cap, "%s is not a code object for %s: %s", path, base->info.class.gfx,
                  mf_hip_error_text(&d->c, e));
        free(m);
        return errno_of(e) == -ENOMEM ? -ENOMEM : -ENOEXEC;
    }
    *ret = m;
    return 0;
}

static struct mf_module *hip_module_unload(struct mf_device *base, struct mf_module *m)
{
    struct hip_device *d = mf_hip_of(base);
    /* the application of a guest synchronises once before it unloads modules */
    if (m && !d->guest)
        (void)mf_hip_check(d, d->c.hipStreamSynchronize(d->stream), "unloading code");
    if (m)
        (void)mf_hip_check(d, d->c.hipModuleUnload(m->module), "unloading code");
    free(m);
    return NULL;
}

/* Records registers and spills of a function if the caller requested the resource usage. */
static void record_function_usage(struct hip_device *d, hipFunction_t f)
{
    struct mf_resource_usage *use = d->base.use;
    int registers = 0, spills = 0;
    (void)d->c.hipFuncGetAttribute(&registers, HIP_FUNC_ATTRIBUTE_NUM_REGS, f);
    (void)d->c.hipFuncGetAttribute(&spills, HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f);
    use->registers = MF_MAX(use->registers, registers);
    use->spills = MF_MAX(use->spills, spills);
}

/* Records shared memory and occupancy of a launch. Returns -E2BIG if a block does not fit an SM or CU. */
static int record_launch_usage(struct hip_device *d, hipFunction_t f, const struct mf_grid *grid)
{
    struct mf_resource_usage *use = d->base.use;
    int own = 0, blocks = 0;
    (void)d->c.hipFuncGetAttribute(&own, HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
    use->lds = MF_MAX(use->lds, own + (int)grid->shared);
    if (d->c.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, (int)grid->block, grid->shared) !=
        hipSuccess)
        return 0;
    use->occupancy = blocks < 1 ? -1 : use->occupancy == 0 ? blocks : MF_MIN(use->occupancy, blocks);
    return blocks < 1 ? -E2BIG : 0;
}

static int hip_module_function(struct mf_device *base, struct mf_module *m, const char *name, void **ret)
{
    struct hip_device *d = mf_hip_of(base);
    hipFunction_t f;
    int own = 0;
    if (mf_hip_check_failure(d, d->c.hipModuleGetFunction(&f, m->module, name), "finding a kernel") !=
        hipSuccess)
        return -ENOENT;
    (void)d->c.hipFuncGetAttribute(&own, HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
    (void)mf_hip_check(d, mf_hip_allow_shared(&d->c, f, d->max_shared - own),
                       "setting a kernel's shared memory limit");
    if (base->use)
        record_function_usage(d, f);
    *ret = (void *)f;
    return 0;
}

static int hip_module_launch(struct mf_device *base, void *function, const struct mf_grid *grid,
                             const void *block, size_t bytes, void *stream)
{
    struct hip_device *d = mf_hip_of(base);
    void *extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)block, HIP_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, HIP_LAUNCH_PARAM_END};
    void *one[] = {(void *)(uintptr_t)block};
    void **whole = grid->struct_argument ? one : NULL, **packed = grid->struct_argument ? NULL : extra;
    if (grid->shared > (uint32_t)d->max_shared ||
        (base->use && record_launch_usage(d, (hipFunction_t)function, grid) < 0))
        return -E2BIG;
    hipError_t e = mf_hip_launch_grid(&d->c, (hipFunction_t)function, grid,
                                      grid->programmatic_launch && d->has_programmatic_launch,
                                      (hipStream_t)stream, whole, packed);
    (void)mf_hip_check_failure(d, e, "launching");
    if (e != hipSuccess && !d->failed && is_capture_error(e))
        return -ECANCELED;
    return e == hipSuccess ? 0 : d->failed ? -EIO : e == hipErrorOutOfMemory ? -ENOMEM : -EINVAL;
}

static int hip_compile(struct mf_device *base, const struct mf_code *codes, size_t n, char (*paths)[PATH_MAX],
                       char (*whys)[MF_CODE_WHY_MAX])
{
    return mf_code_make(&mf_hip_of(base)->compiler, codes, n, mf_cpus_allowed(), paths, whys);
}

static int hip_tensor_map(struct mf_device *base, const struct mf_tma_tensor *t, void *ret)
{
    return mf_hip_tensor_map(&mf_hip_of(base)->c, t, ret) == hipSuccess ? 0 : -ENOTSUP;
}

/* ---- time ---- */

static int launch_own(struct hip_device *d, hipFunction_t f, uint32_t blocks, uint32_t block,
                      const void *args, size_t bytes)
{
    const struct mf_grid grid = {blocks, 1, 1, block, 0, true, false};
    /* do not record resource usage, which is recorded only for steps */
    struct mf_resource_usage *saved_use = d->base.use;
    d->base.use = NULL;
    int r = hip_module_launch(&d->base, (void *)f, &grid, args, bytes, d->base.stream);
    d->base.use = saved_use;
    return r;
}

/* Captures the launches as a graph. Returns the error of a launch unchanged. */
static int capture(struct hip_device *d, mf_launch_fn launch, void *context, int n, hipGraphExec_t *ret)
{
    hipGraph_t graph = NULL;
    int r =
        mf_hip_check(d, d->c.hipStreamBeginCapture(d->stream, hipStreamCaptureModeThreadLocal), "capturing");
    if (r < 0) {
        end_capture(d);
        return r;
    }
    d->capturing = true;
    for (int i = 0; i < n && r >= 0; i++)
        r = launch(context, i);
    d->capturing = false;
    hipError_t e = mf_hip_check_failure(d, d->c.hipStreamEndCapture(d->stream, &graph), "capturing");
    if (r >= 0)
        r = mf_hip_check(d, e, "capturing");
    if (r >= 0)
        r = mf_hip_check(d, mf_hip_instantiate(&d->c, ret, graph), "making a graph");
    if (graph)
        (void)d->c.hipGraphDestroy(graph);
    return r;
}

static void wait_for_rest(const struct hip_device *d)
{
    const struct timespec until = {(time_t)(d->rest_until_ns / 1000000000u),
                                   (long)(d->rest_until_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static int record(struct hip_device *d, hipEvent_t event)
{
    return mf_hip_check(d, d->c.hipEventRecord(event, d->stream), "timing");
}

/* Waits for the end of a sample and computes its time. The device then rests. */
static int elapsed(struct hip_device *d, double *ret_us)
{
    float ms = 0;
    int r = mf_hip_check(d, d->c.hipEventSynchronize(d->to), "running a step");
    if (r == 0)
        r = mf_hip_check(d, d->c.hipEventElapsedTime(&ms, d->from, d->to), "timing");
    if (r < 0)
        return r;
    *ret_us = (double)ms * 1e3;
    d->rest_until_ns = mf_now_ns() + (uint64_t)(fmin(*ret_us, REST_MAX_US) * 1e3);
    return 0;
}

int mf_hip_sample(struct hip_device *d, uint64_t delay_ns, mf_launch_fn before, mf_launch_fn launch,
                  void *context, uint64_t *ret_host_ns, double *ret_us)
{
    wait_for_rest(d);
    uint64_t start = mf_now_ns();
    int r = d->delay ? launch_own(d, d->delay, 1, 1, &delay_ns, sizeof(delay_ns)) : 0;
    if (r == 0 && before)
        r = before(context, 1);
    if (r == 0)
        r = record(d, d->from);
    if (r == 0)
        r = launch(context, 0);
    if (r >= 0)
        r = record(d, d->to);
    *ret_host_ns = mf_now_ns() - start;
    return r < 0 ? r : elapsed(d, ret_us);
}

struct replayed {
    struct hip_device *d;
    hipGraphExec_t graph;
};

static int replay(void *context, int index)
{
    const struct replayed *r = context;
    (void)index;
    return mf_hip_check(r->d, r->d->c.hipGraphLaunch(r->graph, r->d->stream), "timing");
}

static int hip_time(struct mf_device *base, mf_launch_fn launch, void *context, int n, double *ret_us)
{
    struct hip_device *d = mf_hip_of(base);
    struct replayed captured = {.d = d};
    uint64_t host_ns;
    int r = capture(d, launch, context, n, &captured.graph);
    if (r < 0)
        return r;
    r = mf_hip_sample(d, MF_HIP_DELAY_NS, NULL, replay, &captured, &host_ns, ret_us);
    int destroyed = mf_hip_check(d, d->c.hipGraphExecDestroy(captured.graph), "timing");
    return r < 0 ? r : destroyed;
}

struct read_args {
    const void *from;
    uint64_t bytes;
    void *sum;
};

/* Evicts the caches by reading other memory, because AMD GPUs cannot discard cache lines. It was not verified
 * that such reads evict dirty lines. */
static int hip_evict_caches(struct mf_device *base, double *ret_bytes)
{
    struct hip_device *d = mf_hip_of(base);
    const uint32_t blocks = (uint32_t)base->info.cores * READ_BLOCKS;
    const struct read_args read_args = {d->evict_buffer, d->evict_bytes,
                                        (uint8_t *)d->evict_buffer + d->evict_bytes};
    const struct mf_hip_evict_args lines = {d->evict_buffer, d->evict_bytes};
    int r;

    *ret_bytes = (double)d->evict_bytes;
    if (d->evict_discard) {
        r = launch_own(d, d->evict_fill, blocks, 512, &lines, sizeof(lines));
        if (r == 0)
            r = launch_own(d, d->evict_discard, blocks, 512, &lines, sizeof(lines));
    } else {
        r = launch_own(d, d->read, blocks, 512, &read_args, sizeof(read_args));
    }
    return r < 0 ? r : launch_own(d, d->evict_code, (uint32_t)base->info.cores, 256, &lines, sizeof(lines));
}

/* ---- ceilings ---- */

struct peak_args {
    uint32_t iterations, seed;
    void *sum;
};
struct own_launch {
    struct hip_device *d;
    hipFunction_t f;
    uint32_t blocks, block;
    const void *args;
    size_t bytes;
};

static int run_own(void *context, int index)
{
    const struct own_launch *l = context;
    (void)index;
    return launch_own(l->d, l->f, l->blocks, l->block, l->args, l->bytes);
}

/* Returns the shortest of several samples of n launches. */
static double best_us(struct own_launch *l, int n, int samples)
{
    double best = INFINITY, us;
    for (int i = 0; i < samples; i++) {
        if (hip_time(&l->d->base, run_own, l, n, &us) == 0 && us < best)
            best = us;
    }
    return best;
}

static int measure_ceilings(struct hip_device *d)
{
    struct mf_device_info *info = &d->base.info;
    const uint32_t blocks = (uint32_t)info->cores;
    const uint64_t unused = 0;
    uint8_t *memory = hip_alloc(&d->base, READ_BYTES + 64);
    if (!memory)
        return -ENOMEM;
    struct read_args read_args = {memory, READ_BYTES, memory + READ_BYTES};
    struct peak_args peak_args = {PEAK_ITERATIONS, 1, memory + READ_BYTES};
    struct own_launch read = {d, d->read, blocks * READ_BLOCKS, 512, &read_args, sizeof(read_args)};
    struct own_launch peak = {d, d->peak, blocks * 2, 256, &peak_args, sizeof(peak_args)};
    struct own_launch empty = {d, d->empty, 1, 32, &unused, sizeof(unused)};
    info->mem_read_gbs = (double)READ_BYTES / best_us(&read, 1, CEILING_SAMPLES) / 1e3;
    /* measure.hip, per block and iteration with WGMMA: 2 warpgroups x 4 products of 64x256x16 */
    double flops =
        2.0 * PEAK_ITERATIONS * blocks * 2 * (d->peak_fp8 ? 2 * 4 * 64 * 256 * 16 : MF_HIP_PEAK_MACS);
    info->peak_gflops_bf16 = flops / best_us(&peak, 1, CEILING_SAMPLES) / 1e3;
    peak.f = d->peak_fp8;
    info->peak_gflops_fp8 = d->peak_fp8 ? 2 * flops / best_us(&peak, 1, CEILING_SAMPLES) / 1e3 : 0;
    info->peak_gflops_f32 = info->peak_gflops_bf16 / 8;
    info->gap_us = (best_us(&empty, GAP_LAUNCHES, 5) - best_us(&empty, 1, 5)) / (GAP_LAUNCHES - 1);
    hip_release(&d->base, memory, READ_BYTES + 64);
    return 0;
}

/* Finds the L2 partition of each SM. After any error the result is unknown (near = 0). */
static struct mf_l2_halves find_halves(struct hip_device *d)
{
    struct mf_l2_halves halves = {.near = 0};
    const int sms = d->base.info.cores;
    const size_t n = (size_t)sms * LINES * sizeof(uint32_t), lines = (size_t)LINES * LINE_STRIDE;
    /* one block takes all shared memory of an SM, so that each SM runs one block */
    const struct mf_grid grid = {(uint32_t)sms, 1, 1, 32, (uint32_t)d->max_shared, true, false};
    _cleanup_(mf_freep) uint32_t *cycles = calloc(1, n);
    uint8_t *memory = cycles ? hip_alloc(&d->base, lines + n) : NULL;
    if (!memory)
        return halves;
    const struct mf_hip_add_cycles_args adding = {memory, LINE_STRIDE, (uint32_t *)(memory + lines), LINES,
                                                  LINE_ITERATIONS};
    for (int i = 0; i < HALVES_ATTEMPTS && halves.near == 0; i++) {
        if (hip_module_launch(&d->base, (void *)d->add_cycles, &grid, &adding, sizeof(adding),
                              d->base.stream) < 0)
            break;
        hipError_t e = d->c.hipStreamSynchronize(d->stream);
        (void)mf_hip_check(d, e, "measuring the L2 partitions");
        if (e != hipSuccess || hip_copy(&d->base, cycles, memory + lines, n) < 0)
            break;
        halves = mf_l2_halves_of(cycles, sms, LINES);
    }
    hip_release(&d->base, memory, lines + n);
    return halves;
}

static int hip_canary(struct mf_device *base, double *ret_us)
{
    struct hip_device *d = mf_hip_of(base);
    struct peak_args peak_args = {PEAK_ITERATIONS / 4, 1, d->canary_memory};
    struct own_launch peak = {d, d->peak, (uint32_t)base->info.cores * 2, 256, &peak_args, sizeof(peak_args)};
    return hip_time(base, run_own, &peak, 1, ret_us);
}

/* ---- opening ---- */

static void hip_free(struct mf_device *base)
{
    struct hip_device *d = mf_hip_of(base);
    if (d->own)
        (void)hip_module_unload(base, d->own);
    if (d->canary_memory)
        hip_release(base, d->canary_memory, 64);
    if (d->evict_buffer)
        (void)mf_hip_free(&d->c, d->evict_buffer);
    if (d->from)
        (void)d->c.hipEventDestroy(d->from);
    if (d->to)
        (void)d->c.hipEventDestroy(d->to);
    if (d->stream)
        (void)d->c.hipStreamDestroy(d->stream);
    free(d);
}

/* clang-format off */
#define COMMON_OPS                                                                                      \
    .kind = "hip", .own_memory = true, .free = hip_free, .alloc = hip_alloc, .release = hip_release, \
    .copy = hip_copy, .module_load = hip_module_load, .module_unload = hip_module_unload,            \
    .module_function = hip_module_function, .module_launch = hip_module_launch,                      \
    .compile = hip_compile, .tensor_map = hip_tensor_map, .enter = hip_enter, .sync = mf_hip_sync
/* clang-format on */
static const struct mf_device_ops hip_ops = {COMMON_OPS,
                                             .time = hip_time,
                                             .evict_caches = hip_evict_caches,
                                             .canary = hip_canary,
                                             .launch_graph = mf_hip_launch_graph,
                                             .time_eager = mf_hip_time_eager,
                                             .fill = mf_hip_queue_fill,
                                             .queue_copy = mf_hip_queue_copy},
                                  guest_ops = {COMMON_OPS};

static bool find_call(void *library, const char *name, void *ret, char *why, size_t why_cap)
{
    void *symbol = dlsym(library, name);
    memcpy(ret, &symbol, sizeof(symbol));
    if (!symbol)
        mf_format(why, why_cap, "the runtime lacks %s: install a supported version", name);
    return symbol != NULL;
}

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

static int load_calls(struct mf_hip_calls *c, char *why, size_t why_cap)
{
    void *library = mf_vendor_library_open(MF_HIP_LIBRARY, RTLD_NOW | RTLD_GLOBAL, NULL, NULL, why, why_cap);
    if (!library)
        return -ENOENT;
#if defined(MF_HIP_NVIDIA)
#    define X(call, cuda)                                            \
        if (!find_call(library, TEXT(cuda), &c->call, why, why_cap)) \
            return -ENOENT;
#else
#    define X(call)                                                  \
        if (!find_call(library, TEXT(call), &c->call, why, why_cap)) \
            return -ENOENT;
#endif
    MF_HIP_CALLS(X)
#undef X
#if !defined(MF_HIP_NVIDIA)
    if (!find_call(library, "hipGetDevicePropertiesR0600", &c->properties, why, why_cap) &&
        !find_call(library, "hipGetDeviceProperties", &c->properties, why, why_cap))
        return -ENOENT;
#endif
    return 0;
}

static int count_with(const struct mf_hip_calls *c, char *why, size_t why_cap)
{
    int n = 0;
    hipError_t e = c->hipInit(0);
    if (e == hipSuccess)
        e = c->hipGetDeviceCount(&n);
    if (e == hipSuccess && n > 0)
        return n;
    mf_format(why, why_cap, "the %s runtime reports no device%s%s", MF_HIP_VENDOR,
              e == hipSuccess ? "" : ": ", e == hipSuccess ? "" : mf_hip_error_text(c, e));
    return -ENOENT;
}

static int count(char *why, size_t why_cap)
{
    struct mf_hip_calls c;
    int r = load_calls(&c, why, why_cap);
    return r < 0 ? r : count_with(&c, why, why_cap);
}

static int identity(int ordinal, char *ret, size_t cap, char *why, size_t why_cap)
{
    struct mf_hip_calls c;
    int n = load_calls(&c, why, why_cap);
    if (n == 0)
        n = count_with(&c, why, why_cap);
    if (n < 0)
        return n;
    hipError_t e = ordinal < n ? mf_hip_identity(&c, ordinal, ret, cap) : hipErrorNotFound;
    if (e == hipSuccess)
        return 0;
    mf_format(why, why_cap, "cannot read the identity of hip:%s:%d: %s", MF_HIP_VENDOR, ordinal,
              mf_hip_error_text(&c, e));
    return errno_of(e);
}

static int describe(struct hip_device *d)
{
    struct mf_device_info *info = &d->base.info;
    hipDevice_t device;
    int cores = 0, llc = 0, clock = 0, memory_clock = 0;
    size_t memory = 0;
    hipError_t e = mf_hip_set_device(&d->c, d->ordinal, &d->current);
    if (e == hipSuccess)
        e = d->c.hipDeviceGet(&device, d->ordinal);
    if (e == hipSuccess)
        e = d->c.hipDeviceGetAttribute(&cores, hipDeviceAttributeMultiprocessorCount, device);
    if (e == hipSuccess)
        e = d->c.hipDeviceGetAttribute(&llc, hipDeviceAttributeL2CacheSize, device);
    if (e == hipSuccess)
        e = d->c.hipDeviceGetAttribute(&d->max_shared, hipDeviceAttributeMaxSharedMemoryPerBlock, device);
    if (e == hipSuccess)
        e = d->c.hipDeviceGetName(info->model, (int)sizeof(info->model), device);
    if (e == hipSuccess)
        e = d->c.hipDeviceTotalMem(&memory, device);
    if (e == hipSuccess)
        e = d->c.hipDeviceGetAttribute(&clock, hipDeviceAttributeClockRate, device);
    if (e == hipSuccess)
        e = d->c.hipDeviceGetAttribute(&memory_clock, hipDeviceAttributeMemoryClockRate, device);
    if (e == hipSuccess)
        e = mf_hip_driver(&d->c, info->driver, sizeof(info->driver));
    if (e == hipSuccess)
        e = mf_hip_identity(&d->c, d->ordinal, info->identity, sizeof(info->identity));
    if (e == hipSuccess)
        e = mf_hip_arch(&d->c, d->ordinal, info->class.gfx, sizeof(info->class.gfx));
    if (e != hipSuccess)
        return errno_of(e);
    d->has_programmatic_launch =
        strncmp(info->class.gfx, "sm_", 3) == 0 && strtol(info->class.gfx + 3, NULL, 10) >= 90;
    info->class.cu_num = info->cores = cores;
    info->llc_bytes = mf_hip_llc_bytes(info->class.gfx, (uint64_t)llc);
    info->memory_bytes = memory;
    info->lds_bytes = (uint64_t)d->max_shared;
    info->clock_mhz = clock / 1e3;
    info->memory_mhz = memory_clock / 1e3;
    mf_format(info->isa, sizeof(info->isa), "%s", info->class.gfx);
    return 0;
}

static bool is_hopper(const struct hip_device *d)
{
    return strcmp(d->base.info.class.gfx, "sm_90") == 0;
}

static int load_own_kernels(struct hip_device *d, char *why, size_t why_cap)
{
    const struct mf_code code = mf_device_hip_code(d->base.info.class.gfx);
    char path[1][PATH_MAX], whys[1][MF_CODE_WHY_MAX];
    static const struct {
        const char *name;
        size_t at;
        const char *of; /* prefix of the architectures that have programmatic launch */
    } functions[] = {
        {"mf_delay", offsetof(struct hip_device, delay), ""},
        {"mf_nothing", offsetof(struct hip_device, empty), ""},
        {"mf_read", offsetof(struct hip_device, read), ""},
        {"mf_peak", offsetof(struct hip_device, peak), ""},
        {"mf_evict_code", offsetof(struct hip_device, evict_code), ""},
        {"mf_evict_fill", offsetof(struct hip_device, evict_fill), "sm_"},
        {"mf_evict_discard", offsetof(struct hip_device, evict_discard), "sm_"},
        {"mf_peak_fp8", offsetof(struct hip_device, peak_fp8), "sm_90"},
        {"mf_add_cycles", offsetof(struct hip_device, add_cycles), "sm_90"},
    };
    if (hip_compile(&d->base, &code, 1, path, whys) < 1) {
        mf_format(why, why_cap, "%s", whys[0]);
        return -ENOEXEC;
    }
    int r = hip_module_load(&d->base, path[0], why, why_cap, &d->own);
    for (size_t i = 0; i < MF_ARRAY_LEN(functions) && r == 0; i++) {
        void *f = NULL;
        if (strncmp(d->base.info.class.gfx, functions[i].of, strlen(functions[i].of)) != 0)
            continue;
        r = hip_module_function(&d->base, d->own, functions[i].name, &f);
        memcpy((char *)d + functions[i].at, &f, sizeof(f));
    }
    return r;
}

/* Unloads the measuring kernels of a guest, which needs them only while it opens the device. Unloading
 * requires a current context, and later there may be none. */
static void unload_own_kernels(struct hip_device *d)
{
    d->own = hip_module_unload(&d->base, d->own);
    d->delay = d->empty = d->read = d->peak = d->peak_fp8 = d->add_cycles = d->evict_code = d->evict_fill =
        d->evict_discard = NULL;
}

static int open_streams(struct hip_device *d)
{
    hipError_t e = d->c.hipStreamCreateWithFlags(&d->stream, hipStreamNonBlocking);
    d->base.stream = d->stream;
    if (e == hipSuccess)
        e = d->c.hipEventCreateWithFlags(&d->from, hipEventDefault);
    if (e == hipSuccess)
        e = d->c.hipEventCreateWithFlags(&d->to, hipEventDefault);
    d->evict_bytes = EVICT_CACHE_SIZES * d->base.info.llc_bytes / 128 * 128;
    if (e == hipSuccess) /* the memory stays uninitialised */
        e = mf_hip_malloc(&d->c, &d->evict_buffer, d->evict_bytes + 64);
    d->canary_memory = e == hipSuccess ? hip_alloc(&d->base, 64) : NULL;
    return e != hipSuccess ? errno_of(e) : d->canary_memory ? 0 : -ENOMEM;
}

static int measure(struct hip_device *d, const struct mf_device_info *known, char *why, size_t why_cap)
{
    int r = open_streams(d);
    if (r < 0)
        mf_format(why, why_cap, "cannot open hip:%s:%d: %s", MF_HIP_VENDOR, d->ordinal, strerror(-r));
    else
        r = load_own_kernels(d, why, why_cap);
    if (r == 0 && !known) {
        r = measure_ceilings(d);
        if (r < 0)
            mf_format(why, why_cap, "cannot measure the device: %s", strerror(-r));
    }
    return r;
}

static int open_device(int ordinal, const struct mf_device_open_options *how, char *why, size_t why_cap,
                       struct mf_device **ret)
{
    struct hip_device *d = calloc(1, sizeof(*d));
    if (!d) {
        mf_format(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    d->base.ops = how->guest ? &guest_ops : &hip_ops;
    d->guest = how->guest;
    d->ordinal = ordinal;
    d->compiler.vendor = MF_HIP_VENDOR;
    int r = load_calls(&d->c, why, why_cap);
    if (r == 0)
        r = count_with(&d->c, why, why_cap);
    if (r >= 0 && ordinal >= r) {
        mf_format(why, why_cap, "hip:%s:%d: the runtime reports %d device%s", MF_HIP_VENDOR, ordinal, r,
                  r == 1 ? "" : "s");
        r = -EINVAL;
    }
    if (r >= 0)
        r = mf_code_version(MF_HIP_VENDOR, d->compiler.version, why, why_cap);
    if (r >= 0) {
        r = describe(d);
        mf_format(d->base.info.compiler, sizeof(d->base.info.compiler), "%s", d->compiler.version);
        mf_code_arch(&d->compiler, d->base.info.class.gfx);
        if (r < 0)
            mf_format(why, why_cap, "cannot open hip:%s:%d: %s", MF_HIP_VENDOR, ordinal, strerror(-r));
    }
    if (r >= 0 && !how->guest)
        r = measure(d, how->known, why, why_cap);
    if (r >= 0 && how->known)
        d->base.info = *how->known;
    if (r >= 0 && how->guest && is_hopper(d))
        (void)load_own_kernels(d, why, why_cap); /* if compilation fails, the L2 partitions stay unknown */
    if (r >= 0 && d->add_cycles)
        d->base.info.halves = find_halves(d);
    if (r >= 0 && how->guest)
        unload_own_kernels(d);
    if (r < 0) {
        hip_free(&d->base);
        return r;
    }
    *ret = &d->base;
    return 0;
}

const struct mf_hip_module *mf_hip_module_entry(void) __attribute__((visibility("default")));
const struct mf_hip_module *mf_hip_module_entry(void)
{
    static const struct mf_hip_module module = {.api = MF_HIP_MODULE_API,
                                                .sources = mf_code_sources_digest,
                                                .vendor = MF_HIP_VENDOR,
                                                .count = count,
                                                .identity = identity,
                                                .open = open_device};
    return &module;
}
