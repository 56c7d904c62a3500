/* Fault injection, the sticky error state, and reports of API misuse. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "emulator/hip/runtime.h"

enum kind { NONE, ILLEGAL, ABORT, HANG, REFUSED, N_KINDS };
static const char *const kinds[N_KINDS] = {
    [ILLEGAL] = "illegal", [ABORT] = "abort", [HANG] = "hang", [REFUSED] = "refused"};

static struct {
    enum kind kind; /* NONE: no fault is planned yet */
    char name[64];
    int after;
    bool stays;
} plan;
static hipError_t state = hipSuccess;

hipError_t fake_state(void)
{
    return state;
}

void fake_break(hipError_t error)
{
    state = error;
}

_Noreturn void fake_misuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fputs("the tests' HIP runtime: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputs("\n", stderr);
    va_end(args);
    abort();
}

static void read_plan(void)
{
    const char *path = getenv("FAKE_HIP_FAULT");
    char kind[16] = "", more = 0;

    _cleanup_(mf_fclosep) FILE *f = path ? fopen(path, "re") : NULL;
    if (!f)
        return;
    if (fscanf(f, "%15s %63s %d%c", kind, plan.name, &plan.after, &more) < 3)
        fake_misuse("%s: expected one line KIND NAME N", path);
    plan.stays = more == '+';
    for (int i = NONE + 1; i < N_KINDS; i++) {
        if (strcmp(kinds[i], kind) == 0)
            plan.kind = (enum kind)i;
    }
    if (plan.kind == NONE)
        fake_misuse("%s: unknown fault kind '%s'", path, kind);
}

static enum kind fault_of(const char *name)
{
    if (plan.kind == NONE)
        read_plan();
    if (plan.kind == NONE || strcmp(name, plan.name) != 0 || --plan.after > 0)
        return NONE;
    const char *path = getenv("FAKE_HIP_FAULT");
    const bool there = (plan.stays ? access(path, F_OK) : unlink(path)) == 0;
    const enum kind kind = there ? plan.kind : NONE;
    if (!plan.stays || !there)
        plan.kind = NONE;
    return kind;
}

/* Aborts from another thread, as ROCm's runtime does at a memory fault. */
static _Noreturn void die_of_fault(void)
{
    (void)fputs("Memory access fault by GPU node-1 (Agent handle: 0x5581) on address 0x7f2a00000000. Reason: "
                "Unknown.\n",
                stderr);
    abort();
}

hipError_t fake_enter(const char *name)
{
    if (state != hipSuccess)
        return state;
    switch (fault_of(name)) {
    case NONE:
    case N_KINDS:
        break;
    case ILLEGAL:
        state = hipErrorIllegalAddress;
        break;
    case ABORT:
        die_of_fault();
    case HANG:
        for (;;)
            (void)pause();
    case REFUSED:
        return strcmp(name, "hipMalloc") == 0 ? hipErrorOutOfMemory : hipErrorNoBinaryForGpu;
    }
    return state;
}
