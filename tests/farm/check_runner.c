/* Tests worker/agent/runner_host.c, worker/agent/runner_pool.c and worker/runner/runner.c with real child
 * processes. The test calls them as the worker does. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/moe/step.h"
#include "support/mf_check.h"
#include "worker/agent/memfd_store.h"
#include "worker/agent/runner_host.h"
#include "worker/agent/runner_pool.h"

#define WORKER   MF_BINARY_DIR "/worker/moefarm-worker"
#define DEADLINE 20000
#define SHAPE_TEXT \
    "16,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

/* ---- runner host, with a shell as the runner ---- */

static struct mf_runner_host *start_isolated_shell(const char *script, enum mf_isolation isolation)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct mf_runner_host *h = NULL;
    ck_assert_int_eq(mf_runner_host_start(argv, isolation, &h), 0);
    return h;
}

static struct mf_runner_host *start_shell(const char *script)
{
    return start_isolated_shell(script, MF_ISOLATION_NONE);
}

static const struct {
    enum mf_isolation isolation;
    int flags;  /* that the kernel must allow this process */
    uid_t user; /* that the test runs as if it is started by root; 0: root */
} isolations[] = {
    {MF_ISOLATION_NONE, 0, 0},
    {MF_ISOLATION_PID, CLONE_NEWPID | CLONE_NEWNS, 0},
    {MF_ISOLATION_USER_PID, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS, 0},
    {MF_ISOLATION_USER_PID, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS, 65534},
    {MF_ISOLATION_PID_OUTER_PROC, CLONE_NEWPID, 0},
    {MF_ISOLATION_USER_PID_OUTER_PROC, CLONE_NEWUSER | CLONE_NEWPID, 65534},
};
#define N_ISOLATIONS ((int)MF_ARRAY_LEN(isolations))

static bool is_allowed(int i)
{
    int status = 0;
    if (isolations[i].user && geteuid() == 0) {
        ck_assert_int_eq(setresuid(isolations[i].user, isolations[i].user, isolations[i].user), 0);
        ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0); /* as if this user had started the program */
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(isolations[i].flags) == 0 ? 0 : 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status == 0;
}

/* Polls like the worker and returns the next event. */
static enum mf_runner_event wait_host(struct mf_runner_host *h, cJSON **ret)
{
    int64_t until = mf_now_ms() + DEADLINE;
    while (mf_now_ms() < until) {
        mf_runner_host_run_once(h);
        enum mf_runner_event event = mf_runner_host_next(h, ret);
        if (event != MF_RUNNER_NOTHING)
            return event;
        struct pollfd fds[MF_RUNNER_POLLFDS];
        mf_runner_host_pollfds(h, fds);
        int64_t due = MF_MIN(mf_runner_host_deadline_ms(h), until) - mf_now_ms();
        (void)poll(fds, MF_RUNNER_POLLFDS, (int)MF_MAX(due, 0));
    }
    ck_abort_msg("no event within %d ms", DEADLINE);
}

static void expect_death(struct mf_runner_host *h, const char *part)
{
    cJSON *m = NULL;
    char why[MF_REASON_MAX];
    enum mf_runner_event event;
    while ((event = wait_host(h, &m)) == MF_RUNNER_MESSAGE)
        cJSON_Delete(m);
    ck_assert_int_eq(event, MF_RUNNER_DIED);
    mf_runner_host_why(h, why, sizeof(why));
    ck_assert_msg(strstr(why, part) != NULL, "no '%s' in '%s'", part, why);
    ck_assert_int_eq(mf_runner_host_next(h, &m), MF_RUNNER_NOTHING);
    mf_runner_host_free(h);
}

/* clang-format off */
static const struct {
    const char *script, *why;
} deaths[] = {
    {"exit 3", "exit code 3"},
    {"kill -9 $$", "signal 9 (Killed)"},
    {"kill -SEGV $$", "signal 11 (Segmentation fault)"},
    {"echo first >&2; echo last words >&2; exit 1", "exit code 1; stderr: first|last words"},
    /* the standard output of a runner is redirected to its stderr */
    {"echo to stdout; exit 1", "stderr: to stdout"},
    {"printf 'a\\001b\\377c' >&2; exit 1", "stderr: a b?c"},    /* the reason must be valid in JSON */
    {"echo no json >&3; exec sleep 100", "broke the runner protocol"},
    /* without its socket the runner is useless, so it is killed */
    {"exec 3>&-; exec sleep 100", "signal 9"},
    {"head -c 9000000 /dev/zero | tr '\\0' x >&3; exec sleep 100", "broke the runner protocol"},
    {"echo oh >&2; echo '{\"op\":\"dying\",\"signal\":7}' >&3; exec sleep 100",
     "signal 7 (Bus error); stderr: oh"},
    {"exec /nonexistent/program", "exit code 127"},
};
/* clang-format on */

