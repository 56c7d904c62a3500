/* A real moefarmd in a folder of its own, for tests and benchmarks: start, ask, kill, start again. */
#pragma once

#include <sys/types.h>

struct farm_process {
    pid_t pid;
    char folder[256];         /* made by farm_process_start when empty */
    int http, hub;            /* ports; kept over a restart */
    const char *hub_address;  /* that the hub is bound to; NULL: 127.0.0.1 */
    const char *http_address; /* and the API */
    const char *log;          /* file in the folder for what it says; NULL: the test's own stderr */
    const char *log_level;    /* NULL: error */
    const char *const *more;  /* further options, up to NULL; NULL: none */
    const char *headers;      /* of every request, each ended by \r\n; NULL: none */
};

/* Starts a program that dies with this one. log: the file that gets all it says; NULL: its errors are this one's, and nothing
 * else of it is kept: it must not hold a pipe that figures are written to. -1: it cannot be. */
pid_t farm_process_spawn(const char *const *argv, const char *log);
/* Starts MF_BINARY_DIR/server/moefarmd on free ports, or on the ports that it had. beat_ms: its heartbeat. One that
 * ends before it has ports is started again; ends the program with a message when none comes up. */
void farm_process_start(struct farm_process *p, int beat_ms);
/* Sends the signal and waits for the end; returns the exit status as waitpid gives it. */
int farm_process_kill(struct farm_process *p, int signal);
/* Processor time that it has used, all its threads, in seconds; NAN when it is not there. */
double farm_process_cpu_s(const struct farm_process *p);
/* Removes the folder. */
void farm_process_remove(struct farm_process *p);

/* One request; the answer's body on the heap, its status in *ret_status. NULL: nobody answers. */
char *farm_process_http(const struct farm_process *p, const char *method, const char *path, const char *type,
                        const char *body, int *ret_status);
