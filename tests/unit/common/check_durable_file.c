/* common/base/durable_file.c: the order of the system calls, and the files that remain after a failed call.
 */
#include "common/base/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"

/* Recorded system calls, one letter each: 's' is fsync of a file, 'r' is rename, 'f' is fsync of a folder. If
 * `fails` is not NULL, calls with the letter fails[0] fail with the error fails_with. */
static char recorded[16];
static const char *fails;
static int fails_with;

static int record_call(char letter)
{
    size_t n = strlen(recorded);
    ck_assert_uint_lt(n + 1, sizeof(recorded));
    recorded[n] = letter;
    if (!fails || fails[0] != letter)
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
    return record_call(S_ISDIR(st.st_mode) ? 'f' : 's') < 0 ? -1 : __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return record_call('r') < 0 ? -1 : __real_rename(from, to);
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
    const char *recorded, *contents;
} cases[] = {
    {NULL, 0,      0,       "srf", "new"},
    {"s",  EIO,    -EIO,    "s",   "old"}, /* a file with unsynced contents never gets the final name */
    {"r",  EROFS,  -EROFS,  "sr",  "old"},
    {"f",  EIO,    -EIO,    "srf", "new"},
    {"f",  EINVAL, 0,       "srf", "new"}, /* the file system cannot sync folders */
};
/* clang-format on */

MF_TEST(replace_file, .rows = MF_ARRAY_LEN(cases))
{
    char next[64], path[64];
    mf_format(next, sizeof(next), "%s/next", folder);
    mf_format(path, sizeof(path), "%s/file", folder);
    write_file(path, "old");
    write_file(next, "new");
    fails = cases[_i].fails;
    fails_with = cases[_i].with;
    ck_assert_int_eq(mf_replace_file(next, path), cases[_i].result);
    ck_assert_str_eq(recorded, cases[_i].recorded);
    assert_file(path, cases[_i].contents);
    ck_assert_int_eq(access(next, F_OK), -1);
}

MF_TEST(replace_with_missing_source)
{
    ck_assert_int_eq(mf_replace_file("/proc/none", "/proc/other"), -ENOENT);
    ck_assert_str_eq(recorded, "");
}

/* ---- targets ---- */

static const char *at(const char *name)
{
    static char paths[4][64];
    static unsigned next;
    char *p = paths[next++ % 4];
    mf_format(p, sizeof(paths[0]), "%s/%s", folder, name);
    return p;
}

static void make_file(const char *path)
{
    write_file(path, "old");
}

static void make_fifo(const char *path)
{
    ck_assert_int_eq(mkfifo(path, 0600), 0);
}

static void make_folder(const char *path)
{
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

/* clang-format off */
static const struct {
    void (*make)(const char *path);   /* creates "file"; NULL: "file" does not exist */
    /* link: targets of the symbolic links "link" and "other"; argument: path that the test passes to
     * mf_target_find */
    const char *link[2], *argument;
    int result;
    const char *file;
    bool is_stream;
} targets[] = {
    {make_file,   {NULL},            "file",     0,        "file",   false},
    {NULL,        {NULL},            "file",     0,        "file",   false},
    {make_file,   {"file"},          "link",     0,        "file",   false},
    {make_file,   {"other", "file"}, "link",     0,        "file",   false},
    /* a dangling link: writing will create the target of the link */
    {NULL,        {"other", "file"}, "link",     0,        "file",   false},
    {NULL,        {"./no/file"},     "link",     0,        "./no/file", false},
    {make_fifo,   {NULL},            "file",     0,        "file",   true},
    {make_fifo,   {"file"},          "link",     0,        "link",   true},
    {make_folder, {NULL},            "file",     -EISDIR,  NULL,     false},
    {make_folder, {"file"},          "link",     -EISDIR,  NULL,     false},
    {NULL,        {NULL},            "none/",    -EISDIR,  NULL,     false},
    {NULL,        {"other", "link"}, "link",     -ELOOP,   NULL,     false},
    {make_file,   {NULL},            "file/in",  -ENOTDIR, NULL,     false},
};
/* clang-format on */

MF_TEST(target, .rows = MF_ARRAY_LEN(targets))
{
    static const char *const names[] = {"link", "other", "file"};
    struct mf_target t;
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++)
        (void)remove(at(names[i]));
    if (targets[_i].make)
        targets[_i].make(at("file"));
    for (size_t i = 0; i < 2 && targets[_i].link[i]; i++)
        ck_assert_int_eq(symlink(targets[_i].link[i], at(names[i])), 0);
    ck_assert_int_eq(mf_target_find(at(targets[_i].argument), &t), targets[_i].result);
    if (targets[_i].result < 0)
        return;
    ck_assert_str_eq(t.file, at(targets[_i].file));
    ck_assert_int_eq(t.is_stream, targets[_i].is_stream);
    ck_assert(!t.is_open);
    ck_assert_int_lt(t.descriptor, 0);
}

/* A stream that is deleted after mf_target_find is not recreated, because a regular file would replace the
 * device. */
MF_TEST(deleted_stream_is_not_recreated)
{
    struct mf_target t;
    make_fifo(at("deleted"));
    ck_assert_int_eq(mf_target_find(at("deleted"), &t), 0);
    ck_assert_int_eq(unlink(at("deleted")), 0);
    ck_assert_int_eq(mf_stream_write(&t, "new", 3), -ENOENT);
    ck_assert_int_eq(access(at("deleted"), F_OK), -1);
}

