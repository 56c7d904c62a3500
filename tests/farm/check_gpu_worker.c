/* Tests moefarm-worker with GPUs on a machine without a GPU: the device list with the reasons for missing
 * devices, device locks, and --compile-only. Tests that need a GPU use a fake CUDA driver (fake_cuda.c). */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/table_columns.h"
#include "support/text_file.h"
#include "worker/agent/device_lock.h"

#define WORKER      MF_BINARY_DIR "/worker/moefarm-worker"
#define FAKE_DRIVER MF_BINARY_DIR "/tests/fake_cuda"
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

static void use_fake_driver(void)
{
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", FAKE_DRIVER, 1), 0);
}

static bool has_compiler(const char *vendor)
{
    char version[64], why[MF_CODE_WHY_MAX];

    if (mf_code_version(vendor, version, why, sizeof(why)) == 0)
        return true;
    mf_check_skip("no compiler for %s: %s", vendor, why);
    return false;
}

/* The device list contains the CPU. For each vendor it contains the devices, or the reason why there are
 * none. */
MF_TEST(lists_cpu_and_vendors)
{
    struct ran r = RUN("--list-devices");

    ck_assert_int_eq(r.code, 0);
    assert_says(r, "cpu:0 ");
    assert_says(r, " threads, last-level cache ");
    assert_says(r, "GB/s");
    assert_says(r, "sim:<class>:<ordinal>");
    for (const char *const *vendor = (const char *const[]){"nvidia", "amd", NULL}; *vendor; vendor++) {
        char line[64];

        mf_format(line, sizeof(line), "\nhip:%s", *vendor);
        assert_says(r, line);
    }
}

static const struct mf_test_group optional_tests = {
    .timeout_s = 100, .setup = setup, .teardown = teardown, .optional = true};

MF_TEST(lists_gpus, .group = &optional_tests)
{
    use_fake_driver();
    if (!has_compiler("nvidia"))
        return;
    ck_assert_int_eq(setenv("FAKE_CUDA_DEVICES", "2", 1), 0);
    struct ran r = RUN("--list-devices");

    ck_assert_int_eq(r.code, 0);
    assert_says(r, "hip:nvidia:0  sm_90/132: Fake H200, sm_90\n");
    assert_says(r, "hip:nvidia:1  sm_90/132: Fake H200, sm_90\n");
    assert_says(
        r,
        "140.0 GiB, 132 compute units, last-level cache 50 MiB, 227 KiB shared memory per block, 1980 MHz, "
        "memory 3201 MHz\n");
    assert_says(r, "CUDA 13.0, compiler nvrtc ");
    assert_says(r, "GPU-6e000000-0000-0000-0000-000000000002\n");
}

static const struct {
    const char *variable, *value, *message;
} missing_devices[] = {
    {"FAKE_CUDA_DEVICES", "0", "hip:nvidia    not usable: the nvidia runtime reports no device"},
    {"FAKE_CUDA_CRASH", "1", "hip:nvidia    not usable: the GPU runtime crashed: signal 6"},
};

MF_TEST(lists_why_a_device_is_missing, .rows = MF_ARRAY_LEN(missing_devices))
{
    use_fake_driver();
    ck_assert_int_eq(setenv(missing_devices[_i].variable, missing_devices[_i].value, 1), 0);
    struct ran r = RUN("--list-devices");

    ck_assert_int_eq(r.code, 0);
    assert_says(r, missing_devices[_i].message);
    assert_says(r, "sim:<class>");
}

/* After an upgrade, the module next to a worker that still runs may belong to a newer version. Such a module
 * would compile and offer other kernels, so the worker must not use it. */
MF_TEST(skips_a_module_of_another_build, .group = &optional_tests)
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
    assert_says(r, "moefarm-hip-nvidia.so: version mismatch");
}

