/* moefarm-worker: one device (or several simulated ones) for a farm. With --runner-child it is a runner, which is
 * how the worker starts its own. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/base/open_files.h"
#include "common/base/opts.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/core/device.h"
#include "worker/agent/agent.h"
#include "worker/agent/device_lock.h"
#include "worker/agent/enrol.h"
#include "worker/agent/worker_name.h"
#include "worker/runner/compile_only.h"
#include "worker/runner/device_query.h"
#include "worker/runner/list_devices.h"
#include "worker/runner/runner.h"
#include "worker/sandbox/sandbox.h"

#define SIM_WORKERS_MAX  256
#define ARGUMENTS_MAX    (2 * MF_RUNNER_FOREIGN_MAX + 2 * MF_RUNNER_FAMILY_SO_MAX + 20)
#define RESERVE_MAX      4 /* agents of one process that keep a runner in reserve */
#define DEFAULT_KEEP_GIB 8

struct settings {
    const char *coordinator, *enrol, *device, *name, *spool, *lock_folder, *families, *runner, *log_level;
    const char *foreign[MF_RUNNER_FOREIGN_MAX];
    const char *family_so[MF_RUNNER_FAMILY_SO_MAX], *last_family_so, *asm_folder;
    int n_foreign, n_family_so;
    int64_t sim_workers, keep_mib, memory_mib, parent;
    struct mf_compile_only compile;
    const char *scratch; /* of a runner */
    bool list_devices, compile_only, runner_child, no_sandbox;
};

/* What one agent's strings point to. */
struct seat {
    struct mf_agent *agent;
    struct mf_link_keys keys;
    char scratch[PATH_MAX]; /* of its runners */
    char name[MF_WORKER_NAME_MAX], device[PATH_MAX], identity[MF_DEVICE_TEXT_MAX], keep[32], memory[32],
        parent[32];
    const char *argv[ARGUMENTS_MAX];
};

/* Every value of an option that may be given again, in order; the table of options keeps only the last. */
static int collect(const char *option, const char **values, int most, int *n, int argc, char **argv)
{
    size_t len = strlen(option);
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        if (strncmp(argv[i], option, len) != 0)
            continue;
        if (argv[i][len] == '=')
            value = argv[i] + len + 1;
        else if (argv[i][len] == '\0' && i + 1 < argc)
            value = argv[++i];
        if (!value)
            continue;
        if (*n == most) {
            (void)fprintf(stderr, "moefarm-worker: at most %d times %s\n", most, option);
            return -EINVAL;
        }
        values[(*n)++] = value;
    }
    return 0;
}

