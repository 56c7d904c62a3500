/* worker/agent/spool.c: appended records survive crashes and damage to the file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/farm/die_at.h"
#include "support/mf_check.h"
#include "support/no_memory.h"
#include "worker/agent/spool.h"

#define CHILD_MS 100 /* lifetime of a killed worker's child, shorter than the spool's wait for its lock */

static char folder[64], path[96];

/* Fake clock: it advances only while the spool sleeps. */
static int64_t slept_ns;
/* A pipe. The child of a killed worker lives until the write end is closed. */
static int write_end = -1, read_end = -1;

int __wrap_clock_gettime(clockid_t id, struct timespec *ret);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
    (void)id;
    *ret = (struct timespec){.tv_sec = 1 + slept_ns / 1000000000, .tv_nsec = slept_ns % 1000000000};
    return 0;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    slept_ns += (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
    if (write_end >= 0 && slept_ns >= CHILD_MS * INT64_C(1000000)) {
        (void)close(write_end);
        write_end = -1;
        ck_assert_int_gt(wait(NULL), 0);
    }
    return 0;
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_spool.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/w.spool", folder);
}

static void teardown(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

static struct mf_spool *open_spool(uint64_t *torn)
{
    struct mf_spool *s = NULL;
    ck_assert_int_eq(mf_spool_open(folder, "w", &s, torn), 0);
    return s;
}

static void append(struct mf_spool *s, int64_t unit, int64_t seq, size_t padding)
{
    struct mf_spool_key key = {unit, 1, seq};
    _cleanup_(mf_freep) char *body = calloc(1, padding + 128);
    int n =
        snprintf(body, 128, "{\"unit\":%ld,\"attempt\":1,\"seq\":%ld,\"reason\":\"", (long)unit, (long)seq);
    memset(body + n, 'x', padding);
    memcpy(body + n + padding, "\"}", 3);
    ck_assert_int_eq(mf_spool_append(s, &key, body, strlen(body)), 0);
}

static void expect_next(struct mf_spool *s, int64_t unit, int64_t seq)
{
    struct mf_spool_key key;
    const char *body;
    size_t len;
    ck_assert(mf_spool_next(s, &key, &body, &len));
    ck_assert_int_eq(key.unit, unit);
    ck_assert_int_eq(key.seq, seq);
    ck_assert_uint_eq(strlen(body), len);
    mf_spool_sent(s);
}

static void expect_no_next(struct mf_spool *s)
{
    struct mf_spool_key key;
    const char *body;
    size_t len;
    ck_assert(!mf_spool_next(s, &key, &body, &len));
}

static off_t file_size(void)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

MF_TEST(order_and_resend)
{
    struct mf_spool *s = open_spool(NULL);
    for (int i = 1; i <= 300; i++)
        append(s, 7, i, 10);
    for (int i = 1; i <= 300; i++)
        expect_next(s, 7, i);
    expect_no_next(s);
    /* Every second record is acknowledged, out of order. The other records are resent in order. */
    for (int i = 2; i <= 300; i += 2)
        ck_assert_int_eq(mf_spool_acknowledge(s, &(struct mf_spool_key){7, 1, i}), 0);
    mf_spool_resend(s);
    for (int i = 1; i <= 300; i += 2)
        expect_next(s, 7, i);
    expect_no_next(s);
    append(s, 8, 1, 0);
    expect_next(s, 8, 1);
    ck_assert_uint_eq(mf_spool_n(s), 151);
    mf_spool_close(s);
}

MF_TEST(survives_a_restart)
{
    struct mf_spool *s = open_spool(NULL);
    append(s, 1, 1, 100);
    append(s, 1, 2, 0);
    ck_assert_int_eq(mf_spool_sync(s), 0);
    ck_assert(mf_spool_sync_due_ms(s) == INT64_MAX);
    mf_spool_close(s);
    uint64_t torn = 99;
    s = open_spool(&torn);
    ck_assert_uint_eq(torn, 0);
    expect_next(s, 1, 1);
    expect_next(s, 1, 2);
    expect_no_next(s);
    mf_spool_close(s);
}

/* If memory runs out while a spool is opened, the file is not treated as torn, and the next open finds all
 * records. */
MF_TEST(survives_out_of_memory)
{
    struct mf_spool *s = open_spool(NULL);
    for (int i = 1; i <= 3; i++)
        append(s, 1, i, 50);
    ck_assert_int_eq(mf_spool_sync(s), 0);
    mf_spool_close(s);
    off_t size = file_size();
    int r = -ENOMEM, n = 0;
    for (; r < 0; n++) {
        fail_allocation(n);
        r = mf_spool_open(folder, "w", &s, NULL);
        restore_allocation();
        ck_assert(r == 0 || r == -ENOMEM);
        ck_assert_int_eq(file_size(), size);
    }
    ck_assert_int_gt(n, 12); /* allocations for a record's JSON values and their names */
    for (int i = 1; i <= 3; i++)
        expect_next(s, 1, i);
    mf_spool_close(s);
}

static void append_two(struct mf_spool *s)
{
    append(s, 3, 1, 1000);
    append(s, 3, 2, 1000);
}

static void append_and_fork(struct mf_spool *s)
{
    char none;
    append(s, 3, 1, 1000);
    (void)close(write_end);
    if (fork() == 0)
        _exit((int)read(read_end, &none, 1));
}

/* Opens the spool in a child process, which calls work() and is killed. */
static void work_and_die(void (*work)(struct mf_spool *s))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct mf_spool *s = NULL;
        if (mf_spool_open(folder, "w", &s, NULL) < 0)
            _exit(1);
        work(s);
        (void)kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

MF_TEST(survives_kill_9)
{
    work_and_die(append_two);
    struct mf_spool *s = open_spool(NULL);
    expect_next(s, 3, 1);
    expect_next(s, 3, 2);
    expect_no_next(s);
    mf_spool_close(s);
}

/* A worker is killed while it starts a runner. The forked child of the worker holds the locks until the child
 * calls exec. */
MF_TEST(waits_for_lock_of_orphan)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* orphans become children of this process */
    read_end = ends[0];
    write_end = ends[1];
    work_and_die(append_and_fork);
    struct mf_spool *s = open_spool(NULL);
    ck_assert_int_lt(write_end, 0);
    expect_next(s, 3, 1);
    mf_spool_close(s);
    (void)close(read_end);
}

