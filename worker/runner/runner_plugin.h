/* Kernel families from shared objects (--family-so): loading, enumeration in a child process, rejections.
 *
 * A built-in family enumerates in the runner. A plugin enumerates in a child of the runner, so that a crash,
 * hang or invalid step costs only its own steps and is reported as a rejection. Opening and launching run in
 * the runner: a crash there becomes the result of the step, as with every kernel. */
#pragma once

#include "kernels/families/family_plugin.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_plugins {
    struct mf_family_plugins loaded;
    struct {
        char name[MF_FAMILY_NAME_MAX]; /* file name, truncated */
        char why[MF_REASON_MAX];
    } refused[MF_PLUGINS_MAX];
    size_t n_refused;
};

/* Call before the device is opened, which starts threads. Enumeration reports objects that failed to load. */
void mf_runner_plugins_load(struct mf_runner_plugins *p, const char *const *paths, int n,
                            const char *device_kind);
void mf_runner_plugins_release(struct mf_runner_plugins *p);
/* Forwards the steps and rejections of one family. Returns a negative error of the offer. */
int mf_runner_plugin_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                               const struct mf_shape *shape, struct mf_offer *offer);
/* Offers a rejection for each object that failed to load. */
int mf_runner_plugins_offer_rejections(const struct mf_runner_plugins *p, struct mf_offer *offer);
