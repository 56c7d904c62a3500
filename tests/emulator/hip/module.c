/* Code objects, which are objects of the emulator (object.h), and function attributes. */
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "emulator/hip/runtime.h"

#define UNIT_WAVES     32  /* waves per compute unit of CDNA: 8 on each of its 4 SIMDs */
#define SIMD_REGISTERS 512 /* registers per lane, shared by all waves of a SIMD */

struct ihipModule_t {
    struct mf_object *object;
    int file;
};

/* Returns the length of an image, computed from the section headers, which come last. Returns -1 if the image
 * is not a shared object for this machine. */
static ssize_t length_of(const void *image)
{
    const Elf64_Ehdr *e = image;

    if (memcmp(e->e_ident, ELFMAG, SELFMAG) != 0 || e->e_ident[EI_CLASS] != ELFCLASS64 ||
        e->e_type != ET_DYN || e->e_machine != EM_X86_64)
        return -1;
    return (ssize_t)(e->e_shoff + (uint64_t)e->e_shnum * e->e_shentsize);
}

static int put_into_file(const void *image, size_t bytes)
{
    int file = memfd_create("code object", MFD_CLOEXEC);

    for (size_t at = 0; file >= 0 && at < bytes;) {
        ssize_t n = write(file, (const char *)image + at, bytes - at);
        if (n < 0)
            mf_closep(&file);
        at += n > 0 ? (size_t)n : 0;
    }
    return file;
}

CALL hipModuleLoadData(hipModule_t *ret, const void *image)
{
    char path[64], why[256], what[96];

    FAKE_ENTER_UNCAPTURED();
    ssize_t bytes = length_of(image);
    if (bytes < 0)
        return hipErrorNoBinaryForGpu;
    struct ihipModule_t *m = calloc(1, sizeof(*m));
    if (!m)
        return hipErrorOutOfMemory;
    m->file = put_into_file(image, (size_t)bytes);
    /* The path must work in other processes too, because addr2line reads it. */
    mf_format(path, sizeof(path), "/proc/%ld/fd/%d", (long)getpid(), m->file);
    int r = m->file < 0 ? -errno : mf_object_load(path, why, sizeof(why), &m->object);
    hipError_t e = r == 0 ? hipSuccess : r == -ENOMEM ? hipErrorOutOfMemory : hipErrorNoBinaryForGpu;
    if (r == 0) {
        mf_format(what, sizeof(what), "load:%s", m->object->functions[0].kernel->name);
        e = fake_enter(what);
    }
    if (e != hipSuccess) {
        m->object = mf_object_unload(m->object);
        mf_closep(&m->file);
        free(m);
        return e;
    }
    *ret = m;
    return hipSuccess;
}

CALL hipModuleUnload(hipModule_t m)
{
    FAKE_ENTER_UNCAPTURED();
    if (fake_is_queued(m->object))
        fake_misuse("a module is unloaded while launches of it are queued");
    m->object = mf_object_unload(m->object);
    mf_closep(&m->file);
    free(m);
    return hipSuccess;
}

/* A hipFunction_t points to an entry of the object. */
static const struct mf_object_function *function_of(hipFunction_t f)
{
    return (const struct mf_object_function *)(const void *)f;
}

CALL hipModuleGetFunction(hipFunction_t *ret, hipModule_t m, const char *name)
{
    FAKE_ENTER();
    struct mf_object_function *f = mf_object_find(m->object, name);
    *ret = (hipFunction_t)(void *)f;
    return f ? hipSuccess : hipErrorNotFound;
}

static int own_lds(hipFunction_t f)
{
    return (int)function_of(f)->object->module.lds_at;
}

CALL hipFuncGetAttribute(int *ret, hipFunction_attribute what, hipFunction_t f)
{
    FAKE_ENTER();
    if (what == HIP_FUNC_ATTRIBUTE_NUM_REGS)
        *ret = fake_number("FAKE_HIP_REGISTERS", 0);
    else if (what == HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
        *ret = fake_number("FAKE_HIP_SPILLS", 0);
    else if (what == HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        *ret = own_lds(f);
    else
        return hipErrorInvalidValue;
    return hipSuccess;
}

CALL hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *ret, hipFunction_t f, int block, size_t lds)
{
    int waves = UNIT_WAVES, each = (block + 63) / 64, registers = fake_number("FAKE_HIP_REGISTERS", 0);
    size_t all = lds + (size_t)own_lds(f);

    FAKE_ENTER();
    if (registers > 0)
        waves = MF_MIN(waves, 4 * (SIMD_REGISTERS / registers));
    *ret = waves / each;
    if (all > 0)
        *ret = MF_MIN(*ret, (int)(DEVICE_LDS / all));
    return hipSuccess;
}

/* Returns the argument block, which is passed in `params` or in `extra`. Its length must be that of the
 * function's arguments. */
static hipError_t take_arguments(hipFunction_t f, void **params, void **extra, void **ret)
{
    size_t bytes = function_of(f)->kernel->bytes;
    const void *from = params ? params[0] : NULL;

    if (!params == !extra)
        return hipErrorInvalidValue;
    if (extra) {
        if (extra[0] != HIP_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != HIP_LAUNCH_PARAM_BUFFER_SIZE ||
            extra[4] != HIP_LAUNCH_PARAM_END || *(const size_t *)extra[3] != bytes)
            return hipErrorInvalidValue;
        from = extra[1];
    }
    *ret = aligned_alloc(128, (bytes + 127) / 128 * 128);
    if (!*ret)
        return hipErrorOutOfMemory;
    memcpy(*ret, from, bytes);
    return hipSuccess;
}

CALL hipModuleLaunchKernel(hipFunction_t f, unsigned x, unsigned y, unsigned z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned lds, hipStream_t stream,
                           void **params, void **extra)
{
    struct fake_launch l = {function_of(f), {x, y, z}, block_x, lds, NULL};

    FAKE_ENTER();
    if (!x || !y || !z || !block_x || block_x > 1024 || block_y != 1 || block_z != 1 ||
        lds + (unsigned)own_lds(f) > DEVICE_LDS || (uint64_t)x * block_x > UINT32_MAX)
        return hipErrorInvalidValue;
    hipError_t r = take_arguments(f, params, extra, &l.arguments);
    if (r == hipSuccess) {
        struct ihipGraph *g = fake_capture(fake_stream(stream));
        r = g ? fake_graph_add(g, &l) : fake_queue_launch(fake_stream(stream), &l);
    }
    free(l.arguments);
    return r;
}