MF_TEST(reports_cause_of_death, .rows = MF_ARRAY_LEN(deaths) * MF_ARRAY_LEN(isolations))
{
    if (is_allowed(_i % N_ISOLATIONS))
        expect_death(
            start_isolated_shell(deaths[_i / N_ISOLATIONS].script, isolations[_i % N_ISOLATIONS].isolation),
            deaths[_i / N_ISOLATIONS].why);
}

/* ---- processes of a runner ---- */

/* The script leaves processes in other sessions, one of them a child of a process that ends at once. They
 * inherit descriptor 9. */
#define LEAVES_PROCESSES \
    "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo '{\"op\":\"x\"}' >&3; "

/* clang-format off */
static const struct {
    const char *script;
    enum { BY_ITSELF, BY_KILL, BY_FREE, BY_DEATH_OF_WORKER } end;
} ends[] = {
    {LEAVES_PROCESSES "read line <&3; exit 0",   BY_ITSELF},
    {LEAVES_PROCESSES "read line <&3; kill -9 $$", BY_ITSELF},
    {LEAVES_PROCESSES "exec sleep 1000",         BY_KILL},
    {LEAVES_PROCESSES "exec sleep 1000",         BY_FREE},
    {LEAVES_PROCESSES "exec sleep 1000",         BY_DEATH_OF_WORKER},
};
/* clang-format on */

static void start_and_end(int i, enum mf_isolation isolation)
{
    _cleanup_(cJSON_Deletep) cJSON *m = NULL, *next = cJSON_Parse("{\"op\":\"end\"}"), *none = NULL;
    struct mf_runner_host *h = start_isolated_shell(ends[i].script, isolation);
    ck_assert_int_eq(wait_host(h, &m), MF_RUNNER_MESSAGE);
    if (ends[i].end == BY_DEATH_OF_WORKER)
        (void)raise(SIGKILL);
    if (ends[i].end == BY_ITSELF)
        ck_assert_int_eq(mf_runner_host_send(h, next, -1), 0);
    if (ends[i].end == BY_KILL)
        mf_runner_host_kill(h);
    if (ends[i].end != BY_FREE)
        ck_assert_int_eq(wait_host(h, &none), MF_RUNNER_DIED);
    mf_runner_host_free(h);
}

MF_TEST(leaves_no_processes, .rows = MF_ARRAY_LEN(ends) * MF_ARRAY_LEN(isolations))
{
    int pipes[2], status;
    if (!is_allowed(_i % N_ISOLATIONS))
        return;
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t worker = fork();
    if (worker == 0) {
        ck_assert_int_eq(dup2(pipes[1], 9), 9);
        start_and_end(_i / N_ISOLATIONS, isolations[_i % N_ISOLATIONS].isolation);
        _exit(0);
    }
    (void)close(pipes[1]);
    ck_assert_int_eq(waitpid(worker, &status, 0), worker);
    ck_assert(ends[_i / N_ISOLATIONS].end == BY_DEATH_OF_WORKER || status == 0);
    /* The end of the file is readable when no process has the other end of the pipe. */
    struct pollfd end = {.fd = pipes[0], .events = POLLIN};
    ck_assert_int_eq(poll(&end, 1, DEADLINE), 1);
    ck_assert_int_eq(end.revents, POLLHUP);
}

/* A runner with too many processes or threads ends. */
MF_TEST(limits_tasks, .rows = MF_ARRAY_LEN(isolations))
{
    const char *const argv[] = {"/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait",
                                NULL};
    char path[] = "PATH=/usr/bin:/bin", *const env[] = {path, NULL};
    int null = open("/dev/null", O_RDWR), pair[2], status = 0;
    pid_t pid;
    if (!is_allowed(_i))
        return;
    ck_assert_int_eq(pipe(pair), 0);
    struct mf_supervisor s = {.isolation = isolations[_i].isolation,
                              .argv = argv,
                              .env = env,
                              .socket_fd = fcntl(null, F_DUPFD, 10),
                              .err_fd = fcntl(pair[1], F_DUPFD, 10),
                              .tasks_max = 8};
    (void)close(pair[1]);
    ck_assert_int_eq(mf_supervisor_start(&s, &pid), 0);
    (void)close(s.err_fd);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), MF_SUPERVISED_TASKS);
    struct pollfd end = {.fd = pair[0], .events = POLLIN}; /* no process has the other end */
    ck_assert_int_eq(poll(&end, 1, 0), 1);
    ck_assert_int_eq(end.revents, POLLHUP);
}

