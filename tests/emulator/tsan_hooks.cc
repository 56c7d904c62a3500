/* Linked into every kernel object: the LDS, and the hooks that the compiler calls before each load and store
 * under -fsanitize=thread. These hooks replace libtsan, which is not linked. This file itself is compiled
 * without -fsanitize=thread. */
#include "calls.h"

struct mf_emulator_calls *mf_emulator;
/* Definition of the kernels' `extern __shared__ T lds[]`. */
alignas(1024) thread_local unsigned char lds[MF_EMULATOR_LDS];

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void mf_emulator_bind(struct mf_emulator_calls *e)
{
    mf_emulator = e;
}
EXPORTED void *mf_emulator_lds()
{
    return lds;
}

static inline void report_access(const void *p, uint32_t bytes, int kind, const void *pc)
{
    if ((uintptr_t)p - mf_emulator->now.stack >= MF_EMULATOR_STACK)
        mf_emulator->access(mf_emulator, p, bytes, kind, pc);
}

#define ACCESS(name, bytes, kind)                         \
    extern "C" void name(void *p)                         \
    {                                                     \
        report_access(p, bytes, kind, __builtin_return_address(0)); \
    }
#define ACCESSES(bytes)                                                           \
    ACCESS(__tsan_read##bytes, bytes, MF_ACCESS_READ)                             \
    ACCESS(__tsan_write##bytes, bytes, MF_ACCESS_WRITE)                           \
    ACCESS(__tsan_unaligned_read##bytes, bytes, MF_ACCESS_READ | MF_ACCESS_UNALIGNED) \
    ACCESS(__tsan_unaligned_write##bytes, bytes, MF_ACCESS_WRITE | MF_ACCESS_UNALIGNED)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

extern "C" void __tsan_read_range(void *p, unsigned long bytes)
{
    report_access(p, (uint32_t)bytes, MF_ACCESS_READ | MF_ACCESS_UNALIGNED, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void *p, unsigned long bytes)
{
    report_access(p, (uint32_t)bytes, MF_ACCESS_WRITE | MF_ACCESS_UNALIGNED, __builtin_return_address(0));
}
extern "C" void __tsan_init()
{
}
