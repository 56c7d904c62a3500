/* Tests code objects: their paths in the cache, the processes that compile them, and every failure of these
 * processes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/gpu/host/device_data.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/text_file.h"

static char folder[] = "/tmp/check_code.XXXXXX";

static struct mf_code quant(int columns)
{
    struct mf_code c = {.source = "quant.hip", .function = "mf_quant"};

    mf_code_define(&c, "MF_COLS=%d", columns);
    mf_code_define(&c, "MF_BLOCKS=4");
    mf_code_define(&c, "MF_ELEMENT=0");
    mf_code_define(&c, "MF_GROUP=128");
    mf_code_define(&c, "MF_THREADS=256");
    return c;
}

/* The path depends on everything that affects the code, and on nothing else. */
MF_TEST(test_place)
{
    const struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a", .version = "one 1.0"};
    struct mf_compiler other = compiler;
    struct mf_code code = quant(2048);
    char first[PATH_MAX], path[PATH_MAX];

    ck_assert_int_eq(mf_code_path(&compiler, &code, first), 0);
    ck_assert_int_eq(strncmp(first, folder, strlen(folder)), 0);
    ck_assert_int_eq(mf_code_path(&compiler, &code, path), 0);
    ck_assert_str_eq(path, first);
    mf_format(other.version, sizeof(other.version), "one 1.1");
    ck_assert_int_eq(mf_code_path(&other, &code, path), 0);
    ck_assert_str_ne(path, first);
    other = compiler;
    mf_format(other.arch, sizeof(other.arch), "sm_80");
    ck_assert_int_eq(mf_code_path(&other, &code, path), 0);
    ck_assert_str_ne(path, first);
    code = quant(2064);
    ck_assert_int_eq(mf_code_path(&compiler, &code, path), 0);
    ck_assert_str_ne(path, first);
}

MF_TEST(test_architectures)
{
    static const char *const cases[][2] = {{"sm_90", "sm_90a"}, {"sm_80", "sm_80"}, {"gfx942", "gfx942"}};
    struct mf_compiler c;

    for (size_t i = 0; i < MF_ARRAY_LEN(cases); i++) {
        mf_code_arch(&c, cases[i][0]);
        ck_assert_str_eq(c.arch, cases[i][1]);
    }
}

MF_TEST(test_sources)
{
    ck_assert_ptr_null(mf_code_source("none.hip"));
    for (size_t i = 0; mf_code_source_name(i); i++)
        ck_assert_uint_gt(strlen(mf_code_source(mf_code_source_name(i))), 100);
    ck_assert_ptr_nonnull(mf_code_source("tile.hip"));
}

static void write_text(const char *name, const char *text)
{
    char path[PATH_MAX];

    mf_format(path, sizeof(path), "%s/%s", folder, name);
    text_file_write(path, text);
}

/* Computes the digest (64 hexadecimal digits) of a build with these sources. */
static void digest_of(const char *names, char ret[65])
{
    char out[PATH_MAX], out_option[PATH_MAX + 16], files_option[64], line[256];
    const char *const cmake[] = {"cmake",    "-E",         "chdir", folder,          "cmake",
                                 out_option, files_option, "-P",    MF_CODE_SOURCES, NULL};
    const char *const none[] = {NULL};

    mf_format(out, sizeof(out), "%s/sources.c", folder);
    mf_format(out_option, sizeof(out_option), "-DOUT=%s", out);
    mf_format(files_option, sizeof(files_option), "-DFILES=%s", names);
    struct ran r = run_program(cmake, none);
    ck_assert_msg(r.code == 0, "%s", r.text);
    FILE *f = fopen(out, "re");
    ck_assert_ptr_nonnull(f);
    *ret = '\0';
    while (fgets(line, sizeof(line), f))
        (void)sscanf(line, "const char mf_code_sources_digest[] = \"%64[0-9a-f]\";", ret);
    (void)fclose(f);
    ck_assert_uint_eq(strlen(ret), 64);
}

/* The name and text of every source contribute to the digest, because any source may include any other. */
MF_TEST(test_digest)
{
    char first[65], other[65];

    write_text("a.hip", "one");
    write_text("b.hip", "two");
    write_text("c.hip", "two");
    digest_of("a.hip;b.hip", first);
    digest_of("a.hip;b.hip", other);
    ck_assert_str_eq(first, other);
    digest_of("a.hip;c.hip", other);
    ck_assert_str_ne(first, other);
    write_text("b.hip", "twO");
    digest_of("a.hip;b.hip", other);
    ck_assert_str_ne(first, other);
    ck_assert_uint_eq(strlen(mf_code_sources_digest), 64);
}

