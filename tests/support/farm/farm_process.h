/* A real moefarmd in a temporary folder, for tests and benchmarks. */
#pragma once

#include <sys/types.h>

struct farm_process {
    pid_t pid;
    char folder[256];         /* if empty, farm_process_start() creates a folder */
    int http, hub;            /* ports, which stay the same after a restart */
    const char *hub_address;  /* bind address of the hub; NULL: 127.0.0.1 */
    const char *http_address; /* bind address of the API; NULL: 127.0.0.1 */
    /* name of the log file in the folder; NULL: the log goes to stderr of the test */
    const char *log;
    const char *log_level;   /* log level; NULL: error */
    const char *const *more; /* additional options, ended by NULL; a NULL pointer: none */
    const char *headers;     /* headers that are sent with every request, each ended by \r\n; NULL: none */
};

/* Starts a program, which dies with this process. Returns its process id, or -1 on failure. log: file for its
 * output. If log is NULL, the program inherits stderr, and its stdout is discarded, because an inherited
 * stdout could hold open the pipe to which a benchmark writes its figures. */
pid_t farm_process_spawn(const char *const *argv, const char *log);
/* Starts MF_BINARY_DIR/server/moefarmd on free ports, or on its previous ports. beat_ms: heartbeat interval.
 * Starts moefarmd again if it ends before it has its ports. Ends the test program with a message on timeout.
 */
void farm_process_start(struct farm_process *p, int beat_ms);
/* Sends the signal and waits until the process ends. Returns the status of waitpid(). */
int farm_process_kill(struct farm_process *p, int signal);
/* Returns the CPU time in seconds that all threads of the process have used, or NAN if the process does not
 * run. */
double farm_process_cpu_s(const struct farm_process *p);
/* Removes the folder. */
void farm_process_remove(struct farm_process *p);

/* Sends one request. Returns the body of the answer, which the caller frees, and the status in *ret_status.
 * Returns NULL if the connection is refused. */
char *farm_process_http(const struct farm_process *p, const char *method, const char *path, const char *type,
                        const char *body, int *ret_status);
