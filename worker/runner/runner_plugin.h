/* The runner's families from shared objects (--family-so): loaded, asked for steps in a child, and refused in words.
 *
 * A family of ours is trusted to enumerate; one from outside is asked in a child of the runner, so that one that
 * crashes, hangs or offers nonsense costs its own steps only, and says so as a rejection. Opening and launching happen in
 * the runner itself: there a crash is a result of the step that ran, as with every kernel. */
#pragma once

#include "kernels/families/family_plugin.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_plugins {
    struct mf_family_plugins loaded;
    struct {
        char name[MF_FAMILY_NAME_MAX]; /* of the file, as far as it fits */
        char why[MF_REASON_MAX];
    } refused[MF_PLUGINS_MAX];
    size_t n_refused;
};

/* Before the device is opened, as that makes threads. Objects that are refused are told of by enumerate. */
void mf_runner_plugins_load(struct mf_runner_plugins *p, const char *const *paths, int n,
                            const char *device_kind);
void mf_runner_plugins_release(struct mf_runner_plugins *p);
/* Passes the steps and rejections of one family on. Negative: the channel's. */
int mf_runner_plugin_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                               const struct mf_shape *shape, struct mf_offer *offer);
/* Rejections for the objects that were refused. */
int mf_runner_plugins_tell(const struct mf_runner_plugins *p, struct mf_offer *offer);