/* In a namespace, the runner has the pid that its supervisor has outside. */
MF_TEST(has_a_known_pid, .rows = MF_ARRAY_LEN(isolations))
{
    _cleanup_(cJSON_Deletep) cJSON *m = NULL;
    int64_t pid = 0;
    if (!is_allowed(_i) || isolations[_i].isolation == MF_ISOLATION_NONE)
        return;
    struct mf_runner_host *h = start_isolated_shell("echo \"{\\\"op\\\":\\\"x\\\",\\\"pid\\\":$$}\" >&3; "
                                                    "exec sleep 1000",
                                                    isolations[_i].isolation);
    ck_assert_int_eq(wait_host(h, &m), MF_RUNNER_MESSAGE);
    ck_assert_int_eq(mf_json_i64(m, "pid", 1, INT32_MAX, &pid), 0);
    ck_assert_int_eq(pid, mf_runner_host_pid(h));
    mf_runner_host_free(h);
}

/* In a namespace, /proc shows the namespace: CUDA opens /proc/<pid> of its own process and fails if that is
 * another process. */
MF_TEST(has_its_own_proc, .rows = MF_ARRAY_LEN(isolations))
{
    _cleanup_(cJSON_Deletep) cJSON *m = NULL;
    int64_t pid = 0, shown = 0;
    if (!is_allowed(_i) || !(isolations[_i].flags & CLONE_NEWNS))
        return;
    struct mf_runner_host *h = start_isolated_shell(
        "read -r shown rest < /proc/self/stat; "
        "echo \"{\\\"op\\\":\\\"x\\\",\\\"pid\\\":$$,\\\"shown\\\":$shown}\" >&3; exec sleep 1000",
        isolations[_i].isolation);
    ck_assert_int_eq(wait_host(h, &m), MF_RUNNER_MESSAGE);
    ck_assert_int_eq(mf_json_i64(m, "pid", 1, INT32_MAX, &pid), 0);
    ck_assert_int_eq(mf_json_i64(m, "shown", 1, INT32_MAX, &shown), 0);
    ck_assert_int_eq(shown, pid);
    mf_runner_host_free(h);
}

/* Process group 0 is the group of the caller, which must not be the group of the worker. */
MF_TEST(has_its_own_process_group, .rows = MF_ARRAY_LEN(isolations))
{
    if (is_allowed(_i))
        expect_death(start_isolated_shell("kill -KILL 0; exec sleep 1000", isolations[_i].isolation),
                     "signal 9");
}

MF_TEST(keeps_end_of_stderr)
{
    /* writes more than the buffer holds; the end is kept */
    struct mf_runner_host *h =
        start_shell("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done >&2; exit 1");
    expect_death(h, "line 1998|line 1999");
}

/* The runner sends more results than one buffer holds and then dies. The host must receive all of them. */
MF_TEST(receives_results_before_death)
{
    struct mf_runner_host *h =
        start_shell("i=0; while [ $i -lt 5000 ]; do echo \"{\\\"op\\\":\\\"n\\\",\\\"i\\\":$i}\"; "
                    "i=$((i+1)); done >&3; kill -9 $$");
    for (int i = 0; i < 5000; i++) {
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        int64_t n = -1;
        ck_assert_int_eq(wait_host(h, &m), MF_RUNNER_MESSAGE);
        ck_assert_int_eq(mf_json_i64(m, "i", 0, 5000, &n), 0);
        ck_assert_int_eq(n, i);
    }
    expect_death(h, "signal 9");
}

MF_TEST(kills_a_silent_runner)
{
    struct mf_runner_host *h = start_shell("echo '{\"op\":\"x\"}' >&3; exec sleep 1000");
    cJSON *m = NULL;
    mf_runner_host_limit(h, DEADLINE);
    ck_assert_int_eq(wait_host(h, &m), MF_RUNNER_MESSAGE);
    cJSON_Delete(m);
    mf_runner_host_limit(h, 50);
    int64_t from = mf_now_ms();
    ck_assert_int_eq(wait_host(h, &m), MF_RUNNER_DIED);
    ck_assert(mf_runner_host_hung(h));
    ck_assert_int_ge(mf_now_ms() - from, 50);
    char why[MF_REASON_MAX];
    mf_runner_host_why(h, why, sizeof(why));
    ck_assert_str_eq(why, "silent for more than 50 ms");
    mf_runner_host_free(h);
}

/* If a message is waiting, the host must read the message before it reports a hang, even if the host is
 * called late. */
MF_TEST(reads_before_reporting_a_hang)
{
    struct mf_runner_host *h = start_shell("echo '{\"op\":\"x\"}' >&3; exec sleep 1000");
    struct pollfd fds[MF_RUNNER_POLLFDS];
    mf_runner_host_pollfds(h, fds);
    ck_assert_int_gt(poll(fds, MF_RUNNER_POLLFDS, DEADLINE), 0);
    mf_runner_host_limit(h, 1);
    int64_t from = mf_now_ms();
    while (mf_now_ms() < from + 3)
        ;
    cJSON *m = NULL;
    mf_runner_host_run_once(h);
    ck_assert_int_eq(mf_runner_host_next(h, &m), MF_RUNNER_MESSAGE);
    cJSON_Delete(m);
    mf_runner_host_free(h);
}

