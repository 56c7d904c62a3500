/* Authentication of peers, if the hub has keys. The farm answers the hub's requests of ZeroMQ's
 * authentication protocol (ZAP). The answer depends on the CURVE public key whose secret key the peer has
 * proven to hold:
 *
 *   enrolled key           User-Id: the key in hexadecimal. The key (not the routing id) identifies a worker
 *   enrolment token's key  User-Id: "token:ID". The peer may send ENROL only
 *   any other key          the handshake fails
 *
 * A connection outlives the revocation of its key. So when a key is revoked, the farm removes the key's slot
 * in the same iteration. If a peer without a slot sends a message, the farm checks the peer's key in the
 * store. */
#include "server/farm/access.h"
#include "server/farm/farm_private.h"

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define ADMIN_NAME "state folder"
#define TOKEN_USER "token:"

static int find_user(struct mf_farm *f, const uint8_t *key, char user[MF_PEER_USER_MAX])
{
    char worker[MF_KEY_WORKER_MAX];
    uint8_t hash[MF_KEY_SIZE];
    int64_t token;
    int r = mf_store_key_find(f->store, key, worker);
    if (r > 0)
        mf_key_print(key, user);
    if (r != 0)
        return r;
    r = mf_secret_hash(key, hash);
    if (r == 0)
        r = mf_store_enrolment_find(f->store, hash, f->wall_ms, &token);
    if (r > 0)
        mf_format(user, MF_PEER_USER_MAX, TOKEN_USER "%" PRId64, token);
    return r;
}

int mf_access_answer_handshakes(struct mf_farm *f)
{
    struct mf_auth_request k;
    while (f->zap && mf_auth_recv(f->zap, &k) > 0) {
        char user[MF_PEER_USER_MAX] = "";
        int r = find_user(f, k.key, user);
        if (r < 0)
            return r;
        f->stats.handshakes_refused += r == 0;
        mf_auth_answer(f->zap, &k, r > 0 ? user : NULL);
    }
    return 0;
}

bool mf_access_is_token(const struct mf_peer *peer)
{
    return strncmp(peer->user, TOKEN_USER, strlen(TOKEN_USER)) == 0;
}

int mf_access_worker(struct mf_farm *f, const struct mf_peer *peer, char ret_worker[MF_KEY_WORKER_MAX])
{
    uint8_t key[MF_KEY_SIZE];
    return mf_key_parse(peer->user, key) < 0 ? 0 : mf_store_key_find(f->store, key, ret_worker);
}

static const struct {
    const char *code, *reason;
} refusals[] = {
    [MF_ENROLMENT_TOKEN_INVALID] =
        {"unknown_key",
         "the enrolment token is expired or revoked; create a new one with: moefarm token worker NAME"},
    [MF_ENROLMENT_TOKEN_USED] =
        {"token_used", "the enrolment token has been used; create a new one with: moefarm token worker NAME"},
    [MF_ENROLMENT_NAME_TAKEN] = {"name_taken", "a worker of this name has a key: revoke that key (moefarm "
                                               "keys, moefarm revoke-key N), or choose another name"},
    [MF_ENROLMENT_KEY_KNOWN] = {"key_known", "this key has been enrolled before; enrol with a new key"},
};

int mf_access_enrol(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail)
{
    const char *worker = "", *text = "";
    uint8_t key[MF_KEY_SIZE];
    int64_t token;
    (void)slot;
    if (!mf_access_is_token(&mail->peer) ||
        mf_parse_i64(mail->peer.user + strlen(TOKEN_USER), 1, INT64_MAX, &token) < 0)
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence,
                              "ENROL: connect with an enrolment token to send it");
    (void)mf_json_text(mail->json, "worker", &worker);
    if (!mf_is_name(worker, MF_WORKER_NAME_MAX - 1))
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence,
                              "worker: expected a name of 1 to 63 letters, digits, '.', '_' and '-'");
    if (mf_json_text(mail->json, "key", &text) < 0 || mf_key_parse(text, key) < 0)
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence,
                              "key: expected a public key of 64 hexadecimal digits");
    if (mf_key_is_weak(key))
        return mf_peer_refuse(f, &mail->peer, "malformed", (int64_t)mail->sequence,
                              "key: %s belongs to no secret key; enrol with a new key pair", text);
    int r = mf_store_key_enrol(f->store, token, key, worker, f->wall_ms);
    if (r < 0)
        return r;
    if (r != MF_ENROLMENT_DONE)
        return mf_peer_refuse(f, &mail->peer, refusals[r].code, (int64_t)mail->sequence, "%s",
                              refusals[r].reason);
    log_info("enrolled worker %s with token %" PRId64, worker, token);
    return mf_hub_post(f->hub, &mail->peer, MF_MESSAGE_ENROLLED, "{}");
}