static int parse(struct settings *s, int argc, char **argv)
{
    /* clang-format off */
    const struct mf_opt opts[] = {
        {"coordinator",  MF_OPT_TEXT, &s->coordinator, "ENDPOINT", "where moefarmd listens for workers", 0, 0},
        {"enrol",        MF_OPT_TEXT, &s->enrol, "FILE", "a worker's token, for a coordinator that asks for keys: used once, its key is then beside the spool", 0, 0},
        {"device",       MF_OPT_TEXT, &s->device, "NAME", "cpu:0, hip:nvidia:<ordinal>, hip:amd:<ordinal>, or sim:<class>:<ordinal>[:<spec file>]", 0, 0},
        {"name",         MF_OPT_TEXT, &s->name, "NAME", "of this worker, unique in the farm (default: host and device)", 0, 0},
        {"spool",        MF_OPT_TEXT, &s->spool, "FOLDER", "where results wait until they are acknowledged", 0, 0},
        {"lock-dir",     MF_OPT_TEXT, &s->lock_folder, "FOLDER", "where the lock of the device is; /tmp where there is no /run/lock", 0, 0},
        {"families",     MF_OPT_TEXT, &s->families, "LIST", "only these families, by comma", 0, 0},
        {"runner",       MF_OPT_TEXT, &s->runner, "COMMAND", "a foreign runner beside the families; may be given again", 0, 0},
        {"family-so",    MF_OPT_TEXT, &s->last_family_so, "FILE", "a shared object with a kernel family; may be given again", 0, 0},
        {"asm-dir",      MF_OPT_TEXT, &s->asm_folder, "FOLDER", "of prebuilt kernels and their manifests, a folder for each architecture", 0, 0},
        {"sim-workers",  MF_OPT_INT,  &s->sim_workers, "N", "simulated workers NAME-0 … in this process", 1, SIM_WORKERS_MAX},
        {"keep",         MF_OPT_INT,  &s->keep_mib, "MIB", "memory held for new runners: weights and references", 0, 1 << 30},
        {"memory",       MF_OPT_INT,  &s->memory_mib, "MIB", "limit of a runner's address space; 0: none", 0, 1 << 30},
        {"no-sandbox",   MF_OPT_BOOL, &s->no_sandbox, NULL, "let runners do whatever this user may: for a driver that the limits of SECURITY.md break", 0, 0},
        {"list-devices", MF_OPT_BOOL, &s->list_devices, NULL, "say what there is on this machine, and what was left out and why", 0, 0},
        {"compile-only", MF_OPT_BOOL, &s->compile_only, NULL, "fill the cache of code objects ($MOEFARM_CODE_CACHE) for --arch and --shapes; needs no GPU", 0, 0},
        {"arch",         MF_OPT_TEXT, &s->compile.arch, "NAME", "of --compile-only: nvidia:<gfx>[/<compute units>], amd:<gfx>[/<compute units>]", 0, 0},
        {"shapes",       MF_OPT_TEXT, &s->compile.shapes, "FILE", "of --compile-only: an untuned_fmoe.csv", 0, 0},
        {"log",          MF_OPT_TEXT, &s->log_level, "LEVEL", "error, warning, info or debug", 0, 0},
        {"runner-child", MF_OPT_BOOL, &s->runner_child, NULL, "be a runner: started by a worker only", 0, 0},
        {"scratch",      MF_OPT_TEXT, &s->scratch, "FOLDER", "of this runner alone", 0, 0},
        {"parent",       MF_OPT_INT,  &s->parent, "PID", "of the worker that started this runner", 0, INT32_MAX},
    };
    /* clang-format on */
    int rest = argc;
    int r = mf_opts_parse("moefarm-worker [options]", opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    if (r != 0)
        return r;
    if (rest < argc) {
        (void)fprintf(stderr, "moefarm-worker: unexpected argument '%s'\n", argv[rest]);
        return -EINVAL;
    }
    r = collect("--runner", s->foreign, MF_RUNNER_FOREIGN_MAX, &s->n_foreign, argc, argv);
    return r < 0 ? r
                 : collect("--family-so", s->family_so, MF_RUNNER_FAMILY_SO_MAX, &s->n_family_so, argc, argv);
}

static int run_child(const struct settings *s)
{
    struct mf_runner_options o = {.device = s->device,
                                  .families = s->families,
                                  .n_foreign = s->n_foreign,
                                  .n_family_so = s->n_family_so,
                                  .asm_folder = s->asm_folder,
                                  .keep_bytes = (uint64_t)s->keep_mib << 20,
                                  .memory_bytes = (uint64_t)s->memory_mib << 20,
                                  .scratch = s->scratch,
                                  .no_sandbox = s->no_sandbox,
                                  .parent = s->parent};
    memcpy(o.foreign, s->foreign, sizeof(o.foreign));
    memcpy(o.family_so, s->family_so, sizeof(o.family_so));
    return mf_runner_main(&o);
}

/* The command line of a runner: this program again. */
static void make_argv(const struct settings *s, struct seat *seat)
{
    int n = 0;
    mf_format(seat->keep, sizeof(seat->keep), "--keep=%lld", (long long)s->keep_mib);
    mf_format(seat->memory, sizeof(seat->memory), "--memory=%lld", (long long)s->memory_mib);
    mf_format(seat->parent, sizeof(seat->parent), "--parent=%ld", (long)getpid());
    seat->argv[n++] = "/proc/self/exe";
    seat->argv[n++] = "--runner-child";
    seat->argv[n++] = seat->parent;
    seat->argv[n++] = seat->keep;
    seat->argv[n++] = seat->memory;
    seat->argv[n++] = "--device";
    seat->argv[n++] = seat->device;
    if (s->families[0]) {
        seat->argv[n++] = "--families";
        seat->argv[n++] = s->families;
    }
    for (int i = 0; i < s->n_foreign; i++) {
        seat->argv[n++] = "--runner";
        seat->argv[n++] = s->foreign[i];
    }
    for (int i = 0; i < s->n_family_so; i++) {
        seat->argv[n++] = "--family-so";
        seat->argv[n++] = s->family_so[i];
    }
    if (s->asm_folder[0]) {
        seat->argv[n++] = "--asm-dir";
        seat->argv[n++] = s->asm_folder;
    }
    if (s->no_sandbox)
        seat->argv[n++] = "--no-sandbox";
    if (seat->scratch[0]) {
        seat->argv[n++] = "--scratch";
        seat->argv[n++] = seat->scratch;
    }
    seat->argv[n] = NULL;
}

/* ---- the loop ---- */

/* SIGTERM and SIGINT as a descriptor; blocked before any thread of ZeroMQ starts. */
static int block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

/* NAME-i, on the device with the ordinal counted on from the one given. */
static int make_seat(const struct settings *s, struct seat *seat, int i)
{
    if (s->sim_workers == 1) {
        int r = mf_copy(seat->name, sizeof(seat->name), s->name);
        return r < 0 ? r : mf_copy(seat->device, sizeof(seat->device), s->device);
    }
    const char *class = s->device + 4, *ordinal = strchr(class, ':');
    if (strncmp(s->device, "sim:", 4) != 0 || !ordinal)
        return -EINVAL;
    char *end;
    long first = strtol(ordinal + 1, &end, 10);
    mf_format(seat->name, sizeof(seat->name), "%s-%d", s->name, i);
    mf_format(seat->device, sizeof(seat->device), "sim:%.*s:%ld%s", (int)(ordinal - class), class, first + i,
              end);
    return 0;
}

/* Of a GPU. A worker whose device cannot be asked starts all the same: its runner says what is wrong with it. */
static void identify(const struct settings *s, struct seat *seat)
{
    char why[256];
    if (strncmp(s->device, "hip:", 4) == 0 &&
        mf_device_query_identity(s->device, seat->identity, sizeof(seat->identity), why, sizeof(why)) < 0)
        log_warn("%s has no identity to lock it by: %s", s->device, why);
}

/* Without room for code objects a worker works all the same, and compiles again what the next one could have found. */
static void look_at_cache(const struct settings *s)
{
    char folder[PATH_MAX];
    if (strncmp(s->device, "hip:", 4) != 0)
        return;
    mf_code_folder(folder);
    int r = mf_code_room(folder);
    if (r < 0)
        log_warn("the code cache %s takes nothing (%s): what is compiled is kept beside the spool until the "
                 "worker starts again",
                 folder, strerror(-r));
}

/* What a runner may write to, beside the spool: emptied of what runners of before left. */
static int make_scratch(const struct settings *s, struct seat *seat)
{
    if (strncmp(s->device, "sim:", 4) == 0)
        return 0;
    mf_format(seat->scratch, sizeof(seat->scratch), "%s/%s.scratch", s->spool, seat->name);
    int r = mf_sandbox_scratch(seat->scratch);
    return r < 0 ? log_err(r, "make the runners' folder %s", seat->scratch) : 0;
}

/* 1: it has keys; 0: it needs none. */
static int find_keys(const struct settings *s, void *zmq, struct seat *seat)
{
    char why[512] = "";
    const struct mf_enrol e = {.zmq = zmq,
                               .coordinator = s->coordinator,
                               .name = seat->name,
                               .folder = s->spool,
                               .token_file = s->enrol};
    int r = mf_enrol(&e, &seat->keys, why, sizeof(why));
    if (r < 0)
        log_warn("%s: %s", seat->name, why);
    return r;
}

static int start_seats(const struct settings *s, void *zmq, struct seat *seats)
{
    identify(s, &seats[0]); /* before there are threads */
    look_at_cache(s);
    if (s->sim_workers > 1 && s->enrol[0]) {
        log_warn("--enrol: a token brings one key in; start %lld workers, or leave --sim-workers out",
                 (long long)s->sim_workers);
        return -EINVAL;
    }
    for (int i = 0; i < s->sim_workers; i++) {
        char why[512] = "";
        int r = make_seat(s, &seats[i], i);
        if (r < 0) {
            log_warn("--sim-workers needs --device sim:<class>:<ordinal>, not '%s'", s->device);
            return r;
        }
        r = make_scratch(s, &seats[i]);
        if (r < 0)
            return r;
        make_argv(s, &seats[i]);
        int keys = find_keys(s, zmq, &seats[i]);
        if (keys < 0)
            return keys;
        struct mf_agent_options o = {
            .zmq = zmq,
            .coordinator = s->coordinator,
            .keys = keys > 0 ? &seats[i].keys : NULL,
            .name = seats[i].name,
            .device = seats[i].device,
            .identity = seats[i].identity,
            .spool_folder = s->spool,
            .lock_folder = s->lock_folder,
            .runner_argv = seats[i].argv,
            .keep_bytes = (uint64_t)s->keep_mib << 20,
            .reserve = s->sim_workers <= RESERVE_MAX,
        };
        r = mf_agent_new(&o, why, sizeof(why), &seats[i].agent);
        if (r < 0) {
            log_warn("%s: %s", seats[i].name, why);
            return r;
        }
    }
    return 0;
}

static int timeout_of(const struct seat *seats, int n, const struct mf_notify *notify)
{
    int64_t due = mf_notify_due_ms(notify), now = mf_now_ms();
    int code;
    for (int i = 0; i < n; i++) {
        if (!mf_agent_ended(seats[i].agent, &code))
            due = MF_MIN(due, mf_agent_due_ms(seats[i].agent));
    }
    return due == INT64_MAX ? -1 : (int)MF_MIN(MF_MAX(due - now, 0), 60000);
}

/* Fills items with the signals and those of every agent that is not over; their number. */
static int gather_items(const struct seat *seats, int n, int signals, zmq_pollitem_t *items)
{
    int n_items = 0, code;
    items[n_items++] = (zmq_pollitem_t){.fd = signals, .events = ZMQ_POLLIN};
    for (int i = 0; i < n; i++) {
        zmq_pollitem_t own[MF_AGENT_POLLITEMS];
        if (mf_agent_ended(seats[i].agent, &code))
            continue;
        mf_agent_pollitems(seats[i].agent, own);
        for (int k = 0; k < MF_AGENT_POLLITEMS; k++) {
            if (own[k].socket || own[k].fd >= 0)
                items[n_items++] = own[k];
        }
    }
    return n_items;
}

static int loop(struct seat *seats, int n, int signals, struct mf_notify *notify)
{
    _cleanup_(mf_freep) zmq_pollitem_t *items = calloc((size_t)n * MF_AGENT_POLLITEMS + 1, sizeof(*items));
    if (!items)
        return 1;
    for (;;) {
        int over = 0, exit_code = 0, code;
        for (int i = 0; i < n; i++) {
            mf_agent_turn(seats[i].agent);
            if (mf_agent_ended(seats[i].agent, &code)) {
                over++;
                exit_code = MF_MAX(exit_code, code);
            }
        }
        if (over == n)
            return exit_code;
        mf_notify_turn(notify, mf_now_ms());
        int n_items = gather_items(seats, n, signals, items);
        if (zmq_poll(items, n_items, timeout_of(seats, n, notify)) < 0 && errno != EINTR)
            return 1;
        struct signalfd_siginfo info;
        if (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
            mf_notify_say(notify, "STOPPING=1");
            for (int i = 0; i < n; i++)
                mf_agent_stop(seats[i].agent, "stopped");
        }
    }
}

static int run_worker(const struct settings *s)
{
    _cleanup_(mf_closep) int signals = block_signals();
    _cleanup_(mf_notify_release) struct mf_notify notify;
    int r = mf_notify_init(&notify);
    if (r < 0)
        log_err(r, "NOTIFY_SOCKET: give a path or @name");
    if (signals < 0 || r < 0)
        return 1;
    r = mf_open_files_raise(); /* a simulated worker has eight, and its process 256 of them */
    if (r < 0)
        log_err(r, "raise the limit of open files");
    if (mkdir(s->spool, 0700) < 0 && errno != EEXIST) {
        log_err(-errno, "make the spool's folder %s", s->spool);
        return 1;
    }
    struct seat *seats = calloc((size_t)s->sim_workers, sizeof(*seats));
    void *zmq = zmq_ctx_new();
    int code = 1;
    if (seats && zmq) {
        (void)zmq_ctx_set(zmq, ZMQ_MAX_SOCKETS, SIM_WORKERS_MAX * 2 + 16);
        if (start_seats(s, zmq, seats) == 0) {
            mf_notify_say(&notify, "READY=1");
            code = loop(seats, (int)s->sim_workers, signals, &notify);
        }
        for (int i = 0; i < s->sim_workers; i++)
            mf_agent_free(seats[i].agent);
    }
    free(seats);
    if (zmq)
        zmq_ctx_term(zmq);
    return code;
}

static bool parse_level(const char *text, enum mf_log_level *ret)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum mf_log_level)i;
            return true;
        }
    }
    (void)fprintf(stderr, "moefarm-worker: --log has to be error, warning, info or debug, not '%s'\n", text);
    return false;
}

