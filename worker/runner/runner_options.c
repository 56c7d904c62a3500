#include "worker/runner/runner_options.h"

#include <errno.h>

#include "common/base/cleanup.h"
#include "common/base/opts.h"

int mf_runner_options_parse(int argc, char **argv, struct mf_runner_options *ret)
{
    const char *py = NULL; /* boot.py reads this option itself */
    int64_t keep_mib = MF_RUNNER_KEEP_MIB, memory_mib = 0;
    struct mf_runner_options o = {
        .device = "", .families = "", .asm_folder = "", .aiter_folder = "", .scratch = ""};
    struct mf_opt_list so = {.values = o.family_so, .max = MF_RUNNER_FAMILY_SO_MAX};
    /* clang-format off */
    const struct mf_opt opts[] = {
        {"device",       MF_OPT_TEXT, &o.device,        "NAME",    "device", 0, 0},
        {"families",     MF_OPT_TEXT, &o.families,      "LIST",    "families to offer", 0, 0},
        {"family-so",    MF_OPT_LIST, &so,              "FILE",    "shared object (repeatable)", 0, 0},
        {"family-py",    MF_OPT_TEXT, &py,              "MODULE",  "Python family (repeatable)", 0, 0},
        {"asm-dir",      MF_OPT_TEXT, &o.asm_folder,    "DIR",     "prebuilt kernels", 0, 0},
        {"aiter-dir",    MF_OPT_TEXT, &o.aiter_folder,  "DIR",     "AITER's tree", 0, 0},
        {"keep",         MF_OPT_INT,  &keep_mib,        "MIB",     "memory to reuse", 0, 1 << 30},
        {"memory",       MF_OPT_INT,  &memory_mib,      "MIB",     "limit of the address space", 0, 1 << 30},
        {"no-sandbox",   MF_OPT_BOOL, &o.no_sandbox,    NULL,      "run without a sandbox", 0, 0},
        {"in-namespace", MF_OPT_BOOL, &o.pid_namespace, NULL,      "the runner has a PID namespace", 0, 0},
        {"scratch",      MF_OPT_TEXT, &o.scratch,       "DIR",     "folder that the runner may write", 0, 0},
    };
    /* clang-format on */
    int rest, r = mf_opts_parse("runner options", opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    if (r != 0)
        return r < 0 ? r : -EINVAL;
    o.n_family_so = so.n;
    o.keep_bytes = (uint64_t)keep_mib << 20;
    o.memory_bytes = (uint64_t)memory_mib << 20;
    *ret = o;
    return 0;
}
