/* Code objects: their place in the cache, the processes that make them, and every way in which that fails. */
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

/* What decides about the code decides about its place; nothing else does. */
START_TEST(test_place)
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
END_TEST

START_TEST(test_architectures)
{
    static const char *const cases[][2] = {{"sm_90", "sm_90a"}, {"sm_80", "sm_80"}, {"gfx942", "gfx942"}};
    struct mf_compiler c;

    for (size_t i = 0; i < MF_ARRAY_LEN(cases); i++) {
        mf_code_arch(&c, cases[i][0]);
        ck_assert_str_eq(c.arch, cases[i][1]);
    }
}
END_TEST

START_TEST(test_sources)
{
    ck_assert_ptr_null(mf_code_source("none.hip"));
    for (size_t i = 0; mf_code_source_name(i); i++)
        ck_assert_uint_gt(strlen(mf_code_source(mf_code_source_name(i))), 100);
    ck_assert_ptr_nonnull(mf_code_source("tile.hip"));
}
END_TEST

static void write_text(const char *name, const char *text)
{
    char path[PATH_MAX];

    mf_format(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* The digest that a build has whose two sources are these; 64 digits. */
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

/* Any text and any name is part of what names all code objects: one source may include every other. */
START_TEST(test_digest)
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
END_TEST

/* Compiles for real where the vendor's run-time compiler is; says so where it is not. */
static bool has_compiler(struct mf_compiler *c)
{
    char why[MF_CODE_WHY_MAX];

    if (mf_code_version(c->vendor, c->version, why, sizeof(why)) == 0)
        return true;
    mf_check_skip("no compiler for %s: %s", c->arch, why);
    return false;
}

START_TEST(test_compiles)
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
                     1); /* the second time nothing is made */
    ck_assert_int_eq(stat(paths[0], &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
}
END_TEST

/* What makes data and references of a shape: named without a device, and compiled. */
START_TEST(test_makers_compile)
{
    struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a"};
    const struct mf_device_info device = {.class = {.gfx = "sm_90", .cu_num = 132}},
                                none = {.class = {.gfx = "cpu"}};
    struct mf_code codes[MF_MAKER_CODES];
    char paths[MF_MAKER_CODES][PATH_MAX], whys[MF_MAKER_CODES][MF_CODE_WHY_MAX];
    struct mf_shape shape;

    ck_assert_int_eq(
        mf_shape_parse("1,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch."
                       "float8_e4m3fn,QuantType.per_1x128,1,0",
                       &shape),
        0);
    ck_assert_uint_eq(mf_device_data_codes(&none, &shape, codes), 0);
    ck_assert_uint_eq(mf_device_data_codes(&device, &shape, codes),
                      MF_MAKER_CODES - 1); /* x and weights are alike */
    shape.q_dtype_a = MF_DTYPE_BF16;
    shape.q_dtype_w = MF_DTYPE_FP4X2;
    shape.q_type = MF_QTYPE_PER_1X16;
    ck_assert_uint_eq(mf_device_data_codes(&device, &shape, codes), MF_MAKER_CODES);
    if (!has_compiler(&compiler))
        return;
    ck_assert_int_eq(mf_code_make(&compiler, codes, MF_MAKER_CODES, 2, paths, whys), MF_MAKER_CODES);
}
END_TEST

/* An architecture that the compiler does not know is words, or a death in the compiler's own process: never ours. */
START_TEST(test_failures_are_words)
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
        if (mf_code_make(&compiler, &code, 1, 1, path, why) == 1) /* a newer one that knows gfx942 */
            continue;
        ck_assert_str_eq(path[0], "");
        ck_assert_msg(*why[0], "no word for %s", compiler.arch);
    }
}
END_TEST

/* Without a home the cache is in /tmp, where others may have made the folder before. */
START_TEST(test_foreign_folder)
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
    /* As it was, for a leak checker that looks at the process when it ends */
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0);
}
END_TEST

/* What the cache could not take is found in its spare, and only what lies there. */
START_TEST(test_spare)
{
    const struct mf_compiler compiler = {.vendor = "nvidia", .arch = "sm_90a", .version = "one 1.0"};
    struct mf_code code = quant(1024);
    char spare[64], path[PATH_MAX], there[PATH_MAX], paths[1][PATH_MAX];

    ck_assert_int_eq(mf_code_path(&compiler, &code, path), 0);
    ck_assert(!mf_code_spare(path, there));
    mf_format(spare, sizeof(spare), "%s/spare", folder);
    ck_assert_int_eq(mkdir(spare, 0700), 0);
    ck_assert_int_eq(setenv(MF_CODE_SPARE_ENV, spare, 1), 0);
    ck_assert(mf_code_spare(path, there));
    FILE *f = fopen(there, "we");
    ck_assert(f && fclose(f) == 0);
    ck_assert_int_eq(mf_code_make(&compiler, &code, 1, 1, paths, NULL), 1);
    ck_assert_str_eq(paths[0], there);
}
END_TEST

