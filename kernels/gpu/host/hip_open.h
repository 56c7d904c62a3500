/* GPUs as devices, through two loadable modules, one per vendor. The modules are built where the vendor's
 * headers are installed and loaded when one of their devices is opened, so the programs start without a GPU
 * or driver. */
#pragma once

#include "kernels/core/device.h"

/* The exports of a module, returned by mf_hip_module_entry. */
#define MF_HIP_MODULE_API   5
#define MF_HIP_MODULE_ENTRY "mf_hip_module_entry"
struct mf_hip_module {
    int api;
    /* mf_code_sources_digest; module and program must match because both name and compile code */
    const char *sources;
    const char *vendor; /* "amd", "nvidia" */
    /* Number of visible devices; -ENOENT and the reason in why if there is no runtime or no device. */
    int (*count)(char *why, size_t why_cap);
    /* mf_device_hip_identity */
    int (*identity)(int ordinal, char *ret, size_t cap, char *why, size_t why_cap);
    int (*open)(int ordinal, const struct mf_device_open_options *how, char *why, size_t why_cap,
                struct mf_device **ret);
};
typedef const struct mf_hip_module *(*mf_hip_module_fn)(void);

/* Opens "hip:amd:0" with its module, which is next to the executable or in the build directory. */
int mf_device_hip_open(const char *name, const struct mf_device_open_options *how, char *why, size_t why_cap,
                       struct mf_device **ret);
/* Number of devices of a vendor; negative with the reason in why if there are none. */
int mf_device_hip_count(const char *vendor, char *why, size_t why_cap);
/* Returns the identity of a GPU such as "hip:nvidia:0", independent of the visible devices
 * (mf_device_info.identity), without opening the device. Loads the runtime. Negative with the reason in why.
 */
int mf_device_hip_identity(const char *name, char *ret, size_t cap, char *why, size_t why_cap);
/* Returns the compiler of a device such as "hip:amd:0" from its known info, without opening the device.
 * -EINVAL: not a HIP device name. */
int mf_device_hip_compiler(const char *name, const struct mf_device_info *known, struct mf_compiler *ret);
/* Returns the code that every device of the architecture compiles when it is opened. */
struct mf_code mf_device_hip_code(const char *gfx);
