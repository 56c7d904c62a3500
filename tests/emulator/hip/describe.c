/* Device queries: count, attributes and properties. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "emulator/hip/runtime.h"

#ifndef FAKE_HIP_RELEASE
#    error "which release's runtime: 5, 6 or 7"
#endif

int fake_number(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

const struct mf_flavour *fake_flavour(void)
{
    const char *arch = getenv("FAKE_HIP_ARCH");
    const struct mf_flavour *f = mf_flavour_find(arch ? arch : "gfx90a");
    if (!f || f->wave_lanes != 64)
        fake_misuse("FAKE_HIP_ARCH is %s: expected gfx90a or gfx942", arch);
    return f;
}

static bool is_device(int ordinal)
{
    return ordinal >= 0 && ordinal < fake_number("FAKE_HIP_DEVICES", 1);
}

CALL hipInit(unsigned flags)
{
    FAKE_ENTER();
    return flags ? hipErrorInvalidValue : hipSuccess;
}

CALL hipGetDeviceCount(int *ret)
{
    *ret = fake_number("FAKE_HIP_DEVICES", 1);
    return *ret > 0 ? hipSuccess : hipErrorNoDevice;
}

CALL hipDeviceGet(hipDevice_t *ret, int ordinal)
{
    *ret = ordinal;
    return is_device(ordinal) ? hipSuccess : hipErrorInvalidDevice;
}

CALL hipSetDevice(int ordinal)
{
    FAKE_ENTER();
    return is_device(ordinal) ? hipSuccess : hipErrorInvalidDevice;
}

CALL hipDeviceGetName(char *name, int len, hipDevice_t device)
{
    mf_format(name, (size_t)len, "%s of the tests' emulator", fake_flavour()->gfx);
    return is_device(device) ? hipSuccess : hipErrorInvalidDevice;
}

CALL hipDeviceTotalMem(size_t *ret, hipDevice_t device)
{
    *ret = DEVICE_MEMORY;
    return is_device(device) ? hipSuccess : hipErrorInvalidDevice;
}

CALL hipDeviceGetPCIBusId(char *ret, int len, int ordinal)
{
    mf_format(ret, (size_t)len, "0000:%02x:00.0", 0xe0 + ordinal);
    return is_device(ordinal) ? hipSuccess : hipErrorInvalidDevice;
}

CALL hipDeviceGetAttribute(int *ret, hipDeviceAttribute_t what, int device)
{
    const struct {
        hipDeviceAttribute_t what;
        int value;
    } known[] = {
        {hipDeviceAttributeMultiprocessorCount, fake_number("FAKE_HIP_UNITS", 2)},
        {hipDeviceAttributeL2CacheSize, 16 << 10}, /* smaller than the weights of a small layer */
        {hipDeviceAttributeMaxSharedMemoryPerBlock, DEVICE_LDS},
        {hipDeviceAttributeClockRate, 1700000},
        {hipDeviceAttributeMemoryClockRate, 1600000},
    };

    FAKE_ENTER();
    if (!is_device(device))
        return hipErrorInvalidDevice;
    for (size_t i = 0; i < MF_ARRAY_LEN(known); i++) {
        if (known[i].what == what) {
            *ret = known[i].value;
            return hipSuccess;
        }
    }
    return hipErrorInvalidValue;
}

/* hipDeviceProp_t has two layouts under two names. The release decides which of the layouts the runtime
 * exports and which layout the plain name means. Only the architecture name is filled in; LLVM's offload-arch
 * also reads it. */
static hipError_t fill(void *ret, size_t bytes, size_t arch_at, int ordinal)
{
    if (!is_device(ordinal))
        return hipErrorInvalidDevice;
    memset(ret, 0, bytes);
    mf_format(ret, 256, "%s", "of the tests' emulator");
    mf_format((char *)ret + arch_at, 256, "%s:sramecc+:xnack-", fake_flavour()->gfx);
    return hipSuccess;
}

#define PROPERTIES(function, name)                       \
    CALL function(void *ret, int ordinal) __asm__(name); \
    CALL function(void *ret, int ordinal)

PROPERTIES(properties_first, "hipGetDeviceProperties")
{
    return fill(ret, 792, 396, ordinal);
}
#if FAKE_HIP_RELEASE >= 6
PROPERTIES(properties_of_6, "hipGetDevicePropertiesR0600")
{
    return fill(ret, 1472, 1160, ordinal);
}
#endif

CALL hipRuntimeGetVersion(int *ret)
{
    static const int versions[] = {[5] = 50221153, [6] = 60032831, [7] = 70051831};
    *ret = versions[FAKE_HIP_RELEASE];
    return hipSuccess;
}

static const struct {
    hipError_t error;
    const char *words;
} errors[] = {
    {hipSuccess, "no error"},
    {hipErrorInvalidValue, "invalid argument"},
    {hipErrorOutOfMemory, "out of memory"},
    {hipErrorNoDevice, "no ROCm-capable device is detected"},
    {hipErrorInvalidDevice, "invalid device ordinal"},
    {hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device"},
    {hipErrorNotFound, "named symbol not found"},
    {hipErrorIllegalAddress, "an illegal memory access was encountered"},
    {hipErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {hipErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
};

__attribute__((visibility("default"))) const char *hipGetErrorString(hipError_t error)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(errors); i++) {
        if (errors[i].error == error)
            return errors[i].words;
    }
    return "an error of the tests' runtime without words";
}