/* ---- runner pool, with real runners ---- */

static char spec[96];

static void make_spec(const char *text)
{
    (void)snprintf(spec, sizeof(spec), "/tmp/check_runner.XXXXXX");
    int fd = mkstemp(spec);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void remove_spec(void)
{
    char hits[128];
    for (int i = 0; i < 8; i++) {
        (void)snprintf(hits, sizeof(hits), "%s.hits.%d", spec, i);
        (void)unlink(hits);
    }
    (void)unlink(spec);
    spec[0] = '\0';
}

static char device[160];

static struct mf_runner_pool *start_pool(const char *text, bool reserve)
{
    static const char *argv[8];
    int n = 0;
    make_spec(text);
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:0:%s", spec);
    argv[n++] = WORKER;
    argv[n++] = "--runner-child";
    argv[n++] = "--device";
    argv[n++] = device;
    argv[n] = NULL;
    struct mf_runner_pool *c = NULL;
    struct mf_runner_pool_options o = {.argv = argv, .keep_bytes = 1 << 20, .reserve = reserve};
    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    return c;
}

static enum mf_runner_pool_event wait_pool(struct mf_runner_pool *c, cJSON **ret)
{
    int64_t until = mf_now_ms() + DEADLINE;
    while (mf_now_ms() < until) {
        enum mf_runner_pool_event event = mf_runner_pool_iterate(c, ret, until);
        if (event != MF_RUNNER_POOL_NOTHING)
            return event;
    }
    ck_abort_msg("no event within %d ms", DEADLINE);
}

static void expect_ready(struct mf_runner_pool *c)
{
    cJSON *m = NULL;
    ck_assert_int_eq(wait_pool(c, &m), MF_RUNNER_POOL_READY);
}

/* A runner that sends no hello within the limit is killed. */
MF_TEST(limits_the_start)
{
    static const char *const argv[] = {"/bin/sh", "-c", "sleep 1000", NULL};
    const struct mf_runner_pool_options o = {.argv = argv, .start_limit_ms = 100};
    struct mf_runner_pool *c = NULL;
    cJSON *m = NULL;
    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    ck_assert_int_eq(wait_pool(c, &m), MF_RUNNER_POOL_DIED);
    ck_assert_str_eq(mf_runner_pool_why(c), "silent for more than 100 ms");
    mf_runner_pool_free(c);
}

/* Returns the next message that does not report a phase. */
static cJSON *next_message(struct mf_runner_pool *c)
{
    for (;;) {
        cJSON *m = NULL;
        ck_assert_int_eq(wait_pool(c, &m), MF_RUNNER_POOL_MESSAGE);
        if (strcmp(mf_channel_op(m), "phase") != 0)
            return m;
        cJSON_Delete(m);
    }
}

static void send(struct mf_runner_pool *c, const char *text)
{
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_Parse(text);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(mf_runner_pool_send(c, m), 0);
}

/* Returns the steps of the shape as objects. The first step has id 1. */
static cJSON *enumerate(struct mf_runner_pool *c, int *ret_rejections)
{
    cJSON *steps = cJSON_CreateArray();
    *ret_rejections = 0;
    send(c, "{\"op\":\"enumerate\",\"shape\":\"" SHAPE_TEXT "\"}");
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(c);
        if (strcmp(mf_channel_op(m), "enumerated") == 0)
            return steps;
        if (strcmp(mf_channel_op(m), "reject") == 0) {
            (*ret_rejections)++;
            continue;
        }
        ck_assert_str_eq(mf_channel_op(m), "step");
        cJSON *step = cJSON_DetachItemFromObject(m, "step");
        mf_json_add_i64(step, "id", cJSON_GetArraySize(steps) + 1);
        cJSON_AddItemToArray(steps, step);
    }
}

static void ask_probe(struct mf_runner_pool *c, const cJSON *steps, int from, int n)
{
    _cleanup_(cJSON_Deletep) cJSON *m =
        cJSON_Parse("{\"op\":\"unit\",\"kind\":\"probe\",\"shape\":\"" SHAPE_TEXT
                    "\",\"options\":{\"seed\":7,\"time_cap_ms\":300}}");
    cJSON *some = cJSON_AddArrayToObject(m, "steps");
    for (int i = from; i < from + n; i++)
        cJSON_AddItemToArray(some, cJSON_Duplicate(cJSON_GetArrayItem(steps, i), true));
    ck_assert_int_eq(mf_runner_pool_send(c, m), 0);
}

