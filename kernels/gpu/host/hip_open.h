/* Opens GPUs as devices, through two loadable modules, one per vendor. The module for AMD is built only where
 * HIP's headers are installed. A module is loaded when one of its devices is opened, so the programs also
 * start on machines without a GPU or driver. */
#pragma once

#include "kernels/core/device.h"

/* Functions that a module exports. mf_hip_module_entry returns them. */
#define MF_HIP_MODULE_API   6
#define MF_HIP_MODULE_ENTRY "mf_hip_module_entry"
struct mf_hip_module {
    int api;
    /* mf_code_sources_digest, which must be the same in module and program, because both name and compile
     * code */
    const char *sources;
    const char *vendor; /* "amd", "nvidia" */
    /* Returns the number of visible devices. Returns -ENOENT, with the reason in why, if there is no runtime
     * or no device. */
    int (*count)(char *why, size_t why_cap);
    /* see mf_device_hip_identity */
    int (*identity)(int ordinal, char *ret, size_t cap, char *why, size_t why_cap);
    int (*open)(int ordinal, const struct mf_device_open_options *how, char *why, size_t why_cap,
                struct mf_device **ret);
};
typedef const struct mf_hip_module *(*mf_hip_module_fn)(void);

/* Opens a device such as "hip:amd:0" with its module, which is next to the executable or in the build
 * directory. */
int mf_device_hip_open(const char *name, const struct mf_device_open_options *how, char *why, size_t why_cap,
                       struct mf_device **ret);
/* Returns the number of devices of a vendor. Returns a negative errno, with the reason in why, if there are
 * none. */
int mf_device_hip_count(const char *vendor, char *why, size_t why_cap);
/* Writes the identity of a GPU such as "hip:nvidia:0" (mf_device_info.identity). The identity does not depend
 * on which devices are visible. The function loads the runtime but does not open the device. Returns a
 * negative errno with the reason in why after an error. */
int mf_device_hip_identity(const char *name, char *ret, size_t cap, char *why, size_t why_cap);
/* Finds the compiler of a device such as "hip:amd:0" from its known info, without opening the device. Returns
 * -EINVAL if `name` is not a HIP device name. */
int mf_device_hip_compiler(const char *name, const struct mf_device_info *known, struct mf_compiler *ret);
/* Returns the code that every device of the architecture compiles when the device is opened. */
struct mf_code mf_device_hip_code(const char *gfx);
