/* Tunes the whole catalogue with a farm: every untuned table that ROCm/aiter ships (tests/data/aiter), each
 * row on two device classes, from submission to the exported table. Runs a real moefarmd and W simulated
 * AITER devices per class. A moefarm-worker process has up to 256 devices; each device has its own DEALER
 * socket over TCP, spool, journal and runner. The workers run at a lower priority than moefarmd (nice),
 * because in a real farm they run on other machines.
 *
 *   catalogue_join_s       time from the start of the worker processes until the coordinator lists all of
 *                          the workers
 *   catalogue_candidates   number of steps measured. The benchmark fails if the number of a table differs by
 *                          more than 2 % from that of AITER's tuner (known for seven tables).
 *   catalogue_total_s      time from the first submission until the table is exported. It is the sum of
 *                          catalogue_enumerate_s (until the first result), catalogue_measure_s (until the
 *                          last result), catalogue_race_s (until the end of the last task) and
 *                          catalogue_export_s.
 *   catalogue_results_s    results committed per second while 5 to 95 % of the steps are measured
 *   catalogue_wait_ms_p99  idle time of a runner between two units while 5 to 95 % of the steps are measured
 *   catalogue_wait_none    fraction of units without idle time before them
 *   catalogue_get_ms_p99   duration of a GET request from connecting to the last byte. Requests are sent one
 *                          at a time, 50 per second, for lists, tasks, metrics and the status page.
 *   catalogue_rss_mib      peak memory of the coordinator
 *   catalogue_cpu_*_us     CPU time per step of the coordinator, and of all workers with their runners. It
 *                          includes startup, which is a large part if many workers measure few steps.
 *
 * Prints `name value unit`.
 *
 *   bench_catalogue [W [PATTERN [NAME]]]
 *       W: workers per class (default: 128); PATTERN: only tables that match it; NAME: prefix of the figures
 *       (default: catalogue) */
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/farm_process.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKER        MF_BINARY_DIR "/worker/moefarm-worker"
#define CLASSES       "gfx942/304,gfx950/256"
#define NICE          "10"
#define GET_MS        20
#define START_MS      120000
#define END_MS        1200000
#define TABLES_MAX    64
#define GETS_MAX      100000
#define WAITS_MAX     200000
#define TOLERANCE     0.02
#define MOMENTS_MAX   20000
#define STEADY_FROM   0.05
#define STEADY_TO     0.95
#define CLASSES_N     2
#define PER_PROCESS   256 /* simulated workers per moefarm-worker process */
#define PROCESSES_MAX 32

extern char **environ;

/* Number of candidates of AITER's tuner for all rows of a table, counted with the tuner's generators. */
static const struct {
    const char *table;
    double candidates;
} known[] = {
    {"kimik2_fp4", 77568},    {"dsv3_fp4", 75144},         {"glm5_fp4", 74496},   {"minimax_m25_fp4", 72960},
    {"kimik2_fp8fp4", 60592}, {"qwen3_5_397b_fp4", 55872}, {"gptoss_fp4", 55392},
};

/* Requests sent round-robin during the run. */
#define N_PATHS 11
static const char *const paths[N_PATHS] = {
    "/api/v1/workers?limit=1000",
    "/api/v1/batches/%d",
    "/api/v1/batches/%d/tasks?limit=100",
    "/metrics",
    "/api/v1/batches/%d/timeline",
    "/api/v1/tasks/%d/steps?limit=100",
    "/api/v1/tasks/%d",
    "/api/v1/tasks/%d/pipelines",
    "/",
    "/api/v1/shapes?limit=100",
    "/healthz",
};

struct progress {
    double tasks, done, steps, measured;
};

struct bench {
    struct farm_process farm;
    pid_t workers[PROCESSES_MAX];
    int n_processes, n_workers; /* n_workers: workers per class */
    double join_s;
    const char *name; /* prefix of the figures */
    glob_t tables;
    const char *pattern;
    int batches[TABLES_MAX];
    size_t n_batches;
    double *get_ms;
    size_t n_gets, next_path;
    double path_ms[N_PATHS], path_worst_ms[N_PATHS];
    int path_n[N_PATHS];
    double *wait_ms;
    size_t n_waits;
};