START_TEST(test_room)
{
    ck_assert_int_eq(mf_code_room(folder), 0);
    ck_assert_int_lt(mf_code_room("/proc"), 0);
}
END_TEST

/* A program that ignores its children's ends, as a host of libfmoe may, learns the same of its compilers, and gets the same code. */
static const char *const asked[][2] = {
    {"nvidia", "sm_90a"}, {"amd", "gfx90a"}, {"clang", "gfx942"}, {"none", ""}};

START_TEST(test_without_a_status)
{
    struct mf_compiler compiler = {.vendor = asked[_i][0]};
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
    mf_format(compiler.arch, sizeof(compiler.arch), "%s", asked[_i][1]);
    mf_code_define(&codes[1], "MF_THREADS=none");
    ck_assert_msg(mf_code_make(&compiler, codes, 2, 2, paths, whys) == 1, "%s", whys[0]);
    ck_assert_int_eq(access(paths[0], R_OK), 0);
    ck_assert_str_eq(paths[1], "");
    ck_assert_msg(*whys[1], "no word of code that does not compile");
}
END_TEST

/* ---- two that want the same ---- */

/* A clang that says that it has begun, and makes its file, or does not, as it is told to. */
#define CLANG                                   \
    "#!/bin/sh\n"                               \
    "echo $PPID $$ >>\"$CLANG_FOLDER/begun\"\n" \
    "read -r word <\"$CLANG_FOLDER/word\"\n"    \
    "[ \"$word\" = make ] || exit 1\n"          \
    "while [ \"$1\" != -o ]; do shift; done\n"  \
    "echo code >\"$2\"\n"
#define DEADLINE_MS 60000

/* Opens what the clang of the tests reads its words from; from here on it is the one that is found. */
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

/* How often clang was begun; of the last time its pid, and that of the compiler that began it. */
static int count_begun(pid_t ret[2])
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

static void wait_begun(int n, pid_t ret[2])
{
    for (int64_t until = mf_now_ms() + DEADLINE_MS; count_begun(ret) < n; (void)poll(NULL, 0, 5))
        ck_assert_int_lt(mf_now_ms(), until);
}

/* Who waits for a lock on that file; 0: nobody. */
static pid_t waits_for(const char *path)
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

/* A process that makes the code, and whose exit code is how many it has then. */
static pid_t start_making(const struct mf_code *code)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(mf_code_make(&with_clang, code, 1, 1, NULL, NULL));
    ck_assert_int_gt(pid, 0);
    return pid;
}

