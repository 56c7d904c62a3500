/* A farm of its own: moefarmd and a moefarm-worker for each device, which die with this program. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/file.h"
#include "cli/tune.h"
#include "common/clock.h"
#include "common/text.h"

#define LIST_MAX     (1u << 20)
#define PORTS_MS     60000 /* a coordinator opens its database first */
#define LEAVE_MS     30000 /* for one that a killed run left behind */
#define END_MS       10000 /* of a child that was asked to end */
#define PAUSE_MS     10
#define RESTART_MS   1000 /* between two starts of a worker */
#define RESTARTS_MAX 10   /* one that was killed may hold its device for a moment */
#define LINE_MAX     300

struct child {
    pid_t pid; /* 0: not running */
    char log[MF_TUNE_PATH_MAX + 160];
    const char *what; /* for messages */
    int64_t ended_ms;
    int restarts;
    bool given_up;
};

struct mf_tune_farm {
    char folder[MF_TUNE_PATH_MAX], url[64], hub[64];
    const char *families, *runner;
    int failed; /* exit code of the check that found it so */
    struct mf_tune_device devices[MF_TUNE_DEVICES_MAX];
    struct child daemon, workers[MF_TUNE_DEVICES_MAX];
    size_t n;
};

/* ---- programs ---- */

/* Beside this one, as they are installed and as they are built; else wherever the shell would find them. */
static void find_program(const char *name, const char *folder_built, char path[MF_TUNE_PATH_MAX])
{
    char self[MF_TUNE_PATH_MAX / 2];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash) {
        *slash = '\0';
        mf_say(path, MF_TUNE_PATH_MAX, "%s/%s", self, name);
        if (access(path, X_OK) == 0)
            return;
        mf_say(path, MF_TUNE_PATH_MAX, "%s/../%s/%s", self, folder_built, name);
        if (access(path, X_OK) == 0)
            return;
    }
    mf_say(path, MF_TUNE_PATH_MAX, "%s", name);
}

static void pause_ms(int64_t ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&pause, NULL);
}

/* In the child, between fork and exec. */
static void become(char *const *argv, int out, int err, pid_t parent)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    /* A farm ends with its tune, whatever ends that */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    /* Ctrl-C is for the parent, which then ends its farm in order */
    (void)setpgid(0, 0);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(127);
    (void)execvp(argv[0], argv);
    (void)dprintf(2, "%s: %s\n", argv[0], strerrordesc_np(errno));
    _exit(127);
}

/* posix_spawn cannot have the kernel end the child with its parent. */
static pid_t start(char *const *argv, int out, int err)
{
    pid_t parent = getpid(), pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0)
        become(argv, out, err, parent);
    return pid;
}

static int start_child(struct child *c, char *const *argv)
{
    _cleanup_(mf_closep) int log = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (log < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", c->log, strerrordesc_np(errno));
    c->pid = start(argv, log, log);
    if (c->pid < 0) {
        c->pid = 0;
        return mf_cli_fail(MF_EXIT_FAILED, "start %s: %s", argv[0], strerrordesc_np(errno));
    }
    return 0;
}

/* Has it ended? */
static bool reap(struct child *c)
{
    if (c->pid > 0 && waitpid(c->pid, NULL, WNOHANG) == c->pid) {
        c->pid = 0;
        c->ended_ms = mf_now_ms();
    }
    return c->pid == 0;
}

/* The last line of a log, for people. */
static void last_line(const char *path, char line[LINE_MAX])
{
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[4096];
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, MF_MAX(end - (off_t)sizeof(text) + 1, 0));

    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    text[MF_MAX(n, 0)] = '\0';
    const char *newline = strrchr(text, '\n');
    mf_say(line, LINE_MAX, "%s", newline ? newline + 1 : text);
}

static void end_child(struct child *c)
{
    int64_t until = mf_now_ms() + END_MS;

    while (!reap(c) && mf_now_ms() < until)
        pause_ms(PAUSE_MS);
    if (c->pid > 0) {
        (void)kill(c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
        c->pid = 0;
    }
}

/* ---- devices ---- */

/* "cpu:0         cpu-znver4/2: AMD EPYC, avx512"; other lines go on about a device or say what was left out. */
static bool read_device(const char *line, size_t len, struct mf_tune_device *ret)
{
    char text[256], *class;

    mf_say(text, sizeof(text), "%.*s", (int)MF_MIN(len, sizeof(text) - 1), line);
    class = text + strcspn(text, " ");
    if (class == text || !*class)
        return false;
    *class ++ = '\0';
    class += strspn(class, " ");
    class[strcspn(class, ":")] = '\0';
    return mf_device_class_parse(class, &ret->class) == 0 && mf_copy(ret->name, sizeof(ret->name), text) == 0;
}

size_t mf_tune_devices_read(const char *text, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX])
{
    size_t n = 0;

    while (*text && n < MF_TUNE_DEVICES_MAX) {
        size_t len = strcspn(text, "\n");
        n += read_device(text, len, &ret[n]);
        text += len + (text[len] == '\n');
    }
    return n;
}

