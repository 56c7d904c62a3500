#include "common/table/table_file.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "support/farm/die_at.h"
#include "support/mf_check.h"
#include "support/text_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], path[128];

/* The linker redirects the system calls that write a table to the wrappers. If fail_at is N > 0, the N-th
 * call from now on fails with fail_errno; if it is 0, no call fails. One call of write() writes at most
 * max_write bytes. */
static int fail_at, fail_errno;
static size_t max_write = SIZE_MAX;

static bool should_fail(void)
{
    if (fail_at == 0 || --fail_at > 0)
        return false;
    errno = fail_errno;
    return true;
}

ssize_t __real_write(int fd, const void *data, size_t len);
ssize_t __wrap_write(int fd, const void *data, size_t len);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

ssize_t __wrap_write(int fd, const void *data, size_t len)
{
    return should_fail() ? -1 : __real_write(fd, data, MF_MIN(len, max_write));
}

int __wrap_fsync(int fd)
{
    return should_fail() ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    return should_fail() ? -1 : __real_rename(from, to);
}

static void setup(void)
{
    snprintf(folder, sizeof(folder), "/tmp/check_table_file.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/tuned_fmoe.csv", folder);
}

static void teardown(void)
{
    DIR *dir = opendir(folder);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    ck_assert_int_eq(rmdir(folder), 0);
}

/* Fills a row as moefarm writes it. It uses no assertions, because forked writers call it too. Child
 * processes share libcheck's message file, and a killed child would leave an incomplete message there. */
static int fill_row(int64_t token, double us, struct mf_table_row *ret)
{
    *ret = (struct mf_table_row){
        .class = {"gfx942", 304}, .block_m = 16, .us = us, .kernel1 = "k1", .kernel2 = "k2"};
    int r = mf_shape_parse("1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                           "torch.bfloat16,QuantType.No,1,0",
                           &ret->shape);
    ret->shape.token = token;
    ret->own[MF_OWN_PROVENANCE] = "moefarm:race";
    return r;
}
static struct mf_table_row moefarm_row(int64_t token, double us)
{
    struct mf_table_row row;
    ck_assert_int_eq(fill_row(token, us, &row), 0);
    return row;
}

static int table_of(int64_t token, int n, double us, struct mf_table **ret)
{
    int r = mf_table_new("fresh", true, ret);
    for (int i = 0; r == 0 && i < n; i++) {
        struct mf_table_row row;
        r = fill_row(token + i, us, &row);
        if (r == 0)
            r = mf_table_add(*ret, &row);
    }
    return r;
}

static int merge(int64_t token, int n, double us, int lock_ms, char why[MF_REASON_MAX])
{
    _cleanup_(mf_table_freep) struct mf_table *fresh = NULL;
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    int r = table_of(token, n, us, &fresh);
    return r < 0 ? r : mf_table_file_merge(path, lock_ms, fresh, NULL, &result, why);
}

static struct mf_table *read_back(void)
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_file_read(path, &t, why) == 0, "%s", why);
    ck_assert_uint_eq(t->n_errors, 0);
    return t;
}

/* Number of files in the folder, without the lock file. */
static int count_files(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
             strcmp(entry->d_name, "tuned_fmoe.csv.lock") != 0;
    closedir(dir);
    return n;
}

MF_TEST(test_create_and_extend)
{
    char why[MF_REASON_MAX];
    ck_assert_int_eq(merge(1, 3, 10, -1, why), 0);
    ck_assert_int_eq(merge(3, 3, 5, -1, why), 0);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 5);
    static const double us[] = {10, 10, 5, 5, 5};
    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(t->rows[i].shape.token, (int64_t)i + 1);
        ck_assert_double_eq(t->rows[i].us, us[i]);
    }
    ck_assert_int_eq(count_files(), 1);
}

