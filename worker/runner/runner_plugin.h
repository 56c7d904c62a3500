/* Kernel families from shared objects (--family-so): loads them and enumerates them in a child process.
 *
 * A built-in family enumerates in the runner. A plugin enumerates in a child of the runner, so that a crash,
 * hang or invalid step affects only the plugin's own steps and is reported as a rejection. Plugin steps are
 * opened and launched in the runner. If they crash there, the crash becomes the result of the step, as with
 * every kernel. */
#pragma once

#include "kernels/families/family_plugin.h"
#include "worker/runner/runner_wire.h"

/* A family that could not be loaded. */
struct mf_refused_family {
    char name[MF_FAMILY_NAME_MAX]; /* file name, truncated */
    char why[MF_REASON_MAX];
};

struct mf_runner_plugins {
    struct mf_family_plugins loaded;
    struct mf_refused_family refused[MF_PLUGINS_MAX];
    size_t n_refused;
};

/* Loads the shared objects. Call before opening the device, because opening starts threads. Failures to load
 * are in `refused`. */
void mf_runner_plugins_load(struct mf_runner_plugins *p, const char *const *paths, int n,
                            const char *device_kind);
void mf_runner_plugins_release(struct mf_runner_plugins *p);
/* Forwards the steps and rejections of one family to the offer. If the offer returns a negative error,
 * returns that error. */
int mf_runner_plugin_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                               const struct mf_shape *shape, struct mf_offer *offer);
