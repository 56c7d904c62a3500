/* A runner's memfd_store: it holds what the worker handed over (`have`), and hands over what sessions make (`keep`). The worker has a
 * store of its own, whose files every new runner gets. */
#pragma once

#include "measure/session/kept.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_keeper {
    struct mf_local_memfd_store local; /* first */
    struct mf_channel *channel;
};
void mf_runner_keeper_init(struct mf_runner_keeper *k, struct mf_channel *channel, uint64_t max_bytes);
void mf_runner_keeper_release(struct mf_runner_keeper *k);
