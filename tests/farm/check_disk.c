/* The disk of the database or of a spool is full or read-only. The farm reports this in the log, in /readyz
 * and in its answers, refuses changes, keeps serving reads, and continues once it can write again. Full disks
 * are small file systems in the test's own mount namespace; tests/support/farm/machine_shim.c simulates write
 * errors of a running program. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_audit.h"
#include "support/farm/http_client.h"
#include "support/farm/machine.h"
#include "support/mf_check.h"
#include "support/run_program.h"

#define BEAT_MS \
    1000 /* for tests in which a lease may expire; a worker notices a new coordinator within one beat */
#define LONG_BEAT_MS 2000 /* for tests in which no lease may expire, even on a busy machine */
#define MANY_ROWS    1000
#define SLOW \
    "{\"step_ms\":15,\"pipeline_ms\":2}" /* slow enough to observe the batch, even on a busy machine */
#define DAEMON MF_BINARY_DIR "/server/moefarmd"
#define WORKER MF_BINARY_DIR "/worker/moefarm-worker"

static const char csv_head[] = FARM_CSV_HEAD;
static const char csv_row[] =
    "%d,%d,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";

static struct farm farm;
static struct machine *machine;
static char spec[64];

static void path_of(const char *name, char path[128])
{
    (void)snprintf(path, 128, "%s/%s", farm.folder, name);
}

/* Mounts a small file system at the named folder. */
static void mount_disk(const char *name, const char *size)
{
    char path[128], options[32];
    path_of(name, path);
    (void)snprintf(options, sizeof(options), "size=%s", size);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_msg(mount("none", path, "tmpfs", 0, options) == 0, "%s", strerror(errno));
}

static void unmount_disk(const char *name)
{
    char path[128];
    path_of(name, path);
    (void)umount2(path, MNT_DETACH);
}

/* Fills the file system completely. */
static void fill_disk(const char *name)
{
    static const char zeros[4096];
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/%s/filler", farm.folder, name);
    _cleanup_(mf_closep) int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    while (write(fd, zeros, sizeof(zeros)) > 0)
        ;
    ck_assert_int_eq(errno, ENOSPC);
}

static void free_disk(const char *name)
{
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/%s/filler", farm.folder, name);
    ck_assert_int_eq(unlink(path), 0);
}

static char *rows(int from, int n)
{
    char *text = malloc(sizeof(csv_head) + (size_t)n * 160);
    ck_assert_ptr_nonnull(text);
    int at = sprintf(text, "%s", csv_head);
    for (int i = 0; i < n; i++)
        at += sprintf(text + at, csv_row, 1 + (from + i) % 4096, 256 * (1 + (from + i) / 4096));
    return text;
}

static void start_worker(int place)
{
    char device[160];
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d:%s", place, spec);
    const char *const args[] = {"--device", device, NULL};
    farm_start_worker(&farm, place, args);
}

static int submit(int n)
{
    _cleanup_(mf_freep) char *csv = rows(0, n);
    return farm_submit(&farm, csv, "&classes=gfx942/304");
}

static void write_spec(const char *text)
{
    (void)snprintf(spec, sizeof(spec), "%s", farm_file(&farm, "spec.json", text));
}

/* Waits until /readyz answers with the status, and returns the body of that answer. The caller frees it. */
static char *wait_ready(int status)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        struct http_reply r = http_get(farm.http, "/readyz");
        free(r.head);
        if (r.status == status)
            return r.body;
        free(r.body);
        ck_assert_msg(mf_now_ms() < until, "/readyz answers %d, expected %d", r.status, status);
        (void)poll(NULL, 0, 10);
    }
}

/* Checks how a farm reports that it cannot write, for the reason `why`. */
static void check_halted(const char *why)
{
    _cleanup_(mf_freep) char *ready = wait_ready(503);
    ck_assert_msg(strstr(ready, "the database is not writable") != NULL, "%s", ready);
    ck_assert_msg(strstr(ready, why) != NULL, "%s", ready);
    _cleanup_(mf_freep) char *csv = rows(0, 1);
    struct http_reply r = http_call(farm.http, "POST", "/api/v1/batches?name=no",
                                    "Content-Type: text/csv\r\n", csv, strlen(csv));
    ck_assert_int_eq(r.status, 503);
    ck_assert_msg(strstr(r.body, why) != NULL, "%s", r.body);
    http_reply_free(&r);
    r = http_get(farm.http, "/metrics");
    ck_assert_ptr_nonnull(strstr(r.body, "\nmoefarm_store_read_only 1\n"));
    http_reply_free(&r);
    ck_assert(farm_log_has(&farm, "moefarmd.log", why));
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/batches");
    ck_assert_int_gt(cJSON_GetArraySize(mf_json_array(list, "items")), 0);
}

/* Checks that the farm continues after the fault: it completes the running batch, and a new batch. */
static void check_recovered(int batch)
{
    struct farm_keys none = {0};
    free(wait_ready(200));
    ck_assert(farm_log_has(&farm, "moefarmd.log", "the database is writable again"));
    farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    farm_audit(&farm, batch, &none);
    int next = submit(1);
    farm_wait_done(&farm, next);
    farm_audit(&farm, next, &none);
}

