#include "worker/runner/runner_plugin.h"
#include "worker/runner/offer_message.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define ENUMERATE_TIMEOUT_MS 10000

static void base_name(const char *path, char name[MF_FAMILY_NAME_MAX])
{
    const char *slash = strrchr(path, '/');
    mf_format(name, MF_FAMILY_NAME_MAX, "%s", slash ? slash + 1 : path);
    for (char *c = name; *c; c++) {
        if (!mf_is_name((char[]){*c, '\0'}, 1))
            *c = '_';
    }
    if (!*name)
        mf_format(name, MF_FAMILY_NAME_MAX, "plugin");
}

void mf_runner_plugins_load(struct mf_runner_plugins *p, const char *const *paths, int n,
                            const char *device_kind)
{
    for (int i = 0; i < n && i < MF_PLUGINS_MAX; i++) {
        char why[MF_REASON_MAX] = "";
        int r = mf_family_plugin_load_guarded(&p->loaded, paths[i], why, sizeof(why));
        if (r == 0) {
            const struct mf_family *f = p->loaded.families[p->loaded.n - 1];
            if (strcmp(f->device_kind, device_kind) == 0)
                continue;
            mf_format(why, sizeof(why), "family %s supports devices of kind %s, not %s", f->name,
                      f->device_kind, device_kind);
        }
        (void)fprintf(stderr, "family %s: %s\n", paths[i], why);
        base_name(paths[i], p->refused[p->n_refused].name);
        mf_format(p->refused[p->n_refused++].why, MF_REASON_MAX, "%s: %s", paths[i], why);
    }
}

void mf_runner_plugins_release(struct mf_runner_plugins *p)
{
    mf_family_plugins_release(&p->loaded);
}

int mf_runner_plugins_offer_rejections(const struct mf_runner_plugins *p, struct mf_offer *offer)
{
    int r = 0;
    for (size_t i = 0; i < p->n_refused && r >= 0; i++)
        r = offer->reject(offer, p->refused[i].name, p->refused[i].name, "shared_object", "%s",
                          p->refused[i].why);
    return r;
}

/* ---- the child's side ---- */

struct sender {
    struct mf_offer offer; /* must be the first member */
    struct mf_channel channel;
};

static int send_step(struct mf_offer *o, const struct mf_step *step)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_step_message(step);
    return m ? mf_channel_send_wait(&((struct sender *)o)->channel, m, -1) : -ENOMEM;
}

static int send_reject(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_reject_message(family, kernel, rule, format, args);
    va_end(args);
    return m ? mf_channel_send_wait(&((struct sender *)o)->channel, m, -1) : -ENOMEM;
}

static void run_child(int fd, const struct mf_family *f, const struct mf_device_info *device,
                      const struct mf_shape *shape)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < MF_ARRAY_LEN(signals); i++)
        /* the child must not run the runner's signal handlers, which report to the worker */
        (void)signal(signals[i], SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sender s = {.offer = {.step = send_step, .reject = send_reject}};
    mf_channel_init(&s.channel, fd);
    int r = mf_family_enumerate(f, device, shape, &s.offer);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("enumerated");
    if (m && mf_json_add_i64(m, "result", r))
        (void)mf_channel_send_wait(&s.channel, m, -1);
    _exit(0);
}

/* ---- the runner's side ---- */

static int forward_step(const struct mf_family *f, const cJSON *m, struct mf_offer *offer)
{
    struct mf_step step;
    const char *field = "step";
    if (mf_step_from_json(mf_json_object(m, "step"), &step, &field) < 0)
        return offer->reject(offer, f->name, f->name, "malformed", "invalid step: %s missing or invalid",
                             field);
    if (strcmp(step.family, f->name) != 0)
        return offer->reject(offer, f->name, step.name, "malformed",
                             "invalid step: family is %s, not the plugin's family", step.family);
    return offer->step(offer, &step);
}

static int forward_reject(const struct mf_family *f, const cJSON *m, struct mf_offer *offer)
{
    const char *kernel = f->name, *rule = "", *reason = "";
    (void)mf_json_text(m, "kernel", &kernel);
    (void)mf_json_text(m, "rule", &rule);
    (void)mf_json_text(m, "reason", &reason);
    return offer->reject(offer, f->name, kernel, rule, "%s", reason);
}

/* Returns 1 if enumeration is complete, 0 if the child exited, -ETIMEDOUT if the child sends nothing, or a
 * negative error of the offer. */
static int forward_all(const struct mf_family *f, struct mf_channel *from, struct mf_offer *offer,
                       int64_t *result)
{
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        int r = mf_channel_wait(from, ENUMERATE_TIMEOUT_MS, &m);
        if (r <= 0)
            return r == -ETIMEDOUT ? r : 0;
        const char *op = mf_channel_op(m);
        if (strcmp(op, "enumerated") == 0)
            return mf_json_i64(m, "result", INT32_MIN, INT32_MAX, result) < 0 ? 0 : 1;
        r = strcmp(op, "step") == 0 ? forward_step(f, m, offer) : forward_reject(f, m, offer);
        if (r < 0)
            return r;
    }
}

static int offer_end_rejection(const struct mf_family *f, int r, int64_t result, int status,
                               struct mf_offer *offer)
{
    if (r == 1 && result >= 0)
        return 0;
    if (r == 1)
        return offer->reject(offer, f->name, f->name, "enumerate", "enumerate returned %lld (%s)",
                             (long long)result, strerror((int)-result));
    if (r == -ETIMEDOUT)
        return offer->reject(offer, f->name, f->name, "hang", "enumerate was silent for %d s",
                             ENUMERATE_TIMEOUT_MS / 1000);
    if (r == 0 && WIFSIGNALED(status))
        return offer->reject(offer, f->name, f->name, "crash", "enumerate crashed with signal %d (%s)",
                             WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (r == 0)
        return offer->reject(offer, f->name, f->name, "crash",
                             "enumerate ended the process with exit code %d", WEXITSTATUS(status));
    return r;
}

int mf_runner_plugin_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                               const struct mf_shape *shape, struct mf_offer *offer)
{
    int fds[2], status = 0;
    int64_t result = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return -errno;
    pid_t child = fork();
    if (child == 0) {
        (void)close(fds[0]);
        run_child(fds[1], f, device, shape);
    }
    (void)close(fds[1]);
    if (child < 0) {
        int r = -errno;
        (void)close(fds[0]);
        return r;
    }
    struct mf_channel channel;
    mf_channel_init(&channel, fds[0]);
    int r = forward_all(f, &channel, offer, &result);
    mf_channel_release(&channel);
    (void)kill(child, SIGKILL); /* the child has sent everything, hangs or has exited */
    (void)waitpid(child, &status, 0);
    return offer_end_rejection(f, r, result, status, offer);
}
