#include "common/base/secret.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static const uint8_t key_bytes[MF_KEY_SIZE] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                               11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                               22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

MF_TEST(key_text)
{
    char text[MF_KEY_TEXT_MAX];
    uint8_t back[MF_KEY_SIZE];
    mf_key_print(key_bytes, text);
    ck_assert_str_eq(text, HEX);
    ck_assert_int_eq(mf_key_parse(text, back), 0);
    ck_assert_mem_eq(back, key_bytes, MF_KEY_SIZE);
}

/* Points of low order on Curve25519, and their forms above the prime; two ordinary keys. */
static const struct {
    const char *key;
    bool weak;
} public_keys[] = {
    {"0000000000000000000000000000000000000000000000000000000000000000", true},
    {"0100000000000000000000000000000000000000000000000000000000000000", true},
    {"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800", true},
    {"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157", true},
    {"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", true},
    {"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", true},
    {"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", true},
    {"0900000000000000000000000000000000000000000000000000000000000000", false},
    {"2fe57da347cd62431528daac5fbb290730fff684afc4cfc2ed90995f58cb3b74", false},
};

MF_TEST(weak_public_keys, .rows = MF_ARRAY_LEN(public_keys))
{
    uint8_t key[MF_KEY_SIZE], secret[MF_KEY_SIZE], coordinator[MF_KEY_SIZE];
    char token[MF_TOKEN_TEXT_MAX];
    ck_assert_int_eq(mf_key_parse(public_keys[_i].key, key), 0);
    ck_assert_int_eq(mf_key_is_weak(key), public_keys[_i].weak);
    mf_enrol_token_print(key_bytes, key, token);
    ck_assert_int_eq(mf_enrol_token_parse(token, secret, coordinator), public_keys[_i].weak ? -EINVAL : 0);
}

static const char *const invalid_tokens[] = {
    "",
    "moefarm_",
    "moefarm_7",
    "moefarm_7_",
    "moefarm__" HEX,
    "moefarm_0_" HEX,
    "moefarm_-7_" HEX,
    "moefarm_7 _" HEX,
    "moefarm_99999999999999999999_" HEX,
    "moefarm_7_" HEX "0",
    "moefarm_7_" HEX " ",
    "moefarm_7_0g" HEX,
    "Moefarm_7_" HEX,
    HEX,
};

MF_TEST(access_token_text)
{
    char text[MF_TOKEN_TEXT_MAX];
    uint8_t back[MF_KEY_SIZE];
    int64_t id = 0;
    mf_access_token_print(7, key_bytes, text);
    ck_assert_str_eq(text, "moefarm_7_" HEX);
    ck_assert_int_eq(mf_access_token_parse(text, &id, back), 0);
    ck_assert_int_eq(id, 7);
    ck_assert_mem_eq(back, key_bytes, MF_KEY_SIZE);
    for (size_t i = 0; i < MF_ARRAY_LEN(invalid_tokens); i++)
        ck_assert_msg(mf_access_token_parse(invalid_tokens[i], &id, back) == -EINVAL, "'%s'",
                      invalid_tokens[i]);
}

static const char *const invalid_enrol_tokens[] = {
    "",
    "moefarm-enrol_",
    "moefarm-enrol_" HEX,
    "moefarm-enrol_" HEX "_",
    "moefarm-enrol_" HEX "-" HEX,
    "moefarm-enrol_" HEX "_" HEX "0",
    "moefarm_7_" HEX,
};

MF_TEST(enrolment_token_text)
{
    char text[MF_TOKEN_TEXT_MAX];
    uint8_t secret[MF_KEY_SIZE], coordinator[MF_KEY_SIZE], other[MF_KEY_SIZE] = {0xff};
    mf_enrol_token_print(key_bytes, other, text);
    ck_assert_int_eq(mf_enrol_token_parse(text, secret, coordinator), 0);
    ck_assert_mem_eq(secret, key_bytes, MF_KEY_SIZE);
    ck_assert_mem_eq(coordinator, other, MF_KEY_SIZE);
    for (size_t i = 0; i < MF_ARRAY_LEN(invalid_enrol_tokens); i++)
        ck_assert_msg(mf_enrol_token_parse(invalid_enrol_tokens[i], secret, coordinator) == -EINVAL, "'%s'",
                      invalid_enrol_tokens[i]);
}

/* RFC 7748, section 5.2: the result after one iteration with k = u = 9. */
MF_TEST(pair_is_x25519)
{
    static const uint8_t secret[MF_KEY_SIZE] = {9};
    uint8_t public[MF_KEY_SIZE];
    struct mf_key_pair pair, a, b;
    ck_assert_int_eq(mf_key_parse("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079", public),
                     0);
    ck_assert_int_eq(mf_key_pair_from_secret(secret, &pair), 0);
    ck_assert_mem_eq(pair.public, public, MF_KEY_SIZE);
    ck_assert_int_eq(mf_key_pair_make(&a), 0);
    ck_assert_int_eq(mf_key_pair_make(&b), 0);
    ck_assert(!mf_secret_equal(a.secret, b.secret));
    ck_assert(mf_secret_equal(a.secret, a.secret));
}

MF_TEST(only_owner_may_read_file)
{
    char folder[] = "/tmp/check_secret.XXXXXX", path[64], text[8];
    struct stat status;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    mf_format(path, sizeof(path), "%s/key", folder);
    ck_assert_int_eq(mf_secret_file_read(path, text, sizeof(text)), -ENOENT);
    ck_assert_int_eq(mf_secret_file_write(path, "one\n"), 0);
    ck_assert_int_eq(mf_secret_file_write(path, "two \n\n"), 0);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_int_eq((int)(status.st_mode & 07777), 0600);
    ck_assert_int_eq(mf_secret_file_read(path, text, sizeof(text)), 0);
    ck_assert_str_eq(text, "two");
    ck_assert_int_eq(mf_secret_file_write(path, "01234567"), 0);
    ck_assert_int_eq(mf_secret_file_read(path, text, sizeof(text)), -EFBIG);
    (void)unlink(path);
    ck_assert_int_eq(rmdir(folder), 0); /* rmdir succeeds only if no temporary file remains */
}

int main(void)
{
    return mf_check_main(NULL);
}
