#include "common/base/secret.h"

#include "common/base/cleanup.h"
#include "common/base/durable_file.h"
#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

#define ACCESS "moefarm_"
#define ENROL  "moefarm-enrol_"

int mf_secret_make(uint8_t ret[MF_KEY_SIZE])
{
    if (sodium_init() < 0)
        return -EIO;
    randombytes_buf(ret, MF_KEY_SIZE);
    return 0;
}

int mf_key_pair_from_secret(const uint8_t secret[MF_KEY_SIZE], struct mf_key_pair *ret)
{
    struct mf_key_pair pair;
    memcpy(pair.secret, secret, MF_KEY_SIZE);
    if (sodium_init() < 0 || crypto_scalarmult_base(pair.public, pair.secret) < 0)
        return -EIO;
    *ret = pair;
    return 0;
}

int mf_key_pair_make(struct mf_key_pair *ret)
{
    uint8_t secret[MF_KEY_SIZE];
    int r = mf_secret_make(secret);
    return r < 0 ? r : mf_key_pair_from_secret(secret, ret);
}

void mf_key_print(const uint8_t key[MF_KEY_SIZE], char text[MF_KEY_TEXT_MAX])
{
    (void)sodium_bin2hex(text, MF_KEY_TEXT_MAX, key, MF_KEY_SIZE);
}

int mf_key_parse(const char *text, uint8_t ret[MF_KEY_SIZE])
{
    size_t n = 0;
    uint8_t key[MF_KEY_SIZE];
    if (strlen(text) != MF_KEY_TEXT_MAX - 1 ||
        sodium_hex2bin(key, sizeof(key), text, MF_KEY_TEXT_MAX - 1, NULL, &n, NULL) < 0 || n != sizeof(key))
        return -EINVAL;
    memcpy(ret, key, MF_KEY_SIZE);
    return 0;
}

bool mf_key_is_weak(const uint8_t public_key[MF_KEY_SIZE])
{
    static const uint8_t secret[MF_KEY_SIZE] = {1};
    uint8_t shared[MF_KEY_SIZE];
    /* X25519 clears the low bits of the secret, so every point of low order gives zero, which libsodium
     * reports */
    return sodium_init() < 0 || crypto_scalarmult(shared, secret, public_key) < 0;
}

int mf_secret_hash(const uint8_t secret[MF_KEY_SIZE], uint8_t ret[MF_KEY_SIZE])
{
    if (sodium_init() < 0 || crypto_generichash_blake2b(ret, MF_KEY_SIZE, secret, MF_KEY_SIZE, NULL, 0) < 0)
        return -EIO;
    return 0;
}

bool mf_secret_equal(const uint8_t a[MF_KEY_SIZE], const uint8_t b[MF_KEY_SIZE])
{
    return sodium_memcmp(a, b, MF_KEY_SIZE) == 0;
}

void mf_access_token_print(int64_t id, const uint8_t secret[MF_KEY_SIZE], char text[MF_TOKEN_TEXT_MAX])
{
    char hex[MF_KEY_TEXT_MAX];
    mf_key_print(secret, hex);
    mf_format(text, MF_TOKEN_TEXT_MAX, ACCESS "%" PRId64 "_%s", id, hex);
}

int mf_access_token_parse(const char *text, int64_t *ret_id, uint8_t ret_secret[MF_KEY_SIZE])
{
    char digits[24];
    size_t n;
    if (strncmp(text, ACCESS, strlen(ACCESS)) != 0)
        return -EINVAL;
    text += strlen(ACCESS);
    n = strspn(text, "0123456789");
    if (n == 0 || n >= sizeof(digits) || text[n] != '_')
        return -EINVAL;
    mf_format(digits, sizeof(digits), "%.*s", (int)n, text);
    if (mf_parse_i64(digits, 1, INT64_MAX, ret_id) < 0)
        return -EINVAL;
    return mf_key_parse(text + n + 1, ret_secret);
}

void mf_enrol_token_print(const uint8_t secret[MF_KEY_SIZE], const uint8_t coordinator[MF_KEY_SIZE],
                          char text[MF_TOKEN_TEXT_MAX])
{
    char secret_hex[MF_KEY_TEXT_MAX], coordinator_hex[MF_KEY_TEXT_MAX];
    mf_key_print(secret, secret_hex);
    mf_key_print(coordinator, coordinator_hex);
    mf_format(text, MF_TOKEN_TEXT_MAX, ENROL "%s_%s", secret_hex, coordinator_hex);
}

int mf_enrol_token_parse(const char *text, uint8_t ret_secret[MF_KEY_SIZE],
                         uint8_t ret_coordinator[MF_KEY_SIZE])
{
    char secret[MF_KEY_TEXT_MAX];
    if (strncmp(text, ENROL, strlen(ENROL)) != 0)
        return -EINVAL;
    text += strlen(ENROL);
    if (strlen(text) != 2 * (MF_KEY_TEXT_MAX - 1) + 1 || text[MF_KEY_TEXT_MAX - 1] != '_')
        return -EINVAL;
    mf_format(secret, sizeof(secret), "%s", text);
    int r = mf_key_parse(secret, ret_secret);
    uint8_t coordinator[MF_KEY_SIZE];
    if (r == 0)
        r = mf_key_parse(text + MF_KEY_TEXT_MAX, coordinator);
    if (r == 0 && mf_key_is_weak(coordinator))
        r = -EINVAL;
    if (r == 0)
        memcpy(ret_coordinator, coordinator, MF_KEY_SIZE);
    return r;
}

int mf_secret_file_write(const char *path, const char *text)
{
    char temporary[PATH_MAX];
    mf_format(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid());
    (void)unlink(temporary);
    _cleanup_(mf_closep) int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int r = mf_write_all(fd, text, strlen(text));
    if (r == 0)
        return mf_replace_file(temporary, path);
    (void)unlink(temporary);
    return r;
}

int mf_secret_file_read(const char *path, char *text, size_t cap)
{
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    if (fd < 0)
        return -errno;
    for (;;) {
        ssize_t n = read(fd, text + len, cap - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
        if (len == cap)
            return -EFBIG;
    }
    while (len > 0 && isspace((unsigned char)text[len - 1]))
        len--;
    text[len] = 0;
    return 0;
}
