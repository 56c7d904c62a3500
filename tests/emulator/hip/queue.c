/* Streams and events. Operations are queued and run when the host waits for them. A stream's clock advances
 * by the CPU time of its launches, which is unrelated to the speed of a GPU. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "emulator/hip/runtime.h"

#define PAGE      4096u
#define LAUNCH_US 1.0 /* overhead of each launch */

enum op_kind { RUN, SET, COPY, RECORD };

struct op {
    struct op *next;
    enum op_kind kind;
    struct fake_launch launch;
    unsigned char *at;
    const unsigned char *from; /* COPY */
    uint32_t value;            /* SET: repeated 4-byte pattern */
    size_t bytes;
    hipEvent_t event;
};

struct ihipStream_t {
    struct ihipStream_t *next;
    struct op *first, **last;
    double us;
};

struct ihipEvent_t {
    struct ihipStream_t *stream; /* stream of the last record; NULL: never recorded */
    int waiting;                 /* queued records that have not run */
    double us;
};

static struct ihipStream_t null_stream = {.last = &null_stream.first};
static struct ihipStream_t *streams = &null_stream; /* list of all streams; ends with the null stream */
static uint64_t launches;

/* Kernels that measure a GPU's peak rates would take minutes on the emulator, so they only advance the clock.
 */
static const struct {
    const char *function;
    double us;
} slow_kernels[] = {{"mf_read", 2e6}, {"mf_peak", 1e6}};

struct ihipStream_t *fake_stream(hipStream_t stream)
{
    return stream ? stream : &null_stream;
}

static hipError_t append(struct ihipStream_t *s, const struct op *op)
{
    struct op *o = malloc(sizeof(*o));
    if (!o)
        return hipErrorOutOfMemory;
    *o = *op;
    o->next = NULL;
    *s->last = o;
    s->last = &o->next;
    return hipSuccess;
}

int fake_launch_copy(const struct fake_launch *from, struct fake_launch *ret)
{
    size_t bytes = from->function->kernel->bytes;
    *ret = *from;
    ret->arguments = aligned_alloc(128, (bytes + 127) / 128 * 128);
    if (!ret->arguments)
        return -ENOMEM;
    memcpy(ret->arguments, from->arguments, bytes);
    return 0;
}

hipError_t fake_queue_launch(struct ihipStream_t *s, const struct fake_launch *l)
{
    struct op op = {.kind = RUN};
    return fake_launch_copy(l, &op.launch) < 0 ? hipErrorOutOfMemory : append(s, &op);
}

hipError_t fake_queue_set(struct ihipStream_t *s, void *at, uint32_t value, size_t bytes)
{
    const struct op op = {.kind = SET, .at = at, .value = value, .bytes = bytes};
    return append(s, &op);
}

hipError_t fake_queue_copy(struct ihipStream_t *s, void *to, const void *from, size_t bytes)
{
    const struct op op = {.kind = COPY, .at = to, .from = from, .bytes = bytes};
    return append(s, &op);
}

bool fake_is_queued(const struct mf_object *object)
{
    for (const struct ihipStream_t *s = streams; s; s = s->next) {
        for (const struct op *o = s->first; o; o = o->next) {
            if (o->kind == RUN && o->launch.function->object == object)
                return true;
        }
    }
    return false;
}

/* ---- running ---- */

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void emulate(const struct fake_launch *l)
{
    char why[MF_EMULATOR_WHY_MAX + 128];
    uintptr_t pc;
    const uint64_t turn = launches++;
    const struct mf_emulator_launch e = {
        .module = &l->function->object->module,
        .call = l->function->kernel->call,
        .wave_lanes = 64,
        .grid = l->grid,
        .block = {l->block, 1, 1},
        .lds = l->lds,
        .arguments = l->arguments,
        .seed = turn % 3 == 2 ? 2 + turn : turn % 3,
        .known = fake_memory(),
    };

    fake_memory_open();
    int r = mf_emulator_run(&e, why, &pc);
    fake_memory_close();
    if (r == 0)
        return;
    if (r == -EFAULT)
        mf_object_add_line(l->function->object, pc, why, sizeof(why));
    (void)fprintf(stderr, "the tests' HIP runtime: %s: %s\n", l->function->kernel->name,
                  r == -ENOMEM ? strerror(-r) : why);
    fake_break(hipErrorIllegalAddress);
}

static void run_launch(struct ihipStream_t *s, const struct fake_launch *l)
{
    const char *name = l->function->kernel->name;
    double from = now_us();

    s->us += LAUNCH_US;
    if (fake_enter(name) != hipSuccess)
        return;
    for (size_t i = 0; i < MF_ARRAY_LEN(slow_kernels); i++) {
        if (strcmp(slow_kernels[i].function, name) == 0) {
            s->us += slow_kernels[i].us;
            return;
        }
    }
    emulate(l);
    s->us += now_us() - from;
}

