/* A farm of real processes for tests: moefarmd and workers in a temporary folder, on free ports.
 *
 * Every wait polls until the condition holds, and fails the test after FARM_DEADLINE_MS. All started
 * processes die with the test. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <sys/types.h>

#include "support/table_columns.h"

#define FARM_WORKERS_MAX 8
#define FARM_DEADLINE_MS 60000

/* Parts of a CSV to submit: the header, and rows of small layers that a simulated device tunes within a
 * second. FARM_CSV_SMALL is also fast on a CPU. */
#define FARM_CSV_HEAD SHAPE_COLUMNS "\n"
#define FARM_CSV_ROW(token) \
    "" #token               \
    ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
#define FARM_CSV_FP8                                                                                   \
    "8,4096,1536,64,4,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz," \
    "QuantType.per_Token,1,0\n"
#define FARM_CSV_SMALL \
    "2,64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"

struct farm {
    char folder[64];
    int http, hub;           /* ports, which stay the same when the coordinator restarts */
    const char *const *more; /* additional options of the coordinator, ended by NULL; a NULL pointer: none */
    pid_t daemon;
    pid_t workers[FARM_WORKERS_MAX]; /* process ids; 0 if the worker is not running */
    int n_workers;
};

/* Creates the folder and starts no process. */
void farm_make(struct farm *f);
/* Creates the folder and starts the coordinator. beat_ms: heartbeat interval; a lease lasts three intervals.
 */
void farm_start(struct farm *f, int beat_ms);
void farm_start_with(struct farm *f, int beat_ms, const char *const *more);
/* Kills all processes and removes the folder. If the environment variable FARM_LOGS is set, first prints the
 * end of each log. A test that fails in its own process (CK_FORK, the default) does not call this function:
 * the farm's processes die with the test, and the folder is kept. */
void farm_stop(struct farm *f);

/* Restarts the coordinator on the same state and ports. */
void farm_start_daemon(struct farm *f, int beat_ms);
/* Starts a worker in slot `place`. args: options such as "--device", "sim:gfx942/304:0", ended by NULL. A
 * worker that is started in the same slot again uses the same spool. */
void farm_start_worker(struct farm *f, int place, const char *const *args);
/* Waits until n workers are connected, idle or busy. */
void farm_wait_workers(struct farm *f, int n);

/* Sends SIGKILL and reaps the process. */
void farm_kill_daemon(struct farm *f);
void farm_kill_worker(struct farm *f, int place);
/* Sends SIGKILL to the worker's oldest runner, which is the one that runs the unit. */
void farm_kill_runner(struct farm *f, int place);
/* Waits until the process ends. Returns its exit code, or -1 if a signal ended it. */
int farm_wait_end(pid_t *pid);
/* Sends SIGTERM and waits until the process ends. Returns its exit code, or -1 if a signal ended it. */
int farm_end(pid_t *pid);

/* GET of a formatted path. The caller owns the parsed answer; NULL if the coordinator does not answer. */
__attribute__((format(printf, 2, 3))) cJSON *farm_get(struct farm *f, const char *format, ...);
/* GET of a list, such as "steps?limit=100", of the batch's first task. The caller owns the result. */
cJSON *farm_task_list(struct farm *f, int batch, const char *what);
/* Returns the body of the answer, which the caller frees; fails the test if the status differs. type: media
 * type of `body`. */
char *farm_call(struct farm *f, const char *method, const char *path, const char *type, const char *body,
                int status);
/* Waits until the task reaches the state, and returns the task; the caller owns it. Fails the test if the
 * task ends in another state. */
cJSON *farm_wait_task(struct farm *f, int task, const char *state);
/* Submits a CSV and returns the batch's id. query: "" or "&name=value…". */
int farm_submit(struct farm *f, const char *csv, const char *query);
/* Tries once to submit a CSV. Returns the batch's id, or 0 if the coordinator is down or answers 503.
 * headers: "Name: value\r\n…". */
int farm_try_submit(struct farm *f, const char *csv, const char *query, const char *headers);
/* Waits until the number in the batch's member `key` is at least n. Returns false if the batch is done before
 * that. */
bool farm_wait_batch(struct farm *f, int batch, const char *key, int n);
/* Waits until n more steps of the batch are measured. Returns false if the batch is done before that. */
bool farm_wait_more(struct farm *f, int batch, int n);
void farm_wait_done(struct farm *f, int batch);
/* Submits a CSV, waits until the batch is done, and returns its id. */
int farm_run(struct farm *f, const char *csv, const char *query);
/* Exports the table of a batch, with simulated rows, and checks that `moefarm csv check` finds no error in
 * it. The caller frees it. */
char *farm_export(struct farm *f, int batch);
/* Exports all batches; query: "" or "&name=value…". */
char *farm_export_query(struct farm *f, const char *query);
/* Writes a file in the farm's folder; returns its path in a static buffer. */
const char *farm_file(struct farm *f, const char *name, const char *content);
int farm_number(const cJSON *object, const char *key);
double farm_double(const cJSON *object, const char *key);
const char *farm_text(const cJSON *object, const char *key);
/* Returns the consumer's item in the task's list `consumers`, or fails the test. */
const cJSON *farm_consumer(const cJSON *task, const char *name);
