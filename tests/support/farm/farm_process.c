#include "support/farm/farm_process.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "support/remove_tree.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 60000

static void fail(const char *what)
{
    fprintf(stderr, "farm_process: %s\n", what);
    exit(EXIT_FAILURE);
}

static int read_ports(const char *path, struct farm_process *p)
{
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
    return file && fscanf(file, "http=%d\nhub=%d\n", &p->http, &p->hub) == 2;
}

pid_t farm_process_spawn(const char *const *argv, const char *log)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (getppid() != parent || fd < 0 || dup2(fd, 1) < 0 || (log && dup2(fd, 2) < 0))
            _exit(126);
        (void)execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

void farm_process_start(struct farm_process *p, int beat_ms)
{
    char state[300], ports[300], log[300], http[40], hub[40], beat[20];
    if (!p->folder[0]) {
        (void)snprintf(p->folder, sizeof(p->folder), "%s/moefarm.XXXXXX",
                       getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        if (!mkdtemp(p->folder))
            fail("mkdtemp");
    }
    (void)snprintf(state, sizeof(state), "%s/state", p->folder);
    (void)snprintf(ports, sizeof(ports), "%s/ports", p->folder);
    (void)snprintf(http, sizeof(http), "%s:%d", p->http_address ? p->http_address : "127.0.0.1", p->http);
    (void)snprintf(hub, sizeof(hub), "%s:%d", p->hub_address ? p->hub_address : "127.0.0.1", p->hub);
    (void)snprintf(beat, sizeof(beat), "%d", beat_ms);
    (void)unlink(ports);
    const char *argv[32] = {MF_BINARY_DIR "/server/moefarmd",
                            "--state",
                            state,
                            "--http",
                            http,
                            "--hub",
                            hub,
                            "--port-file",
                            ports,
                            "--beat-ms",
                            beat,
                            "--log-level",
                            p->log_level ? p->log_level : "error",
                            NULL};
    for (int n = 13, i = 0; p->more && p->more[i] && n < 31; n++, i++)
        argv[n] = p->more[i];
    (void)snprintf(log, sizeof(log), "%s/%s", p->folder, p->log ? p->log : "");
    p->pid = farm_process_spawn(argv, p->log ? log : NULL);
    for (int64_t end = mf_now_ms() + WAIT_MS; !read_ports(ports, p);) {
        /* The kernel may free the port of a killed process with a delay. */
        if (p->pid > 0 && waitpid(p->pid, NULL, WNOHANG) == p->pid)
            p->pid = farm_process_spawn(argv, p->log ? log : NULL);
        if (mf_now_ms() > end || p->pid < 0)
            fail("moefarmd did not open its ports in 60 s");
        (void)usleep(2000);
    }
}

int farm_process_kill(struct farm_process *p, int signal)
{
    int status = 0;
    if (p->pid > 0) {
        (void)kill(p->pid, signal);
        (void)waitpid(p->pid, &status, 0);
    }
    p->pid = 0;
    return status;
}

double farm_process_cpu_s(const struct farm_process *p)
{
    char path[64];
    unsigned long user = 0, system = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)p->pid);
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
    if (!file ||
        fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        return (double)NAN;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

void farm_process_remove(struct farm_process *p)
{
    if (p->folder[0])
        (void)remove_tree(p->folder);
    p->folder[0] = 0;
}

char *farm_process_http(const struct farm_process *p, const char *method, const char *path, const char *type,
                        const char *body, int *ret_status)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->http)};
    struct mf_buf b;
    char chunk[65536];
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    _cleanup_(mf_closep) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        return NULL;
    mf_buf_init(&b, 64u << 20);
    /* With HTTP/1.0 the answer is not chunked, and the connection ends after it. */
    (void)mf_buf_addf(
        &b, "%s %s HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s\r\n%s",
        method, path, type, strlen(body), p->headers ? p->headers : "", body);
    for (size_t at = 0; at < b.len;) {
        ssize_t n = send(fd, b.data + at, b.len - at, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    mf_buf_clear(&b);
    for (ssize_t n; (n = recv(fd, chunk, sizeof(chunk), 0)) > 0;)
        (void)mf_buf_add(&b, chunk, (size_t)n);
    const char *end = strstr(b.data, "\r\n\r\n");
    char *answer = end ? strdup(end + 4) : NULL;
    *ret_status = end ? (int)strtol(b.data + 9, NULL, 10) : 0;
    mf_buf_release(&b);
    return answer;
}
