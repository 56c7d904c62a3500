#include "kernels/gpu/host/hip_open.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/core/sibling_file.h"

#define ORDINAL_MAX 1023

static const char *const vendors[] = {"amd", "nvidia"};

static int load(const char *vendor, const struct mf_hip_module **ret, char *why, size_t why_cap)
{
    char file[64], path[PATH_MAX];
    mf_format(file, sizeof(file), "moefarm-hip-%s.so", vendor);
    if (mf_sibling_file(file, "kernels", path) < 0) {
        mf_format(
            why, why_cap,
            "%s not found next to the program: install package moefarm-worker of this version; to build "
            "it, install the headers of HIP (Debian's libamdhip64-dev, or ROCm)",
            file);
        return -ENOENT;
    }
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        mf_format(why, why_cap, "%s", dlerror());
        return -ENOENT;
    }
    mf_hip_module_fn entry = NULL;
    void *symbol = dlsym(object, MF_HIP_MODULE_ENTRY);
    memcpy(&entry, &symbol, sizeof(entry));
    const struct mf_hip_module *m = entry ? entry() : NULL;
    if (!m || m->api != MF_HIP_MODULE_API || strcmp(m->sources, mf_code_sources_digest) != 0) {
        mf_format(why, why_cap, "%s: version mismatch; install matching moefarm packages", path);
        (void)dlclose(object);
        return -ENOENT;
    }
    *ret = m; /* never unloaded, because threads of the runtime still use its code */
    return 0;
}

int mf_device_hip_count(const char *vendor, char *why, size_t why_cap)
{
    const struct mf_hip_module *m;
    int r = load(vendor, &m, why, why_cap);
    return r < 0 ? r : m->count(why, why_cap);
}

/* Parses a device name such as "hip:amd:0". Returns the vendor and the ordinal, or NULL if the name is not a
 * HIP device name. */
static const char *parse(const char *name, int *ret_ordinal)
{
    if (strncmp(name, "hip:", 4) != 0)
        return NULL;
    const char *vendor = name + 4;
    for (size_t i = 0; i < MF_ARRAY_LEN(vendors); i++) {
        size_t n = strlen(vendors[i]);
        int64_t ordinal;
        if (strncmp(vendor, vendors[i], n) != 0 || vendor[n] != ':' ||
            mf_parse_i64(vendor + n + 1, 0, ORDINAL_MAX, &ordinal) < 0)
            continue;
        *ret_ordinal = (int)ordinal;
        return vendors[i];
    }
    return NULL;
}

/* Loads the module of a device and returns its ordinal. */
static int find(const char *name, const struct mf_hip_module **ret, int *ret_ordinal, char *why,
                size_t why_cap)
{
    const char *vendor = parse(name, ret_ordinal);
    if (vendor)
        return load(vendor, ret, why, why_cap);
    mf_format(why, why_cap, "unknown device '%s': expected hip:amd:<ordinal> or hip:nvidia:<ordinal>", name);
    return -EINVAL;
}

int mf_device_hip_open(const char *name, const struct mf_device_open_options *how, char *why, size_t why_cap,
                       struct mf_device **ret)
{
    const struct mf_hip_module *m;
    int ordinal, r = find(name, &m, &ordinal, why, why_cap);
    return r < 0 ? r : m->open(ordinal, how, why, why_cap, ret);
}

int mf_device_hip_identity(const char *name, char *ret, size_t cap, char *why, size_t why_cap)
{
    const struct mf_hip_module *m;
    int ordinal, r = find(name, &m, &ordinal, why, why_cap);
    return r < 0 ? r : m->identity(ordinal, ret, cap, why, why_cap);
}

int mf_device_hip_compiler(const char *name, const struct mf_device_info *known, struct mf_compiler *ret)
{
    int ordinal;
    struct mf_compiler compiler = {.vendor = parse(name, &ordinal)};
    if (!compiler.vendor)
        return -EINVAL;
    mf_code_arch(&compiler, known->class.gfx);
    mf_format(compiler.version, sizeof(compiler.version), "%s", known->compiler);
    *ret = compiler;
    return 0;
}

struct mf_code mf_device_hip_code(const char *gfx)
{
    struct mf_code code = {.source = "measure.hip", .function = "mf_delay"};
    if (strcmp(gfx, "sm_90") == 0)
        mf_code_define(&code, "MF_WGMMA");
    return code;
}
