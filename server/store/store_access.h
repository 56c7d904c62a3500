/* Access tokens and worker keys in the database (schema.sql: token, worker_key). */
#pragma once

#include "common/base/secret.h"
#include "server/http/role.h"
#include "server/store/store.h"
#include "server/store/store_read.h"

#define MF_TOKEN_NAME_MAX 64

struct mf_token_row {
    enum mf_role role;
    const char *name;
    const uint8_t *hash;
    int64_t expires_ms; /* 0: never */
};
int mf_store_token_add(struct mf_store *s, const struct mf_token_row *row, int64_t now_ms, int64_t *ret_id);
/* Revokes a token. -ENOENT: the token does not exist or is already revoked. */
int mf_store_token_revoke(struct mf_store *s, int64_t id, int64_t now_ms);
/* Revokes every valid token with this name and role. */
int mf_store_tokens_revoke(struct mf_store *s, enum mf_role role, const char *name, int64_t now_ms);

/* Counts the valid tokens of all roles but worker. */
int mf_store_tokens_count(struct mf_store *s, int64_t now_ms, int64_t *ret);

/* Returns 1 and the role if the token is valid and the secret matches; 0 otherwise. */
int mf_store_token_check(struct mf_store *s, int64_t id, const uint8_t secret[MF_KEY_SIZE], int64_t now_ms,
                         enum mf_role *ret_role);
/* Returns 1 if the token has not expired or been revoked, 0 otherwise. Does not check the secret. */
int mf_store_token_is_valid(struct mf_store *s, int64_t id, int64_t now_ms);
/* Writes the name of a token, whether the token is valid or not; "" for id 0 (no token). -ENOENT: no such
 * token. */
int mf_store_token_name(struct mf_store *s, int64_t id, char ret[MF_TOKEN_NAME_MAX]);
/* Finds a valid enrolment token by its hash, whether it has been used or not. Returns 1 or 0. */
int mf_store_enrolment_find(struct mf_store *s, const uint8_t hash[MF_KEY_SIZE], int64_t now_ms,
                            int64_t *ret_id);

#define MF_KEY_WORKER_MAX 64
/* Returns 1 and the worker's name if the key is enrolled and not revoked; 0 otherwise. */
int mf_store_key_find(struct mf_store *s, const uint8_t public_key[MF_KEY_SIZE],
                      char ret_worker[MF_KEY_WORKER_MAX]);

enum mf_enrolment {
    MF_ENROLMENT_DONE,
    MF_ENROLMENT_TOKEN_INVALID, /* expired, revoked, or not an enrolment token */
    MF_ENROLMENT_TOKEN_USED,
    MF_ENROLMENT_NAME_TAKEN,
    MF_ENROLMENT_KEY_KNOWN
};
/* Enrols the key and marks the token as used. A repeated call with the same arguments succeeds again. Returns
 * an enum mf_enrolment or a negative errno. */
int mf_store_key_enrol(struct mf_store *s, int64_t token, const uint8_t public_key[MF_KEY_SIZE],
                       const char *worker, int64_t now_ms);
/* Revokes a key and returns its public key. -ENOENT: the key does not exist or is already revoked. */
int mf_store_key_revoke(struct mf_store *s, int64_t id, int64_t now_ms, uint8_t ret_key[MF_KEY_SIZE]);

int mf_read_tokens(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
int mf_read_keys(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
