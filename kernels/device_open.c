#include "kernels/core/device.h"

#include "kernels/cpu/device_cpu.h"
#include "kernels/gpu/host/hip_open.h"
#if MF_SIM
#    include "kernels/sim/sim.h"
#endif

#include <errno.h>
#include <stdio.h>
#include <string.h>

int mf_device_open(const char *name, char *why, size_t why_cap, struct mf_device **ret)
{
    return mf_device_open_with(name, &(struct mf_device_open_options){0}, why, why_cap, ret);
}

int mf_device_open_with(const char *name, const struct mf_device_open_options *how, char *why, size_t why_cap,
                        struct mf_device **ret)
{
    int r;

    if (strcmp(name, "cpu:0") == 0) {
        r = mf_device_cpu_open(how, ret);
        if (r < 0)
            (void)snprintf(why, why_cap, "opening the CPU: %s", strerror(-r));
        return r;
    }
#if MF_SIM
    if (strncmp(name, "sim:", 4) == 0)
        return mf_sim_open(name, why, why_cap, ret);
#endif
    if (strncmp(name, "hip:", 4) == 0)
        return mf_device_hip_open(name, how, why, why_cap, ret);
    (void)snprintf(why, why_cap,
                   "unknown device '%s': expected cpu:0, hip:amd:<ordinal>, hip:nvidia:<ordinal> or "
                   "sim:<class>:<ordinal>[:<spec file>]%s",
                   name, MF_SIM ? "" : " (this build has no simulated device)");
    return -EINVAL;
}

struct mf_device *mf_device_close(struct mf_device *d)
{
    if (d)
        d->ops->free(d);
    return NULL;
}
