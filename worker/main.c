/* moefarm-worker: serves one device, or several simulated devices, to a farm. Its runners are the same
 * program, started with --runner-child, or a Python interpreter that loads the runner as a library. */
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
#include "kernels/core/sibling_file.h"
#include "worker/agent/agent.h"
#include "worker/agent/device_lock.h"
#include "worker/agent/enrol.h"
#include "worker/agent/worker_name.h"
#include "worker/runner/compile_only.h"
#include "worker/runner/device_query.h"
#include "worker/runner/library.h"
#include "worker/runner/list_devices.h"
#include "worker/runner/runner.h"
#include "worker/runner/runner_options.h"
#include "worker/runner/self_check.h"
#include "worker/sandbox/sandbox.h"
#include "worker/sandbox/scratch_folder.h"
#include "worker/sandbox/supervisor.h"

#define SIM_WORKERS_MAX 256
#define ARGUMENTS_MAX   (2 * (MF_RUNNER_FAMILY_SO_MAX + MF_RUNNER_PYTHON_MAX) + 24)
#define CHILD           "--runner-child" /* first argument of a runner; internal */
#define PYTHON_START_MS 300000
#define RESERVE_MAX     4 /* if the process has more agents than this, no agent keeps a reserve runner */

struct settings {
    const char *coordinator, *enrol, *device, *name, *spool, *lock_folder, *families, *log_level;
    const char *python, *asm_folder, *aiter_folder;
    char library[PATH_MAX], boot[PATH_MAX]; /* files of the runner in an interpreter, if `python` is set */
    struct mf_opt_list family_so, family_py;
    int64_t sim_workers, keep_mib, memory_mib;
    struct mf_compile_only compile;
    bool list_devices, compile_only, self_check, no_sandbox, no_pid_namespace;
    enum mf_isolation isolation; /* of the runners */
};

/* One agent and the strings that its options point to. */
struct instance {
    struct mf_agent *agent;
    struct mf_link_keys keys;
    char scratch[PATH_MAX]; /* scratch folder of this instance's runners */
    char name[MF_WORKER_NAME_MAX], device[PATH_MAX], identity[MF_DEVICE_TEXT_MAX], keep[32], memory[32];
    const char *argv[ARGUMENTS_MAX];
};

/* Checks --python and --family-py, and finds the files that run a runner in an interpreter. */
static int find_python(struct settings *s)
{
    if (!s->python[0] && s->family_py.n == 0)
        return 0;
    if (!s->python[0] || s->family_py.n == 0) {
        (void)fprintf(stderr,
                      "moefarm-worker: --python and --family-py need each other; for example --python "
                      "/usr/bin/python3 --family-py my_family.py\n");
        return -EINVAL;
    }
    if (s->python[0] != '/' || access(s->python, X_OK) < 0) {
        (void)fprintf(stderr,
                      "moefarm-worker: --python %s: expected the absolute path of an interpreter, such "
                      "as /usr/bin/python3\n",
                      s->python);
        return -EINVAL;
    }
    if (mf_sibling_file(MOEFARM_RUNNER_FILE, "worker", s->library) < 0 ||
        mf_sibling_file(MOEFARM_RUNNER_BOOT, ".", s->boot) < 0) {
        (void)fprintf(stderr,
                      "moefarm-worker: --python: %s or %s is missing beside this program; reinstall "
                      "package moefarm-worker\n",
                      MOEFARM_RUNNER_FILE, MOEFARM_RUNNER_BOOT);
        return -ENOENT;
    }
    return 0;
}

