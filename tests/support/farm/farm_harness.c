#include "support/farm/farm_harness.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/table/table_check.h"
#include "support/farm/farm_process.h"
#include "support/farm/http_client.h"
#include "support/remove_tree.h"

#define WORKER   MF_BINARY_DIR "/worker/moefarm-worker"
#define PAUSE_MS 5
#define ARGS_MAX 40
#define LOG_TAIL 4000

/* Waits between two polls, so that the processes under test can run. */
static void pause_between(void)
{
    (void)poll(NULL, 0, PAUSE_MS);
}

static void path_in(const struct farm *f, const char *name, char *path, size_t cap)
{
    (void)snprintf(path, cap, "%s/%s", f->folder, name);
}

const char *farm_file(struct farm *f, const char *name, const char *content)
{
    static char path[128];
    path_in(f, name, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    (void)close(fd);
    return path;
}

static int reap(pid_t *pid)
{
    int status = 0;
    while (waitpid(*pid, &status, 0) < 0 && errno == EINTR)
        ;
    *pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void kill_hard(pid_t *pid)
{
    if (*pid <= 0)
        return;
    (void)kill(*pid, SIGKILL);
    (void)reap(pid);
}

int farm_wait_end(pid_t *pid)
{
    int status = 0;
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    while (waitpid(*pid, &status, WNOHANG) != *pid) {
        ck_assert_msg(mf_now_ms() < until, "process %ld is still running", (long)*pid);
        pause_between();
    }
    *pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int farm_end(pid_t *pid)
{
    ck_assert_int_eq(kill(*pid, SIGTERM), 0);
    return farm_wait_end(pid);
}

void farm_start_daemon(struct farm *f, int beat_ms)
{
    struct farm_process p = {
        .http = f->http, .hub = f->hub, .log = "moefarmd.log", .log_level = "info", .more = f->more};
    (void)snprintf(p.folder, sizeof(p.folder), "%s", f->folder);
    farm_process_start(&p, beat_ms);
    f->daemon = p.pid;
    f->http = p.http;
    f->hub = p.hub;
}

void farm_make(struct farm *f)
{
    *f = (struct farm){.folder = "/tmp/moefarm-test.XXXXXX"};
    ck_assert_ptr_nonnull(mkdtemp(f->folder));
}

void farm_start(struct farm *f, int beat_ms)
{
    farm_start_with(f, beat_ms, NULL);
}

void farm_start_with(struct farm *f, int beat_ms, const char *const *more)
{
    farm_make(f);
    f->more = more;
    farm_start_daemon(f, beat_ms);
}

static void print_tail(const struct farm *f, const char *name)
{
    char path[128], text[LOG_TAIL + 1];
    path_in(f, name, path, sizeof(path));
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? -1 : pread(fd, text, LOG_TAIL, size > LOG_TAIL ? size - LOG_TAIL : 0);
    if (n > 0)
        (void)fprintf(stderr, "---- %s\n%.*s", name, (int)n, text);
}

void farm_stop(struct farm *f)
{
    for (int i = 0; i < f->n_workers; i++)
        kill_hard(&f->workers[i]);
    kill_hard(&f->daemon);
    if (getenv("FARM_LOGS")) {
        print_tail(f, "moefarmd.log");
        for (int i = 0; i < f->n_workers; i++) {
            char name[32];
            (void)snprintf(name, sizeof(name), "worker%d.log", i);
            print_tail(f, name);
        }
    }
    (void)remove_tree(f->folder);
}

void farm_start_worker(struct farm *f, int place, const char *const *args)
{
    char coordinator[48], name[16], file[32], log[128];
    const char *argv[ARGS_MAX];
    int n = 0;
    ck_assert_int_lt(place, FARM_WORKERS_MAX);
    (void)snprintf(coordinator, sizeof(coordinator), "tcp://127.0.0.1:%d", f->hub);
    (void)snprintf(name, sizeof(name), "w%d", place);
    (void)snprintf(file, sizeof(file), "worker%d.log", place);
    path_in(f, file, log, sizeof(log));
    const char *const own[] = {WORKER,       "--coordinator", coordinator, "--name", name,
                               "--lock-dir", f->folder,       "--spool",   f->folder};
    for (size_t i = 0; i < MF_ARRAY_LEN(own); i++)
        argv[n++] = own[i];
    for (int i = 0; args[i]; i++) {
        ck_assert_int_lt(n, ARGS_MAX - 1);
        argv[n++] = args[i];
    }
    argv[n] = NULL;
    f->workers[place] = farm_process_spawn(argv, log);
    ck_assert_int_gt(f->workers[place], 0);
    f->n_workers = MF_MAX(f->n_workers, place + 1);
}

/* Sends one request. The status is 0 if the coordinator is down or dies during the request. */
static struct http_reply call(const struct farm *f, const char *method, const char *path, const char *headers,
                              const char *body)
{
    struct http_reply none = {0};
    char head[1024];
    _cleanup_(mf_closep) int fd = http_connect(f->http);
    if (fd < 0)
        return none;
    (void)snprintf(head, sizeof(head),
                   "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n",
                   method, path, strlen(body), headers);
    http_sends(fd, head);
    http_sends(fd, body);
    return http_read(fd, 0);
}

cJSON *farm_get(struct farm *f, const char *format, ...)
{
    char path[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    ck_assert_int_lt(n, (int)sizeof(path));
    struct http_reply r = call(f, "GET", path, "", "");
    cJSON *json = r.status == 200 ? mf_json_parse(r.body, r.len, 64u << 20) : NULL;
    http_reply_free(&r);
    return json;
}

char *farm_call(struct farm *f, const char *method, const char *path, const char *type, const char *body,
                int status)
{
    char headers[96];
    (void)snprintf(headers, sizeof(headers), "Content-Type: %s\r\n", type);
    struct http_reply r = call(f, method, path, headers, body);
    ck_assert_msg(r.status == status, "%s %s: %d %s", method, path, r.status, r.body ? r.body : "");
    free(r.head);
    return r.body;
}

cJSON *farm_task_list(struct farm *f, int batch, const char *what)
{
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(f, "/api/v1/batches/%d/tasks", batch);
    cJSON *list = farm_get(f, "/api/v1/tasks/%d/%s",
                           farm_number(cJSON_GetArrayItem(mf_json_array(tasks, "items"), 0), "id"), what);
    ck_assert_ptr_nonnull(list);
    return list;
}

cJSON *farm_wait_task(struct farm *f, int task, const char *state)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        cJSON *json = farm_get(f, "/api/v1/tasks/%d", task);
        const char *now = farm_text(json, "state");
        if (strcmp(now, state) == 0)
            return json;
        bool ended = strcmp(now, "done") == 0 || strcmp(now, "failed") == 0 || strcmp(now, "cancelled") == 0;
        ck_assert_msg(!ended && mf_now_ms() < until, "task %d is %s, not %s", task, now, state);
        cJSON_Delete(json);
        pause_between();
    }
}

double farm_double(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    ck_assert_msg(cJSON_IsNumber(item), "member %s is missing or not a number", key);
    return item->valuedouble;
}

int farm_number(const cJSON *object, const char *key)
{
    double number = farm_double(object, key);
    ck_assert_msg(number >= INT_MIN && number <= INT_MAX, "%s is %g", key, number);
    return (int)number;
}

const char *farm_text(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

const cJSON *farm_consumer(const cJSON *task, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(task, "consumers")) {
        if (strcmp(farm_text(item, "consumer"), name) == 0)
            return item;
    }
    ck_abort_msg("the task does not list %s", name);
}

void farm_wait_workers(struct farm *f, int n)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *list = farm_get(f, "/api/v1/workers");
        const cJSON *item;
        int found = 0;
        cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
            const char *state = farm_text(item, "state");
            found += strcmp(state, "idle") == 0 || strcmp(state, "busy") == 0;
        }
        if (found >= n)
            return;
        ck_assert_msg(mf_now_ms() < until, "%d of %d workers are connected", found, n);
        pause_between();
    }
}