MF_TEST(refuses_a_caller_of_another_build, .group = &optional_tests)
{
    static const char *const compile[] = {MF_BINARY_DIR "/kernels/moefarm-compile", NULL};
    char own[128];
    mf_format(own, sizeof(own), MF_CODE_SOURCES_OPTION "%s", mf_code_sources_digest);
    struct ran r =
        run_program(compile, (const char *const[]){MF_CODE_SOURCES_OPTION "0", "--version", "nvidia", NULL});
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "moefarm-compile: version mismatch");
    r = run_program(compile, (const char *const[]){MF_CODE_SOURCES_OPTION "0", "nvidia", "sm_90a",
                                                   "quant.hip", "/dev/null/code", NULL});
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "moefarm-compile: version mismatch");
    if (!has_compiler("nvidia"))
        return;
    r = run_program(compile, (const char *const[]){own, "--version", "nvidia", NULL});
    ck_assert_int_eq(r.code, 0);
    assert_says(r, "nvrtc ");
}

/* A device lock identifies the GPU, not its ordinal. The same GPU is locked under another ordinal, and
 * another GPU under the same ordinal is not locked. */
static const struct {
    const char *device, *uuid;
    bool held;
} locks[] = {
    {"hip:nvidia:0", "7", true},
    {"hip:nvidia:1", "6", true},
    {"hip:nvidia:0", "8", false},
};

MF_TEST(locks_the_gpu_itself, .rows = MF_ARRAY_LEN(locks), .group = &optional_tests)
{
    char why[256] = "", log[512], *const spool = folder;
    int fd = -1;

    use_fake_driver();
    ck_assert_int_eq(setenv("FAKE_CUDA_DEVICES", "2", 1), 0);
    ck_assert_int_eq(setenv("FAKE_CUDA_UUID", locks[_i].uuid, 1), 0);
    ck_assert_int_eq(mf_device_lock(folder, "hip:nvidia:0", "GPU-6e000000-0000-0000-0000-000000000007", why,
                                    sizeof(why), &fd),
                     0);
    /* If the lock is free, the worker fails later, because its coordinator address is invalid. */
    struct ran r = RUN("--device", locks[_i].device, "--lock-dir", folder, "--spool", spool, "--coordinator",
                       "nowhere", "--name", "w");

    ck_assert_int_eq(r.code, 1);
    mf_format(log, sizeof(log),
              "device %s with identity GPU-6e000000-0000-0000-0000-000000000007 is in use by the worker with "
              "pid %ld",
              locks[_i].device, (long)getpid());
    assert_says(r, locks[_i].held ? log : "coordinator nowhere");
    (void)close(fd);
}

/* ---- --compile-only ---- */

#define COLUMNS SHAPE_COLUMNS "\n"
#define ROW                                                                          \
    "1,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16," \
    "QuantType.No,1,0"

static const char *shapes_file(const char *text)
{
    static char path[128];

    mf_format(path, sizeof(path), "%s/shapes.csv", folder);
    text_file_write(path, text);
    return path;
}

