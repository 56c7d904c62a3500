/* Tests the search for the vendors' libraries in an installation of ROCm that ROCM_PATH names, and for NVRTC
 * in environments of Python. The folders that are searched without variables are tested in a copy of the
 * machine (tests/deploy/check_package.sh). */
#include "kernels/gpu/host/vendor_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <sys/stat.h>

#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/text_file.h"

#define LIBRARY MF_BINARY_DIR "/tests/fake_cuda/libcuda.so.1" /* any library */

static char rocm[64];

static void make_rocm(void)
{
    char folder[128];

    mf_format(rocm, sizeof(rocm), "/tmp/check_vendor_library.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(rocm));
    mf_format(folder, sizeof(folder), "%s/lib", rocm);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    mf_format(folder, sizeof(folder), "%s/lib64", rocm);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    ck_assert_int_eq(setenv("ROCM_PATH", rocm, 1), 0);
}

static void remove_rocm(void)
{
    ck_assert_int_eq(remove_tree(rocm), 0);
}

/* Installs a library, or if `is_broken` a text file, as PATH of ROCm. */
static void install(const char *path, bool is_broken)
{
    char to[128];

    mf_format(to, sizeof(to), "%s/%s", rocm, path);
    if (is_broken)
        text_file_write(to, "not a library");
    else
        ck_assert_int_eq(
            run_program((const char *const[]){"cp", LIBRARY, to, NULL}, (const char *const[]){NULL}).code, 0);
}

static void assert_is(void *library, const char *path)
{
    struct link_map *map;
    char expected[128];

    ck_assert_ptr_nonnull(library);
    ck_assert_int_eq(dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
    mf_format(expected, sizeof(expected), "%s/%s", rocm, path);
    ck_assert_str_eq(map->l_name, expected);
}

static const struct {
    enum mf_vendor_library which;
    const char *good[3], *broken, *found;
} installations[] = {
    {MF_HIP_RUNTIME, {"lib/libamdhip64.so.6"}, NULL, "lib/libamdhip64.so.6"},
    {MF_HIP_RUNTIME, {"lib/libamdhip64.so.5", "lib/libamdhip64.so.6"}, NULL, "lib/libamdhip64.so.6"},
    {MF_HIP_RUNTIME, {"lib64/libamdhip64.so.7"}, NULL, "lib64/libamdhip64.so.7"},
    {MF_HIP_RUNTIME, {"lib/libamdhip64.so.6"}, "lib/libamdhip64.so.7", "lib/libamdhip64.so.6"},
    {MF_HIP_COMPILER, {"lib/libamdhip64.so.6"}, NULL, "lib/libamdhip64.so.6"},
    {MF_HIP_COMPILER, {"lib/libamdhip64.so.6", "lib/libhiprtc.so.6"}, NULL, "lib/libhiprtc.so.6"},
};

MF_TEST(finds_the_newest, .rows = MF_ARRAY_LEN(installations))
{
    char why[512];

    for (size_t i = 0; i < 3 && installations[_i].good[i]; i++)
        install(installations[_i].good[i], false);
    if (installations[_i].broken)
        install(installations[_i].broken, true);
    assert_is(mf_vendor_library_open(installations[_i].which, RTLD_NOW, NULL, NULL, why, sizeof(why)),
              installations[_i].found);
}

static bool refuse(void *library, void *n)
{
    ck_assert_ptr_nonnull(library);
    ++*(int *)n;
    return false;
}

/* The reason names the first file that exists. */
MF_TEST(names_a_library_that_lacks_a_function)
{
    char why[512], expected[256];
    int n = 0;

    install("lib/libamdhip64.so.6", false);
    install("lib/libamdhip64.so.5", false);
    ck_assert_ptr_null(mf_vendor_library_open(MF_HIP_RUNTIME, RTLD_NOW, refuse, &n, why, sizeof(why)));
    ck_assert_int_ge(n, 2);
    mf_format(expected, sizeof(expected),
              "%s/lib/libamdhip64.so.6 lacks a required function: install a supported version", rocm);
    ck_assert_str_eq(why, expected);
}

MF_TEST(names_a_broken_library)
{
    char why[512], expected[256];
    int n = 0;

    install("lib/libamdhip64.so.7", true);
    ck_assert_ptr_null(mf_vendor_library_open(MF_HIP_RUNTIME, RTLD_NOW, refuse, &n, why, sizeof(why)));
    mf_format(expected, sizeof(expected), "%s/lib/libamdhip64.so.7: ", rocm);
    ck_assert_msg(strncmp(why, expected, strlen(expected)) == 0, "%s", why);
}

static void make_folders(const char *path)
{
    char folder[PATH_MAX];

    mf_format(folder, sizeof(folder), "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(folder, 0777);
        *slash = '/';
    }
}

static void copy(const char *from, const char *to)
{
    make_folders(to);
    ck_assert_int_eq(
        run_program((const char *const[]){"cp", from, to, NULL}, (const char *const[]){NULL}).code, 0);
}

static const struct {
    const char *compiler; /* copied moefarm-compile; NULL: that of the build */
    const char *nvrtc;    /* the fake NVRTC, whose minor version is 99 */
    bool active, found;   /* active: VIRTUAL_ENV names the environment */
} environments[] = {
    {"lib/python3.11/site-packages/moefarm/lib/moefarm-compile",
     "lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13", false, true},
    {"moefarm/lib/moefarm-compile", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", false, true},
    {"moefarm/lib/x/moefarm/lib/moefarm-compile", "moefarm/lib/x/nvidia/cu13/lib/libnvrtc.so.13", false,
     true},
    {NULL, "lib/python3.10/site-packages/nvidia/cu13/lib/libnvrtc.so.13", true, true},
    {NULL, "lib/python3.10/site-packages/nvidia/cu13/lib/libnvrtc.so.13", false, false},
    {"other/lib/moefarm-compile", "nvidia/cu13/lib/libnvrtc.so.13", false, false},
    {"moefarm/lib/x/moefarm-compile", "nvidia/cu13/lib/libnvrtc.so.13", false, false},
};

/* Finds NVRTC where pip installs it, from a compiler in the same environment or in the active one. */
MF_TEST(finds_nvrtc_in_an_environment, .rows = MF_ARRAY_LEN(environments))
{
    char compiler[PATH_MAX] = MF_BINARY_DIR "/kernels/moefarm-compile", nvrtc[PATH_MAX];
    const char *const command[] = {compiler, "--version", "nvidia", NULL};
    struct ran r;

    (void)unsetenv("CUDA_PATH");
    (void)unsetenv("CUDA_HOME");
    (void)unsetenv("VIRTUAL_ENV");
    if (environments[_i].active)
        ck_assert_int_eq(setenv("VIRTUAL_ENV", rocm, 1), 0);
    if (environments[_i].compiler) {
        mf_format(compiler, sizeof(compiler), "%s/%s", rocm, environments[_i].compiler);
        copy(MF_BINARY_DIR "/kernels/moefarm-compile", compiler);
    }
    mf_format(nvrtc, sizeof(nvrtc), "%s/%s", rocm, environments[_i].nvrtc);
    copy(MF_BINARY_DIR "/tests/fake_cuda/libnvrtc.so.13", nvrtc);
    r = run_program(command, (const char *const[]){NULL});
    ck_assert_msg((strstr(r.text, "nvrtc 13.99") != NULL) == environments[_i].found, "%s", r.text);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = make_rocm, .teardown = remove_rocm});
}
