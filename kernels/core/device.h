/* A device: a table of calls and what it says of itself. One runner drives one device from one thread. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/device_class.h"
#include "kernels/core/code.h"
#include "kernels/core/l2_halves.h"

#define MF_HUGE_PAGE ((size_t)2 << 20) /* of Linux, where it has any for the memory */

#define MF_DEVICE_TEXT_MAX 96

struct mf_device_info {
    struct mf_device_class class;
    char model[MF_DEVICE_TEXT_MAX]; /* SKU, as the machine names it */
    char isa[MF_DEVICE_TEXT_MAX];   /* "avx512_bf16+vnni", "avx2", "c" */
    char compiler[MF_DEVICE_TEXT_MAX];
    char driver[MF_DEVICE_TEXT_MAX];   /* of a GPU: the kernel's driver, and the runtime */
    char identity[MF_DEVICE_TEXT_MAX]; /* of a GPU, whatever its ordinal: UUID or PCI address */
    uint64_t memory_bytes;
    uint64_t llc_bytes; /* last cache: what rotation has to exceed */
    uint64_t lds_bytes; /* of a GPU: shared memory that one block may have */
    double clock_mhz;   /* of a GPU: its highest */
    double memory_mhz;
    int cores;               /* threads that a step may use */
    double peak_gflops_bf16; /* measured, all cores */
    double peak_gflops_f32;
    double peak_gflops_fp8;     /* of matrix instructions on 8-bit floats; 0: none of their own */
    double mem_read_gbs;        /* measured, all cores, beyond every cache */
    double gap_us;              /* what one more launch costs */
    struct mf_l2_halves halves; /* of a GPU's last cache */
    bool simulated;
};

struct mf_device;

/* A launch is one call of a kernel on its arguments; a sequence of them is one sample. */
typedef int (*mf_launch_fn)(void *context, int index);

/* A code object that is loaded, and the groups of a launch of one of its functions, each of `block` threads. */
struct mf_module;
struct mf_grid {
    uint32_t x, y, z, block;
    uint32_t shared; /* bytes of LDS beside what the function declares itself */
    bool
        whole; /* the block of arguments is one argument, a structure that may ask for an alignment of its own */
    bool early; /* may begin before the launch before it has ended: the function waits for that by itself
                   (mf_begin of kernels/gpu/src/dialect_nvidia.h) */
};

/* A tensor for bulk copies into LDS, rows of 128 bytes whose 16-byte chunks come to lie at chunk ^ (row % 8), or, straight, rows
 * of up to 256 elements as they are; lengths and boxes in elements, the fastest dimension first; strides of the others in bytes,
 * multiples of 16. */
struct mf_bulk_tensor {
    void *at;
    int element_bytes; /* 1, 2 */
    bool straight;
    int rank;
    uint64_t length[5], stride[5]; /* stride[0] is the element's */
    uint32_t box[5];
};

struct mf_device_ops {
    const char *kind; /* "cpu", "hip", "sim" */
    /* What alloc gives is not the host's: only copy reaches it, and what launches get are its addresses. */
    bool own_memory;
    void (*free)(struct mf_device *d);
    /* Zeroed, 64-byte aligned, of whole pages; NULL when out of memory. */
    void *(*alloc)(struct mf_device *d, size_t bytes);
    void (*release)(struct mf_device *d, void *memory, size_t bytes);
    /* Between any two of its memory and the host's; done when it returns. -EIO: the device failed. */
    int (*copy)(struct mf_device *d, void *to, const void *from, size_t bytes);
    /* Runs launch(context, 0) … launch(context, n - 1) back to back as one sample and gives its device time.
     * Nothing in it allocates, locks or enters the kernel. The launch's own error comes back unchanged. */
    int (*time)(struct mf_device *d, mf_launch_fn launch, void *context, int n, double *ret_us);
    /* Puts *ret_bytes of nobody's in the place of all that is in the last cache, and code of nobody's in the place of what its units keep:
     * what is timed next finds nothing of its own, whoever ran before it, and does not wait for what others wrote to be put away. The
     * launch's own error comes back. NULL: samples follow each other as they come. */
    int (*wash)(struct mf_device *d, double *ret_bytes);
    /* Prebuilt code; all four, or all NULL for a device that loads none. load: -errno with a sentence in why. function:
     * -ENOENT. launch hands every group the block of `bytes` of arguments, as HIP_LAUNCH_PARAM_BUFFER_POINTER does
     * or, where it is whole, as the only pointer of kernelParams, and is bound by what mf_family.launch is bound by. */
    int (*module_load)(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret);
    struct mf_module *(*module_unload)(struct mf_device *d, struct mf_module *m);
    int (*module_function)(struct mf_device *d, struct mf_module *m, const char *name, void **ret);
    int (*module_launch)(struct mf_device *d, void *function, const struct mf_grid *grid, const void *block,
                         size_t bytes);
    /* Code objects of sources (kernels/core/code.h), compiled where the cache has them not, as many at once as there are
     * processors, each in a process of its own. paths[i] is empty for one that does not compile, and whys[i] then holds
     * the compiler's words. NULL for a device that compiles nothing. */
    int (*compile)(struct mf_device *d, const struct mf_code *codes, size_t n, char (*paths)[PATH_MAX],
                   char (*whys)[MF_CODE_WHY_MAX]);
    /* What a kernel needs to know of a tensor that it copies in bulk, 128 bytes of it (mf_hip_map of kernels/gpu/src/args.h).
     * -ENOTSUP: a device without such copies; NULL for one that has no code objects. */
    int (*bulk_map)(struct mf_device *d, const struct mf_bulk_tensor *t, void *ret);
    /* One run of a fixed kernel; NULL: there is none, and whoever wants one brings his own. */
    int (*canary)(struct mf_device *d, double *ret_us);
    /* A thread calls it before others of these, unless it opened the device: to it, this is the current one then. */
    int (*enter)(struct mf_device *d);
    /* Waits for all that was launched on the device, by whomever. -EIO: it failed; -EBUSY: of a guest, something on the device is
     * being captured, and that capture is spoilt. */
    int (*sync)(struct mf_device *d);
};