MF_TEST(emptied_when_all_are_acknowledged)
{
    struct mf_spool *s = open_spool(NULL);
    append(s, 1, 1, 50);
    append(s, 1, 2, 50);
    ck_assert_int_gt(file_size(), 100);
    ck_assert_int_eq(mf_spool_acknowledge(s, &(struct mf_spool_key){1, 1, 2}), 0);
    ck_assert_int_eq(mf_spool_acknowledge(s, &(struct mf_spool_key){9, 9, 9}), 0);
    ck_assert_int_gt(file_size(), 100);
    ck_assert_int_eq(mf_spool_acknowledge(s, &(struct mf_spool_key){1, 1, 1}), 0);
    ck_assert_int_eq(file_size(), 0);
    ck_assert(mf_spool_sync_due_ms(s) == INT64_MAX);
    append(s, 2, 1, 0);
    expect_next(s, 2, 1);
    mf_spool_close(s);
}

/* One result that is never acknowledged must not let the file grow without bound. */
MF_TEST(rewritten_when_mostly_acknowledged)
{
    struct mf_spool *s = open_spool(NULL);
    append(s, 1, 1, 10);
    for (int i = 2; i <= 200; i++) {
        append(s, 1, i, 64 << 10);
        ck_assert_int_eq(mf_spool_acknowledge(s, &(struct mf_spool_key){1, 1, i}), 0);
    }
    ck_assert_int_lt(file_size(), MF_SPOOL_REWRITE_MIN + (128 << 10));
    append(s, 2, 1, 0);
    struct mf_spool *other = NULL;
    ck_assert_int_eq(mf_spool_open(folder, "w", &other, NULL), -EBUSY);
    mf_spool_close(s);
    s = open_spool(NULL);
    expect_next(s, 1, 1);
    expect_next(s, 2, 1);
    expect_no_next(s);
    mf_spool_close(s);
}

