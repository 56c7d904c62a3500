#include "worker/runner/python_enumerator.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/layout.h"
#include "worker/runner/device_info.h"
#include "worker/runner/offer_message.h"
#include "worker/sandbox/supervisor.h"

/* ---- the layer of a shape ---- */

static struct mf_tensor_spec plain(enum mf_tensor tensor, enum mf_format format)
{
    return (struct mf_tensor_spec){.tensor = tensor, .format = format, .order = "token"};
}

/* Returns the layout of plain w1 with the order of gate and up rows that the shape requires. */
static const char *w1_layout(const struct mf_shape *s)
{
    return s->gate_up == MF_GATE_UP_INTERLEAVED ? "gu1" : s->gate_up == MF_GATE_UP_TILED ? "gu16" : "row";
}

static bool add_spec(cJSON *array, const struct mf_tensor_spec a)
{
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    mf_tensor_spec_print(&a, text);
    cJSON *item = cJSON_CreateString(text);
    if (cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

static bool add_needs(cJSON *needs, const struct mf_shape *s)
{
    enum mf_format hidden = s->dtype == MF_DTYPE_FP16 ? MF_FORMAT_FP16 : MF_FORMAT_BF16;
    struct mf_codecs codecs;
    const char *why;
    bool global = mf_codecs_of_shape(s, &codecs, &why) == 0 && codecs.a->global;
    return add_spec(needs, plain(MF_TENSOR_X, hidden)) &&
           add_spec(needs, plain(MF_TENSOR_TOPK, MF_FORMAT_INDEX)) &&
           add_spec(needs, mf_plain_w(s, MF_TENSOR_W1, w1_layout(s))) &&
           add_spec(needs, mf_plain_w(s, MF_TENSOR_W2, "row")) &&
           (!global || add_spec(needs, plain(MF_TENSOR_CALIB, MF_FORMAT_F32))) &&
           (!s->has_b1 || add_spec(needs, mf_plain_bias(MF_TENSOR_B1))) &&
           (!s->has_b2 || add_spec(needs, mf_plain_bias(MF_TENSOR_B2)));
}

static bool add_layer(cJSON *object, const struct mf_shape *s)
{
    enum mf_format hidden = s->dtype == MF_DTYPE_FP16 ? MF_FORMAT_FP16 : MF_FORMAT_BF16;
    char ops[MF_OPS_TEXT_MAX];
    mf_ops_print(mf_layer_ops(s), ops);
    int64_t active = (int64_t)mf_layer_expected_active(s);
    cJSON *needs = cJSON_AddArrayToObject(object, "needs"), *gives = cJSON_AddArrayToObject(object, "gives");
    return needs && gives && add_needs(needs, s) && add_spec(gives, plain(MF_TENSOR_Y, hidden)) &&
           cJSON_AddStringToObject(object, "covers", ops) &&
           cJSON_AddNumberToObject(object, "flops", mf_layer_flops(s)) &&
           cJSON_AddNumberToObject(object, "bytes", mf_layer_min_bytes(s, active));
}

cJSON *mf_python_shape(const struct mf_shape *shape)
{
    char text[MF_SHAPE_TEXT_MAX];
    mf_shape_print(shape, text);
    _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
    cJSON *layer = object ? cJSON_AddObjectToObject(object, "layer") : NULL;
    return layer && cJSON_AddStringToObject(object, "shape", text) && add_layer(layer, shape)
               ? MF_TAKE(object)
               : NULL;
}

/* ---- the process ---- */

extern char **environ;

/* The process gets its socket under the number that MF_RUNNER_FD_ENV has in this process too. */
static int spawn(const char *const *argv, int socket_fd, pid_t *ret)
{
    posix_spawn_file_actions_t actions;
    int r = posix_spawn_file_actions_init(&actions);
    if (r != 0)
        return -r;
    r = posix_spawn_file_actions_adddup2(&actions, socket_fd, MF_SUPERVISED_FD);
    if (r == 0)
        r = posix_spawn(ret, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return -r;
}

int mf_python_enumerator_start(struct mf_python_enumerator *e)
{
    int pair[2];
    if (e->pid > 0)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    int r = spawn(e->argv, pair[1], &e->pid);
    (void)close(pair[1]);
    mf_channel_init(&e->channel, pair[0]);
    if (r < 0) {
        e->pid = 0;
        mf_channel_release(&e->channel);
    }
    return r;
}

/* Closes the socket and waits for the end of the process. Returns its status. */
static int reap(struct mf_python_enumerator *e)
{
    int status = 0;
    mf_channel_release(&e->channel);
    while (waitpid(e->pid, &status, 0) < 0 && errno == EINTR)
        ;
    e->pid = 0;
    return status;
}

/* Ends the process. Without a PID namespace the kill may be refused; then the process ends itself, because
 * its socket is closed or by SIGALRM. */
static void stop(struct mf_python_enumerator *e)
{
    (void)kill(e->pid, SIGKILL);
    (void)reap(e);
}

static int send_request(struct mf_python_enumerator *e, const struct mf_device_info *device,
                        const struct mf_shape *shape)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_python_shape(shape);
    cJSON *known = m ? cJSON_AddObjectToObject(m, "device") : NULL;
    if (!known || mf_device_info_add(known, device) < 0 || !cJSON_AddStringToObject(m, "op", "enumerate") ||
        !cJSON_AddStringToObject(m, "name", e->device))
        return -ENOMEM;
    return mf_channel_send_wait(&e->channel, m, -1);
}

int mf_python_enumerator_run(struct mf_python_enumerator *e, const char *family,
                             const struct mf_device_info *device, const struct mf_shape *shape,
                             struct mf_offer *offer)
{
    int64_t result = 0;
    int status = 0, r = mf_python_enumerator_start(e);
    if (r < 0)
        return offer->reject(offer, family, family, "start", "cannot start %s: %s", e->argv[0], strerror(-r));
    r = send_request(e, device, shape);
    if (r == -ENOMEM)
        return r;
    r = mf_offers_forward(&e->channel, family, -1, offer, &result);
    if (r == 0)
        status = reap(e);
    else if (r < 0)
        stop(e);
    if (r == 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return offer->reject(offer, family, family, "hang", "enumerate was silent for too long");
    return mf_offers_end(family, r, result, status, offer);
}

void mf_python_enumerator_release(struct mf_python_enumerator *e)
{
    if (e->pid > 0)
        stop(e);
}
