/* Runs one iteration of a runner pool (worker/agent/runner_pool.h) in a test. Returns the pool's next event.
 * If the pool has no event, waits for input, but not beyond the time `until_ms`, and returns
 * MF_RUNNER_POOL_NOTHING. */
#pragma once

#include <poll.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "worker/agent/runner_pool.h"

static inline enum mf_runner_pool_event runner_pool_iterate(struct mf_runner_pool *c, cJSON **ret,
                                                            int64_t until_ms)
{
    struct pollfd fds[MF_RUNNER_POOL_POLLFDS];
    mf_runner_pool_run_once(c);
    enum mf_runner_pool_event event = mf_runner_pool_next(c, ret);
    if (event != MF_RUNNER_POOL_NOTHING)
        return event;
    mf_runner_pool_pollfds(c, fds);
    int64_t left = MF_MIN(mf_runner_pool_due_ms(c), until_ms) - mf_now_ms();
    (void)poll(fds, MF_RUNNER_POOL_POLLFDS, (int)MF_MAX(left, 0));
    return MF_RUNNER_POOL_NOTHING;
}
