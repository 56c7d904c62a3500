#include "common/base/sha256.h"

#include <sodium.h>

void mf_sha256_print(const void *data, size_t len, char text[MF_SHA256_TEXT_MAX])
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    (void)crypto_hash_sha256(hash, data, len);
    (void)sodium_bin2hex(text, MF_SHA256_TEXT_MAX, hash, sizeof(hash));
}
