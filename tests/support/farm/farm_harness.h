/* A farm of real processes for tests: moefarmd and workers in a folder of the test's own, on ports of their own.
 *
 * Everything waits for an event by asking until it is there, with a deadline; the test fails when it passes. What
 * was started dies with the test. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <sys/types.h>

#include "support/table_columns.h"

#define FARM_WORKERS_MAX 8
#define FARM_DEADLINE_MS 60000

/* What is submitted: the header, and rows of small layers that simulated devices tune in a second. SMALL is computed on a CPU
 * in no time. */
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
    int http, hub;           /* ports; kept over restarts of the coordinator */
    const char *const *more; /* further options of the coordinator, up to NULL; NULL: none */
    pid_t daemon;
    pid_t workers[FARM_WORKERS_MAX]; /* 0: not running */
    int n_workers;
};

/* Makes the folder only. */
void farm_make(struct farm *f);
/* Makes the folder and starts the coordinator. beat_ms: of the farm; a lease is three. */
void farm_start(struct farm *f, int beat_ms);
void farm_start_with(struct farm *f, int beat_ms, const char *const *more);
/* Kills all and removes the folder. With FARM_LOGS in the environment it prints the ends of the logs first. A test that fails
 * in a process of its own (CK_FORK, which is on) ends there: its processes die with it, its folder stays to be looked at. */
void farm_stop(struct farm *f);

/* Starts the coordinator again on the same state and ports. */
void farm_start_daemon(struct farm *f, int beat_ms);
/* A worker by its place; args: "--device", "sim:gfx942/304:0", …, NULL. The same place again starts it again with its
 * spool. */
void farm_start_worker(struct farm *f, int place, const char *const *args);
/* Waits until so many workers are there and idle or busy. */
void farm_wait_workers(struct farm *f, int n);

/* kill -9 and reap. */
void farm_kill_daemon(struct farm *f);
void farm_kill_worker(struct farm *f, int place);
/* kill -9 of the worker's runner that has worked longest; it is the one that has the unit. */
void farm_kill_runner(struct farm *f, int place);
/* Waits until the process has ended; its exit code, -1 when it was killed. */
int farm_wait_end(pid_t *pid);
/* SIGTERM, and that. */
int farm_end(pid_t *pid);

/* GET, parsed; the caller owns it. NULL while the coordinator does not answer. */
cJSON *farm_get(struct farm *f, const char *path);
/* The answer's body, which is the caller's; the test fails when its status is another. type: of the body. */
char *farm_call(struct farm *f, const char *method, const char *path, const char *type, const char *body,
                int status);
/* Waits until the task is in that state, and fails at once when it has ended in another; the caller owns it. */
cJSON *farm_wait_task(struct farm *f, int task, const char *state);
/* Submits a CSV; the batch's id. query: "" or "&name=value…". */
int farm_submit(struct farm *f, const char *csv, const char *query);
/* The same, once, of a coordinator that may not be there or may be refusing for a while: 0. headers: "Name: value\r\n…". */
int farm_try_submit(struct farm *f, const char *csv, const char *query, const char *headers);
/* Waits until the number at key of the batch is at least n, or the batch is done: false. */
bool farm_wait_batch(struct farm *f, int batch, const char *key, int n);
/* The same until so many more are measured than now. */
bool farm_wait_more(struct farm *f, int batch, int n);
void farm_wait_done(struct farm *f, int batch);
/* The exported table, simulated rows too, in which `moefarm csv check` finds no error; the caller frees it. */
char *farm_export(struct farm *f, int batch);
/* Of all batches; query: "" or "&name=value…". */
char *farm_export_query(struct farm *f, const char *query);
/* A file of that content in the farm's folder; its path is in a static buffer. */
const char *farm_file(struct farm *f, const char *name, const char *content);
int farm_number(const cJSON *object, const char *key);
double farm_double(const cJSON *object, const char *key);
const char *farm_text(const cJSON *object, const char *key);
