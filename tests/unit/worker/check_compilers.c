/* Tests which compilers the sandbox allows (worker/sandbox/compilers.h). */
#include "worker/sandbox/compilers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

static const struct {
    const char *program, *prefix; /* NULL: none */
} prefixes[] = {
    {"/opt/gcc/bin/gcc", "/opt/gcc"},
    {"/usr/bin/cc", "/usr"},
    {"/bin/gcc", NULL},
    {"/usr/lib/ccache/gcc", NULL},
    {"/opt/mybin/gcc", NULL},
    {"gcc", NULL},
    {"bin/gcc", NULL},
    {"/a/bin/b/bin/x", "/a/bin/b"},
};

MF_TEST(prefix_of_a_compiler, .rows = MF_ARRAY_LEN(prefixes))
{
    char prefix[PATH_MAX] = "";
    int r = mf_compiler_prefix(prefixes[_i].program, prefix);
    ck_assert_int_eq(r == 0, prefixes[_i].prefix != NULL);
    ck_assert_str_eq(prefix, r == 0 ? prefixes[_i].prefix : "");
}

static bool contains(char (*found)[PATH_MAX], size_t n, const char *folder, const char *file)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(found[i], path) == 0)
            return true;
    }
    return false;
}

/* The first program in PATH counts, with the target of its link; relative folders of PATH do not. */
MF_TEST(finds_compilers)
{
    static char found[MF_COMPILERS_MAX][PATH_MAX];
    char folder[] = "/tmp/check_compilers.XXXXXX", text[512];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(text, sizeof(text),
                   "cd %s && mkdir -p a b cuda/bin && cp /bin/true a/gcc-14 && ln -s gcc-14 a/gcc && "
                   "cp /bin/true b/gcc && cp /bin/true b/mycc && cp /bin/true cuda/bin/nvcc",
                   folder);
    ck_assert_int_eq(system(text), 0);
    (void)snprintf(text, sizeof(text), "%s/cuda", folder);
    ck_assert_int_eq(setenv("CUDA_HOME", text, 1), 0);
    ck_assert_int_eq(setenv("CC", "mycc", 1), 0);
    ck_assert_int_eq(unsetenv("CXX"), 0);
    (void)snprintf(text, sizeof(text), "b::%s/a:%s/b", folder, folder);
    ck_assert_int_eq(setenv("PATH", text, 1), 0);
    size_t n = mf_compilers_find(found);
    ck_assert_int_eq(setenv("PATH", "/usr/bin:/bin", 1), 0);
    (void)snprintf(text, sizeof(text), "rm -r %s", folder);
    ck_assert_int_eq(system(text), 0);
    ck_assert_uint_eq(n, 4);
    ck_assert(contains(found, n, folder, "a/gcc") && contains(found, n, folder, "a/gcc-14"));
    ck_assert(contains(found, n, folder, "b/mycc") && contains(found, n, folder, "cuda/bin/nvcc"));
}

int main(void)
{
    return mf_check_main(NULL);
}
