/* What comes onto the disk, in which order, and what is left when a part of it fails. */
#include "common/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "mf_check.h"
#include "remove_tree.h"

/* What was done to the disk, a letter each: s a file synced, r renamed, f a folder synced. One of them fails. */
static char done[16];
static const char *fails;
static int fails_with;

static int note(char what)
{
    size_t n = strlen(done);
    ck_assert_uint_lt(n + 1, sizeof(done));
    done[n] = what;
    if (!fails || fails[0] != what)
        return 0;
    errno = fails_with;
    return -1;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    return note(S_ISDIR(st.st_mode) ? 'f' : 's') < 0 ? -1 : __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return note('r') < 0 ? -1 : __real_rename(from, to);
}

static char folder[] = "/tmp/check_durable.XXXXXX";

static void write_file(const char *path, const char *text)
{
    _cleanup_(mf_closep) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(mf_write_all(fd, text, strlen(text)), 0);
}

static void assert_file(const char *path, const char *text)
{
    char found[16] = "";
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(read(fd, found, sizeof(found) - 1), 0);
    ck_assert_str_eq(found, text);
}

/* clang-format off */
static const struct {
    const char *fails;
    int with, result;
    const char *done, *left;
} cases[] = {
    {NULL, 0,      0,       "srf", "new"},
    {"s",  EIO,    -EIO,    "s",   "old"}, /* nothing that is not on the disk gets the name */
    {"r",  EROFS,  -EROFS,  "sr",  "old"},
    {"f",  EIO,    -EIO,    "srf", "new"},
    {"f",  EINVAL, 0,       "srf", "new"}, /* a file system that has no sync of folders */
};
/* clang-format on */

START_TEST(put_in_place)
{
    char next[64], path[64];
    mf_say(next, sizeof(next), "%s/next", folder);
    mf_say(path, sizeof(path), "%s/file", folder);
    write_file(path, "old");
    write_file(next, "new");
    fails = cases[_i].fails;
    fails_with = cases[_i].with;
    ck_assert_int_eq(mf_put_in_place(next, path), cases[_i].result);
    ck_assert_str_eq(done, cases[_i].done);
    assert_file(path, cases[_i].left);
    ck_assert_int_eq(access(next, F_OK), -1);
}
END_TEST

START_TEST(nothing_to_put)
{
    ck_assert_int_eq(mf_put_in_place("/proc/none", "/proc/other"), -ENOENT);
    ck_assert_str_eq(done, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("durable");
    TCase *tc = tcase_create("durable");
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    tcase_add_loop_test(tc, put_in_place, 0, MF_ARRAY_LEN(cases));
    tcase_add_test(tc, nothing_to_put);
    suite_add_tcase(suite, tc);
    int failed = mf_check_main(suite);
    (void)remove_tree(folder);
    return failed;
}
