/* The store of who may come in: tokens and workers' keys (schema.sql: token, worker_key). */
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
/* -ENOENT: there is none, or it is revoked already. */
int mf_store_token_revoke(struct mf_store *s, int64_t id, int64_t now_ms);
/* Every token of that name and role. */
int mf_store_tokens_revoke(struct mf_store *s, enum mf_role role, const char *name, int64_t now_ms);

/* 1: the token stands, with its role; 0: it is unknown, expired, revoked, or the secret is another. */
int mf_store_token_check(struct mf_store *s, int64_t id, const uint8_t secret[MF_KEY_SIZE], int64_t now_ms,
                         enum mf_role *ret_role);
/* The same of a token that was checked before. */
int mf_store_token_stands(struct mf_store *s, int64_t id, int64_t now_ms);
/* Whose a token is, also one that has ended; "" for 0, which is none. -ENOENT. */
int mf_store_token_name(struct mf_store *s, int64_t id, char ret[MF_TOKEN_NAME_MAX]);
/* 1: an enrolment token of that hash stands, used or not; 0: none. */
int mf_store_enrolment_find(struct mf_store *s, const uint8_t hash[MF_KEY_SIZE], int64_t now_ms,
                            int64_t *ret_id);

#define MF_KEY_WORKER_MAX 64
/* 1: the key stands, and is this worker's; 0: unknown or revoked. */
int mf_store_key_find(struct mf_store *s, const uint8_t public_key[MF_KEY_SIZE],
                      char ret_worker[MF_KEY_WORKER_MAX]);

enum mf_enrolment {
    MF_ENROLMENT_DONE,
    MF_ENROLMENT_GONE, /* the token is expired, revoked, or none for workers */
    MF_ENROLMENT_USED,
    MF_ENROLMENT_NAME_TAKEN,
    MF_ENROLMENT_KEY_KNOWN
};
/* Uses the token up for the key. Asking the same again gives the same answer. -errno, or one of the above. */
int mf_store_key_enrol(struct mf_store *s, int64_t token, const uint8_t public_key[MF_KEY_SIZE],
                       const char *worker, int64_t now_ms);
/* The key that no longer stands. -ENOENT: there is none, or it is revoked already. */
int mf_store_key_revoke(struct mf_store *s, int64_t id, int64_t now_ms, uint8_t ret_key[MF_KEY_SIZE]);

int mf_read_tokens(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
int mf_read_keys(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