static int list_devices(struct mf_buf *text)
{
    char path[MF_TUNE_PATH_MAX], piece[4096];
    char *argv[] = {path, (char *)"--list-devices", NULL};
    int ends[2], status = 0;
    ssize_t n;

    find_program("moefarm-worker", "worker", path);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "make a pipe: %s", strerrordesc_np(errno));
    pid_t pid = start(argv, ends[1], STDERR_FILENO);
    (void)close(ends[1]);
    while (pid > 0 && ((n = read(ends[0], piece, sizeof(piece))) > 0 || (n < 0 && errno == EINTR))) {
        if (n > 0)
            (void)mf_buf_add(text, piece, (size_t)n);
    }
    (void)close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s --list-devices did not say what there is here", path);
    return 0;
}

/* sim:<class>:<ordinal>… is told by its name. */
static bool read_simulated(const char *name, struct mf_tune_device *ret)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    const char *colon = strncmp(name, "sim:", 4) == 0 ? strchr(name + 4, ':') : NULL;

    if (!colon || (size_t)(colon - name - 4) >= sizeof(class))
        return false;
    mf_say(class, sizeof(class), "%.*s", (int)(colon - name - 4), name + 4);
    return mf_device_class_parse(class, &ret->class) == 0 && mf_copy(ret->name, sizeof(ret->name), name) == 0;
}

static int choose_named(const char *asked, const struct mf_tune_device *there, size_t n_there,
                        struct mf_tune_device *ret, size_t *ret_n)
{
    size_t n = 0;

    while (*asked) {
        size_t len = strcspn(asked, ","), i = 0;
        char name[96];
        mf_say(name, sizeof(name), "%.*s", (int)len, asked);
        while (i < n_there && strcmp(there[i].name, name) != 0)
            i++;
        if (n == MF_TUNE_DEVICES_MAX)
            return mf_cli_fail(MF_EXIT_USAGE, "--device: at most %d devices", MF_TUNE_DEVICES_MAX);
        if (i < n_there)
            ret[n] = there[i];
        else if (!read_simulated(name, &ret[n]))
            return mf_cli_fail(
                MF_EXIT_USAGE,
                "--device: there is no '%s' here; moefarm-worker --list-devices says what there is", name);
        n++;
        asked += len + (asked[len] == ',');
    }
    *ret_n = n;
    return 0;
}

int mf_tune_devices(const char *asked, int64_t mp, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX],
                    size_t *ret_n)
{
    static struct mf_tune_device there[MF_TUNE_DEVICES_MAX];
    _cleanup_(mf_buf_release) struct mf_buf text;
    size_t n_there, n = 0;
    int code = 0;

    mf_buf_init(&text, LIST_MAX);
    /* Only simulated ones: nothing of this machine has to be asked */
    if (!asked || strncmp(asked, "sim:", 4) != 0)
        code = list_devices(&text);
    if (code != 0)
        return code;
    n_there = mf_tune_devices_read(text.data, there);
    if (asked) {
        code = choose_named(asked, there, n_there, ret, &n);
    } else {
        for (size_t gpus = 0, pass = 0; pass < 2 && gpus == 0; pass++) {
            for (size_t i = 0; i < n_there; i++) {
                bool gpu = strncmp(there[i].name, "hip:", 4) == 0;
                if (gpu == (pass == 0))
                    ret[n++] = there[i];
                gpus += gpu;
            }
        }
    }
    if (code == 0 && n == 0)
        return mf_cli_fail(MF_EXIT_FAILED, "there is no device here; moefarm-worker --list-devices says why");
    *ret_n = mp > 0 ? MF_MIN(n, (size_t)mp) : n;
    return code;
}

/* ---- its processes ---- */

/* A coordinator that a killed run left behind ends by itself, once it has closed its database. */
static int await_lock(const char *folder)
{
    char path[MF_TUNE_PATH_MAX + 16];
    int64_t until = mf_now_ms() + LEAVE_MS;

    mf_say(path, sizeof(path), "%s/lock", folder);
    _cleanup_(mf_closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(errno));
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (mf_now_ms() > until)
            return mf_cli_fail(MF_EXIT_FAILED, "a moefarmd works in %s; end it, or give another --state",
                               folder);
        pause_ms(PAUSE_MS);
    }
    return 0;
}

static int read_ports(struct mf_tune_farm *f, const char *path)
{
    int64_t until = mf_now_ms() + PORTS_MS;
    char line[LINE_MAX];
    int http = 0, hub = 0;

    while (access(path, R_OK) != 0) {
        if (reap(&f->daemon)) {
            last_line(f->daemon.log, line);
            return mf_cli_fail(MF_EXIT_FAILED, "moefarmd ended: %s", line);
        }
        if (mf_now_ms() > until)
            return mf_cli_fail(MF_EXIT_FAILED, "moefarmd did not come up; its log is %s", f->daemon.log);
        pause_ms(PAUSE_MS);
    }
    _cleanup_(mf_buf_release) struct mf_buf text;
    mf_buf_init(&text, 4096);
    int code = mf_file_read(path, &text);
    if (code == 0 && sscanf(text.data, "http=%d hub=%d", &http, &hub) != 2)
        code = mf_cli_fail(MF_EXIT_FAILED, "%s holds no ports", path);
    mf_say(f->url, sizeof(f->url), "http://127.0.0.1:%d", http);
    mf_say(f->hub, sizeof(f->hub), "tcp://127.0.0.1:%d", hub);
    return code;
}

