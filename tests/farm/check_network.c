/* Tests network partitions between the coordinator and a worker, in one or both directions. The worker's
 * lease expires and another worker continues. After the partition, the results measured meanwhile are kept
 * and counted once. Uses two network namespaces joined by a veth pair. A permanent neighbour entry with an
 * unused MAC address cuts one direction. The namespaces use 127/8 addresses, so that the hub requires no
 * keys. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/farm/farm_audit.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"

#define BEAT_MS    500
#define HERE       "127.7.0.1"
#define THERE      "127.7.0.2"
#define UNUSED_MAC "02:00:00:00:00:01"

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64) FARM_CSV_FP8;

static struct farm farm;
static int local_namespace, remote_namespace; /* network namespaces of the test and of the remote worker */
static pid_t namespace_holder;                /* process that keeps the remote namespace alive */

static int run(const char *const *argv)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs `ip` with the given arguments in a network namespace. */
static void ip(int namespace, const char *words)
{
    char copy[160];
    const char *argv[24] = {"ip"};
    int n = 1;
    (void)snprintf(copy, sizeof(copy), "%s", words);
    char *rest = copy;
    for (char *word; (word = strsep(&rest, " ")) && n < 23;)
        argv[n++] = word;
    ck_assert_int_eq(setns(namespace, CLONE_NEWNET), 0);
    int code = run(argv);
    ck_assert_int_eq(setns(local_namespace, CLONE_NEWNET), 0);
    ck_assert_msg(code == 0, "ip %s: exit code %d", words, code);
}

static void route_localnet(void)
{
    int fd = open("/proc/sys/net/ipv4/conf/all/route_localnet", O_WRONLY | O_CLOEXEC);
    ck_assert(fd >= 0 && write(fd, "1", 1) == 1);
    (void)close(fd);
}

/* Returns 0, or -errno if the system does not allow new namespaces. */
static int make_namespaces(void)
{
    char path[64], words[64];
    int ready[2];
    if (pipe(ready) < 0 || unshare(CLONE_NEWNET) < 0)
        return -errno;
    namespace_holder = fork();
    if (namespace_holder == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNET) == 0)
            (void)!write(ready[1], "1", 1);
        (void)close(ready[1]);
        for (;;)
            (void)pause();
    }
    char one = 0;
    (void)close(ready[1]);
    if (read(ready[0], &one, 1) != 1)
        return -EPERM;
    (void)snprintf(path, sizeof(path), "/proc/%ld/ns/net", (long)namespace_holder);
    local_namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    remote_namespace = open(path, O_RDONLY | O_CLOEXEC);
    route_localnet();
    ck_assert_int_eq(setns(remote_namespace, CLONE_NEWNET), 0);
    route_localnet();
    ck_assert_int_eq(setns(local_namespace, CLONE_NEWNET), 0);
    ip(local_namespace, "link set lo up");
    ip(local_namespace, "addr del 127.0.0.1/8 dev lo");
    ip(local_namespace, "addr add 127.0.0.1/32 dev lo");
    (void)snprintf(words, sizeof(words), "link add m0 type veth peer name m1 netns %ld",
                   (long)namespace_holder);
    ip(local_namespace, words);
    ip(local_namespace, "addr add " HERE "/24 dev m0");
    ip(local_namespace, "link set m0 up");
    ip(remote_namespace, "addr add " THERE "/24 dev m1");
    ip(remote_namespace, "link set m1 up");
    return 0;
}

static void start_worker(int place, int namespace)
{
    char device[160], coordinator[64];
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d:%s/spec.json", place, farm.folder);
    (void)snprintf(coordinator, sizeof(coordinator), "tcp://" HERE ":%d", farm.hub);
    const char *const args[] = {"--device", device, "--coordinator", coordinator, NULL};
    ck_assert_int_eq(setns(namespace, CLONE_NEWNET), 0);
    farm_start_worker(&farm, place, args);
    ck_assert_int_eq(setns(local_namespace, CLONE_NEWNET), 0);
}

static bool counter_is_positive(const char *name)
{
    char line[96];
    (void)snprintf(line, sizeof(line), "\n%s 0\n", name);
    struct http_reply r = http_get(farm.http, "/metrics");
    ck_assert(r.body && strstr(r.body, name));
    bool positive = !strstr(r.body, line);
    http_reply_free(&r);
    return positive;
}

/* clang-format off */
static const struct {
    const char *what;
    bool to_coordinator, to_worker;
    const char *counter; /* metric that must be above zero after the partition */
} cuts[] = {
    {"both ways",                       true,  true,  "moefarm_results_late_total"},
    {"messages of the worker are lost",    true,  false, "moefarm_results_late_total"},
    {"messages to the worker are lost",   false, true,  "moefarm_leases_expired_total"},
};
/* clang-format on */

MF_TEST(survives_a_partition, .rows = MF_ARRAY_LEN(cuts))
{
    static const char *const more[] = {"--hub", "tcp://" HERE ":0", NULL};
    ck_assert_int_eq(make_namespaces(), 0);
    farm_make(&farm);
    farm.more = more;
    farm_start_daemon(&farm, BEAT_MS);
    (void)farm_file(&farm, "spec.json", "{\"step_ms\":15,\"pipeline_ms\":2}");
    start_worker(0, remote_namespace);
    start_worker(1, local_namespace);
    farm_wait_workers(&farm, 2);
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    ck_assert(farm_wait_batch(&farm, batch, "measured", 30));
    if (cuts[_i].to_coordinator)
        ip(remote_namespace, "neigh replace " HERE " lladdr " UNUSED_MAC " dev m1 nud permanent");
    if (cuts[_i].to_worker)
        ip(local_namespace, "neigh replace " THERE " lladdr " UNUSED_MAC " dev m0 nud permanent");
    farm_wait_log(&farm, "moefarmd.log", "worker w0 is lost: silent for");
    farm_wait_log(&farm, "worker0.log", "no message from the coordinator for");
    /* the other worker continues, because the leases have expired */
    (void)farm_wait_more(&farm, batch, 10);
    if (cuts[_i].to_coordinator)
        ip(remote_namespace, "neigh del " HERE " dev m1");
    if (cuts[_i].to_worker)
        ip(local_namespace, "neigh del " THERE " dev m0");
    farm_wait_done(&farm, batch);
    farm_wait_workers(&farm, 2);
    farm_wait_spools(&farm);
    farm_audit(&farm, batch, &(struct farm_keys){0});
    ck_assert_int_gt(farm_query_number(&farm, "SELECT max(attempt) FROM unit"), 1);
    ck_assert_int_eq(farm_query_number(&farm, "SELECT count(*) FROM result WHERE late AND final"), 0);
    ck_assert_msg(counter_is_positive(cuts[_i].counter), "%s: %s is not above zero", cuts[_i].what,
                  cuts[_i].counter);
}

static void stop(void)
{
    farm_stop(&farm);
    if (namespace_holder > 0)
        (void)kill(namespace_holder, SIGKILL);
}

/* Returns what this machine lacks for the test, or NULL. Creates a namespace in a child process to find out.
 */
static const char *missing_requirement(void)
{
    static const char *const version[] = {"ip", "-V", NULL};
    int status = 0;
    if (run(version) != 0)
        return "ip (Debian package iproute2) is missing";
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWNET) == 0 ? 0 : 1);
    (void)waitpid(pid, &status, 0);
    return status == 0 ? NULL : "cannot create a network namespace";
}

int main(void)
{
    const char *why = missing_requirement();
    if (why) {
        (void)printf("skipped: %s\n", why);
        return MF_CHECK_SKIPPED;
    }
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