/* A merge that changes no row does not write the file. */
MF_TEST(test_unchanged)
{
    char why[MF_REASON_MAX];
    struct stat before, after;
    ck_assert_int_eq(merge(1, 3, 10, -1, why), 0);
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(merge(1, 3, 20, -1, why), 0);
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert(before.st_ino == after.st_ino);
    ck_assert_int_eq(merge(1, 3, 9, -1, why), 0);
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert(before.st_ino != after.st_ino);
}

MF_TEST(test_mode_is_kept)
{
    char why[MF_REASON_MAX];
    struct stat st;
    ck_assert_int_eq(merge(1, 1, 10, -1, why), 0);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(merge(2, 1, 10, -1, why), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0640);
}

/* If the path is a link, the link is kept and its target is replaced. The lock file is next to the target. */
MF_TEST(test_link)
{
    char why[MF_REASON_MAX], target[160], lock[176];
    snprintf(target, sizeof(target), "%s/real.csv", folder);
    ck_assert_int_eq(merge(1, 1, 10, -1, why), 0);
    ck_assert_int_eq(rename(path, target), 0);
    ck_assert_int_eq(symlink("real.csv", path), 0);
    ck_assert_int_eq(merge(2, 1, 10, -1, why), 0);
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 2);
    snprintf(lock, sizeof(lock), "%s.lock", target);
    ck_assert_int_eq(stat(lock, &st), 0);
}

/* If the path is a dangling link, the target of the link is created and locked. */
MF_TEST(test_dangling_link)
{
    char why[MF_REASON_MAX], target[160];
    struct stat st;
    snprintf(target, sizeof(target), "%s/real.csv", folder);
    ck_assert_int_eq(symlink("real.csv", path), 0);
    ck_assert_int_eq(merge(1, 1, 10, -1, why), 0);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(lstat(target, &st), 0);
    ck_assert(S_ISREG(st.st_mode));
    ck_assert_int_eq(count_files(), 3);
}

/* If the path is a folder or a FIFO, it is rejected and stays unchanged, and no file is created next to it.
 */
static const struct {
    bool folder;
    int r;
    const char *reason_part;
} not_regular[] = {
    {true, -EISDIR, "is a folder; name a file in it"},
    {false, -ENOTSUP, "is a device or a FIFO"},
};

MF_TEST(test_not_regular_file, .rows = MF_ARRAY_LEN(not_regular))
{
    char why[MF_REASON_MAX] = "", lock[160];
    struct stat before, after;
    ck_assert_int_eq(not_regular[_i].folder ? mkdir(path, 0700) : mkfifo(path, 0600), 0);
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(merge(1, 1, 10, 0, why), not_regular[_i].r);
    ck_assert_msg(strstr(why, not_regular[_i].reason_part) != NULL, "%s", why);
    ck_assert_int_eq(mf_table_file_check(path, 0, why), not_regular[_i].r);
    ck_assert_int_eq(mf_table_file_check_path(path, why), not_regular[_i].r);
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert(before.st_mode == after.st_mode && before.st_ino == after.st_ino);
    snprintf(lock, sizeof(lock), "%s.lock", path);
    ck_assert_int_eq(access(lock, F_OK), -1);
    ck_assert_int_eq(remove(path), 0);
}

/* The path contains no folder. */
MF_TEST(test_relative)
{
    char why[MF_REASON_MAX];
    ck_assert_int_eq(chdir(folder), 0);
    _cleanup_(mf_table_freep) struct mf_table *fresh = NULL;
    ck_assert_int_eq(table_of(1, 2, 10, &fresh), 0);
    for (int pass = 0; pass < 2; pass++) {
        _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
        ck_assert_msg(mf_table_file_merge("tuned_fmoe.csv", -1, fresh, NULL, &result, why) == 0, "%s", why);
        ck_assert_uint_eq(result.n[pass == 0 ? MF_MERGED_ADDED : MF_MERGED_KEPT], 2);
    }
    ck_assert_int_eq(chdir("/"), 0);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 2);
}