/* Returns true if the vendor's run-time compiler is installed; otherwise skips the test with a message. */
static bool has_compiler(struct mf_compiler *c)
{
    char why[MF_CODE_WHY_MAX];

    if (mf_code_version(c->vendor, c->version, why, sizeof(why)) == 0)
        return true;
    mf_check_skip("no compiler for %s: %s", c->arch, why);
    return false;
}

static const struct mf_test_group optional_tests = {.timeout_s = 100, .optional = true};

MF_TEST(test_compiles, .group = &optional_tests)
{
    struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a"};
    struct mf_code codes[3] = {quant(2048), quant(2048), quant(4096)};
    char paths[3][PATH_MAX], whys[3][MF_CODE_WHY_MAX];
    struct stat before, after;

    if (!has_compiler(&compiler))
        return;
    mf_code_define(&codes[1], "MF_THREADS=none");
    ck_assert_int_eq(mf_code_make(&compiler, codes, 3, 2, paths, whys), 2);
    ck_assert_msg(!*whys[0] && !*whys[2], "%s %s", whys[0], whys[2]);
    ck_assert_str_eq(paths[1], "");
    ck_assert_ptr_nonnull(strstr(whys[1], "quant.hip"));
    ck_assert_int_eq(stat(paths[0], &before), 0);
    ck_assert_int_gt(before.st_size, 1000);
    ck_assert_int_eq(mf_code_make(&compiler, codes, 1, 1, paths, whys),
                     1); /* the second call compiles nothing */
    ck_assert_int_eq(stat(paths[0], &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
}

/* The kernels that create the data and references of a shape are enumerated without a device, and compile. */
MF_TEST(test_data_kernels_compile, .group = &optional_tests)
{
    struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a"};
    const struct mf_device_info device = {.class = {.gfx = "sm_90", .cu_num = 132}},
                                none = {.class = {.gfx = "cpu"}};
    struct mf_code codes[MF_DEVICE_DATA_CODES];
    char paths[MF_DEVICE_DATA_CODES][PATH_MAX], whys[MF_DEVICE_DATA_CODES][MF_CODE_WHY_MAX];
    struct mf_shape shape;

    ck_assert_int_eq(
        mf_shape_parse("1,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch."
                       "float8_e4m3fn,QuantType.per_1x128,1,0",
                       &shape),
        0);
    ck_assert_uint_eq(mf_device_data_codes(&none, &shape, codes), 0);
    ck_assert_uint_eq(mf_device_data_codes(&device, &shape, codes),
                      MF_DEVICE_DATA_CODES - 1); /* x and the weights share one format */
    shape.q_dtype_a = MF_DTYPE_BF16;
    shape.q_dtype_w = MF_DTYPE_FP4X2;
    shape.q_type = MF_QTYPE_PER_1X16;
    ck_assert_uint_eq(mf_device_data_codes(&device, &shape, codes), MF_DEVICE_DATA_CODES);
    if (!has_compiler(&compiler))
        return;
    ck_assert_int_eq(mf_code_make(&compiler, codes, MF_DEVICE_DATA_CODES, 2, paths, whys),
                     MF_DEVICE_DATA_CODES);
}

/* An architecture that the compiler does not know must give an error message or crash the compiler process,
 * but never this process. */
MF_TEST(test_failure_messages, .group = &optional_tests)
{
    static const char *const vendors[][2] = {
        {"nvidia", "sm_1"}, {"amd", "gfx942"}, {"amd", "gfx1"}, {"clang", "gfx1"}};

    for (size_t i = 0; i < MF_ARRAY_LEN(vendors); i++) {
        struct mf_compiler compiler = {.vendor = vendors[i][0]};
        struct mf_code code = quant(2048);
        char path[1][PATH_MAX], why[1][MF_CODE_WHY_MAX];

        mf_format(compiler.arch, sizeof(compiler.arch), "%s", vendors[i][1]);
        if (!has_compiler(&compiler))
            continue;
        if (mf_code_make(&compiler, &code, 1, 1, path, why) == 1) /* a newer compiler may support gfx942 */
            continue;
        ck_assert_str_eq(path[0], "");
        ck_assert_msg(*why[0], "no message for %s", compiler.arch);
    }
}

/* Without a home directory the cache is in /tmp, where another user may already have created the folder. */
MF_TEST(test_cache_of_other_user, .group = &optional_tests)
{
    const struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a", .version = "one 1.0"};
    const uid_t user = 54321;
    struct mf_code code = quant(2048);
    char path[PATH_MAX], paths[1][PATH_MAX], whys[1][MF_CODE_WHY_MAX], own[64];

    if (geteuid() != 0) {
        mf_check_skip("only root can change its user");
        return;
    }
    (void)unsetenv("MOEFARM_CODE_CACHE");
    (void)unsetenv("XDG_CACHE_HOME");
    (void)unsetenv("HOME");
    mf_format(own, sizeof(own), "/tmp/moefarm-code-%u", (unsigned)user);
    ck_assert(mkdir(own, 0777) == 0 || errno == EEXIST);
    ck_assert_int_eq(seteuid(user), 0);
    ck_assert_int_eq(mf_code_path(&compiler, &code, path), -EPERM);
    ck_assert_int_eq(mf_code_make(&compiler, &code, 1, 1, paths, whys), 0);
    ck_assert_ptr_nonnull(strstr(whys[0], "the code cache"));
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chown(own, user, user), 0);
    ck_assert_int_eq(seteuid(user), 0);
    ck_assert_int_eq(mf_code_path(&compiler, &code, path), 0);
    ck_assert_int_eq(rmdir(own), 0);
    /* Root again, because a leak checker inspects the process at exit. */
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0);
}