static struct bench bench = {.n_workers = 128, .name = "catalogue", .farm = {.log = "moefarmd.log"}};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_catalogue: %s; see the logs in %s\n", what, bench.farm.folder);
    for (int i = 0; i < bench.n_processes; i++) {
        if (bench.workers[i] > 0)
            (void)kill(bench.workers[i], SIGTERM);
    }
    (void)farm_process_kill(&bench.farm, SIGTERM);
    exit(EXIT_FAILURE);
}

static double seconds(uint64_t from_ns)
{
    return (double)(mf_now_ns() - from_ns) * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double percentile(double *values, size_t n, double share)
{
    if (n == 0)
        return (double)NAN;
    qsort(values, n, sizeof(*values), by_size);
    return values[MF_MIN((size_t)((double)n * share), n - 1)];
}

/* ---- processes ---- */

static void log_path(const struct bench *b, int i, char path[320])
{
    mf_format(path, 320, "%s/worker%d.log", b->farm.folder, i);
}

/* Starts a process with n workers; `first` is the index of its first device within the class. */
static void start_process(struct bench *b, const char *class, int first, int n_workers)
{
    int i = b->n_processes++;
    char hub[64], device[48], spool[320], log[320], name[16], n[16];
    mf_format(device, sizeof(device), "sim:%s:%d", class, first);
    mf_format(hub, sizeof(hub), "tcp://127.0.0.1:%d", b->farm.hub);
    mf_format(spool, sizeof(spool), "%s/spool%d", b->farm.folder, i);
    mf_format(name, sizeof(name), "w%d", i);
    mf_format(n, sizeof(n), "%d", n_workers);
    log_path(b, i, log);
    const char *const argv[] = {"nice",     "-n",   NICE,         WORKER,  "--coordinator", hub,
                                "--device", device, "--families", "aiter", "--sim-workers", n,
                                "--name",   name,   "--spool",    spool,   "--log-level",   "debug",
                                NULL};
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0 ||
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0) != 0 ||
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600) !=
            0)
        die("cannot create a worker's log");
    int r = posix_spawnp(&b->workers[i], argv[0], &actions, NULL, (char **)argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (r != 0)
        die("cannot start " WORKER);
}

static void start_workers(struct bench *b)
{
    static const char *const classes[CLASSES_N] = {"gfx942/304", "gfx950/256"};
    for (int first = 0; first < b->n_workers; first += PER_PROCESS) {
        for (int i = 0; i < CLASSES_N; i++)
            start_process(b, classes[i], first, MF_MIN(PER_PROCESS, b->n_workers - first));
    }
}

static double peak_mib(pid_t pid)
{
    char path[64], line[256];
    long kib;
    mf_format(path, sizeof(path), "/proc/%d/status", (int)pid);
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "VmHWM: %ld kB", &kib) == 1)
            return (double)kib / 1024;
    }
    return (double)NAN;
}

/* ---- requests ---- */

/* Sends a GET request and records its duration. */
static char *get(struct bench *b, const char *path)
{
    int status;
    uint64_t from = mf_now_ns();
    char *text = farm_process_http(&b->farm, "GET", path, "text/plain", "", &status);
    if (!text || status != 200)
        die(path);
    if (b->n_gets < GETS_MAX)
        b->get_ms[b->n_gets++] = (double)(mf_now_ns() - from) * 1e-6;
    return text;
}

static cJSON *get_json(struct bench *b, const char *path)
{
    _cleanup_(mf_freep) char *text = get(b, path);
    cJSON *json = mf_json_parse(text, strlen(text), 64u << 20);
    if (!json)
        die(path);
    return json;
}

static double number(const cJSON *json, const char *key)
{
    double value = 0;
    (void)mf_json_double(json, key, &value);
    return value;
}

