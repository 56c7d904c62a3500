/* Keys and tokens: 32 random bytes, printed as hex, stored only as hashes.
 *
 *   access token      moefarm_ID_SECRET            HTTP API; ID is the database row, SECRET has 64 hex digits
 *   enrolment token   moefarm-enrol_SECRET_PUBLIC  lets a worker enrol. SECRET is the secret key of a CURVE
 *                                                  pair; the coordinator stores the hash of its public key.
 *                                                  PUBLIC is the coordinator's public key
 *
 * Thread-safe. The functions neither log nor return secrets in errors. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_KEY_SIZE       32
#define MF_KEY_TEXT_MAX   (2 * MF_KEY_SIZE + 1)
#define MF_TOKEN_TEXT_MAX 160

struct mf_key_pair {
    uint8_t public[MF_KEY_SIZE], secret[MF_KEY_SIZE];
};

/* Creates a CURVE (X25519) key pair. -EIO: no source of randomness. */
int mf_key_pair_make(struct mf_key_pair *ret);
/* Derives the pair from its secret key. */
int mf_key_pair_from_secret(const uint8_t secret[MF_KEY_SIZE], struct mf_key_pair *ret);
void mf_key_print(const uint8_t key[MF_KEY_SIZE], char text[MF_KEY_TEXT_MAX]);
/* True for a public key that belongs to no secret key: zero, or another point of low order. A shared secret
 * computed with it is known to everybody. */
bool mf_key_is_weak(const uint8_t public_key[MF_KEY_SIZE]);
/* Accepts exactly 64 hex digits, otherwise -EINVAL. */
int mf_key_parse(const char *text, uint8_t ret[MF_KEY_SIZE]);

int mf_secret_make(uint8_t ret[MF_KEY_SIZE]);
/* Computes the BLAKE2b hash that is stored instead of the secret. A secret of 256 random bits needs no salt
 * and no slow hash. */
int mf_secret_hash(const uint8_t secret[MF_KEY_SIZE], uint8_t ret[MF_KEY_SIZE]);
/* Constant-time comparison. */
bool mf_secret_equal(const uint8_t a[MF_KEY_SIZE], const uint8_t b[MF_KEY_SIZE]);

void mf_access_token_print(int64_t id, const uint8_t secret[MF_KEY_SIZE], char text[MF_TOKEN_TEXT_MAX]);
/* -EINVAL: the text is not an access token. */
int mf_access_token_parse(const char *text, int64_t *ret_id, uint8_t ret_secret[MF_KEY_SIZE]);
void mf_enrol_token_print(const uint8_t secret[MF_KEY_SIZE], const uint8_t coordinator[MF_KEY_SIZE],
                          char text[MF_TOKEN_TEXT_MAX]);
int mf_enrol_token_parse(const char *text, uint8_t ret_secret[MF_KEY_SIZE],
                         uint8_t ret_coordinator[MF_KEY_SIZE]);

/* Writes a file of mode 0600, atomically and durably. */
int mf_secret_file_write(const char *path, const char *text);
/* Reads a file as text and strips trailing white space. -EFBIG: the file has cap bytes or more. */
int mf_secret_file_read(const char *path, char *text, size_t cap);
