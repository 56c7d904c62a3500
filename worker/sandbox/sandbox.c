#include "worker/sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/core/sibling_file.h"
#include "worker/sandbox/compilers.h"

/* Landlock rights that the headers of Debian 12 lack. Each comment names the first version of the Landlock
 * ABI that has the right. */
#define FS_TRUNCATE  (UINT64_C(1) << 14) /* Landlock version 3 */
#define NET_ALL      UINT64_C(3)         /* Landlock version 4: TCP bind and connect */
#define FS_IOCTL_DEV (UINT64_C(1) << 15) /* Landlock version 5 */
#define SCOPE_ALL    UINT64_C(3)         /* Landlock version 6: abstract sockets and signals */
#define FS_FILE_RIGHTS                                                                           \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE | \
     FS_TRUNCATE | FS_IOCTL_DEV)
#define FS_VERSION_1 ((UINT64_C(1) << 13) - 1)

#define READ   (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITE  (LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE)
#define EXEC   LANDLOCK_ACCESS_FS_EXECUTE
#define DEVICE (READ | WRITE | FS_IOCTL_DEV)
#define FULL                                                                                             \
    (READ | WRITE |                                                                                      \
     (FS_VERSION_1 & ~(uint64_t)(EXEC | LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK)) | \
     LANDLOCK_ACCESS_FS_REFER)

struct ruleset {
    uint64_t fs, net, scoped;
};

enum { ALL = 0, GPU = 1, PYTHON = 2 };

/* clang-format off */
static const struct {
    const char *path;   /* glob pattern; if no path matches, the rule is skipped */
    uint64_t rights;
    unsigned runners;   /* kinds of runners that get the rights */
} rules[] = {
    /* system libraries */
    {"/usr",                READ, ALL},
    {"/lib*",               READ, ALL},
    {"/bin",                READ, ALL},
    {"/opt",                READ, ALL},
    {"/etc/ld.so.cache",    READ, ALL},
    {"/etc/ld.so.conf*",    READ, ALL},
    {"/etc/localtime",      READ, ALL},
    {"/etc/alternatives",   READ, ALL},
    {"/etc/nsswitch.conf",  READ, ALL},
    {"/etc/passwd",         READ, ALL},
    {"/etc/OpenCL",         READ, GPU},
    {"/etc/nvidia*",        READ, GPU},
    /* system information; the kernel still protects the private parts of other processes */
    {"/proc",               READ, ALL},
    {"/sys",                READ, ALL},
    {"/dev/null",           READ | WRITE, ALL},
    {"/dev/zero",           READ | WRITE, ALL},
    {"/dev/urandom",        READ, ALL},
    {"/dev/random",         READ, ALL},
    /* GPU devices and shared memory of their runtimes */
    {"/dev/nvidia*",        DEVICE, GPU},
    {"/dev/kfd",            DEVICE, GPU},
    {"/dev/dri",            DEVICE, GPU},
    {"/dev/shm",            FULL,  GPU | PYTHON},
    {"/proc/self",          READ | WRITE, GPU},
    /* dynamic loader of the compile helper and of compilers */
    {"/lib*/ld-linux*",     READ | EXEC, GPU | PYTHON},
    {"/lib*/*/ld-linux*",   READ | EXEC, GPU | PYTHON},
    /* programs that Triton, torch and DeepGEMM start, besides compiler_programs */
    {"/sbin/ldconfig*",             READ | EXEC, PYTHON},
    {"/bin/sh",                     READ | EXEC, PYTHON}, /* ldconfig is a script in Ubuntu */
    {"/usr/local/cuda*/bin/*",      READ | EXEC, PYTHON},
    {"/usr/local/cuda*/nvvm/bin/*", READ | EXEC, PYTHON},
    {"/opt/rocm*/llvm/bin/*",       READ | EXEC, PYTHON},
    {"/opt/rocm*/lib/llvm/bin/*",   READ | EXEC, PYTHON},
    {"/etc/python3*",               READ, PYTHON},
};
/* clang-format on */

/* Programs of a compiler, relative to the folder that has its `bin`. */
static const char *const compiler_programs[] = {
    "bin/*gcc*",
    "bin/*g++*",
    "bin/cc",
    "bin/c++",
    "bin/*clang*",
    "bin/as",
    "bin/*-as",
    "bin/ld*",
    "bin/*-ld*",
    "*-*/bin/as",
    "*-*/bin/ld*",
    "lib*/gcc/*/*/cc1*",
    "lib*/gcc/*/*/collect2",
    "lib*/gcc/*/*/lto*",
    "bin/nvcc",
    "bin/cudafe++",
    "bin/ptxas",
    "bin/fatbinary",
    "bin/nvlink",
    "bin/cuobjdump",
    "bin/cc1*",
    "bin/collect2",
    "bin/lto*",
    "nvvm/bin/*",
};
/* Folders that these programs read. */
static const char *const compiler_folders[] = {"bin",     "lib*",    "include",  "nvvm",
                                               "targets", "*-*/bin", "*-*/lib*", "*-*/include"};

