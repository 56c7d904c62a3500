/* A process that lists the steps of one Python family, so that a crash or hang there affects only this
 * family.
 *
 * The process is started when the device is described and serves all shapes. It ends itself (SIGALRM) if the
 * family is silent for too long, and when the runner exits. It inherits the runner's sandbox. Messages are
 * lines of JSON over a socket pair:
 *
 *   runner   enumerate  shape, layer {covers, needs, gives, flops, bytes}, name (of the device), device
 *   process  step       step
 *            reject     kernel, rule, reason
 *            enumerated */
#pragma once

#include <cjson/cJSON.h>
#include <sys/types.h>

#include "kernels/core/family.h"
#include "worker/runner/runner_wire.h"

struct mf_python_enumerator {
    const char *const *argv; /* command, which must outlive this struct */
    const char *device;      /* name of the runner's device */
    pid_t pid;               /* 0: the process is not running */
    struct mf_channel channel;
};

/* Starts the process without waiting for it. Does nothing if it is running. Returns 0 or a negative errno. */
int mf_python_enumerator_start(struct mf_python_enumerator *e);
/* Forwards the family's steps and rejections to the offer, with `family` as their family. If the process dies
 * or hangs, offers a rejection with the reason. Negative errors of the offer are returned. */
int mf_python_enumerator_run(struct mf_python_enumerator *e, const char *family,
                             const struct mf_device_info *device, const struct mf_shape *shape,
                             struct mf_offer *offer);
void mf_python_enumerator_release(struct mf_python_enumerator *e);

/* Returns {shape, layer} for a shape; NULL if out of memory. */
cJSON *mf_python_shape(const struct mf_shape *shape);
