/* Tests which operations the sandbox refuses or allows: in a process of the test, and through a farm whose
 * runner loads a family that attempts forbidden operations. The test also makes each attempt without the
 * sandbox, to show that the sandbox is the reason of the refusal. */
#include "worker/sandbox/sandbox.h"
#include "worker/sandbox/scratch_folder.h"

#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/farm_harness.h"
#include "support/kernels/sandbox_attempts.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "worker/sandbox/supervisor.h"

/* base: folder of a test group, created and removed by the parent process, which does not enter a sandbox.
 * folder: folder of one test. Its other members are the targets of the attempts. */
static char base[40], folder[64], scratch[80];

static void make_base(void)
{
    mf_format(base, sizeof(base), "/tmp/check_sandbox.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
}

static void remove_base(void)
{
    ck_assert_int_eq(remove_tree(base), 0);
}

/* Starts a process that attempts may try to change. It has no capabilities, like the worker of a user. */
static pid_t start_victim(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0}};
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)syscall(SYS_capset, &header, none);
        (void)close(ready[1]);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 0);
    (void)close(ready[0]);
    return pid;
}

static void bind_datagram_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    mf_format(address.sun_path, sizeof(address.sun_path), "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

static void make_folder(void)
{
    mf_format(folder, sizeof(folder), "%s/XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    mf_format(scratch, sizeof(scratch), "%s/scratch", folder);
    ck_assert_int_eq(mf_scratch_make(scratch), 0);
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", folder, 1), 0);
    char file[96];
    mf_format(file, sizeof(file), "%s/outside.%s", base, strrchr(folder, '/') + 1);
    ck_assert_int_eq(setenv(PRYING_FILE, file, 1), 0);
    pid_t victim = start_victim(); /* before open: a lease needs a file that no other process has open */
    _cleanup_(mf_closep) int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    mf_format(file, sizeof(file), "%s/socket", folder);
    bind_datagram_socket(file);
    ck_assert_int_eq(setenv(PRYING_SOCKET, file, 1), 0);
    mf_format(file, sizeof(file), "%d", (int)victim);
    ck_assert_int_eq(setenv(PRYING_PID, file, 1), 0);
}

static bool is_refusal(int error)
{
    return error == EACCES || error == EPERM;
}

static bool is_refused_by(enum sandbox_part part, bool namespace, int error)
{
    return is_refusal(error) || (part == BY_PIDS && namespace && error == ESRCH);
}

/* Adds an attempt with a wrong outcome to a list for the message of the test. */
static void add_wrong(char wrong[1024], const struct sandbox_attempt *p, int error)
{
    size_t n = strlen(wrong);
    mf_format(wrong + n, 1024 - n, "%s%s: %s", n ? ", " : "", p->name, strerror(error));
}

/* clang-format off */
static const struct kind {
    const char *device;
    bool python;
} kinds[] = {
    {"cpu:0",              false},
    {"sim:gfx942/304:0",   false},
    {"hip:nvidia:0",       false},
    {"hip:amd:0",          false},
    {"cpu:0",              true},
};
/* clang-format on */

static void enter(const struct kind *k)
{
    static const char *const prefixes[] = {"/usr"};
    char text[MF_SANDBOX_TEXT_MAX], why[256] = "";
    const struct mf_sandbox s = {
        .device = k->device, .scratch = scratch, .prefixes = prefixes, .n_prefixes = k->python ? 1 : 0};
    ck_assert_msg(mf_sandbox_enter(&s, text, why, sizeof(why)) == 0, "%s", why);
    ck_assert_ptr_nonnull(strstr(text, "landlock"));
    ck_assert_ptr_nonnull(strstr(text, "seccomp"));
    ck_assert_int_eq(mf_sandbox_pids(&s), 0);
}

static bool has_landlock(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, 1) >= 1;
}

MF_TEST(refuses_attempts, .rows = MF_ARRAY_LEN(kinds))
{
    const struct kind *k = &kinds[_i];
    int before[N_ATTEMPTS];
    char wrong[1024] = "";
    for (size_t i = 0; i < N_ATTEMPTS; i++)
        before[i] = strcmp(attempts[i].name, "ptrace") == 0 ? 0 : attempts[i].try();
    enter(k);
    for (size_t i = 0; i < N_ATTEMPTS; i++) {
        const struct sandbox_attempt *p = &attempts[i];
        int error = p->try();
        /* Runners on GPUs may start programs. Only Landlock restricts which programs, so this is not enforced
         * without Landlock. Runners in Python may start a shell, which has the same limits. */
        bool is_shell = strcmp(p->name, "shell") == 0;
        bool files = p->part == BY_FILES || (is_shell && strncmp(k->device, "hip", 3) == 0);
        if ((files && !has_landlock()) || (is_shell && k->python))
            continue;
        if (!is_refusal(error))
            add_wrong(wrong, p, error);
    }
    ck_assert_msg(!wrong[0], "%s", wrong);
    /* Without the sandbox root may perform the operations. */
    if (geteuid() == 0) {
        for (size_t i = 0; i < N_ATTEMPTS; i++)
            ck_assert_msg(before[i] == 0 ||
                              strstr("connect mount priorities ptrace io_uring fchmodat2 vm_read",
                                     attempts[i].name) != NULL,
                          "%s without the sandbox: %s", attempts[i].name, strerror(before[i]));
        ck_assert(k->python || attempt_shell() != 0);
    }
}

static void *count(void *n)
{
    ++*(int *)n;
    return NULL;
}

/* The sandbox allows the operations that measuring needs. */
MF_TEST(allows_measuring, .rows = MF_ARRAY_LEN(kinds))
{
    const struct kind *k = &kinds[_i];
    pthread_t thread;
    char path[96], byte;
    int n = 0, pair[2], status;
    enter(k);
    ck_assert_int_eq(pthread_create(&thread, NULL, count, &n), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ck_assert_int_eq(send(pair[0], "x", 1, MSG_NOSIGNAL), 1);
    ck_assert_int_eq(recv(pair[1], &byte, 1, 0), 1);
    int memory = memfd_create("weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(memory, 0);
    ck_assert_int_eq(ftruncate(memory, 4096), 0);
    /* a process may open its own memory by this path */
    mf_format(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), memory);
    int again = open(path, O_RDWR);
    ck_assert_msg(again >= 0, "%s", strerror(errno));
    ck_assert_ptr_ne(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
    ck_assert_ptr_ne(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), MAP_FAILED);
    static const char *const readable[] = {"/proc/cpuinfo", "/proc/self/status", "/usr/bin/env",
                                           "/etc/ld.so.cache"};
    for (size_t i = 0; i < MF_ARRAY_LEN(readable); i++) {
        int fd = open(readable[i], O_RDONLY);
        ck_assert_msg(fd >= 0, "%s: %s", readable[i], strerror(errno));
        (void)close(fd);
    }
    int null = open("/dev/null", O_RDWR);
    ck_assert_int_ge(null, 0);
    /* TMPDIR names the scratch folder of the runner */
    ck_assert_str_eq(getenv("TMPDIR"), scratch);
    mf_format(path, sizeof(path), "%s/file", scratch);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert_msg(fd >= 0, "%s", strerror(errno));
    ck_assert_int_eq(unlink(path), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(3);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 3);
}

/* A GPU runner may start moefarm-compile but no other program. It may write to the code cache. */
MF_TEST(allows_gpu_compilation)
{
    int status = 0;
    char path[96];
    enter(&kinds[2]);
    pid_t child = fork();
    if (child == 0) {
        (void)execl(MF_BINARY_DIR "/kernels/moefarm-compile", "moefarm-compile", (char *)NULL);
        _exit(100 + (errno == EACCES));
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_lt(WEXITSTATUS(status), 100);
    mf_format(path, sizeof(path), "%s/code", folder);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert_msg(fd >= 0, "%s", strerror(errno));
}

MF_TEST(empties_scratch)
{
    char path[160], link[160];
    mf_format(path, sizeof(path), "%s/a", scratch);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    mf_format(path, sizeof(path), "%s/a/kept", folder);
    mf_format(path, sizeof(path), "%s/kept", folder);
    ck_assert_int_ge(open(path, O_WRONLY | O_CREAT, 0600), 0);
    mf_format(link, sizeof(link), "%s/a/link", scratch);
    ck_assert_int_eq(symlink(folder, link), 0);
    ck_assert_int_eq(mf_scratch_make(scratch), 0);
    ck_assert_int_eq(access(link, F_OK), -1);
    ck_assert_int_eq(access(path, F_OK), 0); /* the target of the symbolic link still exists */
    ck_assert_int_eq(rmdir(scratch), 0);
    /* the scratch folder itself may not be a link */
    ck_assert_int_eq(symlink(folder, scratch), 0);
    ck_assert_int_eq(mf_scratch_make(scratch), -ENOTDIR);
}

/* Creates nested folders whose path is longer than PATH_MAX. */
static void make_deep_tree(const char *top)
{
    char name[200];
    memset(name, 'd', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    int at = open(top, O_RDONLY | O_DIRECTORY);
    for (int depth = 0; depth < 3 * PATH_MAX / (int)sizeof(name); depth++) {
        ck_assert_int_eq(mkdirat(at, name, 0700), 0);
        int next = openat(at, name, O_RDONLY | O_DIRECTORY);
        ck_assert_int_ge(next, 0);
        (void)close(at);
        at = next;
    }
    ck_assert_int_ge(openat(at, "file", O_WRONLY | O_CREAT, 0400), 0);
    (void)close(at);
}

/* Creates a folder that its owner may not read, with a folder in it that its owner may not write. */
static void make_locked_tree(const char *top)
{
    int at = open(top, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(mkdirat(at, "locked", 0700), 0);
    ck_assert_int_eq(mkdirat(at, "locked/child", 0700), 0);
    ck_assert_int_ge(openat(at, "locked/child/file", O_WRONLY | O_CREAT, 0400), 0);
    ck_assert_int_eq(fchmodat(at, "locked/child", 0500, 0), 0);
    ck_assert_int_eq(fchmodat(at, "locked", 0300, 0), 0);
    ck_assert_int_eq(fchmodat(at, ".", 0, 0), 0);
    (void)close(at);
}

static void (*const trees[])(const char *top) = {make_deep_tree, make_locked_tree};

/* A runner cannot keep its worker from starting again. As root, permissions do not matter, so another user
 * makes and deletes the tree. */
MF_TEST(empties_any_scratch, .rows = MF_ARRAY_LEN(trees))
{
    char top[] = "/tmp/check_sandbox.XXXXXX";
    if (geteuid() == 0)
        ck_assert_int_eq(setresuid(65534, 65534, 65534), 0);
    ck_assert_ptr_nonnull(mkdtemp(top));
    trees[_i](top);
    ck_assert_int_eq(mf_scratch_make(top), 0);
    ck_assert_int_eq(rmdir(top), 0);
}

/* Makes one system call fail, as on a kernel that lacks it. */
static void disable_call(uint32_t call, uint32_t argument, bool any, int error)
{
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | (any ? BPF_JGE : BPF_JEQ) | BPF_K, argument, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = MF_ARRAY_LEN(code),
                                       .filter = (struct sock_filter *)(uintptr_t)code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* The description of the sandbox names missing kernel features. The other restrictions are still enforced. */
MF_TEST(reports_missing_features, .rows = 2)
{
    char text[MF_SANDBOX_TEXT_MAX], why[256] = "", wrong[1024] = "";
    const struct mf_sandbox s = {.device = "cpu:0", .scratch = scratch};
    bool landlock = _i == 0;
    if (landlock)
        disable_call(SYS_landlock_create_ruleset, 0, true, ENOSYS);
    else
        disable_call(SYS_prctl, PR_SET_SECCOMP, false, EINVAL);
    ck_assert_msg(mf_sandbox_enter(&s, text, why, sizeof(why)) == 0, "%s", why);
    ck_assert_int_eq(mf_sandbox_pids(&s), 0);
    ck_assert_msg(strstr(text, landlock ? "no landlock" : "no seccomp") != NULL, "%s", text);
    ck_assert_msg(strstr(text, landlock ? ", seccomp" : "landlock") != NULL, "%s", text);
    if (landlock)
        ck_assert(is_refusal(attempt_tcp()) && is_refusal(attempt_shell()) && is_refusal(attempt_cut()) &&
                  is_refusal(attempt_truncate()) && attempt_write() == 0);
    else if (has_landlock())
        ck_assert(is_refusal(attempt_write()) && is_refusal(attempt_shell()));
    /* Landlock would refuse these attempts */
    for (size_t i = 0; landlock && i < N_ATTEMPTS; i++) {
        if (attempts[i].part == BY_PIDS && !is_refusal(attempts[i].try()))
            add_wrong(wrong, &attempts[i], 0);
    }
    ck_assert_msg(!wrong[0], "%s", wrong);
    ck_assert(kill(getpid(), 0) == 0 && kill(0, 0) == 0 && raise(SIGCONT) == 0);
    ck_assert_int_eq(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
}

/* ---- farm ---- */

static struct farm farm;

static void stop_farm(void)
{
    farm_stop(&farm);
}

/* Returns the errno of the named attempt. The family reports it as the reason of a rejection. */
static int reported_result(const cJSON *list, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
        if (strcmp(farm_text(item, "kernel"), name) == 0)
            return (int)strtol(strchr(farm_text(item, "reason"), ':') + 1, NULL, 10);
    }
    ck_abort_msg("no rejection for %s", name);
    return 0;
}

static const struct mf_test_group farm_tests = {.timeout_s = 120,
                                                .setup = make_folder,
                                                .teardown = stop_farm,
                                                .setup_all = make_base,
                                                .teardown_all = remove_base};

/* clang-format off */
static const struct {
    const char *option, *text; /* option of the worker, and part of the text that describes the sandbox */
} limits[] = {
    {NULL,                 "pid namespace, "},
    {"--no-pid-namespace", "no pid namespace, "},
    {"--no-sandbox",       "none: --no-sandbox"},
};
/* clang-format on */

static bool has_namespace(void)
{
    char why[128];
    return mf_isolation_probe(false, why, sizeof(why)) != MF_ISOLATION_NONE;
}

MF_TEST(sandboxes_a_family, .rows = MF_ARRAY_LEN(limits), .group = &farm_tests)
{
    bool sandboxed = _i < 2, namespace = _i == 0 && has_namespace();
    char wrong[1024] = "";
    farm_start(&farm, 1000);
    const char *const args[] = {"--device",        "cpu:0",       "--families",
                                "move,one,prying", "--family-so", MF_BINARY_DIR "/tests/prying.so",
                                limits[_i].option, NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    (void)farm_run(&farm, FARM_CSV_HEAD FARM_CSV_SMALL, "");
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/tasks/1/rejections?limit=1000");
    for (size_t i = 0; i < N_ATTEMPTS; i++) {
        int error = reported_result(list, attempts[i].name);
        if (sandboxed && (attempts[i].part != BY_FILES || has_landlock()) &&
            !is_refused_by(attempts[i].part, namespace, error))
            add_wrong(wrong, &attempts[i], error);
    }
    ck_assert_msg(!wrong[0], "%s", wrong);
    if (!sandboxed) {
        ck_assert_int_eq(reported_result(list, "tcp"), 0);
        ck_assert_int_eq(reported_result(list, "write"), 0);
        ck_assert_int_eq(reported_result(list, "shell"), 0);
        ck_assert_int_eq(reported_result(list, "prlimit"), 0);
    }
    /* The farm completes the task, and the worker reports its sandbox. */
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    ck_assert_str_eq(farm_text(task, "state"), "done");
    _cleanup_(cJSON_Deletep) cJSON *workers = farm_get(&farm, "/api/v1/workers");
    const char *text = farm_text(cJSON_GetArrayItem(mf_json_array(workers, "items"), 0), "sandbox");
    if (_i != 0 || namespace)
        ck_assert_msg(strncmp(text, limits[_i].text, strlen(limits[_i].text)) == 0, "%s", text);
    ck_assert_msg(!sandboxed || strstr(text, "seccomp") != NULL, "%s", text);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.setup = make_folder, .setup_all = make_base, .teardown_all = remove_base});
}