/* Programs in a folder of the interpreter: the interpreter itself, and compilers of wheels. */
static const char *const python_programs[] = {
    "bin/python3*",
    "lib*/python3*/*-packages/triton/backends/*/bin/*",
    "lib*/python3*/*-packages/nvidia/*/bin/*",
    "lib*/python3*/*-packages/nvidia/*/nvvm/bin/*",
};

struct landlock {
    int fd;
    uint64_t supported; /* rights supported by this kernel */
};

static int allow(const struct landlock *l, const char *path, uint64_t rights)
{
    struct stat status;
    _cleanup_(mf_closep) int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0)
        return 0; /* the path does not exist, so the runner cannot need it */
    struct landlock_path_beneath_attr rule = {.allowed_access = rights & l->supported, .parent_fd = fd};
    if (!S_ISDIR(status.st_mode))
        rule.allowed_access &= FS_FILE_RIGHTS;
    return syscall(SYS_landlock_add_rule, l->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

static int allow_pattern(const struct landlock *l, const char *pattern, uint64_t rights)
{
    glob_t found = {0};
    int r = 0;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; r == 0 && i < found.gl_pathc; i++)
            r = allow(l, found.gl_pathv[i], rights);
    }
    globfree(&found);
    return r;
}

/* Gives read access to each folder of a colon-separated list. */
static int allow_path_list(const struct landlock *l, const char *list)
{
    char path[PATH_MAX];
    int r = 0;
    while (r == 0 && list && *list) {
        size_t n = strcspn(list, ":");
        mf_format(path, sizeof(path), "%.*s", (int)MF_MIN(n, sizeof(path) - 1), list);
        r = *path ? allow(l, path, READ) : 0;
        list += n + (list[n] == ':');
    }
    return r;
}

/* Gives access to the folders that users name for the vendors' libraries (kernels/gpu/host/vendor_library.h).
 */
static int allow_vendor_libraries(const struct landlock *l)
{
    static const char *const variables[] = {"ROCM_PATH", "CUDA_PATH", "CUDA_HOME", "VIRTUAL_ENV"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(variables); i++)
        r = allow_path_list(l, getenv(variables[i]));
    return r;
}

/* Gives access to the folder of a file. */
static int allow_folder_of(const struct landlock *l, const char *file, uint64_t rights)
{
    char path[PATH_MAX];
    const char *slash = strrchr(file, '/');
    if (slash)
        mf_format(path, sizeof(path), "%.*s", (int)MF_MAX(slash - file, 1), file);
    return allow(l, slash ? path : ".", rights);
}

/* Gives access to the program itself, its GPU modules, the compile helper and the code cache. */
static int allow_program(const struct landlock *l, bool gpu)
{
    char path[PATH_MAX];
    static const char *const modules[] = {"moefarm-hip-nvidia.so", "moefarm-hip-amd.so"};
    int r = allow(l, "/proc/self/exe", READ);
    for (size_t i = 0; r == 0 && gpu && i < MF_ARRAY_LEN(modules); i++)
        r = mf_sibling_file(modules[i], "kernels", path) == 0 ? allow_folder_of(l, path, READ) : 0;
    if (r == 0 && gpu && mf_sibling_file("moefarm-compile", "kernels", path) == 0)
        r = allow(l, path, READ | EXEC);
    if (r == 0 && gpu) {
        mf_code_folder(path);
        r = allow(l, path, FULL);
    }
    return r;
}

static int allow_below(const struct landlock *l, const char *folder, const char *const *patterns, size_t n,
                       uint64_t rights)
{
    char pattern[PATH_MAX];
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        mf_format(pattern, sizeof(pattern), "%s/%s", folder, patterns[i]);
        r = allow_pattern(l, pattern, rights);
    }
    return r;
}

static int allow_prefix(const struct landlock *l, const char *prefix)
{
    int r = allow(l, prefix, READ);
    return r < 0 ? r : allow_below(l, prefix, python_programs, MF_ARRAY_LEN(python_programs), READ | EXEC);
}

static int allow_compiler(const struct landlock *l, const char *program)
{
    char prefix[PATH_MAX];
    int r = allow(l, program, READ | EXEC);
    if (r < 0 || mf_compiler_prefix(program, prefix) < 0)
        return r;
    r = allow_below(l, prefix, compiler_folders, MF_ARRAY_LEN(compiler_folders), READ);
    return r < 0 ? r
                 : allow_below(l, prefix, compiler_programs, MF_ARRAY_LEN(compiler_programs), READ | EXEC);
}

static int allow_compilers(const struct landlock *l)
{
    _cleanup_(mf_freep) char(*found)[PATH_MAX] = calloc(MF_COMPILERS_MAX, sizeof(*found));
    if (!found)
        return -ENOMEM;
    int r = allow_below(l, "/usr", compiler_programs, MF_ARRAY_LEN(compiler_programs), READ | EXEC);
    size_t n = mf_compilers_find(found);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = allow_compiler(l, found[i]);
    return r;
}

