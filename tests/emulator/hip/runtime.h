/* A libamdhip64 for tests: the HIP calls that kernels/gpu/host/device_hip.c makes, over the emulator, and hipRTC, which makes the
 * emulator's objects. What it stands for is a runtime's side of the contract, held as narrowly as the documentation allows:
 *
 *   - what is put into a stream runs when somebody waits for it, for an event of it or for the device, and not before;
 *   - a copy is of the null stream, which waits for no stream that was made non-blocking;
 *   - memory is the device's: outside of launches and copies it cannot be touched, a copy stays within one allocation;
 *   - while a stream is being captured, calls that a capture forbids fail and spoil it;
 *   - after a fault every call fails until the process ends.
 *
 * What breaks a rule that a real runtime would not notice ends the process with a sentence. Calls come from one thread.
 *
 *   FAKE_HIP_DEVICES    so many devices, 1
 *   FAKE_HIP_UNITS      compute units of each, 2
 *   FAKE_HIP_ARCH       gfx90a or gfx942; gfx90a
 *   FAKE_HIP_REGISTERS, FAKE_HIP_SPILLS    what every function says of itself; 0, not known
 *   FAKE_HIP_FAULT      a file with one line, "KIND NAME N": when a process runs a kernel of that name for the n-th time, makes
 *                       that call, or loads code whose first kernel it is (load:mf_one), it goes wrong. KIND is illegal
 *                       (hipErrorIllegalAddress), abort (as ROCm's runtime does at a memory fault), hang (it never ends) or,
 *                       of hipMalloc and of loading, refused. Who is struck removes the file, so that one process is; with
 *                       "N+" it stays, and so do the refusals from the n-th on. */
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

/* Begins a call, or the launch of a kernel: hipSuccess, the error that it has to end with, or no return. */
hipError_t fake_enter(const char *name);
/* Ends the process: the host broke a rule. */
_Noreturn void fake_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* hipSuccess until a launch faults, and then its error for ever. */
hipError_t fake_state(void);
void fake_break(hipError_t error);

/* ---- memory.c ---- */

struct mf_known *fake_memory(void);
/* Lets launches, and copies, at it. */
void fake_memory_open(void);
void fake_memory_close(void);

/* ---- queue.c ---- */

/* A launch as it was asked for. */
struct fake_launch {
    const struct mf_object_function *function;
    struct mf_emulator_dim grid;
    uint32_t block, lds;
    void *arguments; /* a copy */
};
/* The null stream for NULL. */
struct ihipStream_t *fake_stream(hipStream_t stream);
/* Behind what the stream has; the arguments are copied once more. */
hipError_t fake_queue_launch(struct ihipStream_t *s, const struct fake_launch *l);
hipError_t fake_queue_set(void *at, int value, size_t bytes);
/* All that the null stream has; what all streams have. */
hipError_t fake_run_null(void);
hipError_t fake_run_all(void);
bool fake_is_queued(const struct mf_object *object);

/* ---- graph.c ---- */

struct ihipGraph {
    struct fake_launch *launches;
    size_t n;
};
/* -> the graph that launches of the stream go to; NULL: they run. */
struct ihipGraph *fake_capture(const struct ihipStream_t *s);
hipError_t fake_graph_add(struct ihipGraph *g, const struct fake_launch *l);
/* For calls that no capture allows: hipSuccess when there is none, and otherwise what they have to return; the capture is
 * spoilt. */
hipError_t fake_capture_forbids(void);

int fake_launch_copy(const struct fake_launch *from, struct fake_launch *ret);

/* How every call that a broken device, and a capture, refuses begins. */
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