/* What the functions of a step take of a compute unit, of the one that takes most; 0: not known, as on the CPU. */
struct mf_device_use {
    int registers; /* of a thread */
    int spills;    /* bytes of memory that a thread has for what its registers cannot hold */
    int lds;       /* bytes of a block, its own and those asked for at launch */
    int occupancy; /* blocks that a unit holds at once; -1: not even one, and the launch is refused with -E2BIG */
};

struct mf_device {
    const struct mf_device_ops *ops;
    struct mf_device_info info;
    struct mf_device_use
        *use; /* where functions that are looked up and launched are noted; NULL: nobody asks */
    void *
        stream; /* of a guest on a GPU: hipStream_t or CUstream of the next launches; NULL: the default one */
    char words[256]; /* of the last kernel that did not open: the compiler's or the runtime's; "": none */
};

/* "cpu:0", "hip:amd:<ordinal>", "hip:nvidia:<ordinal>", or "sim:<class>:<ordinal>[:<spec file>]" ("sim:gfx942/304:0"). Measures the ceilings of a real
 * device (a fraction of a second). -EINVAL with the sentence in why for a name of no device. */
int mf_device_open(const char *name, char *why, size_t why_cap, struct mf_device **ret);
struct mf_device_opening {
    /* The ceilings that an earlier process measured on this device: a new runner need not measure again and starts in
     * milliseconds. NULL measures. */
    const struct mf_device_info *known;
    /* The process is somebody else's, who serves with it: no ceilings are measured (they are 0 unless known), nothing can be
     * timed, launches go to streams of his, but for the one on the default stream that tells the halves of the last cache apart, and calls
     * on a device that failed give -EIO where a runner would end. */
    bool guest;
};
int mf_device_open_as(const char *name, const struct mf_device_opening *how, char *why, size_t why_cap,
                      struct mf_device **ret);
struct mf_device *mf_device_close(struct mf_device *d);

/* Instruction sets of the CPU kernels, best first; what is below the machine's best can be asked for by the
 * environment variable MOEFARM_ISA (tests do). */
enum mf_isa { MF_ISA_C, MF_ISA_AVX2, MF_ISA_AVX512 /* with BF16 and VNNI */ };
enum mf_isa mf_isa_best(void);
const char *mf_isa_name(enum mf_isa isa);

/* The CPU's threads: fn(context, thread, n_threads) on n_threads of the pool's threads at once, the caller
 * being thread 0; returns when all are done. Threads are pinned and spin for a while between calls. The pool
 * belongs to the process and is made by mf_device_open("cpu:…") or by the first call; n_threads is at most
 * mf_pool_threads(). */
typedef void (*mf_pool_fn)(void *context, int thread, int n_threads);
int mf_pool_threads(void);
/* How many work on so many elements is worth: a few are done before another thread has woken. */
int mf_pool_threads_for(int64_t elements);
void mf_pool_run(mf_pool_fn fn, void *context, int n_threads);
/* Waits until every thread of the running call is here: for phases within one launch. */
void mf_pool_barrier(void);