static int allow_python(const struct landlock *l, const struct mf_sandbox *s)
{
    int r = s->n_prefixes > 0 ? allow(l, "/proc/self/exe", READ | EXEC) : 0;
    for (size_t i = 0; r == 0 && i < s->n_prefixes; i++)
        r = allow_prefix(l, s->prefixes[i]);
    return r < 0 || s->n_prefixes == 0 ? r : allow_compilers(l);
}

static int allow_all(const struct landlock *l, const struct mf_sandbox *s, bool gpu)
{
    unsigned kinds = (gpu ? GPU : 0) | (s->n_prefixes > 0 ? PYTHON : 0);
    int r = 0;
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(rules); i++) {
        if (rules[i].runners == ALL || (rules[i].runners & kinds))
            r = allow_pattern(l, rules[i].path, rules[i].rights);
    }
    if (r == 0)
        r = allow_program(l, gpu);
    if (r == 0)
        r = allow_python(l, s);
    if (r == 0)
        r = allow_path_list(l, getenv("LD_LIBRARY_PATH"));
    if (r == 0 && gpu)
        r = allow_vendor_libraries(l);
    for (size_t i = 0; r == 0 && i < s->n_files; i++)
        r = allow(l, s->files[i], READ);
    if (r == 0 && s->scratch[0])
        r = allow(l, s->scratch, FULL);
    const char *spec = strncmp(s->device, "sim:", 4) == 0 ? strchr(s->device, '/') : NULL;
    spec = spec ? strchr(spec, ':') : NULL;
    spec = spec ? strchr(spec + 1, ':') : NULL;
    /* The device is "sim:CLASS:N:FILE". The simulation counts its faults in a file next to FILE. */
    if (r == 0 && spec)
        r = allow_folder_of(l, spec + 1, FULL);
    return r;
}

/* Limits file access with Landlock. Returns the Landlock version applied, 0 if the kernel has no Landlock, or
 * -errno. */
static int limit_files(const struct mf_sandbox *s, bool gpu)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1)
        return 0;
    struct ruleset set = {
        .fs = FS_VERSION_1, .net = version >= 4 ? NET_ALL : 0, .scoped = version >= 6 ? SCOPE_ALL : 0};
    set.fs |= (version >= 2 ? LANDLOCK_ACCESS_FS_REFER : 0) | (version >= 3 ? FS_TRUNCATE : 0) |
              (version >= 5 ? FS_IOCTL_DEV : 0);
    _cleanup_(mf_closep) int fd = (int)syscall(SYS_landlock_create_ruleset, &set, sizeof(set), 0);
    if (fd < 0)
        return -errno;
    int r = allow_all(&(struct landlock){fd, set.fs}, s, gpu);
    if (r == 0 && syscall(SYS_landlock_restrict_self, fd, 0) < 0)
        r = -errno;
    return r < 0 ? r : (int)version;
}

static int drop_privileges(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0}};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return syscall(SYS_capset, &header, none) < 0 ? -errno : 0;
}

int mf_sandbox_enter(const struct mf_sandbox *s, char ret_text[MF_SANDBOX_TEXT_MAX], char *why,
                     size_t why_cap)
{
    bool gpu = strncmp(s->device, "hip:", 4) == 0;
    if (s->off) {
        mf_format(ret_text, MF_SANDBOX_TEXT_MAX, "none: --no-sandbox");
        return 0;
    }
    /* By default, CUDA and ROCm keep caches in the home folder, which the runner cannot access. */
    static const char *const folders[] = {"TMPDIR", "CUDA_CACHE_PATH", "AMD_COMGR_CACHE_DIR"};
    for (size_t i = 0; s->scratch[0] && i < MF_ARRAY_LEN(folders); i++)
        (void)setenv(folders[i], s->scratch, 1);
    int r = drop_privileges();
    if (r < 0) {
        mf_format(why, why_cap, "cannot drop privileges: %s", strerror(-r));
        return r;
    }
    int version = limit_files(s, gpu);
    if (version < 0) {
        mf_format(why, why_cap, "cannot apply Landlock rules: %s", strerror(-version));
        return version;
    }
    int calls = mf_sandbox_calls(gpu || s->n_prefixes > 0);
    if (calls < 0 && calls != -ENOSYS) {
        mf_format(why, why_cap, "cannot install the seccomp filter: %s", strerror(-calls));
        return calls;
    }
    char files[32] = "no landlock in this kernel";
    if (version > 0)
        mf_format(files, sizeof(files), "landlock %d", version);
    mf_format(ret_text, MF_SANDBOX_TEXT_MAX, "%s, %s, %s",
              s->pid_namespace ? "pid namespace" : "no pid namespace", files,
              calls == 0 ? "seccomp" : "no seccomp in this kernel");
    return 0;
}