MF_TEST(enumerates_and_probes)
{
    struct mf_runner_pool *c = start_pool("{}", false);
    int n_rejections;
    expect_ready(c);
    ck_assert_str_eq(cJSON_GetObjectItem(mf_runner_pool_described(c), "class")->valuestring, "gfx942/304");
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(mf_runner_pool_described(c), "simulated")));
    ck_assert_str_eq(cJSON_GetObjectItem(mf_runner_pool_hello(c), "families")->child->string, "sim");
    _cleanup_(cJSON_Deletep) cJSON *steps = enumerate(c, &n_rejections);
    ck_assert_int_ge(cJSON_GetArraySize(steps), 50);
    ck_assert_int_ge(n_rejections, 1);
    ask_probe(c, steps, 0, 5);
    for (int i = 0; i < 5; i++) {
        _cleanup_(cJSON_Deletep) cJSON *begin = next_message(c), *result = next_message(c);
        ck_assert_str_eq(mf_channel_op(begin), "begin");
        ck_assert_int_eq(cJSON_GetObjectItem(begin, "step")->valueint, i + 1);
        ck_assert_int_eq(cJSON_GetObjectItem(begin, "limit_ms")->valueint, 300);
        ck_assert_str_eq(mf_channel_op(result), "result");
        ck_assert_str_eq(cJSON_GetObjectItem(result, "status")->valuestring, "ok");
        ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(result, "samples")), 20);
    }
    _cleanup_(cJSON_Deletep) cJSON *end = next_message(c);
    ck_assert_str_eq(mf_channel_op(end), "end");
    mf_runner_pool_free(c);
    remove_spec();
}

/* Returns the result of the step or pipeline in a unit with one of them, after its end. */
static cJSON *result_of(struct mf_runner_pool *c, const cJSON *unit)
{
    cJSON *result = NULL;
    ck_assert_int_eq(mf_runner_pool_send(c, unit), 0);
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(c);
        if (strcmp(mf_channel_op(m), "end") == 0)
            return result;
        ck_assert_msg(strcmp(mf_channel_op(m), "error") != 0, "%s",
                      cJSON_GetObjectItem(m, "reason")->valuestring);
        if (strcmp(mf_channel_op(m), "result") == 0 && !result)
            result = MF_TAKE(m);
    }
}

/* clang-format off */
static const struct {
    const char *field, *value;
    const char *reason; /* NULL: the runner uses its own value */
} lies[] = {
    {"flops",             "1e24", NULL},
    {"bytes",             "1e18", NULL},
    {"saved",             "1e18", NULL},
    {"reorder_tolerance", "1",    NULL},
    {"workspace", "4096", "the step's description differs from this worker's: workspace 4096, here 0"},
    {"block_m",   "8",    "the step's description differs from this worker's: block_m 8, here 16"},
    {"ksplit",    "2",    "the step's description differs from this worker's: ksplit 2, here 0"},
    {"covers",    "\"quant2\"",
     "the step's description differs from this worker's: covers quant2, here sort"},
    {"needs",     "[]",   "the step's description differs from this worker's: number of inputs 0, here 1"},
    {"gives",     "[]",   "the step's description differs from this worker's: number of outputs 0, here 1"},
    {"gives",     "[\"sorted/index/none/sorted.8\"]",
     "the step's description differs from this worker's: gives sorted/index/none/sorted.8, here "
     "sorted/index/none/sorted.16"},
    {"needs",     "[\"x/bf16/none/token\"]",
     "the step's description differs from this worker's: needs x/bf16/none/token, here "
     "topk/index/none/token"},
    {"name",      "\"sim_sort_m17\"", "this worker's family sim does not offer the step for this shape"},
    {"family",    "\"other\"",        "this worker's family aiter does not offer the step for this shape"},
};
/* clang-format on */