/* Invalid files and paths cause an error with a reason, and the file stays unchanged. */
static const struct {
    const char *text; /* contents of the file; NULL: the folder of the path does not exist */
    int r;
    const char *reason_part;
} unusable[] = {
    {"a,b\n", -EBADMSG, "no column 'token'"},
    {"", -EBADMSG, "empty"},
    {NULL, -ENOENT, "No such file"},
};

MF_TEST(test_unusable, .rows = MF_ARRAY_LEN(unusable))
{
    char why[MF_REASON_MAX] = "";
    if (unusable[_i].text)
        text_file_write(path, unusable[_i].text);
    else
        snprintf(path, sizeof(path), "%s/none/tuned_fmoe.csv", folder);
    ck_assert_int_eq(merge(1, 1, 10, -1, why), unusable[_i].r);
    ck_assert_msg(strstr(why, unusable[_i].reason_part) != NULL, "%s", why);
    if (!unusable[_i].text)
        return;
    char *text = text_file_read(path);
    ck_assert_str_eq(text, unusable[_i].text);
    free(text);
}

MF_TEST(test_lock_timeout)
{
    char why[MF_REASON_MAX], lock[160];
    snprintf(lock, sizeof(lock), "%s.lock", path);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    int64_t begin = mf_now_ms();
    ck_assert_int_eq(merge(1, 1, 10, 50, why), -ETIMEDOUT);
    ck_assert_int_ge(mf_now_ms() - begin, 50);
    ck_assert_ptr_nonnull(strstr(why, "lock"));
    ck_assert_int_eq(merge(1, 1, 10, 0, why), -ETIMEDOUT);
    close(fd);
    ck_assert_int_eq(merge(1, 1, 10, 0, why), 0);
}

/* A full disk: RLIMIT_FSIZE truncates the write. The limit grows until the write succeeds. Each failed merge
 * leaves the old table and no other file. */
MF_TEST(test_short_write)
{
    char why[MF_REASON_MAX] = "";
    ck_assert_int_eq(merge(1, 2, 10, -1, why), 0);
    char *before = text_file_read(path);
    ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    struct rlimit limit, all;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &all), 0);
    limit = all;
    int r = -EFBIG, n = 0;
    for (limit.rlim_cur = 0; r < 0; limit.rlim_cur += 37, n++) {
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        r = merge(10, 2, 10, -1, why);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &all), 0);
        if (r == 0)
            break;
        ck_assert_int_eq(r, -EFBIG);
        ck_assert_msg(strstr(why, "write ") == why, "%s", why);
        char *after = text_file_read(path);
        ck_assert_str_eq(after, before);
        free(after);
        ck_assert_int_eq(count_files(), 1);
    }
    ck_assert_int_gt(n, 20);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 4);
    free(before);
}

/* Each system call that writes the table is made to fail once. If a call up to the rename fails, the old
 * table stays. If a later call fails, the new table is in place. */
MF_TEST(test_failing_calls, .rows = 3)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT};
    char why[MF_REASON_MAX] = "";
    ck_assert_int_eq(merge(1, 2, 10, -1, why), 0);
    char *before = text_file_read(path);
    int n = 1, r, in_place = 0;
    max_write = 500;
    fail_errno = errors[_i];
    for (;; n++) {
        fail_at = n;
        r = merge(10, 2, 10, -1, why);
        fail_at = 0;
        if (r == 0)
            break;
        ck_assert_int_eq(r, -errors[_i]);
        ck_assert_int_eq(count_files(), 1);
        char *after = text_file_read(path);
        if (strcmp(after, before) != 0) {
            ck_assert_ptr_nonnull(strstr(why, "in place, but cannot sync the folder"));
            in_place++;
            text_file_write(path, before);
        }
        free(after);
    }
    /* the merge makes at least two writes, two fsyncs and one rename; only the fsync of the folder comes
     * after the rename */
    ck_assert_int_ge(n, 6);
    ck_assert_int_eq(in_place, 1);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 4);
    free(before);
}