static void look(struct bench *b, int n_tasks)
{
    char path[96];
    size_t i = b->next_path++, n = b->n_gets;
    const char *form = paths[i % N_PATHS];
    int id =
        strstr(form, "tasks/%d") ? 1 + (int)(i % (size_t)n_tasks) : b->batches[i / N_PATHS % b->n_batches];
    mf_format(path, sizeof(path), "%s", form);
    const char *at = strstr(form, "%d");
    if (at)
        mf_format(path, sizeof(path), "%.*s%d%s", (int)(at - form), form, id, at + 2);
    free(get(b, path));
    if (n == b->n_gets)
        return;
    b->path_n[i % N_PATHS]++;
    b->path_ms[i % N_PATHS] += b->get_ms[n];
    b->path_worst_ms[i % N_PATHS] = fmax(b->path_worst_ms[i % N_PATHS], b->get_ms[n]);
}

static struct progress ask_progress(struct bench *b)
{
    struct progress p = {0};
    const cJSON *item;
    _cleanup_(cJSON_Deletep) cJSON *list = get_json(b, "/api/v1/batches?limit=100");
    cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
        p.tasks += number(item, "tasks");
        p.done += number(item, "done") + number(item, "failed");
        p.steps += number(item, "steps");
        p.measured += number(item, "measured");
    }
    return p;
}

/* Counts the workers of all classes, page by page. */
static int count_workers(struct bench *b)
{
    int n = 0;
    bool more = true;
    char path[128] = "/api/v1/workers?limit=1000";
    while (more) {
        const char *next;
        _cleanup_(cJSON_Deletep) cJSON *list = get_json(b, path);
        n += cJSON_GetArraySize(mf_json_array(list, "items"));
        more = mf_json_text(list, "next", &next) == 0;
        if (more)
            mf_format(path, sizeof(path), "/api/v1/workers?limit=1000&cursor=%s", next);
    }
    return n;
}

static void wait_workers(struct bench *b)
{
    uint64_t from = mf_now_ns();
    for (int64_t end = mf_now_ms() + START_MS; mf_now_ms() < end; mf_sleep_ms(50)) {
        if (count_workers(b) == CLASSES_N * b->n_workers) {
            b->join_s = seconds(from);
            return;
        }
        for (int i = 0; i < b->n_processes; i++) {
            if (waitpid(b->workers[i], NULL, WNOHANG) != 0)
                die("a worker ended during startup");
        }
    }
    die("the workers did not connect in time");
}

/* ---- submitting ---- */

/* "…/dsv3_fp4_untuned_fmoe.csv" -> "dsv3_fp4" */
static void table_name(const char *path, char name[80])
{
    const char *from = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *to = strstr(from, "_untuned");
    mf_format(name, 80, "%.*s", to ? (int)(to - from) : (int)strcspn(from, "."), from);
}

static void submit(struct bench *b, const char *table)
{
    char path[256], name[80];
    int status, id;
    _cleanup_(mf_fclosep) FILE *file = fopen(table, "re");
    _cleanup_(mf_freep) char *csv = calloc(1, 1u << 20);
    if (!file || !csv)
        die(table);
    (void)fread(csv, 1, (1u << 20) - 1, file);
    table_name(table, name);
    mf_format(path, sizeof(path), "/api/v1/batches?classes=" CLASSES "&name=%s", name);
    _cleanup_(mf_freep) char *answer = farm_process_http(&b->farm, "POST", path, "text/csv", csv, &status);
    _cleanup_(cJSON_Deletep) cJSON *json = answer ? cJSON_Parse(answer) : NULL;
    id = (int)number(json, "batch");
    if (status != 201 || id < 1 || b->n_batches == TABLES_MAX)
        die(answer ? answer : table);
    b->batches[b->n_batches++] = id;
}

static void submit_all(struct bench *b)
{
    if (glob(MF_TEST_DATA "/aiter/*untuned_fmoe*.csv", 0, NULL, &b->tables) != 0)
        die("no tables in " MF_TEST_DATA "/aiter");
    for (size_t i = 0; i < b->tables.gl_pathc; i++) {
        const char *table = b->tables.gl_pathv[i];
        char name[80];
        table_name(table, name);
        /* the tables of the grouped operator are excluded */
        if (!strstr(table, "grouped") && (!b->pattern || fnmatch(b->pattern, name, 0) == 0))
            submit(b, table);
    }
    if (b->n_batches == 0)
        die("no table matches the pattern");
}

