/* The runner's side of the memfd store. It holds the files received from the worker (message `have`) and
 * sends the files that sessions create (message `keep`). The worker has its own store and passes its files to
 * new runners. */
#pragma once

#include "measure/session/memfd_cache.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_memfd_store {
    struct mf_local_memfd_store local; /* must be the first member */
    struct mf_channel *channel;
};
void mf_runner_memfd_store_init(struct mf_runner_memfd_store *k, struct mf_channel *channel,
                                uint64_t max_bytes);
void mf_runner_memfd_store_release(struct mf_runner_memfd_store *k);