static int parse(struct settings *s, int argc, char **argv)
{
    /* clang-format off */
    const struct mf_opt opts[] = {
        {"coordinator", MF_OPT_TEXT, &s->coordinator, "ENDPOINT",
         "address of moefarmd for workers (moefarmd --hub)", 0, 0},
        {"enrol", MF_OPT_TEXT, &s->enrol, "FILE",
         "file with an enrolment token, if the coordinator requires keys and the worker has no key yet",
         0, 0},
        {"device", MF_OPT_TEXT, &s->device, "NAME",
         "cpu:0, hip:nvidia:<ordinal>, hip:amd:<ordinal> or sim:<class>:<ordinal>[:<spec file>]", 0, 0},
        {"name", MF_OPT_TEXT, &s->name, "NAME",
         "name of the worker, unique in the farm (default: host and device)", 0, 0},
        {"spool", MF_OPT_TEXT, &s->spool, "DIR", "folder for results that are not acknowledged yet", 0, 0},
        {"lock-dir", MF_OPT_TEXT, &s->lock_folder, "DIR",
         "folder for the device lock (default: /run/lock, or /tmp if /run/lock is not writable)", 0, 0},
        {"families", MF_OPT_TEXT, &s->families, "LIST",
         "kernel families to offer, comma-separated (default: all)", 0, 0},
        {"family-so", MF_OPT_LIST, &s->family_so, "FILE",
         "shared object with a kernel family (repeatable)", 0, 0},
        {"python", MF_OPT_TEXT, &s->python, "PATH",
         "Python interpreter that runs the runners, for --family-py", 0, 0},
        {"family-py", MF_OPT_LIST, &s->family_py, "FILE",
         "Python file or module with kernel families (repeatable)", 0, 0},
        {"asm-dir", MF_OPT_TEXT, &s->asm_folder, "DIR",
         "folder of prebuilt kernels and manifests, one subfolder per architecture", 0, 0},
        {"aiter-dir", MF_OPT_TEXT, &s->aiter_folder, "DIR",
         "folder of your AITER, whose kernel lists replace the built-in ones in family aiter", 0, 0},
        {"sim-workers", MF_OPT_INT, &s->sim_workers, "N",
         "number of simulated workers in this process, named NAME-0, NAME-1, ...", 1, SIM_WORKERS_MAX},
        {"keep", MF_OPT_INT, &s->keep_mib, "MIB",
         "memory for weights and references that new runners reuse, in MiB", 0, 1 << 30},
        {"memory", MF_OPT_INT, &s->memory_mib, "MIB",
         "address space limit of a runner, in MiB; 0: no limit", 0, 1 << 30},
        {"no-sandbox", MF_OPT_BOOL, &s->no_sandbox, NULL,
         "run runners without a sandbox, for drivers that fail under the limits of SECURITY.md", 0, 0},
        {"no-pid-namespace", MF_OPT_BOOL, &s->no_pid_namespace, NULL,
         "run runners without a PID namespace of their own, for drivers that fail in one", 0, 0},
        {"list-devices", MF_OPT_BOOL, &s->list_devices, NULL,
         "list the devices of this machine, with a reason for each unusable device, and exit", 0, 0},
        {"self-check", MF_OPT_BOOL, &s->self_check, NULL,
         "verify --device and the families on small layers, print a report and exit", 0, 0},
        {"compile-only", MF_OPT_BOOL, &s->compile_only, NULL,
         "fill the code object cache ($MOEFARM_CODE_CACHE) for --arch and --shapes and exit; needs no GPU",
         0, 0},
        {"arch", MF_OPT_TEXT, &s->compile.arch, "NAME",
         "architecture for --compile-only: nvidia:<gfx>[/<compute units>] or amd:<gfx>[/<compute units>]",
         0, 0},
        {"shapes", MF_OPT_TEXT, &s->compile.shapes, "FILE", "untuned_fmoe.csv for --compile-only", 0, 0},
        {"log-level", MF_OPT_TEXT, &s->log_level, "LEVEL", "log level: error, warning, info or debug", 0, 0},
    };
    /* clang-format on */
    int rest = argc;
    int r =
        mf_opts_parse("moefarm-worker [options]\n\nMeasure kernels on one device for a moefarm coordinator.",
                      opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    if (r != 0)
        return r;
    if (rest < argc) {
        (void)fprintf(stderr, "moefarm-worker: unexpected argument '%s'\n", argv[rest]);
        return -EINVAL;
    }
    return find_python(s);
}

/* Runs this process as a runner. argv[0] is --runner-child. */
static int run_child(int argc, char **argv)
{
    struct mf_runner_options o;
    return mf_runner_options_parse(argc, argv, &o) < 0 ? 2 : mf_runner_main(&o);
}

/* Adds the start of the command line: this program, or the interpreter with the runner as a library. Returns
 * the number of arguments. */
static int add_program(const struct settings *s, const char **argv)
{
    const char *const own[] = {"/proc/self/exe", CHILD}, *const python[] = {s->python, "-I", "-S", s->boot,
                                                                            s->library};
    const char *const *from = s->python[0] ? python : own;
    int n = s->python[0] ? (int)MF_ARRAY_LEN(python) : (int)MF_ARRAY_LEN(own);
    memcpy(argv, from, (size_t)n * sizeof(*argv));
    return n;
}

static int add_value(const char **argv, int n, const char *option, const char *value)
{
    argv[n++] = option;
    argv[n++] = value;
    return n;
}

static int add_values(const char **argv, int n, const char *option, const struct mf_opt_list *list)
{
    for (int i = 0; i < list->n; i++)
        n = add_value(argv, n, option, list->values[i]);
    return n;
}

/* Builds the command line of a runner. */
static void make_argv(const struct settings *s, struct instance *instance)
{
    const struct {
        const char *option, *value;
    } texts[] = {
        {"--families", s->families},
        {"--asm-dir", s->asm_folder},
        {"--aiter-dir", s->aiter_folder},
        {"--scratch", instance->scratch},
    };
    const char **argv = instance->argv;
    int n = add_program(s, argv);
    mf_format(instance->keep, sizeof(instance->keep), "--keep=%lld", (long long)s->keep_mib);
    mf_format(instance->memory, sizeof(instance->memory), "--memory=%lld", (long long)s->memory_mib);
    argv[n++] = instance->keep;
    argv[n++] = instance->memory;
    n = add_value(argv, n, "--device", instance->device); /* --list-devices sets the name later */
    if (s->no_sandbox)
        argv[n++] = "--no-sandbox";
    if (s->isolation != MF_ISOLATION_NONE)
        argv[n++] = "--in-namespace";
    n = add_values(argv, n, "--family-so", &s->family_so);
    n = add_values(argv, n, "--family-py", &s->family_py);
    for (size_t i = 0; i < MF_ARRAY_LEN(texts); i++) {
        if (texts[i].value[0])
            n = add_value(argv, n, texts[i].option, texts[i].value);
    }
    argv[n] = NULL;
}

/* ---- event loop ---- */

/* Returns a signalfd for SIGTERM and SIGINT. Blocks them before ZeroMQ starts threads. */
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

/* Sets name and device. With --sim-workers, the name is NAME-i and the ordinal is the ordinal of --device
 * plus i. */
static int set_name_and_device(const struct settings *s, struct instance *instance, int i)
{
    if (s->sim_workers == 1) {
        int r = mf_copy(instance->name, sizeof(instance->name), s->name);
        return r < 0 ? r : mf_copy(instance->device, sizeof(instance->device), s->device);
    }
    const char *class = s->device + 4, *ordinal = strchr(class, ':');
    if (strncmp(s->device, "sim:", 4) != 0 || !ordinal)
        return -EINVAL;
    char *end;
    long first = strtol(ordinal + 1, &end, 10);
    mf_format(instance->name, sizeof(instance->name), "%s-%d", s->name, i);
    mf_format(instance->device, sizeof(instance->device), "sim:%.*s:%ld%s", (int)(ordinal - class), class,
              first + i, end);
    return 0;
}

/* Reads the identity of a GPU. On failure the worker starts anyway, because its runner reports the error. */
static void set_identity(const struct settings *s, struct instance *instance)
{
    char why[256];
    if (strncmp(s->device, "hip:", 4) == 0 &&
        mf_device_query_identity(s->device, instance->identity, sizeof(instance->identity), why,
                                 sizeof(why)) < 0)
        log_warn("%s: cannot read the device identity, locking by name: %s", s->device, why);
}

/* Warns if the code cache is not writable. The worker then runs with another cache, but later workers must
 * compile again. */
static void check_code_cache(const struct settings *s)
{
    char folder[PATH_MAX];
    if (strncmp(s->device, "hip:", 4) != 0)
        return;
    mf_code_folder(folder);
    int r = mf_code_check_writable(folder);
    if (r < 0)
        log_warn("code cache %s is not writable: %s; using the scratch folder next to the spool until the "
                 "worker restarts",
                 folder, strerror(-r));
}

/* Creates the scratch folder that runners may write to, next to the spool. If the folder exists, deletes its
 * contents. */
static int make_scratch(const struct settings *s, struct instance *instance)
{
    if (strncmp(s->device, "sim:", 4) == 0)
        return 0;
    mf_format(instance->scratch, sizeof(instance->scratch), "%s/%s.scratch", s->spool, instance->name);
    int r = mf_scratch_make(instance->scratch);
    return r < 0 ? log_err(r, "cannot create the scratch folder %s", instance->scratch) : 0;
}

/* Finds or creates the worker's keys. Returns 1 if there are keys, 0 to connect without keys. */
static int find_keys(const struct settings *s, void *zmq, struct instance *instance)
{
    char why[512] = "";
    const struct mf_enrol e = {.zmq = zmq,
                               .coordinator = s->coordinator,
                               .name = instance->name,
                               .folder = s->spool,
                               .token_file = s->enrol};
    int r = mf_enrol(&e, &instance->keys, why, sizeof(why));
    if (r < 0)
        log_warn("%s: %s", instance->name, why);
    return r;
}

/* Python imports the families' modules before `hello`, which takes minutes on a slow network file system. */
static int64_t start_limit_ms(const struct settings *s)
{
    return s->python[0] ? PYTHON_START_MS : 0;
}

static int start_agents(const struct settings *s, void *zmq, struct instance *instances)
{
    set_identity(s, &instances[0]); /* set_identity forks, so call it before threads start */
    check_code_cache(s);
    if (s->sim_workers > 1 && s->enrol[0]) {
        log_warn("--enrol: a token enrols one worker; start %lld workers, or omit --sim-workers",
                 (long long)s->sim_workers);
        return -EINVAL;
    }
    for (int i = 0; i < s->sim_workers; i++) {
        char why[512] = "";
        int r = set_name_and_device(s, &instances[i], i);
        if (r < 0) {
            log_warn("--sim-workers requires --device sim:<class>:<ordinal>, not '%s'", s->device);
            return r;
        }
        r = make_scratch(s, &instances[i]);
        if (r < 0)
            return r;
        make_argv(s, &instances[i]);
        int keys = find_keys(s, zmq, &instances[i]);
        if (keys < 0)
            return keys;
        struct mf_agent_options o = {
            .zmq = zmq,
            .coordinator = s->coordinator,
            .keys = keys > 0 ? &instances[i].keys : NULL,
            .name = instances[i].name,
            .device = instances[i].device,
            .identity = instances[i].identity,
            .spool_folder = s->spool,
            .lock_folder = s->lock_folder,
            .runner_argv = instances[i].argv,
            .isolation = s->isolation,
            .keep_bytes = (uint64_t)s->keep_mib << 20,
            .reserve = s->sim_workers <= RESERVE_MAX,
            .start_limit_ms = start_limit_ms(s),
        };
        r = mf_agent_new(&o, why, sizeof(why), &instances[i].agent);
        if (r < 0) {
            log_warn("%s: %s", instances[i].name, why);
            return r;
        }
    }
    return 0;
}

static int timeout_of(const struct instance *instances, int n, const struct mf_notify *notify)
{
    int64_t due = mf_notify_due_ms(notify), now = mf_now_ms();
    int code;
    for (int i = 0; i < n; i++) {
        if (!mf_agent_ended(instances[i].agent, &code))
            due = MF_MIN(due, mf_agent_due_ms(instances[i].agent));
    }
    return due == INT64_MAX ? -1 : (int)MF_MIN(MF_MAX(due - now, 0), 60000);
}

/* Fills items with the signalfd and the poll items of all agents that have not ended. Returns their number.
 */
static int gather_items(const struct instance *instances, int n, int signals, zmq_pollitem_t *items)
{
    int n_items = 0, code;
    items[n_items++] = (zmq_pollitem_t){.fd = signals, .events = ZMQ_POLLIN};
    for (int i = 0; i < n; i++) {
        zmq_pollitem_t own[MF_AGENT_POLLITEMS];
        if (mf_agent_ended(instances[i].agent, &code))
            continue;
        mf_agent_pollitems(instances[i].agent, own);
        for (int k = 0; k < MF_AGENT_POLLITEMS; k++) {
            if (own[k].socket || own[k].fd >= 0)
                items[n_items++] = own[k];
        }
    }
    return n_items;
}

static int loop(struct instance *instances, int n, int signals, struct mf_notify *notify)
{
    _cleanup_(mf_freep) zmq_pollitem_t *items = calloc((size_t)n * MF_AGENT_POLLITEMS + 1, sizeof(*items));
    if (!items)
        return 1;
    for (;;) {
        int n_ended = 0, exit_code = 0, code;
        for (int i = 0; i < n; i++) {
            mf_agent_run_once(instances[i].agent);
            if (mf_agent_ended(instances[i].agent, &code)) {
                n_ended++;
                exit_code = MF_MAX(exit_code, code);
            }
        }
        if (n_ended == n)
            return exit_code;
        mf_notify_watchdog(notify, mf_now_ms());
        int n_items = gather_items(instances, n, signals, items);
        if (zmq_poll(items, n_items, timeout_of(instances, n, notify)) < 0 && errno != EINTR)
            return 1;
        struct signalfd_siginfo info;
        if (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
            mf_notify_send(notify, "STOPPING=1");
            for (int i = 0; i < n; i++)
                mf_agent_stop(instances[i].agent, "stopped");
        }
    }
}

/* Chooses how runners are kept apart from other processes. This forks, so call it before threads start. */
static void choose_isolation(struct settings *s)
{
    char why[128] = "--no-pid-namespace";
    bool may_use_gpu = s->list_devices || strncmp(s->device, "hip:", 4) == 0;
    s->isolation = MF_ISOLATION_NONE;
    if (s->no_sandbox)
        return;
    if (!s->no_pid_namespace)
        s->isolation = mf_isolation_probe(may_use_gpu, why, sizeof(why));
    if (s->isolation == MF_ISOLATION_NONE)
        log_warn("runners have no PID namespace: %s; seccomp refuses calls that name other processes", why);
    else
        log_info("each runner has a PID namespace");
}

static int run_worker(struct settings *s)
{
    _cleanup_(mf_closep) int signals = block_signals();
    choose_isolation(s);
    _cleanup_(mf_notify_release) struct mf_notify notify;
    int r = mf_notify_init(&notify);
    if (r < 0)
        log_err(r, "NOTIFY_SOCKET: expected a path or @name");
    if (signals < 0 || r < 0)
        return 1;
    /* a simulated worker needs 8 open files, and a process has up to 256 simulated workers */
    r = mf_open_files_raise();
    if (r < 0)
        log_err(r, "cannot raise the limit of open files");
    if (mkdir(s->spool, 0700) < 0 && errno != EEXIST) {
        log_err(-errno, "cannot create the spool folder %s", s->spool);
        return 1;
    }
    struct instance *instances = calloc((size_t)s->sim_workers, sizeof(*instances));
    void *zmq = zmq_ctx_new();
    int code = 1;
    if (instances && zmq) {
        (void)zmq_ctx_set(zmq, ZMQ_MAX_SOCKETS, SIM_WORKERS_MAX * 2 + 16);
        if (start_agents(s, zmq, instances) == 0) {
            mf_notify_send(&notify, "READY=1");
            code = loop(instances, (int)s->sim_workers, signals, &notify);
        }
        for (int i = 0; i < s->sim_workers; i++) {
            mf_agent_free(instances[i].agent);
            if (instances[i].scratch[0])
                (void)mf_scratch_make(instances[i].scratch); /* frees the space that runners used */
        }
    }
    free(instances);
    if (zmq)
        zmq_ctx_term(zmq);
    return code;
}

/* Runs --self-check with a scratch folder of its own. */
static int self_check(struct settings *s)
{
    struct instance instance = {.device = ""};
    mf_format(instance.device, sizeof(instance.device), "%s", s->device);
    mf_format(instance.scratch, sizeof(instance.scratch), "/tmp/moefarm-self-check.XXXXXX");
    if (!mkdtemp(instance.scratch)) {
        (void)fprintf(stderr, "moefarm-worker: --self-check: %s: %s\n", instance.scratch, strerror(errno));
        return 1;
    }
    choose_isolation(s);
    make_argv(s, &instance);
    const struct mf_runner_pool_options o = {.argv = instance.argv,
                                             .isolation = s->isolation,
                                             .keep_bytes = (uint64_t)s->keep_mib << 20,
                                             .start_limit_ms = start_limit_ms(s)};
    int code = mf_self_check(&o, s->device);
    (void)mf_scratch_make(instance.scratch); /* removes the contents */
    (void)rmdir(instance.scratch);
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
    (void)fprintf(stderr, "moefarm-worker: --log-level '%s': expected error, warning, info or debug\n", text);
    return false;
}

/* Returns the maximum length of --name. With several workers, the longest name, "NAME-255", must also fit. */
static size_t name_max_len(const struct settings *s)
{
    return MF_WORKER_NAME_MAX - 1 - (s->sim_workers > 1 ? strlen("-255") : 0);
}

static void default_name(const struct settings *s, char name[MF_WORKER_NAME_MAX])
{
    char host[HOST_NAME_MAX + 1] = "worker";
    (void)gethostname(host, sizeof(host) - 1);
    mf_worker_name(host, s->device, name_max_len(s), name);
}

int main(int argc, char **argv)
{
    const char *family_so[MF_RUNNER_FAMILY_SO_MAX], *family_py[MF_RUNNER_PYTHON_MAX];
    struct settings s = {
        .coordinator = "tcp://127.0.0.1:7070",
        .enrol = "",
        .device = "cpu:0",
        .name = "",
        .spool = "moefarm-spool",
        .lock_folder = mf_device_lock_folder(),
        .families = "",
        .family_so = {.values = family_so, .max = MF_ARRAY_LEN(family_so)},
        .python = "",
        .family_py = {.values = family_py, .max = MF_ARRAY_LEN(family_py)},
        .asm_folder = "",
        .aiter_folder = "",
        .compile = {.arch = "", .shapes = ""},
        .log_level = "info",
        .sim_workers = 1,
        .keep_mib = MF_RUNNER_KEEP_MIB,
    };
    enum mf_log_level level = MF_LOG_INFO;
    bool child = argc > 1 && strcmp(argv[1], CHILD) == 0;
    int r = child ? 0 : parse(&s, argc, argv);
    if (r != 0)
        return r < 0 ? 2 : 0;
    if (!parse_level(s.log_level, &level))
        return 2;
    mf_log_init("moefarm-worker", level);
    if (mf_fault_init() < 0) {
        log_warn("MOEFARM_FAULT: expected NAME:N:FILE");
        return 2;
    }
    if (child)
        return run_child(argc - 1, argv + 1);
    if (s.list_devices) {
        choose_isolation(&s);
        /* the instance has no scratch folder, because listing devices writes no files */
        struct instance instance = {.device = ""};
        make_argv(&s, &instance);
        return mf_list_devices(instance.argv, s.isolation, instance.device, sizeof(instance.device));
    }
    if (s.self_check)
        return self_check(&s);
    if (s.compile_only) {
        s.compile.families = s.families;
        return mf_compile_only(&s.compile);
    }
    char name[MF_WORKER_NAME_MAX];
    if (!s.name[0]) {
        default_name(&s, name);
        s.name = name;
    }
    if (!mf_is_name(s.name, name_max_len(&s))) {
        (void)fprintf(stderr,
                      "moefarm-worker: --name: expected 1 to %zu letters, digits, _ . or -%s, not '%s'\n",
                      name_max_len(&s), s.sim_workers > 1 ? " with --sim-workers" : "", s.name);
        return 2;
    }
    return run_worker(&s);
}