/* Most letters of a name: "NAME-255" has to fit where there are several. */
static size_t name_most(const struct settings *s)
{
    return MF_WORKER_NAME_MAX - 1 - (s->sim_workers > 1 ? strlen("-255") : 0);
}

static void default_name(const struct settings *s, char name[MF_WORKER_NAME_MAX])
{
    char host[HOST_NAME_MAX + 1] = "worker";
    (void)gethostname(host, sizeof(host) - 1);
    mf_worker_name(host, s->device, name_most(s), name);
}

int main(int argc, char **argv)
{
    struct settings s = {
        .coordinator = "tcp://127.0.0.1:7070",
        .enrol = "",
        .device = "cpu:0",
        .name = "",
        .spool = "moefarm-spool",
        .lock_folder = mf_device_lock_folder(),
        .families = "",
        .asm_folder = "",
        .scratch = "",
        .compile = {.arch = "", .shapes = ""},
        .log_level = "info",
        .sim_workers = 1,
        .keep_mib = DEFAULT_KEEP_GIB << 10,
    };
    enum mf_log_level level;
    int r = parse(&s, argc, argv);
    if (r != 0)
        return r < 0 ? 2 : 0;
    if (!parse_level(s.log_level, &level))
        return 2;
    mf_log_init("moefarm-worker", level);
    if (mf_fault_init() < 0) {
        log_warn("MOEFARM_FAULT: give NAME:N:FILE");
        return 2;
    }
    if (s.runner_child)
        return run_child(&s);
    if (s.list_devices) {
        struct seat seat = {.device = ""}; /* no scratch: it writes nothing */
        make_argv(&s, &seat);
        return mf_list_devices(seat.argv, seat.device, sizeof(seat.device));
    }
    if (s.compile_only) {
        s.compile.families = s.families;
        return mf_compile_only(&s.compile);
    }
    char name[MF_WORKER_NAME_MAX];
    if (!s.name[0]) {
        default_name(&s, name);
        s.name = name;
    }
    if (!mf_is_name(s.name, name_most(&s))) {
        (void)fprintf(stderr,
                      "moefarm-worker: --name has to be 1 to %zu letters, digits, _ . or -%s, not '%s'\n",
                      name_most(&s), s.sim_workers > 1 ? " with --sim-workers" : "", s.name);
        return 2;
    }
    return run_worker(&s);
}