void farm_kill_daemon(struct farm *f)
{
    kill_hard(&f->daemon);
}

void farm_kill_worker(struct farm *f, int place)
{
    kill_hard(&f->workers[place]);
}

void farm_kill_runner(struct farm *f, int place)
{
    char path[96];
    long child = 0;
    (void)snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)f->workers[place],
                   (long)f->workers[place]);
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    /* The kernel lists child processes by age. There may be no child between the death of a runner and the
     * start of the next. */
    while (child == 0) {
        _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        if (fscanf(file, "%ld", &child) == 1)
            break;
        ck_assert_int_lt(mf_now_ms(), until);
        pause_between();
    }
    (void)kill((pid_t)child, SIGKILL);
}

int farm_try_submit(struct farm *f, const char *csv, const char *query, const char *headers)
{
    char path[512], all[256];
    (void)snprintf(path, sizeof(path), "/api/v1/batches?name=test%s", query);
    (void)snprintf(all, sizeof(all), "Content-Type: text/csv\r\n%s", headers);
    struct http_reply r = call(f, "POST", path, all, csv);
    ck_assert_msg(r.status == 0 || r.status == 201 || r.status == 200 || r.status == 503, "%d %s", r.status,
                  r.body ? r.body : "");
    _cleanup_(cJSON_Deletep) cJSON *json = r.status && r.status != 503 ? cJSON_Parse(r.body) : NULL;
    http_reply_free(&r);
    return json ? farm_number(json, "batch") : 0;
}