/* Submits batches for a class without workers until the coordinator refuses a batch. Returns the number of
 * accepted batches. */
static int fill_database(void)
{
    for (int n = 0;; n++) {
        _cleanup_(mf_freep) char *csv = rows(n * MANY_ROWS, MANY_ROWS);
        if (farm_try_submit(&farm, csv, "&classes=gfx90a/104", "") == 0)
            return n;
        ck_assert_int_lt(n, 200);
    }
}

MF_TEST(database_full)
{
    farm_make(&farm);
    mount_disk("state", "56m");
    write_spec(SLOW);
    farm_start_daemon(&farm, LONG_BEAT_MS);
    start_worker(0);
    farm_wait_workers(&farm, 1);
    int batch = submit(2);
    ck_assert(farm_wait_batch(&farm, batch, "measured", 10));
    fill_disk("state");
    int accepted = fill_database();
    check_halted("No space left on device");
    /* A submission that the full disk interrupted has no receipt. The farm removes it later. */
    ck_assert_int_eq(farm_query_number(&farm, "SELECT count(*) FROM batch WHERE receipt <> ''"),
                     1 + accepted);
    free_disk("state");
    check_recovered(batch);
    ck_assert_int_eq(farm_query_number(&farm, "SELECT count(*) FROM batch"), 2 + accepted);
    /* during the fault, the worker did not conclude that the coordinator was lost */
    ck_assert(!farm_log_has(&farm, "worker0.log", "no message from the coordinator"));
}

/* The database becomes read-only during a batch and stays so for longer than a lease. */
MF_TEST(database_read_only)
{
    farm_make(&farm);
    machine = machine_new(farm.folder);
    machine_preload(true);
    write_spec(SLOW);
    farm_start_daemon(&farm, LONG_BEAT_MS);
    machine_preload(false);
    start_worker(0);
    farm_wait_workers(&farm, 1);
    int batch = submit(2);
    ck_assert(farm_wait_batch(&farm, batch, "measured", 10));
    machine->read_only = 1;
    check_halted("Read-only file system");
    int64_t until = mf_now_ms() + 3 * LONG_BEAT_MS + 1000;
    while (mf_now_ms() < until) {
        free(wait_ready(503));
        (void)poll(NULL, 0, 10);
    }
    machine->read_only = 0;
    check_recovered(batch);
    ck_assert(!farm_log_has(&farm, "worker0.log", "no message from the coordinator"));
    ck_assert_int_eq(farm_query_number(&farm, "SELECT max(attempt) FROM unit"), 1);
}

/* A worker leaves when its spool is full. A restarted worker exits without taking a unit as long as its spool
 * is not writable, so the worker uses up no attempt of a unit. Then the batch is completed. */
MF_TEST(spool_full)
{
    farm_start(&farm, LONG_BEAT_MS);
    machine = machine_new(farm.folder);
    machine_preload(true);
    write_spec(SLOW);
    start_worker(0);
    farm_wait_workers(&farm, 1);
    int batch = submit(2);
    ck_assert(farm_wait_batch(&farm, batch, "measured", 10));
    machine->write_errno = ENOSPC;
    ck_assert_int_eq(farm_wait_end(&farm.workers[0]), 1);
    ck_assert(
        farm_log_has(&farm, "worker0.log", "cannot write a result to the spool: No space left on device"));
    /* The coordinator may process BYE only after the worker has exited. */
    farm_wait_log(&farm, "moefarmd.log", "worker w0 leaves: cannot write to the spool");
    for (int i = 0; i < 10; i++) {
        start_worker(0);
        ck_assert_int_eq(farm_wait_end(&farm.workers[0]), 1);
    }
    ck_assert(farm_log_has(&farm, "worker0.log", "w0.spool: No space left on device"));
    ck_assert_int_le(farm_query_number(&farm, "SELECT max(attempt) FROM unit"), 2);
    machine->write_errno = 0;
    start_worker(0);
    farm_wait_done(&farm, batch);
    farm_audit(&farm, batch, &(struct farm_keys){0});
}

/* ---- programs started on a read-only disk ---- */

static void make_read_only(const char *name, bool read_only)
{
    char path[128];
    path_of(name, path);
    ck_assert_msg(mount("none", path, NULL, MS_REMOUNT | (read_only ? MS_RDONLY : 0), NULL) == 0, "%s",
                  strerror(errno));
}

/* Number of lines with the text. */
static int count_lines(const char *lines, const char *text)
{
    int n = 0;
    for (const char *at = lines; (at = strstr(at, text)); at++)
        n++;
    return n;
}

/* Checks that the program exits, and that one line of its output, apart from lines of level info, names the
 * file. */
