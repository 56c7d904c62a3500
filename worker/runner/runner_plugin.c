#include "worker/runner/runner_plugin.h"

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
#include "worker/runner/offer_message.h"

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
            mf_family_plugins_drop_last(&p->loaded);
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
    int r = mf_offers_forward(&channel, f->name, ENUMERATE_TIMEOUT_MS, offer, &result);
    mf_channel_release(&channel);
    (void)kill(child, SIGKILL); /* the child has sent everything, hangs or has exited */
    (void)waitpid(child, &status, 0);
    if (r != -ETIMEDOUT)
        return mf_offers_end(f->name, r, result, status, offer);
    return offer->reject(offer, f->name, f->name, "hang", "enumerate was silent for %d s",
                         ENUMERATE_TIMEOUT_MS / 1000);
}