/* Code that could not be stored in the cache is read from the fallback folder. mf_code_fallback_path returns
 * true only if the file exists there. */
MF_TEST(test_fallback_folder)
{
    const struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a", .version = "one 1.0"};
    struct mf_code code = quant(1024);
    char spare[64], path[PATH_MAX], there[PATH_MAX], paths[1][PATH_MAX];

    ck_assert_int_eq(mf_code_path(&compiler, &code, path), 0);
    ck_assert(!mf_code_fallback_path(path, there));
    mf_format(spare, sizeof(spare), "%s/spare", folder);
    ck_assert_int_eq(mkdir(spare, 0700), 0);
    ck_assert_int_eq(setenv(MF_CODE_FALLBACK_ENV, spare, 1), 0);
    ck_assert(mf_code_fallback_path(path, there));
    text_file_write(there, "");
    ck_assert_int_eq(mf_code_make(&compiler, &code, 1, 1, paths, NULL), 1);
    ck_assert_str_eq(paths[0], there);
}

MF_TEST(test_cache_writable)
{
    ck_assert_int_eq(mf_code_check_writable(folder), 0);
    ck_assert_int_lt(mf_code_check_writable("/proc"), 0);
}

/* A program that ignores SIGCHLD gets the same code and the same error messages from the compilers as any
 * other program. A program that loads libfmoe may ignore SIGCHLD. */
static const char *const tested_compilers[][2] = {
    {"nvidia", "sm_90a"}, {"amd", "gfx90a"}, {"clang", "gfx942"}, {"none", ""}};

