#include "kernels/gpu/host/vendor_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define NAMES_MAX  5
#define ROOTS_MAX  2
#define PLACES_MAX 2
#define SITES_MAX  2
#define WHY_MAX    512

struct root {
    const char *variable; /* names the folder of an installation */
    const char *folder;   /* of its libraries */
};

struct library {
    const char *names[NAMES_MAX]; /* newest version first */
    struct root roots[ROOTS_MAX];
    const char *places[PLACES_MAX]; /* folders, in which * stands for a version; newest version first */
    const char *sites[SITES_MAX];   /* folders of pip's packages below an environment's site-packages */
    const char *advice;
};

/* clang-format off */
#define ROCM_ROOTS  {{"ROCM_PATH", "lib"}, {"ROCM_PATH", "lib64"}}
#define ROCM_PLACES {"/opt/rocm/lib", "/opt/rocm-*/lib"}
/* clang-format on */

/* HIP 7's runtime contains no compiler. Before HIP 5.3, only the runtime contained the compiler. */
static const struct library libraries[] = {
    [MF_HIP_RUNTIME] =
        {
            .names = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"},
            .roots = ROCM_ROOTS,
            .places = ROCM_PLACES,
            .advice =
                "install AMD's ROCm (package hip-runtime-amd) or Debian's libamdhip64-5, or set ROCM_PATH "
                "to the folder of ROCm",
        },
    [MF_HIP_COMPILER] =
        {
            .names = {"libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.6", "libhiprtc.so.5",
                      "libamdhip64.so.5"},
            .roots = ROCM_ROOTS,
            .places = ROCM_PLACES,
            .advice =
                "install AMD's ROCm (package hip-runtime-amd) or Debian's libamdhip64-5, or set ROCM_PATH "
                "to the folder of ROCm",
        },
    [MF_CUDA_DRIVER] =
        {
            .names = {"libcuda.so.1"},
            /* the device plugin of some Kubernetes providers mounts the driver here; WSL */
            .places = {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"},
            .advice = "install NVIDIA's driver, which contains it; in a container, use the NVIDIA Container "
                      "Toolkit",
        },
    [MF_CUDA_COMPILER] =
        {
            .names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
            .roots = {{"CUDA_PATH", "lib64"}, {"CUDA_HOME", "lib64"}},
            .places = {"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64"},
            .sites = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"},
            .advice = "install package cuda-nvrtc-13-0 or cuda-nvrtc-12-8 of NVIDIA's CUDA Toolkit, or pip's "
                      "package nvidia-cuda-nvrtc, or set CUDA_PATH to the folder of the toolkit",
        },
};

struct search {
    const struct library *library;
    int flags;
    mf_library_accept_fn accept;
    void *context;
    char why[WHY_MAX]; /* why the first file that exists cannot be used */
};

static void *try_path(struct search *s, const char *path)
{
    void *library = dlopen(path, s->flags);
    if (library && (!s->accept || s->accept(library, s->context)))
        return library;
    const char *why = library ? NULL : dlerror();
    bool is_missing = why && !strchr(path, '/') && strncmp(why, path, strlen(path)) == 0;
    if (!is_missing && !s->why[0])
        mf_format(s->why, sizeof(s->why), "%s%s", library ? path : why,
                  library ? " lacks a required function: install a supported version" : "");
    return NULL;
}

static void *try_folder(struct search *s, const char *folder, const char *name)
{
    char path[PATH_MAX];
    mf_format(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0 ? try_path(s, path) : NULL;
}

static int newest_first(const void *a, const void *b)
{
    return strverscmp(*(char *const *)b, *(char *const *)a);
}

static void *try_place(struct search *s, const char *pattern, const char *name)
{
    glob_t folders;
    void *library = NULL;
    if (glob(pattern, GLOB_NOSORT, NULL, &folders) != 0)
        return NULL;
    qsort(folders.gl_pathv, folders.gl_pathc, sizeof(*folders.gl_pathv), newest_first);
    for (size_t i = 0; i < folders.gl_pathc && !library; i++)
        library = try_folder(s, folders.gl_pathv[i], name);
    globfree(&folders);
    return library;
}

static void *try_root(struct search *s, const struct root *root)
{
    char folder[PATH_MAX];
    const char *at = getenv(root->variable);
    void *library = NULL;
    if (!at || !*at)
        return NULL;
    mf_format(folder, sizeof(folder), "%s/%s", at, root->folder);
    for (size_t i = 0; i < NAMES_MAX && s->library->names[i] && !library; i++)
        library = try_folder(s, folder, s->library->names[i]);
    return library;
}

/* Searches an environment of Python, whose site-packages folder the pattern `site` names. */
static void *try_site(struct search *s, const char *site)
{
    const struct library *l = s->library;
    char pattern[PATH_MAX];
    void *library = NULL;
    for (size_t i = 0; i < SITES_MAX && l->sites[i]; i++) {
        if (snprintf(pattern, sizeof(pattern), "%s/%s", site, l->sites[i]) >= (int)sizeof(pattern))
            continue;
        for (size_t k = 0; k < NAMES_MAX && l->names[k] && !library; k++)
            library = try_place(s, pattern, l->names[k]);
    }
    return library;
}

/* Searches the environment that contains this program (SITE/moefarm/lib/PROGRAM), then the active one. */
static void *try_sites(struct search *s)
{
    static const char package[] = "/moefarm/lib/";
    char program[PATH_MAX], active[PATH_MAX];
    const char *environment = getenv("VIRTUAL_ENV");
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *at = NULL;
    void *library = NULL;
    program[MF_MAX(n, 0)] = '\0';
    for (char *next = strstr(program, package); next; next = strstr(next + 1, package))
        at = next;
    if (at && !strchr(at + strlen(package), '/')) {
        *at = '\0';
        library = try_site(s, program);
    }
    if (!library && environment && *environment &&
        snprintf(active, sizeof(active), "%s/lib/python3*/site-packages", environment) < (int)sizeof(active))
        library = try_site(s, active);
    return library;
}

static void *try_all(struct search *s)
{
    const struct library *l = s->library;
    void *library = NULL;
    for (size_t i = 0; i < ROOTS_MAX && l->roots[i].variable && !library; i++)
        library = try_root(s, &l->roots[i]);
    if (!library && l->sites[0])
        library = try_sites(s);
    for (size_t i = 0; i < NAMES_MAX && l->names[i] && !library; i++) {
        library = try_path(s, l->names[i]);
        for (size_t k = 0; k < PLACES_MAX && l->places[k] && !library; k++)
            library = try_place(s, l->places[k], l->names[i]);
    }
    return library;
}

/* Writes for example "libcuda.so.1 not found: install NVIDIA's driver". */
static void say_not_found(const struct library *l, char *why, size_t why_cap)
{
    char names[128] = "";
    for (size_t i = 0; i < NAMES_MAX && l->names[i]; i++) {
        size_t n = strlen(names);
        bool is_last = i + 1 == NAMES_MAX || !l->names[i + 1];
        mf_format(names + n, sizeof(names) - n, "%s%s", i == 0 ? "" : is_last ? " or " : ", ", l->names[i]);
    }
    mf_format(why, why_cap, "%s not found: %s", names, l->advice);
}

void *mf_vendor_library_open(enum mf_vendor_library which, int flags, mf_library_accept_fn accept,
                             void *context, char *why, size_t why_cap)
{
    struct search s = {.library = &libraries[which], .flags = flags, .accept = accept, .context = context};
    void *library = try_all(&s);
    if (!library && s.why[0])
        mf_format(why, why_cap, "%s", s.why);
    else if (!library)
        say_not_found(s.library, why, why_cap);
    return library;
}