int farm_submit(struct farm *f, const char *csv, const char *query)
{
    int batch = farm_try_submit(f, csv, query, "");
    ck_assert_int_gt(batch, 0);
    return batch;
}

bool farm_wait_batch(struct farm *f, int batch, const char *key, int n)
{
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *json = farm_get(f, "/api/v1/batches/%d", batch);
        if (json && strcmp(farm_text(json, "state"), "done") == 0)
            return false;
        if (json && key && farm_number(json, key) >= n)
            return true;
        ck_assert_msg(mf_now_ms() < until, "batch %d is not done: %s", batch,
                      json ? cJSON_PrintUnformatted(json) : "no answer");
        pause_between();
    }
}

bool farm_wait_more(struct farm *f, int batch, int n)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_get(f, "/api/v1/batches/%d", batch);
    ck_assert_ptr_nonnull(json);
    return farm_wait_batch(f, batch, "measured", farm_number(json, "measured") + n);
}

void farm_wait_done(struct farm *f, int batch)
{
    ck_assert(!farm_wait_batch(f, batch, NULL, 0));
}

int farm_run(struct farm *f, const char *csv, const char *query)
{
    int batch = farm_submit(f, csv, query);
    farm_wait_done(f, batch);
    return batch;
}

/* True for problems of the measuring host. A busy machine makes times of a real device unstable;
 * check_farm_trust tests these on a simulated device. */
static bool is_noise(const struct mf_problem *p)
{
    return p->code == MF_PROBLEM_UNSTABLE || p->code == MF_PROBLEM_TOKEN_ORDER;
}

/* Checks that an exported table has no unusable rows, impossible times or duplicate keys. */
static void check_table(const char *csv, size_t len)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_read("exported.csv", csv, len, &t, why) == 0, "%s", why);
    ck_assert_int_eq(mf_tables_check(&t, 1, &(struct mf_check_options){.err_ratio = MF_CHECK_ERR_RATIO}), 0);
    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *p = &t->problems[i];
        ck_assert_msg(is_noise(p) || mf_check_severity(p->code, p->severity) == MF_WARNING,
                      "line %lld: %s: %s\n%s", (long long)p->line, mf_problem_code_name(p->code), p->reason,
                      csv);
    }
}

char *farm_export_query(struct farm *f, const char *query)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv?simulated=1%s", query);
    struct http_reply r = http_get(f->http, path);
    ck_assert_msg(r.status == 200 && r.len > 0, "%d %s%s", r.status, r.head, r.body ? r.body : "");
    free(r.head);
    check_table(r.body, r.len);
    return r.body;
}

char *farm_export(struct farm *f, int batch)
{
    char query[32];
    (void)snprintf(query, sizeof(query), "&batch=%d", batch);
    return farm_export_query(f, query);
}