/* Interrupted and short writes are continued. */
MF_TEST(test_short_writes_continue)
{
    char why[MF_REASON_MAX];
    max_write = 3;
    fail_errno = EINTR;
    fail_at = 5;
    ck_assert_int_eq(merge(1, 2, 10, -1, why), 0);
    ck_assert_int_eq(fail_at, 0);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 2);
}

/* The temporary file of a killed writer does not disturb the next writer. */
MF_TEST(test_leftover)
{
    char why[MF_REASON_MAX], leftover[160];
    snprintf(leftover, sizeof(leftover), "%s/.tuned_fmoe.csv.next", folder);
    int fd = open(leftover, O_WRONLY | O_CREAT | O_CLOEXEC, 0400);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "half a ta", 9), 9);
    close(fd);
    ck_assert_int_eq(merge(1, 2, 10, -1, why), 0);
    ck_assert_int_eq(count_files(), 1);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, 2);
}

enum { WRITERS = 4, ROUNDS = 25 };

static void write_rounds(int writer)
{
    char why[MF_REASON_MAX];
    for (int round = 0; round < ROUNDS; round++)
        if (merge(1 + writer * ROUNDS + round, 1, 10 + writer, -1, why) < 0)
            _exit(1);
    _exit(0);
}

/* Several processes merge rows concurrently. No row is lost, and a concurrent reader always finds a complete
 * table that never shrinks. */
MF_TEST(test_concurrent)
{
    pid_t pids[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0)
            write_rounds(i);
    }
    size_t seen = 0;
    for (int running = WRITERS; running > 0;) {
        struct mf_table *t = NULL;
        char why[MF_REASON_MAX];
        int status, r = mf_table_file_read(path, &t, why);
        ck_assert(r == 0 || r == -ENOENT);
        if (t) {
            ck_assert_uint_eq(t->n_errors, 0);
            ck_assert_uint_ge(t->n_rows, seen);
            seen = t->n_rows;
        }
        mf_table_free(t);
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0; running--)
            ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, WRITERS * ROUNDS);
    for (int64_t token = 1; token <= WRITERS * ROUNDS; token++) {
        struct mf_table_row key = moefarm_row(token, 0);
        const struct mf_table_row *row = mf_table_find(t, &key.class, &key.shape);
        ck_assert_ptr_nonnull(row);
        ck_assert_double_eq(row->us, 10 + (double)((token - 1) / ROUNDS));
    }
}

/* Writers are killed at random times. The table is always complete and contains every row whose merge
 * returned. */
MF_TEST(test_killed)
{
    char why[MF_REASON_MAX];
    unsigned seed = 20261120;
    printf("table_file killed: seed %u\n", seed);
    int64_t token = 1;
    for (int round = 0; round < 20; round++) {
        int fds[2];
        ck_assert_int_eq(pipe(fds), 0);
        pid_t pid = fork();
        if (pid == 0) {
            for (char c = 0;; token++)
                if (merge(token, 1, 10, -1, why) < 0 || write(fds[1], &c, 1) != 1)
                    _exit(1);
        }
        ck_assert_int_gt(pid, 0);
        close(fds[1]);
        /* wait for some rows, then kill the writer at a random point */
        char c;
        int64_t written = 0;
        for (int i = 1 + rand_r(&seed) % 4; i > 0; i--, written++)
            ck_assert_int_eq(read(fds[0], &c, 1), 1);
        for (int spin = rand_r(&seed) % 200000; spin > 0; spin--)
            __asm__ volatile("");
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        while (read(fds[0], &c, 1) == 1)
            written++;
        close(fds[0]);
        token += written;
        _cleanup_(mf_table_freep) struct mf_table *t = read_back();
        ck_assert_int_ge((int64_t)t->n_rows, token - 1);
        /* one more row may be in the table although its merge did not return */
        ck_assert_int_le((int64_t)t->n_rows, token);
        token = (int64_t)t->n_rows + 1;
    }
}

