/* GPUs as devices. What talks to a runtime is in two loadable modules, one for AMD's and one for NVIDIA's, built where
 * their headers are (kernels/hip.cmake) and opened only when a device of theirs is asked for: nothing here needs a GPU. */
#pragma once

#include "kernels/core/device.h"

/* What a module exports, as mf_hip_module_entry. */
#define MF_HIP_MODULE_API   5
#define MF_HIP_MODULE_ENTRY "mf_hip_module_entry"
struct mf_hip_module {
    int api;
    /* mf_code_sources_digest: code is made and named by the module and by who loads it */
    const char *sources;
    const char *vendor; /* "amd", "nvidia" */
    /* Devices that the runtime shows; -ENOENT with the reason in why when there is no runtime or no device. */
    int (*count)(char *why, size_t why_cap);
    /* mf_device_hip_identity */
    int (*identity)(int ordinal, char *ret, size_t cap, char *why, size_t why_cap);
    int (*open)(int ordinal, const struct mf_device_opening *how, char *why, size_t why_cap,
                struct mf_device **ret);
};
typedef const struct mf_hip_module *(*mf_hip_module_fn)(void);

/* "hip:amd:0": its module, loaded beside the executable or from where this build put it, and its device. */
int mf_device_hip_open(const char *name, const struct mf_device_opening *how, char *why, size_t why_cap,
                       struct mf_device **ret);
/* Devices of a vendor; negative with the sentence in why when there are none. */
int mf_device_hip_count(const char *vendor, char *why, size_t why_cap);
/* Which GPU "hip:nvidia:0" is, by what it is called whatever else is visible (mf_device_info.identity), without opening it.
 * The runtime is loaded. Negative with the sentence in why. */
int mf_device_hip_identity(const char *name, char *ret, size_t cap, char *why, size_t why_cap);
/* What "hip:amd:0" compiles with, of whom all else is known, without opening it. -EINVAL: it is no such device. */
int mf_device_hip_compiler(const char *name, const struct mf_device_info *known, struct mf_compiler *ret);
/* The code that a device of that architecture opens with, whatever runs on it then. */
struct mf_code mf_device_hip_code(const char *gfx);
