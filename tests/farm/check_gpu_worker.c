/* moefarm-worker and GPUs on a machine that has none: what it lists and why not the rest, and its lock, with a driver of
 * cardboard (fake_cuda.c) where one is needed. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/core/sibling_file.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/table_columns.h"
#include "worker/agent/device_lock.h"

#define WORKER      MF_BINARY_DIR "/worker/moefarm-worker"
#define CARDBOARD   MF_BINARY_DIR "/tests/fake_cuda"
#define OTHER_BUILD MF_BINARY_DIR "/tests/other_build.so"

static char folder[64];

static void setup(void)
{
    mf_format(folder, sizeof(folder), "/tmp/check_gpu_worker.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", folder, 1), 0);
}

static void teardown(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

static const char *const program[] = {WORKER, NULL};

#define RUN(...) run_program(program, (const char *const[]){__VA_ARGS__, NULL})

/* The driver of cardboard in place of any other; false, with a word, where this build has no module that would open it. */
static bool use_cardboard(void)
{
    char path[PATH_MAX];

    if (mf_sibling_file("moefarm-hip-nvidia.so", "kernels", path) < 0) {
        mf_check_skip("this build has no moefarm-hip-nvidia.so (NVIDIA\'s CUDA toolkit)");
        return false;
    }
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", CARDBOARD, 1), 0);
    return true;
}

static bool has_compiler(const char *vendor)
{
    char version[64], why[MF_CODE_WHY_MAX];

    if (mf_code_version(vendor, version, why, sizeof(why)) == 0)
        return true;
    mf_check_skip("no compiler for %s: %s", vendor, why);
    return false;
}

/* The CPU is always there, and each vendor has a line: its devices, or why there are none. */
START_TEST(lists_what_is_here)
{
    struct ran r = RUN("--list-devices");

    ck_assert_int_eq(r.code, 0);
    assert_says(r, "cpu:0 ");
    assert_says(r, " threads, last cache ");
    assert_says(r, "GB/s");
    assert_says(r, "sim:<class>:<ordinal>");
    for (const char *const *vendor = (const char *const[]){"nvidia", "amd", NULL}; *vendor; vendor++) {
        char line[64];

        mf_format(line, sizeof(line), "\nhip:%s", *vendor);
        assert_says(r, line);
    }
}
END_TEST

START_TEST(lists_gpus)
{
    if (!use_cardboard() || !has_compiler("nvidia"))
        return;
    ck_assert_int_eq(setenv("FAKE_CUDA_DEVICES", "2", 1), 0);
    struct ran r = RUN("--list-devices");

    ck_assert_int_eq(r.code, 0);
    assert_says(r, "hip:nvidia:0  sm_90/132: Cardboard H200, sm_90\n");
    assert_says(r, "hip:nvidia:1  sm_90/132: Cardboard H200, sm_90\n");
    assert_says(r, "140.0 GiB, 132 compute units, last cache 50 MiB, 227 KiB of LDS a block, 1980 MHz, "
                   "memory 3201 MHz\n");
    assert_says(r, "CUDA 13.0, compiler nvrtc ");
    assert_says(r, "GPU-6e000000-0000-0000-0000-000000000002\n");
}
END_TEST

static const struct {
    const char *variable, *value, *says;
} left_out[] = {
    {"FAKE_CUDA_DEVICES", "0", "hip:nvidia    left out: the runtime of nvidia shows no device"},
    {"FAKE_CUDA_CRASH", "1", "hip:nvidia    left out: the runtime took its process down with signal 6"},
};

START_TEST(says_why_none)
{
    if (!use_cardboard())
        return;
    ck_assert_int_eq(setenv(left_out[_i].variable, left_out[_i].value, 1), 0);
    struct ran r = RUN("--list-devices");

    ck_assert_int_eq(r.code, 0);
    assert_says(r, left_out[_i].says);
    assert_says(r, "sim:<class>");
}
END_TEST

/* Beside a worker that still runs may lie what another version was installed with: it makes and names code of other kernels. */
START_TEST(leaves_another_build_out)
{
    char worker[PATH_MAX], module[PATH_MAX];
    mf_format(worker, sizeof(worker), "%s/moefarm-worker", folder);
    mf_format(module, sizeof(module), "%s/moefarm-hip-nvidia.so", folder);
    ck_assert_int_eq(
        run_program((const char *const[]){"cp", WORKER, worker, NULL}, (const char *const[]){NULL}).code, 0);
    ck_assert_int_eq(
        run_program((const char *const[]){"cp", OTHER_BUILD, module, NULL}, (const char *const[]){NULL}).code,
        0);
    struct ran r =
        run_program((const char *const[]){worker, NULL}, (const char *const[]){"--list-devices", NULL});

    ck_assert_int_eq(r.code, 0);
    assert_says(r, "moefarm-hip-nvidia.so is of another version of moefarm");
}
END_TEST

