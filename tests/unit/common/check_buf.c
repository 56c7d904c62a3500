#include "common/base/buf.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

/* The linker redirects realloc to the wrapper. If fail_at is N > 0, the N-th call from now on fails; if it is
 * 0, no call fails. */
static int fail_at;
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void *__wrap_realloc(void *memory, size_t size)
{
    if (fail_at > 0 && --fail_at == 0)
        return NULL;
    return __real_realloc(memory, size);
}

#define WHOLE "head 42 tail\n"

/* Appends the text WHOLE with the three append functions, without checking the result of each call. */
static void append_chain(struct mf_buf *b)
{
    (void)mf_buf_adds(b, "head ");
    (void)mf_buf_addf(b, "%d %s", 42, "tail");
    (void)mf_buf_add(b, "\n", 1);
}

MF_TEST(empty_buffer_is_a_c_string)
{
    struct mf_buf b;
    mf_buf_init(&b, 10);
    ck_assert_str_eq(b.data, "");
    mf_buf_consume(&b, 5);
    mf_buf_clear(&b);
    ck_assert_str_eq(b.data, "");
    ck_assert_int_eq(mf_buf_add(&b, "", 0), 0);
    char *text = mf_buf_take(&b);
    ck_assert_pstr_eq(text, "");
    free(text);
    mf_buf_release(&b);
    mf_buf_release(&b);
}

/* Appends WHOLE under every limit below its length. The first append that exceeds the limit fails and leaves
 * the contents unchanged. All later appends fail too, even if their text would fit. */
MF_TEST(limit_is_exact_and_error_is_sticky, .rows = sizeof(WHOLE) + 2)
{
    size_t max = (size_t)_i;
    struct mf_buf b;
    mf_buf_init(&b, max);
    append_chain(&b);
    bool fits = max >= strlen(WHOLE);
    ck_assert_int_eq(mf_buf_error(&b), fits ? 0 : -EFBIG);
    ck_assert_uint_le(b.len, max);
    ck_assert_uint_eq(strlen(b.data), b.len);
    ck_assert_int_eq(strncmp(b.data, WHOLE, b.len), 0);
    if (!fits) {
        size_t len = b.len;
        ck_assert_int_eq(mf_buf_add(&b, "", 0), -EFBIG);
        ck_assert_int_eq(mf_buf_adds(&b, ""), -EFBIG);
        ck_assert_int_eq(mf_buf_addf(&b, "%s", ""), -EFBIG);
        ck_assert_uint_eq(b.len, len);
        ck_assert_ptr_null(mf_buf_take(&b));
    }

    /* after clearing, the buffer is usable again and has the same limit */
    mf_buf_clear(&b);
    ck_assert_int_eq(mf_buf_error(&b), 0);
    char full[sizeof(WHOLE)] = "";
    memset(full, 'x', MF_MIN(max, sizeof(full)));
    if (max <= sizeof(full)) {
        ck_assert_int_eq(mf_buf_add(&b, full, max), 0);
        ck_assert_int_eq(mf_buf_add(&b, "y", 1), -EFBIG);
    }
    mf_buf_release(&b);
}

MF_TEST(nth_allocation_failure_is_sticky, .rows = 9)
{
    struct mf_buf b;
    mf_buf_init(&b, 1 << 20);
    int failures = 0;
    fail_at = _i;
    for (int i = 0; i < 2000; i++)
        failures += mf_buf_addf(&b, "%04d", i) < 0;
    bool failed = fail_at == 0 && _i > 0;
    fail_at = 0;
    /* the capacity starts at 128 bytes and doubles, so 8000 bytes need seven allocations */
    ck_assert(failed == (_i >= 1 && _i <= 7));
    ck_assert_int_eq(mf_buf_error(&b), failed ? -ENOMEM : 0);
    ck_assert_uint_eq(b.len / 4 + (size_t)failures, 2000);
    ck_assert_uint_eq(strlen(b.data), b.len);
    char *text = mf_buf_take(&b);
    ck_assert((text == NULL) == failed);
    free(text);
    mf_buf_release(&b);
}

MF_TEST(grows_through_every_size)
{
    struct mf_buf b;
    mf_buf_init(&b, 100000);
    for (int i = 0; i < 20000; i++)
        ck_assert_int_eq(mf_buf_addf(&b, "%05d", i), 0);
    ck_assert_uint_eq(b.len, 100000);
    ck_assert_int_eq(memcmp(b.data + 5 * 12345, "12345", 5), 0);
    ck_assert_uint_le(b.cap, 100001);
    ck_assert_int_eq(mf_buf_adds(&b, "x"), -EFBIG);
    mf_buf_release(&b);
}

MF_TEST(accepts_nul_bytes)
{
    struct mf_buf b;
    mf_buf_init(&b, 64);
    ck_assert_int_eq(mf_buf_add(&b, "a\0b", 3), 0);
    ck_assert_int_eq(mf_buf_addf(&b, "%c%c", 0, 'c'), 0);
    ck_assert_uint_eq(b.len, 5);
    ck_assert_mem_eq(b.data, "a\0b\0c", 6);
    mf_buf_release(&b);
}

static const char *const remaining[] = {"abcdef", "bcdef", "cdef", "def", "ef", "f", "", "", ""};

MF_TEST(consume_keeps_the_rest, .rows = MF_ARRAY_LEN(remaining))
{
    struct mf_buf b;
    mf_buf_init(&b, 64);
    (void)mf_buf_adds(&b, "abcdef");
    mf_buf_consume(&b, (size_t)_i);
    ck_assert_str_eq(b.data, remaining[_i]);
    ck_assert_uint_eq(b.len, strlen(remaining[_i]));
    ck_assert_int_eq(mf_buf_adds(&b, "!"), 0);
    ck_assert_int_eq(b.data[b.len - 1], '!');
    mf_buf_release(&b);
}

MF_TEST(take_transfers_ownership)
{
    struct mf_buf b;
    mf_buf_init(&b, 64);
    append_chain(&b);
    char *text = mf_buf_take(&b);
    ck_assert_pstr_eq(text, WHOLE);
    ck_assert_str_eq(b.data, "");
    ck_assert_int_eq(mf_buf_adds(&b, "again"), 0);
    ck_assert_str_eq(b.data, "again");
    ck_assert_str_eq(text, WHOLE);
    free(text);
    mf_buf_release(&b);
}

MF_TEST(unlimited_buffer)
{
    struct mf_buf b;
    mf_buf_init(&b, SIZE_MAX);
    ck_assert_int_eq(mf_buf_adds(&b, "x"), 0);
    volatile size_t endless = SIZE_MAX - 2; /* with the terminator added, the length is SIZE_MAX */
    fail_at = 1;
    ck_assert_int_eq(mf_buf_add(&b, "y", endless), -ENOMEM);
    ck_assert_int_eq(fail_at, 0);
    ck_assert_str_eq(b.data, "x");
    mf_buf_release(&b);
}

int main(void)
{
    return mf_check_main(NULL);
}