static void check_refuses_to_start(const char *const *program, const char *file)
{
    static const char *const none[] = {NULL};
    struct ran r = run_program(program, none);
    ck_assert_msg(r.code == 1, "%s", r.text);
    assert_says(r, file);
    assert_says(r, "Read-only file system");
    ck_assert_msg(count_lines(r.text, "\n") - count_lines(r.text, " info: ") == 1, "%s", r.text);
}

/* Programs that start on a read-only disk leave the existing state unchanged. The state is usable once the
 * disk is writable. */
MF_TEST(coordinator_on_a_read_only_disk)
{
    char state[128], fresh[160], lock[160], folder_of_database[192], copy[128], index[128];
    farm_make(&farm);
    mount_disk("state", "56m");
    write_spec(SLOW);
    farm_start_daemon(&farm, BEAT_MS);
    start_worker(0);
    farm_wait_workers(&farm, 1);
    int batch = submit(2);
    ck_assert(farm_wait_batch(&farm, batch, "measured", 10));
    farm_kill_daemon(&farm);
    path_of("state/farm.db-shm", index); /* a reader would create this file again if it could write */
    ck_assert_int_eq(unlink(index), 0);
    make_read_only("state", true);
    path_of("state", state);
    (void)snprintf(fresh, sizeof(fresh), "%s/fresh", state);
    (void)snprintf(lock, sizeof(lock), "%s/lock", state);
    (void)snprintf(folder_of_database, sizeof(folder_of_database), "folder of %s/farm.db", state);
    path_of("copy.db", copy);
    check_refuses_to_start((const char *const[]){DAEMON, "--http", "127.0.0.1:0", "--hub", "127.0.0.1:0",
                                                 "--state", state, NULL},
                           lock);
    check_refuses_to_start((const char *const[]){DAEMON, "--http", "127.0.0.1:0", "--hub", "127.0.0.1:0",
                                                 "--keys", "--tokens", "--state", fresh, NULL},
                           fresh);
    check_refuses_to_start((const char *const[]){DAEMON, "--state", state, "--backup", copy, NULL},
                           folder_of_database);
    make_read_only("state", false);
    farm_start_daemon(&farm, BEAT_MS);
    farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    farm_audit(&farm, batch, &(struct farm_keys){0});
}

/* Waits until the worker has an unacknowledged result in its spool. */
static void wait_spooled(const struct farm *at)
{
    char path[160];
    struct stat st;
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    (void)snprintf(path, sizeof(path), "%s/w0.spool", at->folder);
    while (stat(path, &st) < 0 || st.st_size == 0) {
        ck_assert_int_lt(mf_now_ms(), until);
        (void)poll(NULL, 0, 10);
    }
}

/* A worker on a read-only disk exits without taking a unit. Results in its spool are sent when it starts on a
 * writable disk. */
MF_TEST(worker_on_a_read_only_disk)
{
    _cleanup_(farm_keys_release) struct farm_keys kept = {0};
    char device[160], coordinator[64], fresh[160];
    farm_start(&farm, BEAT_MS);
    struct farm at = farm; /* a copy whose folder is the spool's folder */
    mount_disk("spool", "8m");
    ck_assert_int_lt(snprintf(at.folder, sizeof(at.folder), "%s/spool", farm.folder), sizeof(at.folder));
    write_spec(SLOW);
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:0:%s", spec);
    const char *const args[] = {"--spool", at.folder, "--device", device, NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    int batch = submit(2);
    ck_assert(farm_wait_batch(&farm, batch, "measured", 10));
    farm_kill_daemon(&farm);
    wait_spooled(&at);
    farm_kill_worker(&farm, 0);
    farm_read_spool(&at, 0, &kept);
    ck_assert_uint_gt(kept.n, 0);
    make_read_only("spool", true);
    farm_start_daemon(&farm, BEAT_MS);
    (void)snprintf(coordinator, sizeof(coordinator), "tcp://127.0.0.1:%d", farm.hub);
    (void)snprintf(fresh, sizeof(fresh), "%s/fresh", at.folder);
    check_refuses_to_start((const char *const[]){WORKER, "--name", "w0", "--lock-dir", farm.folder,
                                                 "--device", device, "--coordinator", coordinator, "--spool",
                                                 at.folder, NULL},
                           "w0.spool");
    check_refuses_to_start((const char *const[]){WORKER, "--name", "w0", "--lock-dir", farm.folder,
                                                 "--device", device, "--coordinator", coordinator, "--spool",
                                                 fresh, NULL},
                           fresh);
    make_read_only("spool", false);
    farm_start_worker(&farm, 0, args);
    farm_wait_done(&farm, batch);
    farm_audit(&farm, batch, &kept);
}

/* Unmounts the disks first, because a folder with a mounted file system cannot be removed. */
static void stop(void)
{
    unmount_disk("state");
    unmount_disk("spool");
    farm_stop(&farm);
    machine_free(machine);
}

int main(void)
{
    if (!machine_is_available())
        return MF_CHECK_SKIPPED;
    /* Later mounts are visible to this process and its children only. */
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        (void)printf("skipped: cannot create a mount namespace: %s\n", strerror(errno));
        return MF_CHECK_SKIPPED;
    }
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