static int end_making(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What becomes of the first, and who has the code then. */
enum fate { MAKES, FAILS, DIES, STARVES };
static const struct {
    enum fate fate;
    int made[2], begun;
} firsts[] = {
    {MAKES, {1, 1}, 1},   /* the second takes it, */
    {FAILS, {0, 1}, 2},   /* tries for itself what the first did not make */
    {DIES, {0, 1}, 2},    /* or was killed over, */
    {STARVES, {0, 1}, 2}, /* and does not wait for ever */
};

static void end_begun(const pid_t pids[2])
{
    ck_assert_int_eq(kill(pids[0], SIGKILL), 0);
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
}

START_TEST(test_two_of_one_code)
{
    struct mf_code code = quant(512 + 16 * _i);
    enum fate fate = firsts[_i].fate;
    char lock[PATH_MAX];
    pid_t first, second, waiting, pids[2], others[2];
    int words = use_clang();

    ck_assert_int_eq(mf_code_path(&with_clang, &code, lock), 0);
    mf_format(lock + strlen(lock), sizeof(lock) - strlen(lock), ".lock");
    first = start_making(&code);
    wait_begun(1, pids);
    second = start_making(&code);
    for (int64_t until = mf_now_ms() + DEADLINE_MS; !(waiting = waits_for(lock)); (void)poll(NULL, 0, 5)) {
        ck_assert_msg(count_begun(others) == 1, "the second did not wait for the first");
        ck_assert_int_lt(mf_now_ms(), until);
    }
    if (fate == MAKES || fate == FAILS)
        ck_assert_int_eq(write(words, fate == MAKES ? "make\n" : "fail\n", 5), 5);
    if (fate == STARVES)
        ck_assert_int_eq(kill(waiting, SIGALRM), 0);
    if (fate == STARVES)
        wait_begun(2, others);
    if (fate == DIES || fate == STARVES)
        end_begun(pids);
    ck_assert_int_eq(end_making(first), firsts[_i].made[0]);
    wait_begun(firsts[_i].begun, others);
    if (firsts[_i].begun == 2)
        ck_assert_int_eq(write(words, "make\n", 5), 5);
    ck_assert_int_eq(end_making(second), firsts[_i].made[1]);
    ck_assert_int_eq(count_begun(others), firsts[_i].begun);
    ck_assert(fate == STARVES || access(lock, F_OK) < 0);
    (void)close(words);
}
END_TEST

/* A compiler ends with who wanted it: nobody would end one that never does. */
START_TEST(test_compiler_goes_with_its_parent)
{
    struct mf_code code = quant(256);
    char lock[PATH_MAX];
    pid_t maker, pids[2];
    int words = use_clang();

    ck_assert_int_eq(mf_code_path(&with_clang, &code, lock), 0);
    mf_format(lock + strlen(lock), sizeof(lock) - strlen(lock), ".lock");
    maker = start_making(&code);
    wait_begun(1, pids);
    ck_assert_int_eq(kill(maker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(maker, NULL, 0), maker);
    _cleanup_(mf_closep) int fd = open(lock, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
    (void)close(words);
}
END_TEST

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

/* What a compiler writes on its way goes with it, even where it has no time to take it away. */
static const enum fate ends[] = {MAKES, FAILS, DIES};

START_TEST(test_leaves_no_folder)
{
    struct mf_code code = quant(128 + 16 * _i);
    char tmp[64];
    pid_t maker, pids[2];
    int words = use_clang();

    use_tmpdir(tmp);
    maker = start_making(&code);
    wait_begun(1, pids);
    ck_assert_int_eq(count_files(tmp), 1);
    if (ends[_i] == DIES)
        end_begun(pids);
    else
        ck_assert_int_eq(write(words, ends[_i] == MAKES ? "make\n" : "fail\n", 5), 5);
    ck_assert_int_eq(end_making(maker), ends[_i] == MAKES);
    ck_assert_int_eq(count_files(tmp), 0);
    (void)close(words);
}
END_TEST

/* Who is killed with its compiler leaves the folder to the next one, which leaves alone those that somebody works in. */
START_TEST(test_sweeps_what_is_left)
{
    struct mf_code codes[3] = {quant(64), quant(80), quant(96)};
    char tmp[64];
    pid_t killed, first, second, pids[2], others[2], last[2];
    int words = use_clang();

    use_tmpdir(tmp);
    killed = start_making(&codes[0]);
    wait_begun(1, pids);
    first = start_making(&codes[1]);
    wait_begun(2, others);
    ck_assert_int_eq(kill(killed, SIGKILL), 0);
    ck_assert_int_eq(waitpid(killed, NULL, 0), killed);
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
    ck_assert_int_eq(count_files(tmp), 2);
    second = start_making(&codes[2]);
    wait_begun(3, last);
    ck_assert_int_eq(count_files(tmp), 2);
    end_begun(others);
    ck_assert_int_eq(end_making(first), 0);
    ck_assert_int_eq(write(words, "make\n", 5), 5);
    ck_assert_int_eq(end_making(second), 1);
    ck_assert_int_eq(count_files(tmp), 0);
    (void)close(words);
}
END_TEST

START_TEST(test_no_such_vendor)
{
    char version[64], why[MF_CODE_WHY_MAX] = "";

    ck_assert_int_eq(mf_code_version("none", version, why, sizeof(why)), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, "usage"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("code");
    TCase *tests = tcase_create("code");

    if (!mkdtemp(folder) || setenv("MOEFARM_CODE_CACHE", folder, 1) < 0 || setenv("TMPDIR", folder, 1) < 0)
        return EXIT_FAILURE;
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, test_place);
    tcase_add_test(tests, test_architectures);
    tcase_add_test(tests, test_sources);
    tcase_add_test(tests, test_digest);
    tcase_add_test(tests, test_spare);
    tcase_add_test(tests, test_room);
    tcase_add_loop_test(tests, test_without_a_status, 0, MF_ARRAY_LEN(asked));
    tcase_add_loop_test(tests, test_two_of_one_code, 0, MF_ARRAY_LEN(firsts));
    tcase_add_test(tests, test_compiler_goes_with_its_parent);
    tcase_add_loop_test(tests, test_leaves_no_folder, 0, MF_ARRAY_LEN(ends));
    tcase_add_test(tests, test_sweeps_what_is_left);
    tcase_add_test(tests, test_no_such_vendor);
    TCase *optional = mf_check_optional(suite, 100);
    tcase_add_test(optional, test_compiles);
    tcase_add_test(optional, test_makers_compile);
    tcase_add_test(optional, test_failures_are_words);
    tcase_add_test(optional, test_foreign_folder);
    suite_add_tcase(suite, tests);
    int failed = mf_check_main(suite);
    (void)remove_tree(folder);
    return failed;
}