START_TEST(compiles_for_its_own_build)
{
    static const char *const compile[] = {MF_BINARY_DIR "/kernels/moefarm-compile", NULL};
    char own[128];
    mf_format(own, sizeof(own), MF_CODE_SOURCES_OPTION "%s", mf_code_sources_digest);
    struct ran r =
        run_program(compile, (const char *const[]){MF_CODE_SOURCES_OPTION "0", "--version", "nvidia", NULL});
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "moefarm-compile is of another version of moefarm");
    r = run_program(compile, (const char *const[]){MF_CODE_SOURCES_OPTION "0", "nvidia", "sm_90a",
                                                   "quant.hip", "/dev/null/code", NULL});
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "moefarm-compile is of another version of moefarm");
    if (!has_compiler("nvidia"))
        return;
    r = run_program(compile, (const char *const[]){own, "--version", "nvidia", NULL});
    ck_assert_int_eq(r.code, 0);
    assert_says(r, "nvrtc ");
}
END_TEST

/* The lock goes by which GPU it is: the same one under another ordinal is held, another one under the same ordinal is not. */
static const struct {
    const char *device, *uuid;
    bool held;
} locks[] = {
    {"hip:nvidia:0", "7", true},
    {"hip:nvidia:1", "6", true},
    {"hip:nvidia:0", "8", false},
};

START_TEST(locks_the_gpu_itself)
{
    char why[256] = "", log[512], *const spool = folder;
    int fd = -1;

    if (!use_cardboard())
        return;
    ck_assert_int_eq(setenv("FAKE_CUDA_DEVICES", "2", 1), 0);
    ck_assert_int_eq(setenv("FAKE_CUDA_UUID", locks[_i].uuid, 1), 0);
    ck_assert_int_eq(mf_device_lock(folder, "hip:nvidia:0", "GPU-6e000000-0000-0000-0000-000000000007", why,
                                    sizeof(why), &fd),
                     0);
    /* Not held: it goes on to its coordinator, whose address cannot be one. */
    struct ran r = RUN("--device", locks[_i].device, "--lock-dir", folder, "--spool", spool, "--coordinator",
                       "nowhere", "--name", "w");

    ck_assert_int_eq(r.code, 1);
    mf_format(
        log, sizeof(log),
        "device %s, which is GPU-6e000000-0000-0000-0000-000000000007 is held by the worker with pid %ld",
        locks[_i].device, (long)getpid());
    assert_says(r, locks[_i].held ? log : "coordinator nowhere");
    (void)close(fd);
}
END_TEST

/* ---- --compile-only ---- */

