/* moefarm-compile: one kernel source into one code object, in a process that may die of it (Debian's hipRTC aborts its
 * caller for an architecture that it does not know).
 *
 *     moefarm-compile [--sources=DIGEST] VENDOR ARCH SOURCE OUT [-DNAME=VALUE …]
 *     moefarm-compile [--sources=DIGEST] --version VENDOR
 *
 * DIGEST is of the sources that OUT is named for (kernels/core/code.h): where they are not those that are built in here, nothing is made.
 *
 * Both vendors' run-time compilers have the same calls under another prefix, so neither's headers are needed; a third
 * vendor, "clang", is a program (kernels/gpu/host/compile_clang.h). The compiler's words go to stderr; OUT is complete or not there, after
 * a power cut too. Where OUT cannot be written, the code goes to its spare (kernels/core/code.h).
 *
 * Of several that are to make the same OUT one does, and the others wait for it: they hold OUT.lock in turn, which the kernel
 * takes from one that dies. It ends with the process that started it: nobody else would end it. */
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

#define WAIT_S 20 /* of the minute that a compiler has */

struct compiler {
    const char *vendor, *prefix;
    const char *libraries[8]; /* the first that has the calls */
    const char *size_call, *code_call;
    const char *fixed[4]; /* options of every kernel */
    bool file_is_version; /* its call for the version says the same in every release */
};
static const struct compiler compilers[] = {
    {"nvidia",
     "nvrtc",
     {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"},
     "CUBINSize",
     "CUBIN",
     {"--std=c++17", "--restrict", "--device-int128"},
     false},
    {"amd",
     "hiprtc",
     /* with HIP 7 the runtime has no compiler any more, before 5.3 no library of its own had it */
     {"libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.6", "libhiprtc.so.5", "libamdhip64.so.5"},
     "CodeSize",
     "Code",
     {"-std=c++17", "-O3"},
     true},
};

/* The calls, whichever vendor's; 0 is success. */
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

static bool has_calls(const struct compiler *v, struct calls *c)
{
    char get_size[32], get_code[32];
    mf_format(get_size, sizeof(get_size), "Get%s", v->size_call);
    mf_format(get_code, sizeof(get_code), "Get%s", v->code_call);
    return find(v, c, "Version", &c->version) && find(v, c, "CreateProgram", &c->create) &&
           find(v, c, "DestroyProgram", &c->destroy) && find(v, c, "CompileProgram", &c->compile) &&
           find(v, c, "GetProgramLogSize", &c->log_size) && find(v, c, "GetProgramLog", &c->log) &&
           find(v, c, get_size, &c->code_size) && find(v, c, get_code, &c->code);
}

static int load(const struct compiler *v, struct calls *c)
{
    bool any = false;
    for (size_t i = 0; i < MF_ARRAY_LEN(v->libraries) && v->libraries[i]; i++) {
        c->library = dlopen(v->libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (c->library && has_calls(v, c))
            return 0;
        any |= c->library != NULL; /* stays loaded: what it has started may not be taken from under it */
    }
    if (any)
        (void)fprintf(stderr, "%s's run-time compiler lacks a call\n", v->vendor);
    else
        (void)fprintf(stderr, "no run-time compiler of %s: %s\n", v->vendor, dlerror());
    return -ENOENT;
}

/* "nvrtc 13.0", "hiprtc 9.0 libhiprtc.so.6.3.60304". */
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
    mf_format(part, sizeof(part), "%s.%d", out, (int)getpid());
    _cleanup_(mf_closep) int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int r = mf_write_all(fd, code, n);
    if (r == 0)
        return mf_put_in_place(part, out);
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
    (void)fprintf(stderr, "writing %s: %s\n", out, strerror(-r));
    return mf_code_spare(out, spare) ? write_file(spare, code, n) : r;
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

static void wake(int signal_number)
{
    (void)signal_number;
}

/* Waits for whoever holds it, but not for long: that may be one that hardly gets a processor. */
static int wait_for(int fd)
{
    const struct sigaction waking = {.sa_handler = wake}; /* its call ends with the signal */
    (void)sigaction(SIGALRM, &waking, NULL);
    (void)alarm(WAIT_S);
    int r = flock(fd, LOCK_EX);
    (void)alarm(0);
    return r;
}

/* -1: none is to be had, and what it is of may be made twice. ret_waited: somebody else had it. */
static int take_lock(const char *path, bool *ret_waited)
{
    int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
    int r = fd < 0 ? -1 : flock(fd, LOCK_EX | LOCK_NB);
    *ret_waited = fd >= 0 && r < 0 && errno == EWOULDBLOCK;
    if (*ret_waited)
        r = wait_for(fd);
    if (r == 0 || fd < 0)
        return fd;
    (void)close(fd);
    return -1;
}

static bool is_there(const char *out)
{
    char spare[PATH_MAX];
    return access(out, R_OK) == 0 || (mf_code_spare(out, spare) && access(spare, R_OK) == 0);
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
    if (waited && is_there(out))
        return 0;
    int r = make(v, arch, source, out, defines, n_defines);
    if (fd >= 0)
        (void)unlink(lock);
    return r;
}

static int say_version(const struct compiler *v)
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

/* The option, which comes first, is taken off; false where it says another digest. */
static bool take_sources(int *argc, char ***argv)
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
    if (!take_sources(&argc, &argv)) {
        (void)fputs("moefarm-compile is of another version of moefarm than who asks: "
                    "install both of one build, and start that again\n",
                    stderr);
        return 1;
    }
    bool asks_version = argc == 3 && strcmp(argv[1], "--version") == 0;
    const char *vendor = asks_version ? argv[2] : argc >= 5 ? argv[1] : "";
    const struct compiler *v = NULL;
    for (size_t i = 0; i < MF_ARRAY_LEN(compilers); i++) {
        if (strcmp(compilers[i].vendor, vendor) == 0)
            v = &compilers[i];
    }
    if ((!v && strcmp(vendor, "clang") != 0) || (!asks_version && !mf_code_source(argv[3])))
        return usage();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* NVRTC opens the driver where there is one, and so the device that somebody times meanwhile. A compiler needs none. */
    (void)setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    int r = asks_version ? say_version(v) : make_once(v, argv[2], argv[3], argv[4], argv + 5, argc - 5);
    /* What the vendor's compiler would do at exit is not waited for: its threads may be alive, and OUT is complete whatever
     * becomes of them. LeakSanitizer, which stops and walks every thread there, dies of NVRTC's now and then. */
    (void)fflush(NULL);
    _exit(r < 0);
}