static void check_counts(struct bench *b)
{
    const cJSON *item;
    _cleanup_(cJSON_Deletep) cJSON *list = get_json(b, "/api/v1/batches?limit=100");
    cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
        const char *name = "";
        (void)mf_json_text(item, "name", &name);
        for (size_t i = 0; i < MF_ARRAY_LEN(known); i++) {
            double steps = number(item, "steps"), off = steps / known[i].candidates - 1;
            if (strcmp(known[i].table, name) != 0)
                continue;
            (void)fprintf(stderr, "%s: %.0f candidates, AITER's tuner has %.0f: %+.1f %%\n", name, steps,
                          known[i].candidates, 100 * off);
            if (!(fabs(off) <= TOLERANCE))
                die("the number of candidates differs from AITER's tuner");
        }
    }
}

/* ---- idle times from the workers' logs ---- */

struct moment {
    double s, measured;
    long log[PROCESSES_MAX]; /* sizes of the processes' logs */
};

static long log_size(const struct bench *b, int i)
{
    char path[320];
    log_path(b, i, path);
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
    return file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
}

static void read_waits(struct bench *b, const struct moment *from, const struct moment *to)
{
    char path[320], line[512];
    for (int i = 0; i < b->n_processes; i++) {
        log_path(b, i, path);
        _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
        if (!file || fseek(file, from->log[i], SEEK_SET) != 0)
            die("cannot read a worker's log");
        while (ftell(file) < to->log[i] && fgets(line, sizeof(line), file)) {
            const char *at = strstr(line, " waited ");
            if (at && b->n_waits < WAITS_MAX)
                b->wait_ms[b->n_waits++] = strtod(at + 8, NULL);
        }
    }
}

/* ---- the run ---- */

struct times {
    double end_s, export_s; /* in seconds since the first submission */
    struct progress p;
    struct moment *moments;
    size_t n;
};

static void note(struct bench *b, struct times *t, double now_s)
{
    if (t->n == MOMENTS_MAX)
        return;
    struct moment *m = &t->moments[t->n++];
    *m = (struct moment){.s = now_s, .measured = t->p.measured};
    for (int i = 0; i < b->n_processes; i++)
        m->log[i] = log_size(b, i);
}

/* Returns the first moment at which the fraction `share` of all steps was measured. */
static const struct moment *moment_at(const struct times *t, double share)
{
    size_t i = 0;
    while (i + 1 < t->n && t->moments[i].measured < share * t->p.steps)
        i++;
    return &t->moments[i];
}

static struct times run(struct bench *b)
{
    struct times t = {.moments = calloc(MOMENTS_MAX, sizeof(struct moment))};
    if (!t.moments)
        die("out of memory");
    uint64_t start_ns = mf_now_ns(), next_ns = start_ns;
    submit_all(b);
    for (int i = 0; t.p.tasks == 0 || t.p.done < t.p.tasks; i++) {
        if (seconds(start_ns) * 1e3 > END_MS)
            die("the batches did not end in time");
        if (i % 10 == 0) {
            t.p = ask_progress(b);
            note(b, &t, seconds(start_ns));
        } else {
            look(b, MF_MAX((int)t.p.tasks, 1));
        }
        next_ns += GET_MS * UINT64_C(1000000);
        if (mf_now_ns() < next_ns)
            mf_sleep_ms((int64_t)((next_ns - mf_now_ns()) / 1000000));
        else
            next_ns = mf_now_ns();
    }
    t.end_s = seconds(start_ns);
    int status;
    _cleanup_(mf_freep) char *csv = farm_process_http(
        &b->farm, "GET", "/api/v1/export/tuned_fmoe.csv?simulated=1", "text/csv", "", &status);
    t.export_s = seconds(start_ns) - t.end_s;
    if (!csv || status != 200)
        die(csv ? csv : "export");
    size_t rows = 0;
    for (const char *at = csv; (at = strchr(at, '\n')); at++)
        rows++;
    printf("%s_rows %zu rows\n", b->name, rows - 1);
    return t;
}

