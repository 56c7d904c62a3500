/* Runs a private farm: moefarmd and a moefarm-worker per device. They stop when this program exits or dies.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/support/file.h"
#include "cli/tune/tune_child.h"
#include "common/base/clock.h"
#include "common/base/text.h"

#define START_TIMEOUT_MS 60000 /* maximum start-up time of the coordinator, which opens its database first */
#define LOCK_TIMEOUT_MS  30000 /* maximum wait for the coordinator of a killed run to exit */
#define POLL_MS          10
#define RESTART_DELAY_MS 1000 /* minimum time between a worker's exit and its restart */
/* maximum restarts of a worker; a restart fails while a killed worker still holds the device */
#define RESTARTS_MAX 10

struct worker {
    struct mf_tune_child child;
    struct mf_tune_device device;
    int restarts;
    bool given_up;
};

struct mf_tune_farm {
    char folder[MF_TUNE_PATH_MAX], url[64], hub[64];
    const char *families, *python, *aiter_dir;
    const struct mf_tune_modules *modules;
    int failed; /* exit code of the first failed check; 0 if none */
    struct mf_tune_child daemon;
    struct worker workers[MF_TUNE_DEVICES_MAX];
    size_t n;
};

/* Waits until the coordinator of a killed run has closed its database. That coordinator exits without a
 * signal from this program, because its parent process has died. */
static int wait_for_lock(const char *folder)
{
    char path[MF_TUNE_PATH_MAX + 16];
    int64_t until = mf_now_ms() + LOCK_TIMEOUT_MS;

    mf_format(path, sizeof(path), "%s/lock", folder);
    _cleanup_(mf_closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(errno));
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (mf_now_ms() > until)
            return mf_cli_fail(MF_EXIT_FAILED,
                               "%s: in use by another moefarmd; stop it, or give another --state", folder);
        mf_sleep_ms(POLL_MS);
    }
    return 0;
}

static int check_daemon(struct mf_tune_farm *f)
{
    char line[MF_TUNE_LINE_MAX];

    if (!mf_tune_child_reap(&f->daemon))
        return 0;
    mf_tune_last_line(f->daemon.log, line);
    return mf_cli_fail(MF_EXIT_FAILED, "moefarmd exited: %s", line);
}

static int read_ports(struct mf_tune_farm *f, const char *path)
{
    int64_t until = mf_now_ms() + START_TIMEOUT_MS;
    int http = 0, hub = 0;

    while (access(path, R_OK) != 0) {
        int code = check_daemon(f);
        if (code != 0)
            return code;
        if (mf_now_ms() > until)
            return mf_cli_fail(MF_EXIT_FAILED, "moefarmd did not start; see its log %s", f->daemon.log);
        mf_sleep_ms(POLL_MS);
    }
    _cleanup_(mf_buf_release) struct mf_buf text;
    mf_buf_init(&text, 4096);
    int code = mf_file_read(path, &text);
    if (code == 0 && sscanf(text.data, "http=%d hub=%d", &http, &hub) != 2)
        code = mf_cli_fail(MF_EXIT_FAILED, "%s: expected the ports of moefarmd; start again", path);
    mf_format(f->url, sizeof(f->url), "http://127.0.0.1:%d", http);
    mf_format(f->hub, sizeof(f->hub), "tcp://127.0.0.1:%d", hub);
    return code;
}

static int start_daemon(struct mf_tune_farm *f)
{
    char path[MF_TUNE_PATH_MAX], state[MF_TUNE_PATH_MAX + 16], ports[MF_TUNE_PATH_MAX + 16];

    mf_tune_find_program("moefarmd", "server", path);
    mf_format(state, sizeof(state), "%s/farm", f->folder);
    mf_format(ports, sizeof(ports), "%s/ports", f->folder);
    mf_format(f->daemon.log, sizeof(f->daemon.log), "%s/moefarmd.log", f->folder);
    if (mkdir(state, 0700) < 0 && errno != EEXIST)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", state, strerrordesc_np(errno));
    int code = wait_for_lock(state);
    if (code != 0)
        return code;
    (void)unlink(ports);
    char *argv[] = {path,
                    (char *)"--state",
                    state,
                    (char *)"--http",
                    (char *)"127.0.0.1:0",
                    (char *)"--hub",
                    (char *)"127.0.0.1:0",
                    (char *)"--port-file",
                    ports,
                    NULL};
    code = mf_tune_child_start(&f->daemon, argv);
    return code != 0 ? code : read_ports(f, ports);
}

