/* Device interface: the properties and operations of a device, and the thread pool of the CPU. A runner uses
 * one device, from one thread. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/device_class.h"
#include "kernels/core/code.h"
#include "kernels/core/isa.h"
#include "kernels/core/l2_partitions.h"

#define MF_HUGE_PAGE ((size_t)2 << 20) /* size of a transparent huge page on Linux, in bytes */

#define MF_DEVICE_TEXT_MAX 96

struct mf_device_info {
    struct mf_device_class class;
    char model[MF_DEVICE_TEXT_MAX]; /* product name that the driver or the OS reports */
    char isa[MF_DEVICE_TEXT_MAX];   /* CPU: instruction set, "avx512_bf16+vnni", "avx2" or "c" */
    char compiler[MF_DEVICE_TEXT_MAX];
    char driver[MF_DEVICE_TEXT_MAX];   /* GPU: kernel driver version and runtime version */
    char identity[MF_DEVICE_TEXT_MAX]; /* GPU: UUID or PCI address, which does not depend on the ordinal */
    uint64_t memory_bytes;
    /* size of the last-level cache, which on a GPU is L2; the rotated weights must be larger than this cache
     */
    uint64_t llc_bytes;
    uint64_t lds_bytes; /* GPU: maximum shared memory of a block, in bytes */
    double clock_mhz;   /* maximum clock of a GPU */
    double memory_mhz;
    int cores;               /* maximum number of threads of a step */
    double peak_gflops_bf16; /* peak bf16 rate, measured on all cores */
    double peak_gflops_f32;
    double peak_gflops_fp8; /* peak rate of FP8 matrix instructions; 0 if the device has none */
    /* read bandwidth of HBM or DRAM, measured on all cores with a working set larger than every cache */
    double mem_read_gbs;
    double gap_us;              /* time that one more launch adds to a sample */
    struct mf_l2_halves halves; /* GPU: SMs on each partition of the L2 cache */
    bool simulated;
};

struct mf_device;

/* Launches kernel `index` of a sequence. One sample times a sequence of launches. */
typedef int (*mf_launch_fn)(void *context, int index);

/* A loaded code object (mf_module), and the grid of a launch (mf_grid). `block` is the number of threads per
 * block. */
struct mf_module;
struct mf_grid {
    uint32_t x, y, z, block;
    uint32_t shared; /* dynamic shared memory per block, in bytes */
    /* The argument buffer is one struct, passed by pointer, so that it may have its own alignment. */
    bool struct_argument;
    /* Programmatic dependent launch: the kernel may begin before the previous kernel has ended, and waits for
     * that kernel itself (mf_begin in kernels/gpu/src/dialect_nvidia.h). */
    bool programmatic_launch;
};

/* A tensor for TMA loads into shared memory. Rows are 128 bytes, and the 16-byte chunk c of a row is stored
 * at c ^ (row % 8). With `unswizzled`, rows have up to 256 elements, and their chunks stay in order. Lengths
 * and boxes are in elements, fastest dimension first. Strides are in bytes; all but stride[0] are multiples
 * of 16. */
struct mf_tma_tensor {
    void *at;
    int element_bytes; /* 1 or 2 */
    bool unswizzled;
    int rank;
    uint64_t length[5], stride[5]; /* stride[0] is the size of an element */
    uint32_t box[5];
};

