/* A GPU module like that of another build. Its interface is the same, but its kernel digest differs. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#include "kernels/gpu/host/hip_open.h"

static int count(char *why, size_t why_cap)
{
    (void)snprintf(why, why_cap, "asked for devices");
    return -ENOENT;
}

const struct mf_hip_module *mf_hip_module_entry(void);
const struct mf_hip_module *mf_hip_module_entry(void)
{
    static const struct mf_hip_module module = {
        .api = MF_HIP_MODULE_API, .sources = "of other kernels", .vendor = "nvidia", .count = count};
    return &module;
}