static int start_worker(struct mf_tune_farm *f, struct worker *w)
{
    char path[MF_TUNE_PATH_MAX], spool[MF_TUNE_PATH_MAX + 16], name[100];

    mf_tune_find_program("moefarm-worker", "worker", path);
    mf_format(spool, sizeof(spool), "%s/spool", f->folder);
    /* Keep the name across restarts, so that the worker finds its spool */
    mf_format(name, sizeof(name), "tune-%.90s", w->device.name);
    for (char *p = name; *p; p++)
        *p = *p == ':' || *p == '/' ? '-' : *p;
    mf_format(w->child.log, sizeof(w->child.log), "%s/%s.log", f->folder, name);
    const char *argv[18 + 2 * MF_OPERATORS_MAX] = {
        path, "--coordinator", f->hub, "--device", w->device.name, "--name", name, "--spool", spool};
    const struct {
        const char *name, *value;
    } options[] = {{"--families", f->families}, {"--python", f->python}, {"--aiter-dir", f->aiter_dir}};
    size_t n = 9;
    for (size_t i = 0; i < MF_ARRAY_LEN(options); i++) {
        if (!options[i].value)
            continue;
        argv[n++] = options[i].name;
        argv[n++] = options[i].value;
    }
    for (int i = 0; i < f->modules->n; i++) {
        argv[n++] = "--family-py";
        argv[n++] = f->modules->names[i];
    }
    return mf_tune_child_start(&w->child, (char *const *)argv);
}

int mf_tune_farm_start(const struct mf_tune_farm_options *o, struct mf_tune_farm **ret)
{
    _cleanup_(mf_tune_farm_stopp) struct mf_tune_farm *f = calloc(1, sizeof(*f));
    int code;

    if (!f)
        return mf_cli_out_of_memory();
    mf_format(f->folder, sizeof(f->folder), "%s", o->folder);
    f->families = o->families;
    f->python = o->python;
    f->modules = o->modules;
    f->aiter_dir = o->aiter_dir;
    code = start_daemon(f);
    for (size_t i = 0; i < o->n && code == 0; i++) {
        f->workers[i].device = o->devices[i];
        f->n = i + 1;
        code = start_worker(f, &f->workers[i]);
    }
    if (code == 0)
        *ret = MF_TAKE(f);
    return code;
}

const char *mf_tune_farm_url(const struct mf_tune_farm *f)
{
    return f->url;
}

/* Restarts the worker if it has exited. If the worker exits too often, reports this and does not restart it
 * again. */
static int check_worker(struct mf_tune_farm *f, struct worker *w)
{
    char line[MF_TUNE_LINE_MAX];

    if (w->given_up || !mf_tune_child_reap(&w->child))
        return 0;
    if (w->restarts >= RESTARTS_MAX) {
        mf_tune_last_line(w->child.log, line);
        w->given_up = true;
        return mf_cli_fail(0,
                           "the worker of %s keeps exiting: %s; if another farm uses the device, "
                           "submit the shapes to that farm (--url)",
                           w->device.name, line);
    }
    if (mf_now_ms() - w->child.ended_ms < RESTART_DELAY_MS)
        return 0;
    w->restarts++;
    return start_worker(f, w);
}

static int check(struct mf_tune_farm *f)
{
    size_t n_given_up = 0;
    int code = check_daemon(f);

    if (code != 0)
        return code;
    for (size_t i = 0; i < f->n; i++) {
        code = check_worker(f, &f->workers[i]);
        if (code != 0)
            return code;
        n_given_up += f->workers[i].given_up;
    }
    return n_given_up == f->n
               ? mf_cli_fail(MF_EXIT_FAILED, "all workers gave up; see their logs in %s", f->folder)
               : 0;
}

/* Keeps the first failure and reports it only once. */
int mf_tune_farm_check(struct mf_tune_farm *f)
{
    if (f->failed == 0)
        f->failed = check(f);
    return f->failed;
}

struct mf_tune_farm *mf_tune_farm_stop(struct mf_tune_farm *f)
{
    if (!f)
        return NULL;
    for (size_t i = 0; i < f->n; i++)
        mf_tune_child_terminate(&f->workers[i].child);
    for (size_t i = 0; i < f->n; i++)
        mf_tune_child_end(&f->workers[i].child);
    /* Stop the coordinator last, so that it commits the results that the workers send while they stop. */
    mf_tune_child_terminate(&f->daemon);
    mf_tune_child_end(&f->daemon);
    free(f);
    return NULL;
}