/* The process is killed before or after the rename of the rewritten file. In both cases the file has all
 * unacknowledged records. */
MF_TEST(survives_kill_during_rewrite, .rows = 2)
{
    enum mf_fault place = _i ? MF_FAULT_SPOOL_RENAMED : MF_FAULT_SPOOL_WRITTEN;
    if (die_at(place)) {
        struct mf_spool *s = open_spool(NULL);
        append(s, 1, 1, 10);
        append(s, 1, 2, 10);
        for (int i = 3; i <= 200; i++) {
            append(s, 1, i, 64 << 10);
            (void)mf_spool_acknowledge(s, &(struct mf_spool_key){1, 1, i});
        }
        _exit(1);
    }
    char left[128];
    struct mf_spool_key key = {0};
    const char *body;
    size_t len;
    struct mf_spool *s = open_spool(NULL);
    expect_next(s, 1, 1);
    expect_next(s, 1, 2);
    /* The acknowledgement that triggered the rewrite may be missing */
    while (mf_spool_next(s, &key, &body, &len))
        mf_spool_sent(s);
    ck_assert_uint_le(mf_spool_n(s), 3);
    append(s, 2, 1, 0);
    mf_spool_close(s);
    s = open_spool(NULL);
    ck_assert_uint_ge(mf_spool_n(s), 3);
    mf_spool_close(s);
    (void)snprintf(left, sizeof(left), "%s.new", path);
    (void)unlink(left);
}

MF_TEST(one_process_at_a_time)
{
    struct mf_spool *s = open_spool(NULL), *other = NULL;
    ck_assert_int_eq(mf_spool_open(folder, "w", &other, NULL), -EBUSY);
    mf_spool_close(s);
    s = open_spool(NULL);
    mf_spool_close(s);
}

/* Damage to a file of three records of equal length, and the records left. */
enum damage { CUT, FLIP, FLIP_LENGTH, NOT_JSON, GARBAGE };
static const struct damage_case {
    enum damage how;
    int at; /* CUT: bytes kept of the third record; others: the damaged record */
    const char *left;
} damage_cases[] = {
    {CUT, 0, "12"},         {CUT, 1, "12"},      {CUT, 11, "12"},
    {CUT, 12, "12"},        {CUT, 40, "12"}, /* torn in the header, at the header's end, in the body */
    {FLIP, 0, "23"},                         /* one bit in the middle of the record */
    {FLIP, 1, "13"},        {FLIP, 2, "12"},     {FLIP_LENGTH, 0, "23"},
    {FLIP_LENGTH, 2, "12"}, {NOT_JSON, 1, "13"}, /* with a valid checksum */
    {GARBAGE, 0, "123"},                         /* bytes after the last record */
};

static void damage_record(int fd, const struct damage_case *c, off_t one)
{
    static const char text[] = "{\"unit\":5}";
    off_t at = c->at * one + (c->how == FLIP_LENGTH ? 5 : one / 2);
    char byte;
    if (c->how == NOT_JSON) {
        char header[MF_RECORD_HEADER];
        _cleanup_(mf_freep) char *payload = calloc(1, (size_t)one);
        memcpy(payload, text, sizeof(text));
        ck_assert_int_eq(
            mf_record_write(fd, "MFR1", payload, (size_t)one - sizeof(header), (uint64_t)(c->at * one)), 0);
        return;
    }
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
}

