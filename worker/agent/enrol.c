#include "worker/agent/enrol.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"

#define ANSWER_TIMEOUT_MS 20000
#define RESEND_MS         1000
#define POLL_MS           50
#define FILE_MAX          512

static int read_keys(const char *path, struct mf_link_keys *ret)
{
    char text[FILE_MAX], coordinator[MF_KEY_TEXT_MAX], public[MF_KEY_TEXT_MAX], secret[MF_KEY_TEXT_MAX];
    struct mf_link_keys k;
    int r = mf_secret_file_read(path, text, sizeof(text));
    if (r < 0)
        return r;
    if (sscanf(text, "coordinator %64s public %64s secret %64s", coordinator, public, secret) != 3 ||
        mf_key_parse(coordinator, k.coordinator) < 0 || mf_key_parse(public, k.own.public) < 0 ||
        mf_key_parse(secret, k.own.secret) < 0)
        return -EBADMSG;
    *ret = k;
    return 0;
}

static int write_keys(const char *path, const struct mf_link_keys *k)
{
    char text[FILE_MAX], coordinator[MF_KEY_TEXT_MAX], public[MF_KEY_TEXT_MAX], secret[MF_KEY_TEXT_MAX];
    mf_key_print(k->coordinator, coordinator);
    mf_key_print(k->own.public, public);
    mf_key_print(k->own.secret, secret);
    mf_format(text, sizeof(text), "coordinator %s\npublic %s\nsecret %s\n", coordinator, public, secret);
    return mf_secret_file_write(path, text);
}

/* Reads the key pair of an interrupted enrolment, or creates a new one. */
static int new_keys(const char *path, const uint8_t *coordinator, struct mf_link_keys *ret)
{
    int r = read_keys(path, ret);
    if (r == 0 && memcmp(ret->coordinator, coordinator, MF_KEY_SIZE) == 0)
        return 0;
    memcpy(ret->coordinator, coordinator, MF_KEY_SIZE);
    r = mf_key_pair_make(&ret->own);
    return r < 0 ? r : write_keys(path, ret);
}

static int send_enrol(struct mf_agent_socket *s, const char *name, const struct mf_link_keys *keys)
{
    char public[MF_KEY_TEXT_MAX];
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    mf_key_print(keys->own.public, public);
    if (!m || !cJSON_AddStringToObject(m, "worker", name) || !cJSON_AddStringToObject(m, "key", public))
        return -ENOMEM;
    return mf_agent_socket_send_json(s, MF_MESSAGE_ENROL, m);
}

/* Returns 1 if the worker is enrolled, 0 if no answer has arrived yet. */
static int take_answer(struct mf_agent_socket *s, char *why, size_t why_cap)
{
    enum mf_message type;
    _cleanup_(cJSON_Deletep) cJSON *m = NULL;
    const char *reason = "no reason";
    if (mf_agent_socket_receive(s, &type, &m) == 0)
        return 0;
    if (type == MF_MESSAGE_ENROLLED)
        return 1;
    (void)mf_json_text(m, "reason", &reason);
    mf_format(why, why_cap, "the coordinator refused the enrolment: %s", reason);
    return -EACCES;
}

static int request_enrolment(struct mf_agent_socket *s, const char *name, const struct mf_link_keys *keys,
                             char *why, size_t why_cap)
{
    int64_t until = mf_now_ms() + ANSWER_TIMEOUT_MS, resend_at_ms = 0;
    int r = 0;
    while (r == 0 && mf_now_ms() < until) {
        zmq_pollitem_t item = {.socket = s->socket, .events = ZMQ_POLLIN};
        if (mf_now_ms() >= resend_at_ms && send_enrol(s, name, keys) == 0)
            resend_at_ms = mf_now_ms() + RESEND_MS;
        (void)zmq_poll(&item, 1, POLL_MS);
        r = take_answer(s, why, why_cap);
        if (r == 0 && mf_agent_socket_handshake_failed(s)) {
            mf_format(why, why_cap,
                      "%s rejects the enrolment token: it is unknown, expired, revoked or for another"
                      " coordinator; request a new one",
                      s->endpoint);
            return -EACCES;
        }
    }
    if (r == 0)
        mf_format(why, why_cap, "no answer from %s; check --coordinator", s->endpoint);
    return r == 0 ? -ETIMEDOUT : r;
}

/* Returns 1 if the worker is enrolled, 0 if the token file is empty. */
static int enrol(const struct mf_enrol *e, const char *pending_path, struct mf_link_keys *ret, char *why,
                 size_t why_cap)
{
    char text[MF_TOKEN_TEXT_MAX];
    uint8_t secret[MF_KEY_SIZE];
    struct mf_link_keys token;
    int r = mf_secret_file_read(e->token_file, text, sizeof(text));
    if (r < 0) {
        mf_format(why, why_cap, "--enrol %s: %s", e->token_file, strerror(-r));
        return r;
    }
    if (!text[0])
        return 0;
    if (mf_enrol_token_parse(text, secret, token.coordinator) < 0) {
        mf_format(why, why_cap,
                  "--enrol %s: expected an enrolment token as printed by `moefarm token worker NAME`",
                  e->token_file);
        return -EINVAL;
    }
    r = mf_key_pair_from_secret(secret, &token.own);
    if (r == 0)
        r = new_keys(pending_path, token.coordinator, ret);
    if (r < 0) {
        mf_format(why, why_cap, "cannot create a key in %s: %s", pending_path, strerror(-r));
        return r;
    }
    struct mf_agent_socket s = {
        .zmq = e->zmq, .endpoint = e->coordinator, .keys = &token, .watch_handshake = true};
    r = mf_agent_socket_open(&s);
    if (r < 0)
        mf_format(why, why_cap, "cannot connect to %s: %s", e->coordinator, strerror(-r));
    else
        r = request_enrolment(&s, e->name, ret, why, why_cap);
    mf_agent_socket_close(&s, 0);
    return r;
}

int mf_enrol(const struct mf_enrol *e, struct mf_link_keys *ret, char *why, size_t why_cap)
{
    char path[PATH_MAX], pending_path[PATH_MAX];
    mf_format(path, sizeof(path), "%s/%s.key", e->folder, e->name);
    mf_format(pending_path, sizeof(pending_path), "%s/%s.key.new", e->folder, e->name);
    int r = read_keys(path, ret);
    if (r == 0)
        return 1;
    if (r != -ENOENT) {
        mf_format(why, why_cap, "cannot read the key %s: %s", path, strerror(-r));
        return r;
    }
    if (!e->token_file[0])
        return 0;
    r = enrol(e, pending_path, ret, why, why_cap);
    if (r <= 0)
        return r;
    if (rename(pending_path, path) < 0) {
        r = -errno;
        mf_format(why, why_cap, "cannot save the key %s: %s", path, strerror(-r));
        return r;
    }
    log_info("%s: enrolled at %s; the token is now used up", e->name, e->coordinator);
    return 1;
}