static const struct {
    enum mf_fault place;
    size_t n_rows; /* number of rows after the writer was killed while it added a second row */
} places[] = {{MF_FAULT_TABLE_WRITTEN, 1}, {MF_FAULT_TABLE_RENAMED, 2}};

/* A writer is killed right before or right after the rename. The table is complete and is either the old or
 * the new one. The next writer succeeds. */
MF_TEST(test_killed_at, .rows = MF_ARRAY_LEN(places))
{
    char why[MF_REASON_MAX];
    ck_assert_int_eq(merge(1, 1, 10, -1, why), 0);
    if (die_at(places[_i].place)) {
        (void)merge(2, 1, 10, -1, why);
        _exit(1);
    }
    {
        _cleanup_(mf_table_freep) struct mf_table *t = read_back();
        ck_assert_uint_eq(t->n_rows, places[_i].n_rows);
    }
    ck_assert_msg(merge(3, 1, 10, 0, why) == 0, "%s", why);
    _cleanup_(mf_table_freep) struct mf_table *t = read_back();
    ck_assert_uint_eq(t->n_rows, places[_i].n_rows + 1);
}

/* Allows the replacement only if the file has the contents `data`. If data is NULL, the file must not exist.
 */
static int may_replace(const char *text, size_t len, void *data, char why[MF_REASON_MAX])
{
    const char *expected = data;
    if (expected ? text && strlen(expected) == len && memcmp(text, expected, len) == 0 : !text)
        return 0;
    mf_format(why, MF_REASON_MAX, "unexpected contents");
    return -EAGAIN;
}

MF_TEST(test_replace_checks_contents)
{
    char why[MF_REASON_MAX], one[] = "a,b\n1,2\n", two[] = "a,b\n3,4\n";
    struct mf_buf text;
    mf_buf_init(&text, 4096);
    ck_assert_int_eq(mf_table_file_replace(path, -1, one, strlen(one), may_replace, two, why), -EAGAIN);
    ck_assert_int_eq(mf_table_file_text(path, &text, why), -ENOENT);
    ck_assert_int_eq(mf_table_file_replace(path, -1, one, strlen(one), may_replace, NULL, why), 0);
    ck_assert_int_eq(mf_table_file_replace(path, -1, two, strlen(two), may_replace, two, why), -EAGAIN);
    ck_assert_str_eq(why, "unexpected contents");
    fail_at = 1;
    fail_errno = ENOSPC;
    ck_assert_int_eq(mf_table_file_replace(path, -1, two, strlen(two), may_replace, one, why), -ENOSPC);
    ck_assert_int_eq(mf_table_file_text(path, &text, why), 0);
    ck_assert_str_eq(text.data, one);
    ck_assert_int_eq(mf_table_file_replace(path, -1, two, strlen(two), may_replace, one, why), 0);
    mf_buf_clear(&text);
    ck_assert_int_eq(mf_table_file_text(path, &text, why), 0);
    ck_assert_str_eq(text.data, two);
    mf_buf_release(&text);
}

/* If the path is a FIFO, the data is written to the FIFO. The test opens the reading end first, so that the
 * writer does not block. */
MF_TEST(test_replace_fifo)
{
    char why[MF_REASON_MAX], one[] = "a,b\n1,2\n", found[16] = "", lock[160];
    struct stat st;
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(mf_table_file_replace(path, -1, one, strlen(one), may_replace, one, why), -EAGAIN);
    ck_assert_int_eq(mf_table_file_replace(path, -1, one, strlen(one), may_replace, NULL, why), 0);
    ck_assert_int_eq(read(fd, found, sizeof(found)), (ssize_t)strlen(one));
    ck_assert_str_eq(found, one);
    close(fd);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISFIFO(st.st_mode));
    snprintf(lock, sizeof(lock), "%s.lock", path);
    ck_assert_int_eq(access(lock, F_OK), -1);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = setup, .teardown = teardown});
}