/* Clears whole pages without touching them. */
static void run_set(const struct op *o)
{
    unsigned char *from = o->at, *to = o->at + o->bytes;

    fake_memory_open();
    if (o->value == 0 && o->bytes > 64 * PAGE) {
        unsigned char *first = from + (PAGE - (uintptr_t)from % PAGE) % PAGE,
                      *last = to - (uintptr_t)to % PAGE;
        memset(from, 0, (size_t)(first - from));
        if (madvise(first, (size_t)(last - first), MADV_DONTNEED) < 0)
            abort();
        from = last;
    }
    for (size_t i = 0; from + i < to; i++)
        from[i] = (unsigned char)(o->value >> i % 4 * 8);
    fake_memory_close();
}

static void run_copy(const struct op *o)
{
    fake_memory_open();
    memmove(o->at, o->from, o->bytes);
    fake_memory_close();
}

static void run_op(struct ihipStream_t *s, const struct op *o)
{
    if (o->kind == RECORD) {
        o->event->waiting--;
        o->event->us = s->us;
    } else if (fake_state() == hipSuccess) {
        if (o->kind == RUN)
            run_launch(s, &o->launch);
        else if (o->kind == COPY)
            run_copy(o);
        else
            run_set(o);
    }
}

static void run_first(struct ihipStream_t *s)
{
    struct op *o = s->first;

    s->first = o->next;
    if (!s->first)
        s->last = &s->first;
    run_op(s, o);
    free(o->launch.arguments);
    free(o);
}

static hipError_t run(struct ihipStream_t *s)
{
    while (s->first)
        run_first(s);
    return fake_state();
}

hipError_t fake_run_null(void)
{
    return run(&null_stream);
}

hipError_t fake_run_all(void)
{
    for (struct ihipStream_t *s = streams; s; s = s->next)
        (void)run(s);
    return fake_state();
}

/* ---- streams ---- */

CALL hipStreamCreateWithFlags(hipStream_t *ret, unsigned flags)
{
    FAKE_ENTER();
    if (flags != hipStreamNonBlocking)
        fake_misuse("only non-blocking streams are emulated");
    struct ihipStream_t *s = calloc(1, sizeof(*s));
    if (!s)
        return hipErrorOutOfMemory;
    s->last = &s->first;
    s->next = streams;
    streams = s;
    *ret = s;
    return hipSuccess;
}

CALL hipStreamSynchronize(hipStream_t stream)
{
    FAKE_ENTER_UNCAPTURED();
    return run(fake_stream(stream));
}

CALL hipDeviceSynchronize(void)
{
    FAKE_ENTER_UNCAPTURED();
    hipError_t r = run(&null_stream);
    for (struct ihipStream_t *s = streams; s && r == hipSuccess; s = s->next)
        r = run(s);
    return r;
}

CALL hipStreamDestroy(hipStream_t stream)
{
    FAKE_ENTER_UNCAPTURED();
    hipError_t r = run(stream);
    for (struct ihipStream_t **at = &streams; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    free(stream);
    return r;
}

/* ---- events ---- */

CALL hipEventCreateWithFlags(hipEvent_t *ret, unsigned flags)
{
    FAKE_ENTER();
    if (flags != hipEventDefault)
        fake_misuse("only events with hipEventDefault are emulated");
    *ret = calloc(1, sizeof(**ret));
    return *ret ? hipSuccess : hipErrorOutOfMemory;
}

CALL hipEventRecord(hipEvent_t event, hipStream_t stream)
{
    const struct op op = {.kind = RECORD, .event = event};

    FAKE_ENTER();
    if (fake_capture(fake_stream(stream)))
        fake_misuse("recording an event during capture is not emulated");
    event->stream = fake_stream(stream);
    event->waiting++;
    return append(event->stream, &op);
}

/* Runs the operations up to the event and no others. */
CALL hipEventSynchronize(hipEvent_t event)
{
    FAKE_ENTER_UNCAPTURED();
    while (event->waiting > 0)
        run_first(event->stream);
    return fake_state();
}

CALL hipEventElapsedTime(float *ret, hipEvent_t from, hipEvent_t to)
{
    FAKE_ENTER();
    if (!from->stream || !to->stream)
        return hipErrorInvalidHandle;
    if (from->waiting > 0 || to->waiting > 0)
        return hipErrorNotReady;
    *ret = (float)((to->us - from->us) / 1e3);
    return hipSuccess;
}

CALL hipEventDestroy(hipEvent_t event)
{
    FAKE_ENTER();
    if (event->waiting > 0)
        fake_misuse("an event is destroyed while a record of it is queued");
    free(event);
    return hipSuccess;
}
