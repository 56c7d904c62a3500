/* Tests libraries that are loaded at run time. */
#include "common/base/shared_library.h"

#include <string.h>

#include "support/mf_check.h"

#define CALLS(X) X(str, len) X(str, cmp)
struct calls {
    CALLS(MF_FUNCTION_POINTER)
};

static const struct {
    const char *file, *function;
    int error;
} libraries[] = {
    {"libz.so.1", "crc32", 0},
    {"libz.so.1", "malloc", 0}, /* of a library that libz needs */
    {"libz.so.1", "no_such_function", -ENOENT},
    {"libmoefarm_missing.so.1", "crc32", -ENOENT},
    {"/no/such/folder/libz.so.1", "crc32", -ENOENT},
};

MF_TEST(loads_functions, .rows = MF_ARRAY_LEN(libraries))
{
    const char *const functions[] = {libraries[_i].function, libraries[_i].function};
    int any;
    void *const before[2] = {&any, NULL};
    void *calls[2] = {before[0], before[1]};
    ck_assert_int_eq(mf_shared_library_load(libraries[_i].file, functions, 2, calls), libraries[_i].error);
    if (libraries[_i].error < 0)
        ck_assert_mem_eq(calls, before, sizeof(calls));
    else
        ck_assert(calls[0] && calls[0] == calls[1]);
}

/* The macros make members with the types of the functions, in the order of their names. */
MF_TEST(calls_functions)
{
    static const char *const functions[] = {CALLS(MF_FUNCTION_NAME)};
    struct calls calls = {0};
    ck_assert_int_eq(mf_shared_library_load("libc.so.6", functions, MF_ARRAY_LEN(functions), &calls), 0);
    ck_assert_uint_eq(calls.len("four"), 4);
    ck_assert_int_eq(calls.cmp("a", "a"), 0);
}

int main(void)
{
    return mf_check_main(NULL);
}