static void print(struct bench *b, struct times *t, double daemon_s)
{
    struct rusage usage;
    size_t none = 0;
    (void)getrusage(RUSAGE_CHILDREN, &usage);
    double all_s = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    const struct moment *from = moment_at(t, STEADY_FROM), *to = moment_at(t, STEADY_TO);
    double first_s = moment_at(t, 1e-9)->s, last_s = moment_at(t, 1)->s;
    for (size_t i = 0; i < b->n_waits; i++)
        none += b->wait_ms[i] < 0.1;
    for (int i = 0; i < N_PATHS; i++)
        (void)fprintf(stderr, "GET %s: mean %.2f ms, worst %.1f ms of %d\n", paths[i],
                      b->path_ms[i] / MF_MAX(b->path_n[i], 1), b->path_worst_ms[i], b->path_n[i]);
    printf("%s_tasks %.0f tasks\n%s_candidates %.0f steps\n", b->name, t->p.tasks, b->name, t->p.steps);
    printf("%s_workers %d workers\n%s_join_s %.1f s\n", b->name, CLASSES_N * b->n_workers, b->name,
           b->join_s);
    printf("%s_total_s %.1f s\n", b->name, t->end_s + t->export_s);
    printf("%s_enumerate_s %.1f s\n", b->name, first_s);
    printf("%s_measure_s %.1f s\n", b->name, last_s - first_s);
    printf("%s_race_s %.1f s\n", b->name, t->end_s - last_s);
    printf("%s_export_s %.2f s\n", b->name, t->export_s);
    printf("%s_results_s %.0f results/s\n", b->name, (to->measured - from->measured) / (to->s - from->s));
    printf("%s_wait_ms_p50 %.3f ms\n", b->name, percentile(b->wait_ms, b->n_waits, 0.5));
    printf("%s_wait_ms_p99 %.3f ms\n", b->name, percentile(b->wait_ms, b->n_waits, 0.99));
    printf("%s_wait_none %.3f share\n", b->name, (double)none / (double)MF_MAX(b->n_waits, (size_t)1));
    printf("%s_get_ms_p50 %.2f ms\n", b->name, percentile(b->get_ms, b->n_gets, 0.5));
    printf("%s_get_ms_p99 %.2f ms\n", b->name, percentile(b->get_ms, b->n_gets, 0.99));
    printf("%s_cpu_coordinator_us %.1f us\n", b->name, daemon_s * 1e6 / t->p.steps);
    printf("%s_cpu_workers_us %.1f us\n", b->name, (all_s - daemon_s) * 1e6 / t->p.steps);
}

int main(int argc, char **argv)
{
    struct bench *b = &bench;
    int64_t n;
    if (argc > 1 && mf_parse_i64(argv[1], 1, PER_PROCESS * PROCESSES_MAX / CLASSES_N, &n) == 0)
        b->n_workers = (int)n;
    b->pattern = argc > 2 ? argv[2] : NULL;
    if (argc > 3)
        b->name = argv[3];
    b->get_ms = calloc(GETS_MAX, sizeof(*b->get_ms));
    b->wait_ms = calloc(WAITS_MAX, sizeof(*b->wait_ms));
    if (!b->get_ms || !b->wait_ms)
        die("out of memory");
    farm_process_start(&b->farm, 2000);
    start_workers(b);
    wait_workers(b);
    b->n_gets = 0;
    struct times t = run(b);
    check_counts(b);
    read_waits(b, moment_at(&t, STEADY_FROM), moment_at(&t, STEADY_TO));
    printf("%s_rss_mib %.0f MiB\n", b->name, peak_mib(b->farm.pid));
    double daemon_s = farm_process_cpu_s(&b->farm);
    for (int i = 0; i < b->n_processes; i++) {
        (void)kill(b->workers[i], SIGTERM);
        (void)waitpid(b->workers[i], NULL, 0);
    }
    (void)farm_process_kill(&b->farm, SIGTERM);
    print(b, &t, daemon_s);
    farm_process_remove(&b->farm);
    globfree(&b->tables);
    free(b->get_ms);
    free(b->wait_ms);
    free(t.moments);
    return EXIT_SUCCESS;
}