static const char *const descriptors[] = {"/dev/fd", "/proc/self/fd", "/proc/thread-self/fd",
                                          "/proc/self/task/../fd"};

/* The data is written through the open descriptor. Data that other holders of the descriptor write before or
 * afterwards is kept. This holds even if the file is unlinked meanwhile. */
MF_TEST(open_descriptor, .rows = MF_ARRAY_LEN(descriptors))
{
    struct mf_target t;
    char path[64];
    const char *file = at("file"), *link = at("link");
    (void)remove(file);
    (void)remove(link);
    write_file(file, "old");
    _cleanup_(mf_closep) int fd = open(file, O_RDWR | O_APPEND | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    mf_format(path, sizeof(path), "%s/%d", descriptors[_i], fd);
    ck_assert_int_eq(symlink(path, link), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mf_target_find(i == 0 ? path : link, &t), 0);
        ck_assert(t.is_stream);
        ck_assert(t.is_open);
        ck_assert_int_eq(t.descriptor, fd);
        ck_assert_int_eq(mf_stream_write(&t, "new", 3), 0);
        if (i == 0)
            ck_assert_int_eq(unlink(file), 0);
    }
    ck_assert_int_eq(write(fd, "end", 3), 3);
    char found[16] = "";
    ck_assert_int_eq(pread(fd, found, sizeof(found) - 1, 0), 12);
    ck_assert_str_eq(found, "oldnewnewend");
    ck_assert_int_eq(access(file, F_OK), -1);
}

/* Writing to a read-only descriptor fails with -EBADF. A closed descriptor is not a stream. A pipe is opened
 * again by its path. */
MF_TEST(descriptors_not_open_for_writing)
{
    struct mf_target t;
    char path[64];
    int ends[2];
    (void)remove(at("file"));
    write_file(at("file"), "old");
    int fd = open(at("file"), O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    mf_format(path, sizeof(path), "/dev/fd/%d", fd);
    ck_assert_int_eq(mf_target_find(path, &t), 0);
    ck_assert_int_eq(mf_stream_write(&t, "new", 3), -EBADF);
    assert_file(at("file"), "old");
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(mf_target_find(path, &t), 0);
    ck_assert(!t.is_stream);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    mf_format(path, sizeof(path), "/dev/fd/%d", ends[1]);
    ck_assert_int_eq(mf_target_find(path, &t), 0);
    ck_assert(t.is_stream);
    ck_assert_int_lt(t.descriptor, 0);
    ck_assert_str_eq(t.file, path);
    ck_assert_int_eq(mf_stream_write(&t, "new", 3), 0);
}

/* Starts a process that inherits the open descriptors and does nothing. */
static pid_t start_holder(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

static void end_holder(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static void proc_fd_path(pid_t pid, bool by_thread, int fd, char ret[64])
{
    if (by_thread)
        mf_format(ret, 64, "/proc/%d/task/%d/fd/%d", (int)pid, (int)pid, fd);
    else
        mf_format(ret, 64, "/proc/%d/fd/%d", (int)pid, fd);
}

/* If the target is a descriptor of another process, the file is truncated and then written, as with the
 * shell's ">". This holds even after the file was unlinked. */
MF_TEST(descriptor_of_other_process, .rows = 2)
{
    struct mf_target t;
    char path[64], found[32] = "";
    const char *file = at("file"), *link = at("link"), *deleted = at("file (deleted)");
    (void)remove(file);
    (void)remove(link);
    write_file(file, "older, and longer");
    int fd = open(file, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    pid_t holder = start_holder();
    proc_fd_path(holder, _i > 0, fd, path);
    ck_assert_int_eq(symlink(path, link), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mf_target_find(i == 0 ? path : link, &t), 0);
        ck_assert_str_eq(t.file, path);
        ck_assert(t.is_stream);
        ck_assert(t.is_open);
        ck_assert_int_lt(t.descriptor, 0);
        ck_assert_int_eq(mf_stream_write(&t, i == 0 ? "first" : "new", i == 0 ? 5 : 3), 0);
        ck_assert_int_eq(pread(fd, found, sizeof(found) - 1, 0), i == 0 ? 5 : 3);
        if (i == 0)
            ck_assert_int_eq(unlink(file), 0);
    }
    ck_assert_int_eq(strncmp(found, "new", 3), 0);
    ck_assert_int_eq(access(file, F_OK), -1);
    ck_assert_int_eq(access(deleted, F_OK), -1);
    end_holder(holder);
    (void)close(fd);
}

/* Data for a pipe of another process is written to the pipe. A descriptor number that is not open in that
 * process is not a stream. */
MF_TEST(pipe_of_other_process)
{
    struct mf_target t;
    char path[64], found[8] = "";
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t holder = start_holder();
    proc_fd_path(holder, false, ends[1], path);
    ck_assert_int_eq(mf_target_find(path, &t), 0);
    ck_assert(t.is_stream);
    ck_assert_int_eq(mf_stream_write(&t, "new", 3), 0);
    ck_assert_int_eq(read(ends[0], found, sizeof(found) - 1), 3);
    ck_assert_str_eq(found, "new");
    proc_fd_path(holder, false, ends[1] + 1000, path);
    ck_assert_int_eq(mf_target_find(path, &t), 0);
    ck_assert(!t.is_stream && !t.is_open);
    end_holder(holder);
}

int main(void)
{
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    int failed = mf_check_main(NULL);
    (void)remove_tree(folder);
    return failed;
}
