#include "worker/runner/foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "measure/race/rotate.h"
#include "measure/session/region.h"
#include "worker/runner/runner_wire.h"

#define CHILD_FD  3
#define HELLO_MS  30000
#define STOP_MS   1000
#define STEPS_MAX 4096
/* Maximum number of address sets loaded at a time per kernel: one per rotation, plus room for the first run.
 */
#define LOADS_MAX    (MF_ROTATIONS_MAX + 2)
#define BUFFERS_MAX  (2 * MF_STEP_TENSOR_SPECS_MAX * MF_PARTS_MAX)
#define EXIT_FOREIGN 70 /* exit code of this runner if its foreign program died */

struct mf_foreign {
    struct mf_family family; /* must be the first member: enumerate and open receive only a pointer to it */
    char name[MF_FAMILY_NAME_MAX], kind[16];
    uint64_t hash;
    pid_t pid;
    struct mf_channel channel;
    int64_t last_handle;
    char shape[MF_SHAPE_TEXT_MAX]; /* shape for which `steps` were enumerated */
    struct mf_step *steps;
    size_t n_steps, cap_steps;
};

struct load {
    int64_t handle; /* 0: this entry is free */
    uint64_t last_use;
    const void *address[BUFFERS_MAX];
};

struct mf_kernel {
    struct mf_foreign *foreign;
    struct mf_step step;
    struct mf_shape shape;
    struct load loads[LOADS_MAX];
    uint64_t use_counter;
};

/* Prints the reason and exits, because this process is useless without the foreign program. The worker starts
 * another runner, which starts the program again. */
static _Noreturn void exit_with_reason(struct mf_foreign *f, const char *reason)
{
    int status = 0;
    (void)kill(f->pid, SIGKILL);
    if (waitpid(f->pid, &status, 0) == f->pid && WIFEXITED(status))
        (void)fprintf(stderr, "foreign runner %s: %s; exit code %d\n", f->name, reason, WEXITSTATUS(status));
    else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        (void)fprintf(stderr, "foreign runner %s: %s; signal %d (%s)\n", f->name, reason, WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    else
        (void)fprintf(stderr, "foreign runner %s: %s\n", f->name, reason);
    _exit(EXIT_FOREIGN);
}

static void send_message(struct mf_foreign *f, const cJSON *message)
{
    int r = mf_channel_send_wait(&f->channel, message, -1);
    if (r == -EPIPE || r == -ECONNRESET)
        exit_with_reason(f, "exited");
    if (r < 0)
        exit_with_reason(f, strerror(-r));
}

static cJSON *receive_message(struct mf_foreign *f)
{
    cJSON *message = NULL;
    int r = mf_channel_wait(&f->channel, -1, &message);
    if (r == 0)
        exit_with_reason(f, "exited");
    if (r < 0)
        exit_with_reason(f, r == -EBADMSG ? "sent an invalid message" : strerror(-r));
    return message;
}

static bool is_op(const cJSON *message, const char *op)
{
    return strcmp(mf_channel_op(message), op) == 0;
}

static int take_step(struct mf_foreign *f, const cJSON *json, struct mf_offer *offer)
{
    const char *field = "step";
    struct mf_step step;
    int r = mf_step_from_json(mf_json_object(json, "step"), &step, &field);
    if (r == 0)
        r = mf_copy(step.family, sizeof(step.family), f->name);
    if (r < 0) {
        (void)fprintf(stderr, "foreign runner %s: step: %s missing or invalid\n", f->name, field);
        return offer ? offer->reject(offer, f->name, "*", "protocol",
                                     "invalid step offered: %s missing or invalid", field)
                     : 0;
    }
    if (f->n_steps == STEPS_MAX)
        return -EFBIG;
    r = mf_array_grow(&f->steps, f->n_steps, &f->cap_steps, sizeof(*f->steps));
    if (r < 0)
        return r;
    f->steps[f->n_steps++] = step;
    return offer ? offer->step(offer, &step) : 0;
}

static int take_reject(struct mf_foreign *f, const cJSON *json, struct mf_offer *offer)
{
    const char *kernel = "*", *rule = "foreign", *reason = "no reason given";
    (void)mf_json_text(json, "kernel", &kernel);
    (void)mf_json_text(json, "rule", &rule);
    (void)mf_json_text(json, "reason", &reason);
    return offer ? offer->reject(offer, f->name, kernel, rule, "%s", reason) : 0;
}

/* Requests the steps of a shape from the program and stores them. offer may be NULL. */
static int enumerate_steps(struct mf_foreign *f, const struct mf_device_info *device,
                           const struct mf_shape *shape, struct mf_offer *offer)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    mf_device_class_print(&device->class, class);
    f->n_steps = 0;
    f->shape[0] = '\0';
    char text[MF_SHAPE_TEXT_MAX];
    mf_shape_print(shape, text);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("enumerate");
    if (!m || !cJSON_AddStringToObject(m, "shape", text) || !cJSON_AddStringToObject(m, "class", class))
        return -ENOMEM;
    send_message(f, m);
    int r = 0;
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *answer = receive_message(f);
        if (is_op(answer, "enumerated"))
            break;
        if (r < 0)
            continue;
        if (is_op(answer, "step"))
            r = take_step(f, answer, offer);
        else if (is_op(answer, "reject"))
            r = take_reject(f, answer, offer);
    }
    if (r < 0)
        return r;
    return mf_copy(f->shape, sizeof(f->shape), text);
}

