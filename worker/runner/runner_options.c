#include "worker/runner/runner_options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/opts.h"

int mf_collect_option(const char *option, const char **values, int max, int *n, int argc, char **argv)
{
    size_t len = strlen(option);
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        if (strncmp(argv[i], option, len) != 0)
            continue;
        if (argv[i][len] == '=')
            value = argv[i] + len + 1;
        else if (argv[i][len] == '\0' && i + 1 < argc)
            value = argv[++i];
        if (!value)
            continue;
        if (*n == max) {
            (void)fprintf(stderr, "moefarm-worker: %s: too many values, at most %d\n", option, max);
            return -EINVAL;
        }
        values[(*n)++] = value;
    }
    return 0;
}

int mf_runner_options_parse(int argc, char **argv, struct mf_runner_options *ret)
{
    const char *so, *py; /* repeatable options are collected below */
    int64_t keep_mib = MF_RUNNER_KEEP_MIB, memory_mib = 0;
    struct mf_runner_options o = {
        .device = "", .families = "", .asm_folder = "", .aiter_folder = "", .scratch = ""};
    /* clang-format off */
    const struct mf_opt opts[] = {
        {"device",       MF_OPT_TEXT, &o.device,        "NAME",    "device", 0, 0},
        {"families",     MF_OPT_TEXT, &o.families,      "LIST",    "families to offer", 0, 0},
        {"family-so",    MF_OPT_TEXT, &so,              "FILE",    "shared object (repeatable)", 0, 0},
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
    so = py = NULL;
    int rest, r = mf_opts_parse("runner options", opts, MF_ARRAY_LEN(opts), argc, argv, &rest);
    if (r == 0)
        r = mf_collect_option("--family-so", o.family_so, MF_RUNNER_FAMILY_SO_MAX, &o.n_family_so, argc,
                              argv);
    if (r != 0)
        return r < 0 ? r : -EINVAL;
    o.keep_bytes = (uint64_t)keep_mib << 20;
    o.memory_bytes = (uint64_t)memory_mib << 20;
    *ret = o;
    return 0;
}
