/* Device memory. An inaccessible page follows each allocation. All device memory is inaccessible except
 * during launches and copies. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "emulator/hip/runtime.h"

#define PAGE  4096u
#define ALIGN 256u /* minimum alignment of hipMalloc */
#define JUNK  0xcd
/* Larger allocations are not filled with junk, because touching gigabytes takes time. */
#define JUNK_MAX ((size_t)64 << 20)

struct block {
    unsigned char *map, *at;
    size_t map_bytes, bytes;
};

static struct {
    struct block *blocks;
    size_t n, cap, bytes;
    struct mf_known known;
    bool is_open;
} memory;

struct mf_known *fake_memory(void)
{
    return &memory.known;
}

static void protect(const struct block *b, int protection)
{
    if (mprotect(b->map, b->map_bytes - PAGE, protection) < 0)
        abort();
}

void fake_memory_open(void)
{
    memory.is_open = true;
    for (size_t i = 0; i < memory.n; i++)
        protect(&memory.blocks[i], PROT_READ | PROT_WRITE);
}

void fake_memory_close(void)
{
    memory.is_open = false;
    for (size_t i = 0; i < memory.n; i++)
        protect(&memory.blocks[i], PROT_NONE);
}

static hipError_t make_block(size_t bytes, struct block *ret)
{
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN, pages = (room + PAGE - 1) / PAGE * PAGE;
    struct block b = {.bytes = bytes, .map_bytes = pages + PAGE};

    b.map = mmap(NULL, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.map == MAP_FAILED)
        return hipErrorOutOfMemory;
    b.at = b.map + pages - room;
    if (mf_known_add(&memory.known, b.at, bytes, true) < 0)
        abort();
    if (bytes <= JUNK_MAX) {
        protect(&b, PROT_READ | PROT_WRITE);
        memset(b.map, JUNK, pages);
        protect(&b, PROT_NONE);
    }
    *ret = b;
    return hipSuccess;
}

CALL hipMalloc(void **ret, size_t bytes)
{
    FAKE_ENTER_UNCAPTURED();
    if (bytes > DEVICE_MEMORY - memory.bytes)
        return hipErrorOutOfMemory;
    if (memory.n == memory.cap) {
        memory.cap = memory.cap ? 2 * memory.cap : 64;
        memory.blocks = reallocarray(memory.blocks, memory.cap, sizeof(memory.blocks[0]));
        if (!memory.blocks)
            abort();
    }
    struct block *b = &memory.blocks[memory.n];
    hipError_t r = make_block(bytes, b);
    if (r != hipSuccess)
        return r;
    memory.n++;
    memory.bytes += bytes;
    *ret = b->at;
    return hipSuccess;
}

/* Waits for the device first, as HIP documents for hipFree. */
CALL hipFree(void *p)
{
    FAKE_ENTER_UNCAPTURED();
    hipError_t r = fake_run_all();
    if (r != hipSuccess || !p)
        return r;
    for (size_t i = 0; i < memory.n; i++) {
        struct block *b = &memory.blocks[i];
        if (b->at != p)
            continue;
        mf_known_remove(&memory.known, b->at);
        (void)munmap(b->map, b->map_bytes);
        memory.bytes -= b->bytes;
        *b = memory.blocks[--memory.n];
        return hipSuccess;
    }
    return hipErrorInvalidValue;
}

/* Returns true if the bytes lie within one allocation or outside all allocations. */
static bool is_whole(const void *p, size_t bytes)
{
    const struct mf_known_range *r = mf_known_below(&memory.known, (uintptr_t)p + bytes - 1);
    uintptr_t from = (uintptr_t)p;

    return !r || from + bytes <= r->from || from >= r->to || (from >= r->from && from + bytes <= r->to);
}

CALL hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
    FAKE_ENTER_UNCAPTURED();
    if (kind != hipMemcpyDefault)
        fake_misuse("only copies of kind hipMemcpyDefault are emulated");
    hipError_t r = fake_run_null();
    if (r != hipSuccess || bytes == 0)
        return r;
    if (!to || !from || !is_whole(to, bytes) || !is_whole(from, bytes))
        return hipErrorInvalidValue;
    fake_memory_open();
    memcpy(to, from, bytes);
    fake_memory_close();
    return hipSuccess;
}

static bool is_in_memory(const void *at, size_t bytes)
{
    const struct mf_known_range *r = mf_known_below(&memory.known, (uintptr_t)at);
    return r && (uintptr_t)at + bytes <= r->to;
}

/* hipMemset does not wait if the memory is device memory: the operation is queued. */
CALL hipMemset(void *to, int value, size_t bytes)
{
    FAKE_ENTER_UNCAPTURED();
    if (!is_in_memory(to, bytes))
        return hipErrorInvalidValue;
    return fake_queue_set(fake_stream(NULL), to, (uint8_t)value * 0x01010101u, bytes);
}

CALL hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream)
{
    FAKE_ENTER();
    if (!is_in_memory(to, bytes) || !is_in_memory(from, bytes))
        return hipErrorInvalidValue;
    if (fake_capture(fake_stream(stream)))
        fake_misuse("copying during capture is not emulated");
    return fake_queue_copy(fake_stream(stream), to, from, bytes);
}

CALL hipMemsetD32Async(hipDeviceptr_t to, int value, size_t n, hipStream_t stream)
{
    FAKE_ENTER();
    if (!is_in_memory(to, n * 4))
        return hipErrorInvalidValue;
    if (fake_capture(fake_stream(stream)))
        fake_misuse("filling memory during capture is not emulated");
    return fake_queue_set(fake_stream(stream), to, (uint32_t)value, n * 4);
}