MF_TEST(damaged, .rows = MF_ARRAY_LEN(damage_cases))
{
    const struct damage_case *c = &damage_cases[_i];
    struct mf_spool *s = open_spool(NULL);
    for (int i = 1; i <= 3; i++)
        append(s, 5, i, 40);
    mf_spool_close(s);
    off_t size = file_size(), one = size / 3;
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    if (c->how == CUT) {
        ck_assert_int_eq(ftruncate(fd, 2 * one + c->at), 0);
    } else if (c->how != GARBAGE) {
        damage_record(fd, c, one);
    } else {
        ck_assert_int_eq(pwrite(fd, "MFR1\xff\xff\xff\x7f!!!!", 12, size), 12);
    }
    (void)close(fd);
    uint64_t torn = 0;
    s = open_spool(&torn);
    for (const char *left = c->left; *left; left++)
        expect_next(s, 5, *left - '0');
    expect_no_next(s);
    ck_assert(torn > 0 || (c->how == CUT && c->at == 0));
    /* New records are appended after the valid ones. */
    append(s, 6, 1, 0);
    mf_spool_close(s);
    s = open_spool(&torn);
    ck_assert_uint_eq(torn, 0);
    ck_assert_uint_eq(mf_spool_n(s), strlen(c->left) + 1);
    mf_spool_close(s);
}

/* Neither the spool nor its replacement may be a link to another file, or another kind of file. */
MF_TEST(follows_no_links, .rows = 3)
{
    char target[96], other[104];
    struct mf_spool *s = NULL;
    (void)snprintf(target, sizeof(target), "%s/target", folder);
    (void)snprintf(other, sizeof(other), "%s.new", path);
    int fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "kept", 4), 4);
    (void)close(fd);
    if (_i == 0) {
        ck_assert_int_eq(symlink(target, path), 0);
        ck_assert_int_eq(mf_spool_open(folder, "w", &s, NULL), -ELOOP);
    } else if (_i == 1) {
        ck_assert_int_eq(mkfifo(path, 0600), 0);
        ck_assert_int_eq(mf_spool_open(folder, "w", &s, NULL), -EINVAL);
    } else {
        ck_assert_int_eq(symlink(target, other), 0);
        s = open_spool(NULL);
        for (int i = 1; i <= 6; i++)
            append(s, 5, i, MF_SPOOL_REWRITE_MIN / 4);
        for (int i = 1; i <= 5; i++)
            ck_assert_int_eq(mf_spool_acknowledge(s, &(struct mf_spool_key){5, 1, i}), 0);
        mf_spool_close(s);
    }
    struct stat status;
    ck_assert_int_eq(stat(target, &status), 0);
    ck_assert_int_eq(status.st_size, 4);
    (void)unlink(target);
    (void)unlink(other);
}

/* The checksum is CRC-32 as in zip and Ethernet, here compared with a computation bit by bit. Every release
 * must read the files of every other release. */
MF_TEST(checksums_are_crc32)
{
    static const char body[] = "{\"unit\":7,\"attempt\":1,\"seq\":1,\"text\":\"123456789 \xc3\xa4\"}";
    struct mf_spool *s = open_spool(NULL);
    ck_assert_int_eq(mf_spool_append(s, &(struct mf_spool_key){7, 1, 1}, body, strlen(body)), 0);
    uint8_t header[MF_RECORD_HEADER];
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(pread(fd, header, sizeof(header), 0), sizeof(header));
    (void)close(fd);
    uint32_t sum = 0xffffffffu;
    for (size_t i = 0; i < strlen(body); i++) {
        sum ^= (uint8_t)body[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum & 1 ? sum >> 1 ^ 0xedb88320u : sum >> 1;
    }
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(header[8 + i], (uint8_t)(~sum >> (8 * i)));
    mf_spool_close(s);
}

MF_TEST(size_limits)
{
    struct mf_spool *s = open_spool(NULL);
    struct mf_spool_key key = {1, 1, 1};
    _cleanup_(mf_freep) char *big = calloc(1, MF_SPOOL_RECORD_MAX + 1);
    memset(big, 'x', MF_SPOOL_RECORD_MAX);
    ck_assert_int_eq(mf_spool_append(s, &key, big, MF_SPOOL_RECORD_MAX + 1), -EFBIG);
    int n = 0;
    while (mf_spool_append(s, &key, big, MF_SPOOL_RECORD_MAX) == 0)
        n++;
    ck_assert_int_eq(n, MF_SPOOL_BYTES_MAX / MF_SPOOL_RECORD_MAX);
    mf_spool_close(s);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = setup, .teardown = teardown});
}
