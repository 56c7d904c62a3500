/* moefarm-compile: compiles one kernel source to one code object. Compilation runs in a separate program,
 * because compilers may crash (Debian's hipRTC aborts on an unknown architecture).
 *
 *     moefarm-compile [--sources=DIGEST] VENDOR ARCH SOURCE OUT [-DNAME=VALUE …]
 *     moefarm-compile [--sources=DIGEST] --version VENDOR
 *
 * DIGEST is the caller's digest of the kernel sources, which is part of the name OUT (kernels/core/code.h).
 * If DIGEST differs from the digest of the built-in sources, nothing is compiled.
 *
 * The run-time compilers of both vendors have the same functions with different prefixes, so no headers are
 * needed. The third vendor, "clang", is a program (kernels/gpu/host/compile_clang.h). Compiler output goes to
 * stderr. OUT is complete or does not exist, even after a power failure. If OUT is not writable, the code is
 * written to OUT's fallback path (kernels/core/code.h).
 *
 * If several processes compile the same OUT, one of them compiles and the others wait for OUT.lock. If the
 * process that holds the lock dies, the operating system releases the lock. moefarm-compile is killed when
 * its parent exits. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/durable_file.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/gpu/host/compile_clang.h"
#include "kernels/gpu/host/vendor_library.h"

#define LOCK_WAIT_S 20 /* part of the 60 s that the caller allows a compiler */

struct compiler {
    const char *vendor, *prefix;
    enum mf_vendor_library library;
    const char *size_call, *code_call;
    const char *fixed[4]; /* options for every kernel */
    /* true: print the file name too, because the version function returns the same number in every release */
    bool file_is_version;
};
static const struct compiler compilers[] = {
    {"nvidia",
     "nvrtc",
     MF_CUDA_COMPILER,
     "CUBINSize",
     "CUBIN",
     {"--std=c++17", "--restrict", "--device-int128"},
     false},
    {"amd", "hiprtc", MF_HIP_COMPILER, "CodeSize", "Code", {"-std=c++17", "-O3"}, true},
};

/* Functions that both compilers have. They return 0 on success. */
struct calls {
    void *library;
    int (*version)(int *major, int *minor);
    int (*destroy)(void **program);
    int (*create)(void **program, const char *source, const char *name, int n, const char *const *headers,
                  const char *const *names);
    int (*compile)(void *program, int n, const char *const *options);
    int (*log_size)(void *program, size_t *ret);
    int (*log)(void *program, char *ret);
    int (*code_size)(void *program, size_t *ret);
    int (*code)(void *program, char *ret);
};

static bool find(const struct compiler *v, const struct calls *c, const char *call, void *ret)
{
    char name[64];
    mf_format(name, sizeof(name), "%s%s", v->prefix, call);
    void *symbol = dlsym(c->library, name);
    memcpy(ret, &symbol, sizeof(symbol));
    return symbol != NULL;
}

struct loading {
    const struct compiler *compiler;
    struct calls *calls;
};

static bool has_calls(void *library, void *context)
{
    const struct loading *l = context;
    const struct compiler *v = l->compiler;
    struct calls *c = l->calls;
    char get_size[32], get_code[32];
    c->library = library;
    mf_format(get_size, sizeof(get_size), "Get%s", v->size_call);
    mf_format(get_code, sizeof(get_code), "Get%s", v->code_call);
    return find(v, c, "Version", &c->version) && find(v, c, "CreateProgram", &c->create) &&
           find(v, c, "DestroyProgram", &c->destroy) && find(v, c, "CompileProgram", &c->compile) &&
           find(v, c, "GetProgramLogSize", &c->log_size) && find(v, c, "GetProgramLog", &c->log) &&
           find(v, c, get_size, &c->code_size) && find(v, c, get_code, &c->code);
}

static int load(const struct compiler *v, struct calls *c)
{
    struct loading loading = {v, c};
    char why[512];
    if (mf_vendor_library_open(v->library, RTLD_NOW | RTLD_LOCAL, has_calls, &loading, why, sizeof(why)))
        return 0;
    (void)fprintf(stderr, "no run-time compiler for %s: %s\n", v->vendor, why);
    return -ENOENT;
}