static int foreign_enumerate(const struct mf_family *family, const struct mf_device_info *device,
                             const struct mf_shape *shape, struct mf_offer *offer)
{
    return enumerate_steps((struct mf_foreign *)family, device, shape, offer);
}

static const struct mf_step *find_step(const struct mf_foreign *f, const char *name)
{
    for (size_t i = 0; i < f->n_steps; i++) {
        if (strcmp(f->steps[i].name, name) == 0)
            return &f->steps[i];
    }
    return NULL;
}

static int foreign_open(const struct mf_family *family, struct mf_device *device,
                        const struct mf_shape *shape, const char *name, struct mf_kernel **ret)
{
    struct mf_foreign *f = (struct mf_foreign *)family;
    char text[MF_SHAPE_TEXT_MAX];
    mf_shape_print(shape, text);
    if (strcmp(text, f->shape) != 0) {
        int r = enumerate_steps(f, &device->info, shape, NULL);
        if (r < 0)
            return r;
    }
    const struct mf_step *step = find_step(f, name);
    if (!step)
        return -EINVAL;
    struct mf_kernel *kernel = calloc(1, sizeof(*kernel));
    if (!kernel)
        return -ENOMEM;
    kernel->foreign = f;
    kernel->step = *step;
    kernel->shape = *shape;
    *ret = kernel;
    return 0;
}

/* Returns the pid of this process as /proc shows it. In a PID namespace, getpid() returns another number. */
static long pid_in_proc(void)
{
    char text[32] = "";
    ssize_t n = readlink("/proc/self", text, sizeof(text) - 1);
    return n > 0 ? strtol(text, NULL, 10) : (long)getpid();
}

/* Adds the buffers of one side (`needs` or `gives`), in the order of its tensor specs. */
static int add_buffers(cJSON *array, const struct mf_kernel *k, const char *side,
                       const struct mf_tensor_spec *tensor_specs, int32_t n, const struct mf_tensor_ref *refs)
{
    long self = pid_in_proc();
    for (int32_t i = 0; i < n; i++) {
        char text[MF_TENSOR_SPEC_TEXT_MAX];
        mf_tensor_spec_print(&tensor_specs[i], text);
        cJSON *buffer = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(array, buffer)) {
            cJSON_Delete(buffer);
            return -ENOMEM;
        }
        cJSON *parts = cJSON_AddArrayToObject(buffer, "parts");
        if (!cJSON_AddStringToObject(buffer, "tensor_spec", text) ||
            !cJSON_AddStringToObject(buffer, "side", side) || !parts)
            return -ENOMEM;
        struct mf_part part[MF_PARTS_MAX];
        int n_parts = mf_tensor_spec_parts(&tensor_specs[i], &k->shape, part);
        if (n_parts < 0)
            return n_parts;
        for (int p = 0; p < n_parts; p++) {
            int fd;
            uint64_t offset;
            int r = mf_region_locate(refs[i].part[p], &fd, &offset);
            if (r < 0)
                return r;
            char path[48];
            mf_format(path, sizeof(path), "/proc/%ld/fd/%d", self, fd);
            cJSON *json = cJSON_CreateObject();
            if (!cJSON_AddItemToArray(parts, json)) {
                cJSON_Delete(json);
                return -ENOMEM;
            }
            if (!cJSON_AddStringToObject(json, "name", part[p].name) ||
                !cJSON_AddStringToObject(json, "path", path) ||
                !mf_json_add_i64(json, "offset", (int64_t)offset) ||
                !mf_json_add_i64(json, "bytes", mf_part_bytes(&part[p])))
                return -ENOMEM;
        }
    }
    return 0;
}