struct mf_device_ops {
    const char *kind; /* "cpu", "hip", "sim" */
    /* True if alloc returns device memory that the host can access only through `copy`. Launches then receive
     * device addresses. */
    bool own_memory;
    void (*free)(struct mf_device *d);
    /* Returns zeroed whole pages, 64-byte aligned, or NULL if out of memory. */
    void *(*alloc)(struct mf_device *d, size_t bytes);
    void (*release)(struct mf_device *d, void *memory, size_t bytes);
    /* Copies synchronously between device memory and host memory, in any direction. Returns -EIO if the
     * device failed, and -ECANCELED, with the reason in open_error, if a stream capture forbids the copy. */
    int (*copy)(struct mf_device *d, void *to, const void *from, size_t bytes);
    /* Runs launch(context, 0) … launch(context, n - 1) back to back as one sample and sets *ret_us to the
     * sample's device time. Neither this function nor `launch` allocates, locks or makes system calls. Errors
     * of `launch` are returned unchanged. */
    int (*time)(struct mf_device *d, mf_launch_fn launch, void *context, int n, double *ret_us);
    /* Launches a graph that other code of the process has captured with the device's runtime (hipGraph_t or
     * CUgraph). Within `time`, the graph becomes a part of the sample. Otherwise it runs at once, and the
     * call returns when the graph has run. The caller keeps the graph and the memory that its kernels use
     * until the sample has run. Returns -ENODATA for a graph without kernels, and -ECANCELED, with the reason
     * in open_error, if the runtime refuses the graph. NULL for a device without graphs. */
    int (*launch_graph)(struct mf_device *d, void *graph);
    /* Times one run that cannot be captured, and sets *ret_us to the device time between the two events
     * around launch(context, 0). Calls before(context, 0), which may wait; then queues a delay, the work of
     * before(context, 1), and the launch on `stream`. The delay hides the time that the host needs, up to
     * 0.1 s; if it was too short, all of the run is repeated with a longer one. Work that the launch puts on
     * another stream runs during the delay, and so before the work of before(context, 1). NULL for a device
     * whose launches run on the host. */
    int (*time_eager)(struct mf_device *d, mf_launch_fn before, mf_launch_fn launch, void *context,
                      double *ret_us);
    /* Queues a fill of device memory with a repeated 4-byte pattern on `stream`. bytes is a multiple of 4.
     * NULL for a device without streams. */
    int (*fill)(struct mf_device *d, void *at, size_t bytes, uint32_t pattern);
    /* Queues a copy within device memory on `stream`. NULL for a device without streams. */
    int (*queue_copy)(struct mf_device *d, void *to, const void *from, size_t bytes);
    /* Replaces the contents of the L2 cache and of the instruction caches with unrelated data and code, so
     * that the next timed launch starts cold and does not wait for the write-back of dirty lines. *ret_bytes
     * is the size of the buffer that replaces the L2 contents. Returns launch errors. If evict_caches is
     * NULL, nothing is evicted between samples. */
    int (*evict_caches)(struct mf_device *d, double *ret_bytes);
    /* Functions for prebuilt code objects. Either all four are set, or all are NULL because the device cannot
     * load code objects. If module_load fails, it returns -errno and writes the reason to why.
     * module_function returns -ENOENT for an unknown name. module_launch passes the argument buffer of
     * `bytes` bytes as HIP_LAUNCH_PARAM_BUFFER_POINTER does or, with struct_argument, as the only pointer of
     * kernelParams. `stream` is a hipStream_t or CUstream; NULL: the default stream. Like mf_family.launch,
     * module_launch makes no allocations, locks or system calls. */
    int (*module_load)(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret);
    struct mf_module *(*module_unload)(struct mf_device *d, struct mf_module *m);
    int (*module_function)(struct mf_device *d, struct mf_module *m, const char *name, void **ret);
    int (*module_launch)(struct mf_device *d, void *function, const struct mf_grid *grid, const void *block,
                         size_t bytes, void *stream);
    /* Compiles the kernels (kernels/core/code.h) whose code objects are not in the code cache. Runs one
     * process per kernel, and as many processes at once as there are processors. If kernel i does not
     * compile, paths[i] is empty and whys[i] has the compiler's output. NULL for a device whose kernels are
     * not compiled at run time. */
    int (*compile)(struct mf_device *d, const struct mf_code *codes, size_t n, char (*paths)[PATH_MAX],
                   char (*whys)[MF_CODE_WHY_MAX]);
    /* Writes the 128-byte TMA tensor map of a tensor to ret (mf_hip_map in kernels/gpu/src/args.h). Returns
     * -ENOTSUP if the device has no TMA. NULL for a device without code objects. */
    int (*tensor_map)(struct mf_device *d, const struct mf_tma_tensor *t, void *ret);
    /* Times one run of a fixed reference kernel (the canary). If `canary` is NULL, the caller times a kernel
     * of its own. */
    int (*canary)(struct mf_device *d, double *ret_us);
    /* Makes the device current for the calling thread. Every thread except the one that opened the device
     * calls this before any other operation. */
    int (*enter)(struct mf_device *d);
    /* Waits for all work on the device, launched by any code of the process. Returns -EIO if the device
     * failed. Returns -EBUSY if a stream capture was in progress, and invalidates the capture. A runner exits
     * instead if a capture of foreign code stays open, because the device then refuses most calls. */
    int (*sync)(struct mf_device *d);
};