/* Another worker enumerated the steps of a unit. A runner runs a step only by its own description. */
MF_TEST(refuses_a_false_description, .rows = MF_ARRAY_LEN(lies) * 2)
{
    bool race = _i % 2;
    const char *field = lies[_i / 2].field, *reason = lies[_i / 2].reason;
    struct mf_runner_pool *c = start_pool("{}", false);
    int n_rejections;
    expect_ready(c);
    _cleanup_(cJSON_Deletep) cJSON *steps = enumerate(c, &n_rejections);
    cJSON *step = cJSON_GetArrayItem(steps, 0);
    double us = 0;
    ck_assert_str_eq(cJSON_GetObjectItem(step, "name")->valuestring, "sim_sort_m16");
    for (int honest = 1; honest >= 0; honest--) {
        if (!honest) {
            cJSON_DeleteItemFromObject(step, field);
            cJSON_AddItemToObject(step, field, cJSON_Parse(lies[_i / 2].value));
        }
        _cleanup_(cJSON_Deletep) cJSON *unit =
            cJSON_Parse(race ? "{\"op\":\"unit\",\"kind\":\"race\",\"shape\":\"" SHAPE_TEXT
                               "\",\"options\":{\"seed\":7},\"plan\":{\"rounds\":[{\"rounds\":2,\"keep\":1}],"
                               "\"fresh\":3,\"alpha\":0.05},\"pipelines\":[{\"id\":9,\"forecast_us\":10}]}"
                             : "{\"op\":\"unit\",\"kind\":\"probe\",\"shape\":\"" SHAPE_TEXT
                               "\",\"options\":{\"seed\":7}}");
        cJSON *to = race ? cJSON_GetArrayItem(cJSON_GetObjectItem(unit, "pipelines"), 0) : unit;
        cJSON_AddItemToArray(cJSON_AddArrayToObject(to, "steps"), cJSON_Duplicate(step, true));
        _cleanup_(cJSON_Deletep) cJSON *result = result_of(c, unit);
        ck_assert_str_eq(cJSON_GetObjectItem(result, "status")->valuestring,
                         honest || !reason ? "ok" : "unsupported");
        ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(result, "differs")), !honest && reason);
        const char *given = cJSON_GetObjectItem(result, "reason")->valuestring;
        if (honest)
            us = cJSON_GetObjectItem(result, "us")->valuedouble;
        else if (!reason) /* the simulated time depends on flops and bytes */
            ck_assert_double_eq(cJSON_GetObjectItem(result, "us")->valuedouble, us);
        ck_assert_msg(honest || !reason || strstr(given, reason), "%s", given);
    }
    mf_runner_pool_free(c);
    remove_spec();
}

/* The samples of a step do not depend on the runner or on the steps that it ran before. */
MF_TEST(gives_reproducible_samples)
{
    _cleanup_(mf_freep) char *first = NULL;
    for (int run = 0; run < 2; run++) {
        struct mf_runner_pool *c = start_pool("{}", false);
        int n_rejections;
        expect_ready(c);
        _cleanup_(cJSON_Deletep) cJSON *steps = enumerate(c, &n_rejections);
        ask_probe(c, steps, run ? 3 : 7, run ? 6 : 2); /* step 8 is in both runs */
        for (;;) {
            _cleanup_(cJSON_Deletep) cJSON *m = next_message(c);
            if (strcmp(mf_channel_op(m), "end") == 0)
                break;
            const cJSON *step = cJSON_GetObjectItem(m, "step");
            if (strcmp(mf_channel_op(m), "result") != 0 || step->valueint != 8)
                continue;
            _cleanup_(mf_freep) char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(m, "samples"));
            if (run == 0)
                first = MF_TAKE(text);
            else
                ck_assert_str_eq(text, first);
        }
        mf_runner_pool_free(c);
        remove_spec();
    }
    ck_assert_ptr_nonnull(first);
}

/* clang-format off */
static const struct {
    const char *fault, *status;     /* status NULL: the runner dies without a result */
    const char *message;
} faults[] = {
    {"crash",       NULL,          "signal 11"},
    {"abort",       NULL,          "signal 6"},
    {"exit",        NULL,          "exit code 3"},
    {"hang",        NULL,          "silent for more than 300 ms"},
    {"wrong",       "wrong",       "worst row"},
    {"nan",         "wrong",       "NaN"},
    {"no_memory",   "no_memory",   "workspace"},
    {"zero_time",   "implausible", "0 us"},
    {"beyond_peak", "implausible", "peak"},
    {"slow",        "ok",          ""},
};
/* clang-format on */

MF_TEST(reports_faults, .rows = MF_ARRAY_LEN(faults))
{
    char text[128];
    (void)snprintf(text, sizeof(text), "{\"faults\":[{\"match\":\"sim_sort_m32\",\"fault\":\"%s\"}]}",
                   faults[_i].fault);
    struct mf_runner_pool *c = start_pool(text, false);
    int n_rejections;
    expect_ready(c);
    _cleanup_(cJSON_Deletep) cJSON *steps = enumerate(c, &n_rejections);
    ask_probe(c, steps, 1, 1);
    _cleanup_(cJSON_Deletep) cJSON *begin = next_message(c);
    ck_assert_str_eq(mf_channel_op(begin), "begin");
    /* only a hang may exceed the limit; a long limit allows for a busy machine */
    mf_runner_pool_limit(c, strcmp(faults[_i].fault, "hang") == 0 ? 300 : DEADLINE);
    cJSON *m = NULL;
    enum mf_runner_pool_event event;
    while ((event = wait_pool(c, &m)) == MF_RUNNER_POOL_MESSAGE && strcmp(mf_channel_op(m), "result") != 0)
        cJSON_Delete(m);
    if (faults[_i].status) {
        ck_assert_int_eq(event, MF_RUNNER_POOL_MESSAGE);
        ck_assert_str_eq(cJSON_GetObjectItem(m, "status")->valuestring, faults[_i].status);
        ck_assert_ptr_nonnull(strstr(cJSON_GetObjectItem(m, "reason")->valuestring, faults[_i].message));
        cJSON_Delete(m);
    } else {
        ck_assert_int_eq(event, MF_RUNNER_POOL_DIED);
        ck_assert_msg(strstr(mf_runner_pool_why(c), faults[_i].message) != NULL, "%s", mf_runner_pool_why(c));
        ck_assert_int_eq(mf_runner_pool_hung(c), strcmp(faults[_i].fault, "hang") == 0);
        expect_ready(c);
    }
    mf_runner_pool_free(c);
    remove_spec();
}