static int status_errno(const cJSON *message)
{
    const char *status = "", *reason = "no reason given";
    (void)mf_json_text(message, "status", &status);
    (void)mf_json_text(message, "reason", &reason);
    (void)fprintf(stderr, "foreign runner: %s\n", reason);
    return strcmp(status, "no_memory") == 0 ? -ENOMEM : -ENOTSUP;
}

static int request(struct mf_foreign *f, const cJSON *message, const char *expected)
{
    send_message(f, message);
    _cleanup_(cJSON_Deletep) cJSON *answer = receive_message(f);
    if (is_op(answer, expected))
        return 0;
    if (is_op(answer, "failed"))
        return status_errno(answer);
    exit_with_reason(f, "unexpected answer");
}

static void unload(struct mf_kernel *k, struct load *load)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("unload");
    if (m && mf_json_add_i64(m, "handle", load->handle))
        (void)request(k->foreign, m, "unloaded");
    *load = (struct load){0};
}

static int do_load(struct mf_kernel *k, const struct mf_launch *launch, struct load *load)
{
    char text[MF_SHAPE_TEXT_MAX];
    mf_shape_print(&k->shape, text);
    int64_t handle = ++k->foreign->last_handle;
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("load");
    if (!m || !cJSON_AddStringToObject(m, "step", k->step.name) ||
        !cJSON_AddStringToObject(m, "shape", text) || !mf_json_add_i64(m, "handle", handle))
        return -ENOMEM;
    cJSON *buffers = cJSON_AddArrayToObject(m, "buffers");
    if (!buffers)
        return -ENOMEM;
    int r = add_buffers(buffers, k, "needs", k->step.needs, k->step.n_needs, launch->needs);
    if (r == 0)
        r = add_buffers(buffers, k, "gives", k->step.gives, k->step.n_gives, launch->gives);
    if (r == 0)
        r = request(k->foreign, m, "loaded");
    if (r == 0)
        load->handle = handle;
    return r;
}

static void collect_addresses(const struct mf_kernel *k, const struct mf_launch *launch,
                              const void *to[BUFFERS_MAX])
{
    size_t n = 0;
    for (int32_t i = 0; i < k->step.n_needs; i++) {
        for (int p = 0; p < MF_PARTS_MAX; p++)
            to[n++] = launch->needs[i].part[p];
    }
    for (int32_t i = 0; i < k->step.n_gives; i++) {
        for (int p = 0; p < MF_PARTS_MAX; p++)
            to[n++] = launch->gives[i].part[p];
    }
}

/* Finds the load (set of addresses loaded for the kernel) that matches the launch's addresses. If there is no
 * such load, replaces the least recently used load. */
static int find_load(struct mf_kernel *k, const struct mf_launch *launch, struct load **ret)
{
    const void *address[BUFFERS_MAX] = {0};
    collect_addresses(k, launch, address);
    struct load *oldest = &k->loads[0];
    for (int i = 0; i < LOADS_MAX; i++) {
        struct load *load = &k->loads[i];
        if (load->handle && memcmp(load->address, address, sizeof(address)) == 0) {
            *ret = load;
            return 0;
        }
        if (load->last_use < oldest->last_use)
            oldest = load;
    }
    if (oldest->handle)
        unload(k, oldest);
    int r = do_load(k, launch, oldest);
    if (r < 0)
        return r;
    memcpy(oldest->address, address, sizeof(address));
    *ret = oldest;
    return 0;
}

/* Loads the addresses before the timed launch, because the program may pack weights or compile meanwhile. */
static int foreign_prepare(struct mf_kernel *k, const struct mf_launch *launch)
{
    struct load *load;
    int r = find_load(k, launch, &load);
    if (r == 0)
        load->last_use = ++k->use_counter;
    return r;
}

static int foreign_launch(struct mf_kernel *k, const struct mf_launch *launch)
{
    struct load *load;
    int r = find_load(k, launch, &load);
    if (r < 0)
        return r;
    load->last_use = ++k->use_counter;
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("run");
    if (!m || !mf_json_add_i64(m, "handle", load->handle))
        return -ENOMEM;
    return request(k->foreign, m, "ran");
}

static struct mf_kernel *foreign_close(struct mf_kernel *k)
{
    for (int i = 0; k && i < LOADS_MAX; i++) {
        if (k->loads[i].handle)
            unload(k, &k->loads[i]);
    }
    free(k);
    return NULL;
}

/* Uses fork instead of posix_spawn, because only the child itself can set PR_SET_PDEATHSIG. No other threads
 * exist yet. */
