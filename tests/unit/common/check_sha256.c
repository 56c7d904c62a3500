/* common/base/sha256.c: the examples of FIPS 180-2 and the empty text. The expected digests have the format
 * of sha256sum. */
#include "common/base/sha256.h"

#include <stdlib.h>
#include <string.h>

#include "support/mf_check.h"

static const struct {
    const char *text, *hash;
} examples[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

MF_TEST(fips_examples, .rows = MF_ARRAY_LEN(examples))
{
    char hash[MF_SHA256_TEXT_MAX];
    mf_sha256_print(examples[_i].text, strlen(examples[_i].text), hash);
    ck_assert_str_eq(hash, examples[_i].hash);
}

MF_TEST(million_bytes)
{
    char hash[MF_SHA256_TEXT_MAX], *text = malloc(1000000);
    ck_assert_ptr_nonnull(text);
    memset(text, 'a', 1000000);
    mf_sha256_print(text, 1000000, hash);
    ck_assert_str_eq(hash, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(text);
}

int main(void)
{
    return mf_check_main(NULL);
}
