/* Keys and tokens: 32 bytes of the system's randomness, shown as hex, kept elsewhere as hashes only.
 *
 *   access token      moefarm_ID_SECRET               of the HTTP API; ID is its row, SECRET 64 hex digits
 *   enrolment token   moefarm-enrol_SECRET_PUBLIC     a worker's way in: SECRET is of a CURVE key pair of its own, whose
 *                                                     public half the farm knows by its hash; PUBLIC is the coordinator's key
 *
 * Thread-safe; nothing here logs, and no error holds a secret. */
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

/* A new pair for CURVE (X25519). -EIO: no randomness. */
int mf_key_pair_make(struct mf_key_pair *ret);
/* The pair that the secret half is of. */
int mf_key_pair_of(const uint8_t secret[MF_KEY_SIZE], struct mf_key_pair *ret);
void mf_key_print(const uint8_t key[MF_KEY_SIZE], char text[MF_KEY_TEXT_MAX]);
/* 64 digits and nothing else. -EINVAL. */
int mf_key_parse(const char *text, uint8_t ret[MF_KEY_SIZE]);

int mf_secret_make(uint8_t ret[MF_KEY_SIZE]);
/* BLAKE2b: what is kept of a secret. A secret of 256 random bits needs no salt and no slow hash. */
int mf_secret_hash(const uint8_t secret[MF_KEY_SIZE], uint8_t ret[MF_KEY_SIZE]);
/* In a time that does not depend on where they differ. */
bool mf_secret_equal(const uint8_t a[MF_KEY_SIZE], const uint8_t b[MF_KEY_SIZE]);

void mf_access_token_print(int64_t id, const uint8_t secret[MF_KEY_SIZE], char text[MF_TOKEN_TEXT_MAX]);
/* -EINVAL: no such text. */
int mf_access_token_parse(const char *text, int64_t *ret_id, uint8_t ret_secret[MF_KEY_SIZE]);
void mf_enrol_token_print(const uint8_t secret[MF_KEY_SIZE], const uint8_t coordinator[MF_KEY_SIZE],
                          char text[MF_TOKEN_TEXT_MAX]);
int mf_enrol_token_parse(const char *text, uint8_t ret_secret[MF_KEY_SIZE],
                         uint8_t ret_coordinator[MF_KEY_SIZE]);

/* Writes a file of mode 0600, whole or not at all and durable. */
int mf_secret_file_write(const char *path, const char *text);
/* Reads a file into a text without the white space at its end. -EFBIG: longer than cap. */
int mf_secret_file_read(const char *path, char *text, size_t cap);
