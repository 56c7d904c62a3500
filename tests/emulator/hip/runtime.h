/* A fake libamdhip64 for tests: the HIP calls of kernels/gpu/host/device_hip.c, implemented on the emulator,
 * and hipRTC, which builds emulator objects. It implements the documented contract as strictly as possible:
 *
 *   - queued work runs when the host waits for its stream, for an event or for the device, never before;
 *   - a copy runs in the null stream, which does not wait for non-blocking streams;
 *   - device memory is accessible only during launches and copies; a copy stays within one allocation;
 *   - during stream capture, forbidden calls fail and invalidate the capture;
 *   - after a fault every call fails until the process ends.
 *
 * API misuse that a real runtime would not detect aborts the process with a message. Not thread-safe.
 *
 *   FAKE_HIP_DEVICES    number of devices (default: 1)
 *   FAKE_HIP_UNITS      compute units per device (default: 2)
 *   FAKE_HIP_ARCH       gfx90a or gfx942 (default: gfx90a)
 *   FAKE_HIP_REGISTERS, FAKE_HIP_SPILLS    attributes of every function (default: 0, unknown)
 *   FAKE_HIP_FAULT      file with one line "KIND NAME N", which plants a fault at the Nth event NAME of a
 *                       process. NAME is a kernel (the event is a run of it), an API call, or load:KERNEL
 *                       (the event is loading code with KERNEL as its first kernel). KIND is illegal
 *                       (hipErrorIllegalAddress), abort (like ROCm's runtime at a memory fault), hang (the
 *                       event never ends) or, for hipMalloc and loading, refused. The process removes the
 *                       file at the fault, so only one process fails. With "N+" the file stays, and every
 *                       event from the Nth on is refused. */
#pragma once

#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emulator/known.h"
#include "emulator/object.h"

#define CALL __attribute__((visibility("default"))) hipError_t

#define DEVICE_LDS    65536
#define DEVICE_MEMORY (UINT64_C(4) << 30)

/* ---- describe.c ---- */

int fake_number(const char *variable, int otherwise);
const struct mf_flavour *fake_flavour(void);

/* ---- faults.c ---- */

/* Called at the start of each API call and kernel launch. Returns hipSuccess or the error that the call must
 * return. Does not return if the planted fault aborts or hangs. */
hipError_t fake_enter(const char *name);
/* Reports API misuse by the host and aborts. */
_Noreturn void fake_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns hipSuccess until a launch faults, and then always the error of that launch. */
hipError_t fake_state(void);
void fake_break(hipError_t error);

/* ---- memory.c ---- */

struct mf_known *fake_memory(void);
/* Makes device memory accessible to launches and copies. */
void fake_memory_open(void);
void fake_memory_close(void);

/* ---- queue.c ---- */

/* A queued launch. */
struct fake_launch {
    const struct mf_object_function *function;
    struct mf_emulator_dim grid;
    uint32_t block, lds;
    void *arguments; /* copy of the caller's arguments */
};
/* Returns the null stream if stream is NULL. */
struct ihipStream_t *fake_stream(hipStream_t stream);
/* Appends a launch with a copy of its arguments to the stream. */
hipError_t fake_queue_launch(struct ihipStream_t *s, const struct fake_launch *l);
/* Appends a fill with a repeated 4-byte pattern to the stream. */
hipError_t fake_queue_set(struct ihipStream_t *s, void *at, uint32_t value, size_t bytes);
/* Appends a copy within device memory to the stream. */
hipError_t fake_queue_copy(struct ihipStream_t *s, void *to, const void *from, size_t bytes);
/* fake_run_null runs all operations of the null stream; fake_run_all runs all operations of all streams. */
hipError_t fake_run_null(void);
hipError_t fake_run_all(void);
bool fake_is_queued(const struct mf_object *object);

/* ---- graph.c ---- */

struct ihipGraph {
    struct fake_launch *launches;
    size_t n;
};
/* Returns the graph that captures the stream's launches; NULL if the stream is not being captured. */
struct ihipGraph *fake_capture(const struct ihipStream_t *s);
hipError_t fake_graph_add(struct ihipGraph *g, const struct fake_launch *l);
/* Called by functions that are forbidden during capture. If no capture is active, returns hipSuccess.
 * Otherwise invalidates the capture and returns the error that the function must return. */
hipError_t fake_capture_forbids(void);

int fake_launch_copy(const struct fake_launch *from, struct fake_launch *ret);

/* FAKE_ENTER is the first statement of every API call that fails on a faulted device. FAKE_ENTER_UNCAPTURED
 * is the first statement of every API call that also fails during capture. */
#define FAKE_ENTER()                               \
    do {                                           \
        hipError_t refused = fake_enter(__func__); \
        if (refused != hipSuccess)                 \
            return refused;                        \
    } while (0)
#define FAKE_ENTER_UNCAPTURED()                        \
    do {                                               \
        FAKE_ENTER();                                  \
        hipError_t forbidden = fake_capture_forbids(); \
        if (forbidden != hipSuccess)                   \
            return forbidden;                          \
    } while (0)