static int spawn(const char *command, const struct mf_sandbox *sandbox, int socket_fd, pid_t *ret)
{
    pid_t parent = getpid();
    _cleanup_(mf_freep) char *line = NULL;
    if (asprintf(&line, "exec %s", command) < 0) {
        line = NULL;
        return -ENOMEM;
    }
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        char number[] = {'0' + CHILD_FD, '\0'};
        if (getppid() == parent && dup2(socket_fd, CHILD_FD) == CHILD_FD &&
            setenv(MF_RUNNER_FD_ENV, number, 1) == 0 && mf_sandbox_pids(sandbox, NULL, 0) == 0)
            (void)execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    *ret = pid;
    return 0;
}

static int read_hello(struct mf_foreign *f, char *why, size_t why_cap)
{
    _cleanup_(cJSON_Deletep) cJSON *hello = NULL;
    const char *name, *revision = "";
    int64_t protocol;
    int r = mf_channel_wait(&f->channel, HELLO_MS, &hello);
    if (r <= 0) {
        mf_format(why, why_cap, "%s", r == 0 ? "it exited before sending hello" : "no hello within 30 s");
        return r == 0 ? -EPIPE : r;
    }
    if (!is_op(hello, "hello") || mf_json_i64(hello, "protocol", 1, 1, &protocol) < 0) {
        mf_format(why, why_cap, "the first message is not a hello of protocol 1");
        return -EPROTO;
    }
    if (mf_json_text(hello, "name", &name) < 0 || !mf_is_name(name, sizeof(f->name) - 1)) {
        mf_format(why, why_cap, "hello.name: expected 1 to %zu letters, digits, _ . or -",
                  sizeof(f->name) - 1);
        return -EINVAL;
    }
    if (mf_family_find(NULL, name)) {
        mf_format(why, why_cap, "hello.name: %s is the name of a built-in family", name);
        return -EEXIST;
    }
    (void)mf_json_text(hello, "revision", &revision);
    f->hash = mf_hash64(revision, strlen(revision), mf_hash64(name, strlen(name) + 1, MF_HASH_SEED));
    const cJSON *can = mf_json_array(hello, "can"), *item;
    cJSON_ArrayForEach (item, can) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, "step") == 0)
            return mf_copy(f->name, sizeof(f->name), name);
    }
    mf_format(why, why_cap, "hello.can: expected [\"step\"]");
    return -EINVAL;
}

int mf_foreign_start(const char *command, const struct mf_sandbox *sandbox, struct mf_foreign **ret,
                     char *why, size_t why_cap)
{
    struct mf_foreign *f = calloc(1, sizeof(*f));
    if (!f) {
        mf_format(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    mf_channel_init(&f->channel, -1);
    mf_format(f->kind, sizeof(f->kind), "%.*s", (int)strcspn(sandbox->device, ":"), sandbox->device);
    int pair[2];
    int r = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
    if (r == 0) {
        f->channel.fd = pair[0];
        r = spawn(command, sandbox, pair[1], &f->pid);
        (void)close(pair[1]);
    }
    if (r < 0)
        mf_format(why, why_cap, "%s", strerror(-r));
    else
        r = read_hello(f, why, why_cap);
    if (r < 0) {
        mf_foreign_free(f);
        return r;
    }
    f->family = (struct mf_family){
        .api = MF_FAMILY_API,
        .supports_ep = true, /* the program rejects shapes it does not support */
        .name = f->name,
        .device_kind = f->kind,
        .enumerate = foreign_enumerate,
        .open = foreign_open,
        .launch = foreign_launch,
        .prepare = foreign_prepare,
        .close = foreign_close,
    };
    *ret = f;
    return 0;
}

struct mf_foreign *mf_foreign_free(struct mf_foreign *f)
{
    if (!f)
        return NULL;
    if (f->pid > 0) {
        _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("stop");
        _cleanup_(cJSON_Deletep) cJSON *rest = NULL;
        if (m && mf_channel_send(&f->channel, m, -1) == 0)
            (void)mf_channel_wait(&f->channel, STOP_MS, &rest);
        (void)kill(f->pid, SIGKILL);
        while (waitpid(f->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    mf_channel_release(&f->channel);
    free(f->steps);
    free(f);
    return NULL;
}

pid_t mf_foreign_pid(const struct mf_foreign *f)
{
    return f->pid;
}

const struct mf_family *mf_foreign_family(const struct mf_foreign *f)
{
    return &f->family;
}

uint64_t mf_foreign_hash(const struct mf_foreign *f)
{
    return f->hash;
}