/* A reserve runner replaces a runner that died. It inherits the kept memory, and the device is not described
 * again. */
MF_TEST(continues_with_reserve_runner)
{
    struct mf_runner_pool *c =
        start_pool("{\"faults\":[{\"match\":\"sim_sort_m16\",\"fault\":\"crash\",\"first\":1}]}", true);
    int n_rejections;
    expect_ready(c);
    _cleanup_(cJSON_Deletep) cJSON *steps = enumerate(c, &n_rejections);
    ask_probe(c, steps, 0, 1);
    cJSON *m = NULL;
    enum mf_runner_pool_event event;
    while ((event = wait_pool(c, &m)) == MF_RUNNER_POOL_MESSAGE)
        cJSON_Delete(m);
    ck_assert_int_eq(event, MF_RUNNER_POOL_DIED);
    ck_assert_int_eq(mf_runner_pool_deaths(c), 1);
    expect_ready(c);
    /* the fault does not occur a second time, because its counter outlives the runner */
    ask_probe(c, steps, 0, 1);
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *answer = next_message(c);
        if (strcmp(mf_channel_op(answer), "end") == 0)
            break;
        if (strcmp(mf_channel_op(answer), "result") == 0)
            ck_assert_str_eq(cJSON_GetObjectItem(answer, "status")->valuestring, "ok");
    }
    mf_runner_pool_free(c);
    remove_spec();
}

/* A simulated device compiles nothing, so its runners cannot compile ahead. */
MF_TEST(does_not_compile_simulated_ahead)
{
    struct mf_runner_pool *c = start_pool("{}", true);
    ck_assert_int_eq(mf_runner_pool_compile_ahead(c, SHAPE_TEXT), -ENOTSUP);
    expect_ready(c);
    ck_assert_int_eq(mf_runner_pool_compile_ahead(c, SHAPE_TEXT), -ENOTSUP);
    mf_runner_pool_free(c);
    remove_spec();
}

#define COMPILES_AHEAD                                                                                      \
    "echo '{\"op\":\"hello\",\"protocol\":1,\"name\":\"x\",\"revision\":\"r\",\"families\":{},"             \
    "\"can\":[\"unit\",\"ahead\"]}' >&3; while read -r line <&3; do case $line in *describe*) echo "        \
    "'{\"op\":\"described\",\"class\":\"x/1\",\"model\":\"m\",\"isa\":\"\",\"compiler\":\"\",\"memory\":1," \
    "\"llc\":1,\"cores\":1,\"peak_gflops\":{\"bf16\":1,\"f32\":1},\"mem_read_gbs\":1,\"gap_us\":1,"         \
    "\"simulated\":true}' "                                                                                 \
    ">&3;; *ahead*1,2,3*) exit 3;; *ahead*) echo '{}' >&3;; esac; done"

/* A separate runner compiles ahead. If it dies, the working runner is not affected. */
MF_TEST(compiles_ahead_in_another_runner)
{
    static const char *const argv[] = {"/bin/sh", "-c", COMPILES_AHEAD, NULL};
    const struct mf_runner_pool_options o = {.argv = argv};
    struct mf_runner_pool *c = NULL;
    int r;

    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    expect_ready(c);
    ck_assert_int_eq(mf_runner_pool_compile_ahead(c, SHAPE_TEXT), 0);
    ck_assert_int_eq(mf_runner_pool_compile_ahead(c, "1,2,3"), 0);
    for (int64_t until = mf_now_ms() + DEADLINE;
         (r = mf_runner_pool_compile_ahead(c, SHAPE_TEXT)) != -EAGAIN;) {
        cJSON *m = NULL;
        ck_assert_msg(mf_now_ms() < until, "the compiling runner is still alive: %d", r);
        ck_assert_int_eq(mf_runner_pool_iterate(c, &m, mf_now_ms() + 20), MF_RUNNER_POOL_NOTHING);
    }
    ck_assert_int_eq(mf_runner_pool_deaths(c), 0);
    ck_assert_int_gt(mf_runner_pool_pid(c), 0);
    mf_runner_pool_free(c);
}