MF_TEST(test_sigchld_ignored, .rows = MF_ARRAY_LEN(tested_compilers))
{
    struct mf_compiler compiler = {.vendor = tested_compilers[_i][0]};
    struct mf_code codes[2] = {quant(8192), quant(8192)};
    char version[64] = "", paths[2][PATH_MAX], whys[2][MF_CODE_WHY_MAX], why[MF_CODE_WHY_MAX] = "",
         why_ignored[MF_CODE_WHY_MAX] = "";
    int r = mf_code_version(compiler.vendor, compiler.version, why, sizeof(why));

    ck_assert(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(mf_code_version(compiler.vendor, version, why_ignored, sizeof(why_ignored)), r);
    ck_assert_str_eq(version, compiler.version);
    ck_assert_str_eq(why_ignored, why);
    if (r < 0)
        return;
    mf_format(compiler.arch, sizeof(compiler.arch), "%s", tested_compilers[_i][1]);
    mf_code_define(&codes[1], "MF_THREADS=none");
    ck_assert_msg(mf_code_make(&compiler, codes, 2, 2, paths, whys) == 1, "%s", whys[0]);
    ck_assert_int_eq(access(paths[0], R_OK), 0);
    ck_assert_str_eq(paths[1], "");
    ck_assert_msg(*whys[1], "no message for code that does not compile");
}

/* ---- two processes compile the same code ---- */

/* A fake clang that logs its start and then reads a word from a FIFO. It creates its output if the word is
 * "make" and fails otherwise. */
#define CLANG                                   \
    "#!/bin/sh\n"                               \
    "echo $PPID $$ >>\"$CLANG_FOLDER/begun\"\n" \
    "read -r word <\"$CLANG_FOLDER/word\"\n"    \
    "[ \"$word\" = make ] || exit 1\n"          \
    "while [ \"$1\" != -o ]; do shift; done\n"  \
    "echo code >\"$2\"\n"
#define DEADLINE_MS 60000

/* Installs the fake clang first in PATH. Returns the file descriptor of its FIFO. */
static int use_clang(void)
{
    char path[PATH_MAX], paths[PATH_MAX * 2];

    write_text("clang-22", CLANG);
    write_text("begun", "");
    mf_format(path, sizeof(path), "%s/clang-22", folder);
    ck_assert_int_eq(chmod(path, 0700), 0);
    mf_format(paths, sizeof(paths), "%s:%s", folder, getenv("PATH"));
    ck_assert_int_eq(setenv("PATH", paths, 1), 0);
    ck_assert_int_eq(setenv("CLANG_FOLDER", folder, 1), 0);
    mf_format(path, sizeof(path), "%s/word", folder);
    ck_assert(mkfifo(path, 0600) == 0 || errno == EEXIST);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

/* Returns how often clang was started. Stores in ret the pids of the last compiler process and of its clang.
 */
static int count_starts(pid_t ret[2])
{
    char path[PATH_MAX];
    int n = 0, pids[2];

    mf_format(path, sizeof(path), "%s/begun", folder);
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    for (; fscanf(f, "%d %d", &pids[0], &pids[1]) == 2; n++) {
        ret[0] = pids[0];
        ret[1] = pids[1];
    }
    return n;
}

static void wait_starts(int n, pid_t ret[2])
{
    for (int64_t until = mf_now_ms() + DEADLINE_MS; count_starts(ret) < n; (void)poll(NULL, 0, 5))
        ck_assert_int_lt(mf_now_ms(), until);
}

/* Returns the pid of a process that waits for a lock on the file; 0 if no process waits. */
static pid_t lock_waiter(const char *path)
{
    char line[256], end[64];
    int pid = 0, other;
    struct stat st;

    if (stat(path, &st) < 0)
        return 0;
    mf_format(end, sizeof(end), ":%llu 0 EOF", (unsigned long long)st.st_ino);
    _cleanup_(mf_fclosep) FILE *f = fopen("/proc/locks", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f)) {
        if (strstr(line, end) && sscanf(line, "%*s -> FLOCK ADVISORY WRITE %d", &other) == 1)
            pid = other;
    }
    return pid;
}

static const struct mf_compiler with_clang = {.vendor = "clang", .arch = "gfx942", .version = "clang 22"};

/* Starts a process that requests the code. Its exit status is the number of codes that it got. */
static pid_t start_compilation(const struct mf_code *code)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(mf_code_make(&with_clang, code, 1, 1, NULL, NULL));
    ck_assert_int_gt(pid, 0);
    return pid;
}

