/* Private parts of a runner pool. runner_pool.c: start, death and replacement of runners;
 * runner_pool_receive.c: messages received from them. */
#pragma once

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/status.h"
#include "worker/agent/memfd_store.h"
#include "worker/agent/runner_pool.h"

#define MF_RUNNER_POOL_DYING_MAX 4
#define MF_RUNNER_POOL_START_MS  60000 /* time limit for `hello` by default, and for `described` */

enum mf_member_state { MF_MEMBER_STARTED, MF_MEMBER_GREETED, MF_MEMBER_READY };

struct mf_member {
    struct mf_runner_host *host;
    enum mf_member_state state;
    cJSON *hello;
};

struct mf_runner_pool {
    struct mf_runner_pool_options o;
    struct mf_member working, reserve;
    struct mf_runner_host *compiler; /* compiles ahead; NULL: nothing to compile yet, or it died */
    /* runners that were reported as dead, but have not exited yet */
    struct mf_runner_host *dying[MF_RUNNER_POOL_DYING_MAX];
    struct mf_kept_store kept;
    cJSON *hello, *described;
    int failures; /* number of consecutive failed starts */
    int64_t start_at_ms, reserve_at_ms, compiler_at_ms;
    bool stopped, hung, failed;
    bool was_ready; /* true: the runner that died last was ready */
    int64_t deaths;
    char kill_reason[MF_REASON_MAX], why[MF_REASON_MAX];
};

/* ---- runner_pool_receive.c ---- */

/* True if the member `can` of a `hello` contains the name. */
bool mf_runner_pool_can(const cJSON *hello, const char *name);
/* Sends the kept files and `describe` to the working runner, after its `hello`. */
void mf_runner_pool_greet(struct mf_runner_pool *c);
/* Handles the first message of a runner, which must be `hello`. Takes ownership of the message. */
void mf_runner_pool_take_hello(struct mf_runner_pool *c, struct mf_member *p, cJSON *message);
/* Handles a message of the working runner. Takes ownership of the message, unless it returns
 * MF_RUNNER_POOL_MESSAGE; the caller then owns *ret. */
enum mf_runner_pool_event mf_runner_pool_take_message(struct mf_runner_pool *c, cJSON *message, cJSON **ret);