static void use_cache(const char *name)
{
    char path[128];

    mf_format(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", path, 1), 0);
}

/* A cache still works after it was moved: the second run finds the compiled code and compiles nothing. The
 * code objects that do not depend on the shape are those of the device and of libfmoe. */
MF_TEST(fills_and_reuses_a_cache, .group = &optional_tests)
{
    const char *shapes = shapes_file(COLUMNS ROW "\n");
    bool compiles = has_compiler("nvidia");
    char from[128], to[128];

    use_cache("a");
    struct ran r =
        RUN("--compile-only", "--arch", "nvidia:sm_90", "--shapes", shapes, "--families", "one_stage");
    ck_assert_int_eq(r.code, compiles ? 0 : 1);
    if (!compiles) {
        assert_says(r, "no run-time compiler for nvidia");
        return;
    }
    assert_says(r, "device kernels: ");
    assert_says(r, ROW ": ");
    assert_says(r, ", 0 cached, 0 failed\n");
    mf_format(from, sizeof(from), "%s/a", folder);
    mf_format(to, sizeof(to), "%s/b", folder);
    ck_assert_int_eq(rename(from, to), 0);
    use_cache("b");
    r = RUN("--compile-only", "--arch=nvidia:sm_90/132", "--shapes", shapes, "--families", "one_stage");
    ck_assert_int_eq(r.code, 0);
    /* the time is not checked, because finding the code may take some time */
    const char *own = strstr(r.text, "device kernels: ");
    double seconds;
    int length = 0;
    ck_assert_msg(own &&
                      sscanf(own,
                             "device kernels: 0 steps, 2 code objects: 0 compiled in %lf s, 2 cached, "
                             "0 failed%n",
                             &seconds, &length) == 1 &&
                      length > 0 && own[length] == '\n',
                  "%s", r.text);
    ck_assert_msg(!strstr(r.text, ", 0 cached"), "%s", r.text);
}

/* The code that evicts the instruction cache must be larger than this cache, so the compiler must not reduce
 * the code to a loop. */
static const struct {
    const char *vendor, *arch, *objects;
    off_t least; /* minimum size of the code, in bytes */
} evictions[] = {
    {"nvidia", "nvidia:sm_90", "measure-sm_90a-*", 256 << 10},
    {"amd", "amd:gfx90a", "measure-gfx90a-*", 128 << 10},
};

MF_TEST(eviction_code_is_large, .rows = MF_ARRAY_LEN(evictions), .group = &optional_tests)
{
    const char *shapes = shapes_file(COLUMNS ROW "\n");
    char pattern[256];
    glob_t found;
    off_t bytes = 0;

    if (!has_compiler(evictions[_i].vendor))
        return;
    use_cache("a");
    struct ran r =
        RUN("--compile-only", "--arch", evictions[_i].arch, "--shapes", shapes, "--families", "one_stage");
    ck_assert_msg(r.code == 0, "%s", r.text);
    mf_format(pattern, sizeof(pattern), "%s/a/%s", folder, evictions[_i].objects);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat file;
        ck_assert_int_eq(stat(found.gl_pathv[i], &file), 0);
        bytes += file.st_size;
    }
    globfree(&found);
    ck_assert_msg(bytes > evictions[_i].least, "%lld", (long long)bytes);
}

/* A kernel that does not compile is listed with its definitions and the compiler's message. The other kernels
 * are compiled. sm_85 makes kernels fail, because no such GPU exists. */
MF_TEST(lists_failed_kernels, .group = &optional_tests)
{
    const char *shapes = shapes_file(COLUMNS ROW "\n" ROW ",\n1,256,x,8,2\n");

    if (!has_compiler("nvidia"))
        return;
    struct ran r =
        RUN("--compile-only", "--arch", "nvidia:sm_85/3", "--shapes", shapes, "--families", "one_stage");
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "shapes.csv:4: ");
    assert_says(r, "  failed: measure.hip\n");
    assert_says(r, "  failed: one.hip -D");
    assert_says(r, "\n    one.hip does not compile for sm_85 ");
}

/* clang-format off */
static const struct {
    const char *arch, *shapes, *message;
} wrong[] = {
    {"sm_90", ROW, "--arch: expected nvidia:<gfx>[/<compute units>] or amd:<gfx>"},
    {"nvidia:sm_77", ROW, "--arch: expected"},               /* the number of SMs of sm_77 is unknown */
    {"nvidia:sm_90/0", ROW, "not 'nvidia:sm_90/0'"},
    {"nvidia:sm_90", NULL, "/nonexistent.csv"},
    {"nvidia:sm_90", "", "its first line must name the columns"},
};
/* clang-format on */

MF_TEST(refuses_bad_options, .rows = MF_ARRAY_LEN(wrong))
{
    const char *shapes = wrong[_i].shapes ? shapes_file(wrong[_i].shapes) : "/nonexistent.csv";
    struct ran r = RUN("--compile-only", "--arch", wrong[_i].arch, "--shapes", shapes);

    ck_assert_int_eq(r.code, 2);
    assert_says(r, wrong[_i].message);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 100, .setup = setup, .teardown = teardown});
}