/* Prints for example "nvrtc 13.0" or "hiprtc 9.0 libhiprtc.so.6.3.60304". */
static void print_version(const struct compiler *v, const struct calls *c)
{
    int major = 0, minor = 0;
    char path[PATH_MAX];
    Dl_info info;
    void *symbol;
    (void)c->version(&major, &minor);
    printf("%s %d.%d", v->prefix, major, minor);
    memcpy(&symbol, &c->version, sizeof(symbol));
    if (v->file_is_version && dladdr(symbol, &info) && realpath(info.dli_fname, path))
        printf(" %s", strrchr(path, '/') + 1);
    printf("\n");
}

static void print_log(const struct calls *c, void *program)
{
    size_t n = 0;
    if (c->log_size(program, &n) != 0 || n < 2)
        return;
    _cleanup_(mf_freep) char *text = calloc(n + 1, 1);
    if (text && c->log(program, text) == 0)
        (void)fputs(text, stderr);
}

static int write_file(const char *out, const char *code, size_t n)
{
    char part[PATH_MAX];
    mf_code_part_path(out, part);
    _cleanup_(mf_closep) int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int r = mf_write_all(fd, code, n);
    if (r == 0)
        return mf_replace_file(part, out);
    (void)unlink(part);
    return r;
}

static int write_code(const struct calls *c, void *program, const char *out)
{
    char spare[PATH_MAX];
    size_t n = 0;
    if (c->code_size(program, &n) != 0 || n == 0)
        return -ENOEXEC;
    _cleanup_(mf_freep) char *code = malloc(n);
    if (!code || c->code(program, code) != 0)
        return -ENOEXEC;
    int r = write_file(out, code, n);
    if (r == 0)
        return 0;
    (void)fprintf(stderr, "cannot write %s: %s\n", out, strerror(-r));
    return mf_code_fallback_path(out, spare) ? write_file(spare, code, n) : r;
}

static int compile(const struct compiler *v, const struct calls *c, const char *arch, const char *source,
                   const char *out, char **defines, int n_defines)
{
    _cleanup_(mf_freep) const char **names = NULL, **texts = NULL, **options = NULL;
    int n_sources = 0, n = 0;
    char arch_option[64];
    void *program = NULL;
    while (mf_code_source_name((size_t)n_sources))
        n_sources++;
    names = calloc((size_t)n_sources, sizeof(*names));
    texts = calloc((size_t)n_sources, sizeof(*texts));
    options = calloc(1 + MF_ARRAY_LEN(v->fixed) + (size_t)n_defines, sizeof(*options));
    if (!names || !texts || !options) {
        (void)fprintf(stderr, "out of memory\n");
        return -ENOMEM;
    }
    for (int i = 0; i < n_sources; i++) {
        names[i] = mf_code_source_name((size_t)i);
        texts[i] = mf_code_source(names[i]);
    }
    mf_format(arch_option, sizeof(arch_option), "--gpu-architecture=%s", arch);
    options[n++] = arch_option;
    for (size_t i = 0; i < MF_ARRAY_LEN(v->fixed) && v->fixed[i]; i++)
        options[n++] = v->fixed[i];
    for (int i = 0; i < n_defines; i++)
        options[n++] = defines[i];
    int r = c->create(&program, mf_code_source(source), source, n_sources, texts, names);
    if (r == 0)
        r = c->compile(program, n, options);
    if (program)
        print_log(c, program);
    if (r != 0) {
        (void)fprintf(stderr, "%s does not compile for %s (%d)\n", source, arch, r);
        r = -ENOEXEC;
    } else {
        r = write_code(c, program, out);
    }
    if (program)
        (void)c->destroy(&program);
    return r;
}

static void on_alarm(int signal_number)
{
    (void)signal_number;
}

/* Waits for the lock, but at most LOCK_WAIT_S, because the process that holds it may be starved of CPU time.
 */
static int wait_for_lock(int fd)
{
    const struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART: the signal interrupts flock */
    (void)sigaction(SIGALRM, &action, NULL);
    (void)alarm(LOCK_WAIT_S);
    int r = flock(fd, LOCK_EX);
    (void)alarm(0);
    return r;
}