#define COLUMNS SHAPE_COLUMNS "\n"
#define ROW     "1,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static const char *shapes_file(const char *text)
{
    static char path[128];

    mf_format(path, sizeof(path), "%s/shapes.csv", folder);
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

static void use_cache(const char *name)
{
    char path[128];

    mf_format(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", path, 1), 0);
}

/* Once compiled, it is there, and stays so wherever the cache is carried. */
START_TEST(fills_a_cache)
{
    const char *shapes = shapes_file(COLUMNS ROW "\n");
    bool compiles = has_compiler("nvidia");
    char from[128], to[128];

    use_cache("a");
    struct ran r = RUN("--compile-only", "--arch", "nvidia:sm_90", "--shapes", shapes, "--families", "one");
    ck_assert_int_eq(r.code, compiles ? 0 : 1);
    if (!compiles) {
        assert_says(r, "no run-time compiler of nvidia");
        return;
    }
    assert_says(r, "the device itself: ");
    assert_says(r, ROW ": ");
    assert_says(r, ", 0 there before, 0 failed\n");
    mf_format(from, sizeof(from), "%s/a", folder);
    mf_format(to, sizeof(to), "%s/b", folder);
    ck_assert_int_eq(rename(from, to), 0);
    use_cache("b");
    r = RUN("--compile-only", "--arch=nvidia:sm_90/132", "--shapes", shapes, "--families", "one");
    ck_assert_int_eq(r.code, 0);
    /* Looking for it may take its time */
    const char *own = strstr(r.text, "the device itself: ");
    double seconds;
    int length = 0;
    ck_assert_msg(
        own &&
            sscanf(own,
                   "the device itself: 0 steps, code objects 1: 0 compiled in %lf s, 1 there before, "
                   "0 failed%n",
                   &seconds, &length) == 1 &&
            length > 0 && own[length] == '\n',
        "%s", r.text);
    ck_assert_msg(!strstr(r.text, ", 0 there before"), "%s", r.text);
}
END_TEST

/* What washes the units' own cache of code is longer than it: no compiler makes a few instructions of it. */
static const struct {
    const char *vendor, *arch, *objects;
    off_t least; /* bytes */
} washing[] = {
    {"nvidia", "nvidia:sm_90", "measure-sm_90a-*", 256 << 10},
    {"amd", "amd:gfx90a", "measure-gfx90a-*", 128 << 10},
};

START_TEST(code_that_washes_is_long)
{
    const char *shapes = shapes_file(COLUMNS ROW "\n");
    char pattern[256];
    glob_t found;
    off_t bytes = 0;

    if (!has_compiler(washing[_i].vendor))
        return;
    use_cache("a");
    struct ran r = RUN("--compile-only", "--arch", washing[_i].arch, "--shapes", shapes, "--families", "one");
    ck_assert_msg(r.code == 0, "%s", r.text);
    mf_format(pattern, sizeof(pattern), "%s/a/%s", folder, washing[_i].objects);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat file;
        ck_assert_int_eq(stat(found.gl_pathv[i], &file), 0);
        bytes += file.st_size;
    }
    globfree(&found);
    ck_assert_msg(bytes > washing[_i].least, "%lld", (long long)bytes);
}
END_TEST

/* What fails is told with its definitions and the compiler's words, and the rest goes on. No GPU is sm_85. */
START_TEST(tells_what_fails)
{
    const char *shapes = shapes_file(COLUMNS ROW "\n" ROW ",\n1,256,x,8,2\n");

    if (!has_compiler("nvidia"))
        return;
    struct ran r = RUN("--compile-only", "--arch", "nvidia:sm_85/3", "--shapes", shapes, "--families", "one");
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "shapes.csv:4: ");
    assert_says(r, "  failed: measure.hip\n");
    assert_says(r, "  failed: one.hip -D");
    assert_says(r, "\n    one.hip does not compile for sm_85 ");
}
END_TEST

/* clang-format off */
static const struct {
    const char *arch, *shapes, *says;
} wrong[] = {
    {"sm_90", ROW, "--arch has to be nvidia:<gfx>[/<compute units>] or amd:<gfx>"},
    {"nvidia:sm_77", ROW, "--arch has to be"},               /* nobody knows how many units that has */
    {"nvidia:sm_90/0", ROW, "not 'nvidia:sm_90/0'"},
    {"nvidia:sm_90", NULL, "/nonexistent.csv"},
    {"nvidia:sm_90", "", "its first line must name the columns"},
};
/* clang-format on */

START_TEST(refuses_wrong_options)
{
    const char *shapes = wrong[_i].shapes ? shapes_file(wrong[_i].shapes) : "/nonexistent.csv";
    struct ran r = RUN("--compile-only", "--arch", wrong[_i].arch, "--shapes", shapes);

    ck_assert_int_eq(r.code, 2);
    assert_says(r, wrong[_i].says);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_worker");
    TCase *tests = tcase_create("gpu_worker");

    tcase_set_timeout(tests, 100);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, lists_what_is_here);
    tcase_add_loop_test(tests, says_why_none, 0, MF_ARRAY_LEN(left_out));
    tcase_add_loop_test(tests, refuses_wrong_options, 0, MF_ARRAY_LEN(wrong));
    TCase *optional = mf_check_optional(suite, 100);
    tcase_add_checked_fixture(optional, setup, teardown);
    tcase_add_test(optional, lists_gpus);
    tcase_add_test(optional, leaves_another_build_out);
    tcase_add_test(optional, compiles_for_its_own_build);
    tcase_add_loop_test(optional, locks_the_gpu_itself, 0, MF_ARRAY_LEN(locks));
    tcase_add_test(optional, fills_a_cache);
    tcase_add_loop_test(optional, code_that_washes_is_long, 0, MF_ARRAY_LEN(washing));
    tcase_add_test(optional, tells_what_fails);
    suite_add_tcase(suite, tests);
    return mf_check_main(suite);
}
