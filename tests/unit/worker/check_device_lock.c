#include "worker/agent/device_lock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"

static char folder[64];

/* Makes a folder with the permissions of /run/lock: every user may create files and may remove only their own
 * files. */
static void make_folder(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/moefarm-lock.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chmod(folder, 01777), 0);
}

static void remove_folder(void)
{
    (void)remove_tree(folder);
}

/* Takes the lock as `user` in a child process that then exits. Returns 0 or the error of mf_device_lock. */
static int lock_as(uid_t user, pid_t *ret_pid)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        char why[256] = "";
        int fd, r = setgid(user) < 0 || setuid(user) < 0 ? -EPERM : 0;
        (void)umask(077);
        if (r == 0)
            r = mf_device_lock(folder, "cpu:0", "", why, sizeof(why), &fd);
        if (r < 0)
            (void)fprintf(stderr, "user %d: %s\n", (int)user, why);
        _exit(-r);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    *ret_pid = pid;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EFAULT;
}

static long pid_in_file(void)
{
    char path[128];
    long pid = 0;
    (void)snprintf(path, sizeof(path), "%s/moefarm-cpu-0.lock", folder);
    _cleanup_(mf_fclosep) FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%ld", &pid), 1);
    return pid;
}

static const struct mf_test_group optional_tests = {
    .setup = make_folder, .teardown = remove_folder, .optional = true};

/* Several users, root among them, lock the device one after the other; only one user holds the lock at a
 * time. */
MF_TEST(users_lock_in_sequence, .group = &optional_tests)
{
    static const uid_t users[] = {65533, 65534, 0, 65533};
    char why[256] = "", expected[64];
    pid_t pid;
    int fd;
    if (getuid() != 0) {
        mf_check_skip("only root can change its user");
        return;
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(users); i++) {
        ck_assert_int_eq(lock_as(users[i], &pid), 0);
        ck_assert_int_eq(pid_in_file(), pid);
    }
    ck_assert_int_eq(mf_device_lock(folder, "cpu:0", "", why, sizeof(why), &fd), 0);
    ck_assert_int_eq(lock_as(65534, &pid), -EBUSY);
    int other;
    ck_assert_int_eq(mf_device_lock(folder, "cpu:0", "", why, sizeof(why), &other), -EBUSY);
    (void)snprintf(expected, sizeof(expected), "in use by the worker with pid %ld", (long)getpid());
    ck_assert_msg(strstr(why, expected) != NULL, "%s", why);
    (void)close(fd);
}

MF_TEST(symlink_is_rejected)
{
    char path[128], why[256] = "";
    int fd;
    (void)snprintf(path, sizeof(path), "%s/moefarm-cpu-0.lock", folder);
    ck_assert_int_eq(symlink("elsewhere", path), 0);
    ck_assert_int_eq(mf_device_lock(folder, "cpu:0", "", why, sizeof(why), &fd), -ELOOP);
    ck_assert_ptr_nonnull(strstr(why, "choose another folder with --lock-dir"));
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = make_folder, .teardown = remove_folder});
}