static int end_compilation(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* How the first process ends, the number of codes that each process gets, and how often clang is started. */
enum ending { MAKES, FAILS, DIES, TIMES_OUT };
static const struct {
    enum ending ending;
    int made[2], begun;
} firsts[] = {
    {MAKES, {1, 1}, 1},     /* the second process uses the first one's code */
    {FAILS, {0, 1}, 2},     /* the second process compiles after the first failed */
    {DIES, {0, 1}, 2},      /* the second process compiles after the first was killed */
    {TIMES_OUT, {0, 1}, 2}, /* the second process stops waiting after a timeout */
};

static void kill_compiler(const pid_t pids[2])
{
    ck_assert_int_eq(kill(pids[0], SIGKILL), 0);
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
}

MF_TEST(test_concurrent_compilation, .rows = MF_ARRAY_LEN(firsts))
{
    struct mf_code code = quant(512 + 16 * _i);
    enum ending ending = firsts[_i].ending;
    char lock[PATH_MAX];
    pid_t first, second, waiting, pids[2], others[2];
    int words = use_clang();

    ck_assert_int_eq(mf_code_path(&with_clang, &code, lock), 0);
    mf_format(lock + strlen(lock), sizeof(lock) - strlen(lock), ".lock");
    first = start_compilation(&code);
    wait_starts(1, pids);
    second = start_compilation(&code);
    for (int64_t until = mf_now_ms() + DEADLINE_MS; !(waiting = lock_waiter(lock)); (void)poll(NULL, 0, 5)) {
        ck_assert_msg(count_starts(others) == 1, "the second process did not wait for the first");
        ck_assert_int_lt(mf_now_ms(), until);
    }
    if (ending == MAKES || ending == FAILS)
        ck_assert_int_eq(write(words, ending == MAKES ? "make\n" : "fail\n", 5), 5);
    if (ending == TIMES_OUT)
        ck_assert_int_eq(kill(waiting, SIGALRM), 0);
    if (ending == TIMES_OUT)
        wait_starts(2, others);
    if (ending == DIES || ending == TIMES_OUT)
        kill_compiler(pids);
    ck_assert_int_eq(end_compilation(first), firsts[_i].made[0]);
    wait_starts(firsts[_i].begun, others);
    if (firsts[_i].begun == 2)
        ck_assert_int_eq(write(words, "make\n", 5), 5);
    ck_assert_int_eq(end_compilation(second), firsts[_i].made[1]);
    ck_assert_int_eq(count_starts(others), firsts[_i].begun);
    ck_assert(ending == TIMES_OUT || access(lock, F_OK) < 0);
    (void)close(words);
}

/* A compiler ends when its parent process ends, because nothing else would end a compiler that hangs. */
MF_TEST(test_compiler_ends_with_parent)
{
    struct mf_code code = quant(256);
    char lock[PATH_MAX];
    pid_t maker, pids[2];
    int words = use_clang();

    ck_assert_int_eq(mf_code_path(&with_clang, &code, lock), 0);
    mf_format(lock + strlen(lock), sizeof(lock) - strlen(lock), ".lock");
    maker = start_compilation(&code);
    wait_starts(1, pids);
    ck_assert_int_eq(kill(maker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(maker, NULL, 0), maker);
    _cleanup_(mf_closep) int fd = open(lock, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
    (void)close(words);
}

static int count_files(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    (void)closedir(d);
    return n;
}

static void use_tmpdir(char ret[64])
{
    mf_format(ret, 64, "%s/tmp", folder);
    ck_assert(mkdir(ret, 0700) == 0 || errno == EEXIST);
    ck_assert_int_eq(setenv("TMPDIR", ret, 1), 0);
}

/* A compiler's temporary files are removed when it ends, even if it is killed. */
static const enum ending ends[] = {MAKES, FAILS, DIES};

MF_TEST(test_temporary_folder_removed, .rows = MF_ARRAY_LEN(ends))
{
    struct mf_code code = quant(128 + 16 * _i);
    char tmp[64];
    pid_t maker, pids[2];
    int words = use_clang();

    use_tmpdir(tmp);
    maker = start_compilation(&code);
    wait_starts(1, pids);
    ck_assert_int_eq(count_files(tmp), 1);
    if (ends[_i] == DIES)
        kill_compiler(pids);
    else
        ck_assert_int_eq(write(words, ends[_i] == MAKES ? "make\n" : "fail\n", 5), 5);
    ck_assert_int_eq(end_compilation(maker), ends[_i] == MAKES);
    ck_assert_int_eq(count_files(tmp), 0);
    (void)close(words);
}

/* If a process is killed together with its compiler, the next compiler removes the temporary folder that is
 * left over, but no folder that is in use. */
MF_TEST(test_stale_folders_removed)
{
    struct mf_code codes[3] = {quant(64), quant(80), quant(96)};
    char tmp[64];
    pid_t killed, first, second, pids[2], others[2], last[2];
    int words = use_clang();

    use_tmpdir(tmp);
    killed = start_compilation(&codes[0]);
    wait_starts(1, pids);
    first = start_compilation(&codes[1]);
    wait_starts(2, others);
    ck_assert_int_eq(kill(killed, SIGKILL), 0);
    ck_assert_int_eq(waitpid(killed, NULL, 0), killed);
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
    ck_assert_int_eq(count_files(tmp), 2);
    second = start_compilation(&codes[2]);
    wait_starts(3, last);
    ck_assert_int_eq(count_files(tmp), 2);
    kill_compiler(others);
    ck_assert_int_eq(end_compilation(first), 0);
    ck_assert_int_eq(write(words, "make\n", 5), 5);
    ck_assert_int_eq(end_compilation(second), 1);
    ck_assert_int_eq(count_files(tmp), 0);
    (void)close(words);
}

MF_TEST(test_unknown_vendor)
{
    char version[64], why[MF_CODE_WHY_MAX] = "";

    ck_assert_int_eq(mf_code_version("none", version, why, sizeof(why)), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, "usage"));
}

int main(void)
{
    if (!mkdtemp(folder) || setenv("MOEFARM_CODE_CACHE", folder, 1) < 0 || setenv("TMPDIR", folder, 1) < 0)
        return EXIT_FAILURE;
    int failed = mf_check_main(&(struct mf_test_group){.timeout_s = 100});
    (void)remove_tree(folder);
    return failed;
}
