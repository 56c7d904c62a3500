/* A real moefarmd in a temporary folder, for tests and benchmarks. */
#pragma once

#include <sys/types.h>

struct farm_process {
    pid_t pid;
    char folder[256];         /* created by farm_process_start if empty */
    int http, hub;            /* ports, kept over a restart */
    const char *hub_address;  /* bind address of the hub; NULL: 127.0.0.1 */
    const char *http_address; /* bind address of the API; NULL: 127.0.0.1 */
    const char *log;          /* log file in the folder; NULL: stderr of the test */
    const char *log_level;    /* NULL: error */
    const char *const *more;  /* additional options, up to NULL; NULL: none */
    const char *headers;      /* sent with every request, each ended by \r\n; NULL: none */
};

/* Starts a program that dies with this process. log: file for its output. NULL: its stderr is inherited and
 * its stdout discarded, since an inherited stdout could hold open the pipe that benchmark figures are written
 * to. Returns -1 on failure. */
pid_t farm_process_spawn(const char *const *argv, const char *log);
/* Starts MF_BINARY_DIR/server/moefarmd on free ports, or on its previous ports. beat_ms: heartbeat interval.
 * Restarts a process that ends before it has ports; exits the program with a message on timeout. */
void farm_process_start(struct farm_process *p, int beat_ms);
/* Sends the signal and waits for the end; returns the status of waitpid. */
int farm_process_kill(struct farm_process *p, int signal);
/* CPU time used by all its threads, in seconds; NAN if it does not run. */
double farm_process_cpu_s(const struct farm_process *p);
/* Removes the folder. */
void farm_process_remove(struct farm_process *p);

/* Sends one request. Returns the body on the heap and the status in *ret_status; NULL if the connection is
 * refused. */
char *farm_process_http(const struct farm_process *p, const char *method, const char *path, const char *type,
                        const char *body, int *ret_status);