static bool has_reserve(const struct mf_runner_pool *c)
{
    struct pollfd fds[MF_RUNNER_POOL_POLLFDS];
    mf_runner_pool_pollfds(c, fds);
    return fds[MF_RUNNER_POLLFDS].fd >= 0;
}

static void wait_for_reserve(struct mf_runner_pool *c, bool present)
{
    int64_t until = mf_now_ms() + DEADLINE;
    while (has_reserve(c) != present) {
        cJSON *m = NULL;
        ck_assert_int_lt(mf_now_ms(), until);
        ck_assert_int_eq(mf_runner_pool_iterate(c, &m, mf_now_ms() + 20), MF_RUNNER_POOL_NOTHING);
    }
}

/* If a reserve runner is killed, the reason is not reported as the reason of the working runner's later
 * death. */
MF_TEST(reports_its_own_cause_of_death)
{
    static char script[2048], started[64];
    (void)snprintf(started, sizeof(started), "/tmp/moefarm-started-%ld", (long)getpid());
    (void)snprintf(script, sizeof(script),
                   "if [ -e %s ]; then echo '{\"op\":\"sing\"}' >&3; exec sleep 100; fi; touch %s; %s",
                   started, started, COMPILES_AHEAD);
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    const struct mf_runner_pool_options o = {.argv = argv, .reserve = true};
    struct mf_runner_pool *c = NULL;
    cJSON *m = NULL;

    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    expect_ready(c);
    wait_for_reserve(c, true);
    wait_for_reserve(c, false); /* the reserve runner is killed because its hello is invalid */
    send(c, "{\"op\":\"ahead\",\"shape\":\"1,2,3\"}");
    ck_assert_int_eq(wait_pool(c, &m), MF_RUNNER_POOL_DIED);
    (void)unlink(started);
    ck_assert_msg(strstr(mf_runner_pool_why(c), "exit code 3") != NULL, "the reported reason is: %s",
                  mf_runner_pool_why(c));
    mf_runner_pool_free(c);
}

#ifndef __SANITIZE_ADDRESS__ /* AddressSanitizer reserves more address space than any limit allows */
/* Returns the child of a process that has one child. */
static pid_t only_child(pid_t parent)
{
    char path[64];
    long child = 0;
    (void)snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)parent, (long)parent);
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%ld", &child), 1);
    return (pid_t)child;
}

MF_TEST(sets_memory_limit)
{
    static const char *const argv[] = {
        WORKER, "--runner-child", "--device", "sim:gfx942/304:0", "--memory=512", NULL};
    struct mf_runner_host *h = NULL;
    ck_assert_int_eq(mf_runner_host_start(argv, MF_ISOLATION_NONE, &h), 0);
    _cleanup_(cJSON_Deletep) cJSON *hello = NULL;
    ck_assert_int_eq(wait_host(h, &hello), MF_RUNNER_MESSAGE);
    char path[64], line[256];
    bool found = false;
    (void)snprintf(path, sizeof(path), "/proc/%ld/limits", (long)only_child(mf_runner_host_pid(h)));
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f))
        found |= strncmp(line, "Max address space", 17) == 0 && strstr(line, " 536870912 ");
    ck_assert(found);
    mf_runner_host_free(h);
}
#endif

MF_TEST(fails_on_invalid_device)
{
    static const char *const argv[] = {WORKER, "--runner-child", "--device", "sim:nonsense", NULL};
    struct mf_runner_pool *c = NULL;
    cJSON *m = NULL;
    ck_assert_int_eq(mf_runner_pool_new(&(struct mf_runner_pool_options){.argv = argv}, &c), 0);
    ck_assert_int_eq(wait_pool(c, &m), MF_RUNNER_POOL_FAILED);
    ck_assert_ptr_nonnull(strstr(mf_runner_pool_why(c), "invalid sim device"));
    mf_runner_pool_free(c);
}

MF_TEST(fails_after_two_early_deaths)
{
    static const char *const argv[] = {"/bin/sh", "-c", "echo cannot load the driver >&2; exit 9", NULL};
    struct mf_runner_pool *c = NULL;
    cJSON *m = NULL;
    enum mf_runner_pool_event event;
    int n = 0;
    ck_assert_int_eq(mf_runner_pool_new(&(struct mf_runner_pool_options){.argv = argv}, &c), 0);
    while ((event = wait_pool(c, &m)) == MF_RUNNER_POOL_DIED)
        n++;
    ck_assert_int_eq(event, MF_RUNNER_POOL_FAILED);
    ck_assert_int_eq(n, 2);
    ck_assert_ptr_nonnull(strstr(mf_runner_pool_why(c), "exit code 9; stderr: cannot load the driver"));
    mf_runner_pool_free(c);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