/* Resource usage of a step's kernels. Each field is the maximum over the kernels, or 0 if it is unknown, as
 * on the CPU. */
struct mf_resource_usage {
    int registers; /* per thread */
    int spills;    /* bytes of local memory per thread for spilled registers */
    int lds;       /* bytes of shared memory per block, static and dynamic */
    /* resident blocks per SM or CU; -1 if not even one block fits, so that a launch returns -E2BIG */
    int occupancy;
};

struct mf_device {
    const struct mf_device_ops *ops;
    struct mf_device_info info;
    /* Where to store the resource usage of kernels that are looked up and launched; NULL: usage is not
     * stored. */
    struct mf_resource_usage *use;
    /* Stream of launches on a GPU, except those of a kernel's copy (mf_family.copy): hipStream_t or CUstream;
     * NULL: the default stream. The caller may set it if the device was opened with `guest`, otherwise the
     * device itself sets it when it is opened. */
    void *stream;
    /* Output of the compiler or runtime for the last kernel that failed to open, to be prepared or to launch;
     * "" if none failed. */
    char open_error[256];
};

/* Opens a device (kernels/device_open.c): "cpu:0", "hip:amd:<ordinal>", "hip:nvidia:<ordinal>" or
 * "sim:<class>:<ordinal>[:<spec file>]" (for example "sim:gfx942/304:0"). Measures the ceilings (peak rates)
 * of a device that is not simulated, which takes a fraction of a second. Returns -EINVAL, with the reason in
 * why, for an invalid name. */
int mf_device_open(const char *name, char *why, size_t why_cap, struct mf_device **ret);
struct mf_device_open_options {
    /* Ceilings that an earlier process measured on this device, so that a new runner starts in milliseconds.
     * NULL: the ceilings are measured. */
    const struct mf_device_info *known;
    /* True if the process is a host application that runs its own work on the device. Ceilings are then not
     * measured, and are 0 unless `known` has them. `time` is unavailable. Launches go to the application's
     * streams, except for one launch on the default stream that measures the L2 partitions. Calls on a failed
     * device return -EIO; a runner would exit instead. */
    bool guest;
};
int mf_device_open_with(const char *name, const struct mf_device_open_options *how, char *why, size_t why_cap,
                        struct mf_device **ret);
struct mf_device *mf_device_close(struct mf_device *d);

/* Thread pool of the CPU: runs fn(context, thread, n_threads) on n_threads threads at once and returns when
 * all calls have returned. The calling thread is thread 0. Threads are pinned and spin for a while between
 * calls. A process has one pool, which mf_device_open("cpu:…") or the first call of mf_pool_run creates.
 * n_threads is at most mf_pool_threads(). */
typedef void (*mf_pool_fn)(void *context, int thread, int n_threads);
int mf_pool_threads(void);
/* Returns the number of threads that a job of this many elements should use. A small job uses one thread,
 * which finishes before a second thread has woken up. */
int mf_pool_threads_for(int64_t elements);
void mf_pool_run(mf_pool_fn fn, void *context, int n_threads);
/* Waits until every thread of the running mf_pool_run call has reached the barrier. Separates the phases of
 * one launch. */
void mf_pool_barrier(void);