/* ---- administration ---- */

/* A worker token is a CURVE key pair. The token's text contains the secret key; the farm stores a hash of the
 * public key. */
static int make_secret(const struct mf_farm *f, enum mf_role role, uint8_t secret[MF_KEY_SIZE],
                       uint8_t hash[MF_KEY_SIZE])
{
    struct mf_key_pair pair;
    int r = role == MF_ROLE_WORKER && !f->zap ? -ENOTSUP : mf_key_pair_make(&pair);
    if (r < 0)
        return r;
    memcpy(secret, pair.secret, MF_KEY_SIZE);
    return mf_secret_hash(role == MF_ROLE_WORKER ? pair.public : secret, hash);
}

int mf_farm_token_add(struct mf_farm *f, const struct mf_token_request *request, int64_t *ret_id,
                      char ret_text[MF_TOKEN_TEXT_MAX])
{
    uint8_t secret[MF_KEY_SIZE], hash[MF_KEY_SIZE];
    int64_t id;
    struct mf_token_row row = {
        .role = request->role, .name = request->name, .hash = hash, .expires_ms = request->expires_ms};
    int r = request->role != MF_ROLE_WORKER && !f->options.first_token ? -EACCES : 0;
    if (r == 0)
        r = make_secret(f, request->role, secret, hash);
    if (r == 0)
        r = mf_store_token_add(f->store, &row, f->wall_ms, &id);
    if (r < 0)
        return r;
    if (request->role == MF_ROLE_WORKER)
        mf_enrol_token_print(secret, f->options.keys->public, ret_text);
    else
        mf_access_token_print(id, secret, ret_text);
    log_info("created token %" PRId64 ": role %s, name %s", id, mf_role_name(request->role), request->name);
    *ret_id = id;
    return 0;
}

int mf_farm_token_revoke(struct mf_farm *f, int64_t id)
{
    int r = mf_store_token_revoke(f->store, id, f->wall_ms);
    if (r == 0)
        log_info("revoked token %" PRId64, id);
    return r;
}

int mf_farm_key_revoke(struct mf_farm *f, int64_t id)
{
    uint8_t key[MF_KEY_SIZE];
    char user[MF_KEY_TEXT_MAX];
    int r = mf_store_key_revoke(f->store, id, f->wall_ms, key);
    if (r < 0)
        return r;
    mf_key_print(key, user);
    for (size_t i = 0; i < f->slots.n; i++) {
        struct mf_slot *slot = f->slots.all[i];
        if (strcmp(slot->peer.user, user) != 0)
            continue;
        log_warn("disconnected worker %s: its key %" PRId64 " is revoked", slot->name, id);
        return mf_peer_remove(f, slot, "gone", "its worker's key was revoked");
    }
    log_info("revoked key %" PRId64, id);
    return 0;
}

/* Unless the file exists, creates the farm's first admin token and writes it to the file, for users that can
 * read the state folder. Revokes the token that an earlier call created. */
int mf_access_first_token(struct mf_farm *f, const char *path)
{
    char text[MF_TOKEN_TEXT_MAX], line[MF_TOKEN_TEXT_MAX + 1];
    struct stat status;
    int64_t id, others = 0;
    if (stat(path, &status) == 0)
        return 0;
    int r = mf_store_begin(f->store);
    if (r >= 0)
        r = mf_store_tokens_revoke(f->store, MF_ROLE_ADMIN, ADMIN_NAME, f->wall_ms);
    if (r >= 0)
        r = mf_store_tokens_count(f->store, f->wall_ms, &others);
    if (r >= 0)
        r = mf_farm_token_add(f, &(struct mf_token_request){MF_ROLE_ADMIN, ADMIN_NAME, 0}, &id, text);
    if (r >= 0)
        r = mf_store_commit(f->store);
    if (r < 0)
        return r;
    mf_format(line, sizeof(line), "%s\n", text);
    r = mf_secret_file_write(path, line);
    if (r == 0)
        log_info("the first admin token is in %s", path);
    if (r == 0 && others > 0)
        log_warn("%" PRId64 " other tokens are valid; revoke those that you do not know (moefarm tokens)",
                 others);
    return r;
}
