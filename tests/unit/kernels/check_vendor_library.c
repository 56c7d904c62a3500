/* Tests the search for the vendors' libraries in an installation of ROCm that ROCM_PATH names. The folders
 * that are searched without ROCM_PATH are tested in a copy of the machine (tests/deploy/check_package.sh). */
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

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = make_rocm, .teardown = remove_rocm});
}