static int start_daemon(struct mf_tune_farm *f)
{
    char path[MF_TUNE_PATH_MAX], state[MF_TUNE_PATH_MAX + 16], ports[MF_TUNE_PATH_MAX + 16];

    find_program("moefarmd", "server", path);
    mf_say(state, sizeof(state), "%s/farm", f->folder);
    mf_say(ports, sizeof(ports), "%s/ports", f->folder);
    mf_say(f->daemon.log, sizeof(f->daemon.log), "%s/moefarmd.log", f->folder);
    f->daemon.what = "moefarmd";
    if (mkdir(state, 0700) < 0 && errno != EEXIST)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", state, strerrordesc_np(errno));
    int code = await_lock(state);
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
    code = start_child(&f->daemon, argv);
    return code != 0 ? code : read_ports(f, ports);
}

static int start_worker(struct mf_tune_farm *f, size_t i)
{
    struct child *c = &f->workers[i];
    char path[MF_TUNE_PATH_MAX], spool[MF_TUNE_PATH_MAX + 16], name[100];

    find_program("moefarm-worker", "worker", path);
    mf_say(spool, sizeof(spool), "%s/spool", f->folder);
    /* The same name finds the same spool after a restart */
    mf_say(name, sizeof(name), "tune-%.90s", f->devices[i].name);
    for (char *p = name; *p; p++)
        *p = *p == ':' || *p == '/' ? '-' : *p;
    mf_say(c->log, sizeof(c->log), "%s/%s.log", f->folder, name);
    c->what = f->devices[i].name;
    const char *argv[] = {path,
                          "--coordinator",
                          f->hub,
                          "--device",
                          f->devices[i].name,
                          "--name",
                          name,
                          "--spool",
                          spool,
                          NULL,
                          NULL,
                          NULL,
                          NULL,
                          NULL};
    size_t n = 9;
    if (f->families) {
        argv[n++] = "--families";
        argv[n++] = f->families;
    }
    if (f->runner) {
        argv[n++] = "--runner";
        argv[n++] = f->runner;
    }
    return start_child(c, (char *const *)argv);
}

int mf_tune_farm_start(const struct mf_tune_farm_options *o, struct mf_tune_farm **ret)
{
    _cleanup_(mf_tune_farm_stopp) struct mf_tune_farm *f = calloc(1, sizeof(*f));
    int code;

    if (!f)
        return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
    mf_say(f->folder, sizeof(f->folder), "%s", o->folder);
    f->families = o->families;
    f->runner = o->runner;
    code = start_daemon(f);
    for (size_t i = 0; i < o->n && code == 0; i++) {
        f->devices[i] = o->devices[i];
        f->n = i + 1;
        code = start_worker(f, i);
    }
    if (code == 0)
        *ret = MF_TAKE(f);
    return code;
}

const char *mf_tune_farm_url(const struct mf_tune_farm *f)
{
    return f->url;
}

/* A worker that ended is started again; one that keeps ending is given up, and said so. */
static int check_worker(struct mf_tune_farm *f, size_t i)
{
    struct child *c = &f->workers[i];
    char line[LINE_MAX];

    if (c->given_up || !reap(c))
        return 0;
    if (c->restarts >= RESTARTS_MAX) {
        last_line(c->log, line);
        c->given_up = true;
        return mf_cli_fail(0,
                           "the worker of %s keeps ending: %s; where another farm has the device, "
                           "hand the shapes to that one (--url)",
                           c->what, line);
    }
    if (mf_now_ms() - c->ended_ms < RESTART_MS)
        return 0;
    c->restarts++;
    return start_worker(f, i);
}

static int check(struct mf_tune_farm *f)
{
    char line[LINE_MAX];
    size_t n_given_up = 0;

    if (reap(&f->daemon)) {
        last_line(f->daemon.log, line);
        return mf_cli_fail(MF_EXIT_FAILED, "moefarmd ended: %s", line);
    }
    for (size_t i = 0; i < f->n; i++) {
        int code = check_worker(f, i);
        if (code != 0)
            return code;
        n_given_up += f->workers[i].given_up;
    }
    return n_given_up == f->n
               ? mf_cli_fail(MF_EXIT_FAILED, "no worker is left; their logs are in %s", f->folder)
               : 0;
}

/* Once: what was said is not said again. */
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
    for (size_t i = 0; i < f->n; i++) {
        if (f->workers[i].pid > 0)
            (void)kill(f->workers[i].pid, SIGTERM);
    }
    for (size_t i = 0; i < f->n; i++)
        end_child(&f->workers[i]);
    /* Last: what a worker that stops still sends is committed */
    if (f->daemon.pid > 0)
        (void)kill(f->daemon.pid, SIGTERM);
    end_child(&f->daemon);
    free(f);
    return NULL;
}