/* Returns the descriptor of the locked file, or -1 if the lock is unavailable, in which case two processes
 * may compile the same code. *ret_waited is true if another process held the lock. */
static int take_lock(const char *path, bool *ret_waited)
{
    int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
    int r = fd < 0 ? -1 : flock(fd, LOCK_EX | LOCK_NB);
    *ret_waited = fd >= 0 && r < 0 && errno == EWOULDBLOCK;
    if (*ret_waited)
        r = wait_for_lock(fd);
    if (r == 0 || fd < 0)
        return fd;
    (void)close(fd);
    return -1;
}

static bool exists(const char *out)
{
    char spare[PATH_MAX];
    return access(out, R_OK) == 0 || (mf_code_fallback_path(out, spare) && access(spare, R_OK) == 0);
}

static int make(const struct compiler *v, const char *arch, const char *source, const char *out,
                char **defines, int n_defines)
{
    struct calls c = {0};
    if (!v)
        return mf_clang_compile(arch, source, out, defines, n_defines);
    int r = load(v, &c);
    return r < 0 ? r : compile(v, &c, arch, source, out, defines, n_defines);
}

static int make_once(const struct compiler *v, const char *arch, const char *source, const char *out,
                     char **defines, int n_defines)
{
    char lock[PATH_MAX];
    bool waited;
    if (snprintf(lock, sizeof(lock), "%s.lock", out) >= (int)sizeof(lock))
        return make(v, arch, source, out, defines, n_defines);
    _cleanup_(mf_closep) int fd = take_lock(lock, &waited);
    if (waited && exists(out))
        return 0;
    int r = make(v, arch, source, out, defines, n_defines);
    if (fd >= 0)
        (void)unlink(lock);
    return r;
}

static int show_version(const struct compiler *v)
{
    struct calls c = {0};
    if (!v)
        return mf_clang_version();
    int r = load(v, &c);
    if (r == 0)
        print_version(v, &c);
    return r;
}

static int usage(void)
{
    (void)fputs(
        "usage: moefarm-compile [--sources=DIGEST] amd|clang|nvidia ARCH SOURCE OUT [-DNAME=VALUE ...]\n"
        "       moefarm-compile [--sources=DIGEST] --version amd|clang|nvidia\n",
        stderr);
    return 2;
}

/* Removes the digest option if it is the first argument. Returns false if the digest differs from this
 * build's digest. */
static bool parse_digest_option(int *argc, char ***argv)
{
    const size_t n = strlen(MF_CODE_SOURCES_OPTION);
    if (*argc < 2 || strncmp((*argv)[1], MF_CODE_SOURCES_OPTION, n) != 0)
        return true;
    bool same = strcmp((*argv)[1] + n, mf_code_sources_digest) == 0;
    (*argc)--;
    (*argv)++;
    return same;
}

int main(int argc, char **argv)
{
    if (!parse_digest_option(&argc, &argv)) {
        (void)fputs("moefarm-compile: version mismatch: the caller has other kernel sources; "
                    "install matching moefarm packages and restart the caller\n",
                    stderr);
        return 1;
    }
    bool wants_version = argc == 3 && strcmp(argv[1], "--version") == 0;
    const char *vendor = wants_version ? argv[2] : argc >= 5 ? argv[1] : "";
    const struct compiler *v = NULL;
    for (size_t i = 0; i < MF_ARRAY_LEN(compilers); i++) {
        if (strcmp(compilers[i].vendor, vendor) == 0)
            v = &compilers[i];
    }
    if ((!v && strcmp(vendor, "clang") != 0) || (!wants_version && !mf_code_source(argv[3])))
        return usage();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* NVRTC would open the driver and its devices, and that would disturb measurements. The compiler needs no
     * device. */
    (void)setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    int r = wants_version ? show_version(v) : make_once(v, argv[2], argv[3], argv[4], argv + 5, argc - 5);
    /* Skip the exit handlers of the vendor's library, because its threads may still run. OUT is already
     * complete. LeakSanitizer's exit check occasionally crashes on NVRTC's threads. */
    (void)fflush(NULL);
    _exit(r < 0);
}
